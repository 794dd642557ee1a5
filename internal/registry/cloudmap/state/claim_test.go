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

// farewellOf is a farewell with cls1's ID, signed by the cluster with a UID.
func farewellOf(uid string, heartbeat int64) *format.Member {
	r := claimRecord(uid, -time.Hour, heartbeat)
	r.Farewell = true
	return r
}

// TestClaim_IsUnprovenAfterAudits: another cluster with the ID may have overwritten the copy of the
// record when it began. The audit of the cluster that has the ID writes it again, however short the
// time is after which a cluster is stale.
func TestClaim_IsUnprovenAfterAudits(t *testing.T) {
	for name, tt := range map[string]struct{ staleAfter, audit, want time.Duration }{
		"frequent audits": {2 * time.Minute, 2 * time.Minute, 4 * time.Minute},
		"rare audits":     {48 * time.Second, 2 * time.Minute, 4 * time.Minute},
	} {
		cfg := testConfig()
		cfg.StaleAfter, cfg.Intervals.Audit = tt.staleAfter, tt.audit
		c := newClaim(cfg)
		c.observeProof(claimBegan, nil)
		if c.isUnproven(claimBegan.Add(tt.want-1)) || !c.isUnproven(claimBegan.Add(tt.want)) {
			t.Errorf("%s: records of the other cluster do not count after another time than %v", name, tt.want)
		}
	}
}

