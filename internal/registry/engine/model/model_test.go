package model

import (
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// TestModel explores all worlds. MODEL_STATES is the number of states of each, and MODEL_SAMPLE the
// share of them from which convergence is checked; make model sets them.
func TestModel(t *testing.T) {
	states, sample := 1500, 16
	if n, err := strconv.Atoi(os.Getenv("MODEL_STATES")); err == nil {
		states = n
	}
	if n, err := strconv.Atoi(os.Getenv("MODEL_SAMPLE")); err == nil {
		sample = n
	}
	var total atomic.Int64
	t.Cleanup(func() { t.Logf("%d states of %d worlds", total.Load(), len(Worlds())+len(PublisherWorlds())) })
	for _, w := range PublisherWorlds() {
		t.Run("publisher: "+w.Name, func(t *testing.T) {
			t.Parallel()
			r := w.Explore(states, sample)
			total.Add(int64(r.States))
			t.Log(r)
			if r.Broken != "" {
				t.Errorf("\n%s", w.Tell(r))
			}
		})
	}
	for _, w := range Worlds() {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			r := w.Explore(states, sample)
			total.Add(int64(r.States))
			t.Log(r)
			if r.Broken != "" {
				t.Errorf("\n%s", w.Tell(r))
			}
		})
	}
}
