package etcd

import (
	"strconv"
	"strings"
	"time"
)

// claim decides whether this process holds the cluster ID: of two clusters that use the same ID,
// the second must not write, and of two processes of one cluster only the one that began later may.
//
// The ID belongs to the process that wrote the key alive, for as long as its lease lasts. The
// revision of that write is the fence: all transactions demand that alive still has it.
type claim struct {
	uid string
	// number orders the processes of this cluster: one that begins later has a greater one, also if
	// its clock is behind, because the previous one is saved. latest is the greatest number of
	// another process of this cluster that was read.
	number, latest int64
	// fence is the revision of alive as this process wrote it last, 0 when it may not write.
	fence int64
	// leases are the leases of this process: an alive with one of them was written by this process.
	leases map[int64]bool
	// held is true once this process has held the ID, and no other cluster since.
	held bool
}

// newClaim returns the claim of a process that begins.
func newClaim(uid string, began time.Time) claim {
	return claim{uid: uid, number: began.UnixMicro(), leases: map[int64]bool{}}
}

// aliveState is the key alive of a cluster.
type aliveState struct {
	// revision is 0 if the key does not exist; lease is 0 if the key would never expire.
	revision, lease int64
	uid             string
	// number is that of the process that wrote it, 0 if it has none.
	number int64
}

// isHeld reports whether a process holds the ID.
func (a aliveState) isHeld() bool { return a.revision != 0 && a.lease != 0 }

// aliveIn returns the state of a key alive, the zero value if it is deleted.
func aliveIn(p pair) aliveState {
	if p.deleted {
		return aliveState{}
	}
	return parseAlive(p.value, p.revision, p.lease)
}

// aliveValue returns the value of a key alive.
func aliveValue(uid string, number int64) string { return uid + " " + strconv.FormatInt(number, 10) }

// parseAlive parses the value of a key alive. Any user with write permission may have written it.
func parseAlive(value []byte, revision, lease int64) aliveState {
	uid, text, _ := strings.Cut(clip(string(value)), " ")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		number = 0
	}
	return aliveState{revision: revision, lease: lease, uid: uid, number: number}
}

// verdict is the result of evaluating the key alive.
type verdict int

const (
	// canAcquire means that this process may write alive, if it has not changed since.
	canAcquire verdict = iota
	// heldByOther means that another cluster holds the ID.
	heldByOther
	// displaced means that another process of this cluster holds it, which began later.
	displaced
)

// evaluate returns whether the ID may be acquired.
func (c *claim) evaluate(shown aliveState) verdict {
	switch {
	case !shown.isHeld(), c.leases[shown.lease]:
		return canAcquire
	case shown.uid != c.uid:
		return heldByOther
	case c.isLaterThan(shown):
		return canAcquire
	}
	return displaced
}

// isLaterThan reports whether this process began after the other one of this cluster that wrote
// alive, which ended, or was displaced before etcd was restored from a backup. A process that was
// displaced itself is not later, although a backup may show an earlier one.
func (c *claim) isLaterThan(shown aliveState) bool { return max(shown.number, c.latest) < c.number }

// acquire records that this process wrote alive at revision.
func (c *claim) acquire(revision int64) { c.fence, c.held = revision, true }

// giveWay records that another cluster holds the ID: this process has not held it since.
func (c *claim) giveWay() { c.held = false }

// dropFence requires that the next write rewrites the key alive.
func (c *claim) dropFence() { c.fence = 0 }

// observe compares the fence with alive as of revision, and reports whether this process has lost
// it.
func (c *claim) observe(shown aliveState, revision int64) (lost bool) {
	if shown.isHeld() && shown.uid == c.uid && !c.leases[shown.lease] {
		c.latest = max(c.latest, shown.number)
	}
	if c.fence == 0 || revision < c.fence || shown.revision == c.fence {
		return false
	}
	c.dropFence()
	return true
}
