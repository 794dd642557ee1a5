package peernotify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
)

var silence = Config{}.Silence()

var start = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// simulation runs the Scheduler of cluster a in its own time, with a registry that shows writes
// after a delay.
type simulation struct {
	t     *testing.T
	s     *Scheduler
	now   time.Time
	delay time.Duration
	// writes are those of each cluster; muted clusters send no notifications.
	writes   map[string][]write
	muted    map[string]bool
	nextSend time.Time
	// reads are the times since start at which the registry was read.
	reads    []time.Duration
	sequence int64
}

type write struct {
	generation int64
	at         time.Time
}

func newSimulation(t *testing.T, clusters ...string) *simulation {
	v := &simulation{
		t: t, s: NewScheduler("set1", "a", Intervals{Poll: time.Second, PollWithNotifications: 5 * time.Second, Silence: silence}),
		now: start, nextSend: start, writes: map[string][]write{"a": {{1, time.Time{}}}}, muted: map[string]bool{},
	}
	for _, id := range clusters {
		v.writes[id] = []write{{1, time.Time{}}}
	}
	v.run(20 * time.Second)
	v.reads = nil
	return v
}

// shown returns the generation of a cluster that the registry shows.
func (v *simulation) shown(id string) (generation int64) {
	for _, w := range v.writes[id] {
		if !v.now.Before(w.at.Add(v.delay)) {
			generation = w.generation
		}
	}
	return generation
}

// run advances the time in steps of a millisecond.
func (v *simulation) run(d time.Duration) {
	for end := v.now.Add(d); v.now.Before(end); v.now = v.now.Add(time.Millisecond) {
		if !v.now.Before(v.nextSend) {
			v.nextSend = v.now.Add(SendInterval)
			for id := range v.writes {
				if id != "a" && !v.muted[id] {
					v.notify(id, v.writes[id][len(v.writes[id])-1].generation)
				}
			}
		}
		v.readIfDue()
	}
}

func (v *simulation) readIfDue() {
	if v.s.NextRead(v.now).After(v.now) {
		return
	}
	v.reads = append(v.reads, v.now.Sub(start))
	v.s.HandleReadStart(v.now)
	var peers []Peer
	for id := range v.writes {
		peers = append(peers, Peer{ClusterID: id, Key: key, Generation: v.shown(id)})
	}
	v.s.HandleReadSuccess(peers, false)
}

func (v *simulation) notify(from string, generation int64) string {
	v.sequence = max(v.sequence+1, v.now.UnixNano())
	return v.s.HandleMessage(v.now, Message{ClusterSet: "set1", From: from, Generation: generation, Sequence: v.sequence})
}

// write writes a new generation of a cluster and notifies a of it.
func (v *simulation) write(id string) {
	list := v.writes[id]
	generation := list[len(list)-1].generation + 1
	v.writes[id] = append(list, write{generation, v.now})
	if id == "a" {
		v.s.HandleOwnWrite(v.now, generation)
	} else {
		v.notify(id, generation)
	}
}

// wantReads compares the reads since the last call, in milliseconds after from.
func (v *simulation) wantReads(name string, from time.Time, want ...int) {
	v.t.Helper()
	got := []int{}
	for _, read := range v.reads {
		got = append(got, int((read - from.Sub(start)).Milliseconds()))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		v.t.Errorf("%s: times of reads in ms (-want +got):\n%s", name, diff)
	}
	v.reads = nil
}

