package cloudmap

import (
	"maps"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

var _ registry.Reporter = (*Registry)(nil)

// Report implements registry.Reporter.
func (r *Registry) Report() registry.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := keySet{}
	for _, cluster := range r.catalogs.clusters {
		for i := range cluster.pages {
			for key := range cluster.pages[i].exports {
				keys[key] = struct{}{}
			}
		}
	}
	for i := range r.outbox.pages {
		for key, exp := range r.outbox.pages[i].want {
			if exp != nil {
				keys[key] = struct{}{}
			}
		}
	}
	report := registry.Report{Keys: slices.Collect(maps.Keys(keys)), Reading: r.readProblem, Writing: r.writeProblem}
	if uid := r.claim.refused(); uid != "" {
		report.Writing = &registry.DuplicateIDError{ClusterID: r.cfg.Identity.ClusterID, OtherUID: uid}
	}
	return report
}
