package mcs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Merged is the merge of all exports of one service. It is the same in every cluster.
type Merged struct {
	Key  Key
	Type mcsv1beta1.ServiceImportType
	// Ports are the union of the exports' ports. Names are unique, so are pairs of protocol and
	// number, and each of several ports has a name.
	Ports []Port
	// PortUses are the ports that each cluster adds, those with most first. It is nil unless ports
	// are left out because there are too many.
	PortUses              []PortUse
	SessionAffinity       corev1.ServiceAffinity
	SessionAffinityConfig *corev1.SessionAffinityConfig
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	// IPFamilies are those of the oldest export that has any, nil if no export has any.
	IPFamilies  []corev1.IPFamily
	Labels      map[string]string
	Annotations map[string]string
	// ClusterSelectors and MinimumReady decide together which clusters are preferred.
	ClusterSelectors ClusterSelectors
	MinimumReady     int32
	// Clusters are the exporting clusters, sorted.
	Clusters []string
	// Conflicts are the properties on which the exports disagree, at most one per reason, in the
	// order of the reasons in mcs-api.
	Conflicts []Conflict
}

// Conflict is a property on which the exports of a service disagree.
type Conflict struct {
	Reason mcsv1beta1.ServiceExportConditionReason
	// Message names the field, the value used, the cluster it comes from and the clusters that
	// disagree.
	Message string
}

// Merge merges the exports of one service by the policy of KEP-1645. Ports are united. The oldest
// ServiceExport decides every other property; of equally old ones, the one of the cluster whose ID
// sorts first. Neither the local cluster nor a majority has precedence, so every cluster computes
// the same result, and a younger export does not change existing traffic.
//
// There must be at most one export per cluster. Without exports, Merge returns the zero Merged.
func Merge(exports []Export) Merged {
	if len(exports) == 0 {
		return Merged{}
	}
	ordered := oldestFirst(exports)
	oldest := ordered[0]
	m := Merged{
		Key:                   oldest.Key,
		Type:                  oldest.Type,
		SessionAffinity:       cmp.Or(oldest.SessionAffinity, corev1.ServiceAffinityNone),
		InternalTrafficPolicy: oldest.InternalTrafficPolicy,
		TrafficDistribution:   oldest.TrafficDistribution,
		Labels:                cloneOrNil(oldest.Labels),
		Annotations:           cloneOrNil(oldest.Annotations),
		ClusterSelectors:      oldest.ClusterSelectors,
		MinimumReady:          oldest.MinimumReady,
	}
	m.SessionAffinityConfig = canonicalAffinity(m.SessionAffinity, oldest.SessionAffinityConfig)
	for _, e := range ordered {
		m.Clusters = append(m.Clusters, e.Cluster)
	}
	slices.Sort(m.Clusters)

	var portConflict, familyConflict *Conflict
	m.Ports, m.PortUses, portConflict = mergePorts(ordered)
	m.IPFamilies, familyConflict = mergeIPFamilies(ordered, m.Type)

	m.addConflict(portConflict)
	m.addConflict(portLimitConflict(m.PortUses))
	for _, f := range oldestDecides {
		m.addConflict(f.conflict(ordered))
	}
	m.addConflict(familyConflict)
	return m
}

func (m *Merged) addConflict(c *Conflict) {
	if c != nil {
		m.Conflicts = append(m.Conflicts, *c)
	}
}

// oldestFirst returns exports sorted by precedence.
func oldestFirst(exports []Export) []Export {
	return slices.SortedFunc(slices.Values(exports), comparePrecedence)
}

// comparePrecedence sorts the oldest export first. An export without a creation time comes after
// all that have one.
func comparePrecedence(a, b Export) int {
	return cmp.Or(
		compareTrueFirst(!a.Created.IsZero(), !b.Created.IsZero()),
		a.Created.Compare(b.Created),
		cmp.Compare(a.Cluster, b.Cluster))
}

// field is a property of a service that the oldest export decides.
type field struct {
	reason mcsv1beta1.ServiceExportConditionReason
	name   string
	// value returns the property of e. Values with the same behaviour are equal.
	value func(e Export) string
	// isRelevant reports whether the property of e is compared with that of the oldest export; nil
	// means always.
	isRelevant func(oldest, e Export) bool
}

