package registry

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Asked are the keys of which Look could not tell everything, and what it said. It is not safe for concurrent use.
type Asked map[mcs.Key]said

// said is what a Look said that could not tell everything.
type said struct {
	synced  bool
	unknown []string
}

// NotSynced notes that a Look failed with ErrNotSynced.
func (a Asked) NotSynced(key mcs.Key) { a[key] = said{} }

// Said notes the clusters that a Look said to be unknown.
func (a Asked) Said(key mcs.Key, unknown []string) {
	if len(unknown) > 0 {
		a[key] = said{synced: true, unknown: unknown}
	}
}

// News are the keys of which a synced registry would say something else now, given the clusters that are unknown; they are forgotten.
func (a Asked) News(unknown func(mcs.Key) []string) (keys []mcs.Key) {
	for key, before := range a {
		if !before.synced || !slices.Equal(unknown(key), before.unknown) {
			keys = append(keys, key)
			delete(a, key)
		}
	}
	return keys
}
