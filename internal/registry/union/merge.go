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

// snapshot is the content of one registry.
type snapshot struct {
	// synced reports whether the registry has been read, including the key of view if there is one.
	synced  bool
	members []registry.Member
	// view is the view of one key.
	view registry.View
}

// clusterSources are the registries from which a cluster's exports are taken.
type clusterSources struct {
	// order lists their indices, those with the latest heartbeat first. It is empty if only
	// unsigned shows a cluster that signs its records.
	order []int
	// duplicates lists the registries in which another cluster, which joined later or has signed no
	// record, uses the ID.
	duplicates []int
	// unsigned lists the registries that show exports without signatures under the ID of a cluster
	// that signs its records. They are no evidence of what this cluster exports: their exports
	// count only for those that are in order.
	unsigned []int
	// ambiguous reports whether the cluster ID is a member of more than one registry, or has
	// unsigned ones.
	ambiguous bool
	// isPseudo reports whether the ID belongs to the registry in order alone.
	isPseudo bool
}

// equal reports whether s and o result in the same views.
func (s clusterSources) equal(o clusterSources) bool {
	return slices.Equal(s.order, o.order) && slices.Equal(s.unsigned, o.unsigned)
}

// isSource reports whether the exports of a registry count.
func (s clusterSources) isSource(i int) bool {
	if s.isPseudo {
		return s.order[0] == i
	}
	return !slices.Contains(s.unsigned, i) || slices.Contains(s.order, i)
}

// resolveSources returns the sources of each cluster that is a member of a registry.
//
// A cluster has one writer, which writes to one registry at a time. A cluster that moves from one
// registry to another leaves records behind, and needs time to write everything to the new one: for
// the handover period both count, and after it only the new one (isNewerThan). isSigned reports
// whether a cluster has signed records and has not left since; nil is for none.
func resolveSources(own mcs.Identity, snapshots []snapshot, handover time.Duration, isSigned func(clusterID string) bool) map[string]clusterSources {
	registries := map[string][]int{}
	for i, s := range snapshots {
		for _, m := range s.members {
			registries[m.ClusterID] = append(registries[m.ClusterID], i)
		}
	}
	result := make(map[string]clusterSources, len(registries))
	for id, indices := range registries {
		if id == own.ClusterID {
			result[id] = resolveOwn(own, snapshots, indices)
			continue
		}
		s, candidates := rank(snapshots, id, indices, isSigned != nil && isSigned(id))
		s.resolve(snapshots, id, candidates, handover)
		result[id] = s
	}
	return result
}

// resolveOwn returns the sources of this cluster: the registry that it exports to, and others with
// its leftovers. Other clusters with its ID there are reported, and change nothing else: a member
// of a registry that is only imported from can write records with any ID and time.
func resolveOwn(own mcs.Identity, snapshots []snapshot, indices []int) (s clusterSources) {
	for _, i := range indices {
		if i == 0 || snapshots[i].member(own.ClusterID).UID == own.UID {
			s.order = append(s.order, i)
		} else {
			s.duplicates = append(s.duplicates, i)
		}
	}
	if len(s.order) == 0 {
		s.order, s.duplicates = s.duplicates, nil
	}
	return s
}

// rank returns the registries among indices of which the sources of a cluster are chosen, by what
// they show of it: a record that the cluster has signed; one that is missing or was refused; or
// exports without any signature, as those of the legacy controller. A registry without a signed
// record is no source if another one has such a record: a forged record would replace that of a
// stale cluster. Exports without signatures count for a cluster that has signed no record, and
// during the handover period of one that has just begun to sign them.
func rank(snapshots []snapshot, id string, indices []int, isSigned bool) (s clusterSources, candidates []int) {
	var signed, refused, unsigned []int
	for _, i := range indices {
		switch m := snapshots[i].member(id); {
		case m.NoRecord:
			refused = append(refused, i)
		case isUnsigned(m):
			unsigned = append(unsigned, i)
		default:
			signed = append(signed, i)
		}
	}
	s.ambiguous = len(indices) > 1
	switch {
	case len(signed) > 0:
		s.unsigned, s.duplicates = unsigned, refused
		return s, slices.Sorted(slices.Values(slices.Concat(signed, unsigned)))
	case isSigned:
		s.unsigned, s.ambiguous = unsigned, s.ambiguous || len(unsigned) > 0
		return s, refused
	case len(unsigned) > 0:
		s.duplicates = refused
		return s, unsigned
	}
	return s, refused
}

