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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// maxProblems limits the problems reported per cluster.
const maxProblems = 20

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

// state holds the exports and members of a clusterset as last read.
//
// It holds two things of each cluster: the keys that etcd shows, and the exports that the cluster
// has by its own signed records. A key that disappears, cannot be read, is not signed or is older
// than before changes only the former. An export ends when a record of the cluster has the digest
// of the exports that etcd shows, without it.
type state struct {
	layout            layout
	clusterSetID, own string
	// name is the registry's in the keyring.
	name    string
	keyring *trust.Keyring
	// self is this cluster, the zero value if it only reads: its keys are verified with its own key
	// and not with the keyring.
	self author

	// synced is true after the first complete read.
	synced bool
	// refused counts the records that were refused since the last read.
	refused int
	// relist is true if values that were refused before may be valid with a cluster's new key: they
	// must be read again.
	relist bool
	// hasNewProcess is set if another cluster has a new process since the last read.
	hasNewProcess bool
	// revision is the revision up to which everything was read.
	revision int64
	clusters map[string]*cluster
	// exporters finds clusters by their exports.
	exporters exporters
	liveness  *registry.Liveness
	// handover is the time without a heartbeat after which a cluster without a lease has a problem:
	// until then its next process may start.
	handover time.Duration
	// ledger has the budgets of the other clusters. isWanted reports whether the exports of a
	// namespace are used; nil is all.
	ledger   *budget.Ledger
	isWanted func(namespace string) bool
	// decoding has an element for each export that is being decompressed or decoded.
	decoding chan struct{}
	// unread are the keys of exports that were ignored and are wanted now.
	unread map[string]struct{}
	// relistedAt is the time at which a list was requested because there was room in a budget
	// again.
	relistedAt time.Time
}

// cluster is the state of one cluster.
type cluster struct {
	id string
	// exporters is that of the state. It is updated after each change of the keys in shown and
	// held.
	exporters exporters
	// member, alive, shown and unrecognized are the keys below its prefix as etcd shows them.
	member memberState
	alive  aliveState
	shown  map[mcs.Key]shownExport
	// unrecognized are keys that no controller writes.
	unrecognized map[string]string
	// digest is that of the signed exports in shown.
	digest belief.SetDigest

	// author signs the records of the cluster, the zero value if none was believed. known is true
	// if one was believed, and left if it was a farewell; record is the latest, and properties are
	// its ClusterProperties.
	author      author
	known, left bool
	record      memberRecord
	properties  mcs.DecodedProperties
	// forgotten is true after Forget, until the next record.
	forgotten bool
	// isReturning is set from the return of the cluster until it is saved that it has not left.
	// Until then its exports are unknown: the next process must not take imports of them for those
	// that ended with the farewell.
	isReturning bool
	// isUnmatched is set if a previous process has read records of the cluster, until etcd shows
	// exactly the exports that a record names, which is not older than those. Until then what etcd
	// shows may be an earlier version of an export, which another user has written again. first is
	// the time of the first record that this process has read, while it may be older: zero after a
	// later one, or when the cluster is stale.
	isUnmatched bool
	first       trust.Time
	// rival is the record of another cluster under this cluster's own ID, the zero value if there
	// is none; rivalSeen is the time at which it was first read.
	rival     memberRecord
	rivalSeen time.Time
	// latest is the latest heartbeat or generation of this cluster's own records.
	latest int64
	// held are the exports of the cluster by its signed records. The keys in loose are those for
	// which etcd shows something else.
	held  map[mcs.Key]heldExport
	loose map[mcs.Key]struct{}
	// complete is true once etcd showed exactly the exports that a record names: what is not held
	// was not exported then. settled is the generation of the last such record: an export up to it
	// that is not held was withdrawn.
	complete bool
	settled  int64
	// gapSince is since when etcd has not shown the exports that the record names, zero if it does.
	// gapListed is the digest for which all keys were listed.
	gapSince  time.Time
	gapListed belief.SetDigest
	// heartbeat is true if there was a heartbeat since the last observeHeartbeats; lastSeen is the
	// time of the last one.
	heartbeat bool
	lastSeen  time.Time
	// account has the cost of the exports; nil has no limits. waiting is the number of exports in
	// shown that are over budget, overflow that of the keys that are not known because there are
	// too many. triedAt is Released of the account when those over budget were tried last.
	account           *budget.Account
	waiting, overflow int
	triedAt           uint64
}