func TestSchedulerPolls(t *testing.T) {
	tests := map[string]struct {
		clusters, muted []string
		fastPoll        bool
		wantReads       int // in a minute
	}{
		"no peers":               {nil, nil, false, 12},
		"all peers notify":       {[]string{"b", "c"}, nil, false, 12},
		"one peer is silent":     {[]string{"b", "c"}, []string{"c"}, false, 60},
		"fast poll is asked for": {nil, nil, true, 60},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := newSimulation(t, tc.clusters...)
			for _, id := range tc.muted {
				v.muted[id] = true
			}
			v.run(silence + SendInterval)
			v.s.fastPoll, v.reads = tc.fastPoll, nil
			for range 60 {
				v.run(time.Second)
				v.s.fastPoll = tc.fastPoll
			}
			if got := len(v.reads); got < tc.wantReads-1 || got > tc.wantReads+1 {
				t.Errorf("%d reads in a minute, want %d", got, tc.wantReads)
			}
			if diff := cmp.Diff(tc.muted, v.s.SilentPeers(v.now)); diff != "" {
				t.Errorf("silent peers (-want +got):\n%s", diff)
			}
			if got, want := v.s.PollInterval(v.now), time.Minute/time.Duration(tc.wantReads); got != want {
				t.Errorf("the interval is %v, want %v", got, want)
			}
		})
	}
}

// TestSchedulerPollsFastOncePeerIsSilent: the fast poll begins when the peer becomes silent, not
// after the next slow poll.
func TestSchedulerPollsFastOncePeerIsSilent(t *testing.T) {
	v := newSimulation(t, "b")
	notified := v.s.peers["b"].notified
	v.muted["b"] = true
	v.run(20 * time.Second)
	gap := time.Duration(0)
	for i, read := range v.reads[1:] {
		if at := start.Add(read); at.After(notified.Add(silence + time.Second)) {
			gap = max(gap, read-v.reads[i])
		}
	}
	if gap != time.Second {
		t.Errorf("polls every %v once the peer is silent, want every second", gap)
	}
	v.muted["b"] = false
	v.run(10 * time.Second)
	v.reads = nil
	v.run(20 * time.Second)
	if got := len(v.reads); got > 5 {
		t.Errorf("%d reads in 20 s once the peer sends again, want 4", got)
	}
}

func TestSchedulerReadsAfterNotification(t *testing.T) {
	v := newSimulation(t, "b", "c")
	v.run(500 * time.Millisecond)
	v.reads = nil
	from := v.now
	v.write("b")
	v.run(time.Second)
	v.wantReads("no delay", from, 0)

	from = v.now
	v.write("a")
	v.run(time.Second)
	v.wantReads("own write", from, 0)

	from = v.now
	v.write("b")
	v.write("c")
	v.run(50 * time.Millisecond)
	v.write("c")
	v.run(900 * time.Millisecond)
	v.wantReads("three at once", from, 0, 100)
}

// TestSchedulerRetries has registries that show writes after a delay: a change costs one read more
// for each step of the ladder.
func TestSchedulerRetries(t *testing.T) {
	for _, tc := range []struct {
		delay time.Duration
		want  []int
	}{
		{0, []int{0}},
		{200 * time.Millisecond, []int{0, 250}},
		{500 * time.Millisecond, []int{0, 250, 550}},
		{1000 * time.Millisecond, []int{0, 250, 550, 1050}},
	} {
		t.Run(tc.delay.String(), func(t *testing.T) {
			v := newSimulation(t, "b")
			v.delay = tc.delay
			for range 20 {
				v.run(3 * time.Second)
				v.reads = nil
				from := v.now
				v.write("b")
				v.run(1200 * time.Millisecond)
				v.wantReads("a change", from, tc.want...)
			}
		})
	}
}

// TestSchedulerKeepsRetry: news of another peer, and further news of the same one, do not postpone
// a retry that is due earlier.
func TestSchedulerKeepsRetry(t *testing.T) {
	for _, second := range []string{"b", "c"} {
		v := newSimulation(t, "b", "c")
		v.delay = 500 * time.Millisecond
		v.run(500 * time.Millisecond)
		v.reads = nil
		from := v.now
		v.write("b")
		v.run(400 * time.Millisecond)
		v.write(second)
		v.run(800 * time.Millisecond)
		v.wantReads("b, then "+second, from, 0, 250, 400, 550, 650, 950)
	}
}

