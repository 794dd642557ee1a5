package legacy

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// schedule decides when to list namespaces and services. Every cluster with this registry lists
// them all from one quota, and knows of the others only that requests are throttled. So each
// cluster lists half as often after throttling, and more often again without: a hundred clusters
// use the quota without starving those that need a list to start.
type schedule struct {
	// at is the time of the next list, interval the current interval.
	at       time.Time
	interval time.Duration
	// wasThrottled: a request of this list was throttled. isComplete: a list has succeeded; until
	// then the next one is not delayed.
	wasThrottled, isComplete bool
	// namespaces and services are the results of an incomplete list, which the next attempt
	// continues.
	namespaces map[string]api.Namespace
	services   map[string]map[string]api.Service
}

const (
	// maxListInterval is the longest interval: 100 clusters with 50 namespaces in the account, the
	// default quota, then make 1.4 requests ListServices a second, of two.
	maxListInterval = time.Hour
	// maxListRetry is the longest pause before a list is retried that failed for any other reason
	// than throttling.
	maxListRetry = 30 * time.Second
)

// finish schedules the next list after a list that ended with err. It spreads clusters that started
// together: the next list is after half to one and a half of the interval.
func (s *schedule) finish(now time.Time, minInterval time.Duration, err error) {
	s.isComplete = s.isComplete || err == nil
	switch {
	case !s.isComplete:
		s.interval = minInterval
	case s.wasThrottled:
		s.interval = min(2*max(s.interval, minInterval), max(maxListInterval, minInterval))
	case err == nil:
		s.interval = max(s.interval*7/8, minInterval)
	}
	s.wasThrottled = false
	wait := s.interval
	if err != nil && !api.MustSlowDown(err) {
		wait = min(minInterval, maxListRetry)
	}
	s.at = now.Add(wait/2 + rand.N(wait))
}

// retryThrottled makes a request of a list with retries and records whether it was throttled.
func retryThrottled[T any](ctx context.Context, r *Registry, request func(context.Context) (T, error)) (result T, err error) {
	err = r.client.RetryThrottled(ctx, func() error {
		var err error
		if result, err = request(ctx); api.MustSlowDown(err) {
			r.schedule.wasThrottled = true
		}
		return err
	})
	return result, err
}
