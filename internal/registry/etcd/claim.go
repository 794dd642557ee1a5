package etcd

// claim decides whether this process holds the cluster ID: of two clusters that use the same ID, the second must not write, and
// of two processes of one cluster only the one that began later may.
//
// The ID belongs to the process that wrote the key alive, for as long as its lease lasts. The revision of that write is the
// fence: all transactions demand that alive still has it.
type claim struct {
	uid string
	// fence is the revision of alive as this process wrote it last, 0 when it may not write.
	fence int64
	// leases are the leases of this process: an alive with one of them was written by this process.
	leases map[int64]bool
	// held is true once this process has held the ID: another process of this cluster that holds it now began later.
	held bool
}

func newClaim(uid string) claim { return claim{uid: uid, leases: map[int64]bool{}} }

// verdict is the result of evaluating the key alive.
type verdict int

const (
	// canAcquire means that this process may write alive, if it has not changed since.
	canAcquire verdict = iota
	// heldByOther means that another cluster holds the ID.
	heldByOther
	// displaced means that another process of this cluster holds it.
	displaced
)

// evaluate returns whether the ID may be acquired.
func (c *claim) evaluate(shown aliveState) verdict {
	switch {
	case !shown.isHeld(), c.leases[shown.lease], shown.uid == c.uid && !c.held:
		return canAcquire
	case shown.uid == c.uid:
		return displaced
	}
	return heldByOther
}

// acquire records that this process wrote alive at revision.
func (c *claim) acquire(revision int64) { c.fence, c.held = revision, true }

// giveWay records that another cluster holds the ID: this process has not held it since.
func (c *claim) giveWay() { c.held = false }

// dropFence requires that the next write rewrites the key alive.
func (c *claim) dropFence() { c.fence = 0 }

// observe compares the fence with alive as of revision, and reports whether this process has lost it.
func (c *claim) observe(shown aliveState, revision int64) (lost bool) {
	if c.fence == 0 || revision < c.fence || shown.revision == c.fence {
		return false
	}
	c.dropFence()
	return true
}
