package api

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is a token bucket: requests per second on average, and the burst.
type Rate struct {
	PerSecond float64
	Burst     int
}

// DefaultRates returns the client-side rate limits of one cluster.
//
// AWS publishes quotas only for DiscoverInstances, 1,000 requests per second with bursts of 2,000
// for an account, and for DiscoverInstancesRevision, 3,000: a tenth of them lets ten clusters start
// at once. The other rates are those of AWS's own controller (aws-cloud-map-mcs-controller-for-k8s,
// ratelimiter.go; that of UpdateInstanceCustomHealthStatus is assumed to be that of
// RegisterInstance), and 50 per second for GetService and ListInstances as users of external-dns
// reported (its issues 2505 and 2507). Clusters of one account share the quotas, so the rate
// limiter adapts to throttling.
func DefaultRates() map[string]Rate {
	return map[string]Rate{
		"DiscoverInstances":                {100, 200},
		"DiscoverInstancesRevision":        {300, 600},
		"RegisterInstance":                 {50, 100},
		"DeregisterInstance":               {50, 100},
		"UpdateInstanceCustomHealthStatus": {50, 100},
		"GetOperation":                     {100, 200},
		"ListInstances":                    {50, 100},
		"GetNamespace":                     {50, 100},
		"GetService":                       {50, 100},
		"ListTagsForResource":              {50, 100},
		"ListNamespaces":                   {0.5, 5},
		"ListServices":                     {2, 10},
		"CreateHttpNamespace":              {0.5, 5},
		"CreatePrivateDnsNamespace":        {0.5, 5},
		"DeleteNamespace":                  {0.5, 5},
		"CreateService":                    {5, 50},
		"DeleteService":                    {5, 50},
	}
}

// Priority orders the requests that wait for a token of a rate limiter.
type Priority int

const (
	// PriorityHigh is for the own member record. It is the heartbeat and announces the pages:
	// behind a thousand pages it would be late, and the cluster would become stale. One write after
	// a change or in 12 s cannot starve the other requests.
	PriorityHigh Priority = iota
	// PriorityNormal is for pages.
	PriorityNormal
	// PriorityLow is for the instance view, which no export waits for.
	PriorityLow
	priorityCount
)

const (
	// minRate is the lowest rate in requests per second: one in 20 seconds, five per second from a
	// hundred clusters.
	minRate = 0.05
	// maxWait is the longest wait of a PriorityHigh request whatever the rate: it is shorter than
	// the interval between heartbeats.
	maxWait = 10 * time.Second
	// recovery is the time in which the rate rises from 0 to full without throttling. Below
	// slowStartFraction of the full rate the steps are smaller, because many clusters that share a
	// quota would exceed it together.
	recovery = 20 * time.Second
	// maxStep is the most time that a single success counts for.
	maxStep           = time.Second
	slowStartFraction = 1.0 / 4
	// minDecreaseInterval is the shortest time between two decreases: requests throttled within it
	// were sent before the first.
	minDecreaseInterval = 500 * time.Millisecond
)

// rateLimiter is the adaptive token bucket of one operation. Throttling halves its rate, as does an
// unknown error code, and successes raise it linearly. Waiting requests get tokens by priority, and
// in order of arrival within a priority.
type rateLimiter struct {
	full     Rate
	report   func(perSecond float64)
	mu       sync.Mutex
	limiter  *rate.Limiter
	fraction float64 // of the full rate, up to 1
	changed  time.Time
	// lastHigh is the time at which the last PriorityHigh request got a token.
	lastHigh time.Time
	waiting  [priorityCount][]chan struct{}
	// timer runs while a request waits.
	timer *time.Timer
}

func newRateLimiter(full Rate, report func(perSecond float64)) *rateLimiter {
	report(full.PerSecond)
	return &rateLimiter{full: full, limiter: rate.NewLimiter(rate.Limit(full.PerSecond), full.Burst), report: report, fraction: 1}
}

// wait blocks until the request gets a token. PriorityLow requests leave three quarters of the
// bucket to the others: 75 of RegisterInstance's 100, so that all 64 pages of a catalog can be
// written at once while any number of instances wait.
func (l *rateLimiter) wait(ctx context.Context, c Priority) error {
	granted := make(chan struct{})
	l.mu.Lock()
	l.waiting[c] = append(l.waiting[c], granted)
	l.grant()
	l.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting[c], granted); i >= 0 {
		l.waiting[c] = slices.Delete(l.waiting[c], i, i+1)
		l.grant() // the next in line may need fewer tokens
	}
	return ctx.Err()
}

// grant hands out the available tokens and schedules itself for the next one. The caller holds
// l.mu.
func (l *rateLimiter) grant() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	now := time.Now()
	for c := range l.waiting {
		for len(l.waiting[c]) > 0 {
			if pause := l.takeToken(now, Priority(c)); pause > 0 {
				l.timer = time.AfterFunc(pause, l.grantNext)
				return
			}
			close(l.waiting[c][0])
			l.waiting[c] = l.waiting[c][1:]
		}
	}
}

// takeToken takes a token for a priority, or returns the time until there is one. The caller holds
// l.mu.
func (l *rateLimiter) takeToken(now time.Time, c Priority) (pause time.Duration) {
	needed := 1.0
	if c == PriorityLow {
		needed += float64(l.limiter.Burst() * 3 / 4)
	}
	if missing := needed - l.limiter.TokensAt(now); missing > 0 {
		pause = max(time.Millisecond, time.Duration(missing/float64(l.limiter.Limit())*float64(time.Second)))
	}
	if c == PriorityHigh {
		pause = min(pause, l.lastHigh.Add(maxWait).Sub(now))
		if pause <= 0 {
			l.lastHigh = now
		}
	}
	if pause <= 0 {
		l.limiter.AllowN(now, 1)
	}
	return pause
}

func (l *rateLimiter) grantNext() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grant()
}

// observe adapts the rate to a request's result.
func (l *rateLimiter) observe(now time.Time, result string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch since := now.Sub(l.changed); {
	case mustSlowDown(result) && since >= minDecreaseInterval:
		l.setFraction(now, max(l.fraction/2, min(1, minRate/l.full.PerSecond)))
	case result == ResultOK && l.fraction < 1 && since > 0:
		step := min(since, maxStep).Seconds() / recovery.Seconds()
		l.setFraction(now, min(1, l.fraction+step*min(1, l.fraction/slowStartFraction)))
	}
}

// setFraction scales rate and burst. The caller holds l.mu.
func (l *rateLimiter) setFraction(now time.Time, fraction float64) {
	l.fraction, l.changed = fraction, now
	l.limiter.SetLimitAt(now, rate.Limit(l.full.PerSecond*fraction))
	l.limiter.SetBurstAt(now, max(1, int(float64(l.full.Burst)*fraction)))
	l.report(l.full.PerSecond * fraction)
	l.grant()
}

// Jitter returns a random pause up to the given one: clusters that were throttled together must not
// retry together.
func Jitter(pause time.Duration) time.Duration { return rand.N(pause) + 1 }
