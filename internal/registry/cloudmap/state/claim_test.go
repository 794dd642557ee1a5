package state

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	rivalSilence = 2 * time.Minute
	youngClaim   = 15 * time.Second
)

var claimBegan = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// testClaim is a claim of cls1 by process "2-own".
func testClaim() claim {
	return claim{
		keys: signerOf(cls1.UID).Keys(), process: "2-own", rivalSilence: rivalSilence, young: youngClaim, pause: youngClaim / 2,
		isEarlierOwner: func(trust.Key) bool { return false },
	}
}

// claimRecord is a record with cls1's ID, signed by the cluster with a UID.
func claimRecord(uid string, joined time.Duration, heartbeat int64) *format.Member {
	return &format.Member{
		ClusterID: cls1.ClusterID, UID: uid, Key: signerOf(uid).Key(), Process: "1-" + uid, Joined: claimBegan.Add(joined), Heartbeat: heartbeat,
	}
}

// TestClaim_ReturnsAfterOwnLateWrite: a cluster gives way to a rival, and a late write of its own replaces the rival's record. If the rival writes none any
// more, as one that another member has forged, the cluster claims the ID again.
func TestClaim_ReturnsAfterOwnLateWrite(t *testing.T) {
	c := testClaim()
	now := claimBegan
	own, rival := claimRecord("uid-1", time.Hour, 5), claimRecord("uid-2", 0, 9)
	own.Process = c.process
	c.state, c.claimed = Held, now
	if c.observe(now, rival, *own); c.state != Observing {
		t.Fatalf("state %v after a rival with an older claim, want Observing", c.state)
	}
	for range 200 {
		now = now.Add(time.Second)
		c.observe(now, own, *own)
		if took := now.Sub(claimBegan); c.state != Observing && took < rivalSilence {
			t.Fatalf("claimed again after %v, want %v at least", took, rivalSilence)
		}
	}
	if c.state != Held {
		t.Errorf("state %v after the rival was silent, want Held", c.state)
	}
}

// TestClaim_IsYoungAfterPause: while the members cannot be read, a clone does not show either.
func TestClaim_IsYoungAfterPause(t *testing.T) {
	now, c := claimBegan, testClaim()
	c.observe(now, nil, format.Member{})
	c.acquire(now, format.Member{})
	read := func(after time.Duration) bool {
		now = now.Add(after)
		c.observe(now, nil, format.Member{})
		return c.isYoung()
	}
	if read(5 * time.Second); !read(time.Minute) {
		t.Error("the claim is not young after a minute without a read")
	}
	for range 2 {
		if !read(5 * time.Second) {
			t.Error("the claim is not young within its time after the pause")
		}
	}
	if read(5 * time.Second) {
		t.Error("the claim is young after its time")
	}
	c.acquire(now, format.Member{})
	if now = now.Add(time.Hour); !c.isYoung() {
		t.Error("the claim is not young before a read")
	}
}

// TestClaim_WaitsForLateReads: an ID is claimed after the time by which reads may be late.
func TestClaim_WaitsForLateReads(t *testing.T) {
	now := claimBegan
	const settle = 2 * time.Second
	other := claimRecord("other", 0, 1)
	c := testClaim()
	c.settle = settle
	for _, s := range []struct {
		after time.Duration
		shown *format.Member
		want  bool
	}{{0, nil, false}, {settle - 1, nil, false}, {0, other, false}, {time.Second, nil, false}, {settle - 1, nil, false}, {1, nil, true}} {
		now = now.Add(s.after)
		if got := c.observe(now, s.shown, format.Member{}); got != s.want {
			t.Errorf("after %v: claimed %v, want %v", s.after, got, s.want)
		}
	}
}

// TestClaim_WaitsForVanishedRecord: another writer removed a record. Its cluster, if it is alive, writes it again within the time after which it is stale.
func TestClaim_WaitsForVanishedRecord(t *testing.T) {
	empty := claimRecord("other", 0, 1)
	exporting := *empty
	exporting.Pages[7] = format.Digest([]byte("page"))
	farewell := exporting
	farewell.Farewell = true
	for name, tc := range map[string]struct {
		shown []*format.Member
		want  bool
	}{
		"without pages":         {[]*format.Member{empty, nil}, true},
		"with pages":            {[]*format.Member{&exporting, nil}, false},
		"followed by farewell":  {[]*format.Member{&exporting, &farewell}, true},
		"a farewell that stays": {[]*format.Member{&farewell}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c, now := testClaim(), claimBegan
			c.settle = time.Second
			for _, shown := range tc.shown {
				c.observe(now, shown, format.Member{})
			}
			last := tc.shown[len(tc.shown)-1]
			if got := c.observe(now.Add(rivalSilence-1), last, format.Member{}); got != tc.want {
				t.Errorf("claimed %v before the other cluster counts as dead, want %v", got, tc.want)
			}
			if c.observe(now.Add(rivalSilence), last, format.Member{}); c.state != Acquiring {
				t.Error("not claimed after the other cluster counts as dead")
			}
		})
	}
}

