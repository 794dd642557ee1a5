package etcd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// pair is a key with its value, or a deleted key.
type pair struct {
	key   string
	value []byte
	// revision is that of the last change. For a deleted key, 0 means unknown.
	revision int64
	// created is the revision at which the key was created, 0 if unknown.
	created int64
	lease   int64
	deleted bool
	// verified is the content of an export's key, nil if it is not verified yet.
	verified *verifiedExport
	// dropped is true if the value was not kept, because its cluster has too many bytes of them.
	dropped bool
}

// state holds what etcd shows of a clusterset. Package belief decides what that means for the
// exports of the other clusters; state passes each change to it as an event.
type state struct {
	layout            layout
	clusterSetID, own string
	// name is the registry's in the keyring.
	name    string
	keyring *trust.Keyring
	// self is this cluster, the zero value if it only reads: its keys are verified with its own key
	// and not with the keyring.
	self   author
	me     ownRecords
	belief *belief.State

	// synced is true once the member records of all clusters of which the pins know were read, or
	// else all keys.
	synced bool
	// touched are the keys that the watch has shown since the head was read, nil after the list.
	// first is the number of clusters that were read before the list.
	touched map[string]struct{}
	first   int
	// refused counts the records that were refused since the last read.
	refused int
	// hasNewProcess is set if another cluster has a new process since the last read.
	hasNewProcess bool
	// revision is the revision up to which everything was read.
	revision int64
	clusters map[string]*cluster
	// handover is the time without a heartbeat after which a cluster without a lease has a problem:
	// until then its next process may start.
	handover time.Duration
	// ledger has the budgets of the other clusters. isWanted reports whether the exports of a
	// namespace are used; nil is all.
	ledger   *budget.Ledger
	isWanted func(namespace string) bool
	// decoding has an element for each export that is being decompressed or decoded.
	decoding chan struct{}
	// hasDue is set if there may be a read that has to be made.
	hasDue bool
	// foundRoomAt is the time at which reads were requested because there was room in a budget
	// again.
	foundRoomAt time.Time
}

// ownRecords are the member records under this cluster's own ID.
type ownRecords struct {
	// latest is the latest heartbeat or generation of this cluster's own records.
	latest int64
	// heartbeat is set if there was a heartbeat since the last observeHeartbeats.
	heartbeat bool
	// rival is the record of another cluster under this cluster's ID, the zero value if there is
	// none; rivalSeen is the time at which it was first read.
	rival     memberRecord
	rivalSeen time.Time
}

// cluster is what etcd shows of one cluster.
type cluster struct {
	id string
	// member, alive, shown and unrecognized are the keys below its prefix.
	member memberState
	alive  aliveState
	shown  map[mcs.Key]shownExport
	// unrecognized are keys that no controller writes.
	unrecognized map[string]string

	// record is the latest record that counts, the zero value without one, and properties are its
	// ClusterProperties. lastSeen is the time of the last heartbeat.
	record memberRecord
	// content is a digest of the exports that the record names, "" without one. isKept is set once
	// the keyring has it, and requested is the content that was to be read before the list.
	content, requested string
	isKept             bool
	properties         mcs.DecodedProperties
	lastSeen           time.Time
	// account has the cost of the exports; nil has no limits. waiting is the number of exports in
	// shown that are over budget, overflow that of the keys that are not known because there are
	// too many. triedAt is Released of the account when those over budget were tried last.
	account           *budget.Account
	waiting, overflow int
	triedAt           uint64
	// unread are the exports that were ignored or over budget, and have to be read now. isUnread is
	// set if all have to be.
	unread   map[mcs.Key]struct{}
	isUnread bool
}

type memberState struct {
	// revision is 0 when there is no record.
	revision int64
	// presented is the author of the record, whether or not its key is the cluster's. refused is
	// set for one under this cluster's own ID that is not its own.
	presented author
	refused   bool
	// problem is the reason why the record in etcd is not used, or "".
	problem string
	// refusedKey is the key that has signed the record if it is not the cluster's, and could be;
	// zero otherwise.
	refusedKey trust.Key
}

