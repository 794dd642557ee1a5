package cloudmaplocal

import (
	"sync"
	"time"
)

// Clock is a clock that stands still until it is advanced. Its Now fits Options.Now.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock makes a Clock that shows start.
func NewClock(start time.Time) *Clock { return &Clock{now: start} }

// Now is the time that the clock shows.
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
