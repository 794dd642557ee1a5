package engine

import (
	"fmt"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// PendingLookups holds the last answer of each key whose lookup was incomplete. It is not safe for
// concurrent use: the lock that guards it must also guard the data of lookups, or a change between
// the two is missed.
//
// It holds nothing for the clusters that a lookup did not name as imported: while 1,000 clusters
// are read, all of them are unknown for every key.
type PendingLookups struct {
	results map[mcs.Key]lookupResult
	most    int
}

// MaxPendingLookups is the maximum number of keys that a registry records. A cluster that cannot be
// read makes every lookup incomplete, and another one may export and withdraw services of ever new
// names meanwhile. 100,000 keys take some 20 MiB.
const MaxPendingLookups = 100_000

// NewPendingLookups returns PendingLookups that record at most as many keys, besides those of
// imports.
func NewPendingLookups(most int) *PendingLookups {
	return &PendingLookups{results: map[mcs.Key]lookupResult{}, most: most}
}

// Len returns the number of keys.
func (p *PendingLookups) Len() int { return len(p.results) }

// record records the answer for key. If there are too many, keys that were not imported are
// dropped. No import waits for them, but the condition Conflict of an own export may stay as it was
// until its key changes.
func (p *PendingLookups) record(key mcs.Key, result lookupResult) {
	p.results[key] = result
	if len(p.results) <= p.most {
		return
	}
	tries := 0
	for other, r := range p.results { // in random order
		if tries++; len(r.imported) == 0 && other != key {
			delete(p.results, other)
			return
		}
		if tries == maxDropTries {
			return
		}
	}
}

// maxDropTries bounds the search for a key to drop.
const maxDropTries = 100

// Status is what is missing in the answer of a lookup.
type Status struct {
	// Unknown and Unseen are the clusters, sorted, that are in these states and that the lookup
	// named as imported. Stale are those of Unknown that are stale.
	Unknown, Unseen, Stale []string
	// IsOpen is set if any cluster is Unknown, Incomplete if View.Incomplete is set.
	IsOpen, Incomplete bool
}

// isPending reports whether more may be known later.
func (s Status) isPending() bool { return s.IsOpen || s.Incomplete || len(s.Unseen) > 0 }

// differs reports whether the caller has to look up again: an import depends on the clusters that
// it names, and a new one on all of them.
func (s Status) differs(before Status) bool {
	return before.IsOpen && !s.IsOpen || s.Incomplete != before.Incomplete ||
		!slices.Equal(s.Unknown, before.Unknown) || !slices.Equal(s.Unseen, before.Unseen) || !slices.Equal(s.Stale, before.Stale)
}

// lookupResult is the status of an answer, and the imported clusters, sorted, that lookups named.
type lookupResult struct {
	Status
	synced   bool
	imported []string
}

// ViewFunc answers a lookup as registry.Registry.Lookup does.
type ViewFunc func(key mcs.Key, imported []string) registry.View

// StatusFunc answers a lookup with the status of the View alone.
type StatusFunc func(key mcs.Key, imported []string) Status

// StatusOf returns the status of a View, given the clusters that the lookup named as imported.
func StatusOf(v registry.View, imported []string) Status {
	s := Status{Unseen: v.In(registry.Unseen), IsOpen: v.Has(registry.Unknown), Incomplete: v.Incomplete}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(imported))) {
		if c := v.Clusters[id]; c.State == registry.Unknown {
			s.Unknown = append(s.Unknown, id)
			if c.Liveness == registry.Stale {
				s.Stale = append(s.Stale, id)
			}
		}
	}
	return s
}

// Lookup answers a lookup of key with view, and records the key if the answer is incomplete. status
// is that of view.
func (p *PendingLookups) Lookup(key mcs.Key, imported []string, view ViewFunc, status StatusFunc) registry.View {
	v := view(key, imported)
	result := StatusOf(v, imported)
	if !result.isPending() {
		return v
	}
	// Other callers may have asked with other imported clusters.
	all := slices.Concat(p.results[key].imported, imported)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > len(imported) {
		result = status(key, all)
	}
	p.record(key, lookupResult{Status: result, synced: true, imported: all})
	return v
}

// NotSynced records key and returns the error for a lookup before the registry has been read;
// problem is the reason why it could not be read, or nil.
func (p *PendingLookups) NotSynced(key mcs.Key, problem error) error {
	p.record(key, lookupResult{})
	return fmt.Errorf("looking up %s: %w", key, registry.NotSynced(problem))
}

// AddChanged adds the keys for which the status, in a registry that has been read, differs from the
// recorded one, and stops recording them: an imported cluster is known now, or all clusters are.
func (p *PendingLookups) AddChanged(changed Keys, status StatusFunc) {
	for key, before := range p.results {
		p.addIfChanged(key, before, changed, status)
	}
}

// AddChangedOf is AddChanged after a change of one cluster, while others are unknown for all keys:
// it looks only at the keys whose lookups named the cluster.
func (p *PendingLookups) AddChangedOf(clusterID string, changed Keys, status StatusFunc) {
	for key, before := range p.results {
		if _, isImported := slices.BinarySearch(before.imported, clusterID); isImported || !before.synced {
			p.addIfChanged(key, before, changed, status)
		}
	}
}

func (p *PendingLookups) addIfChanged(key mcs.Key, before lookupResult, changed Keys, status StatusFunc) {
	if !before.synced || status(key, before.imported).differs(before.Status) {
		changed.Add(key)
		delete(p.results, key)
	}
}
