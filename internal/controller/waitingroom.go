package controller

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// waitingRoom remembers services of the clusterset whose namespace is not in this cluster, for the day that it is.
type waitingRoom struct {
	mu   sync.Mutex
	keys map[string]map[mcs.Key]struct{}
}

func newWaitingRoom() *waitingRoom {
	return &waitingRoom{keys: map[string]map[mcs.Key]struct{}{}}
}

func (w *waitingRoom) enter(key mcs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys[key.Namespace] == nil {
		w.keys[key.Namespace] = map[mcs.Key]struct{}{}
	}
	w.keys[key.Namespace][key] = struct{}{}
}

func (w *waitingRoom) leave(key mcs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.keys[key.Namespace], key)
	if len(w.keys[key.Namespace]) == 0 {
		delete(w.keys, key.Namespace)
	}
}

// requests are those that wait for namespace.
func (w *waitingRoom) requests(namespace string) []reconcile.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []reconcile.Request
	for key := range w.keys[namespace] {
		out = append(out, requestFor(key))
	}
	return out
}
