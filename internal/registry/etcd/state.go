package etcd

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// maxProblems limits the problems reported per cluster.
const maxProblems = 20

// pair is a key with its value, or a deleted key.
type pair struct {
	key   string
	value []byte
	// revision is that of the last change. For a deleted key, 0 means unknown.
	revision int64
	lease    int64
	deleted  bool
}

// state holds the exports and members of a clusterset as last read. An export that becomes unreadable stays as it was before.
type state struct {
	layout            layout
	clusterSetID, own string

	// synced is true after the first complete read.
	synced bool
	// revision is the revision up to which everything was read.
	revision int64
	clusters map[string]*cluster
	liveness *registry.Liveness
}

// cluster holds the keys below one cluster's prefix.
type cluster struct {
	member memberState
	alive  aliveState
	// heartbeat is true if the record has changed since the last observeHeartbeats; lastSeen is when it last changed.
	heartbeat bool
	lastSeen  time.Time
	exports   map[mcs.Key]exportState
	// unrecognized are keys that no controller writes.
	unrecognized map[string]string
}

type memberState struct {
	// revision is 0 when there is no record.
	revision int64
	record   memberRecord
	problem  string
}

type aliveState struct {
	// revision is 0 if the key does not exist; lease is 0 if the key would never expire.
	revision, lease int64
	uid             string
}

// isHeld reports whether a process holds the ID.
func (a aliveState) isHeld() bool { return a.revision != 0 && a.lease != 0 }

// exportState is the key of one export.
type exportState struct {
	revision int64
	// export is the last readable value, nil if there was none; unreadable is why the current value cannot be read, or "".
	export     *mcs.Export
	unreadable string
	problems   []string
}

func newState(l layout, clusterSetID, own string, staleAfter time.Duration) *state {
	return &state{layout: l, clusterSetID: clusterSetID, own: own, clusters: map[string]*cluster{}, liveness: registry.NewLiveness(own, staleAfter)}
}

// replace replaces everything with a list that was read at revision, and adds the keys with a View that may have changed. It
// reports whether etcd was set back to an earlier state, for example from a backup.
func (s *state) replace(now time.Time, list []pair, revision int64, changed engine.Keys) (rewound bool) {
	if rewound = revision < s.revision; rewound {
		s.rewind()
	}
	present := make(map[string]bool, len(list))
	for _, p := range list {
		present[p.key] = true
		s.apply(now, p, changed)
	}
	for _, key := range s.keys() {
		if !present[key] {
			s.apply(now, pair{key: key, deleted: true}, changed)
		}
	}
	s.synced, s.revision = true, revision
	return rewound
}

// rewind resets all revisions: etcd counts from an earlier one, so the same number may mean something else.
func (s *state) rewind() {
	s.revision = 0
	for _, c := range s.clusters {
		c.member.revision = min(c.member.revision, 1)
		c.alive.revision = min(c.alive.revision, 1)
		for key, e := range c.exports {
			e.revision = 0
			c.exports[key] = e
		}
	}
}

// keys returns all known keys.
func (s *state) keys() []string {
	var keys []string
	for id, c := range s.clusters {
		if c.member.revision != 0 {
			keys = append(keys, s.layout.member(id))
		}
		if c.alive.revision != 0 {
			keys = append(keys, s.layout.alive(id))
		}
		for key := range c.exports {
			keys = append(keys, s.layout.export(id, key))
		}
		keys = slices.AppendSeq(keys, maps.Keys(c.unrecognized))
	}
	return keys
}

// apply applies the change of one key.
func (s *state) apply(now time.Time, p pair, changed engine.Keys) {
	id := s.layout.clusterOf(p.key)
	if id == "" {
		return
	}
	c := s.clusters[id]
	if c == nil {
		if p.deleted {
			return
		}
		c = &cluster{lastSeen: now, exports: map[mcs.Key]exportState{}, unrecognized: map[string]string{}}
		s.clusters[id] = c
	}
	keyKind, key, err := s.layout.parse(id, p.key)
	switch {
	case err != nil && p.deleted:
		delete(c.unrecognized, p.key)
	case err != nil:
		c.unrecognized[p.key] = err.Error()
	case keyKind == kindMember:
		s.applyMember(now, c, p, id)
	case keyKind == kindAlive:
		c.applyAlive(p)
	default:
		c.applyExport(p, id, key, changed)
	}
	if p.deleted && c.isEmpty() {
		delete(s.clusters, id)
		s.liveness.Remove(id)
	}
}

func (c *cluster) isEmpty() bool {
	return c.member.revision == 0 && c.alive.revision == 0 && len(c.exports) == 0 && len(c.unrecognized) == 0
}

func (s *state) applyMember(now time.Time, c *cluster, p pair, id string) {
	if p.deleted {
		c.member = memberState{}
		return
	}
	if p.revision != c.member.revision && s.synced {
		// An unusable record, for example of a later version, is still a heartbeat.
		c.heartbeat, c.lastSeen = true, now
	}
	r, err := decodeMember(p.value, s.clusterSetID, id)
	c.member.revision = p.revision
	if err != nil {
		c.member.problem = fmt.Sprintf("the member record cannot be used: %v", err)
		return
	}
	c.member.record, c.member.problem = r, ""
}

func (c *cluster) applyAlive(p pair) {
	c.alive = aliveState{}
	if !p.deleted {
		c.alive = aliveState{revision: p.revision, lease: p.lease, uid: clip(string(p.value))}
	}
}

