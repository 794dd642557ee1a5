package peernotify

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
)

var silence = Whisper{}.Silence()

var start = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// world is a Watch of cluster a with a registry that shows generations a moment after they were written, in its own time.
type world struct {
	t     *testing.T
	w     *Watch
	now   time.Time
	delay time.Duration
	// written are the generations of each cluster and when; silent clusters send no hints.
	written map[string][]writing
	silent  map[string]bool
	beat    time.Time
	// looks are when the registry was looked at.
	looks []time.Duration
	seq   int64
}

type writing struct {
	generation int64
	at         time.Time
}

func newWorld(t *testing.T, clusters ...string) *world {
	v := &world{
		t: t, w: NewWatch("set1", "a", Intervals{Poll: time.Second, Relaxed: 5 * time.Second, Silence: silence}),
		now: start, beat: start, written: map[string][]writing{"a": {{1, time.Time{}}}}, silent: map[string]bool{},
	}
	for _, id := range clusters {
		v.written[id] = []writing{{1, time.Time{}}}
	}
	v.run(20 * time.Second)
	v.looks = nil
	return v
}

// shown is the generation of a cluster that the registry shows.
func (v *world) shown(id string) (generation int64) {
	for _, w := range v.written[id] {
		if !v.now.Before(w.at.Add(v.delay)) {
			generation = w.generation
		}
	}
	return generation
}

// run lets time pass, in milliseconds.
func (v *world) run(d time.Duration) {
	for end := v.now.Add(d); v.now.Before(end); v.now = v.now.Add(time.Millisecond) {
		if !v.now.Before(v.beat) {
			v.beat = v.now.Add(BeatInterval)
			for id := range v.written {
				if id != "a" && !v.silent[id] {
					v.hint(id, v.written[id][len(v.written[id])-1].generation)
				}
			}
		}
		v.look()
	}
}

func (v *world) look() {
	if v.w.Next(v.now).After(v.now) {
		return
	}
	v.looks = append(v.looks, v.now.Sub(start))
	v.w.Looking(v.now)
	var peers []Peer
	for id := range v.written {
		peers = append(peers, Peer{ClusterID: id, Token: token, Generation: v.shown(id)})
	}
	v.w.Looked(peers, false)
}

func (v *world) hint(from string, generation int64) string {
	v.seq++
	return v.w.Heard(v.now, Message{ClusterSet: "set1", From: from, Generation: generation, Sequence: v.seq})
}

// write writes a new generation of a cluster and hints at it.
func (v *world) write(id string) {
	list := v.written[id]
	generation := list[len(list)-1].generation + 1
	v.written[id] = append(list, writing{generation, v.now})
	if id == "a" {
		v.w.Wrote(v.now, generation)
	} else {
		v.hint(id, generation)
	}
}

// since are the looks since the last call, in milliseconds after now.
func (v *world) wantLooks(what string, from time.Time, want ...int) {
	v.t.Helper()
	got := []int{}
	for _, look := range v.looks {
		got = append(got, int((look - from.Sub(start)).Milliseconds()))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		v.t.Errorf("%s: looks at other times, in ms (-want +got):\n%s", what, diff)
	}
	v.looks = nil
}

func TestWatchPolls(t *testing.T) {
	tests := map[string]struct {
		clusters, silent []string
		hurried          bool
		wantLooks        int // in a minute
	}{
		"alone":                        {nil, nil, false, 12},
		"all are heard":                {[]string{"b", "c"}, nil, false, 12},
		"one is not":                   {[]string{"b", "c"}, []string{"c"}, false, 60},
		"something else is waited for": {nil, nil, true, 60},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := newWorld(t, tc.clusters...)
			for _, id := range tc.silent {
				v.silent[id] = true
			}
			v.run(silence + BeatInterval)
			v.w.hurried, v.looks = tc.hurried, nil
			for range 60 {
				v.run(time.Second)
				v.w.hurried = tc.hurried
			}
			if got := len(v.looks); got < tc.wantLooks-1 || got > tc.wantLooks+1 {
				t.Errorf("%d looks in a minute, want %d", got, tc.wantLooks)
			}
			if diff := cmp.Diff(tc.silent, v.w.Silent(v.now)); diff != "" {
				t.Errorf("others are silent (-want +got):\n%s", diff)
			}
			if got, want := v.w.Interval(v.now), time.Minute/time.Duration(tc.wantLooks); got != want {
				t.Errorf("the interval is %v, want %v", got, want)
			}
		})
	}
}

// TestWatchFallsSilent is a cluster whose hints stop: the fast poll begins without waiting for the relaxed one.
func TestWatchFallsSilent(t *testing.T) {
	v := newWorld(t, "b")
	heard := v.w.sources["b"].heard
	v.silent["b"] = true
	v.run(20 * time.Second)
	gap := time.Duration(0)
	for i, look := range v.looks[1:] {
		if at := start.Add(look); at.After(heard.Add(silence + time.Second)) {
			gap = max(gap, look-v.looks[i])
		}
	}
	if gap != time.Second {
		t.Errorf("polled every %v once the cluster was silent, want every second", gap)
	}
	v.silent["b"] = false
	v.run(10 * time.Second)
	v.looks = nil
	v.run(20 * time.Second)
	if got := len(v.looks); got > 5 {
		t.Errorf("%d looks in 20 s once the cluster was heard again, want 4", got)
	}
}

