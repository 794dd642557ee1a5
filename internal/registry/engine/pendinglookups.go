package engine

import (
	"fmt"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// PendingLookups holds the last answer of each key whose lookup was incomplete. It is not safe for concurrent use: the
// lock that guards it must also guard the data of lookups, or a change between the two is missed.
type PendingLookups map[mcs.Key]lookupResult

// lookupResult is the incomplete part of an answer.
type lookupResult struct {
	synced, incomplete bool
	unknown            []string
}

// Lookup answers a lookup of key with view, and records the key if the answer is incomplete.
func (p PendingLookups) Lookup(key mcs.Key, view func(mcs.Key) registry.View) registry.View {
	v := view(key)
	if len(v.Unknown) > 0 || v.Incomplete {
		p[key] = lookupResult{synced: true, incomplete: v.Incomplete, unknown: v.Unknown}
	}
	return v
}

// NotSynced records key and returns the error for a lookup before the registry has been read; problem is the reason why it
// could not be read, or nil.
func (p PendingLookups) NotSynced(key mcs.Key, problem error) error {
	p[key] = lookupResult{}
	return fmt.Errorf("looking up %s: %w", key, registry.NotSynced(problem))
}

// AddChanged adds the keys for which view, of a registry that has been read, now gives another answer, and stops recording
// them.
func (p PendingLookups) AddChanged(changed Keys, view func(mcs.Key) registry.View) {
	for key, before := range p {
		now := view(key)
		if !before.synced || before.incomplete != now.Incomplete || !slices.Equal(before.unknown, now.Unknown) {
			changed.Add(key)
			delete(p, key)
		}
	}
}
