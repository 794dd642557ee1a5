package etcd

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestClaimEvaluate(t *testing.T) {
	const mine, other = "uid-1", "uid-2"
	tests := []struct {
		name string
		// latest is the number of another process of this cluster that was read before. That of
		// this process is 50.
		latest int64
		shown  aliveState
		want   verdict
	}{
		{"no process holds the ID", 0, aliveState{}, canAcquire},
		{"no process holds it, after a later one did", 60, aliveState{}, canAcquire},
		{"a key without a lease", 0, aliveState{revision: 5, uid: other}, canAcquire},
		{"a previous process holds it, or a backup shows it", 40, aliveState{revision: 5, lease: 9, uid: mine, number: 40}, canAcquire},
		{"a process without a number", 0, aliveState{revision: 5, lease: 9, uid: mine}, canAcquire},
		{"a later process holds it", 0, aliveState{revision: 5, lease: 9, uid: mine, number: 60}, displaced},
		{"a process with the same number holds it", 0, aliveState{revision: 5, lease: 9, uid: mine, number: 50}, displaced},
		{"a backup shows a previous process, and a later one was read", 60, aliveState{revision: 5, lease: 9, uid: mine, number: 40}, displaced},
		{"this process wrote it with unknown outcome", 0, aliveState{revision: 5, lease: 7, uid: mine, number: 50}, canAcquire},
		{"another cluster holds it", 0, aliveState{revision: 5, lease: 9, uid: other, number: 40}, heldByOther},
	}
	for _, tt := range tests {
		c := newClaim(mine, time.UnixMicro(50))
		c.leases[7] = true
		c.latest = tt.latest
		if got := c.evaluate(tt.shown); got != tt.want {
			t.Errorf("%s: verdict %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Whatever two processes of a cluster and a restored backup do, and in whatever order, the process
// that began later has the ID in the end.
func TestClaim_LaterProcessHasIDInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		previous := aliveState{revision: 900, lease: 1, uid: "uid-1", number: 40}
		alive, revision := previous, previous.revision
		var claims []*claim
		for i := range 2 {
			c := newClaim("uid-1", time.UnixMicro(int64(50+i)))
			c.leases[int64(2+i)] = true
			claims = append(claims, &c)
		}
		act := func(i int) {
			c := claims[i]
			c.observe(alive, revision)
			if c.fence == 0 && c.evaluate(alive) == canAcquire {
				revision++
				alive = aliveState{revision: revision, lease: int64(2 + i), uid: "uid-1", number: c.number}
				c.acquire(revision)
			}
		}
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			switch i := rapid.IntRange(0, 3).Draw(t, "step"); i {
			case 2: // etcd is restored, which both notice
				alive, revision = previous, previous.revision
				claims[0].dropFence()
				claims[1].dropFence()
			case 3: // a lease expires
				alive = aliveState{}
				revision++
			default:
				act(i)
			}
		}
		for _, i := range []int{0, 1, 0, 1} {
			act(i)
		}
		if alive.number != 51 {
			t.Errorf("alive is %+v, want that of the process that began later", alive)
		}
	})
}

func TestParseAlive(t *testing.T) {
	for value, want := range map[string]aliveState{
		aliveValue("uid-1", 50):     {uid: "uid-1", number: 50},
		"uid-1":                     {uid: "uid-1"},
		"":                          {},
		"uid-1 x":                   {uid: "uid-1"},
		"uid-1 9223372036854775808": {uid: "uid-1"},
	} {
		want.revision, want.lease = 5, 9
		if got := parseAlive([]byte(value), 5, 9); got != want {
			t.Errorf("%q is read as %+v, want %+v", value, got, want)
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
		c := newClaim("uid-1", time.UnixMicro(50))
		c.acquire(10)
		if got := c.observe(tt.shown, tt.revision); got != tt.want || (c.fence == 0) != tt.want {
			t.Errorf("%s: lost %v with fence %d, want %v", tt.name, got, c.fence, tt.want)
		}
	}
}
