package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// maxIPs is the maximum number of IPs and of families of a ServiceImport in the API.
const maxIPs = 2

// ServiceImport returns the ServiceImport of m. existing, nil if there is none, must be managed by
// this controller or taken over; its status and what others added to its metadata stay. derived is
// the name of the derived Service; ips and families are those of the derived Service, in its order,
// empty while it has none. stale are the exporting clusters that are stale in this cluster.
func ServiceImport(m mcs.Merged, existing *mcsv1beta1.ServiceImport, derived string, ips []string, families []corev1.IPFamily, stale []string) *mcsv1beta1.ServiceImport {
	imp := &mcsv1beta1.ServiceImport{}
	if existing != nil {
		imp = existing.DeepCopy()
	}
	imp.Namespace, imp.Name = m.Key.Namespace, m.Key.Name
	imp.Labels, imp.Annotations = importMetadata(m, derived, imp.Labels, imp.Annotations, stale)
	imp.Spec = mcsv1beta1.ServiceImportSpec{
		Type:            m.Type,
		Ports:           importPorts(m.Ports),
		SessionAffinity: m.SessionAffinity,
		IPFamilies:      slices.Clone(m.IPFamilies),
	}
	if m.SessionAffinity == corev1.ServiceAffinityClientIP {
		imp.Spec.SessionAffinityConfig = m.SessionAffinityConfig.DeepCopy()
	}
	if m.InternalTrafficPolicy != "" {
		imp.Spec.InternalTrafficPolicy = &m.InternalTrafficPolicy
	}
	if m.TrafficDistribution != "" {
		imp.Spec.TrafficDistribution = &m.TrafficDistribution
	}
	if m.Type == mcsv1beta1.ClusterSetIP {
		imp.Spec.IPs = slices.Clone(ips[:min(len(ips), maxIPs)])
		if len(families) > 0 {
			imp.Spec.IPFamilies = slices.Clone(families[:min(len(families), maxIPs)])
		}
	}
	return imp
}

// MergedFromServiceImport is the inverse of ServiceImport: it returns the merge that imp was
// written from, for use while an exporting cluster cannot be read. exports are the exports that are
// known now; their clusters become Clusters.
//
// A ServiceImport does not hold the target ports and the conflicts of a merge, and its IP families
// are those of the derived Service once that has IPs.
func MergedFromServiceImport(imp *mcsv1beta1.ServiceImport, exports []mcs.Export) mcs.Merged {
	m := mcs.Merged{
		Key:                   mcs.Key{Namespace: imp.Namespace, Name: imp.Name},
		Type:                  imp.Spec.Type,
		Ports:                 mergedPorts(imp.Spec.Ports),
		SessionAffinity:       imp.Spec.SessionAffinity,
		SessionAffinityConfig: imp.Spec.SessionAffinityConfig.DeepCopy(),
		InternalTrafficPolicy: ptr.Deref(imp.Spec.InternalTrafficPolicy, ""),
		TrafficDistribution:   ptr.Deref(imp.Spec.TrafficDistribution, ""),
		IPFamilies:            slices.Clone(imp.Spec.IPFamilies),
		Labels:                selectKeys(imp.Labels, imp.Annotations[AnnotationExportedLabels]),
		Annotations:           selectKeys(imp.Annotations, imp.Annotations[AnnotationExportedAnnotations]),
	}
	m.ClusterSelectors, _ = mcs.ParseClusterSelectors(imp.Annotations[AnnotationClusterSelectors])
	m.MinimumReady, _ = mcs.ParsePercentage(imp.Annotations[AnnotationMinimumReady])
	for _, e := range exports {
		m.Clusters = append(m.Clusters, e.Cluster)
	}
	slices.Sort(m.Clusters)
	return m
}

// SetTiers sets the results of the cluster selectors on imp.
func SetTiers(imp *mcsv1beta1.ServiceImport, tiers []mcs.Tier) {
	imp.Annotations = withKeys(imp.Annotations, map[string]string{AnnotationSelectorResults: mcs.EncodeTiers(tiers)})
}

// Tiers returns the results of the cluster selectors that imp has. imp may be nil.
func Tiers(imp *mcsv1beta1.ServiceImport) []mcs.Tier {
	if imp == nil {
		return nil
	}
	return mcs.DecodeTiers(imp.Annotations[AnnotationSelectorResults])
}

// mergedPorts is the inverse of importPorts.
func mergedPorts(ports []mcsv1beta1.ServicePort) []mcs.Port {
	var out []mcs.Port
	for _, p := range ports {
		out = append(out, mcs.Port{
			Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), AppProtocol: ptr.Deref(p.AppProtocol, ""), Port: p.Port,
		})
	}
	return out
}

// importPorts never returns nil: the API requires the list of ports, even if it is empty.
func importPorts(ports []mcs.Port) []mcsv1beta1.ServicePort {
	out := make([]mcsv1beta1.ServicePort, 0, len(ports))
	for _, p := range ports {
		out = append(out, mcsv1beta1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, AppProtocol: pointerOrNil(p.AppProtocol), Port: p.Port,
		})
	}
	return out
}

