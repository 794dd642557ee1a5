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

// Merged is what the clusterset makes of all exports of one service: the same in every cluster.
type Merged struct {
	Key  Key
	Type mcsv1beta1.ServiceImportType
	// Ports are the union of the exports' ports: no name twice, no protocol and number twice, and no port without a name
	// when there are several.
	Ports                 []Port
	SessionAffinity       corev1.ServiceAffinity
	SessionAffinityConfig *corev1.SessionAffinityConfig
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	// IPFamilies are the oldest export's, nil when no export names any.
	IPFamilies  []corev1.IPFamily
	Labels      map[string]string
	Annotations map[string]string
	// Clusters are the exporting clusters, sorted.
	Clusters []string
	// Conflicts are what the exports disagree on, at most one per reason, in the order in which mcs-api lists the reasons.
	Conflicts []Conflict
}

// Conflict is one thing that the exports of a service disagree on.
type Conflict struct {
	Reason mcsv1beta1.ServiceExportConditionReason
	// Message names the field, the value used, the cluster it comes from and the clusters that disagree.
	Message string
}

// Merge makes one service of its exports by the policy of KEP-1645: ports are united, and wherever else exports
// disagree the oldest ServiceExport decides, of two equally old ones that of the cluster whose ID sorts first. The
// local cluster has no privilege, nor has a majority, so every cluster comes to the same result, and a younger export
// changes nothing for traffic that flows already.
//
// There must be at most one export per cluster. Of no exports it makes the zero Merged.
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
		Labels:                nonEmpty(oldest.Labels),
		Annotations:           nonEmpty(oldest.Annotations),
	}
	m.SessionAffinityConfig = canonicalAffinity(m.SessionAffinity, oldest.SessionAffinityConfig)
	for _, e := range ordered {
		m.Clusters = append(m.Clusters, e.Cluster)
	}
	slices.Sort(m.Clusters)

	var portConflict, familyConflict *Conflict
	m.Ports, portConflict = mergePorts(ordered)
	m.IPFamilies, familyConflict = mergeIPFamilies(ordered, m.Type)

	m.addConflict(portConflict)
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

// oldestFirst sorts exports by precedence. One without a creation time never wins against one that has it.
func oldestFirst(exports []Export) []Export {
	return slices.SortedFunc(slices.Values(exports), func(a, b Export) int {
		return cmp.Or(
			trueFirst(!a.Created.IsZero(), !b.Created.IsZero()),
			a.Created.Compare(b.Created),
			cmp.Compare(a.Cluster, b.Cluster))
	})
}

// field is a property of a service that the oldest export decides alone.
type field struct {
	reason mcsv1beta1.ServiceExportConditionReason
	name   string
	// value is what e says, in words that are equal when they mean the same behaviour.
	value func(e Export) string
	// concerns says whether it matters what e says, given the oldest export; nil: always.
	concerns func(oldest, e Export) bool
}

// oldestDecides are those properties, in the order of their reasons in mcs-api.
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
		// Who has another affinity is told so, and need not hear that it has no timeout either.
		concerns: func(oldest, e Export) bool { return e.SessionAffinity == oldest.SessionAffinity },
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
			// PreferClose is Kubernetes' older name of PreferSameZone.
			if e.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose {
				return corev1.ServiceTrafficDistributionPreferSameZone
			}
			return cmp.Or(e.TrafficDistribution, "none")
		},
	},
}

// conflict is who disagrees with the oldest export about f, or nil.
func (f field) conflict(ordered []Export) *Conflict {
	oldest := ordered[0]
	used := f.value(oldest)
	var disagree []string
	for _, e := range ordered[1:] {
		if f.concerns != nil && !f.concerns(oldest, e) {
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

// mergeIPFamilies follows the policy: the oldest export that names families decides. To intersect them all instead
// would let a younger, single-stack export take away a clusterset IP that is in use.
//
// It is a conflict when a client reaches only some of the backends, depending on the family it uses. A clusterset IP
// has the families that were decided on, so each export must have all of them. Headless clients get the addresses
// themselves, of whatever family, so all exports must have the same.
func mergeIPFamilies(ordered []Export, t mcsv1beta1.ServiceImportType) ([]corev1.IPFamily, *Conflict) {
	i := slices.IndexFunc(ordered, func(e Export) bool { return len(e.IPFamilies) > 0 })
	if i < 0 {
		return nil, nil
	}
	decider := ordered[i]
	families := unique(decider.IPFamilies)
	var disagree []string
	for _, e := range ordered[i+1:] {
		if len(e.IPFamilies) == 0 {
			continue
		}
		if !contains(e.IPFamilies, families) || t == mcsv1beta1.Headless && !contains(families, e.IPFamilies) {
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

// contains says whether every element of some is in all.
func contains(all, some []corev1.IPFamily) bool {
	return !slices.ContainsFunc(some, func(f corev1.IPFamily) bool { return !slices.Contains(all, f) })
}

func toStrings[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// conflictMessage says what a user needs to settle a conflict.
func conflictMessage(field, used, cluster string, disagree []string, total int) string {
	return fmt.Sprintf("%s: using %s from cluster %s, %d of %d clusters disagree: %s",
		field, abbreviate(used), cluster, len(disagree), total, enumerate(disagree))
}

// enumerateMax is how many things a message lists by name: 5 cluster IDs of 63 characters fit a terminal's few lines.
const enumerateMax = 5

// enumerate lists names for a message.
func enumerate(names []string) string {
	if len(names) <= enumerateMax {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:enumerateMax], ", "), len(names)-enumerateMax)
}

// formatMap is "key"="value" for each pair, sorted and quoted so that no two maps look alike.
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