// shownExport is the key of one export as etcd shows it.
type shownExport struct {
	revision int64
	// created is the revision at which the key was created, 0 if unknown. No cluster can choose it.
	created int64
	// author has signed it as of generation, zero if it is not signed.
	author     author
	generation int64
	// export is nil if it is unreadable, and unreadable is the reason. Of another cluster it is nil
	// once it was applied.
	export     *mcs.Export
	unreadable string
	problems   []string
	// waiting is the offer of an export that is over budget. ignored is true for one in a namespace
	// that is not imported. Both have no export.
	waiting *budget.Offer
	ignored bool
}

// isSigned reports whether the cluster has signed the export.
func (e *shownExport) isSigned() bool { return e.author != author{} }

// stateConfig is the configuration of a state.
type stateConfig struct {
	layout            layout
	clusterSetID, own string
	name              string
	keyring           *trust.Keyring
	self              author
	poll, staleAfter  time.Duration
	ledger            *budget.Ledger
	isWanted          func(namespace string) bool
}

func newState(cfg stateConfig) *state {
	return &state{
		layout: cfg.layout, clusterSetID: cfg.clusterSetID, own: cfg.own, name: cfg.name, keyring: cfg.keyring, self: cfg.self,
		belief: belief.New(belief.Config{
			Own: cfg.own, UnitOf: unitOf, Poll: cfg.poll, Eager: cfg.poll, StaleAfter: cfg.staleAfter, Keyring: cfg.keyring, Registry: cfg.name,
		}),
		ledger: cfg.ledger, isWanted: cfg.isWanted, decoding: make(chan struct{}, decoders),
		clusters: map[string]*cluster{}, handover: cfg.staleAfter / 3,
	}
}

// head is what is read before the watch begins: all keys of this cluster, and the keys alive and
// member of others, as of one revision.
type head struct {
	others   []string
	pairs    []pair
	revision int64
}

// begin applies a head, and adds the keys with a View that may have changed. All keys are listed
// after it, beside the watch. isSetBack is set if etcd was set back to an earlier state, for
// example from a backup; an earlier revision shows that too.
func (s *state) begin(now time.Time, h head, isSetBack bool, changed engine.Keys) (rewound bool) {
	if rewound = isSetBack || h.revision < s.revision; rewound {
		s.rewind()
	}
	isRead := map[string]bool{s.own: true}
	for _, key := range s.layout.headKeys(h.others) {
		isRead[key] = true
	}
	var shown []string
	for _, key := range s.keys() {
		if isRead[key] || isRead[s.layout.clusterOf(key)] {
			shown = append(shown, key)
		}
	}
	s.touched, s.first = map[string]struct{}{}, 0
	s.synced = s.synced || len(h.others) > 0
	s.apply(now, s.withDeleted(h.pairs, shown), changed)
	s.revision = h.revision
	return rewound
}

// applyList applies a list of all keys that was read after the head. What the watch has shown since
// then is later.
func (s *state) applyList(now time.Time, list []pair, changed engine.Keys) {
	isEarlier := func(key string) bool { _, isTouched := s.touched[key]; return !isTouched }
	list = slices.DeleteFunc(list, func(p pair) bool { return !isEarlier(p.key) })
	shown := slices.DeleteFunc(s.keys(), func(key string) bool { return !isEarlier(key) })
	s.apply(now, s.withDeleted(list, shown), changed)
	s.synced, s.touched, s.hasDue = true, nil, true
}

// touch records keys that the watch has shown.
func (s *state) touch(changes []pair) {
	if s.touched == nil {
		return
	}
	for _, p := range changes {
		s.touched[p.key] = struct{}{}
	}
}

