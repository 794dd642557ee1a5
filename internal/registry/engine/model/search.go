package model

import (
	"fmt"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// Result is the result of a search.
type Result struct {
	States, Depth int
	// Converged is the number of states from which convergence was checked. IsComplete is set if
	// there are no further states.
	Converged  int
	IsComplete bool
	Took       time.Duration
	// Broken is the promise that the shortest Story breaks, "" if none is broken.
	Broken string
	Story  []Move
}

// String returns the result as a line.
func (r Result) String() string {
	all := "more follow"
	if r.IsComplete {
		all = "all"
	}
	return fmt.Sprintf("%d states (%s), depth %d, convergence from %d, %v", r.States, all, r.Depth, r.Converged, r.Took.Round(time.Second/10))
}

// visited is a state that was reached by a move from another one.
type visited struct {
	from int32
	move Move
}

// Explore searches the states of a world, breadth first, up to a number of states. It checks the
// promises in each, and in one of sample states that all converges when the faults end.
func (w *World) Explore(limit, sample int) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	type reached struct {
		*state
		number int32
	}
	first := w.start()
	seen := map[fingerprint]struct{}{first.fingerprint(): {}}
	path := []visited{{from: -1}}
	layer := []reached{{first, 0}}
	for ; len(layer) > 0; r.Depth++ {
		var next []reached
		for n, from := range layer {
			layer[n].state = nil // it is not needed any more
			from.moves(func(move Move) {
				if r.Broken != "" || len(path) >= limit {
					return
				}
				to := from.clone()
				if !to.do(move) {
					return
				}
				r.Broken = to.check(from.state, move)
				mark := to.fingerprint()
				if _, isSeen := seen[mark]; isSeen && r.Broken == "" {
					return
				}
				seen[mark] = struct{}{}
				path = append(path, visited{from.number, move})
				next = append(next, reached{to, int32(len(path) - 1)})  //nolint:gosec // below limit
				if r.Broken == "" && int(mark[0]%uint64(sample)) == 0 { //nolint:gosec // sample is small
					r.Converged++
					r.Broken = to.clone().converge()
				}
			})
			if r.Broken != "" {
				r.States, r.Story = len(path), story(path)
				return r
			}
		}
		layer = next
		if len(path) >= limit {
			r.States = len(path)
			return r
		}
	}
	r.States, r.IsComplete = len(path), true
	return r
}

// story returns the moves to the last state of a path.
func story(path []visited) (moves []Move) {
	for at := int32(len(path) - 1); path[at].from >= 0; at = path[at].from { //nolint:gosec // below limit
		moves = append([]Move{path[at].move}, moves...)
	}
	return moves
}

// Tell tells the story of a result: each move, and what the reader shows after it.
func (w *World) Tell(r Result) string {
	var out strings.Builder
	s := w.start()
	for n, move := range r.Story {
		before := s
		s = s.clone()
		s.do(move)
		broken := s.check(before, move)
		s.fingerprint()
		fmt.Fprintf(&out, "%3d. %-60s %s\n", n+1, move, s.picture())
		if broken != "" {
			break
		}
	}
	fmt.Fprintf(&out, "     %s\n", r.Broken)
	return out.String()
}

// picture returns the views of all exports.
func (s *state) picture() string {
	var parts []string
	for i := range s.world.Clusters {
		states := map[belief.ClusterState]string{
			belief.NotRead: "NotRead", belief.Saving: "Saving", belief.First: "First", belief.Current: "Current", belief.Left: "Left",
		}
		parts = append(parts, clusterID(i)+" "+states[s.reader.StateOf(clusterID(i))])
		for u := range s.world.Units {
			for k := range s.world.KeysPerUnit {
				parts = append(parts, fmt.Sprintf("%s %s", keyOf(u, k), s.viewOf(i, u, k).text()))
			}
		}
	}
	return strings.Join(parts, ", ")
}
