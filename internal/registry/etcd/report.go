package etcd

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

var _ registry.Reporter = (*Registry)(nil)

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := map[mcs.Key]struct{}{}
	r.state.allKeys(keys)
	for key, w := range r.outbox.want {
		if w.export != nil {
			keys[key] = struct{}{}
		}
	}
	return registry.Report{Keys: slices.Collect(maps.Keys(keys)), Reading: r.readProblem, Writing: cmp.Or(r.claimProblem, r.writeProblem)}
}