// maxFirst is how many clusters are read before the list: where more have changed, the list is as
// quick, and it pauses while etcd is busy.
const maxFirst = 64

// readFirst requests the exports of a cluster before the list has them, if it names others than
// those of which this process or a previous one has read all.
func (s *state) readFirst(c *cluster) {
	if s.touched == nil || !s.synced || c.content == "" || c.content == c.requested || s.first == maxFirst {
		return
	}
	if read := s.keyring.Of(s.name, c.id).Content; read == "" || read == c.content {
		return
	}
	c.requested, c.isUnread, s.hasDue = c.content, true, true
	s.first++
}

// observeRead records that all exports of a cluster were read.
func (s *state) observeRead(c *cluster) {
	if c.content != "" && !c.isKept && s.belief.IsShown(c.id) {
		s.keyring.ObserveContent(s.name, c.id, c.content)
		c.isKept = true
	}
}

// withDeleted adds those of keys that are not in a list as deleted ones.
func (s *state) withDeleted(list []pair, keys []string) []pair {
	present := make(map[string]bool, len(list))
	for _, p := range list {
		present[p.key] = true
	}
	for _, key := range keys {
		if !present[key] {
			list = append(list, pair{key: key, deleted: true})
		}
	}
	return list
}

// rewind resets all revisions: etcd counts from an earlier one, so the same number may mean
// something else.
func (s *state) rewind() {
	s.revision = 0
	for _, c := range s.clusters {
		c.member.revision = min(c.member.revision, 1)
		c.alive.revision = min(c.alive.revision, 1)
		c.readAgain()
	}
}

// keys returns all keys that etcd has shown.
func (s *state) keys() []string {
	var keys []string
	for id, c := range s.clusters {
		if c.member.revision != 0 {
			keys = append(keys, s.layout.member(id))
		}
		if c.alive.revision != 0 {
			keys = append(keys, s.layout.alive(id))
		}
		keys = slices.AppendSeq(s.appendExports(keys, c), maps.Keys(c.unrecognized))
	}
	return keys
}

// appendExports appends the keys of a cluster's exports that etcd has shown.
func (s *state) appendExports(keys []string, c *cluster) []string {
	for key := range c.shown {
		keys = append(keys, s.layout.export(c.id, key))
	}
	return keys
}

// apply applies changes that etcd shows together: the member records first, because the exports are
// verified with their keys.
func (s *state) apply(now time.Time, pairs []pair, changed engine.Keys) {
	touched := map[string]*cluster{}
	for _, p := range pairs {
		if id := s.layout.clusterOf(p.key); id != "" && p.key == s.layout.member(id) {
			touched[id] = s.clusterFor(now, id)
			s.applyMember(now, touched[id], p, changed)
		}
	}
	units := map[string][]belief.Unit{}
	for _, p := range pairs {
		id := s.layout.clusterOf(p.key)
		if id == "" || p.key == s.layout.member(id) {
			continue
		}
		if touched[id] == nil {
			touched[id] = s.clusterFor(now, id)
		}
		if unit, ok := s.applyKey(touched[id], p, changed); ok {
			units[id] = append(units[id], unit)
		}
	}
	for id, c := range touched {
		if len(units[id]) > 0 {
			s.read(now, c, belief.UnitsRead{Cluster: id, Units: units[id]}, changed)
		}
		s.finish(c)
	}
}

// applyRead applies the result of a read.
func (s *state) applyRead(now time.Time, r dueRead, pairs []pair, changed engine.Keys) {
	if r.all {
		s.applyAll(now, r.cluster, pairs, changed)
		return
	}
	s.apply(now, s.withDeleted(pairs, r.keys), changed)
	for _, p := range r.keys {
		if key, ok := s.layout.exportKey(r.cluster, p); ok && s.clusters[r.cluster] != nil {
			delete(s.clusters[r.cluster].unread, key)
		}
	}
}