type memberState struct {
	// revision is 0 when there is no record.
	revision int64
	// refused is true if the record in etcd is not the cluster's, or an earlier one; problem is the
	// reason why it is not used, or "".
	refused bool
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
	// signed is true if the cluster has signed it, as of generation. superseded is true if it did
	// so with its previous key: the export stays until the cluster signs it with the new one, or
	// withdraws it.
	signed, superseded bool
	generation         int64
	// export is nil if it is unreadable, and unreadable is the reason.
	export     *mcs.Export
	unreadable string
	problems   []string
	// waiting is the offer of an export that is over budget. ignored is true for one in a namespace
	// that is not imported. Both have no export.
	waiting *budget.Offer
	ignored bool
}

// heldExport is an export of a cluster.
type heldExport struct {
	generation int64
	// export is the last readable one, nil if there was none.
	export *mcs.Export
}

// stateConfig is the configuration of a state.
type stateConfig struct {
	layout            layout
	clusterSetID, own string
	name              string
	keyring           *trust.Keyring
	self              author
	staleAfter        time.Duration
	ledger            *budget.Ledger
	isWanted          func(namespace string) bool
}

func newState(cfg stateConfig) *state {
	return &state{
		layout: cfg.layout, clusterSetID: cfg.clusterSetID, own: cfg.own, name: cfg.name, keyring: cfg.keyring, self: cfg.self,
		ledger: cfg.ledger, isWanted: cfg.isWanted, decoding: make(chan struct{}, decoders),
		unread:   map[string]struct{}{},
		clusters: map[string]*cluster{}, exporters: exporters{}, liveness: registry.NewLiveness(cfg.own, cfg.staleAfter), handover: cfg.staleAfter / 3,
	}
}

// replace replaces everything with a list that was read at revision, and adds the keys with a View
// that may have changed. It reports whether etcd was set back to an earlier state, for example from
// a backup.
func (s *state) replace(now time.Time, list []pair, revision int64, changed engine.Keys) (rewound bool) {
	if rewound = revision < s.revision; rewound {
		s.rewind()
	}
	present := make(map[string]bool, len(list))
	for _, p := range list {
		present[p.key] = true
	}
	for _, key := range s.keys() {
		if !present[key] {
			list = append(list, pair{key: key, deleted: true})
		}
	}
	s.apply(now, list, changed)
	clear(s.unread)
	s.synced, s.relist, s.revision = true, false, revision
	return rewound
}

// rewind resets all revisions: etcd counts from an earlier one, so the same number may mean
// something else.
func (s *state) rewind() {
	s.revision = 0
	for _, c := range s.clusters {
		c.member.revision = min(c.member.revision, 1)
		c.alive.revision = min(c.alive.revision, 1)
		for key, e := range c.shown {
			e.revision = 0
			c.shown[key] = e
		}
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
		for key := range c.shown {
			keys = append(keys, s.layout.export(id, key))
		}
		keys = slices.AppendSeq(keys, maps.Keys(c.unrecognized))
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
			s.applyMember(now, touched[id], p, id, changed)
		}
	}
	for _, p := range pairs {
		id := s.layout.clusterOf(p.key)
		if id == "" || p.key == s.layout.member(id) {
			continue
		}
		if touched[id] == nil {
			touched[id] = s.clusterFor(now, id)
		}
		s.applyKey(touched[id], p, id, changed)
	}
	for id, c := range touched {
		c.settle(changed)
		c.account.SetExcess(c.waiting + c.overflow)
		if c.isEmpty() {
			s.remove(id)
			s.liveness.Remove(id)
		}
	}
}

