package registry_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// watch is cluster cls1 that looks every second, in virtual time, at clusters with a heartbeat of 12 s, and takes a
// cluster for stale after two minutes.
type watch struct {
	t    *testing.T
	l    *registry.Liveness
	now  time.Time
	tick int
	// dead clusters write nothing, frozen is a registry that shows nothing new.
	dead   map[string]bool
	frozen bool
	// first is the time of the first look; beats are the heartbeats as last read.
	beats map[string]int
	// log are the changes that were told.
	log []string
}

const beat = 12

func newWatch(t *testing.T) *watch {
	return &watch{
		t: t, l: registry.NewLiveness("cls1", 2*time.Minute), now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
		dead: map[string]bool{}, beats: map[string]int{"cls1": -1, "cls2": -1, "cls3": -1},
	}
}

// look is an answered look.
func (w *watch) look() {
	signs := map[string]bool{}
	for i, id := range slices.Sorted(maps.Keys(w.beats)) {
		now := (w.tick + 5*i) / beat
		isNew := !w.dead[id] && !w.frozen && now != w.beats[id]
		signs[id] = isNew && w.beats[id] >= 0
		if isNew || w.beats[id] < 0 {
			w.beats[id] = now
		}
	}
	w.log = append(w.log, w.l.ObserveHeartbeats(w.now, signs)...)
}

// pass lets time pass with a look each second, if the registry answers.
func (w *watch) pass(seconds int, answered bool) {
	for range seconds {
		w.skip(1)
		if answered {
			w.look()
		} else {
			w.l.ObserveFailure()
		}
	}
}

// skip lets time pass in which this process does nothing, but the others do.
func (w *watch) skip(seconds int) {
	w.now = w.now.Add(time.Duration(seconds) * time.Second)
	w.tick += seconds
}

func (w *watch) expect(what string, stale, unheard []string) {
	w.t.Helper()
	var gotStale, gotUnheard []string
	for _, id := range slices.Sorted(maps.Keys(w.beats)) {
		if w.l.IsStale(id) {
			gotStale = append(gotStale, id)
		}
		if w.l.IsUnknown(id) {
			gotUnheard = append(gotUnheard, id)
		}
	}
	if !slices.Equal(gotStale, stale) || !slices.Equal(gotUnheard, unheard) {
		w.t.Errorf("%s: %v are stale and %v unheard, want %v and %v", what, gotStale, gotUnheard, stale, unheard)
	}
}

func (w *watch) told(what string, want ...string) {
	w.t.Helper()
	slices.Sort(w.log)
	if !slices.Equal(w.log, want) {
		w.t.Errorf("%s: told of %v, want %v", what, w.log, want)
	}
	w.log = nil
}

func TestLiveness(t *testing.T) {
	w := newWatch(t)
	w.look()
	w.expect("first sight", nil, []string{"cls2", "cls3"})
	w.pass(2*beat, true)
	w.expect("heartbeats", nil, nil)
	w.told("heartbeats", "cls2", "cls3")

	w.dead["cls3"] = true
	w.pass(120-beat, true)
	w.expect("silent for 108 s", nil, nil)
	w.pass(2*beat, true)
	w.expect("silent for 132 s", []string{"cls3"}, nil)
	w.told("silent for 132 s", "cls3")
	w.pass(600, true)
	w.expect("silent for long", []string{"cls3"}, nil)
	w.told("silent for long")

	w.dead["cls3"] = false
	w.skip(1)
	w.look()
	w.expect("back", nil, nil)
	w.told("back", "cls3")

	w.dead["cls3"] = true
	w.pass(200, true)
	w.l.Remove("cls3")
	delete(w.beats, "cls3")
	w.expect("gone", nil, nil)
}

func TestLivenessOfADeadAtTheStart(t *testing.T) {
	w := newWatch(t)
	w.dead["cls2"] = true
	w.look()
	w.pass(120-beat, true)
	w.expect("judged anew", nil, []string{"cls2"})
	w.pass(2*beat, true)
	w.expect("known to be dead", []string{"cls2"}, nil)
}

// A cluster that comes while we watch lives: somebody wrote its record.
func TestLivenessOfANewcomer(t *testing.T) {
	l := registry.NewLiveness("cls1", time.Minute)
	now := time.Now()
	l.ObserveHeartbeats(now, map[string]bool{"cls1": false})
	l.ObserveHeartbeats(now.Add(time.Second), map[string]bool{"cls1": false, "cls2": true})
	if l.IsUnknown("cls2") || l.IsStale("cls2") {
		t.Error("a cluster that has just come is unheard or stale")
	}
}

// Time counts only while the registry answers and somebody's heartbeat advances.
func TestLivenessCounts(t *testing.T) {
	all := []string{"cls2", "cls3"}
	tests := map[string]struct {
		story func(*watch)
		stale []string
	}{
		"everybody dead but us": {func(w *watch) { w.dead["cls2"], w.dead["cls3"] = true, true; w.pass(140, true) }, all},
		"our own writes are refused, another's advance": {
			func(w *watch) { w.dead["cls1"], w.dead["cls3"] = true, true; w.pass(140, true) }, []string{"cls3"},
		},
		"nobody's heartbeat advances":  {func(w *watch) { w.frozen = true; w.pass(3600, true) }, nil},
		"the registry does not answer": {func(w *watch) { w.dead["cls3"] = true; w.pass(3600, false); w.look() }, nil},
		"old data for an hour, then new": {func(w *watch) {
			w.frozen = true
			w.pass(3600, true)
			w.frozen = false
			w.dead["cls3"] = true
			w.pass(beat, true)
		}, nil},
		"the others write again a while after us": {
			func(w *watch) {
				w.dead["cls2"], w.dead["cls3"] = true, true
				w.pass(3600, false)
				w.pass(30, true)
			}, nil,
		},
		"this process was suspended": {
			func(w *watch) { w.dead["cls3"] = true; w.skip(3600); w.look(); w.pass(30, true) }, nil,
		},
		"this process was suspended for a moment, again and again": {
			func(w *watch) {
				for range 100 {
					w.skip(50)
					w.look()
				}
			}, nil,
		},
		"a dead cluster in a registry that fails every other time": {
			func(w *watch) {
				w.dead["cls3"] = true
				for range 300 {
					w.pass(1, true)
					w.pass(1, true)
					w.pass(1, false)
				}
			}, []string{"cls3"},
		},
		"half of the looks fail: only the other half counts": {
			func(w *watch) {
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
			w := newWatch(t)
			w.look()
			w.pass(2*beat, true)
			tt.story(w)
			w.expect("in the end", tt.stale, nil)
		})
	}
}

// Whatever happens to the registry and to this process, who writes its heartbeat is never stale, and who is dead is so in
// the end.
func TestLivenessNeverCondemnsTheLiving(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		w := newWatch(t)
		w.look()
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
			w.look()
			if w.l.IsStale("cls2") {
				t.Fatalf("seed %d: a living cluster is stale", seed)
			}
		}
		w.pass(200, true)
		if !w.l.IsStale("cls3") {
			t.Fatalf("seed %d: a dead cluster is not stale", seed)
		}
	}
}
