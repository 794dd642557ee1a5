package registry_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// simulation is cluster cls1, which reads the registry every second of virtual time. Heartbeats
// come every 12 s, and a cluster is stale after two minutes.
type simulation struct {
	t    *testing.T
	l    *registry.Liveness
	now  time.Time
	tick int
	// dead clusters write nothing, a frozen registry shows no new data.
	dead   map[string]bool
	frozen bool
	// beats are the heartbeats as last read.
	beats map[string]int
	// changed are the clusters that ObserveHeartbeats returned.
	changed []string
}

const beat = 12

func newSimulation(t *testing.T) *simulation {
	return &simulation{
		t: t, l: registry.NewLiveness("cls1", 2*time.Minute), now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
		dead: map[string]bool{}, beats: map[string]int{"cls1": -1, "cls2": -1, "cls3": -1},
	}
}

// read simulates a successful read.
func (w *simulation) read() {
	heartbeats := map[string]bool{}
	for i, id := range slices.Sorted(maps.Keys(w.beats)) {
		now := (w.tick + 5*i) / beat
		isNew := !w.dead[id] && !w.frozen && now != w.beats[id]
		heartbeats[id] = isNew && w.beats[id] >= 0
		if isNew || w.beats[id] < 0 {
			w.beats[id] = now
		}
	}
	w.changed = append(w.changed, w.l.ObserveHeartbeats(w.now, heartbeats)...)
}

// pass lets time pass with a read each second, which fails unless answered.
func (w *simulation) pass(seconds int, answered bool) {
	for range seconds {
		w.skip(1)
		if answered {
			w.read()
		} else {
			w.l.ObserveFailure()
		}
	}
}

// skip lets time pass while this process is suspended.
func (w *simulation) skip(seconds int) {
	w.now = w.now.Add(time.Duration(seconds) * time.Second)
	w.tick += seconds
}

func (w *simulation) expect(what string, stale, unknown []string) {
	w.t.Helper()
	var gotStale, gotUnknown []string
	for _, id := range slices.Sorted(maps.Keys(w.beats)) {
		if w.l.IsStale(id) {
			gotStale = append(gotStale, id)
		}
		if w.l.Of(id) == registry.Undecided {
			gotUnknown = append(gotUnknown, id)
		}
	}
	if !slices.Equal(gotStale, stale) || !slices.Equal(gotUnknown, unknown) {
		w.t.Errorf("%s: %v are stale and %v unknown, want %v and %v", what, gotStale, gotUnknown, stale, unknown)
	}
}

func (w *simulation) expectChanged(what string, want ...string) {
	w.t.Helper()
	slices.Sort(w.changed)
	if !slices.Equal(w.changed, want) {
		w.t.Errorf("%s: changed %v, want %v", what, w.changed, want)
	}
	w.changed = nil
}

func TestLiveness(t *testing.T) {
	w := newSimulation(t)
	w.read()
	w.expect("first read", nil, []string{"cls2", "cls3"})
	w.pass(2*beat, true)
	w.expect("heartbeats", nil, nil)
	w.expectChanged("heartbeats", "cls2", "cls3")

	w.dead["cls3"] = true
	w.pass(120-beat, true)
	w.expect("silent for 108 s", nil, nil)
	w.pass(2*beat, true)
	w.expect("silent for 132 s", []string{"cls3"}, nil)
	w.expectChanged("silent for 132 s", "cls3")
	w.pass(600, true)
	w.expect("silent for long", []string{"cls3"}, nil)
	w.expectChanged("silent for long")

	w.dead["cls3"] = false
	w.skip(1)
	w.read()
	w.expect("back", nil, nil)
	w.expectChanged("back", "cls3")

	w.dead["cls3"] = true
	w.pass(200, true)
	w.l.Remove("cls3")
	delete(w.beats, "cls3")
	w.expect("gone", nil, nil)
}

