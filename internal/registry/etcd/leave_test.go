package etcd

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestLeave_WaitsForNextProcessOfClone: a clone of the cluster restarts while this one observes
// whether it is live. The clone gives the ID up for that time, and its exports stay.
func TestLeave_WaitsForNextProcessOfClone(t *testing.T) {
	for name, restarts := range map[string]bool{"it restarts": true, "it has ended": false} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, shared(t))
			clone := s.registry(t, fast(cls1))
			stop := start(t, clone)
			publish(t, clone, 0, 1)
			awaitState(t, clone, 0, registry.Exported)
			export := s.layout("set1").export("cls1", webKey(0))
			var watch cloneWatch
			w := s.registry(t, fast(cls1)).writer
			tryLeave := func() bool {
				done, err := w.tryLeave(t.Context(), &watch)
				if err != nil {
					t.Fatal(err)
				}
				return done
			}
			if tryLeave() {
				t.Fatal("it does not observe the clone")
			}
			stop(nil)
			if tryLeave() {
				t.Fatal("it has left when the clone gave the ID up")
			}
			if restarts {
				next := s.registry(t, fast(cls1))
				start(t, next)
				publish(t, next, 0, 2)
				awaitState(t, next, 0, registry.Exported)
			}
			within(t, "it has left", tryLeave)
			if _, exists := s.keys(t, export)[export]; exists != restarts {
				t.Errorf("the export exists: %t, want %t", exists, restarts)
			}
		})
	}
}

// TestLeave_WaitsForNextProcess: a process that a later one of its cluster has displaced leaves
// while that one restarts. The exports of the later one stay.
func TestLeave_WaitsForNextProcess(t *testing.T) {
	s := newTestStore(t, shared(t))
	w := s.registry(t, fast(cls1)).writer
	later := s.registry(t, fast(cls1))
	stop := start(t, later)
	publish(t, later, 0, 1)
	awaitState(t, later, 0, registry.Exported)
	shown, _, err := w.store.readOwn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	alive := aliveIn(shown)
	w.session.claim.held = true
	w.session.observe(alive, alive.revision)
	stop(nil)
	var watch cloneWatch
	if done, err := w.tryLeave(t.Context(), &watch); done || err != nil {
		t.Errorf("it has left (%t, %v) when the later process gave the ID up", done, err)
	}
	next := s.registry(t, fast(cls1))
	start(t, next)
	publish(t, next, 0, 2)
	awaitState(t, next, 0, registry.Exported)
	if done, err := w.tryLeave(t.Context(), &watch); !done || err != nil {
		t.Errorf("it has not left (%t, %v) beside the next process", done, err)
	}
	export := s.layout("set1").export("cls1", webKey(0))
	if _, exists := s.keys(t, export)[export]; !exists {
		t.Error("it has removed the export of the next process")
	}
}