func TestWatchLooksAtNews(t *testing.T) {
	v := newWorld(t, "b", "c")
	v.run(500 * time.Millisecond)
	v.looks = nil
	from := v.now
	v.write("b")
	v.run(time.Second)
	v.wantLooks("no delay", from, 0)

	from = v.now
	v.write("a")
	v.run(time.Second)
	v.wantLooks("own write", from, 0)

	from = v.now
	v.write("b")
	v.write("c")
	v.run(50 * time.Millisecond)
	v.write("c")
	v.run(900 * time.Millisecond)
	v.wantLooks("three at once", from, 0, 100)
}

// TestWatchLearnsTheDelay has the registry show everything half a second late: first it is looked for often, then at the right time.
func TestWatchLearnsTheDelay(t *testing.T) {
	v := newWorld(t, "b")
	v.delay = 500 * time.Millisecond
	v.run(400 * time.Millisecond)
	v.looks = nil
	from := v.now
	v.write("b")
	v.run(time.Second)
	v.wantLooks("the first time", from, 0, 100, 300, 600)

	late, looks := time.Duration(0), 0
	for range 50 {
		v.looks = nil
		from := v.now.Sub(start)
		v.write("b")
		v.run(900 * time.Millisecond)
		looks += len(v.looks)
		for i, look := range v.looks {
			if look-from >= v.delay {
				late = max(late, look-from-v.delay)
				if i != len(v.looks)-1 {
					t.Errorf("looked again after the news was seen: %v", v.looks)
				}
				break
			}
		}
	}
	if late > 100*time.Millisecond || looks > 50*21/10 {
		t.Errorf("50 changes were seen up to %v late, with %d looks; want at most 100 ms and 105 looks", late, looks)
	}
	v.delay = 0
	for range 30 {
		v.write("b")
		v.run(time.Second)
	}
	if lag := v.w.sources["b"].lag; lag > 50*time.Millisecond {
		t.Errorf("the registry is fast again, and news are looked for only after %v", lag)
	}
}

// TestWatchIsNotPutOff has a cluster that changes faster than the registry shows anything.
func TestWatchIsNotPutOff(t *testing.T) {
	v := newWorld(t, "b")
	v.delay = 500 * time.Millisecond
	for range 100 {
		v.write("b")
		v.run(150 * time.Millisecond)
		if at, known := v.w.lastLook, v.now; known.Sub(at) > time.Second {
			t.Fatalf("no look for %v while a cluster goes on to change", known.Sub(at))
		}
	}
}

func TestWatchGivesUp(t *testing.T) {
	v := newWorld(t, "b")
	v.run(500 * time.Millisecond)
	v.beat = v.now.Add(time.Hour)
	v.looks = nil
	from := v.now
	v.hint("b", 1_000)
	v.run(3700 * time.Millisecond)
	v.wantLooks("what never comes", from, 0, 100, 300, 600, 1000, 1500, 2100, 2800, 3600)
	v.run(1200 * time.Millisecond)
	if len(v.looks) > 1 {
		t.Errorf("still looked for after that: %v", v.looks)
	}
}

func TestWatchHeard(t *testing.T) {
	tests := map[string]struct {
		message  Message
		want     string
		wantLook bool
	}{
		"news":                   {Message{"set1", "b", 2, 100_000}, ResultOK, true},
		"no news":                {Message{"set1", "b", 1, 100_000}, ResultOK, false},
		"older than what is":     {Message{"set1", "b", -5, 100_000}, ResultOK, false},
		"another clusterset":     {Message{"set2", "b", 2, 100_000}, ResultForeign, false},
		"in our own name":        {Message{"set1", "a", 2, 100_000}, ResultForeign, false},
		"a copy of an earlier":   {Message{"set1", "b", 2, 1}, ResultReplayed, false},
		"who may have joined":    {Message{"set1", "z", 2, 100_000}, ResultStranger, true},
		"who joined, generation": {Message{"set1", "z", 1 << 62, 1}, ResultStranger, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := newWorld(t, "b")
			v.run(500 * time.Millisecond)
			if got := v.w.Heard(v.now, tc.message); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if got := !v.w.Next(v.now).After(v.now); got != tc.wantLook {
				t.Errorf("look now: %v, want %v", got, tc.wantLook)
			}
		})
	}
}

