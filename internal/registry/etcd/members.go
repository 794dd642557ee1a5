package etcd

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// maxProblems limits the problems reported per cluster.
const maxProblems = 20

// membersWithProblems returns the members, sorted, with the problems of their keys.
func (s *state) membersWithProblems(now time.Time) []registry.Member {
	members := s.members()
	for i := range members {
		members[i].Problems = s.allProblems(now, s.clusters[members[i].ClusterID])
	}
	return members
}

// members returns the members, sorted, without their problems.
func (s *state) members() []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		if s.hasLeft(c) {
			continue
		}
		members = append(members, registry.Member{
			ClusterID: id, UID: c.uid(), Version: c.record.Version, Key: s.keyOf(c), RefusedKey: c.member.refusedKeyText(),
			LastSeen: c.lastSeen, Joined: c.record.Joined, Heartbeat: c.record.Heartbeat,
			Stale: s.belief.LivenessOf(id) == registry.Stale, NoRecord: !c.hasRecord(), Properties: c.properties.Decode(c.record.Properties), Imports: c.record.Imports,
			OverBudget: c.overBudget(),
		})
	}
	return members
}

// hasRecord reports whether a record of the cluster has counted.
func (c *cluster) hasRecord() bool { return c.record.UID != "" }

// hasLeft reports whether the cluster is no member any more.
func (s *state) hasLeft(c *cluster) bool {
	if c.id == s.own {
		return c.record.Farewell
	}
	return s.belief.StateOf(c.id) == belief.Left
}

// uid returns the UID of the cluster, or of the one that holds its ID if it has no member record.
func (c *cluster) uid() string {
	if !c.hasRecord() && c.alive.isHeld() {
		return c.alive.uid
	}
	return c.record.UID
}

// keyOf returns the public key of a cluster, "" if none is known.
func (s *state) keyOf(c *cluster) string {
	if known := s.keyring.Of(s.name, c.id); !s.isSelf(c.id) && known.Key != (trust.Key{}) {
		return known.Key.String()
	}
	if !c.hasRecord() {
		return ""
	}
	return s.authorOf(c.id, author{}).key.String()
}

// refusedKeyText returns the key that was refused, "" if there is none.
func (m memberState) refusedKeyText() string {
	if m.refusedKey == (trust.Key{}) {
		return ""
	}
	return m.refusedKey.String()
}

// allProblems returns the problems of a cluster's keys, one line each.
func (s *state) allProblems(now time.Time, c *cluster) []string {
	var lines []string
	switch {
	case c.member.problem != "":
		lines = append(lines, c.member.problem)
	case c.member.revision == 0:
		lines = append(lines, "the member record is missing")
	}
	switch {
	case c.alive.revision == 0 && now.Sub(c.lastSeen) < s.handover:
	case c.alive.revision == 0:
		lines = append(lines, "its lease expired: its controller does not run or cannot reach etcd")
	case c.alive.lease == 0:
		lines = append(lines, "its key alive has no lease")
	}
	if c.record.propertiesProblem != "" {
		lines = append(lines, c.record.propertiesProblem)
	}
	lines = append(lines, c.excessProblems()...)
	exportProblems := s.exportProblems(c)
	if len(exportProblems) > maxProblems {
		exportProblems = append(exportProblems[:maxProblems], fmt.Sprintf("and %d more", len(exportProblems)-maxProblems))
	}
	return append(lines, exportProblems...)
}

// exportProblems returns the problems of the exports, sorted.
func (s *state) exportProblems(c *cluster) []string {
	var lines []string
	kept, missing := s.belief.Versions(c.id), 0
	signs := s.authorOf(c.id, author{})
	for key, e := range c.shown {
		version, isKept := kept[unitOf(key)]
		isOther := !isKept || version.Generation != e.generation
		switch {
		case registry.IsRefused(e.unreadable):
			lines = append(lines, e.unreadable)
		case e.unreadable != "":
			lines = append(lines, fmt.Sprintf("export %s cannot be used: %s", key, e.unreadable))
		case isOther && e.author == signs && c.hasRecord() && c.id != s.own:
			lines = append(lines, fmt.Sprintf("export %s is ignored: it is older than one that was read before", key))
		}
		for _, problem := range e.problems {
			lines = append(lines, fmt.Sprintf("export %s: %s", key, problem))
		}
		delete(kept, unitOf(key))
	}
	missing = len(kept)
	lines = slices.AppendSeq(lines, maps.Values(c.unrecognized))
	if missing > 0 {
		lines = append(lines, fmt.Sprintf("%d exports are missing in etcd, and the cluster has not withdrawn them: they stay imported", missing))
	}
	slices.Sort(lines)
	return lines
}
