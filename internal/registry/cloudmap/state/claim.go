package state

import (
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// claim decides whether this process holds the cluster ID. Of two clusters with one ID only the
// older one writes, and of two processes with one key only the earlier one.
//
//	Observing ──no record, a silent one, or one of a previous process──▶ Acquiring ──our record is shown──▶ Held
//	    ▲                                                                    │                              │
//	    └──── a heartbeat of a cluster with an older claim, or of an earlier process with the same key ────┘
type claim struct {
	// keys are the own key and the one before it.
	keys []trust.Key
	// process is the Process of the own record.
	process string
	// rivalSilence is the time without a heartbeat after which another cluster with this ID, or a
	// clone of this one, counts as dead.
	rivalSilence time.Duration
	// audit is the time between two reads of the own catalog by the cluster that has the ID.
	audit time.Duration
	// settle is the time without another cluster's record before the ID is claimed. It is longer
	// than the delay of reads: the previous process of this cluster may have written just before,
	// and this process must not overwrite its pages with fewer exports.
	settle time.Duration
	// young is the time after a claim in which another process or cluster with this ID would show.
	// Until then nothing is withdrawn.
	young time.Duration
	// pause is the time without a read after which another process or cluster with this ID may have
	// written in between and may still have to show.
	pause time.Duration
	// isEarlierOwner reports whether a key is that of the cluster that held the ID before this one.
	isEarlierOwner func(trust.Key) bool
	// joined is set if this cluster is a member under this ID: it claims the ID at once and gives
	// way to the earlier owner only.
	joined bool
	// isFirst is set if there was no previous process.
	isFirst bool
	// hasHeld is set once the own record has been shown: from then on other clusters may know the
	// exports.
	hasHeld bool

	state ClaimState
	// claimed is when the ID was claimed.
	claimed time.Time
	// lastRead is when the record was read last, and resumed the first read after a pause in which
	// it could not be read.
	lastRead, resumed time.Time
	// unrivalled is the time since which no other cluster's record was read.
	unrivalled time.Time
	// rivalled is set if another cluster's record with pages was read.
	rivalled bool
	// unprovenSince is since when the own catalog, in which only clusters with this ID can write,
	// has shown no copy of another cluster's record; zero if it shows one or was not read.
	unprovenSince time.Time
	// rival is the other cluster's record as last seen to change, and when.
	rival   format.Member
	changed time.Time
	// owner is the latest record of the cluster that has the ID while this process observes, and
	// ownerAt when it was read first: zero without one, and after the cluster has signed a
	// farewell. Records of others count once it has been silent for rivalSilence: any member can
	// write them.
	owner   format.Member
	ownerAt time.Time
	// other is the latest record of another process of this cluster that was read since the ID was
	// claimed and is not later than the own one, and otherAt when it was read, zero if there was
	// none.
	other   format.Member
	otherAt time.Time
	// late is the Process of another process of this cluster that wrote once after this one had
	// claimed the ID.
	late string
	// taken is the record in whose place ours was written: when it is read again, the read is
	// stale.
	taken format.Member
}

// ClaimState is the state of a claim.
type ClaimState int

// The states of a claim, in this order.
const (
	Observing ClaimState = iota
	Acquiring
	Held
)

// youngBeats is the number of heartbeats, at the longest interval, after which a claim is not young
// any more: another process with the ID has written by then.
const youngBeats = 1.25

// young returns the time after a claim in which it is young, and pause the time without a read
// after which it is young again.
func (c Config) young() time.Duration {
	return time.Duration(youngBeats * float64(max(c.HeartbeatInterval, c.LongestHeartbeatInterval)))
}

func (c Config) pause() time.Duration { return max(c.youngPause(), c.LongestPollInterval*3/2) }

// youngPause is the longest time between two reads while the claim is young, as long as they do not
// fail: polls are not relaxed until it is final (Peers).
func (c Config) youngPause() time.Duration { return max(c.young()/2, c.PollInterval*3/2) }

// youngInterval is the shortest interval between two heartbeats while the claim of the ID is young,
// in heartbeat intervals.
const youngInterval = 2

// YoungHeartbeatInterval returns the time between two heartbeats while the claim of the ID is
// young. It is longer than the time after which the claim is not young any more, with a poll: at
// the same pace as another process with this ID, this one could overwrite each of its records
// before it reads one. The other clusters must not take this one for stale, so half of StaleAfter
// is the limit.
func (c Config) YoungHeartbeatInterval() time.Duration {
	return max(youngInterval*c.HeartbeatInterval, min(c.young()+c.youngPause(), c.StaleAfter/2))
}

func newClaim(cfg Config) claim {
	c := claim{
		process: cfg.Process, rivalSilence: cfg.StaleAfter, audit: cfg.Intervals.Audit, settle: cfg.Intervals.Settle,
		young: cfg.young(), pause: cfg.pause(), joined: !cfg.Joined.IsZero(),
		isEarlierOwner: func(key trust.Key) bool {
			pin, ok := cfg.Keyring.Pin(cfg.Identity.ClusterID)
			return ok && pin.Key == key && !pin.Left
		},
	}
	if cfg.Signer != nil {
		c.keys = cfg.Signer.Keys()
	}
	return c
}

// isOurs reports whether a record was signed by this cluster, in this process or another one.
func (c *claim) isOurs(r format.Member) bool { return slices.Contains(c.keys, r.Key) }

// isMine reports whether this process wrote a record.
func (c *claim) isMine(r format.Member) bool { return c.isOurs(r) && r.Process == c.process }

// isOfOtherProcess reports whether another process of this cluster wrote a record, nil for none.
func (c *claim) isOfOtherProcess(r *format.Member) bool {
	return r != nil && c.isOurs(*r) && !c.isMine(*r)
}

// isYoung reports whether another process or cluster with this ID may not have shown yet: no read
// of the members is late enough.
func (c *claim) isYoung() bool {
	return !c.isFirst && c.state != Observing && !c.isFinal()
}

// isFinal reports whether every other cluster that claimed the ID at the same time has been read:
// from then on none gets it. This is so for the first cluster of a clusterset as well, since two
// can be the first.
func (c *claim) isFinal() bool {
	return c.lastRead.Sub(c.youngSince()) >= c.young && (c.otherAt.IsZero() || c.lastRead.Sub(c.otherAt) >= c.rivalSilence)
}

// youngSince returns the beginning of the time that counts: after a pause in which the record was
// not read, another process may still have to show.
func (c *claim) youngSince() time.Time {
	if c.resumed.After(c.claimed) {
		return c.resumed
	}
	return c.claimed
}

// observeRead records a read of the members.
func (c *claim) observeRead(now time.Time) {
	if now.Sub(c.lastRead) > c.pause {
		c.resumed = now
	}
	c.lastRead = now
}

// free reports whether observe would claim the ID now.
func (c *claim) free(now time.Time, shown *format.Member) bool {
	if c.state != Observing {
		return false
	}
	if c.isUnowned(now, shown) {
		settle := c.settleTime(shown)
		return settle == 0 || !c.unrivalled.IsZero() && now.Sub(c.unrivalled) >= settle
	}
	if shown == nil {
		return false
	}
	if !c.isOurs(*shown) && (c.joined && !c.isEarlierOwner(shown.Key) || c.isUnproven(now)) {
		return true
	}
	return shown.IsSameWrite(c.rival) && now.Sub(c.changed) >= c.rivalSilence
}

// settleTime returns the time without another cluster's record before the ID is claimed.
func (c *claim) settleTime(shown *format.Member) time.Duration {
	if shown == nil && c.rivalled && !c.joined {
		// Another writer removed the record: a cluster that leaves says so. A live cluster writes
		// it again.
		return max(c.settle, c.rivalSilence)
	}
	return c.settle
}

// proofSilences is after how many times of rivalSilence, or of the interval of audits if that is
// longer, another cluster with this ID has written a copy of its record into the catalog: it does
// so when it joins, and its audits write one that was removed or overwritten.
const proofSilences = 2

// observeProof records a read of the own catalog that shows this copy of a record, nil if there is
// none.
func (c *claim) observeProof(now time.Time, found *format.Member) {
	switch {
	case found != nil && !c.isOurs(*found):
		c.unprovenSince = time.Time{}
	case c.unprovenSince.IsZero():
		c.unprovenSince = now
	}
}

// isUnproven reports whether the records of another cluster with this ID do not count: any member
// of the clusterset can have written them.
func (c *claim) isUnproven(now time.Time) bool {
	return !c.unprovenSince.IsZero() && now.Sub(c.unprovenSince) >= proofSilences*max(c.rivalSilence, c.audit)
}

// isUnowned reports whether no other cluster and no clone of this one has the ID, by its record.
func (c *claim) isUnowned(now time.Time, shown *format.Member) bool {
	if shown == nil {
		return !c.isCloneLive(now)
	}
	if shown.Farewell {
		return !c.isForeignFarewell(now, *shown)
	}
	return c.isOurs(*shown) && c.rival.Process != shown.Process && !c.isCloneLive(now)
}

// isCloneLive reports whether this process gave way to another process of this cluster, whose
// record has changed within rivalSilence. A read may lack that record, or another user may have
// deleted it or written an earlier one: the process writes it again.
func (c *claim) isCloneLive(now time.Time) bool {
	return c.state == Observing && c.isOurs(c.rival) && now.Sub(c.changed) < c.rivalSilence
}

// isForeignFarewell reports whether a farewell is not the word of the cluster that has the ID:
// another cluster has signed it, or it is a replay.
func (c *claim) isForeignFarewell(now time.Time, shown format.Member) bool {
	if c.state != Observing || c.owner.UID == "" || now.Sub(c.ownerAt) >= c.rivalSilence {
		return false
	}
	return shown.Farewell && (shown.Key != c.owner.Key || !shown.IsLaterThan(c.owner))
}

// observeOwner records a record of the cluster that has the ID.
func (c *claim) observeOwner(now time.Time, shown *format.Member) {
	if c.state != Observing || shown == nil || c.isOurs(*shown) {
		return
	}
	isOwner := shown.Key == c.owner.Key
	switch {
	case shown.Farewell && isOwner && shown.IsLaterThan(c.owner):
		c.owner = format.Member{}
	case shown.Farewell:
	case c.owner.UID == "", isOwner && shown.IsLaterThan(c.owner), !isOwner && now.Sub(c.ownerAt) >= c.rivalSilence:
		c.owner, c.ownerAt = *shown, now
	}
}

// observe records a read of the record with this cluster's ID, nil if there is none. ours is the
// own record as last written. It reports whether the own record must be written now.
func (c *claim) observe(now time.Time, shown *format.Member, ours format.Member) (write bool) {
	c.observeRead(now)
	if c.state == Held && c.isFinal() {
		c.joined = true
	}
	isForeign := shown != nil && c.isForeignFarewell(now, *shown)
	c.observeOwner(now, shown)
	switch {
	case isForeign:
		return c.claimIfFree(now, shown, c.owner)
	case shown == nil || shown.Farewell:
		return c.observeNone(now, shown)
	case !c.isOurs(*shown):
		c.unrivalled, c.rivalled = time.Time{}, shown.Pages != format.Digests{}
		return c.observeRival(now, *shown, ours)
	case c.isMine(*shown):
		switch {
		case c.state == Acquiring:
			c.state, c.hasHeld = Held, true
			c.rival = format.Member{}
		case c.state == Observing && now.Sub(c.changed) >= c.rivalSilence:
			// a late write of this process has replaced the record of a rival that writes none any
			// more
			c.acquire(now, format.Member{})
			return true
		}
		return false
	}
	return c.observeProcess(now, *shown, ours)
}

// observeNone records that there is no record with this ID, or a farewell.
func (c *claim) observeNone(now time.Time, shown *format.Member) (write bool) {
	if c.claimIfFree(now, shown, c.owner) {
		return true
	}
	if c.state == Observing {
		if shown != nil || !c.isCloneLive(now) {
			c.rival = format.Member{}
		}
		if c.unrivalled.IsZero() {
			c.unrivalled = now
		}
	}
	return false
}

// claimIfFree claims the ID in place of a record, if it would be free now, and reports whether it
// did.
func (c *claim) claimIfFree(now time.Time, shown *format.Member, taken format.Member) bool {
	if !c.free(now, shown) {
		return false
	}
	c.acquire(now, taken)
	return true
}

// observeProcess records a record of another process with the own key: a previous one, or a clone
// of this one.
func (c *claim) observeProcess(now time.Time, shown, ours format.Member) (write bool) {
	if c.free(now, &shown) {
		c.acquire(now, shown)
		return true
	}
	if c.state == Observing {
		if c.unrivalled.IsZero() {
			c.unrivalled = now
		}
		isNext := c.isOurs(c.rival) && shown.IsLaterThan(c.rival) // the rival has restarted
		if isNext || shown.Process == c.rival.Process && !shown.IsSameWrite(c.rival) {
			c.rival, c.changed = shown, now
		}
		return false
	}
	if !shown.IsLaterThan(ours) {
		c.observeEarlier(now, shown)
		return false
	}
	if format.IsEarlierProcess(c.process, shown.Process) {
		beats := !shown.IsSameWrite(c.rival)
		c.rival = shown
		return beats // it sees ours and gives way
	}
	if c.late != shown.Process {
		// It may be the last write of a previous process with another clock. A clone writes again
		// when it sees ours.
		c.late, c.claimed = shown.Process, now
		return true
	}
	c.state, c.rival, c.changed = Observing, shown, now
	return false
}

// observeEarlier records a record of another process that is not later than the own one. Late reads
// show those of a previous process. New ones are written by a cluster whose clone this process is,
// with a clock that is behind, and which does not read the record of this process: until it does or
// is silent, nothing is withdrawn. This process does not give way, because another user may have
// written the records again.
func (c *claim) observeEarlier(now time.Time, shown format.Member) {
	if shown.IsLaterThan(c.other) {
		c.other, c.otherAt = shown, now
	}
}

// isHeldBack reports whether a page that is found must not be adopted yet, because another process
// may still show, and its latest record that was read announces a later page: another user has
// written this one again, and it may lack what the other process exports. After rivalSilence
// another process would have shown, however late the reads are.
func (c *claim) isHeldBack(now time.Time, page int, found *storedPage) bool {
	announced := c.other.Pages[page]
	isPage := announced != "" && announced != format.UnwrittenDigest && c.isOurs(c.other)
	// A page of the generation of the record is later than the announced one: its write had no
	// answer when the record was written.
	isEarlier := found.digest != announced && found.generation < c.other.Generation
	return isPage && isEarlier && c.isYoung() && now.Sub(c.claimed) < c.rivalSilence
}

// acquire claims the ID in place of a record.
func (c *claim) acquire(now time.Time, taken format.Member) {
	c.state, c.claimed, c.rival, c.taken, c.owner = Acquiring, now, format.Member{}, taken, format.Member{}
	c.other, c.otherAt = taken, time.Time{}
}

func (c *claim) observeRival(now time.Time, rival, ours format.Member) (write bool) {
	if c.free(now, &rival) {
		c.acquire(now, rival)
		return true
	}
	beats := !rival.IsSameWrite(c.rival)
	if beats {
		c.rival, c.changed = rival, now
	}
	switch {
	case c.state == Observing, rival.IsSameWrite(c.taken):
		return false
	case ours.HasOlderClaimThan(rival), c.joined && !c.isEarlierOwner(rival.Key), c.isUnproven(now):
		// Once for each of its writes: it sees ours and gives way.
		return beats
	}
	c.state = Observing
	return false
}

// refused returns the UID of the other cluster, or of the clone, that holds this cluster's ID, ""
// if there is none.
func (c *claim) refused() string {
	if c.state == Observing {
		return c.rival.UID
	}
	return ""
}
