package etcd

import "testing"

func TestClaim(t *testing.T) {
	const mine, other = "uid-1", "uid-2"
	tests := []struct {
		name  string
		held  bool
		shown aliveState
		want  verdict
	}{
		{"nobody's", false, aliveState{}, canAcquire},
		{"nobody's, after it was ours", true, aliveState{}, canAcquire},
		{"without a lease it never ends", false, aliveState{revision: 5, uid: other}, canAcquire},
		{"an earlier process's of ours", false, aliveState{revision: 5, lease: 9, uid: mine}, canAcquire},
		{"a later process's of ours", true, aliveState{revision: 5, lease: 9, uid: mine}, displaced},
		{"ours, of unknown outcome", true, aliveState{revision: 5, lease: 7, uid: mine}, canAcquire},
		{"another cluster's", false, aliveState{revision: 5, lease: 9, uid: other}, heldByOther},
		{"another cluster's, after it was ours", true, aliveState{revision: 5, lease: 9, uid: other}, heldByOther},
	}
	for _, tt := range tests {
		c := newClaim(mine)
		c.leases[7] = true
		c.held = tt.held
		if got := c.evaluate(tt.shown); got != tt.want {
			t.Errorf("%s: verdict %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestClaimFalls(t *testing.T) {
	tests := []struct {
		name     string
		shown    aliveState
		revision int64
		want     bool
	}{
		{"not read yet", aliveState{revision: 3}, 9, false},
		{"as written", aliveState{revision: 10}, 12, false},
		{"gone", aliveState{}, 12, true},
		{"written by another", aliveState{revision: 11}, 11, true},
	}
	for _, tt := range tests {
		c := newClaim("uid-1")
		c.acquire(10)
		if got := c.observe(tt.shown, tt.revision); got != tt.want || (c.fence == 0) != tt.want {
			t.Errorf("%s: fallen %v with fence %d, want %v", tt.name, got, c.fence, tt.want)
		}
	}
}
