package etcd

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// mirror is the local copy of the clusterset's keys. The reader updates it, lookups and the writer
// read it. Its lock is taken after that of the outbox where both are needed.
type mirror struct {
	own string
	// problem is the reason why reading does not work.
	problem *engine.Problem
	// interval is the time between two reviews of all clusters while changes arrive.
	interval time.Duration

	mu    sync.Mutex
	state *state
	// latest is the latest change that was read.
	latest  seenChange
	lookups *engine.PendingLookups
	// readSignal is set when there are unread keys.
	readSignal engine.Signal
	// reviewed is the time of the last review of all clusters.
	reviewed time.Time
}

func newMirror(s *state, own string, interval time.Duration, log logr.Logger) *mirror {
	return &mirror{
		own: own, state: s, interval: interval, lookups: engine.NewPendingLookups(engine.MaxPendingLookups), readSignal: engine.NewSignal(),
		problem: engine.NewProblem(log, "Failed to read from etcd, retrying", "Reading from etcd works again", nil),
	}
}

// want makes the exports of a key be read that were ignored, if services are imported into its
// namespace now.
func (m *mirror) want(key mcs.Key) {
	if m.state.isWanted != nil && !m.state.isWanted(key.Namespace) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.want(key) {
		m.readSignal.Set()
	}
}

// dueReads returns the reads that have to be made next, and the revision of the mirror.
func (m *mirror) dueReads(limit int) (reads []dueRead, revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.dueReads(time.Now(), limit), m.state.revision
}

// applyRead applies what a read has found at the revision of the mirror.
func (m *mirror) applyRead(r dueRead, pairs []pair) update {
	m.verifyExports(pairs, true)
	m.mu.Lock()
	defer m.mu.Unlock()
	u := update{own: map[mcs.Key]int64{}, changed: engine.Keys{}}
	m.state.applyRead(time.Now(), r, pairs, u.changed)
	m.complete(&u, false)
	return u
}

// lookup returns the view of key without the status of the own export.
func (m *mirror) lookup(key mcs.Key, imported []string) (registry.View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.state.synced {
		return registry.View{}, m.lookups.NotSynced(key, m.problem.Err())
	}
	return m.lookups.Lookup(key, imported, m.state.view, m.state.statusOf), nil
}

// end is called when nothing is read any more.
func (m *mirror) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.belief.End()
}

// addResolvedLookups adds the keys of pending lookups that have another answer now.
func (m *mirror) addResolvedLookups(changed engine.Keys) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.synced {
		m.lookups.AddChanged(changed, m.state.statusOf)
	}
}

// members returns the members, sorted.
func (m *mirror) members() ([]registry.Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.state.synced {
		return nil, fmt.Errorf("listing members: %w", registry.NotSynced(m.problem.Err()))
	}
	return m.state.membersWithProblems(time.Now()), nil
}

// addAllKeys adds every key that any cluster exports.
func (m *mirror) addAllKeys(keys engine.Keys) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.addAllKeys(keys)
}

// revision returns the revision up to which everything was read.
func (m *mirror) revision() int64 { return m.ownKeys().revision }

// ownKeys are the keys by which the own cluster holds its ID, as of one revision.
type ownKeys struct {
	// revision is 0 while they are not known.
	revision int64
	alive    aliveState
	member   memberRecord
	// rival is the member record of another cluster with this ID, the zero value if there is none;
	// rivalSeen is the time at which it was first read.
	rival     memberRecord
	rivalSeen time.Time
	// latest is the latest heartbeat or generation of the member records of this cluster that were
	// read, by whichever process.
	latest int64
}

// ownKeys returns this cluster's own keys.
func (m *mirror) ownKeys() ownKeys {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := ownKeys{revision: m.state.revision, alive: m.state.ownAlive(), member: m.state.ownMember()}
	keys.rival, keys.rivalSeen, keys.latest = m.state.me.rival, m.state.me.rivalSeen, m.state.me.latest
	return keys
}

// ownExport returns this cluster's export of key as etcd has it.
func (m *mirror) ownExport(key mcs.Key) ownExport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.ownExport(key)
}

// ownShownKeys returns the keys of this cluster's exports in etcd.
func (m *mirror) ownShownKeys() []mcs.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.state.clusters[m.own]; c != nil {
		return slices.Collect(maps.Keys(c.shown))
	}
	return nil
}

// forget drops a cluster until its next record, and returns the keys with a View that may have
// changed.
func (m *mirror) forget(clusterID string) engine.Keys {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := engine.Keys{}
	m.state.forget(time.Now(), clusterID, changed)
	return changed
}