// remove removes a cluster without records.
func (s *state) remove(id string) {
	s.clusters[id].account.Close()
	delete(s.clusters, id)
}

// clusterFor returns a cluster, a new one if it is not known.
func (s *state) clusterFor(now time.Time, id string) *cluster {
	c := s.clusters[id]
	if c == nil {
		c = &cluster{
			id: id, exporters: s.exporters,
			lastSeen: now, shown: map[mcs.Key]shownExport{}, unrecognized: map[string]string{},
			held: map[mcs.Key]heldExport{}, loose: map[mcs.Key]struct{}{},
		}
		if s.isSelf(id) {
			c.author = s.self
		}
		if id != s.own {
			c.account = s.ledger.Open(budget.Owner{ClusterID: id, Since: s.keyring.Since(id)})
		}
		s.clusters[id] = c
	}
	return c
}

// isSelf reports whether id is this cluster, and it exports to this registry.
func (s *state) isSelf(id string) bool { return id == s.own && s.self != author{} }

// applyKey applies the change of a key other than member.
func (s *state) applyKey(c *cluster, p pair, id string, changed engine.Keys) {
	keyKind, key, err := s.layout.parse(id, p.key)
	switch {
	case err != nil && p.deleted:
		delete(c.unrecognized, p.key)
	case err != nil:
		if len(c.unrecognized) < maxUnrecognized {
			c.unrecognized[p.key] = err.Error()
		}
	case keyKind == kindAlive:
		s.applyAlive(c, p)
	default:
		before := c.shown[key].revision
		if s.applyExport(c, p, key, changed) && id != s.own {
			s.refused++
		}
		if id == s.own && c.shown[key].revision != before {
			changed.Add(key)
		}
	}
}

// isEmpty reports whether etcd shows nothing of the cluster, and nothing has to be remembered.
func (c *cluster) isEmpty() bool {
	return !c.isShown() && (!c.known || c.left) && c.rival.UID == ""
}

// isShown reports whether etcd shows a key of the cluster.
func (c *cluster) isShown() bool {
	return c.member.revision != 0 || c.alive.revision != 0 || len(c.shown) != 0 || len(c.unrecognized) != 0
}

// errForgotten means that a record is not later than Forget.
var errForgotten = errors.New("the cluster was forgotten, and it has written no record since")

// applyMember applies the change of a member record. A record that is missing, refused or older
// than before changes nothing.
func (s *state) applyMember(now time.Time, c *cluster, p pair, id string, changed engine.Keys) {
	if p.deleted {
		// a rival is still live: its record may have been deleted by another user
		c.member = memberState{}
		return
	}
	isChanged := p.revision != c.member.revision
	c.member = memberState{revision: p.revision, refused: true}
	m, a, err := openMember(p.value, s.clusterSetID, id)
	if err == nil {
		if err = s.checkKey(m, a, id); err != nil && !s.isSelf(id) {
			c.member.refusedKey = a.key
		}
	}
	if s.isSelf(id) {
		c.observeRival(now, s.rivalIn(m, err))
	}
	if err != nil {
		c.member.problem = registry.RefusedProblem("the member record", err)
		if isChanged {
			s.refused++
		}
		return
	}
	r, err := decodeMember(m, s.clusterSetID, id)
	if err != nil {
		c.member.problem = fmt.Sprintf("the member record cannot be used: %v", err)
	}
	if r.ClusterID != "" { // at least its time can be read
		s.applyRecord(now, c, a, r, isChanged && s.synced, changed)
	}
}

// applyRecord applies a record that the cluster has signed. news is true if it was written since
// the last read.
func (s *state) applyRecord(now time.Time, c *cluster, a author, r memberRecord, news bool, changed engine.Keys) {
	if !c.known && c.author != a {
		s.changeAuthor(c, a, r) // exports are verified although the record may be too old
	}
	switch err := s.checkTime(c, a, r, r.ClusterID); {
	case errors.Is(err, errForgotten):
	case err != nil:
		c.member.problem = fmt.Sprintf("the member record is not used: %v", err)
	default:
		c.member.refused = false
		s.believe(now, c, a, r, news, changed)
	}
}

