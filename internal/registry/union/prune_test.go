package union

import (
	"fmt"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestPruneKeys notifies of many keys, of which few are exported, as namespaces that come and go
// do.
func TestPruneKeys(t *testing.T) {
	web := mcs.Key{Namespace: "demo", Name: "web"}
	r := New(Config{}, Source{"first", reporter{}}, Source{"other", reporter{report: registry.Report{Keys: []mcs.Key{web, {Name: "never notified"}}}}})
	r.keys[web] = struct{}{}
	r.pruneKeys()
	if len(r.keys) != 1 {
		t.Errorf("keys %v, want one: they are few", r.keys)
	}
	for round := range 3 {
		for i := range minPrune {
			r.keys[mcs.Key{Namespace: fmt.Sprintf("test-%d-%d", round, i), Name: "web"}] = struct{}{}
		}
		r.pruneKeys()
		if _, ok := r.keys[web]; !ok || len(r.keys) != 1 {
			t.Errorf("round %d: %d keys, want %v alone", round, len(r.keys), web)
		}
	}
}
