package imports

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// namespaceWaiters holds the services that cannot be imported because their namespace does not
// exist or excludes imports.
type namespaceWaiters struct {
	mu   sync.Mutex
	keys map[string]map[mcs.Key]struct{}
}

func newNamespaceWaiters() *namespaceWaiters {
	return &namespaceWaiters{keys: map[string]map[mcs.Key]struct{}{}}
}

func (w *namespaceWaiters) add(key mcs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys[key.Namespace] == nil {
		w.keys[key.Namespace] = map[mcs.Key]struct{}{}
	}
	w.keys[key.Namespace][key] = struct{}{}
}

func (w *namespaceWaiters) remove(key mcs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.keys[key.Namespace], key)
	if len(w.keys[key.Namespace]) == 0 {
		delete(w.keys, key.Namespace)
	}
}

// requests returns a request for each service that waits for namespace.
func (w *namespaceWaiters) requests(namespace string) []reconcile.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []reconcile.Request
	for key := range w.keys[namespace] {
		out = append(out, kube.RequestFor(key))
	}
	return out
}
