package state

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestClaimSettles waits for late reads before it claims.
func TestClaimSettles(t *testing.T) {
	began := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	const settle = 2 * time.Second
	other := &format.Member{ClusterID: cls1.ClusterID, UID: "other", Heartbeat: 1}
	c := claim{identity: cls1, silence: time.Minute, settle: settle}
	// What is asked is whether a claim is made after so much time, having seen this before.
	for _, s := range []struct {
		after time.Duration
		shown *format.Member
		want  bool
	}{{0, nil, false}, {settle - 1, nil, false}, {0, other, false}, {time.Second, nil, false}, {settle - 1, nil, false}, {1, nil, true}} {
		began = began.Add(s.after)
		if got := c.observe(began, s.shown, format.Member{}); got != s.want {
			t.Errorf("after %v: claimed %v, want %v", s.after, got, s.want)
		}
	}
}

// TestClaimOfVanishedRecord is a record that another writer removed: its cluster, if it lives, has until its next heartbeats to
// write it again.
func TestClaimOfVanishedRecord(t *testing.T) {
	const silence = 30 * time.Second
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	other := format.Member{ClusterID: cls1.ClusterID, UID: "other", Heartbeat: 1}
	exporting := other
	exporting.Pages[7] = format.Digest([]byte("page"))
	for name, tc := range map[string]struct {
		last format.Member
		want bool
	}{"it left, and said so": {other, true}, "it just vanished": {exporting, false}} {
		t.Run(name, func(t *testing.T) {
			c := claim{identity: cls1, silence: silence, settle: time.Second}
			c.observe(now, &tc.last, format.Member{})
			c.observe(now, nil, format.Member{})
			if got := c.observe(now.Add(silence-1), nil, format.Member{}); got != tc.want {
				t.Errorf("claimed %v within the silence of a dead cluster, want %v", got, tc.want)
			}
			if c.observe(now.Add(silence), nil, format.Member{}); c.state != Acquiring {
				t.Error("not claimed after the silence of a dead cluster")
			}
		})
	}
}

// TestClaim plays what a cluster reads of the record that has its ID. A step is one read; time passes between steps.
func TestClaim(t *testing.T) {
	const silence = 30 * time.Second
	began := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	ours := format.Member{ClusterID: cls1.ClusterID, UID: cls1.UID, Joined: began}
	beat := func(uid string, joined time.Duration, heartbeat int64) *format.Member {
		return &format.Member{ClusterID: cls1.ClusterID, UID: uid, Joined: began.Add(joined), Heartbeat: heartbeat}
	}
	type step struct {
		after     time.Duration
		shown     *format.Member
		wantState ClaimState
		wantWrite bool
		// wantRival is the UID of the cluster that keeps us out.
		wantRival string
	}
	mine := &ours
	tests := map[string][]step{
		"no cluster has it": {
			{shown: nil, wantState: Acquiring, wantWrite: true},
			{shown: nil, wantState: Acquiring}, // not visible yet
			{shown: mine, wantState: Held},
			{shown: nil, wantState: Held},
		},
		"ours of the previous process": {
			{shown: mine, wantState: Acquiring, wantWrite: true},
			{shown: mine, wantState: Held},
		},
		"another cluster's, alive": {
			{shown: beat("other", -time.Hour, 1), wantState: Observing, wantRival: "other"},
			{after: 20 * time.Second, shown: beat("other", -time.Hour, 2), wantState: Observing, wantRival: "other"},
			{after: 20 * time.Second, shown: beat("other", -time.Hour, 3), wantState: Observing, wantRival: "other"},
			{after: 29 * time.Second, shown: beat("other", -time.Hour, 3), wantState: Observing, wantRival: "other"},
		},
		"another cluster's, dead": {
			{shown: beat("other", -time.Hour, 1), wantState: Observing, wantRival: "other"},
			{after: silence, shown: beat("other", -time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: beat("other", -time.Hour, 1), wantState: Acquiring}, // a late read
			{shown: mine, wantState: Held},
			{shown: beat("other", -time.Hour, 1), wantState: Held}, // another late read
		},
		"another cluster's, leaving": {
			{shown: beat("other", -time.Hour, 1), wantState: Observing, wantRival: "other"},
			{shown: nil, wantState: Acquiring, wantWrite: true},
			{shown: mine, wantState: Held},
		},
		"taken for dead, and back with the older right": {
			{shown: beat("other", -time.Hour, 1), wantState: Observing, wantRival: "other"},
			{after: silence, shown: beat("other", -time.Hour, 1), wantState: Acquiring, wantWrite: true},
			{shown: mine, wantState: Held},
			{after: time.Minute, shown: beat("other", -time.Hour, 2), wantState: Observing, wantRival: "other"},
		},
		"both start at once, we are older": {
			{shown: nil, wantState: Acquiring, wantWrite: true},
			{shown: beat("other", time.Second, 1), wantState: Acquiring, wantWrite: true},
			{shown: beat("other", time.Second, 1), wantState: Acquiring}, // once is enough
			{shown: mine, wantState: Held},
			{shown: beat("other", time.Second, 2), wantState: Held, wantWrite: true},
		},
		"both start at once, the other is older": {
			{shown: nil, wantState: Acquiring, wantWrite: true},
			{shown: mine, wantState: Held},
			{shown: beat("other", -time.Second, 1), wantState: Observing, wantRival: "other"},
			{shown: beat("other", -time.Second, 2), wantState: Observing, wantRival: "other"},
		},
		"both start at the same time, the lower UID stays": {
			{shown: nil, wantState: Acquiring, wantWrite: true},
			{shown: beat("zzz", 0, 1), wantState: Acquiring, wantWrite: true},
			{shown: beat("aaa", 0, 1), wantState: Observing, wantRival: "aaa"},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			c := claim{identity: cls1, silence: silence}
			now := began
			for i, s := range steps {
				now = now.Add(s.after)
				wasWatching, free := c.state == Observing, c.free(now, s.shown)
				write := c.observe(now, s.shown, ours)
				if c.state != s.wantState || write != s.wantWrite || c.refused() != s.wantRival {
					t.Fatalf("step %d: state %v, write %v, refused for %q; want %v, %v, %q", i, c.state, write, c.refused(), s.wantState, s.wantWrite, s.wantRival)
				}
				if claimed := wasWatching && c.state == Acquiring; free != claimed {
					t.Errorf("step %d: free said %v and observe claimed: %v", i, free, claimed)
				}
			}
		})
	}
}
