package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// uniteExports are the exports that any controller knows, its own and those that it has read, sorted by key and cluster. A
// cluster's own word counts before what others have read of it.
func uniteExports(seen []status.Service) []mcs.Export {
	type id struct {
		key     mcs.Key
		cluster string
	}
	united := map[id]mcs.Export{}
	for _, s := range seen {
		for _, exp := range s.Exports {
			if have, known := united[id{exp.Key, exp.Cluster}]; !known || exp.Changed.After(have.Changed) {
				united[id{exp.Key, exp.Cluster}] = exp
			}
		}
	}
	for _, s := range seen {
		if s.Own != nil {
			united[id{s.Own.Key, s.Own.Cluster}] = *s.Own
		}
	}
	exports := make([]mcs.Export, 0, len(united))
	for _, exp := range united {
		exports = append(exports, exp)
	}
	slices.SortFunc(exports, func(a, b mcs.Export) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name), strings.Compare(a.Cluster, b.Cluster))
	})
	return exports
}

// endpointsOf counts an export's endpoints, and those that are ready.
func endpointsOf(e mcs.Export) (ready, all int) {
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

// mergeStrings is list with those of more that it lacks.
func mergeStrings(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
