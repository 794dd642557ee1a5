package registry

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Asked are the keys of which Look could not tell everything, and what it said. It is not safe for concurrent use.
type Asked map[mcs.Key]said

// said is what a Look said that could not tell everything.
type said struct {
	synced, incomplete bool
	unknown            []string
}

// NotSynced notes that a Look failed with ErrNotSynced.
func (a Asked) NotSynced(key mcs.Key) { a[key] = said{} }

// Said notes a View that did not tell everything.
func (a Asked) Said(key mcs.Key, view View) {
	if len(view.Unknown) > 0 || view.Incomplete {
		a[key] = said{synced: true, incomplete: view.Incomplete, unknown: view.Unknown}
	}
}

// News are the keys of which a synced registry, which looks like that, would say something else now; they are forgotten.
func (a Asked) News(look func(mcs.Key) View) (keys []mcs.Key) {
	for key, before := range a {
		now := look(key)
		if !before.synced || before.incomplete != now.Incomplete || !slices.Equal(before.unknown, now.Unknown) {
			keys = append(keys, key)
			delete(a, key)
		}
	}
	return keys
}