// rivalIn returns a member record under this cluster's ID that was refused, if it is another
// cluster's.
func (s *state) rivalIn(m signedMember, refusal error) memberRecord {
	r, err := decodeMember(m, s.clusterSetID, s.own)
	if refusal == nil || err != nil || r.UID == s.self.uid {
		return memberRecord{}
	}
	return r
}

// observeRival records the record of another cluster that uses this cluster's ID, the zero value if
// there is none.
func (c *cluster) observeRival(now time.Time, r memberRecord) {
	if c.rival.UID != r.UID || c.rival.time() != r.time() {
		c.rivalSeen = now
	}
	c.rival = r
}

// checkKey returns an error if the key that has signed a record is not the cluster's.
func (s *state) checkKey(m signedMember, a author, id string) error {
	if s.isSelf(id) {
		if a != s.self {
			return errors.New("another cluster has signed it, or this cluster with a previous key")
		}
		return nil
	}
	_, err := s.keyring.Check(trust.Presented{Registry: s.name, ClusterID: id, Key: a.key, Succession: m.Succession, Proven: s.liveness.IsStale(id)})
	return err
}

// checkTime returns an error if a record is earlier than one that was read before, by this process
// or a previous one.
func (s *state) checkTime(c *cluster, a author, r memberRecord, id string) error {
	if s.isSelf(id) {
		return nil
	}
	last := s.keyring.Last(s.name, id, a.key)
	if c.known && c.author.key == a.key && c.record.time().After(last) {
		last = c.record.time()
	}
	pin, _ := s.keyring.Pin(id)
	switch {
	case last.After(r.time()):
		return fmt.Errorf("it is of %s, and a later one was read before: etcd was restored, or another user wrote an old record again",
			r.Heartbeat.Format(time.RFC3339))
	case pin.Forgotten && !c.known && last != trust.Time{} && !r.time().After(last):
		return errForgotten
	}
	return nil
}

// believe applies a record of the cluster.
func (s *state) believe(now time.Time, c *cluster, a author, r memberRecord, news bool, changed engine.Keys) {
	if c.author != a {
		s.changeAuthor(c, a, r)
	}
	advanced := !c.known || r.time().After(c.record.time())
	if news && advanced {
		c.heartbeat, c.lastSeen = true, now
	}
	if !advanced && r.time() != c.record.time() && a != s.self {
		return
	}
	c.latest = max(c.latest, r.latest())
	c.compareProperties(r, changed)
	wasKnown := c.known
	c.known, c.forgotten, c.record, c.left = true, false, r, r.Farewell
	if r.ClusterID == s.own {
		// this cluster, or in a registry that it only imports from a cluster with the same ID,
		// whose key must not become the one of this ID
		return
	}
	pin, _ := s.keyring.Pin(r.ClusterID)
	c.compareFirst(pin, s.keyring.IsComplete(), a, r, s.name, wasKnown)
	if pin.Left { // its exports ended with the farewell, which may be gone
		c.settled = max(c.settled, s.keyring.Last(s.name, r.ClusterID, a.key).Generation)
	}
	s.keyring.Observe(trust.Record{Registry: s.name, ClusterID: r.ClusterID, UID: r.UID, Key: a.key, At: r.time(), Farewell: r.Farewell})
	c.updateReturning(s.keyring.IsReturnSaved(r.ClusterID))
	if c.left {
		c.drop(changed)
		s.liveness.Remove(r.ClusterID)
	}
}

// updateReturning begins the wait until the return of the cluster is saved. A farewell ends it;
// otherwise observeHeartbeats does, which notifies of the exports.
func (c *cluster) updateReturning(isSaved bool) {
	c.isReturning = !c.left && (c.isReturning || !isSaved)
}

