package state

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// claim decides whether this cluster holds its ID. If two clusters use one ID, the second must not write.
//
//	Observing ──no cluster's, ours of the previous process, or silent──▶ Acquiring ──our record is shown──▶ Held
//	    ▲                                                          │                              │
//	    └───────────────── another cluster's record that beats, and has the older right ─────────┘
type claim struct {
	identity mcs.Identity
	// silence is the time without a change after which another cluster's record counts as dead.
	silence time.Duration
	// settle is the time without another cluster's record before the ID is claimed. It is longer than the delay of reads: the previous process
	// of this cluster may have written just before, and this process must not overwrite its pages with fewer exports.
	settle time.Duration

	state ClaimState
	// unrivalled is the time since which no other cluster's record was read.
	unrivalled time.Time
	// rivalled is set if another cluster's record with pages was read.
	rivalled bool
	// rival is the other cluster's record as last seen to change, and when.
	rival   format.Member
	changed time.Time
	// taken is the record in whose place ours was written: when it is read again, the read is stale.
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

// free reports whether observe would claim the ID now.
func (c *claim) free(now time.Time, shown *format.Member) bool {
	if c.state != Observing {
		return false
	}
	if shown == nil || shown.IsOf(c.identity) {
		settle := c.settle
		if shown == nil && c.rivalled {
			// A cluster that leaves first announces that it has no pages. Otherwise another writer removed the record, and a live cluster writes
			// it again.
			settle = max(settle, c.silence)
		}
		return settle == 0 || !c.unrivalled.IsZero() && now.Sub(c.unrivalled) >= settle
	}
	return shown.IsSameWrite(c.rival) && now.Sub(c.changed) >= c.silence
}

// observe records a read of the record with this cluster's ID, nil if there is none. ours is the own record as last written. It reports whether
// the own record must be written now.
func (c *claim) observe(now time.Time, shown *format.Member, ours format.Member) (write bool) {
	if shown != nil && !shown.IsOf(c.identity) {
		c.unrivalled, c.rivalled = time.Time{}, shown.Pages != format.Digests{}
		return c.observeRival(now, *shown, ours)
	}
	switch {
	case c.free(now, shown):
		c.state = Acquiring
		c.rival, c.taken = format.Member{}, format.Member{}
		return true
	case c.state == Observing:
		c.rival = format.Member{}
		if c.unrivalled.IsZero() {
			c.unrivalled = now
		}
	case c.state == Acquiring && shown != nil && shown.Joined.Equal(ours.Joined):
		c.state = Held
		c.rival = format.Member{}
	}
	return false
}

func (c *claim) observeRival(now time.Time, rival, ours format.Member) (write bool) {
	if c.free(now, &rival) {
		c.state, c.taken = Acquiring, rival
		return true
	}
	beats := !rival.IsSameWrite(c.rival)
	if beats {
		c.rival, c.changed = rival, now
	}
	switch {
	case c.state == Observing, rival.IsSameWrite(c.taken):
		return false
	case ours.HasOlderClaimThan(rival):
		// Once for each of its writes: it sees ours and gives way.
		return beats
	}
	c.state = Observing
	return false
}

// refused returns the UID of the other cluster that holds this cluster's ID, "" if there is none.
func (c *claim) refused() string {
	if c.state == Observing {
		return c.rival.UID
	}
	return ""
}
