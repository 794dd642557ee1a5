package plan

import (
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// Annotations in multicluster.k8s.aws, except AnnotationDerivedServiceAWS, are the state of this
// controller. They are not renamed: a controller of an earlier version, after a downgrade, would
// not find it. test/docs lists the names in that domain.
const (
	// ManagedBy is the value of the managed-by labels of this controller's objects.
	ManagedBy = names.Product
	// LabelManagedBy is the managed-by label of EndpointSlices.
	LabelManagedBy = discoveryv1.LabelManagedBy
	// LabelAppManagedBy is the managed-by label of ServiceImports, derived Services and
	// ClusterProperties.
	LabelAppManagedBy = "app.kubernetes.io/managed-by"

	// AnnotationDerivedService is the annotation of a ServiceImport with the name of its derived
	// Service.
	AnnotationDerivedService = "multicluster.kubernetes.io/derived-service"
	// AnnotationDerivedServiceAWS is the legacy controller's annotation with the same value.
	AnnotationDerivedServiceAWS = "multicluster.k8s.aws/derived-service"
	// AnnotationExportedLabels lists the labels of a ServiceImport that come from exports. They are
	// removed when no export has them any more; other labels stay.
	AnnotationExportedLabels = "multicluster.k8s.aws/exported-labels"
	// AnnotationExportedAnnotations lists the annotations that come from exports.
	AnnotationExportedAnnotations = "multicluster.k8s.aws/exported-annotations"
	// AnnotationNotImported lists exported labels and annotations that this cluster does not import
	// (--import-metadata), for users.
	AnnotationNotImported = mcs.Domain + "/not-imported"
	// AnnotationStaleClusters lists the exporting clusters that are stale in this cluster. A
	// restarted controller, which has to detect staleness again, does not bring their withdrawn
	// endpoints back in the meantime.
	AnnotationStaleClusters = "multicluster.k8s.aws/stale-clusters"
	// AnnotationUnreachableClusters lists the exporting clusters that are withdrawn because this
	// cluster cannot reach them. A restarted controller, which has to probe them again, does not
	// bring their endpoints back in the meantime.
	AnnotationUnreachableClusters = "multicluster.k8s.aws/unreachable-clusters"
	// AnnotationClusterSelectors has the cluster selectors of the import, as spec.clusterSelectors
	// of KEP-5939.
	AnnotationClusterSelectors = "multicluster.k8s.aws/cluster-selectors"
	// AnnotationMinimumReady has the percentage that belongs to them.
	AnnotationMinimumReady = "multicluster.k8s.aws/cluster-selectors-minimum-ready"
	// AnnotationSelectorResults has the clusters that each selector selects in this cluster, as
	// status.clusterSelectorResults of KEP-5939.
	AnnotationSelectorResults = "multicluster.k8s.aws/cluster-selector-results"
	// AnnotationHeldSince is the annotation of a derived Service that only keeps its IPs, with the
	// time (RFC 3339) at which its import ended.
	AnnotationHeldSince = "multicluster.k8s.aws/held-since"
	// AnnotationHeldFor has the clusters that exported the service of such a Service.
	AnnotationHeldFor = "multicluster.k8s.aws/held-for"
)

// IsManaged reports whether this controller created or took over obj. The controller changes no
// other object. Objects of the legacy controller do not carry the label.
func IsManaged(obj metav1.Object) bool {
	label := LabelAppManagedBy
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		label = LabelManagedBy
	}
	return obj.GetLabels()[label] == ManagedBy
}

// withOwnerReference returns refs with owner. It replaces a reference to a previous object of the
// same kind and name, which a restore from backup leaves behind.
func withOwnerReference(refs []metav1.OwnerReference, owner metav1.OwnerReference) []metav1.OwnerReference {
	out := slices.Clone(refs)
	same := func(r metav1.OwnerReference) bool {
		return r.Kind == owner.Kind && r.Name == owner.Name && apiGroup(r.APIVersion) == apiGroup(owner.APIVersion)
	}
	i := slices.IndexFunc(out, same)
	if i < 0 {
		return append(out, owner)
	}
	out[i] = owner
	return out
}

// apiGroup returns apiVersion without its version: an owner is the same object in every version.
func apiGroup(apiVersion string) string {
	g, _, _ := strings.Cut(apiVersion, "/")
	return g
}

// withKeys returns a copy of m with the keys and values of set; the value "" removes a key.
func withKeys(m, set map[string]string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range set {
		if v == "" {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return out
}
