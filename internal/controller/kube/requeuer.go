package kube

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Requeuer adds keys to a controller's work queue for reasons outside of Kubernetes. It never blocks: a work queue is
// unbounded and holds each key once.
type Requeuer struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// early holds the keys that were requeued before the controller started.
	early map[mcs.Key]struct{}
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

// Busy reports whether keys are queued.
func (r *Requeuer) Busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue != nil && r.queue.Len() > 0
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
