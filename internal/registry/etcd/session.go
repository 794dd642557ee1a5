package etcd

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// errDisplaced means that a process that began later writes for this cluster.
var errDisplaced = errors.New("another controller writes to etcd under this cluster's ID and with the same UID of namespace kube-system: " +
	"a replica that was elected since, or a clone of the cluster")

// session is the hold of this process on the cluster ID: the claim, the lease and the heartbeats.
// It is safe for concurrent use.
type session struct {
	clusterID string
	// uid is this cluster's.
	uid                  string
	interval, staleAfter time.Duration
	signer               *trust.Signer
	// wall is the clock of the records.
	wall func() time.Time
	// joined is the time at which the cluster became a member under this ID for the first time,
	// zero if it never did.
	joined time.Time

	mu    sync.Mutex
	claim claim
	// lease is the lease that is renewed, 0 while there is none.
	lease int64
	// record is the member record as last written or about to be written, written as last written,
	// at recordRevision; heartbeatAt is the time of the next heartbeat.
	record, written memberRecord
	recordRevision  int64
	heartbeatAt     time.Time
	// answeredAt is the time at which this process last answered a new process of another cluster.
	answeredAt time.Time
	// saved is the heartbeat that the next process finds. isBegun is true once that is one of this
	// process.
	saved   engine.SavedHeartbeat
	isBegun bool
	// isExportsTurn is set if the next task is to write exports although a heartbeat is due. Their
	// request writes the record too.
	isExportsTurn bool
	// settleAt is the time at which this process begins to state all exports of the cluster in the
	// record; settled is true once it has done so. Until then exports may be missing in etcd, which
	// may have been restored or emptied, or be there that are to be withdrawn. The controller
	// publishes all exports before Run (membership.PublishAllFunc), so that outbox.isDecided knows
	// each of them.
	settleAt time.Time
	settled  bool
	// releasedAt is since when no process holds the ID that a later process of this cluster held,
	// zero if one holds it.
	releasedAt time.Time
}

// settleHeartbeats is how many heartbeats a process waits until it states all exports of the
// cluster.
const settleHeartbeats = 1.25

func newSession(cfg Config) *session {
	wall := cfg.wall
	if wall == nil {
		wall = time.Now
	}
	began := wall()
	if next := time.UnixMilli(cfg.SavedHeartbeat.Next(began)); next.After(began) {
		began = next // the clock is behind that of a previous process
	}
	return &session{
		clusterID: cfg.Identity.ClusterID, uid: cfg.Identity.UID, interval: cfg.HeartbeatInterval, staleAfter: cfg.StaleAfter,
		signer: cfg.Signer, wall: wall, joined: cfg.Joined.UTC(), saved: cfg.SavedHeartbeat,
		claim: newClaim(cfg.Identity.UID, began), record: newMemberRecord(cfg.Identity, cfg.Version).after(began.UnixMilli()),
	}
}

// task is the next request.
type task struct {
	// join writes alive and member, if alive still has revision seen.
	join bool
	seen int64
	// heartbeat writes member, batch exports as of generation; both demand the fence.
	heartbeat  bool
	batch      []operation
	generation int64
	fence      int64
	// mayWrite is true if exports may be written.
	mayWrite bool
}

// nextTask returns the next task that does not concern exports, or the reason why nothing may be
// written.
func (s *session) nextTask(now time.Time, own ownKeys) (next task, obstacle error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.claim.fence != 0:
		return s.nextFencedTask(now, own), nil
	case own.revision == 0:
		return task{}, nil
	}
	mustYield := s.mustYield(own, now)
	switch s.claim.evaluate(own.alive) {
	case heldByOther:
		s.claim.giveWay()
		if own.rival.UID == own.alive.uid && s.isOlderThan(own.rival) {
			return task{join: true, seen: own.alive.revision}, nil
		}
		return task{}, &registry.DuplicateIDError{ClusterID: s.clusterID, OtherUID: own.alive.uid}
	case displaced:
		return task{}, errDisplaced
	}
	if mustYield {
		return task{}, errDisplaced
	}
	if s.mustWaitFor(own, now) {
		return task{}, &registry.DuplicateIDError{ClusterID: s.clusterID, OtherUID: own.rival.UID}
	}
	return task{join: true, seen: own.alive.revision}, nil
}

// yieldHeartbeats is how many heartbeats the ID of a later process that has ended is left to the
// next one: as long as the lease of a process that is killed lasts at least.
const yieldHeartbeats = leaseHeartbeats - 1

