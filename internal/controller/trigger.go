package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// trigger makes a reconciler look at keys again for reasons outside of Kubernetes. It never blocks: a work queue has no
// bound and holds each key once.
type trigger struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// early are the keys that came before there was a queue.
	early map[mcs.Key]struct{}
}

// source is what connects t to its reconciler's queue.
func (t *trigger) source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.queue = queue
		for key := range t.early {
			queue.Add(requestFor(key))
		}
		t.early = nil
		return nil
	})
}

// notify says "look again at key".
func (t *trigger) notify(key mcs.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue != nil {
		t.queue.Add(requestFor(key))
		return
	}
	if t.early == nil {
		t.early = map[mcs.Key]struct{}{}
	}
	t.early[key] = struct{}{}
}

func requestFor(key mcs.Key) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}}
}

func keyOf(name types.NamespacedName) mcs.Key {
	return mcs.Key{Namespace: name.Namespace, Name: name.Name}
}
