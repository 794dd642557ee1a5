package state

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// claim decides whether the cluster ID is ours: of two clusters that use one, the second must not write.
//
//	Observing ──no cluster's, ours of the previous process, or silent──▶ Acquiring ──our record is shown──▶ Held
//	    ▲                                                          │                              │
//	    └───────────────── another cluster's record that beats, and has the older right ─────────┘
type claim struct {
	identity mcs.Identity
	// silence is how long another cluster's record must not have changed to be taken for dead.
	silence time.Duration
	// settle is how long no other cluster's record must have been seen before the ID is claimed. It is longer than reads
	// are late: the previous process of this cluster may have written a moment ago, and what it wrote must not be overwritten
	// with less.
	settle time.Duration

	state ClaimState
	// unrivalled is since when no other cluster's record was seen.
	unrivalled time.Time
	// rivalled says that there was one with pages.
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
			// Who leaves says first that it has no pages. Otherwise another writer removed the record, and its cluster writes it
			// again if it lives.
			settle = max(settle, c.silence)
		}
		return settle == 0 || !c.unrivalled.IsZero() && now.Sub(c.unrivalled) >= settle
	}
	return shown.IsSameWrite(c.rival) && now.Sub(c.changed) >= c.silence
}

// observe takes in a read of the record that has our ID; nil is none. ours is the record as we last wrote it. It returns
// whether we must write our record now.
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

// refused is the UID of the cluster that has our ID, "" if there is none.
func (c *claim) refused() string {
	if c.state == Observing {
		return c.rival.UID
	}
	return ""
}