// mustYield reports whether the ID is left to the next process of this cluster: one that began
// later than this one has just given it up, or one has written while this one was cut off. This one
// is a clone, or has lost its leader election. The caller holds s.mu.
func (s *session) mustYield(own ownKeys, now time.Time) bool {
	isOutwritten := s.claim.held && own.latest > s.record.latest()
	if own.alive.isHeld() || s.claim.latest <= s.claim.number && !isOutwritten {
		return false
	}
	if s.releasedAt.IsZero() {
		s.releasedAt = now
	}
	return now.Sub(s.releasedAt) < yieldHeartbeats*s.interval
}

// isLeftToNext is mustYield for a process that leaves.
func (s *session) isLeftToNext(own ownKeys, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mustYield(own, now)
}

// mustWaitFor reports whether another cluster, with another key, has the ID by its member record:
// the others believe this cluster only after that one has left or was silent for as long. The
// caller holds s.mu.
func (s *session) mustWaitFor(own ownKeys, now time.Time) bool {
	return !s.claim.held && own.rival.UID != "" && !own.rival.Farewell && now.Sub(own.rivalSeen) < s.staleAfter && !s.isOlderThan(own.rival)
}

// isOlderThan reports whether this cluster was a member under this ID before another one that uses
// it: then it takes the ID back. The caller holds s.mu.
func (s *session) isOlderThan(rival memberRecord) bool {
	joined := s.record.Joined
	if joined.IsZero() {
		joined = s.joined
	}
	return !joined.IsZero() && joined.Before(rival.Joined)
}

// nextFencedTask returns the next task while this process holds the ID. The caller holds s.mu.
func (s *session) nextFencedTask(now time.Time, own ownKeys) task {
	if own.revision >= s.recordRevision && own.member.time() != s.written.time() {
		s.heartbeatAt = now // the record was removed or changed
	}
	heartbeat := !now.Before(s.heartbeatAt) && !s.isExportsTurn
	s.isExportsTurn = false
	// Everything written before the fence is known only when the fence itself has been read.
	return task{fence: s.claim.fence, heartbeat: heartbeat, mayWrite: !heartbeat && own.revision >= s.claim.fence}
}

// observe compares the fence with alive as of revision, and reports whether this process has lost
// it.
func (s *session) observe(alive aliveState, revision int64) (lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alive.isHeld() {
		s.releasedAt = time.Time{}
	}
	if lost = s.claim.observe(alive, revision); lost && alive.isHeld() && !s.claim.leases[alive.lease] {
		s.settled, s.settleAt = false, time.Time{} // another process changes the exports
	}
	return lost
}

// aliveValue returns the value of the key alive as this process writes it.
func (s *session) aliveValue() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return aliveValue(s.uid, s.claim.number)
}

// acquire records that this process wrote alive and member at revision.
func (s *session) acquire(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claim.acquire(revision)
	s.recordRevision, s.written = revision, s.record
}

// trySettle reports whether the record states all exports. It does so from settleAt, as soon as
// each was compared with the desired one. It is called after the first head.
func (s *session) trySettle(now time.Time, isDecided func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled || s.claim.fence == 0 {
		return s.settled
	}
	if s.settleAt.IsZero() {
		s.settleAt = now.Add(time.Duration(settleHeartbeats * float64(s.interval)))
	}
	s.settled = !now.Before(s.settleAt) && isDecided()
	return s.settled
}

// isSettled reports whether the record states all exports.
func (s *session) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

// currentFence returns the revision of alive as this process wrote it last, 0 when it may not
// write.
func (s *session) currentFence() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.fence
}

// requireHeartbeat has the record written at once if it does not state these exports.
func (s *session) requireHeartbeat(now time.Time, set *exportSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.fence != 0 && !equalSets(s.record.Exports, set) {
		s.heartbeatAt = now
	}
}

// dropFence requires that the next write rewrites the key alive.
func (s *session) dropFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claim.dropFence()
}

// nextGeneration returns a generation later than all before. The heartbeat of the next record is
// later than those before too.
func (s *session) nextGeneration(own ownKeys) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = s.record.after(own.latest) // of a previous process, or of a clone
	return s.record.nextGeneration(s.wall())
}

// nextRecord returns the signed member record with a new heartbeat, which states the exports in
// set, nil if they are not known, as of a generation.
func (s *session) nextRecord(now time.Time, own ownKeys, set *exportSet, generation int64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.Joined.IsZero() {
		s.setJoined(own)
	}
	if s.record.Properties == "" && own.member.UID == s.uid {
		s.record.Properties = own.member.Properties // of the previous process, until setProperties
	}
	if own.member.UID == s.uid {
		// of the previous process, until setImports
		s.record.Imports = cmp.Or(s.record.Imports, own.member.Imports)
	}
	s.record = s.record.withHeartbeat(s.wall())
	s.record.Exports, s.record.Generation = set, generation
	s.heartbeatAt = now.Add(s.interval)
	return signMember(s.signer, s.record)
}

