package state

// A poll reads the catalogs of at most firstNewcomers unknown clusters. Any member can write
// records of clusters that do not exist: 1,000 fit into service members. If each of them has proved
// its key, it reads twice as many at once, up to maxNewcomers, and so on: a controller that starts
// without keys knows 1,000 clusters after 11 rounds, in one poll or two. A proof needs a catalog,
// of which AWS lets an account create five a second.
const (
	firstNewcomers = 8
	maxNewcomers   = 128
)

// newcomers limits the catalogs of unknown clusters that are read in a round. The zero value is
// that of the first round.
type newcomers struct {
	limit int
	// asked are the clusters whose catalogs the last round has read.
	asked []string
}

// begin begins a round. isUnknown reports whether a cluster has still proved no key.
func (n *newcomers) begin(isUnknown func(id string) bool) {
	unproven := 0
	for _, id := range n.asked {
		if isUnknown(id) {
			unproven++
		}
	}
	switch {
	case unproven > 0 || n.limit == 0:
		n.limit = firstNewcomers
	case len(n.asked) == n.limit:
		n.limit = min(2*n.limit, maxNewcomers)
	}
	n.asked = n.asked[:0]
}

// isFull reports whether the round reads no further catalog of an unknown cluster.
func (n *newcomers) isFull() bool { return len(n.asked) >= n.limit }

// add adds an unknown cluster whose catalog the round reads.
func (n *newcomers) add(id string) { n.asked = append(n.asked, id) }