// TestSchedulerReadsDuringSteadyChanges has a peer that announces news faster than the registry
// shows them.
func TestSchedulerReadsDuringSteadyChanges(t *testing.T) {
	v := newSimulation(t, "b")
	v.delay = 500 * time.Millisecond
	for range 100 {
		v.write("b")
		v.run(150 * time.Millisecond)
		if pause := v.now.Sub(v.s.lastRead); pause > time.Second {
			t.Fatalf("no read for %v while a cluster keeps changing", pause)
		}
	}
}

func TestSchedulerGivesUp(t *testing.T) {
	v := newSimulation(t, "b", "c")
	v.run(500 * time.Millisecond)
	v.nextSend = v.now.Add(time.Hour)
	v.reads = nil
	from := v.now
	v.notify("b", 1_000)
	v.run(3900 * time.Millisecond)
	v.wantReads("a generation that never comes", from, 0, 250, 550, 1050, 1600, 2200, 2900, 3700)
	from = v.now
	v.write("c")
	v.run(1200 * time.Millisecond)
	v.wantReads("a change after it", from, 0)
}

func TestSchedulerHandleMessage(t *testing.T) {
	tests := map[string]struct {
		from, set  string
		generation int64
		ahead      time.Duration
		want       string
		wantRead   bool
	}{
		"a new generation":             {"b", "set1", 2, 0, ResultOK, true},
		"the generation that was read": {"b", "set1", 1, 0, ResultOK, false},
		"an older generation":          {"b", "set1", -5, 0, ResultOK, false},
		"another clusterset":           {"b", "set2", 2, 0, ResultForeign, false},
		"this cluster's own ID":        {"a", "set1", 2, 0, ResultForeign, false},
		"an older sequence":            {"b", "set1", 2, -time.Minute, ResultReplayed, false},
		"a clock that is ahead":        {"b", "set1", 2, maxClockDifference - 1, ResultOK, true},
		"a sequence of the future":     {"b", "set1", 2, maxClockDifference + 1, ResultClock, false},
		"the last sequence":            {"b", "set1", 2, math.MaxInt64, ResultClock, false},
		"the first sequence":           {"b", "set1", 2, math.MinInt64, ResultClock, false},
		"a member that has left":       {"z", "set1", 2, 0, ResultUnknownPeer, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := newSimulation(t, "b")
			v.run(500 * time.Millisecond)
			message := Message{ClusterSet: tc.set, From: tc.from, Generation: tc.generation, Sequence: v.now.UnixNano() + int64(tc.ahead)}
			if tc.ahead == math.MaxInt64 || tc.ahead == math.MinInt64 {
				message.Sequence = int64(tc.ahead)
			}
			if got := v.s.HandleMessage(v.now, message); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if got := !v.s.NextRead(v.now).After(v.now); got != tc.wantRead {
				t.Errorf("read now: %v, want %v", got, tc.wantRead)
			}
		})
	}
}

// TestSchedulerHandleUnknownPeer: a cluster that may have joined makes the registry be read;
// nothing else of its message counts.
func TestSchedulerHandleUnknownPeer(t *testing.T) {
	for name, tc := range map[string]struct {
		message  Message
		want     string
		wantRead bool
	}{
		"another ID":                 {Message{ClusterSet: "set1", From: "z", Generation: 2}, ResultUnknownPeer, true},
		"another ID, last sequence":  {Message{ClusterSet: "set1", From: "z", Generation: 1 << 62, Sequence: math.MaxInt64}, ResultUnknownPeer, true},
		"a known ID and another key": {Message{ClusterSet: "set1", From: "b", Generation: 1 << 62, Sequence: math.MaxInt64}, ResultUnknownPeer, true},
		"another clusterset":         {Message{ClusterSet: "set2", From: "z"}, ResultForeign, false},
		"this cluster's own ID":      {Message{ClusterSet: "set1", From: "a"}, ResultForeign, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newSimulation(t, "b")
			v.run(500 * time.Millisecond)
			if got := v.s.HandleUnknownPeer(tc.message); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if got := !v.s.NextRead(v.now).After(v.now); got != tc.wantRead {
				t.Errorf("read now: %v, want %v", got, tc.wantRead)
			}
			v.readIfDue()
			if got := v.notify("b", 2); got != ResultOK {
				t.Errorf("the next message of b is %s", got)
			}
		})
	}
}

