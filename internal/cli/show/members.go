package show

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A member is one cluster of a clusterset with its context, "" if no given context leads to it.
type member struct {
	ClusterSetID string `json:"clusterSetID"`
	Context      string `json:"context,omitempty"`
	status.Member
}

// mergeMembers returns the members in all statuses, sorted. If statuses differ about a member, the one with its latest heartbeat
// counts.
func mergeMembers(statuses []clusterStatus) []member {
	type id struct{ set, cluster string }
	merged := map[id]member{}
	for _, c := range statuses {
		if c.Status == nil || c.Status.Identity == nil {
			continue
		}
		for _, m := range c.Status.Members {
			key := id{c.Status.Identity.ClusterSetID, m.ClusterID}
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
	members := []member{}
	for _, m := range merged {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(strings.Compare(a.ClusterSetID, b.ClusterSetID), strings.Compare(a.ClusterID, b.ClusterID))
	})
	return members
}

// IsOwnMember reports whether m is the cluster whose controller returned s, and not another cluster with the same ID.
func IsOwnMember(s *status.Status, m status.Member) bool {
	return s.Identity.ClusterID == m.ClusterID && s.Identity.UID == m.UID
}