// applyAll applies the keys of all exports of a cluster, which were read together.
func (s *state) applyAll(now time.Time, id string, pairs []pair, changed engine.Keys) {
	c := s.clusterFor(now, id)
	c.readAgain()
	c.isUnread, c.overflow = false, 0
	all := belief.UnitsRead{Cluster: id, All: true}
	for _, p := range s.withDeleted(pairs, s.appendExports(nil, c)) {
		if unit, ok := s.applyKey(c, p, changed); ok {
			all.Units = append(all.Units, unit)
		}
	}
	s.read(now, c, all, changed)
	s.finish(c)
}

// read passes units of a cluster to belief. What it does not keep of them costs nothing.
func (s *state) read(now time.Time, c *cluster, e belief.UnitsRead, changed engine.Keys) {
	s.step(now, c, e, changed)
	for i := range e.Units {
		for key := range e.Units[i].Content.Exports {
			s.release(c, key)
		}
	}
}

// step passes an event about a cluster to belief, or about all of them without one, and adds the
// keys with a View that may have changed. What has ended costs nothing any more.
func (s *state) step(now time.Time, of *cluster, event belief.Event, changed engine.Keys) {
	actions := s.belief.Step(event, now)
	s.hasDue = s.hasDue || len(actions.ReadUnits) > 0
	for _, key := range actions.Notify {
		changed.Add(key)
		if of != nil {
			s.release(of, key)
			continue
		}
		for _, c := range s.clusters {
			s.release(c, key)
		}
	}
}

// release subtracts the cost of an export from the account of its cluster, if nothing is kept of
// it.
func (s *state) release(c *cluster, key mcs.Key) {
	if c.account != nil && s.belief.ExportOf(c.id, key) == nil {
		c.account.Release(key)
	}
}

// finish ends a change of what etcd shows of a cluster.
func (s *state) finish(c *cluster) {
	s.observeRead(c)
	s.readFirst(c)
	c.account.SetExcess(c.waiting + c.overflow)
	if c.isShown() {
		return
	}
	switch s.belief.StateOf(c.id) {
	case belief.NotRead, belief.Left:
		c.account.Close()
		delete(s.clusters, c.id)
	case belief.Saving, belief.First, belief.Current: // its exports stay
	}
}

// clusterFor returns a cluster, a new one if it is not known.
func (s *state) clusterFor(now time.Time, id string) *cluster {
	c := s.clusters[id]
	if c == nil {
		c = &cluster{id: id, lastSeen: now, shown: map[mcs.Key]shownExport{}, unrecognized: map[string]string{}}
		if id != s.own {
			c.account = s.ledger.Open(budget.Owner{ClusterID: id, Since: s.keyring.Since(id)})
		}
		s.clusters[id] = c
	}
	return c
}

// isSelf reports whether id is this cluster, and it exports to this registry.
func (s *state) isSelf(id string) bool { return id == s.own && s.self != author{} }

// authorOf returns the author of a cluster's exports, if presented is that of the member record
// that is read with them, the zero value if none is.
func (s *state) authorOf(id string, presented author) author {
	if s.isSelf(id) {
		return s.self
	}
	if presented == (author{}) && s.clusters[id] != nil {
		presented = s.clusters[id].member.presented
	}
	r := s.belief.RecordOf(id)
	if r == nil {
		return presented
	}
	return author{clusterSetID: s.clusterSetID, clusterID: id, uid: r.UID, key: r.Key}
}