// update is the result of one read.
type update struct {
	// hasOwn is true if all keys of this cluster were read, and rewound if etcd was set back to an
	// earlier state.
	hasOwn, rewound bool
	// revision and alive are those of the mirror after the update.
	revision int64
	alive    aliveState
	// own are the changed exports of this cluster, with the revision of the change.
	own        map[mcs.Key]int64
	ownExports int
	// refused counts the records of other clusters that were refused.
	refused int
	// hasNewProcess is set if another cluster has a new process, clusters is the number of
	// clusters.
	hasNewProcess bool
	clusters      int
	// members are known if all clusters were reviewed.
	reviewed bool
	members  []registry.Member
	// changed are the keys with a View that may have changed.
	changed engine.Keys
}

// seenChange identifies a change that was read.
type seenChange struct {
	key      string
	revision int64
	digest   [sha256.Size]byte
}

// observeLatest records the latest of the changes. The caller holds m.mu.
func (m *mirror) observeLatest(changes []pair) {
	for _, p := range changes {
		if !p.deleted && !p.dropped && p.revision > m.latest.revision {
			m.latest = seenChange{key: p.key, revision: p.revision, digest: sha256.Sum256(p.value)}
		}
	}
}

// latestChange returns the latest change that was read, the zero value if there was none.
func (m *mirror) latestChange() seenChange {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest
}

// goBack makes the latest change that was read the revision up to which everything was read.
// Nothing but deletions was read after it.
func (m *mirror) goBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.revision = m.latest.revision
}

// begin applies a head. isSetBack is set if etcd was set back to an earlier state.
func (m *mirror) begin(h head, isSetBack bool) update {
	m.verifyExports(h.pairs, isSetBack || h.revision < m.revision())
	return m.applyAll(func(u *update) {
		u.hasOwn, u.rewound = true, m.state.begin(time.Now(), h, isSetBack, u.changed)
		m.latest = seenChange{}
		m.observeLatest(h.pairs)
	})
}

// applyList applies a list of all keys.
func (m *mirror) applyList(list []pair) update {
	m.verifyExports(list, false)
	return m.applyAll(func(u *update) {
		m.state.applyList(time.Now(), list, u.changed)
		m.observeLatest(list)
	})
}

// applyAll applies what was read of all clusters.
func (m *mirror) applyAll(apply func(*update)) update {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, wasSynced := update{changed: engine.Keys{}}, m.state.synced
	apply(&u)
	if m.state.synced && !wasSynced {
		m.state.addAllKeys(u.changed)
	}
	m.complete(&u, true)
	return u
}

// known returns the other clusters of which etcd has shown a key, or the pins know.
func (m *mirror) known() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := slices.AppendSeq(m.state.keyring.Members(m.state.name), maps.Keys(m.state.clusters))
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == m.own })
}

// apply applies an answer of the watch. behind reports whether it has an earlier revision than the
// mirror; then nothing is applied.
func (m *mirror) apply(changes []pair, revision int64) (u update, behind bool) {
	m.verifyExports(changes, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision < m.state.revision {
		return u, true
	}
	u = update{own: map[mcs.Key]int64{}, changed: engine.Keys{}}
	m.observeLatest(changes)
	m.state.touch(changes)
	m.state.apply(time.Now(), changes, u.changed)
	for _, p := range changes {
		if key, ok := m.state.layout.exportKey(m.own, p.key); ok {
			u.own[key] = p.revision
			u.changed.Add(key)
		}
		// An answer may have a later revision than its changes, and more changes come in the next.
		m.state.revision = max(m.state.revision, p.revision)
	}
	if len(changes) == 0 {
		m.state.revision = revision
	}
	m.complete(&u, len(changes) == 0)
	return u, false
}

// exportsOf returns the exports of other clusters whose keys have changed.
func (m *mirror) exportsOf(changes []pair) (exports []mcs.Export) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range changes {
		id := m.state.layout.clusterOf(p.key)
		key, isExport := m.state.layout.exportKey(id, p.key)
		if exp := m.state.belief.ExportOf(id, key); isExport && !p.deleted && exp != nil {
			exports = append(exports, *exp)
		}
	}
	return exports
}

// complete adds what follows from any read. It reviews all clusters if reviews is set, which it is
// for heads, lists and the answers without changes that are requested at intervals, or if that is
// due: 1,000 clusters write 83 heartbeats a second, each of which is an answer. The caller holds
// m.mu.
func (m *mirror) complete(u *update, reviews bool) {
	if now := time.Now(); m.state.synced && (reviews || now.Sub(m.reviewed) >= m.interval) {
		m.reviewed, u.reviewed = now, true
		m.state.observeHeartbeats(now, u.changed)
		m.state.findRoom(now)
		u.members = m.state.members()
	}
	u.revision, u.alive = m.state.revision, m.state.ownAlive()
	u.ownExports, u.refused = m.state.countExports(m.own), m.state.refused
	u.hasNewProcess, u.clusters = m.state.hasNewProcess, len(m.state.clusters)
	m.state.refused, m.state.hasNewProcess = 0, false
	if m.state.hasDue {
		m.readSignal.Set()
	}
}

// markUnanswered records that etcd did not answer.
func (m *mirror) markUnanswered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.step(time.Now(), nil, belief.Failed{}, engine.Keys{})
}