// resolve sets the sources of a cluster, which are among the registries at indices.
func (s *clusterSources) resolve(snapshots []snapshot, id string, indices []int, handover time.Duration) {
	if len(indices) <= 1 {
		s.order = indices
		return
	}
	type record struct {
		registry int
		member   registry.Member
	}
	records := make([]record, len(indices))
	for i, index := range indices {
		records[i] = record{index, snapshots[index].member(id)}
	}
	current := slices.DeleteFunc(slices.Clone(records), func(r record) bool {
		return slices.ContainsFunc(records, func(o record) bool { return isNewerThan(o.member, r.member, handover) })
	})
	slices.SortFunc(current, func(a, b record) int {
		return cmp.Or(b.member.Heartbeat.Compare(a.member.Heartbeat), cmp.Compare(a.registry, b.registry))
	})
	holder := slices.MinFunc(current, func(a, b record) int { return byJoinTime(a.member, b.member) }).member.UID
	for _, r := range current {
		if r.member.UID == "" || holder == "" || r.member.UID == holder {
			s.order = append(s.order, r.registry)
		} else {
			s.duplicates = append(s.duplicates, r.registry)
		}
	}
}

// resolvePseudo returns the sources of a pseudo-cluster: the registry at index from, whatever the
// members of the others claim.
func resolvePseudo(snapshots []snapshot, id string, from int) clusterSources {
	s := clusterSources{order: []int{from}, isPseudo: true}
	for i := range snapshots {
		if i != from && snapshots[i].has(id) {
			s.duplicates = append(s.duplicates, i)
		}
	}
	return s
}

// has reports whether a cluster is a member.
func (s snapshot) has(id string) bool {
	return slices.ContainsFunc(s.members, func(m registry.Member) bool { return m.ClusterID == id })
}

// member returns the record of a cluster, which must exist.
func (s snapshot) member(id string) registry.Member {
	i := slices.IndexFunc(s.members, func(m registry.Member) bool { return m.ClusterID == id })
	return s.members[i]
}

// isUnsigned reports whether a member is known by exports without signatures only, which have
// neither a UID nor a key.
func isUnsigned(m registry.Member) bool { return m.UID == "" && m.Key == "" && !m.NoRecord }

// isNewerThan reports whether record now replaces record before of another registry: now is live
// and before is stale, or now has had heartbeats for the handover period since the last heartbeat
// of before. The cluster's own clock measures that period, so that all clusters, and one that
// restarts, compute the same result. Exports without signatures replace no record, and never become
// stale.
func isNewerThan(now, before registry.Member, handover time.Duration) bool {
	switch {
	case isUnsigned(now) && !isUnsigned(before):
		return false
	case isUnsigned(now) == isUnsigned(before) && now.Stale != before.Stale:
		return before.Stale
	}
	since := before.Heartbeat
	if now.Joined.After(since) {
		since = now.Joined
	}
	return now.Heartbeat.After(before.Heartbeat) && now.Heartbeat.Sub(since) >= handover
}

// byJoinTime orders clusters by their precedence for an ID: the one that joined first keeps it, as
// in a single registry. Equal times are ordered by UID. A cluster without a time comes last.
func byJoinTime(a, b registry.Member) int {
	if a.Joined.IsZero() != b.Joined.IsZero() {
		if a.Joined.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.UID, b.UID))
}

// mergeViews merges the views of a key. The first registry is the one that this cluster exports to;
// exports under its own ID in others are leftovers or those of a duplicate, and never imported.
//
// The export of a cluster comes from the first of its sources that has one. The cluster has no
// export only if none of its sources has one or reports it as unknown: a cluster that moves has not
// written everything to the new registry yet. An imported cluster without an export is unseen if no
// registry has shown it; one that has not been read, or is empty, has shown nothing. An export that
// a registry ignores counts even if the registry is no source.
func mergeViews(own mcs.Identity, snapshots []snapshot, sources map[string]clusterSources, imported []string) registry.View {
	merged := registry.View{Local: mergeLocal(snapshots[0])}
	isImported := map[string]bool{}
	for _, s := range snapshots {
		merged.Incomplete = merged.Incomplete || !s.synced || s.view.Incomplete
		merged.Mapped = cmp.Or(merged.Mapped, s.view.Mapped)
		for id := range s.view.Clusters {
			isImported[id] = false
		}
	}
	for _, id := range imported {
		isImported[id] = true
	}
	delete(isImported, own.ClusterID)
	for id, imported := range isImported {
		c := mergeSources(snapshots, sourceOrder(id, sources, len(snapshots)), id)
		switch {
		case c.State != registry.None:
		case imported && !isSeen(snapshots, sources[id], id):
			c.State = registry.Unseen
		case slices.ContainsFunc(snapshots, func(s snapshot) bool { return s.view.Clusters[id].State == registry.Ignored }):
			c.State = registry.Ignored
		default:
			continue
		}
		merged.Set(id, c)
	}
	return merged
}

