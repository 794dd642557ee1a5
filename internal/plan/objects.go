package plan

import (
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ManagedBy is the value of the labels that say an object is ours.
	ManagedBy = "cloud-map-mcs-controller"
	// LabelManagedBy says so on EndpointSlices.
	LabelManagedBy = discoveryv1.LabelManagedBy
	// LabelAppManagedBy says so on ServiceImports and derived Services.
	LabelAppManagedBy = "app.kubernetes.io/managed-by"

	// AnnotationDerivedService names the derived Service on a ServiceImport.
	AnnotationDerivedService = "multicluster.kubernetes.io/derived-service"
	// AnnotationDerivedServiceAWS is the same under the name that the AWS Cloud Map MCS Controller for K8s gave it.
	AnnotationDerivedServiceAWS = "multicluster.k8s.aws/derived-service"
	// AnnotationExportedLabels lists the labels on a ServiceImport that come from exports, so that they go again when
	// they are exported no more, and others' stay.
	AnnotationExportedLabels = "multicluster.k8s.aws/exported-labels"
	// AnnotationExportedAnnotations does the same for annotations.
	AnnotationExportedAnnotations = "multicluster.k8s.aws/exported-annotations"
	// AnnotationStaleClusters lists, on a ServiceImport, the exporting clusters that are stale here, so that a controller that has
	// just started, and has to judge anew, brings none of what was withdrawn back meanwhile.
	AnnotationStaleClusters = "multicluster.k8s.aws/stale-clusters"
)

// IsManaged reports whether this controller created or took over obj. The controller changes no other object. Objects of the
// legacy controller do not carry the label.
func IsManaged(obj metav1.Object) bool {
	label := LabelAppManagedBy
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		label = LabelManagedBy
	}
	return obj.GetLabels()[label] == ManagedBy
}

// withOwner is refs with owner in them. A reference to an earlier object of the same kind and name, as is left
// after a restore from backup, gives way to it.
func withOwner(refs []metav1.OwnerReference, owner metav1.OwnerReference) []metav1.OwnerReference {
	out := slices.Clone(refs)
	same := func(r metav1.OwnerReference) bool {
		return r.Kind == owner.Kind && r.Name == owner.Name && group(r.APIVersion) == group(owner.APIVersion)
	}
	i := slices.IndexFunc(out, same)
	if i < 0 {
		return append(out, owner)
	}
	out[i] = owner
	return out
}

// group is apiVersion without its version: an owner stays the same when its preferred version changes.
func group(apiVersion string) string {
	g, _, _ := strings.Cut(apiVersion, "/")
	return g
}

// withKeys is a copy of m in which the keys of set have their values; "" removes a key.
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