// TestSchedulerIgnoresReplay: a copy of the last datagram of a dead peer does not make it count as
// alive.
func TestSchedulerIgnoresReplay(t *testing.T) {
	v := newSimulation(t, "b")
	last := Message{ClusterSet: "set1", From: "b", Generation: 1, Sequence: v.now.UnixNano()}
	if got := v.s.HandleMessage(v.now, last); got != ResultOK {
		t.Fatalf("the first copy is %s", got)
	}
	v.muted["b"] = true
	for range 20 {
		v.run(time.Second)
		if got := v.s.HandleMessage(v.now, last); got != ResultReplayed {
			t.Fatalf("the same message again is %s, want %s", got, ResultReplayed)
		}
	}
	if got := v.s.PollInterval(v.now); got != time.Second || len(v.s.SilentPeers(v.now)) != 1 {
		t.Errorf("polls every %v, silent peers %v; want every second, and b silent", got, v.s.SilentPeers(v.now))
	}
}

// TestSchedulerAcceptsNewProcess has a peer restart with a clock that was set back: a new process
// begins a new sequence.
func TestSchedulerAcceptsNewProcess(t *testing.T) {
	v := newSimulation(t, "b")
	message := Message{ClusterSet: "set1", From: "b", Generation: 1, Sequence: v.now.Add(-time.Minute).UnixNano()}
	if got := v.s.HandleMessage(v.now, message); got != ResultReplayed {
		t.Fatalf("an old sequence is %s", got)
	}
	v.s.HandleReadSuccess([]Peer{{ClusterID: "b", Key: key, Process: "another", Generation: 1}}, false)
	if silent := v.s.SilentPeers(v.now); len(silent) != 1 {
		t.Errorf("the new process is not silent before its first notification")
	}
	if got := v.s.HandleMessage(v.now, message); got != ResultOK {
		t.Errorf("the sequence of the new process is %s", got)
	}
}

func TestSchedulerPausesAfterFailure(t *testing.T) {
	v := newSimulation(t, "b")
	v.s.HandleReadStart(v.now)
	v.s.HandleReadFailure(10 * time.Second)
	v.write("b")
	if got := v.s.NextRead(v.now).Sub(v.now); got != 10*time.Second {
		t.Errorf("the next read is in %v, want in 10 s", got)
	}
	v.now = v.now.Add(10 * time.Second)
	v.notify("b", 1)
	v.readIfDue()
	if got := v.s.NextRead(v.now).Sub(v.now); got != 5*time.Second {
		t.Errorf("after the recovery the next read is in %v, want in 5 s", got)
	}
}

// TestSchedulerFlood has senders that announce news without end: the rate of reads stays limited,
// and the news of an honest peer are seen within an interval of the limit.
func TestSchedulerFlood(t *testing.T) {
	tests := map[string][]string{
		"one peer":        {"b"},
		"unknown senders": {"x1", "x2", "x3"},
		"many peers":      {"b", "c", "d", "e", "f"},
	}
	for name, flooders := range tests {
		t.Run(name, func(t *testing.T) {
			v := newSimulation(t, "b", "c", "d", "e", "f", "honest")
			generation := int64(1_000)
			flood := func(d time.Duration) {
				for end := v.now.Add(d); v.now.Before(end); v.run(time.Millisecond) {
					generation++
					for _, id := range flooders {
						v.notify(id, generation)
					}
				}
			}
			flood(20 * time.Second)
			v.reads = nil
			flood(time.Minute)
			if got, most := len(v.reads), 60*int(maxReads)+readBurst; got > most {
				t.Errorf("%d reads in a minute of flooding, want at most %d", got, most)
			}
			for range 10 {
				flood(time.Duration(500+rand.N(500)) * time.Millisecond)
				v.write("honest")
				wrote, want := v.now, v.shown("honest")
				for v.s.peers["honest"].Generation < want {
					flood(time.Millisecond)
				}
				if late := v.now.Sub(wrote); late > 110*time.Millisecond {
					t.Errorf("the news of an honest peer were seen after %v, want within 100 ms", late)
				}
			}
		})
	}
}

