package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRateLimiterAdapts throttles and then stops throttling: the rate halves down to its minimum,
// and recovers.
func TestRateLimiterAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limit float64
		l := newRateLimiter(Rate{PerSecond: 64, Burst: 128}, func(perSecond float64) { limit = perSecond })
		if limit != 64 {
			t.Fatalf("a new rate limiter allows %v per second, want 64", limit)
		}
		l.observe(time.Now(), ResultThrottled)
		l.observe(time.Now(), ResultThrottled) // sent before the first was throttled
		if limit != 32 {
			t.Errorf("throttled once: %v per second, want 32", limit)
		}
		for range 100 {
			time.Sleep(time.Second)
			l.observe(time.Now(), ResultThrottled)
		}
		if limit != minRate || l.limiter.Burst() != 1 {
			t.Errorf("always throttled: %v per second with a burst of %d, want one in 20 s without a burst", limit, l.limiter.Burst())
		}
		for range 46 {
			time.Sleep(time.Second)
			l.observe(time.Now(), ResultOK)
		}
		if limit < 55 || limit >= 64 {
			t.Errorf("not throttled for 46 s: %v per second, want nearly 64", limit)
		}
		for range 10 {
			time.Sleep(time.Second)
			l.observe(time.Now(), ResultOK)
		}
		l.observe(time.Now(), ResultError)
		if limit != 64 || l.limiter.Burst() != 128 {
			t.Errorf("not throttled for a minute: %v per second with a burst of %d, want 64 and 128", limit, l.limiter.Burst())
		}
	})
}

// TestRateLimiterReservesTokens has many requests of low priority waiting: the burst of normal ones
// does not wait for them.
func TestRateLimiterReservesTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRateLimiter(Rate{PerSecond: 10, Burst: 20}, func(float64) {})
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go func() {
				for l.wait(ctx, PriorityLow) == nil {
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		began := time.Now()
		for range 15 {
			if err := l.wait(t.Context(), PriorityNormal); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("15 requests of normal priority waited %v", took)
		}
		cancel()
		synctest.Wait()
	})
}

// TestRateLimiterOrdersByPriority has one request of each priority waiting.
func TestRateLimiterOrdersByPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRateLimiter(Rate{PerSecond: 1, Burst: 1}, func(float64) {})
		if err := l.wait(t.Context(), PriorityNormal); err != nil {
			t.Fatal(err)
		}
		if err := l.wait(t.Context(), PriorityHigh); err != nil { // has not gone out for long
			t.Fatal(err)
		}
		order := make(chan Priority, priorityCount)
		for c := PriorityLow; c >= PriorityHigh; c-- {
			go func() {
				if l.wait(t.Context(), c) == nil {
					order <- c
				}
			}()
			synctest.Wait()
		}
		for want := PriorityHigh; want < priorityCount; want++ {
			if got := <-order; got != want {
				t.Errorf("priority %d went before priority %d", got, want)
			}
		}
	})
}

// TestRateLimiterBoundsWaitOfHighPriority throttles every request: high priority gets a token every
// 10 s, the others every 20 s.
func TestRateLimiterBoundsWaitOfHighPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRateLimiter(Rate{PerSecond: 50, Burst: 100}, func(float64) {})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var sent [priorityCount]atomic.Int32
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for l.wait(ctx, PriorityNormal) == nil {
					sent[PriorityNormal].Add(1)
					l.observe(time.Now(), ResultThrottled)
					time.Sleep(time.Millisecond)
				}
			})
		}
		callers.Go(func() {
			for l.wait(ctx, PriorityHigh) == nil {
				sent[PriorityHigh].Add(1)
				l.observe(time.Now(), ResultThrottled)
				time.Sleep(time.Millisecond)
			}
		})
		callers.Wait()
		if got := sent[PriorityHigh].Load(); got < 55 || got > 100 {
			t.Errorf("%d requests of high priority in ten minutes, want 60 and a share of the rest", got)
		}
		if got := sent[PriorityNormal].Load(); got > 250 {
			t.Errorf("%d requests of normal priority in ten minutes of throttling", got)
		}
	})
}

// TestRateLimiterSkipsCanceledRequests cancels requests in the queue: the next one gets the token.
func TestRateLimiterSkipsCanceledRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRateLimiter(Rate{PerSecond: 1, Burst: 1}, func(float64) {})
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			go func() { _ = l.wait(ctx, PriorityNormal) }()
		}
		synctest.Wait()
		last := make(chan error)
		go func() { last <- l.wait(t.Context(), PriorityNormal) }()
		synctest.Wait()
		began := time.Now()
		cancel()
		if err := <-last; err != nil || time.Since(began) > time.Second {
			t.Errorf("error %v after %v, want a token within a second", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		for range 2 {
			if err := l.wait(t.Context(), PriorityNormal); err != nil {
				t.Error(err)
			}
		}
	})
}
