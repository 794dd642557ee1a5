package etcd

// claim decides whether the cluster ID is ours: of two clusters that use one, the second must not write, and of two
// processes of one cluster only the one that began later.
//
// The ID belongs to whoever wrote the key alive, for as long as its lease lasts. The revision of that write is the fence:
// our transactions demand that alive still has it.
type claim struct {
	uid string
	// fence is the revision of alive as this process wrote it last, 0 when it may not write.
	fence int64
	// leases are those that this process was granted: an alive under one of them was written by this process.
	leases map[int64]bool
	// held says that this process has held the ID before: another process of this cluster that has it now began later.
	held bool
}

func newClaim(uid string) claim { return claim{uid: uid, leases: map[int64]bool{}} }

// verdict is what a look at alive says.
type verdict int

const (
	// take says to write alive, if it is still as it was seen.
	take verdict = iota
	// taken says that another cluster has the ID.
	taken
	// displaced says that another process of this cluster has it.
	displaced
)

// judge says whether the ID may be taken.
func (c *claim) judge(shown aliveState) verdict {
	switch {
	case !shown.lives(), c.leases[shown.lease], shown.uid == c.uid && !c.held:
		return take
	case shown.uid == c.uid:
		return displaced
	}
	return taken
}

// won notes that alive was written at revision.
func (c *claim) won(revision int64) { c.fence, c.held = revision, true }

// drop gives the fence up: alive has to be written anew before anything else.
func (c *claim) drop() { c.fence = 0 }

// observe takes in alive as it is after revision, and says whether the fence has fallen.
func (c *claim) observe(shown aliveState, revision int64) (fallen bool) {
	if c.fence == 0 || revision < c.fence || shown.revision == c.fence {
		return false
	}
	c.drop()
	return true
}