// oldestDecides are the properties that the oldest export decides, in the order of their reasons in
// mcs-api.
var oldestDecides = []field{
	{
		reason: mcsv1beta1.ServiceExportReasonTypeConflict,
		name:   "type",
		value:  func(e Export) string { return string(e.Type) },
	},
	{
		reason: mcsv1beta1.ServiceExportReasonSessionAffinityConflict,
		name:   "sessionAffinity",
		value:  func(e Export) string { return string(cmp.Or(e.SessionAffinity, corev1.ServiceAffinityNone)) },
	},
	{
		reason: mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict,
		name:   "sessionAffinityConfig.clientIP.timeoutSeconds",
		value: func(e Export) string {
			return fmt.Sprint(affinityTimeout(canonicalAffinity(e.SessionAffinity, e.SessionAffinityConfig)))
		},
		// A different affinity is a conflict of its own; its missing timeout is not reported as
		// well.
		isRelevant: func(oldest, e Export) bool { return e.SessionAffinity == oldest.SessionAffinity },
	},
	{
		reason: mcsv1beta1.ServiceExportReasonLabelsConflict,
		name:   "exportedLabels",
		value:  func(e Export) string { return formatMap(e.Labels) },
	},
	{
		reason: mcsv1beta1.ServiceExportReasonAnnotationsConflict,
		name:   "exportedAnnotations",
		value:  func(e Export) string { return formatMap(e.Annotations) },
	},
	{
		reason: mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict,
		name:   "internalTrafficPolicy",
		value: func(e Export) string {
			return string(cmp.Or(e.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster))
		},
	},
	{
		reason: mcsv1beta1.ServiceExportReasonTrafficDistributionConflict,
		name:   "trafficDistribution",
		value: func(e Export) string {
			// PreferClose is the older Kubernetes name of PreferSameZone.
			if e.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose {
				return corev1.ServiceTrafficDistributionPreferSameZone
			}
			return cmp.Or(e.TrafficDistribution, "none")
		},
	},
	{
		reason: ReasonClusterSelectorsConflict,
		name:   "clusterSelectors",
		value: func(e Export) string {
			value := cmp.Or(string(e.ClusterSelectors), "none")
			if e.MinimumReady > 0 {
				value = fmt.Sprintf("%s (minimum ready %d%%)", value, e.MinimumReady)
			}
			return value
		},
		// The selectors of headless services have no meaning; a different type is a conflict of its
		// own.
		isRelevant: func(oldest, e Export) bool { return e.Type == mcsv1beta1.ClusterSetIP && oldest.Type == e.Type },
	},
}

// conflict returns the conflict about f, or nil if all exports agree with the oldest one.
func (f field) conflict(ordered []Export) *Conflict {
	oldest := ordered[0]
	used := f.value(oldest)
	var disagree []string
	for _, e := range ordered[1:] {
		if f.isRelevant != nil && !f.isRelevant(oldest, e) {
			continue
		}
		if f.value(e) != used {
			disagree = append(disagree, e.Cluster)
		}
	}
	if len(disagree) == 0 {
		return nil
	}
	return &Conflict{Reason: f.reason, Message: conflictMessage(f.name, used, oldest.Cluster, disagree, len(ordered))}
}

// mergeIPFamilies returns the families of the oldest export that has any. An intersection would let
// a younger, single-stack export remove a clusterset IP that is in use.
//
// It is a conflict if a client reaches only some of the backends, depending on its family. The
// clusterset IPs have the merged families, so each export must have all of them. Headless clients
// use the endpoint addresses of any family, so all exports must have the same families.
func mergeIPFamilies(ordered []Export, t mcsv1beta1.ServiceImportType) ([]corev1.IPFamily, *Conflict) {
	i := slices.IndexFunc(ordered, func(e Export) bool { return len(e.IPFamilies) > 0 })
	if i < 0 {
		return nil, nil
	}
	decider := ordered[i]
	families := cloneUnique(decider.IPFamilies)
	var disagree []string
	for _, e := range ordered[i+1:] {
		if len(e.IPFamilies) == 0 {
			continue
		}
		if !containsAll(e.IPFamilies, families) || t == mcsv1beta1.Headless && !containsAll(families, e.IPFamilies) {
			disagree = append(disagree, e.Cluster)
		}
	}
	if len(disagree) == 0 {
		return families, nil
	}
	used := strings.Join(toStrings(families), ",")
	return families, &Conflict{
		Reason:  mcsv1beta1.ServiceExportReasonIPFamilyConflict,
		Message: conflictMessage("ipFamilies", used, decider.Cluster, disagree, len(ordered)),
	}
}

// containsAll reports whether every element of some is in all.
func containsAll(all, some []corev1.IPFamily) bool {
	return !slices.ContainsFunc(some, func(f corev1.IPFamily) bool { return !slices.Contains(all, f) })
}

func toStrings[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// conflictMessage returns the message of a conflict with the information that a user needs to
// resolve it.
func conflictMessage(field, used, cluster string, disagree []string, total int) string {
	return fmt.Sprintf("%s: using %s from cluster %s, %d of %d clusters disagree: %s",
		field, abbreviate(used), cluster, len(disagree), total, enumerate(disagree))
}

// enumerateMax is the number of names in a message: 5 cluster IDs of 63 characters fit a few lines
// of a terminal.
const enumerateMax = 5

// enumerate joins names for a message.
func enumerate(names []string) string {
	if len(names) <= enumerateMax {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:enumerateMax], ", "), len(names)-enumerateMax)
}

// formatMap returns "key"="value" for each pair, sorted and quoted so that the result is unique for
// the map.
func formatMap(m map[string]string) string {
	if len(m) == 0 {
		return "none"
	}
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%q=%q", k, m[k]))
	}
	return strings.Join(parts, ",")
}