func TestLivenessOfClusterDeadAtStart(t *testing.T) {
	w := newSimulation(t)
	w.dead["cls2"] = true
	w.read()
	w.pass(120-beat, true)
	w.expect("not known yet", nil, []string{"cls2"})
	w.pass(2*beat, true)
	w.expect("known to be dead", []string{"cls2"}, nil)
}

// A cluster that joins while this process runs is live: its record was just written.
func TestLivenessOfNewCluster(t *testing.T) {
	l := registry.NewLiveness("cls1", time.Minute)
	now := time.Now()
	l.ObserveHeartbeats(now, map[string]bool{"cls1": false})
	l.ObserveHeartbeats(now.Add(time.Second), map[string]bool{"cls1": false, "cls2": true})
	if l.Of("cls2") != registry.Live {
		t.Error("a cluster that has just joined is unknown or stale")
	}
}

// Time counts only while the registry answers and any heartbeat advances.
func TestLivenessCountsTime(t *testing.T) {
	all := []string{"cls2", "cls3"}
	tests := map[string]struct {
		run   func(*simulation)
		stale []string
	}{
		"all other clusters are dead": {func(w *simulation) { w.dead["cls2"], w.dead["cls3"] = true, true; w.pass(140, true) }, all},
		"own writes are refused, another cluster's heartbeats advance": {
			func(w *simulation) { w.dead["cls1"], w.dead["cls3"] = true, true; w.pass(140, true) }, []string{"cls3"},
		},
		"no heartbeat advances":        {func(w *simulation) { w.frozen = true; w.pass(3600, true) }, nil},
		"the registry does not answer": {func(w *simulation) { w.dead["cls3"] = true; w.pass(3600, false); w.read() }, nil},
		"old data for an hour, then new": {func(w *simulation) {
			w.frozen = true
			w.pass(3600, true)
			w.frozen = false
			w.dead["cls3"] = true
			w.pass(beat, true)
		}, nil},
		"the others' heartbeats return later than the own": {
			func(w *simulation) {
				w.dead["cls2"], w.dead["cls3"] = true, true
				w.pass(3600, false)
				w.pass(30, true)
			}, nil,
		},
		"this process was suspended": {
			func(w *simulation) { w.dead["cls3"] = true; w.skip(3600); w.read(); w.pass(30, true) }, nil,
		},
		"this process was suspended many times": {
			func(w *simulation) {
				for range 100 {
					w.skip(50)
					w.read()
				}
			}, nil,
		},
		"a dead cluster while a third of the reads fail": {
			func(w *simulation) {
				w.dead["cls3"] = true
				for range 300 {
					w.pass(1, true)
					w.pass(1, true)
					w.pass(1, false)
				}
			}, []string{"cls3"},
		},
		"half of the reads fail: only the other half counts": {
			func(w *simulation) {
				w.dead["cls3"] = true
				for range 40 {
					w.pass(2, true)
					w.pass(2, false)
				}
			}, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newSimulation(t)
			w.read()
			w.pass(2*beat, true)
			tt.run(w)
			w.expect("in the end", tt.stale, nil)
		})
	}
}

// With random failures of the registry and suspensions of this process, a live cluster is never
// stale, and a dead one is stale in the end.
func TestLiveClusterIsNeverStale(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		w := newSimulation(t)
		w.read()
		w.dead["cls3"] = true
		for range 300 {
			n := 1 + random.IntN(90)
			switch random.IntN(4) {
			case 0:
				w.pass(n, false)
			case 1:
				w.skip(10 * n)
			default:
				w.pass(n, true)
			}
			w.read()
			if w.l.IsStale("cls2") {
				t.Fatalf("seed %d: a live cluster is stale", seed)
			}
		}
		w.pass(200, true)
		if !w.l.IsStale("cls3") {
			t.Fatalf("seed %d: a dead cluster is not stale", seed)
		}
	}
}