// mergeSources returns the state of a cluster by its sources: the export in the first one that has
// it, else Unknown if one of them reports that, else None. The properties are those of the first
// one that knows them.
func mergeSources(snapshots []snapshot, order []int, id string) (merged registry.ClusterView) {
	for _, i := range order {
		c := snapshots[i].view.Clusters[id]
		switch c.State {
		case registry.Exports, registry.Unknown:
			if merged.State == registry.None || merged.State == registry.Unknown && c.State == registry.Exports {
				merged.State, merged.Export, merged.Liveness = c.State, c.Export, c.Liveness
			}
			if merged.Properties == nil {
				merged.Properties = c.Properties
			}
		case registry.None, registry.Ignored, registry.Unseen:
		}
	}
	return merged
}

// isSeen reports whether a registry shows an export of a cluster, or has been read and knows what
// the cluster exports. One without signatures does not know it of a cluster that signs its records.
func isSeen(snapshots []snapshot, of clusterSources, id string) bool {
	for i, s := range snapshots {
		if !of.isSource(i) {
			continue
		}
		isCounted := s.synced && !slices.Contains(of.unsigned, i)
		switch s.view.Clusters[id].State {
		case registry.Exports, registry.Unknown:
			return true
		case registry.None, registry.Ignored:
			if isCounted {
				return true
			}
		case registry.Unseen:
		}
	}
	return false
}

// sourceOrder returns the registries from which a cluster's exports are taken. A cluster that has
// exports but is no member, because it is joining or leaving, is taken from all.
func sourceOrder(id string, sources map[string]clusterSources, registries int) []int {
	if s, ok := sources[id]; ok {
		return s.order
	}
	all := make([]int, registries)
	for i := range all {
		all[i] = i
	}
	return all
}

// mergeLocal returns the status of this cluster's export: that of the first registry.
func mergeLocal(first snapshot) registry.PublishStatus {
	if !first.synced {
		return registry.PublishStatus{State: registry.Pending}
	}
	return first.view.Local
}

// mergeMembers returns the members of all registries, each cluster once. names are those of the
// registries.
func mergeMembers(names []string, snapshots []snapshot, sources map[string]clusterSources) []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(sources)) {
		s := sources[id]
		merged := snapshots[slices.Concat(s.order, s.unsigned)[0]].member(id)
		merged.Problems, merged.OverBudget = nil, mcs.OverBudget{}
		for _, i := range s.order {
			m := snapshots[i].member(id)
			if m.LastSeen.After(merged.LastSeen) {
				merged.LastSeen = m.LastSeen
			}
			merged.Stale = merged.Stale && m.Stale
			merged.RefusedKey = cmp.Or(merged.RefusedKey, m.RefusedKey)
			if !merged.Address.IsValid() {
				merged.Address = m.Address
			}
			merged.Problems = append(merged.Problems, prefixProblems(names, i, m.Problems)...)
			merged.OverBudget = merged.OverBudget.With(m.OverBudget)
		}
		for _, i := range s.duplicates {
			if m := snapshots[i].member(id); m.NoRecord {
				merged.RefusedKey = cmp.Or(merged.RefusedKey, m.RefusedKey)
				merged.Problems = append(merged.Problems, prefixProblems(names, i, m.Problems)...)
				continue
			}
			merged.Problems = append(merged.Problems, fmt.Sprintf("registry %s has another cluster with this ID (its namespace kube-system has UID %s), "+
				"whose exports are ignored: give it another ID", names[i], snapshots[i].member(id).UID))
		}
		if len(s.order) == 0 { // it has signed records, and no registry shows them
			merged.Stale = !slices.ContainsFunc(snapshots, func(s snapshot) bool { return !s.synced })
		}
		if merged.Stale {
			merged.Problems = append(merged.Problems, unsignedProblems(names, s, id)...)
		}
		members = append(members, merged)
	}
	return members
}

// unsignedProblems returns the lines about exports without signatures that do not count, for a
// silent cluster: it may run the legacy controller again.
func unsignedProblems(names []string, s clusterSources, id string) (lines []string) {
	for _, i := range s.unsigned {
		if !slices.Contains(s.order, i) {
			lines = append(lines, fmt.Sprintf("registry %s has exports with this ID that do not count, because the cluster has signed records and those are not signed: "+
				"if the cluster runs the legacy controller again, run kubectl mcs forget %s here", names[i], id))
		}
	}
	return lines
}

// prefixProblems adds the name of the registry to problems, unless it is the one that this cluster
// exports to.
func prefixProblems(names []string, i int, problems []string) (prefixed []string) {
	if i == 0 {
		return problems
	}
	for _, problem := range problems {
		prefixed = append(prefixed, registry.ProblemIn(names[i], problem))
	}
	return prefixed
}
