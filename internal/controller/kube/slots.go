package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// slowAfter is the time after which a reconcile is slow. One takes milliseconds; an admission
	// webhook may take up to 30 s.
	slowAfter = time.Second
	// slowRetry is the delay of a request in a namespace with too many slow reconciles.
	slowRetry = time.Second
	// slowFactor is the number of workers per slot: four namespaces may fill all slots with slow
	// reconciles at the same time. An idle worker costs 8 KiB.
	slowFactor = 5
	// minBackoff and maxBackoff limit the backoff of failed reconciles. 3,000 that fail all the
	// time cause 100 attempts a second.
	minBackoff, maxBackoff = 50 * time.Millisecond, 30 * time.Second
)

// Options returns the options of a controller with r's queue. It reconciles concurrency requests in
// parallel, and those besides that take long.
func (r *Requeuer) Options(concurrency int) controller.Options {
	return controller.Options{
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return r.newQueue(name, limiter, concurrency)
		},
		MaxConcurrentReconciles: concurrency * slowFactor,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minBackoff, maxBackoff),
	}
}

// slots limits the requests in process. A slow request gives its slot back, so that a namespace
// with slow writes does not keep the others waiting. The number of slow requests of a namespace is
// limited to half of the slots.
type slots struct {
	free    chan struct{}
	maxSlow int

	mu      sync.Mutex
	taken   map[types.NamespacedName]*slot
	slowIn  map[string]int
	slowFor time.Duration
}

// slot is that of one request in process.
type slot struct {
	timer *time.Timer
	slow  bool
}

func newSlots(n int) *slots {
	return &slots{
		free: make(chan struct{}, n), maxSlow: max(1, n/2), slowFor: slowAfter,
		taken: map[types.NamespacedName]*slot{}, slowIn: map[string]int{},
	}
}

// acquire waits for a slot.
func (s *slots) acquire() { s.free <- struct{}{} }

// release returns a slot that no request took.
func (s *slots) release() { <-s.free }

// take gives the acquired slot to a request until done. It returns false, and takes no slot, if too
// many requests of the namespace are slow.
func (s *slots) take(name types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slowIn[name.Namespace] >= s.maxSlow {
		return false
	}
	t := &slot{}
	s.taken[name] = t
	t.timer = time.AfterFunc(s.slowFor, func() { s.markSlow(name, t) })
	return true
}

// markSlow releases the slot of a request that takes long.
func (s *slots) markSlow(name types.NamespacedName, t *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[name] != t || t.slow {
		return
	}
	t.slow = true
	s.slowIn[name.Namespace]++
	s.release()
}

// done ends a request.
func (s *slots) done(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.taken[name]
	if t == nil {
		return
	}
	delete(s.taken, name)
	t.timer.Stop()
	if !t.slow {
		s.release()
		return
	}
	if s.slowIn[name.Namespace]--; s.slowIn[name.Namespace] == 0 {
		delete(s.slowIn, name.Namespace)
	}
}