func (c *cluster) applyExport(p pair, id string, key mcs.Key, changed engine.Keys) {
	before, known := c.exports[key]
	switch {
	case p.deleted && known:
		delete(c.exports, key)
		changed.Add(key)
		return
	case p.deleted, known && before.revision == p.revision:
		return
	}
	after := decodeExport(p, id, key)
	if after.export == nil {
		after.export = before.export
	}
	c.exports[key] = after
	if before.export == nil || !before.export.Equal(*after.export) || before.unreadable != after.unreadable {
		changed.Add(key)
	}
}

// decodeExport decodes the value of an export's key. Any user with write permission may have written it.
func decodeExport(p pair, id string, key mcs.Key) exportState {
	e := exportState{revision: p.revision}
	page, err := record.Decode(p.value, id)
	switch {
	case err != nil:
		e.unreadable = err.Error()
	case len(page.Exports) == 1 && page.Exports[0].Key == key:
		e.export, e.problems = &page.Exports[0], page.Problems
	case len(page.Problems) > 0:
		e.unreadable = page.Problems[0]
	default:
		e.unreadable = "it is not one export of that service"
	}
	return e
}

// observeHeartbeats passes the heartbeats since the last call to liveness, and adds the keys of clusters that became stale or live.
func (s *state) observeHeartbeats(now time.Time, changed engine.Keys) {
	heartbeats := make(map[string]bool, len(s.clusters))
	for id, c := range s.clusters {
		heartbeats[id], c.heartbeat = c.heartbeat, false
	}
	for _, id := range s.liveness.ObserveHeartbeats(now, heartbeats) {
		if c := s.clusters[id]; c != nil {
			for key := range c.exports {
				changed.Add(key)
			}
		}
	}
}

// exportOf returns a cluster's export of key: exists reports whether there is one, and exp is nil if it cannot be read.
func (s *state) exportOf(id string, key mcs.Key) (exp *mcs.Export, exists bool) {
	c := s.clusters[id]
	if c == nil {
		return nil, false
	}
	e, exists := c.exports[key]
	if e.unreadable != "" {
		return nil, exists
	}
	return e.export, exists
}

// aliveOf returns a cluster's key alive.
func (s *state) aliveOf(id string) aliveState {
	if c := s.clusters[id]; c != nil {
		return c.alive
	}
	return aliveState{}
}

// memberOf returns a cluster's member record, the zero value if there is none that can be used.
func (s *state) memberOf(id string) memberRecord {
	if c := s.clusters[id]; c != nil && c.member.problem == "" {
		return c.member.record
	}
	return memberRecord{}
}

// viewOf is view for a lookup.
func (s *state) viewOf(key mcs.Key, _ []string) registry.View { return s.view(key) }

// view returns the exports of the other clusters under key.
func (s *state) view(key mcs.Key) registry.View {
	var v registry.View
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		e, exists := c.exports[key]
		switch {
		case id == s.own || !exists:
			continue
		case e.export == nil:
			v.Unknown = append(v.Unknown, id)
			continue
		}
		v.Exports = append(v.Exports, *e.export)
		if s.liveness.IsStale(id) {
			v.Stale = append(v.Stale, id)
		} else if s.liveness.IsUnknown(id) {
			v.LivenessUnknown = append(v.LivenessUnknown, id)
		}
	}
	return v
}

// countExports returns how many exports a cluster has.
func (s *state) countExports(id string) int {
	if c := s.clusters[id]; c != nil {
		return len(c.exports)
	}
	return 0
}

// addAllKeys adds every key that any cluster exports.
func (s *state) addAllKeys(keys engine.Keys) {
	for _, c := range s.clusters {
		for key := range c.exports {
			keys.Add(key)
		}
	}
}

// membersWithProblems returns the members, sorted, with the problems of their keys.
func (s *state) membersWithProblems() []registry.Member {
	members := s.members()
	for i := range members {
		members[i].Problems = s.clusters[members[i].ClusterID].problems()
	}
	return members
}

// members returns the members, sorted, without their problems.
func (s *state) members() []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		members = append(members, registry.Member{
			ClusterID: id, UID: c.uid(), Version: c.member.record.Version,
			LastSeen: c.lastSeen, Joined: c.member.record.Joined, Heartbeat: c.member.record.Heartbeat,
			Stale: s.liveness.IsStale(id),
		})
	}
	return members
}

// uid returns the UID of the cluster that holds the ID, or held it last.
func (c *cluster) uid() string {
	if c.alive.isHeld() {
		return c.alive.uid
	}
	return c.member.record.UID
}

// problems returns the problems of a cluster's keys, one line each.
func (c *cluster) problems() []string {
	var lines []string
	switch {
	case c.member.problem != "":
		lines = append(lines, c.member.problem)
	case c.member.revision == 0:
		lines = append(lines, "the member record is missing")
	}
	switch {
	case c.alive.revision == 0:
		lines = append(lines, "its lease expired: its controller does not run or cannot reach etcd")
	case c.alive.lease == 0:
		lines = append(lines, "its key alive has no lease")
	}
	var exportProblems []string
	for key, e := range c.exports {
		if e.unreadable != "" {
			exportProblems = append(exportProblems, fmt.Sprintf("export %s cannot be used: %s", key, e.unreadable))
		}
		for _, problem := range e.problems {
			exportProblems = append(exportProblems, fmt.Sprintf("export %s: %s", key, problem))
		}
	}
	exportProblems = slices.AppendSeq(exportProblems, maps.Values(c.unrecognized))
	slices.Sort(exportProblems)
	if len(exportProblems) > maxProblems {
		exportProblems = append(exportProblems[:maxProblems], fmt.Sprintf("and %d more", len(exportProblems)-maxProblems))
	}
	return append(lines, exportProblems...)
}