// TestSchedulerRateLimit: the reads that notifications cause are limited for all clusters of an
// account together.
func TestSchedulerRateLimit(t *testing.T) {
	s := NewScheduler("set1", "a", Intervals{Poll: time.Second, PollWithNotifications: 5 * time.Second, Silence: silence})
	for _, tc := range []struct {
		clusters int
		want     rate.Limit
	}{{1, 10}, {2, 10}, {40, 10}, {80, 5}, {100, 4}, {400, 1}, {1000, 1}, {50, 8}, {2, 10}} {
		var peers []Peer
		for i := range tc.clusters - 1 {
			peers = append(peers, Peer{ClusterID: fmt.Sprint("m", i), Key: "k", Generation: 1})
		}
		s.HandleReadSuccess(peers, false)
		if got := s.limiter.Limit(); got != tc.want {
			t.Errorf("%d clusters: %v reads a second, want %v", tc.clusters, got, tc.want)
		}
	}
}

// TestSchedulerNeverStops has random notifications and failures: there is always a next read, not
// before 100 ms and not after 15 s.
func TestSchedulerNeverStops(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			v := newSimulation(t, "b", "c")
			for range 2_000 {
				switch random.IntN(6) {
				case 0:
					v.write([]string{"a", "b", "c"}[random.IntN(3)])
				case 1:
					v.notify("b", random.Int64N(1_000))
				case 2:
					v.notify(fmt.Sprint("x", random.IntN(9)), random.Int64())
				case 3:
					v.muted["c"] = !v.muted["c"]
				case 4:
					v.delay = time.Duration(random.IntN(2_000)) * time.Millisecond
				case 5:
					if !v.s.NextRead(v.now).After(v.now) {
						v.s.HandleReadStart(v.now)
						v.s.HandleReadFailure(time.Duration(1+random.IntN(10_000)) * time.Millisecond)
					}
				}
				last := v.s.lastRead
				if next := v.s.NextRead(v.now); next.Sub(last) > 15*time.Second || v.s.failurePause == 0 && next.Sub(last) < minReadInterval {
					t.Fatalf("the next read is %v after the last", next.Sub(last))
				}
				v.run(time.Duration(random.IntN(100)) * time.Millisecond)
			}
		})
	}
}

// An announcement is known until a read has shown the generation.
func TestAnnounced(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := NewScheduler("set1", "cls1", Intervals{Poll: time.Second, PollWithNotifications: 5 * time.Second, Silence: 7 * time.Second})
	show := func(generation int64) {
		s.HandleReadStart(now)
		s.HandleReadSuccess([]Peer{{ClusterID: "cls2", Key: "key", Process: "1", Generation: generation}}, false)
	}
	check := func(when string, want time.Time) {
		t.Helper()
		if got := s.Announced("cls2"); !got.Equal(want) {
			t.Errorf("%s: announced at %v, want %v", when, got, want)
		}
	}
	check("before it is known", time.Time{})
	show(1)
	check("without a notification", time.Time{})
	announced := now.Add(time.Millisecond)
	if result := s.HandleMessage(announced, Message{ClusterSet: "set1", From: "cls2", Generation: 2, Sequence: announced.UnixNano()}); result != ResultOK {
		t.Fatalf("the notification is %s", result)
	}
	check("after a notification", announced)
	now = now.Add(200 * time.Millisecond)
	show(1)
	check("while the registry does not show it", announced)
	show(2)
	check("when the registry shows it", time.Time{})
}