// applyMember applies the change of a member record. A record that is missing, refused or older
// than before changes nothing.
func (s *state) applyMember(now time.Time, c *cluster, p pair, changed engine.Keys) {
	isChanged := p.revision != c.member.revision
	if p.deleted {
		c.member = memberState{} // a rival is still live: another user may have deleted its record
		if c.id != s.own {
			s.step(now, c, belief.RecordMissing{Cluster: c.id}, changed)
		}
		return
	}
	c.member = memberState{revision: p.revision}
	m, a, err := openMember(p.value, s.clusterSetID, c.id)
	if err == nil {
		c.member.presented = a
	}
	if c.id == s.own {
		s.applyOwnMember(now, c, m, err, isChanged)
		return
	}
	if err != nil {
		s.step(now, c, belief.RecordRefused{Cluster: c.id, Reason: err.Error()}, changed)
		c.member.problem = registry.RefusedProblem("the member record", err)
		s.countRefused(isChanged)
		return
	}
	r, err := decodeMember(m, s.clusterSetID, c.id)
	if err != nil {
		c.member.problem = fmt.Sprintf("the member record cannot be used: %v", err)
	}
	if r.ClusterID == "" { // not even its time can be read
		s.step(now, c, belief.RecordRefused{Cluster: c.id, Reason: err.Error()}, changed)
		return
	}
	s.step(now, c, belief.RecordRead{Record: c.recordOf(a, r)}, changed)
	s.observeRecord(now, c, r, isChanged)
}

// recordOf returns a member record as belief has it. Only the cluster can write below its prefix,
// if it has a user of its own.
func (c *cluster) recordOf(a author, r memberRecord) belief.Record {
	out := belief.Record{
		Cluster: c.id, Place: belief.Own, Seal: belief.Sealed, Key: a.key, UID: a.uid, Succession: r.succession, At: r.time(),
		Farewell: r.Farewell, Properties: c.properties.Decode(r.Properties),
	}
	switch {
	case r.Farewell:
	case r.Exports == nil:
		out.Manifest = belief.AsSet{IsUnknown: true}
	default:
		out.Manifest = belief.AsSet{Digest: r.Exports.Digest}
	}
	return out
}

// observeRecord records what belief has made of the record that etcd shows of another cluster.
func (s *state) observeRecord(now time.Time, c *cluster, r memberRecord, isChanged bool) {
	switch p := s.belief.ProblemOf(c.id); p.Kind {
	case belief.KeyRefused:
		c.member.problem = registry.RefusedProblem("the member record", errors.New(p.Reason))
		c.member.refusedKey = p.Key
		s.countRefused(isChanged)
	case belief.Earlier:
		c.member.problem = fmt.Sprintf("the member record is not used: it is of %s, and a later one was read before: etcd was restored, "+
			"or another user wrote an old record again", r.Heartbeat.Format(time.RFC3339))
	case belief.NoProblem, belief.Missing, belief.Unreadable, belief.KeyUnproven:
		if isChanged && s.synced && r.time().After(c.record.time()) {
			c.lastSeen = now
		}
		c.setRecord(r)
	}
}

// setRecord sets the latest record that counts.
func (c *cluster) setRecord(r memberRecord) {
	if content := r.content(); content != c.content {
		c.content, c.isKept = content, false
	}
	c.record = r
}

func (s *state) countRefused(isChanged bool) {
	if isChanged {
		s.refused++
	}
}

// errNotOwn means that the record under this cluster's own ID is another one's.
var errNotOwn = errors.New("another cluster has signed it, or this cluster with a previous key")

// applyOwnMember applies a member record under this cluster's own ID; refusal is the error of
// openMember.
func (s *state) applyOwnMember(now time.Time, c *cluster, m signedMember, refusal error, isChanged bool) {
	if refusal == nil {
		refusal = s.checkOwn(c.member.presented)
	}
	r, err := decodeMember(m, s.clusterSetID, s.own)
	switch {
	case refusal != nil:
		c.member.problem, c.member.refused = registry.RefusedProblem("the member record", refusal), true
		s.countRefused(isChanged)
	case err != nil:
		c.member.problem = fmt.Sprintf("the member record cannot be used: %v", err)
	}
	if s.isSelf(c.id) {
		s.me.observeRival(now, r, refusal != nil && err == nil && r.UID != s.self.uid)
	}
	if refusal != nil || r.ClusterID == "" {
		return
	}
	if isChanged && s.synced && r.time().After(c.record.time()) {
		s.me.heartbeat, c.lastSeen = true, now
	}
	s.me.latest = max(s.me.latest, r.latest())
	c.record = r
}

