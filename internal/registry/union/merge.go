package union

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// sight is what one registry shows.
type sight struct {
	// synced says that it has been read, of the key too if there is one.
	synced  bool
	members []registry.Member
	// view is that of one key.
	view registry.View
}

// standing says which registries' word on a cluster counts.
type standing struct {
	// order are their indices, those in which the cluster spoke last first.
	order []int
	// rivals are those in which another cluster, with the lesser right to the ID, uses it.
	rivals []int
	// contested says that it is a member of more than one.
	contested bool
}

// equal says whether nothing changes for the views.
func (s standing) equal(o standing) bool {
	return slices.Equal(s.order, o.order) && slices.Equal(s.rivals, o.rivals)
}

// standings judges each cluster that is a member somewhere.
//
// A cluster has one writer, which writes to one registry at a time. One that moves from a registry to another leaves records
// behind, and is not at once complete where it goes to: for the time of handover both count, and after it only where it
// speaks now (supersedes).
func standings(sights []sight, handover time.Duration) map[string]standing {
	records := map[string][]int{}
	for i, s := range sights {
		for _, m := range s.members {
			records[m.ClusterID] = append(records[m.ClusterID], i)
		}
	}
	result := make(map[string]standing, len(records))
	for id, where := range records {
		result[id] = judge(sights, id, where, handover)
	}
	return result
}

func judge(sights []sight, id string, where []int, handover time.Duration) standing {
	if len(where) == 1 {
		return standing{order: where}
	}
	type entry struct {
		registry int
		member   registry.Member
	}
	entries := make([]entry, len(where))
	for i, w := range where {
		entries[i] = entry{w, sights[w].member(id)}
	}
	living := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
		return slices.ContainsFunc(entries, func(o entry) bool { return supersedes(o.member, e.member, handover) })
	})
	slices.SortFunc(living, func(a, b entry) int {
		return cmp.Or(b.member.Heartbeat.Compare(a.member.Heartbeat), cmp.Compare(a.registry, b.registry))
	})
	winner := slices.MinFunc(living, func(a, b entry) int { return byRight(a.member, b.member) }).member.UID
	s := standing{contested: true}
	for _, e := range living {
		if e.member.UID == "" || winner == "" || e.member.UID == winner {
			s.order = append(s.order, e.registry)
		} else {
			s.rivals = append(s.rivals, e.registry)
		}
	}
	return s
}

// member is the record of a cluster, which is there.
func (s sight) member(id string) registry.Member {
	i := slices.IndexFunc(s.members, func(m registry.Member) bool { return m.ClusterID == id })
	return s.members[i]
}

// supersedes says whether now tells where a cluster is and before, its record in another registry, is a leftover: now lives and
// before does not, or now has gone on for the time of handover since before ended. That time is measured by the cluster's own
// clock, so that all clusters come to one result, and one that restarts to the same as before.
func supersedes(now, before registry.Member, handover time.Duration) bool {
	if now.Stale != before.Stale {
		return before.Stale
	}
	since := before.Heartbeat
	if now.Joined.After(since) {
		since = now.Joined
	}
	return now.Heartbeat.After(before.Heartbeat) && now.Heartbeat.Sub(since) >= handover
}

// byRight puts the cluster first that has the better right to an ID: the one that joined first, as in a single registry. Who
// does not say when comes last.
func byRight(a, b registry.Member) int {
	if a.Joined.IsZero() != b.Joined.IsZero() {
		if a.Joined.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.UID, b.UID))
}

// mergeViews is what is known of a key in all. The first registry is the one that this cluster exports to; what others hold
// under its own ID are leftovers or a rival's, never imported.
//
// Of the registries that count for a cluster the first in order with an export of the key gives it. The cluster has none
// when all of them know that: a cluster that moves has not yet said everything where it goes to.
func mergeViews(own mcs.Identity, sights []sight, standings map[string]standing) registry.View {
	merged := registry.View{Local: mergeOwn(own, sights, standings)}
	exports := make([]map[string]mcs.Export, len(sights))
	named := map[string]bool{}
	for i, s := range sights {
		merged.Incomplete = merged.Incomplete || !s.synced || s.view.Incomplete
		exports[i] = map[string]mcs.Export{}
		for _, exp := range s.view.Exports {
			exports[i][exp.Cluster] = exp
			named[exp.Cluster] = true
		}
		for _, id := range s.view.Unknown {
			named[id] = true
		}
	}
	delete(named, own.ClusterID)
	for _, id := range slices.Sorted(maps.Keys(named)) {
		order := orderOf(id, standings, len(sights))
		from := slices.IndexFunc(order, func(i int) bool { _, ok := exports[i][id]; return ok })
		switch {
		case from >= 0:
			source := order[from]
			merged.Exports = append(merged.Exports, exports[source][id])
			if slices.Contains(sights[source].view.Stale, id) {
				merged.Stale = append(merged.Stale, id)
			}
			if slices.Contains(sights[source].view.LivenessUnknown, id) {
				merged.LivenessUnknown = append(merged.LivenessUnknown, id)
			}
		case slices.ContainsFunc(order, func(i int) bool { return slices.Contains(sights[i].view.Unknown, id) }):
			merged.Unknown = append(merged.Unknown, id)
		}
	}
	return merged
}

// orderOf are the registries that count for a cluster. One that has exports and is no member, because it has just come or gone,
// is taken from wherever it is.
func orderOf(id string, standings map[string]standing, registries int) []int {
	if s, ok := standings[id]; ok {
		return s.order
	}
	all := make([]int, registries)
	for i := range all {
		all[i] = i
	}
	return all
}

// mergeOwn says where this cluster's own export stands: in the first registry, unless a cluster with the better right to our ID
// is in another. Then who imports from both takes that one's exports instead of ours.
func mergeOwn(own mcs.Identity, sights []sight, standings map[string]standing) registry.PublishStatus {
	first := sights[0]
	if !first.synced {
		return registry.PublishStatus{State: registry.Pending}
	}
	s := standings[own.ClusterID]
	if first.view.Local.State == registry.Absent || first.view.Local.Err != nil || !slices.Contains(s.rivals, 0) {
		return first.view.Local
	}
	other := sights[s.order[0]].member(own.ClusterID).UID
	return registry.PublishStatus{
		State: registry.Pending,
		Err:   &registry.DuplicateIDError{ClusterID: own.ClusterID, OtherUID: other},
	}
}

// mergeMembers are the members of all registries, each cluster once. names are the registries'.
func mergeMembers(names []string, sights []sight, standings map[string]standing) []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(standings)) {
		s := standings[id]
		merged := sights[s.order[0]].member(id)
		merged.Problems = nil
		for _, i := range s.order {
			m := sights[i].member(id)
			if m.LastSeen.After(merged.LastSeen) {
				merged.LastSeen = m.LastSeen
			}
			merged.Stale = merged.Stale && m.Stale
			for _, problem := range m.Problems {
				merged.Problems = append(merged.Problems, inRegistry(names, i, problem))
			}
		}
		for _, i := range s.rivals {
			merged.Problems = append(merged.Problems, fmt.Sprintf("registry %s has another cluster with this ID (its namespace kube-system has UID %s), "+
				"whose exports are ignored: give it another ID", names[i], sights[i].member(id).UID))
		}
		members = append(members, merged)
	}
	return members
}

// inRegistry names the registry that a problem is in, unless it is the one that this cluster exports to.
func inRegistry(names []string, i int, problem string) string {
	if i == 0 {
		return problem
	}
	return "registry " + names[i] + ": " + problem
}
