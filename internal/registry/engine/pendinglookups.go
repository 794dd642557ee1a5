package engine

import (
	"fmt"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// PendingLookups holds the last answer of each key whose lookup was incomplete. It is not safe for concurrent use: the
// lock that guards it must also guard the data of lookups, or a change between the two is missed.
type PendingLookups struct {
	results map[mcs.Key]lookupResult
	most    int
}

// MaxPendingLookups is the maximum number of keys that a registry records. A cluster that cannot be read makes every lookup incomplete, and another one
// may export and withdraw services of ever new names meanwhile. 100,000 keys take some 20 MiB.
const MaxPendingLookups = 100_000

// NewPendingLookups returns PendingLookups that record at most as many keys, besides those of imports.
func NewPendingLookups(most int) *PendingLookups {
	return &PendingLookups{results: map[mcs.Key]lookupResult{}, most: most}
}

// Len returns the number of keys.
func (p *PendingLookups) Len() int { return len(p.results) }

// record records the answer for key. If there are too many, keys that were not imported are dropped. No import waits
// for them, but the condition Conflict of an own export may stay as it was until its key changes.
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

// lookupResult is the incomplete part of an answer, and the imported clusters of the question.
type lookupResult struct {
	synced, incomplete bool
	unknown, unseen    []string
	imported           []string
}

// ViewFunc answers a lookup as registry.Registry.Lookup does.
type ViewFunc func(key mcs.Key, imported []string) registry.View

// Lookup answers a lookup of key with view, and records the key if the answer is incomplete.
func (p *PendingLookups) Lookup(key mcs.Key, imported []string, view ViewFunc) registry.View {
	v := view(key, imported)
	if len(v.Unknown) == 0 && len(v.Unseen) == 0 && !v.Incomplete {
		return v
	}
	// Other callers may have asked with other imported clusters.
	all, recorded := slices.Concat(p.results[key].imported, imported), v
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > len(imported) {
		recorded = view(key, all)
	}
	p.record(key, lookupResult{synced: true, incomplete: recorded.Incomplete, unknown: recorded.Unknown, unseen: recorded.Unseen, imported: all})
	return v
}

// NotSynced records key and returns the error for a lookup before the registry has been read; problem is the reason why it
// could not be read, or nil.
func (p *PendingLookups) NotSynced(key mcs.Key, problem error) error {
	p.record(key, lookupResult{})
	return fmt.Errorf("looking up %s: %w", key, registry.NotSynced(problem))
}

// AddChanged adds the keys for which view, of a registry that has been read, now gives another answer, and stops recording
// them.
func (p *PendingLookups) AddChanged(changed Keys, view ViewFunc) {
	for key, before := range p.results {
		now := view(key, before.imported)
		if !before.synced || before.incomplete != now.Incomplete || !slices.Equal(before.unknown, now.Unknown) || !slices.Equal(before.unseen, now.Unseen) {
			changed.Add(key)
			delete(p.results, key)
		}
	}
}

// Unseen returns those of the imported clusters, sorted, that isKnown does not know.
func Unseen(imported []string, isKnown func(clusterID string) bool) (unseen []string) {
	for _, id := range imported {
		if !isKnown(id) {
			unseen = append(unseen, id)
		}
	}
	slices.Sort(unseen)
	return slices.Compact(unseen)
}
