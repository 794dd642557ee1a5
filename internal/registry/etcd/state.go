package etcd

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// maxProblems lines say enough about what is wrong with one cluster's keys.
const maxProblems = 20

// pair is a key as etcd has it, or had it when it is deleted.
type pair struct {
	key   string
	value []byte
	// revision is that of the pair's last change; 0 with deleted means that it is not known.
	revision int64
	lease    int64
	deleted  bool
}

// state is what was read of a clusterset. What cannot be understood stays as it was before.
type state struct {
	layout       layout
	clusterSetID string

	// synced is set by the first whole read.
	synced bool
	// revision is the one up to which everything was read.
	revision int64
	clusters map[string]*cluster
	liveness *registry.Liveness
}

// cluster is what was read below one cluster's prefix.
type cluster struct {
	member memberState
	alive  aliveState
	// beaten says that the record has changed since liveness was last told, lastSeen when it last did.
	beaten   bool
	lastSeen time.Time
	exports  map[mcs.Key]exportState
	// strange are keys that no controller writes.
	strange map[string]string
}

type memberState struct {
	// revision is 0 when there is no record.
	revision int64
	record   memberRecord
	problem  string
}

type aliveState struct {
	// revision is 0 when the key is not there; lease is 0 when it would never end by itself.
	revision, lease int64
	uid             string
}

func (a aliveState) lives() bool { return a.revision != 0 && a.lease != 0 }

// exportState is one export's key.
type exportState struct {
	revision int64
	// export is what could be read, nil if nothing could yet; trouble says why what is there now cannot be.
	export   *mcs.Export
	trouble  string
	problems []string
}

// keySet collects keys of which the View may have changed.
type keySet map[mcs.Key]struct{}

func newState(l layout, clusterSetID, own string, staleAfter time.Duration) *state {
	return &state{layout: l, clusterSetID: clusterSetID, clusters: map[string]*cluster{}, liveness: registry.NewLiveness(own, staleAfter)}
}

// replace takes in a whole list, read at revision. Keys whose View may have changed are added to changed. It returns
// whether etcd was set back to an earlier state, as a restored backup does.
func (s *state) replace(now time.Time, list []pair, revision int64, changed keySet) (rewound bool) {
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

// rewind forgets revisions: etcd counts from an earlier one, so that the same number may mean something else.
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

// keys are all keys that are known to be there.
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
		keys = slices.AppendSeq(keys, maps.Keys(c.strange))
	}
	return keys
}

// apply takes in one key.
func (s *state) apply(now time.Time, p pair, changed keySet) {
	id := s.layout.clusterOf(p.key)
	if id == "" {
		return
	}
	c := s.clusters[id]
	if c == nil {
		if p.deleted {
			return
		}
		c = &cluster{lastSeen: now, exports: map[mcs.Key]exportState{}, strange: map[string]string{}}
		s.clusters[id] = c
	}
	what, key, err := s.layout.parse(id, p.key)
	switch {
	case err != nil && p.deleted:
		delete(c.strange, p.key)
	case err != nil:
		c.strange[p.key] = err.Error()
	case what == kindMember:
		s.takeMember(now, c, p, id)
	case what == kindAlive:
		c.takeAlive(p)
	default:
		c.takeExport(p, id, key, changed)
	}
	if p.deleted && c.empty() {
		delete(s.clusters, id)
		s.liveness.Forget(id)
	}
}

func (c *cluster) empty() bool {
	return c.member.revision == 0 && c.alive.revision == 0 && len(c.exports) == 0 && len(c.strange) == 0
}

func (s *state) takeMember(now time.Time, c *cluster, p pair, id string) {
	if p.deleted {
		c.member = memberState{}
		return
	}
	if p.revision != c.member.revision && s.synced {
		// Who writes what we cannot use, as a later version may, lives all the same.
		c.beaten, c.lastSeen = true, now
	}
	r, err := decodeMember(p.value, s.clusterSetID, id)
	c.member.revision = p.revision
	if err != nil {
		c.member.problem = fmt.Sprintf("the member record cannot be used: %v", err)
		return
	}
	c.member.record, c.member.problem = r, ""
}

func (c *cluster) takeAlive(p pair) {
	c.alive = aliveState{}
	if !p.deleted {
		c.alive = aliveState{revision: p.revision, lease: p.lease, uid: clip(string(p.value))}
	}
}

