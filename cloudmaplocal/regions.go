package cloudmaplocal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// regions has the regions of all accounts.
type regions struct {
	opts   *Options
	shares *shareList
	faults *faults

	mu    sync.Mutex
	byKey map[regionKey]*region
}

func newRegions(opts *Options, shares *shareList, plan *faults) *regions {
	return &regions{opts: opts, shares: shares, faults: plan, byKey: map[regionKey]*region{}}
}

// getRegion returns the region of an account. It creates the region on first use.
func (all *regions) getRegion(key regionKey) *region {
	all.mu.Lock()
	defer all.mu.Unlock()
	r := all.byKey[key]
	if r == nil {
		r = all.newRegion(key)
		all.byKey[key] = r
	}
	return r
}

// newRegion returns a region with the retention of the current fault plan.
func (all *regions) newRegion(key regionKey) *region {
	r := newRegion(key, all.opts, all.shares)
	r.replica.retention = all.faults.longestAge()
	return r
}

// findRegion returns the region of an account; nil if the account has not used it.
func (all *regions) findRegion(key regionKey) *region {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.byKey[key]
}

// allRegions returns all regions in a fixed order.
func (all *regions) allRegions() []*region {
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.SortedFunc(maps.Values(all.byKey), func(x, y *region) int {
		return cmp.Or(strings.Compare(x.key.account, y.key.account), strings.Compare(x.key.region, y.key.region))
	})
}

// updateRetention adapts the replicas to the stale reads of the current fault plan.
func (all *regions) updateRetention() {
	keep := all.faults.longestAge()
	for _, r := range all.allRegions() {
		r.withState(func() { r.replica.retention = keep })
	}
}

// targetRegion returns the region of the account that owns the resource of the request, or the
// caller's own region. List operations always run in the caller's own region.
func (all *regions) targetRegion(caller principal, body []byte) *region {
	own := all.getRegion(caller.homeRegion())
	owner := requestOwner(body, caller.region)
	if owner == "" || owner == caller.account {
		return own
	}
	if other := all.findRegion(regionKey{owner, caller.region}); other != nil {
		return other
	}
	return own
}

// sharedResources returns the resources that other accounts share with the caller.
func (all *regions) sharedResources(caller principal) (shared visibleResources) {
	for _, r := range all.allRegions() {
		if r.key.region != caller.region || r.key.account == caller.account {
			continue
		}
		more := r.listVisibleTo(caller)
		shared.namespaces = append(shared.namespaces, more.namespaces...)
		shared.services = append(shared.services, more.services...)
	}
	return shared
}

// countResources counts the current resources.
func (all *regions) countResources() (total resourceCounts) {
	for _, r := range all.allRegions() {
		r.withState(func() {
			r.store.countResources(&total)
			total.operations += len(r.operations.queue)
		})
	}
	return total
}

// snapshot returns the content of the state file.
func (all *regions) snapshot() ([]byte, error) {
	content := state{Version: stateVersion}
	for _, r := range all.allRegions() {
		r.withState(func() { content.Regions = append(content.Regions, r.snapshot()) })
	}
	return json.Marshal(content)
}

// loadState restores the regions of the state file. It runs before the first request.
func (all *regions) loadState(path string) error {
	content, err := readState(path)
	if err != nil {
		return err
	}
	for _, saved := range content.Regions {
		r := all.newRegion(regionKey{saved.Account, saved.Region})
		if err := r.restore(saved); err != nil {
			return fmt.Errorf("restoring account %s, Region %s: %w; move the file away or name another", saved.Account, saved.Region, err)
		}
		all.byKey[r.key] = r
	}
	return nil
}