// TestClaim plays what a process reads of the record with its cluster's ID. A step is one read; time passes between steps.
func TestClaim(t *testing.T) {
	ours := claimRecord(cls1.UID, 0, 10)
	ours.Process = "2-own"
	process := func(name string, heartbeat int64) *format.Member {
		r := claimRecord(cls1.UID, 0, heartbeat)
		r.Process = name
		return r
	}
	earlierOwner := func(c *claim) {
		c.isEarlierOwner = func(key trust.Key) bool { return key == signerOf("other").Key() }
	}
	joined := func(c *claim) { c.joined = true }
	unproven := func(since time.Duration) func(*claim) {
		return func(c *claim) { c.unprovenSince = claimBegan.Add(-since) }
	}
	type step struct {
		after     time.Duration
		shown     *format.Member
		wantState ClaimState
		wantWrite bool
		// wantRival is the UID of the cluster that has the ID.
		wantRival string
	}
	tests := map[string]struct {
		setUp []func(*claim)
		steps []step
	}{
		"no record": {steps: []step{
			{wantState: Acquiring, wantWrite: true},
			{wantState: Acquiring}, // not visible yet
			{shown: ours, wantState: Held},
			{wantState: Held},
		}},
		"a previous process": {steps: []step{
			{shown: process("1-before", 9), wantState: Acquiring, wantWrite: true},
			{shown: process("1-before", 9), wantState: Acquiring}, // a late read
			{shown: ours, wantState: Held},
			{shown: process("1-before", 9), wantState: Held},
		}},
		"a live cluster": {steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
			{after: 100 * time.Second, shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
			{after: 119 * time.Second, shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
		}},
		"a dead cluster": {steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
			{after: rivalSilence, shown: claimRecord("other", -time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("other", -time.Hour, 1), wantState: Acquiring}, // a late read
			{shown: ours, wantState: Held},
			{shown: claimRecord("other", -time.Hour, 1), wantState: Held}, // another late read
		}},
		"a cluster that took the ID while this one was down": {setUp: []func(*claim){joined}, steps: []step{
			{shown: claimRecord("other", time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("other", time.Hour, 2), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: claimRecord("other", -time.Hour, 3), wantState: Held, wantWrite: true}, // its time of joining is no proof
			{shown: claimRecord("other", -time.Hour, 3), wantState: Held},
		}},
		"the earlier owner, live, after a restart": {setUp: []func(*claim){joined, earlierOwner}, steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
			{after: time.Minute, shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
		}},
		"the earlier owner returns": {setUp: []func(*claim){earlierOwner}, steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
			{after: rivalSilence, shown: claimRecord("other", -time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{after: time.Hour, shown: ours, wantState: Held},
			{shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
		}},
		"both start at once, this one is older": {steps: []step{
			{wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("other", time.Second, 1), wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("other", time.Second, 1), wantState: Acquiring}, // once is enough
			{shown: ours, wantState: Held},
			{shown: claimRecord("other", time.Second, 2), wantState: Held, wantWrite: true},
		}},
		"both start at once, the other one is older": {steps: []step{
			{wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: claimRecord("other", -time.Second, 1), wantRival: "other"},
			{shown: claimRecord("other", -time.Second, 2), wantRival: "other"},
		}},
		"both start at the same time, the lower UID stays": {steps: []step{
			{wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("zzz", 0, 1), wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("aaa", 0, 1), wantRival: "aaa"},
		}},
		"a clone that started earlier": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-original", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-original", 11), wantState: Held, wantWrite: true}, // it may be a late write
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: 100 * time.Second, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: rivalSilence - 1, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: 1, shown: process("1-original", 13), wantState: Acquiring, wantWrite: true},
		}},
		"a late write of a previous process whose clock was ahead": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-before", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-before", 11), wantState: Held, wantWrite: true},
			{after: time.Minute, shown: ours, wantState: Held},
		}},
		"a live record without a copy in the catalog": {setUp: []func(*claim){unproven(proofSilences * rivalSilence)}, steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: claimRecord("other", -time.Hour, 2), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: claimRecord("other", -time.Hour, 3), wantState: Held, wantWrite: true},
		}},
		"a live record whose copy may still be written": {setUp: []func(*claim){unproven(proofSilences*rivalSilence - time.Second)}, steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
		}},
		"a clone that started later": {setUp: []func(*claim){joined}, steps: []step{
			{wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("3-clone", 11), wantState: Held, wantWrite: true},
			{shown: process("3-clone", 11), wantState: Held},
			{shown: ours, wantState: Held},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := testClaim()
			for _, change := range tc.setUp {
				change(&c)
			}
			now := claimBegan
			for i, s := range tc.steps {
				now = now.Add(s.after)
				wasObserving, free := c.state == Observing, c.free(now, s.shown)
				write := c.observe(now, s.shown, *ours)
				if c.state != s.wantState || write != s.wantWrite || c.refused() != s.wantRival {
					t.Fatalf("step %d: state %v, write %v, refused for %q; want %v, %v, %q", i, c.state, write, c.refused(), s.wantState, s.wantWrite, s.wantRival)
				}
				if claimed := wasObserving && c.state == Acquiring; free != claimed {
					t.Errorf("step %d: free said %v and observe claimed: %v", i, free, claimed)
				}
			}
		})
	}
}

// TestClaim_IsFinalWithRareReads: with peer notifications a cluster may poll less often than the claim is young. It becomes final all the same, and
// withdrawals that wait for that end.
func TestClaim_IsFinalWithRareReads(t *testing.T) {
	const interval = 30 * time.Second
	c := newClaim(Config{HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute, PollInterval: time.Second, LongestPollInterval: interval})
	now := claimBegan
	c.observeRead(now)
	c.acquire(now, format.Member{})
	for range 2 {
		now = now.Add(interval)
		c.observeRead(now)
	}
	if c.isYoung() {
		t.Errorf("the claim is young after %v", now.Sub(claimBegan))
	}
	now = now.Add(10 * interval) // the record could not be read
	if c.observeRead(now); !c.isYoung() {
		t.Error("the claim is not young after a pause")
	}
}
