package model

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// Result is the result of a search with a type of moves.
type Result[M fmt.Stringer] struct {
	States, Depth int
	// Converged is the number of states from which convergence was checked. IsComplete is set if
	// there are no further states.
	Converged  int
	IsComplete bool
	Took       time.Duration
	// Broken is the promise that the shortest Story breaks, "" if none is broken.
	Broken string
	Story  []M
}

// String returns the result as a line.
func (r Result[M]) String() string {
	all := "more follow"
	if r.IsComplete {
		all = "all"
	}
	return fmt.Sprintf("%d states (%s), depth %d, convergence from %d, %v", r.States, all, r.Depth, r.Converged, r.Took.Round(time.Second/10))
}

// Position is a state of a world with a type of moves.
type Position[S, M any] interface {
	// Moves yields the moves that may follow.
	Moves(yield func(M))
	// Clone returns a copy to which a move can be applied.
	Clone() S
	// Do makes a move, and reports whether it is possible.
	Do(move M) bool
	// Check returns the promise that a move from another state has broken, "" if none is.
	Check(before S, move M) string
	// Form returns the canonical form: states with one form are one state.
	Form() []byte
	// Converge lets all faults end, and returns what does not converge, "" if all does. The state
	// is not used after that.
	Converge() string
	// Picture shows the state in a story.
	Picture() string
}

// fingerprint identifies a state: two hashes of its canonical form. Of 10^7 states, two have the
// same one by accident with a probability of 10^-24.
type fingerprint [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func fingerprintOf(form []byte) fingerprint {
	return fingerprint{maphash.Bytes(seeds[0], form), maphash.Bytes(seeds[1], form)}
}

// visited is a state that was reached by a move from another one.
type visited[M any] struct {
	from int32
	move M
}

// Explore searches the states of a world, breadth first, up to a number of states.
func (w *World) Explore(limit, sample int) Result[Move] { return Search(w.start(), limit, sample) }

// Search searches the states that follow a first one, breadth first, up to a number of states. It
// checks the promises in each, and in one of sample states that all converges when the faults end.
func Search[S Position[S, M], M fmt.Stringer](first S, limit, sample int) (r Result[M]) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	type reached struct {
		state  S
		number int32
	}
	seen := map[fingerprint]struct{}{fingerprintOf(first.Form()): {}}
	path := []visited[M]{{from: -1}}
	layer := []reached{{first, 0}}
	for ; len(layer) > 0; r.Depth++ {
		var next []reached
		for n, from := range layer {
			layer[n] = reached{} // it is not needed any more
			from.state.Moves(func(move M) {
				if r.Broken != "" || len(path) >= limit {
					return
				}
				to := from.state.Clone()
				if !to.Do(move) {
					return
				}
				r.Broken = to.Check(from.state, move)
				mark := fingerprintOf(to.Form())
				if _, isSeen := seen[mark]; isSeen && r.Broken == "" {
					return
				}
				seen[mark] = struct{}{}
				path = append(path, visited[M]{from.number, move})
				next = append(next, reached{to, int32(len(path) - 1)})  //nolint:gosec // below limit
				if r.Broken == "" && int(mark[0]%uint64(sample)) == 0 { //nolint:gosec // sample is small
					r.Converged++
					r.Broken = to.Clone().Converge()
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
func story[M any](path []visited[M]) (moves []M) {
	for at := int32(len(path) - 1); path[at].from >= 0; at = path[at].from { //nolint:gosec // below limit
		moves = append([]M{path[at].move}, moves...)
	}
	return moves
}

// Tell tells the story of a result: each move, and what the reader shows after it.
func (w *World) Tell(r Result[Move]) string { return Tell(w.start(), r) }

// Explore searches the states of the world of a publisher, as World.Explore does.
func (w *PublisherWorld) Explore(limit, sample int) Result[Step] {
	return Search(w.start(), limit, sample)
}

// Tell tells the story of a result.
func (w *PublisherWorld) Tell(r Result[Step]) string { return Tell(w.start(), r) }

// Tell tells the story of a result, from the first state.
func Tell[S Position[S, M], M fmt.Stringer](s S, r Result[M]) string {
	var out strings.Builder
	for n, move := range r.Story {
		before := s
		s = s.Clone()
		s.Do(move)
		broken := s.Check(before, move)
		s.Form()
		fmt.Fprintf(&out, "%3d. %-60s %s\n", n+1, move, s.Picture())
		if broken != "" {
			break
		}
	}
	fmt.Fprintf(&out, "     %s\n", r.Broken)
	return out.String()
}

// Picture returns the views of all exports.
func (s *state) Picture() string {
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
