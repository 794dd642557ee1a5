package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A member is one cluster of a clusterset, and the context that leads to it, "" for none of those given.
type member struct {
	ClusterSetID string `json:"clusterSetID"`
	Context      string `json:"context,omitempty"`
	status.Member
}

// uniteMembers are the members that any sight has, sorted. Where sights differ, the latest sign of life counts.
func uniteMembers(sights []sight) []member {
	type id struct{ set, cluster string }
	united := map[id]member{}
	for _, s := range sights {
		if s.Status == nil || s.Status.Identity == nil {
			continue
		}
		for _, m := range s.Status.Members {
			key := id{s.Status.Identity.ClusterSetID, m.ClusterID}
			have, known := united[key]
			if !known || m.HeartbeatAge < have.HeartbeatAge {
				have.Member = m
			}
			have.ClusterSetID = key.set
			if isOwn(s.Status, m) {
				have.Context = s.Context
			}
			united[key] = have
		}
	}
	members := []member{}
	for _, m := range united {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(strings.Compare(a.ClusterSetID, b.ClusterSetID), strings.Compare(a.ClusterID, b.ClusterID))
	})
	return members
}

// isOwn says whether m is the cluster that s comes from, and not another one with its ID.
func isOwn(s *status.Status, m status.Member) bool {
	return s.Identity.ClusterID == m.ClusterID && s.Identity.UID == m.UID
}