// compareFirst decides whether record r may be older than one that a previous process has read: the
// pins of a process that was killed lack the latest ones, and isComplete is set if those of the
// last process do not.
func (c *cluster) compareFirst(pin trust.Pin, isComplete bool, a author, r memberRecord, registryName string, wasKnown bool) {
	if !wasKnown && pin.Key == a.key && pin.Last[registryName] != (trust.Time{}) && !pin.Left && !pin.Forgotten {
		c.isUnmatched = true
		if !isComplete {
			c.first = r.time()
		}
	} else if r.time().After(c.first) {
		c.first = trust.Time{} // the cluster has written it since
	}
}

// compareProperties adds the keys of the exports if record r has other properties than before.
func (c *cluster) compareProperties(r memberRecord, changed engine.Keys) {
	if !c.known || c.record.Properties == r.Properties {
		return
	}
	c.addHeld(changed)
}

// changeAuthor makes a the author of the cluster's records, the first of which is r. The exports
// stay until it says otherwise.
func (s *state) changeAuthor(c *cluster, a author, r memberRecord) {
	isRotation := a.key == c.author.key || c.author.key.IsSucceededBy(a.key, a.clusterSetID, a.clusterID, r.succession)
	c.author, c.record, c.settled, c.complete = a, memberRecord{}, 0, false
	for _, key := range slices.Collect(maps.Keys(c.shown)) {
		e := c.shown[key]
		if _, isLoose := c.loose[key]; isRotation && e.signed && !isLoose {
			e.signed, e.superseded = false, true
			c.shown[key] = e
			continue
		}
		s.relist = true
		c.countWaiting(e, shownExport{})
		delete(c.shown, key)
		c.exporters.update(c, key)
		c.release(key)
	}
	c.digest = belief.SetDigest{}
	for key, e := range c.held {
		c.held[key] = heldExport{export: e.export}
		c.loose[key] = struct{}{}
	}
}

// drop removes all exports of the cluster.
func (c *cluster) drop(changed engine.Keys) {
	for key := range c.held {
		changed.Add(key)
	}
	ended := slices.Collect(maps.Keys(c.held))
	clear(c.held)
	for _, key := range ended {
		c.exporters.update(c, key)
		c.release(key)
	}
	for key := range c.shown {
		c.loose[key] = struct{}{}
	}
	maps.DeleteFunc(c.loose, func(key mcs.Key, _ struct{}) bool { _, isShown := c.shown[key]; return !isShown })
	c.complete, c.isUnmatched, c.first, c.settled = false, false, trust.Time{}, c.record.Generation
}

// forget drops a cluster until its next record.
func (s *state) forget(id string, changed engine.Keys) {
	c := s.clusters[id]
	if c == nil || id == s.own {
		return
	}
	for key := range c.shown {
		changed.Add(key)
	}
	c.drop(changed)
	c.known, c.left, c.forgotten = false, false, true
	s.liveness.Remove(id)
	if c.isEmpty() {
		s.remove(id)
	}
}

func (s *state) applyAlive(c *cluster, p pair) {
	before := c.alive.number
	c.alive = aliveIn(p)
	s.hasNewProcess = s.hasNewProcess || s.synced && c.id != s.own && c.alive.number != 0 && c.alive.number != before
}

// applyExport applies the change of an export's key. An export that is missing, unreadable, not
// signed or older than before stays as it was.
func (s *state) applyExport(c *cluster, p pair, key mcs.Key, changed engine.Keys) (isRefused bool) {
	before, wasShown := c.shown[key]
	if wasShown && !p.deleted && before.revision == p.revision {
		return false
	}
	if !p.deleted && c.isFull(key) {
		c.overflow++
		return false
	}
	if before.signed {
		c.digest = c.digest.Without(unitOf(key), before.generation)
	}
	if p.deleted {
		c.unshow(key)
		return false
	}
	e := s.showExport(c, p, key)
	c.shown[key] = e
	c.exporters.update(c, key)
	c.countWaiting(before, e)
	defer c.release(key)
	if e.signed {
		c.digest = c.digest.With(unitOf(key), e.generation)
	}
	if before.unreadable != e.unreadable || before.ignored != e.ignored {
		changed.Add(key)
	}
	if !c.isNews(key, e) {
		c.loose[key] = struct{}{}
		return registry.IsRefused(e.unreadable)
	}
	delete(c.loose, key)
	c.hold(key, e, changed)
	return false
}

