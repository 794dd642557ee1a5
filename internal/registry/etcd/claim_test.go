package etcd

import "testing"

func TestClaimEvaluate(t *testing.T) {
	const mine, other = "uid-1", "uid-2"
	tests := []struct {
		name  string
		held  bool
		shown aliveState
		want  verdict
	}{
		{"no process holds the ID", false, aliveState{}, canAcquire},
		{"no process holds it, after this one did", true, aliveState{}, canAcquire},
		{"a key without a lease", false, aliveState{revision: 5, uid: other}, canAcquire},
		{"a previous process holds it", false, aliveState{revision: 5, lease: 9, uid: mine}, canAcquire},
		{"a later process holds it", true, aliveState{revision: 5, lease: 9, uid: mine}, displaced},
		{"this process wrote it with unknown outcome", true, aliveState{revision: 5, lease: 7, uid: mine}, canAcquire},
		{"another cluster holds it", false, aliveState{revision: 5, lease: 9, uid: other}, heldByOther},
		{"another cluster holds it, after this one did", true, aliveState{revision: 5, lease: 9, uid: other}, heldByOther},
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

func TestClaimObserveDropsLostFence(t *testing.T) {
	tests := []struct {
		name     string
		shown    aliveState
		revision int64
		want     bool
	}{
		{"not read yet", aliveState{revision: 3}, 9, false},
		{"as written", aliveState{revision: 10}, 12, false},
		{"removed", aliveState{}, 12, true},
		{"written by another process", aliveState{revision: 11}, 11, true},
	}
	for _, tt := range tests {
		c := newClaim("uid-1")
		c.acquire(10)
		if got := c.observe(tt.shown, tt.revision); got != tt.want || (c.fence == 0) != tt.want {
			t.Errorf("%s: lost %v with fence %d, want %v", tt.name, got, c.fence, tt.want)
		}
	}
}