// setProperties sets the properties of the record, which is written at once if they differ.
func (s *session) setProperties(now time.Time, properties mcs.Properties) {
	published, _ := properties.Publishable()
	s.mu.Lock()
	defer s.mu.Unlock()
	if encoded := published.Encode(); s.record.Properties != encoded {
		s.record.Properties, s.heartbeatAt = encoded, now
	}
}

// setImports sets the report of imports that the next record has.
func (s *session) setImports(report mcs.ImportReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record.Imports = report
}

// setJoined sets the join time of the record: a cluster that was a member before keeps it, and one
// that takes the place of another cluster joined after it, whatever their clocks show. The caller
// holds s.mu.
func (s *session) setJoined(own ownKeys) {
	if own.member.UID == s.uid && !own.member.Farewell {
		s.record.Joined = own.member.Joined
	}
	switch {
	case !s.joined.IsZero() && (s.record.Joined.IsZero() || s.joined.Before(s.record.Joined)):
		s.record.Joined = s.joined
	case s.record.Joined.IsZero() && !own.rival.Joined.Before(s.wall()):
		s.record.Joined = own.rival.Joined.Add(time.Millisecond)
	}
}

// farewell returns the signed last record of this cluster, which is later than shown and all others
// that were read.
func (s *session) farewell(own ownKeys, shown memberRecord) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.record.after(max(own.latest, shown.latest()))
	last.Generation, last.Exports, last.Farewell = last.nextGeneration(s.wall()), nil, true
	s.record = last.withHeartbeat(s.wall())
	return signMember(s.signer, s.record)
}

// unsaved returns the heartbeat to save before the record is written. due reports whether it is
// time to: also when the process begins, so that the next one has a greater number, whatever its
// clock shows.
func (s *session) unsaved() (next engine.SavedHeartbeat, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, due = s.saved.Advance(s.record.latest(), s.wall())
	return next, due || !s.isBegun || s.record.Farewell // which may be far from the last one
}

// recordSaved records that a heartbeat was saved.
func (s *session) recordSaved(saved engine.SavedHeartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved, s.isBegun = saved, true
}

// answer has the record written soon, at most once in a heartbeat interval: a new process of
// another cluster cannot know before that it has read the latest one.
func (s *session) answer(now time.Time, clusters int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.answeredAt) < s.interval {
		return
	}
	s.answeredAt = now
	if at := now.Add(engine.AnswerDelay(s.clusterID, clusters, s.interval)); at.Before(s.heartbeatAt) {
		s.heartbeatAt = at
	}
}

// recordWritten records that the member record was written at revision. If that took longer than a
// heartbeat interval, exports have their turn before the next one.
func (s *session) recordWritten(now time.Time, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordRevision, s.written = revision, s.record
	s.isExportsTurn = !now.Before(s.heartbeatAt)
}

// postponeHeartbeat schedules the next heartbeat after a failed one.
func (s *session) postponeHeartbeat(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heartbeatAt = now.Add(s.interval / 4)
}

// untilHeartbeat returns the time until the next heartbeat.
func (s *session) untilHeartbeat(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.claim.fence == 0:
		return s.interval
	case !s.settled && now.Before(s.settleAt):
		return min(s.heartbeatAt.Sub(now), s.settleAt.Sub(now))
	}
	return s.heartbeatAt.Sub(now)
}

// currentLease returns the lease that is renewed, 0 if there is none.
func (s *session) currentLease() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// setLease sets a new lease.
func (s *session) setLease(lease int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = lease
	s.claim.leases[lease] = true
}

// loseLease drops a lease that has expired, if it is the current one.
func (s *session) loseLease(lease int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == lease {
		s.lease = 0
		s.claim.dropFence()
	}
}

// owner is the owner of the keys below this cluster's prefix.
type owner int

const (
	// ownerThis is this cluster.
	ownerThis owner = iota
	// ownerOther is another cluster, or another process of this one.
	ownerOther
	// ownerUnclear is a previous process of this cluster or a live clone.
	ownerUnclear
)

// ownerOf returns the owner according to the key alive and the UID of the member record, "" if that
// cannot be read.
func (s *session) ownerOf(alive aliveState, memberUID string) owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case alive.isHeld() && s.claim.leases[alive.lease]:
		return ownerThis
	case alive.isHeld() && (alive.uid != s.uid || s.claim.held && !s.claim.isLaterThan(alive)):
		return ownerOther
	case alive.isHeld():
		return ownerUnclear
	// No process holds the ID: this one did, or the member record names the last one.
	case s.claim.held, memberUID == s.uid:
		return ownerThis
	}
	return ownerOther
}
