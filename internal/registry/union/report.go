package union

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

var _ registry.Reporter = (*Registry)(nil)

// Report implements registry.Reporter: it returns the keys of all registries and their problems by
// name. Only the first is written to.
func (r *Registry) Report() registry.Report {
	keys := map[mcs.Key]struct{}{}
	var out registry.Report
	var reading []error
	for i, s := range r.sources {
		report := registry.ReportOf(s.Registry)
		for _, key := range report.Keys {
			keys[key] = struct{}{}
		}
		if report.Reading != nil {
			reading = append(reading, fmt.Errorf("registry %s: %w", s.Name, report.Reading))
		}
		if i == 0 {
			out.Writing, out.Audited, out.Stored = report.Writing, report.Audited, report.Stored
		}
	}
	out.Keys, out.Reading = slices.Collect(maps.Keys(keys)), errors.Join(reading...)
	return out
}
