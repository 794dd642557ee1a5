package imports

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
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

// Services wait for their namespace only while another cluster may export them: namespaces come and
// go.
func TestMayWait(t *testing.T) {
	remote := registrytest.ViewOf(exportOf("cls2", 80))
	for _, tt := range []struct {
		name  string
		facts importFacts
		want  bool
	}{
		{"no namespace, exported", importFacts{synced: true, view: remote}, true},
		{"excluded namespace, exported", importFacts{namespace: true, excluded: true, synced: true, view: remote}, true},
		{"no namespace, a cluster is unknown", importFacts{synced: true, view: registrytest.With(registry.View{}, registry.Unknown, "cls2")}, true},
		{"no namespace, not read yet", importFacts{}, true},
		{"no namespace, a registry is not read yet", importFacts{synced: true, view: registry.View{Incomplete: true}}, true},
		{"no namespace, no export in any cluster", importFacts{synced: true}, false},
		{"namespace that imports", importFacts{namespace: true, synced: true, view: remote}, false},
	} {
		if got := tt.facts.mayWait(); got != tt.want {
			t.Errorf("%s: the service waits: %t, want %t", tt.name, got, tt.want)
		}
	}
}