func (c *cluster) takeExport(p pair, id string, key mcs.Key, changed keySet) {
	before, known := c.exports[key]
	switch {
	case p.deleted && known:
		delete(c.exports, key)
		changed[key] = struct{}{}
		return
	case p.deleted, known && before.revision == p.revision:
		return
	}
	after := decodeExport(p, id, key)
	if after.export == nil {
		after.export = before.export
	}
	c.exports[key] = after
	if before.export == nil || !before.export.Equal(*after.export) || before.trouble != after.trouble {
		changed[key] = struct{}{}
	}
}

// decodeExport reads the value of an export's key, which anybody with write permission may have written.
func decodeExport(p pair, id string, key mcs.Key) exportState {
	e := exportState{revision: p.revision}
	page, err := record.Decode(p.value, id)
	switch {
	case err != nil:
		e.trouble = err.Error()
	case len(page.Exports) == 1 && page.Exports[0].Key == key:
		e.export, e.problems = &page.Exports[0], page.Problems
	case len(page.Problems) > 0:
		e.trouble = page.Problems[0]
	default:
		e.trouble = "it is not one export of that service"
	}
	return e
}

// answered takes in that the registry answered, and finds the clusters that are stale or back since.
func (s *state) answered(now time.Time, changed keySet) {
	signs := make(map[string]bool, len(s.clusters))
	for id, c := range s.clusters {
		signs[id], c.beaten = c.beaten, false
	}
	for _, id := range s.liveness.Answered(now, signs) {
		if c := s.clusters[id]; c != nil {
			for key := range c.exports {
				changed[key] = struct{}{}
			}
		}
	}
}

// shown is what etcd has of a cluster's export of key: there says whether there is anything, and the export is nil when it
// cannot be read.
func (s *state) shown(id string, key mcs.Key) (exp *mcs.Export, there bool) {
	c := s.clusters[id]
	if c == nil {
		return nil, false
	}
	e, there := c.exports[key]
	if e.trouble != "" {
		return nil, there
	}
	return e.export, there
}

// aliveOf is a cluster's key alive.
func (s *state) aliveOf(id string) aliveState {
	if c := s.clusters[id]; c != nil {
		return c.alive
	}
	return aliveState{}
}

// memberOf is a cluster's member record, the zero one when there is none that can be used.
func (s *state) memberOf(id string) memberRecord {
	if c := s.clusters[id]; c != nil && c.member.problem == "" {
		return c.member.record
	}
	return memberRecord{}
}

// look is what the clusters other than own have of key.
func (s *state) look(key mcs.Key, own string) registry.View {
	var v registry.View
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		e, there := c.exports[key]
		switch {
		case id == own || !there:
			continue
		case e.export == nil:
			v.Unknown = append(v.Unknown, id)
			continue
		}
		v.Exports = append(v.Exports, *e.export)
		if s.liveness.Stale(id) {
			v.Stale = append(v.Stale, id)
		} else if s.liveness.Unheard(id) {
			v.LivenessUnknown = append(v.LivenessUnknown, id)
		}
	}
	return v
}

// allKeys adds every key that any cluster exports.
func (s *state) allKeys(keys keySet) {
	for _, c := range s.clusters {
		for key := range c.exports {
			keys[key] = struct{}{}
		}
	}
}

// list are the members, sorted.
func (s *state) list() []registry.Member {
	members := s.members()
	for i := range members {
		members[i].Problems = s.clusters[members[i].ClusterID].problems()
	}
	return members
}

// members are the members, sorted, without what is wrong with them.
func (s *state) members() []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		members = append(members, registry.Member{
			ClusterID: id, UID: c.uid(), Version: c.member.record.Version,
			LastSeen: c.lastSeen, Joined: c.member.record.Joined, Beat: c.member.record.Beat,
			Stale: s.liveness.Stale(id),
		})
	}
	return members
}

// uid is that of who lives under the ID, else of who did last.
func (c *cluster) uid() string {
	if c.alive.lives() {
		return c.alive.uid
	}
	return c.member.record.UID
}

// problems are what is wrong with a cluster's keys, one line each.
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
		lines = append(lines, "its lease ran out: its controller does not reach etcd, or does not run")
	case c.alive.lease == 0:
		lines = append(lines, "its key alive has no lease")
	}
	var about []string
	for key, e := range c.exports {
		if e.trouble != "" {
			about = append(about, fmt.Sprintf("export %s cannot be used: %s", key, e.trouble))
		}
		for _, problem := range e.problems {
			about = append(about, fmt.Sprintf("export %s: %s", key, problem))
		}
	}
	about = slices.AppendSeq(about, maps.Values(c.strange))
	slices.Sort(about)
	if len(about) > maxProblems {
		about = append(about[:maxProblems], fmt.Sprintf("and %d more", len(about)-maxProblems))
	}
	return append(lines, about...)
}