// unshow records that the key of an export is gone. The export stays as it was.
func (c *cluster) unshow(key mcs.Key) {
	c.countWaiting(c.shown[key], shownExport{})
	delete(c.shown, key)
	c.exporters.update(c, key)
	delete(c.loose, key)
	if _, isHeld := c.held[key]; isHeld {
		c.loose[key] = struct{}{}
	}
	c.release(key)
}

// isNews reports whether the cluster has signed an export after those that it is known to have, or
// to have withdrawn.
func (c *cluster) isNews(key mcs.Key, e shownExport) bool {
	if !e.signed || !c.known || c.left || c.isUnmatched {
		return false
	}
	if held, isHeld := c.held[key]; isHeld {
		return e.generation >= held.generation
	}
	return e.generation > c.settled
}

// hold makes e an export of the cluster.
func (c *cluster) hold(key mcs.Key, e shownExport, changed engine.Keys) {
	before, isHeld := c.held[key]
	after := heldExport{generation: e.generation, export: e.export}
	if after.export == nil && !e.ignored {
		after.export = before.export
	}
	c.held[key] = after
	c.exporters.update(c, key)
	if !isHeld || !equalExports(before.export, after.export) {
		changed.Add(key)
	}
}

// settle ends the exports that the cluster has withdrawn, if etcd shows exactly those that its
// record names. The record may be there after the exports: only now is it known which of the others
// are old.
func (c *cluster) settle(changed engine.Keys) {
	if !c.known || c.left || c.record.Exports == nil || c.record.Exports.Digest != c.digest || c.first != (trust.Time{}) {
		return
	}
	c.complete, c.isUnmatched, c.settled = true, false, c.record.Generation
	for key := range c.loose {
		if e := c.shown[key]; e.signed {
			c.hold(key, e, changed)
			continue
		}
		if _, isHeld := c.held[key]; isHeld {
			delete(c.held, key)
			c.exporters.update(c, key)
			c.release(key)
			changed.Add(key)
		}
	}
	clear(c.loose)
}

// decodeExport decodes the content of an export's key, or returns why it is unreadable.
func decodeExport(data []byte, id string, key mcs.Key) (exp *mcs.Export, problems []string, unreadable string) {
	page, err := record.Decode(data, id)
	switch {
	case err != nil:
		return nil, nil, err.Error()
	case len(page.Exports) == 1 && page.Exports[0].Key == key:
		return &page.Exports[0], page.Problems, ""
	case len(page.Problems) > 0:
		return nil, nil, page.Problems[0]
	}
	return nil, nil, "it is not one export of that service"
}

// observeHeartbeats passes the heartbeats since the last call to liveness, and adds the keys of
// clusters that became stale or live.
func (s *state) observeHeartbeats(now time.Time, changed engine.Keys) {
	heartbeats := make(map[string]bool, len(s.clusters))
	for id, c := range s.clusters {
		if !c.left && !c.forgotten {
			heartbeats[id] = c.heartbeat
		}
		c.heartbeat = false
		if c.isReturning && s.keyring.IsReturnSaved(id) {
			c.isReturning = false
			c.addHeld(changed)
		}
	}
	for _, id := range s.liveness.ObserveHeartbeats(now, heartbeats) {
		if c := s.clusters[id]; c != nil {
			c.addHeld(changed)
			if s.liveness.IsStale(id) && c.first != (trust.Time{}) {
				c.first = trust.Time{} // a later record would have been read
				c.settle(changed)
			}
		}
	}
}

// addHeld adds the keys of the cluster's exports.
func (c *cluster) addHeld(changed engine.Keys) {
	for key := range c.held {
		changed.Add(key)
	}
}

