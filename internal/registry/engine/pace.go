package engine

import (
	"maps"
	"time"
)

// Pace limits how fast writes are made for each namespace, or for each of other units, so that one
// that changes again and again does not use up a rate or a quota that all share. A unit may have a
// burst at once; then it waits until the cost of its writes is paid. It is not safe for concurrent
// use.
type Pace[K comparable] struct {
	perCost, burst time.Duration
	// paidAt is the time at which the cost of all writes of a unit is paid.
	paidAt map[K]time.Time
	// pruneAt is the number of units at which those that have paid are removed.
	pruneAt int
}

// minPruned is the least number of units that are pruned.
const minPruned = 100

// NewPace returns a Pace of a cost in each second, and of a burst.
func NewPace[K comparable](perSecond, burst int) *Pace[K] {
	perCost := time.Second / time.Duration(perSecond)
	return &Pace[K]{perCost: perCost, burst: time.Duration(burst) * perCost, paidAt: map[K]time.Time{}, pruneAt: minPruned}
}

// DueAt returns the time from which the next write of a unit may be made, zero if it may at any
// time.
func (p *Pace[K]) DueAt(unit K) time.Time {
	paidAt, owes := p.paidAt[unit]
	if !owes {
		return time.Time{}
	}
	return paidAt.Add(-p.burst)
}

// Charge adds the cost of a write to a unit.
func (p *Pace[K]) Charge(now time.Time, unit K, cost int) {
	if len(p.paidAt) >= p.pruneAt {
		maps.DeleteFunc(p.paidAt, func(_ K, paidAt time.Time) bool { return !paidAt.After(now) })
		p.pruneAt = max(minPruned, 2*len(p.paidAt))
	}
	paidAt := p.paidAt[unit]
	if paidAt.Before(now) {
		paidAt = now
	}
	p.paidAt[unit] = paidAt.Add(time.Duration(cost) * p.perCost)
}
