package registry

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// PendingLookups are the keys of which Look could not tell everything, and what it said. It is not safe for concurrent use.
type PendingLookups map[mcs.Key]lookupResult

// lookupResult is what a Look lookupResult that could not tell everything.
type lookupResult struct {
	synced, incomplete bool
	unknown            []string
}

// NotSynced notes that a Look failed with ErrNotSynced.
func (a PendingLookups) NotSynced(key mcs.Key) { a[key] = lookupResult{} }

// Record notes a View that did not tell everything.
func (a PendingLookups) Record(key mcs.Key, view View) {
	if len(view.Unknown) > 0 || view.Incomplete {
		a[key] = lookupResult{synced: true, incomplete: view.Incomplete, unknown: view.Unknown}
	}
}

// Changed are the keys of which a synced registry, which looks like that, would say something else now; they are forgotten.
func (a PendingLookups) Changed(look func(mcs.Key) View) (keys []mcs.Key) {
	for key, before := range a {
		now := look(key)
		if !before.synced || before.incomplete != now.Incomplete || !slices.Equal(before.unknown, now.Unknown) {
			keys = append(keys, key)
			delete(a, key)
		}
	}
	return keys
}