// checkOwn returns an error if an author is not the one of this cluster's own records. In a
// registry that is only read the key must not become that of the ID.
func (s *state) checkOwn(a author) error {
	switch {
	case !s.isSelf(s.own):
		_, err := s.keyring.Check(trust.Presented{Registry: s.name, ClusterID: s.own, Key: a.key})
		return err
	case a != s.self:
		return errNotOwn
	}
	return nil
}

// observeRival records the record of another cluster that uses this cluster's ID, if it is one.
func (o *ownRecords) observeRival(now time.Time, r memberRecord, isRival bool) {
	if !isRival {
		r = memberRecord{}
	}
	if o.rival.UID != r.UID || o.rival.time() != r.time() {
		o.rivalSeen = now
	}
	o.rival = r
}

// applyKey applies the change of a key other than member, and returns the unit of an export that
// belief has to know.
func (s *state) applyKey(c *cluster, p pair, changed engine.Keys) (unit belief.Unit, ok bool) {
	keyKind, key, err := s.layout.parse(c.id, p.key)
	switch {
	case err != nil && p.deleted:
		delete(c.unrecognized, p.key)
	case err != nil:
		if len(c.unrecognized) < maxUnrecognized {
			c.unrecognized[p.key] = err.Error()
		}
	case keyKind == kindAlive:
		s.applyAlive(c, p)
	case c.id == s.own:
		before := c.shown[key].revision
		s.applyExport(c, p, key, changed)
		if c.shown[key].revision != before {
			changed.Add(key)
		}
	default:
		return s.applyExport(c, p, key, changed)
	}
	return belief.Unit{}, false
}

// isShown reports whether etcd shows a key of the cluster.
func (c *cluster) isShown() bool {
	return c.member.revision != 0 || c.alive.revision != 0 || len(c.shown) != 0 || len(c.unrecognized) != 0
}

func (s *state) applyAlive(c *cluster, p pair) {
	before := c.alive.number
	c.alive = aliveIn(p)
	s.hasNewProcess = s.hasNewProcess || s.synced && c.id != s.own && c.alive.number != 0 && c.alive.number != before
}

// applyExport applies the change of an export's key, and returns the unit that it is, unless
// nothing has changed.
func (s *state) applyExport(c *cluster, p pair, key mcs.Key, changed engine.Keys) (unit belief.Unit, ok bool) {
	before, wasShown := c.shown[key]
	switch {
	case p.deleted:
		c.countWaiting(before, shownExport{})
		delete(c.shown, key)
		return belief.Unit{Name: unitOf(key)}, true
	case wasShown && before.revision == p.revision:
		return belief.Unit{}, false
	case c.isFull(key):
		c.overflow++
		return belief.Unit{}, false
	}
	e := s.showExport(c, p, key)
	c.countWaiting(before, e)
	delete(c.unread, key)
	if before.unreadable != e.unreadable {
		changed.Add(key)
	}
	if c.id != s.own && registry.IsRefused(e.unreadable) {
		s.refused++
	}
	unit = e.unit(key)
	if c.id != s.own {
		e.export = nil // belief has it
	}
	c.shown[key] = e
	return unit, true
}

// unsigned is the digest of an export that its cluster has not signed: there is one, and no more is
// known of it.
const unsigned = "unsigned"