// TestScheduler_IsReadWanted: only news wakes the reader, once.
func TestScheduler_IsReadWanted(t *testing.T) {
	now := time.Now()
	s := NewScheduler("set1", "cls1", Intervals{Poll: time.Second, PollWithNotifications: 5 * time.Second, Silence: 7 * time.Second})
	s.HandleReadStart(now)
	s.HandleReadSuccess([]Peer{{ClusterID: "cls2", Key: "k", Generation: 5}}, false)
	notify := func(after time.Duration, generation int64) {
		t.Helper()
		at := now.Add(after)
		if result := s.HandleMessage(at, Message{ClusterSet: "set1", From: "cls2", Generation: generation, Sequence: at.UnixNano()}); result != ResultOK {
			t.Errorf("the result is %s", result)
		}
	}
	notify(time.Second, 5)
	if s.IsReadWanted() {
		t.Error("a read is wanted for a generation that was read")
	}
	notify(2*time.Second, 6)
	if !s.IsReadWanted() {
		t.Error("no read is wanted for a new generation")
	}
	s.HandleReadStart(now.Add(2 * time.Second))
	if s.IsReadWanted() {
		t.Error("a read is wanted although one has begun since the news")
	}
}

// BenchmarkScheduler measures what a notification without news costs, and each poll: all peers are
// compared with those that it has shown, and the next one is scheduled.
func BenchmarkScheduler(b *testing.B) {
	for _, count := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", count), func(b *testing.B) {
			s := NewScheduler("set1", "cls1", Intervals{Poll: time.Second, PollWithNotifications: 5 * time.Second, Silence: 7 * time.Second})
			peers := make([]Peer, count)
			for i := range peers {
				peers[i] = Peer{ClusterID: fmt.Sprint("other-", i), Key: "k", Generation: 5}
			}
			now := time.Now()
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				// each cluster sends one in SendInterval
				now = now.Add(2 * time.Second / time.Duration(count))
				s.HandleMessage(now, Message{ClusterSet: "set1", From: peers[n%count].ClusterID, Generation: 5, Sequence: now.UnixNano()})
				if n%(count*5/2) == 0 { // PollWithNotifications
					s.HandleReadStart(now)
					s.HandleReadSuccess(peers, false)
					s.NextRead(now)
				}
			}
		})
	}
}

// TestSchedulerArrivals: records that a peer has sent make its notification cause no read, unless
// they do not count, whichever comes first.
func TestSchedulerArrivals(t *testing.T) {
	for name, tc := range map[string]struct {
		act       func(v *simulation, generation int64)
		wantReads bool
	}{
		"whole, then notified": {func(v *simulation, generation int64) {
			v.s.HandleArrival("b", generation)
			v.s.HandleArrived(v.now, "b", generation, true)
			v.notify("b", generation)
		}, false},
		"notified while they are verified": {func(v *simulation, generation int64) {
			v.s.HandleArrival("b", generation)
			v.notify("b", generation)
			v.s.HandleArrived(v.now, "b", generation, true)
		}, false},
		"they do not count": {func(v *simulation, generation int64) {
			v.s.HandleArrival("b", generation)
			v.notify("b", generation)
			v.s.HandleArrived(v.now, "b", generation, false)
		}, true},
		"a later notification meanwhile": {func(v *simulation, generation int64) {
			v.s.HandleArrival("b", generation)
			v.notify("b", generation+1)
			v.s.HandleArrived(v.now, "b", generation, true)
		}, true},
		"of a cluster that has left": {func(v *simulation, generation int64) {
			v.writes["b"] = v.writes["b"][:1]
			v.s.HandleArrival("c", generation)
			v.s.HandleArrived(v.now, "c", generation, false)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newSimulation(t, "b")
			v.delay = time.Second
			list := v.writes["b"]
			generation := list[len(list)-1].generation + 1
			v.writes["b"] = append(list, write{generation, v.now})
			tc.act(v, generation)
			v.run(400 * time.Millisecond)
			if got := len(v.reads) > 0; got != tc.wantReads {
				t.Errorf("%d reads, want some: %v", len(v.reads), tc.wantReads)
			}
		})
	}
}