// gapTime is the time after which exports that differ from the record are listed. A cluster writes
// both in one transaction.
const gapTime = 10 * time.Second

// findGaps requests a list if the exports of another cluster were not those that its record names
// for gapTime: the watch may have skipped a change. If the list shows the same, another user has
// changed them, and the next list waits for the next change of the cluster.
func (s *state) findGaps(now time.Time) {
	for id, c := range s.clusters {
		hasGap := id != s.own && c.known && !c.left && c.record.Exports != nil && c.record.Exports.Digest != c.digest
		switch {
		case !hasGap:
			c.gapSince = time.Time{}
		case c.gapSince.IsZero():
			c.gapSince = now
		case now.Sub(c.gapSince) >= gapTime && now.Sub(s.relistedAt) >= relistPause && c.gapListed != c.record.Exports.Digest:
			s.relist, s.relistedAt, c.gapListed = true, now, c.record.Exports.Digest
		}
	}
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

// aliveOf returns a cluster's key alive.
func (s *state) aliveOf(id string) aliveState {
	if c := s.clusters[id]; c != nil {
		return c.alive
	}
	return aliveState{}
}

// memberOf returns a cluster's member record as etcd shows it, the zero value if there is none that
// can be used.
func (s *state) memberOf(id string) memberRecord {
	if c := s.clusters[id]; c != nil && c.known && c.member.revision != 0 && !c.member.refused {
		return c.record
	}
	return memberRecord{}
}

// view returns the exports of the other clusters under key.
func (s *state) view(key mcs.Key, imported []string) registry.View {
	v := registry.View{Order: s.order(key)}
	for _, c := range s.candidates(key, imported) {
		held, isHeld := c.held[key]
		switch {
		case c.id == s.own:
		case held.export == nil && c.shown[key].ignored:
			v.Set(c.id, registry.ClusterView{State: registry.Ignored})
		case held.export != nil && !c.isReturning:
			v.Set(c.id, registry.ClusterView{State: registry.Exports, Export: held.export, Liveness: s.liveness.Of(c.id), Properties: c.knownProperties()})
		case isHeld, c.mayExport(key, slices.Contains(imported, c.id)):
			v.Set(c.id, registry.ClusterView{State: registry.Unknown, Liveness: s.liveness.Of(c.id), Properties: c.knownProperties()})
		}
	}
	v.SetUnseen(imported, func(id string) bool { return id == s.own || s.isKnown(id) })
	return v
}

// knownProperties returns the cluster's properties, nil if no member record of it was read.
func (c *cluster) knownProperties() mcs.Properties {
	if !c.known {
		return nil
	}
	return c.properties.Decode(c.record.Properties)
}

// order returns the revisions at which the keys of the signed exports of key were created, by
// cluster, nil if there are none.
func (s *state) order(key mcs.Key) map[string]int64 {
	var out map[string]int64
	for _, c := range s.exporters[key] {
		if e := c.shown[key]; (e.signed || e.superseded) && e.created > 0 {
			if out == nil {
				out = map[string]int64{}
			}
			out[c.id] = e.created
		}
	}
	return out
}

// mayExport reports whether the cluster may have an export of key that is not held.
func (c *cluster) mayExport(key mcs.Key, imported bool) bool {
	if !c.known || c.left || c.complete && c.overflow == 0 {
		return false
	}
	_, isShown := c.shown[key]
	return isShown || imported
}

// isKnown reports whether the cluster's exports are known to this registry, also if there are none
// because it has left.
func (s *state) isKnown(id string) bool {
	c := s.clusters[id]
	if c == nil || !c.known || c.left {
		return s.keyring.HasEnded(id)
	}
	return s.keyring.IsLatest(s.name, id)
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
	for _, c := range s.clusters {
		for key := range c.held {
			keys.Add(key)
		}
		for key := range c.shown {
			keys.Add(key)
		}
	}
}

// membersWithProblems returns the members, sorted, with the problems of their keys.
func (s *state) membersWithProblems(now time.Time) []registry.Member {
	members := s.members()
	for i := range members {
		members[i].Problems = s.clusters[members[i].ClusterID].allProblems(now, s.handover)
	}
	return members
}

// members returns the members, sorted, without their problems.
func (s *state) members() []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(s.clusters)) {
		c := s.clusters[id]
		if c.left || c.forgotten {
			continue
		}
		members = append(members, registry.Member{
			ClusterID: id, UID: c.uid(), Version: c.record.Version, Key: s.keyOf(c), RefusedKey: c.member.refusedKeyText(),
			LastSeen: c.lastSeen, Joined: c.record.Joined, Heartbeat: c.record.Heartbeat,
			Stale: s.liveness.IsStale(id), NoRecord: !c.known, Properties: c.properties.Decode(c.record.Properties), Imports: c.record.Imports,
		})
	}
	return members
}