// importMetadata returns labels and annotations with those of the exports and of this controller.
// It removes those that are no longer exported and keeps those of others.
func importMetadata(m mcs.Merged, derived string, labels, annotations map[string]string, stale []string) (map[string]string, map[string]string) {
	if m.Type != mcsv1beta1.ClusterSetIP {
		derived = ""
	}
	labels = replaceExported(labels, annotations[AnnotationExportedLabels], m.Labels)
	annotations = replaceExported(annotations, annotations[AnnotationExportedAnnotations], m.Annotations)
	return withKeys(labels, map[string]string{LabelAppManagedBy: ManagedBy}),
		withKeys(annotations, map[string]string{
			AnnotationDerivedService:      derived,
			AnnotationDerivedServiceAWS:   derived,
			AnnotationExportedLabels:      joinKeys(m.Labels),
			AnnotationExportedAnnotations: joinKeys(m.Annotations),
			AnnotationStaleClusters:       strings.Join(stale, ","), // no cluster ID has a comma
			AnnotationClusterSelectors:    string(m.ClusterSelectors),
			AnnotationMinimumReady:        mcs.FormatPercentage(m.MinimumReady),
		})
}

// maxNotImported bounds the keys of AnnotationNotImported.
const maxNotImported = 20

// SetNotImported sets AnnotationNotImported of imp, and removes its deprecated key.
func SetNotImported(imp *mcsv1beta1.ServiceImport, keys []string) {
	list := strings.Join(keys[:min(len(keys), maxNotImported)], ",")
	if more := len(keys) - maxNotImported; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	imp.Annotations = withKeys(imp.Annotations, map[string]string{AnnotationNotImported: list, mcs.DeprecatedKey(AnnotationNotImported): ""})
}

// replaceExported returns m with exported in place of the keys that before lists.
func replaceExported(m map[string]string, before string, exported map[string]string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	for key := range strings.SplitSeq(before, ",") {
		delete(out, key)
	}
	maps.Copy(out, exported)
	return out
}

// joinKeys returns a list of m's keys. Keys of labels and annotations contain no comma.
func joinKeys(m map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ",")
}

// selectKeys returns the entries of m whose keys list names, nil if there are none. It is the
// inverse of joinKeys.
func selectKeys(m map[string]string, list string) map[string]string {
	var out map[string]string
	for key := range strings.SplitSeq(list, ",") {
		value, ok := m[key]
		if !ok {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out
}

// StaleClusters returns the clusters that imp lists as stale. imp may be nil.
func StaleClusters(imp *mcsv1beta1.ServiceImport) []string {
	if imp == nil || imp.Annotations[AnnotationStaleClusters] == "" {
		return nil
	}
	return strings.Split(imp.Annotations[AnnotationStaleClusters], ",")
}

// SetUnreachable sets AnnotationUnreachableClusters of imp.
func SetUnreachable(imp *mcsv1beta1.ServiceImport, clusters []string) {
	imp.Annotations = withKeys(imp.Annotations, map[string]string{AnnotationUnreachableClusters: strings.Join(clusters, ",")})
}

// UnreachableClusters returns the clusters that imp lists as unreachable. imp may be nil.
func UnreachableClusters(imp *mcsv1beta1.ServiceImport) []string {
	if imp == nil || imp.Annotations[AnnotationUnreachableClusters] == "" {
		return nil
	}
	return strings.Split(imp.Annotations[AnnotationUnreachableClusters], ",")
}

// ServiceImportStatus returns the status of imp, the ServiceImport of m, with condition ready and
// the conditions problems. Clusters in unknown, which cannot be read, stay if imp lists them:
// unknown is not empty. A condition of problems stays if it is nil, and is absent until it is True.
//
// Every import has EndpointSlices, also of clusters without endpoints, so EndpointSliceObjects is
// Present.
func ServiceImportStatus(imp *mcsv1beta1.ServiceImport, m mcs.Merged, unknown []string, ready metav1.Condition, now metav1.Time, problems ...*metav1.Condition) mcsv1beta1.ServiceImportStatus {
	status := *imp.Status.DeepCopy()
	status.Conditions = mcs.RenameConditions(status.Conditions)
	names := slices.Clone(m.Clusters)
	for _, c := range imp.Status.Clusters {
		if slices.Contains(unknown, c.Cluster) && !slices.Contains(names, c.Cluster) {
			names = append(names, c.Cluster)
		}
	}
	slices.Sort(names)
	status.Clusters = nil
	for _, name := range names {
		status.Clusters = append(status.Clusters, mcsv1beta1.ClusterStatus{Cluster: name})
	}
	status.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsPresent
	ready.LastTransitionTime = now
	status.Conditions, _ = mcs.SetCondition(status.Conditions, ready, imp.Generation)
	for _, problem := range problems {
		if problem != nil && (problem.Status == metav1.ConditionTrue || meta.FindStatusCondition(status.Conditions, problem.Type) != nil) {
			c := *problem
			c.LastTransitionTime = now
			status.Conditions, _ = mcs.SetCondition(status.Conditions, c, imp.Generation)
		}
	}
	return status
}

// pointerOrNil returns nil for the empty string, which is an unset optional field in the API.
func pointerOrNil[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}
