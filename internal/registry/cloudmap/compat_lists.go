package cloudmap

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// compatLists is when the compatibility import lists namespaces and services. Every cluster that runs it lists them all, out of one quota,
// and knows nothing of the others but that requests are throttled. So each lists half as often when they are, and more often again when
// they are not: a hundred clusters take what there is without keeping it from those that need a list to start.
type compatLists struct {
	// at is when to list next, every the time between two lists as it is now.
	at    time.Time
	every time.Duration
	// throttled says that a request of this list was, complete that a list has succeeded: until then nothing is known, and the next one
	// is not put off.
	throttled, complete bool
	// namespaces and services are what there is of a list that was given up: it goes on from there.
	namespaces map[string]api.Namespace
	services   map[string]map[string]api.Service
}

const (
	// compatListMost is the longest time between two lists: 100 clusters with 50 namespaces in the account, as many as AWS allows unless
	// the quota is raised, need 1.4 requests ListServices a second for it, of two.
	compatListMost = time.Hour
	// compatListRetry is the longest time until a list that failed is tried again, for any other reason than being throttled.
	compatListRetry = 30 * time.Second
)

// done says when to list again after a list that ended with err. Clusters that started together spread: the next list is after half to
// one and a half of the time between two.
func (l *compatLists) done(now time.Time, least time.Duration, err error) {
	l.complete = l.complete || err == nil
	switch {
	case !l.complete:
		l.every = least
	case l.throttled:
		l.every = min(2*max(l.every, least), max(compatListMost, least))
	case err == nil:
		l.every = max(l.every*7/8, least)
	}
	l.throttled = false
	wait := l.every
	if err != nil && !api.IsThrottled(err) {
		wait = min(least, compatListRetry)
	}
	l.at = now.Add(wait/2 + rand.N(wait))
}

// patiently repeats a request of a list that is throttled some times, and takes note of it.
func patiently[T any](ctx context.Context, c *Compat, request func(context.Context) (T, error)) (result T, err error) {
	err = c.client.RetryThrottled(ctx, func() error {
		var err error
		if result, err = request(ctx); api.IsThrottled(err) {
			c.lists.throttled = true
		}
		return err
	})
	return result, err
}