// unit returns the unit of package belief that the export is.
func (e *shownExport) unit(key mcs.Key) belief.Unit {
	u := belief.Unit{Name: unitOf(key), Order: e.created}
	if !e.isSigned() {
		u.Version.Digest = unsigned
		return u
	}
	u.Version, u.Author = belief.Version{Generation: e.generation}, belief.Author{Key: e.author.key, UID: e.author.uid}
	switch {
	case e.ignored:
		u.Content.Ignored = map[mcs.Key]bool{key: true}
	case e.export == nil:
		u.Content.Unusable = map[mcs.Key]bool{key: true}
	default:
		u.Content.Exports = map[mcs.Key]*mcs.Export{key: e.export}
	}
	return u
}

// forget drops a cluster until its next record.
func (s *state) forget(now time.Time, id string, changed engine.Keys) {
	if id == s.own {
		return
	}
	c := s.clusters[id]
	s.step(now, c, belief.Forget{Cluster: id}, changed)
	if c != nil {
		s.finish(c)
	}
}

// observeHeartbeats passes the heartbeats since the last call to belief, and adds the keys of
// clusters that became stale or live.
func (s *state) observeHeartbeats(now time.Time, changed engine.Keys) {
	s.step(now, nil, belief.Tick{Heartbeat: s.me.heartbeat}, changed)
	s.me.heartbeat = false
}

// ownExport is an export of this cluster as etcd shows it.
type ownExport struct {
	// exists is true if there is a key; export is nil if it cannot be read.
	exists bool
	export *mcs.Export
	// generation is 0 if this cluster has not signed it; revision is that of the last change.
	generation, revision int64
}

// ownExport returns this cluster's export of key.
func (s *state) ownExport(key mcs.Key) ownExport {
	c := s.clusters[s.own]
	if c == nil {
		return ownExport{}
	}
	e, exists := c.shown[key]
	return ownExport{exists: exists, export: e.export, generation: e.generation, revision: e.revision}
}

// ownAlive returns this cluster's key alive.
func (s *state) ownAlive() aliveState {
	if c := s.clusters[s.own]; c != nil {
		return c.alive
	}
	return aliveState{}
}

// ownMember returns this cluster's member record as etcd shows it, the zero value if there is none
// that can be used.
func (s *state) ownMember() memberRecord {
	if c := s.clusters[s.own]; c != nil && c.member.revision != 0 && !c.member.refused {
		return c.record
	}
	return memberRecord{}
}

// view returns the exports of the other clusters under key, and the order in which etcd got them
// and this cluster's own. Until all keys are listed, nothing that is imported ends: another
// cluster, which is not known yet, may export the service instead, as one with a new ID does.
func (s *state) view(key mcs.Key, imported []string) registry.View {
	v := s.belief.View(key, imported...)
	for _, id := range imported {
		if s.touched != nil && id != s.own && v.Clusters[id].State == registry.None {
			if v.Clusters == nil {
				v.Clusters = map[string]registry.ClusterView{}
			}
			v.Clusters[id] = registry.ClusterView{State: registry.Unknown, Liveness: s.belief.LivenessOf(id)}
		}
	}
	if c := s.clusters[s.own]; c != nil {
		if e := c.shown[key]; e.isSigned() && e.created > 0 {
			if v.Order == nil {
				v.Order = map[string]int64{}
			}
			v.Order[s.own] = e.created
		}
	}
	return v
}

// statusOf returns what is missing in the view of a key.
func (s *state) statusOf(key mcs.Key, imported []string) engine.Status {
	if s.touched == nil {
		return s.belief.StatusOf(key, imported)
	}
	return engine.StatusOf(s.view(key, imported), imported)
}

// countExports returns how many exports of a cluster etcd shows.
func (s *state) countExports(id string) int {
	if c := s.clusters[id]; c != nil {
		return len(c.shown)
	}
	return 0
}

// addAllKeys adds every key that any cluster exports.
func (s *state) addAllKeys(keys engine.Keys) {
	for _, key := range s.belief.Keys() {
		keys.Add(key)
	}
	for _, c := range s.clusters {
		for key := range c.shown {
			keys.Add(key)
		}
	}
}