// TestClaim_IsHeldBack: pages that are found while the claim is young are not those of another
// process if its record announces other ones.
func TestClaim_IsHeldBack(t *testing.T) {
	found := storedPage{digest: "earlier", generation: 7}
	for name, tt := range map[string]struct {
		uid, announced string
		generation     int64
		since          time.Duration
		want           bool
	}{
		"another page":                     {uid: cls1.UID, announced: "later", generation: 9, want: true},
		"another page of one generation":   {uid: cls1.UID, announced: "later", generation: 7},
		"another page, minutes ago":        {uid: cls1.UID, announced: "later", generation: 9, since: rivalSilence},
		"this page":                        {uid: cls1.UID, announced: "earlier", generation: 9},
		"a page of before":                 {uid: cls1.UID, announced: "first", generation: 6},
		"no page":                          {uid: cls1.UID, generation: 9},
		"a page that is not written":       {uid: cls1.UID, announced: format.UnwrittenDigest, generation: 9},
		"another page, by another cluster": {uid: "uid-2", announced: "later", generation: 9},
	} {
		t.Run(name, func(t *testing.T) {
			c, taken := testClaim(), claimRecord(tt.uid, 0, 5)
			taken.Pages[3], taken.Generation = tt.announced, tt.generation
			c.acquire(claimBegan, *taken)
			if got := c.isHeldBack(claimBegan.Add(tt.since), 3, &found); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

// TestClaim_ReturnsAfterOwnLateWrite: a cluster gives way to a rival, and a late write of its own
// replaces the rival's record. If the rival writes none any more, as one that another member has
// forged, the cluster claims the ID again.
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

// TestClaim_IsYoungBesideLiveProcess: records of another process that are not later than the own
// one, because its clock is behind, keep the claim young as long as they advance, and until their
// process is silent. Late reads do not.
func TestClaim_IsYoungBesideLiveProcess(t *testing.T) {
	ours := claimRecord(cls1.UID, 0, 1000)
	ours.Process = "2-own"
	c, now := testClaim(), claimBegan
	read := func(after time.Duration, heartbeat int64) bool {
		now = now.Add(after)
		c.observe(now, claimRecord(cls1.UID, 0, heartbeat), *ours)
		return c.isYoung()
	}
	own := func(after time.Duration) bool {
		now = now.Add(after)
		c.observe(now, ours, *ours)
		return c.isYoung()
	}
	c.joined = true
	read(0, 10) // claims the ID in place of it
	own(time.Second)
	for _, heartbeat := range []int64{10, 9} {
		if read(youngClaim/2, heartbeat); own(0) != (now.Sub(claimBegan) < youngClaim) {
			t.Errorf("young: %t, %v after the claim, with late reads", c.isYoung(), now.Sub(claimBegan))
		}
	}
	for heartbeat := int64(11); heartbeat < 30; heartbeat++ {
		if !read(youngClaim/2, heartbeat) || c.state != Held {
			t.Fatalf("young: %t, state %v, beside another process", c.isYoung(), c.state)
		}
	}
	const interval = youngClaim / 3
	for silent := interval; silent < rivalSilence; silent += interval {
		if !own(interval) {
			t.Fatalf("not young after the other process was silent for %v, want %v", silent, rivalSilence)
		}
	}
	if own(interval) {
		t.Error("young after the other process was silent")
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

// TestClaim_WaitsForVanishedRecord: another writer removed a record. Its cluster, if it is alive,
// writes it again within the time after which it is stale.
func TestClaim_WaitsForVanishedRecord(t *testing.T) {
	empty := claimRecord("other", 0, 1)
	exporting := *empty
	exporting.Pages[7] = format.Digest([]byte("page"))
	farewell := exporting
	farewell.Farewell, farewell.Heartbeat = true, 2
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

// TestClaim plays what a process reads of the record with its cluster's ID. A step is one read;
// time passes between steps.
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
			// its time of joining is no proof
			{shown: claimRecord("other", -time.Hour, 3), wantState: Held, wantWrite: true},
			{shown: claimRecord("other", -time.Hour, 3), wantState: Held},
		}},
		"the earlier owner, live, after a restart": {setUp: []func(*claim){joined, earlierOwner}, steps: []step{
			{shown: claimRecord("other", -time.Hour, 1), wantRival: "other"},
			{after: time.Minute, shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
		}},
		"a farewell that another has signed, or that is a replay": {steps: []step{
			{shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
			{after: time.Minute, shown: farewellOf("forger", 9), wantRival: "other"},
			{after: 30 * time.Second, shown: farewellOf("other", 1), wantRival: "other"},
			{after: 29 * time.Second, shown: farewellOf("forger", 10), wantRival: "other"},
			// the cluster that had the ID is silent
			{after: time.Second, shown: farewellOf("forger", 10), wantState: Acquiring, wantWrite: true},
		}},
		"a farewell of the cluster itself, after a forged record": {steps: []step{
			{shown: claimRecord("other", -time.Hour, 2), wantRival: "other"},
			{after: time.Second, shown: claimRecord("forger", -time.Hour, 3), wantRival: "forger"},
			{after: time.Second, shown: farewellOf("forger", 4), wantRival: "forger"},
			{after: time.Second, shown: farewellOf("other", 3), wantState: Acquiring, wantWrite: true},
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
			// it may be a late write
			{shown: process("1-original", 11), wantState: Held, wantWrite: true},
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: 100 * time.Second, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: rivalSilence - 1, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: 1, shown: process("1-original", 13), wantState: Acquiring, wantWrite: true},
		}},
		"a live clone whose record one read lacks": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-original", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-original", 11), wantState: Held, wantWrite: true},
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: 12 * time.Second, wantRival: cls1.UID},
			{after: 3 * time.Second, wantRival: cls1.UID},
			{after: 3 * time.Second, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: 3 * time.Second, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: rivalSilence - 4*time.Second, wantRival: cls1.UID},
			{after: time.Second, wantState: Acquiring, wantWrite: true},
		}},
		"a live clone whose record is replaced by one of before": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-original", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-original", 11), wantState: Held, wantWrite: true},
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: 12 * time.Second, shown: process("0-before", 5), wantRival: cls1.UID},
			{after: 3 * time.Second, shown: process("1-original", 13), wantRival: cls1.UID},
			{after: rivalSilence - time.Second, shown: process("0-before", 5), wantRival: cls1.UID},
			{after: time.Second, shown: process("0-before", 5), wantState: Acquiring, wantWrite: true},
		}},
		"a live clone that restarts": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-original", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-original", 11), wantState: Held, wantWrite: true},
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: time.Minute, shown: process("3-restarted", 13), wantRival: cls1.UID},
			{after: rivalSilence - time.Second, shown: process("3-restarted", 14), wantRival: cls1.UID},
			{after: rivalSilence - time.Second, shown: process("3-restarted", 14), wantRival: cls1.UID},
			{after: time.Second, shown: process("3-restarted", 14), wantState: Acquiring, wantWrite: true},
		}},
		"a clone that says farewell": {setUp: []func(*claim){joined}, steps: []step{
			{shown: process("1-original", 9), wantState: Acquiring, wantWrite: true},
			{shown: ours, wantState: Held},
			{shown: process("1-original", 11), wantState: Held, wantWrite: true},
			{shown: process("1-original", 12), wantRival: cls1.UID},
			{after: time.Second, shown: farewellOf(cls1.UID, 13), wantState: Acquiring, wantWrite: true},
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

// TestClaim_IsFinalWithRareReads: with peer notifications a cluster may poll less often than the
// claim is young. It becomes final all the same, and withdrawals that wait for that end.
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

// A cluster that claims its ID keeps the pages of its previous process. Pages whose record is gone
// may be those of another cluster.
func TestPrepareClaim(t *testing.T) {
	own := format.Member{ClusterID: "cls1", UID: "uid-1", Key: signerOf("uid-1").Key()}
	left, other := own, own
	left.Farewell, other.UID, other.Key = true, "uid-9", signerOf("uid-9").Key()
	for name, tt := range map[string]struct {
		shown                      *format.Member
		joined, hasHeld, leftovers bool
		want                       bool
	}{
		"no record":                                   {},
		"no record, but pages":                        {leftovers: true, want: true},
		"its record":                                  {shown: &own, want: true},
		"a farewell":                                  {shown: &left},
		"a farewell, and pages":                       {shown: &left, leftovers: true, want: true},
		"the record of another":                       {shown: &other, want: true},
		"no record, but it has joined":                {joined: true, want: true},
		"no record, but a process of it held the ID":  {hasHeld: true, want: true},
		"a farewell, and a process of it held the ID": {shown: &left, hasHeld: true, want: true},
	} {
		s := New(testConfig())
		s.claim.joined, s.claim.hasHeld, s.Reads.leftovers = tt.joined, tt.hasHeld, tt.leftovers
		s.Reads.prepareClaim(time.Now(), tt.shown)
		if s.outbox.state.HasPredecessor() != tt.want || !s.copyRecord {
			t.Errorf("%s: successor: %t, copy of the record due: %t", name, s.outbox.state.HasPredecessor(), s.copyRecord)
		}
	}
}

// A member whose record is overwritten reads its pages soon, and writes its record at the rate of
// ObserveMembers. A cluster that has not shown yet that the ID is its own does both at once.
func TestAnswerRival(t *testing.T) {
	for name, tt := range map[string]struct {
		claim               ClaimState
		joined              bool
		announces, audits   bool
		wantAuditWithinBeat bool
	}{
		"a member":                  {claim: Held, joined: true, wantAuditWithinBeat: true},
		"it holds the ID":           {claim: Held, announces: true, audits: true},
		"it acquires the ID":        {claim: Acquiring, announces: true},
		"a member acquires it anew": {claim: Acquiring, joined: true, announces: true},
	} {
		s := New(testConfig())
		now := time.Now()
		s.claim.state, s.claim.joined, s.announce = tt.claim, tt.joined, false
		unset := now.Add(time.Hour)
		s.Reads.audited, s.Reads.auditAt = now, unset
		s.Reads.answerRival(now)
		wantAudit := unset
		switch {
		case tt.audits:
			wantAudit = now
		case tt.wantAuditWithinBeat:
			wantAudit = now.Add(s.cfg.HeartbeatInterval)
		}
		if s.announce != tt.announces || !s.Reads.auditAt.Equal(wantAudit) {
			t.Errorf("%s: announces: %t, reads its pages in %v, want %t and %v", name, s.announce, s.Reads.auditAt.Sub(now), tt.announces, wantAudit.Sub(now))
		}
	}
}
