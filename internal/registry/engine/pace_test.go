package engine

import (
	"fmt"
	"testing"
	"time"
)

// TestPace: a namespace writes a burst at once and then at the rate, and no other namespace waits
// for it.
func TestPace(t *testing.T) {
	began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	p := NewPace[string](10, 100)
	written := func(from, to time.Duration, namespace string, cost int) (units int) {
		for at := from; at < to; at += 10 * time.Millisecond {
			if now := began.Add(at); !now.Before(p.DueAt(namespace)) {
				p.Charge(now, namespace, cost)
				units += cost
			}
		}
		return units
	}
	if got := written(0, time.Second, "tenant", 1); got != 100 {
		t.Errorf("%d units in the first second, want one each 10 ms", got)
	}
	if got := written(time.Second, 11*time.Second, "tenant", 1); got < 100 || got > 115 {
		t.Errorf("%d units in ten seconds after the burst, want 10 a second", got)
	}
	if at := p.DueAt("neighbour"); !at.IsZero() {
		t.Errorf("the neighbour is due at %v", at)
	}
	if got := written(11*time.Second, 31*time.Second, "neighbour", 50); got < 300 || got > 350 {
		t.Errorf("%d units of large writes in 20 s, want the burst and 10 a second", got)
	}
	later := began.Add(time.Hour)
	if p.DueAt("tenant").After(later) {
		t.Error("the tenant waits an hour later")
	}
	for i := range 10 * minPruned {
		p.Charge(later.Add(time.Duration(i)*time.Minute), fmt.Sprint("namespace-", i), 1)
	}
	if len(p.paidAt) > minPruned {
		t.Errorf("%d namespaces are known that have paid", len(p.paidAt))
	}
}
