package show

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// mergeExports returns the exports that the controllers know, sorted by key and cluster. The
// exporting cluster's own version of an export takes precedence over the versions that others have
// read.
func mergeExports(services []status.Service) []mcs.Export {
	type id struct {
		key     mcs.Key
		cluster string
	}
	merged := map[id]mcs.Export{}
	for _, s := range services {
		for _, exp := range s.Exports {
			if have, known := merged[id{exp.Key, exp.Cluster}]; !known || exp.Changed.After(have.Changed) {
				merged[id{exp.Key, exp.Cluster}] = exp
			}
		}
	}
	for _, s := range services {
		if s.Own != nil {
			merged[id{s.Own.Key, s.Own.Cluster}] = *s.Own
		}
	}
	exports := make([]mcs.Export, 0, len(merged))
	for _, exp := range merged {
		exports = append(exports, exp)
	}
	slices.SortFunc(exports, func(a, b mcs.Export) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name), strings.Compare(a.Cluster, b.Cluster))
	})
	return exports
}

// countEndpoints counts the endpoints of an export, and the ready ones.
func countEndpoints(e mcs.Export) (ready, all int) {
	for _, b := range e.Backends {
		for _, endpoint := range b.Endpoints {
			all++
			if endpoint.Ready {
				ready++
			}
		}
	}
	return ready, all
}

// appendMissing appends the items that list does not have.
func appendMissing(list []string, items ...string) []string {
	for _, s := range items {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
