package memory

import (
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
	for _, key := range r.belief.Keys() {
		keys[key] = struct{}{}
	}
	for key := range r.own {
		keys[key] = struct{}{}
	}
	for key, exp := range r.desired {
		if exp != nil {
			keys[key] = struct{}{}
		}
	}
	return registry.Report{Keys: slices.Collect(maps.Keys(keys)), Reading: r.problem, Writing: r.problem}
}
