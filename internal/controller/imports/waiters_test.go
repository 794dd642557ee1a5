package imports

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestNamespaceWaiters(t *testing.T) {
	w := newNamespaceWaiters()
	a, b := mcs.Key{Namespace: "n", Name: "a"}, mcs.Key{Namespace: "n", Name: "b"}
	w.add(a)
	w.add(b)
	w.add(mcs.Key{Namespace: "m", Name: "a"})
	w.remove(a)
	if d := cmp.Diff([]reconcile.Request{kube.RequestFor(b)}, w.requests("n")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	w.remove(b)
	if len(w.keys) != 1 {
		t.Errorf("%d namespaces are remembered, want 1", len(w.keys))
	}
}
