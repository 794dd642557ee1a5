package kube

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Requeuer adds keys to a controller's work queue for reasons outside of Kubernetes, and at low
// priority for writes that can wait. It never blocks: a work queue is unbounded and holds each key
// once.
type Requeuer struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// early holds the keys that were requeued before the controller started.
	early map[mcs.Key]struct{}
	// lowPriority holds the requests in process that were queued at low priority.
	lowPriority sync.Map // reconcile.Request -> struct{}
}

// newQueue returns the priority queue of r's controller with a number of slots.
func (r *Requeuer) newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], concurrency int) *requeuerQueue {
	return &requeuerQueue{
		PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) { o.RateLimiter = limiter }),
		requeuer:      r,
		slots:         newSlots(concurrency),
	}
}

// requeuerQueue is a priority queue that limits the requests in process by slots, and records which
// of them were queued at low priority.
type requeuerQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	requeuer *Requeuer
	slots    *slots
}

// GetWithPriority implements priorityqueue.PriorityQueue. It waits for a slot first, so that
// requests wait in the order of their priority.
func (q *requeuerQueue) GetWithPriority() (reconcile.Request, int, bool) {
	q.slots.acquire()
	for {
		req, priority, shutdown := q.PriorityQueue.GetWithPriority()
		if shutdown {
			q.slots.release()
			return req, priority, shutdown
		}
		if !q.slots.take(req.NamespacedName) {
			q.AddWithOpts(priorityqueue.AddOpts{After: slowRetry, Priority: &priority}, req)
			q.PriorityQueue.Done(req)
			continue
		}
		if priority <= handler.LowPriority {
			q.requeuer.lowPriority.Store(req, struct{}{})
		}
		return req, priority, shutdown
	}
}

// Done implements workqueue.TypedInterface.
func (q *requeuerQueue) Done(req reconcile.Request) {
	q.requeuer.lowPriority.Delete(req)
	q.slots.done(req.NamespacedName) // before another worker may take the same request
	q.PriorityQueue.Done(req)
}

// Source returns the source by which the controller watches r.
func (r *Requeuer) Source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = queue
		for key := range r.early {
			queue.Add(RequestFor(key))
		}
		r.early = nil
		return nil
	})
}

// Requeue makes the controller reconcile key again.
func (r *Requeuer) Requeue(key mcs.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue != nil {
		r.queue.Add(RequestFor(key))
		return
	}
	if r.early == nil {
		r.early = map[mcs.Key]struct{}{}
	}
	r.early[key] = struct{}{}
}

// RequeueAfter makes the controller reconcile key after a delay, unless it is queued to be
// reconciled earlier.
func (r *Requeuer) RequeueAfter(key mcs.Key, delay time.Duration) {
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	if queue == nil || delay <= 0 {
		r.Requeue(key)
		return
	}
	queue.AddAfter(RequestFor(key), delay)
}

// RequeueAtLowPriority makes the controller reconcile key again, after everything that is queued at
// normal priority.
func (r *Requeuer) RequeueAtLowPriority(key mcs.Key) {
	r.mu.Lock()
	queue, ok := r.queue.(priorityqueue.PriorityQueue[reconcile.Request])
	r.mu.Unlock()
	if !ok {
		r.Requeue(key)
		return
	}
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, RequestFor(key))
}

// Defer requeues key at low priority and reports true. A reconcile calls it before a write that can
// wait. If the reconcile already has low priority, nothing more urgent is queued: it reports false,
// and the write is due.
func (r *Requeuer) Defer(key mcs.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue, ok := r.queue.(priorityqueue.PriorityQueue[reconcile.Request])
	if !ok {
		return false
	}
	req := RequestFor(key)
	if _, low := r.lowPriority.Load(req); low {
		return false
	}
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, req)
	return true
}

// EnqueueAtLowPriority maps the events of objects that the controller writes itself. Most of them
// show its own writes, so they come after everything else; only a change by another client needs
// work.
func EnqueueAtLowPriority(mapper handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, obj client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		requests := mapper(ctx, obj)
		if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			q.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, requests...)
			return
		}
		for _, req := range requests {
			queue.Add(req)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.ObjectOld, q)
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
	}
}

// RequestFor returns the request that reconciles key.
func RequestFor(key mcs.Key) reconcile.Request {
	return reconcile.Request{NamespacedName: NameOf(key)}
}

// KeyOf returns the key of a service from the name of its objects.
func KeyOf(name types.NamespacedName) mcs.Key {
	return mcs.Key{Namespace: name.Namespace, Name: name.Name}
}

// NameOf is the inverse of KeyOf.
func NameOf(key mcs.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}
