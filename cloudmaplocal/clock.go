package cloudmaplocal

import (
	"sync"
	"time"
)

// Clock is a manual clock: only Advance changes its time. Pass its Now as Options.Now.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock that is set to start.
func NewClock(start time.Time) *Clock { return &Clock{now: start} }

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward by d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
