package etcd

import (
	"testing"
	"time"
)

func TestClaimEvaluate(t *testing.T) {
	const mine, other = "uid-1", "uid-2"
	tests := []struct {
		name string
		// number is that of this process, latest that of another one that was read before.
		number, latest int64
		shown          aliveState
		want           verdict
	}{
		{"no process holds the ID", 0, 0, aliveState{}, canAcquire},
		{"no process holds it, after this one did", 50, 0, aliveState{}, canAcquire},
		{"no process holds it, after a later one did", 50, 60, aliveState{}, canAcquire},
		{"a key without a lease", 0, 0, aliveState{revision: 5, uid: other}, canAcquire},
		{"a previous process holds it", 0, 40, aliveState{revision: 5, lease: 9, uid: mine, number: 40}, canAcquire},
		{"a process with a clock ahead holds it", 0, 0, aliveState{revision: 5, lease: 9, uid: mine, number: 1 << 50}, canAcquire},
		{"a later process holds it", 50, 0, aliveState{revision: 5, lease: 9, uid: mine, number: 60}, displaced},
		{"a process with the same number holds it", 50, 0, aliveState{revision: 5, lease: 9, uid: mine, number: 50}, displaced},
		{"a backup shows a previous process", 50, 40, aliveState{revision: 5, lease: 9, uid: mine, number: 40}, canAcquire},
		{"a backup shows a process without a number", 50, 0, aliveState{revision: 5, lease: 9, uid: mine}, canAcquire},
		{"a backup shows a previous process, and a later one was read", 50, 60, aliveState{revision: 5, lease: 9, uid: mine, number: 40}, displaced},
		{"this process wrote it with unknown outcome", 50, 0, aliveState{revision: 5, lease: 7, uid: mine, number: 50}, canAcquire},
		{"another cluster holds it", 0, 0, aliveState{revision: 5, lease: 9, uid: other}, heldByOther},
		{"another cluster holds it, after this one did", 50, 0, aliveState{revision: 5, lease: 9, uid: other, number: 40}, heldByOther},
	}
	for _, tt := range tests {
		c := newClaim(mine)
		c.leases[7] = true
		c.number, c.latest = tt.number, tt.latest
		if got := c.evaluate(tt.shown); got != tt.want {
			t.Errorf("%s: verdict %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Whatever two processes of a cluster and a restored backup do, the process that began later has the ID in the end.
func TestClaim_LaterProcessHasIDInTheEnd(t *testing.T) {
	now := time.UnixMilli(1000)
	for _, firstActs := range []bool{true, false} {
		alive := aliveState{revision: 900, lease: 1, uid: "uid-1", number: 40} // of the process before both
		backup := alive
		claims := []*claim{{uid: "uid-1", leases: map[int64]bool{2: true}}, {uid: "uid-1", leases: map[int64]bool{3: true}}}
		act := func(i int) {
			c := claims[i]
			c.observe(alive, alive.revision)
			if c.evaluate(alive) == canAcquire && c.fence == 0 {
				alive = aliveState{revision: alive.revision + 1, lease: int64(2 + i), uid: "uid-1", number: c.nextNumber(now, alive)}
				c.acquire(alive.number, alive.revision)
			}
		}
		act(0)
		act(1) // the first one does not read this
		alive = backup
		for _, c := range claims {
			c.dropFence()
		}
		order := []int{1, 0, 1, 0}
		if firstActs {
			order = []int{0, 1, 0, 1}
		}
		for _, i := range order {
			act(i)
		}
		if alive.lease != 3 {
			t.Errorf("the first process has the ID, want the second one (the first one acts first: %v)", firstActs)
		}
	}
}

func TestClaimNextNumber(t *testing.T) {
	now := time.UnixMilli(1000)
	for name, tt := range map[string]struct {
		number int64
		shown  aliveState
		want   int64
	}{
		"no previous process":                  {0, aliveState{}, 1000},
		"after a previous process":             {0, aliveState{uid: "uid-1", number: 900}, 1000},
		"after one that began in this instant": {0, aliveState{uid: "uid-1", number: 1000}, 1001},
		"after one with a clock ahead":         {0, aliveState{uid: "uid-1", number: 5000}, 5001},
		"after another cluster":                {0, aliveState{uid: "uid-2", number: 5000}, 1000},
		"again":                                {500, aliveState{uid: "uid-1", number: 900}, 500},
	} {
		c := newClaim("uid-1")
		c.number = tt.number
		if got := c.nextNumber(now, tt.shown); got != tt.want {
			t.Errorf("%s: number %d, want %d", name, got, tt.want)
		}
	}
}

func TestParseAlive(t *testing.T) {
	for value, want := range map[string]aliveState{
		aliveValue("uid-1", 50):     {uid: "uid-1", number: 50},
		"uid-1":                     {uid: "uid-1"},
		"":                          {},
		"uid-1 -5":                  {uid: "uid-1"},
		"uid-1 x":                   {uid: "uid-1"},
		"uid-1 9223372036854775807": {uid: "uid-1"}, // no later process could exceed it
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
		c := newClaim("uid-1")
		c.acquire(50, 10)
		if got := c.observe(tt.shown, tt.revision); got != tt.want || (c.fence == 0) != tt.want {
			t.Errorf("%s: lost %v with fence %d, want %v", tt.name, got, c.fence, tt.want)
		}
	}
}