// TestWatchRestart is a cluster that starts again with a clock that has been set back: a new token begins a new sequence.
func TestWatchRestart(t *testing.T) {
	v := newWorld(t, "b")
	message := Message{"set1", "b", 1, 1}
	if got := v.w.Heard(v.now, message); got != ResultReplayed {
		t.Fatalf("an old sequence is %s", got)
	}
	v.w.Looked([]Peer{{ClusterID: "b", Token: NewToken(), Generation: 1}}, false)
	if silent := v.w.Silent(v.now); len(silent) != 1 {
		t.Errorf("the new life counts as heard before its first hint")
	}
	if got := v.w.Heard(v.now, message); got != ResultOK {
		t.Errorf("the new life's sequence is %s", got)
	}
}

func TestWatchFailure(t *testing.T) {
	v := newWorld(t, "b")
	v.w.Looking(v.now)
	v.w.Failed(10 * time.Second)
	v.write("b")
	if got := v.w.Next(v.now).Sub(v.now); got != 10*time.Second {
		t.Errorf("the next look is in %v, want the 10 s that were asked for", got)
	}
	v.now = v.now.Add(10 * time.Second)
	v.hint("b", 1)
	v.look()
	if got := v.w.Next(v.now).Sub(v.now); got != 5*time.Second {
		t.Errorf("after the recovery the next look is in %v, want 5 s", got)
	}
}

// TestWatchFlood has members that cry wolf without end: looks stay bounded, and an honest member is still heard.
func TestWatchFlood(t *testing.T) {
	tests := map[string]struct {
		flooders []string
		maxLate  time.Duration
	}{
		"one member":   {[]string{"b"}, 250 * time.Millisecond},
		"strangers":    {[]string{"x1", "x2", "x3"}, 250 * time.Millisecond},
		"many members": {[]string{"b", "c", "d", "e", "f"}, time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := newWorld(t, "b", "c", "d", "e", "f", "honest")
			generation := int64(1_000)
			flood := func(d time.Duration) {
				for end := v.now.Add(d); v.now.Before(end); v.run(time.Millisecond) {
					generation++
					for _, id := range tc.flooders {
						v.hint(id, generation)
					}
				}
			}
			flood(20 * time.Second)
			v.looks = nil
			flood(time.Minute)
			// Half of ten looks a second, of which those of the poll are part.
			if got, most := len(v.looks), 5*60+10; got > most {
				t.Errorf("%d looks in a minute of flooding, want at most %d", got, most)
			}
			for range 10 {
				flood(time.Duration(500+rand.N(500)) * time.Millisecond)
				v.write("honest")
				wrote, want := v.now, v.shown("honest")
				for v.w.sources["honest"].peer.Generation < want {
					flood(time.Millisecond)
				}
				if late := v.now.Sub(wrote); late > tc.maxLate {
					t.Errorf("an honest member's news was seen after %v, want within %v", late, tc.maxLate)
				}
			}
		})
	}
}

// TestWatchShares: what hints may cost all clusters together is bounded, and so is what one cluster can make another spend.
func TestWatchShares(t *testing.T) {
	w := NewWatch("set1", "a", Intervals{Poll: time.Second, Relaxed: 5 * time.Second, Silence: silence})
	for _, tc := range []struct {
		clusters int
		want     rate.Limit
	}{{1, 10}, {2, 10}, {40, 10}, {80, 5}, {100, 4}, {400, 4}, {50, 8}, {2, 10}} {
		var peers []Peer
		for i := range tc.clusters - 1 {
			peers = append(peers, Peer{ClusterID: fmt.Sprint("m", i), Token: "t", Generation: 1})
		}
		w.Looked(peers, false)
		if got := w.budget.Limit(); got != tc.want {
			t.Errorf("%d clusters: %v looks a second, want %v", tc.clusters, got, tc.want)
		}
		for s := range w.all {
			if got := s.budget.Limit(); got != tc.want/2 {
				t.Errorf("%d clusters: %v looks a second for one of them, want %v", tc.clusters, got, tc.want/2)
			}
		}
	}
}

// TestWatchNeverStops has random hints and failures: there is always a next look, not before 100 ms and not after 15 s.
func TestWatchNeverStops(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			v := newWorld(t, "b", "c")
			for range 2_000 {
				switch random.IntN(6) {
				case 0:
					v.write([]string{"a", "b", "c"}[random.IntN(3)])
				case 1:
					v.hint("b", random.Int64N(1_000))
				case 2:
					v.hint(fmt.Sprint("x", random.IntN(9)), random.Int64())
				case 3:
					v.silent["c"] = !v.silent["c"]
				case 4:
					v.delay = time.Duration(random.IntN(2_000)) * time.Millisecond
				case 5:
					if !v.w.Next(v.now).After(v.now) {
						v.w.Looking(v.now)
						v.w.Failed(time.Duration(1+random.IntN(10_000)) * time.Millisecond)
					}
				}
				last := v.w.lastLook
				if next := v.w.Next(v.now); next.Sub(last) > 15*time.Second || v.w.patience == 0 && next.Sub(last) < firstWait {
					t.Fatalf("the next look is %v after the last", next.Sub(last))
				}
				v.run(time.Duration(random.IntN(100)) * time.Millisecond)
			}
		})
	}
}
