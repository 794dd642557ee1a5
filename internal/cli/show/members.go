package show

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Member is one cluster of a clusterset with its context, "" if no given context leads to it.
type Member struct {
	ClusterSetID string `json:"clusterSetID"`
	Context      string `json:"context,omitempty"`
	status.Member
	// State is stale, unreachable, problem, drained (with the part, if it is not all) or ok: the
	// first that applies.
	State string `json:"state"`
	// Paths are the paths from the clusters of the contexts to this one, sorted.
	Paths []IncomingPath `json:"paths,omitempty"`
}

// An IncomingPath is the path from a cluster to the member.
type IncomingPath struct {
	From string `json:"from"`
	status.Path
	// FaultHere reports whether most paths of that cluster fail, so that the fault is probably its
	// own.
	FaultHere bool `json:"faultHere,omitempty"`
}

// A memberID names a cluster of a clusterset.
type memberID struct{ set, cluster string }

// MergeMembers returns the members in all statuses, sorted. If statuses differ about a member, the
// one with its latest heartbeat counts.
func MergeMembers(statuses []ClusterStatus) []Member {
	merged := map[memberID]Member{}
	for _, c := range statuses {
		if c.Status == nil || c.Status.Identity == nil {
			continue
		}
		for _, m := range c.Status.Members {
			key := memberID{c.Status.Identity.ClusterSetID, m.ClusterID}
			have, known := merged[key]
			if !known || m.HeartbeatAge < have.HeartbeatAge {
				have.Member = m
			}
			have.ClusterSetID = key.set
			if IsOwnMember(c.Status, m) {
				have.Context = c.Context
			}
			merged[key] = have
		}
	}
	paths := incomingPaths(statuses)
	members := []Member{}
	for id, m := range merged {
		m.Paths = paths[id]
		m.State = mergedState(m)
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(strings.Compare(a.ClusterSetID, b.ClusterSetID), strings.Compare(a.ClusterID, b.ClusterID))
	})
	return members
}

// incomingPaths returns the paths to each member, sorted by the cluster that they are from.
func incomingPaths(statuses []ClusterStatus) map[memberID][]IncomingPath {
	paths := map[memberID][]IncomingPath{}
	for _, c := range statuses {
		if c.Status == nil || c.Status.Identity == nil {
			continue
		}
		from := c.Status.Identity
		for _, p := range c.Status.Paths {
			to := memberID{from.ClusterSetID, p.ClusterID}
			paths[to] = append(paths[to], IncomingPath{From: from.ClusterID, Path: p, FaultHere: c.Status.FaultHere})
		}
	}
	for _, list := range paths {
		slices.SortStableFunc(list, func(a, b IncomingPath) int { return strings.Compare(a.From, b.From) })
	}
	return paths
}

// mergedState returns the state of a member with its paths. A cluster whose own network fails says
// nothing about the others.
func mergedState(m Member) string {
	unreachable := slices.ContainsFunc(m.Paths, func(p IncomingPath) bool { return p.State == status.PathUnreachable && !p.FaultHere })
	if unreachable && !m.Stale {
		return "unreachable"
	}
	return memberState(m.Member)
}

// IsOwnMember reports whether m is the cluster whose controller returned s, and not another cluster
// with the same ID.
func IsOwnMember(s *status.Status, m status.Member) bool {
	return s.Identity.ClusterID == m.ClusterID && s.Identity.UID == m.UID
}