// uid returns the UID of the cluster, or of the one that holds its ID if it has no member record.
func (c *cluster) uid() string {
	if !c.known && c.alive.isHeld() {
		return c.alive.uid
	}
	return c.record.UID
}

// keyOf returns the public key of a cluster, "" if none is known.
func (s *state) keyOf(c *cluster) string {
	if pin, ok := s.keyring.Pin(c.id); ok && !s.isSelf(c.id) && pin.Key != (trust.Key{}) {
		return pin.Key.String()
	}
	if !c.known {
		return ""
	}
	return c.author.key.String()
}

// refusedKeyText returns the key that was refused, "" if there is none.
func (m memberState) refusedKeyText() string {
	if m.refusedKey == (trust.Key{}) {
		return ""
	}
	return m.refusedKey.String()
}

// allProblems returns the problems of a cluster's keys, one line each. handover is the time that
// the next process of the cluster has to write the key alive.
func (c *cluster) allProblems(now time.Time, handover time.Duration) []string {
	var lines []string
	switch {
	case c.member.problem != "":
		lines = append(lines, c.member.problem)
	case c.member.revision == 0:
		lines = append(lines, "the member record is missing")
	}
	switch {
	case c.alive.revision == 0 && now.Sub(c.lastSeen) < handover:
	case c.alive.revision == 0:
		lines = append(lines, "its lease expired: its controller does not run or cannot reach etcd")
	case c.alive.lease == 0:
		lines = append(lines, "its key alive has no lease")
	}
	if c.record.propertiesProblem != "" {
		lines = append(lines, c.record.propertiesProblem)
	}
	lines = append(lines, c.excessProblems()...)
	exportProblems := c.exportProblems()
	if len(exportProblems) > maxProblems {
		exportProblems = append(exportProblems[:maxProblems], fmt.Sprintf("and %d more", len(exportProblems)-maxProblems))
	}
	return append(lines, exportProblems...)
}

// exportProblems returns the problems of the exports, sorted.
func (c *cluster) exportProblems() []string {
	var lines []string
	for key, e := range c.shown {
		switch _, isLoose := c.loose[key]; {
		case registry.IsRefused(e.unreadable):
			lines = append(lines, e.unreadable)
		case e.unreadable != "":
			lines = append(lines, fmt.Sprintf("export %s cannot be used: %s", key, e.unreadable))
		case isLoose && !e.superseded && c.known && !c.left:
			lines = append(lines, fmt.Sprintf("export %s is ignored: it is older than one that was read before", key))
		}
		for _, problem := range e.problems {
			lines = append(lines, fmt.Sprintf("export %s: %s", key, problem))
		}
	}
	lines = slices.AppendSeq(lines, maps.Values(c.unrecognized))
	if missing := c.countMissing(); missing > 0 {
		lines = append(lines, fmt.Sprintf("%d exports are missing in etcd, and the cluster has not withdrawn them: they stay imported", missing))
	}
	slices.Sort(lines)
	return lines
}

// countMissing returns how many exports of the cluster etcd does not show.
func (c *cluster) countMissing() int {
	missing := 0
	for key := range c.loose {
		if _, isShown := c.shown[key]; !isShown {
			missing++
		}
	}
	return missing
}
