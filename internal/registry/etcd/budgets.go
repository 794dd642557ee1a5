package etcd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

const (
	// maxUnrecognized bounds the keys of a cluster that no controller writes and that are known by
	// name.
	maxUnrecognized = 100
	// keysPerExport is how many keys of a cluster are known, for each export of its budget. Those
	// over budget take 250 bytes each.
	keysPerExport = 4
	// relistPause is the shortest time between two lists that are made because there is room in a
	// budget again.
	relistPause = 10 * time.Second
)

// count counts a verified export of another cluster without decoding it.
func (s *state) count(v *verifiedExport, data []byte, key mcs.Key) {
	if s.isWanted != nil && !s.isWanted(key.Namespace) {
		v.shown.ignored = true
		return
	}
	s.decoding <- struct{}{}
	defer func() { <-s.decoding }()
	contents, err := record.Open(data)
	if err != nil {
		v.shown.unreadable = err.Error()
		return
	}
	v.offer = budget.Offer{Key: key}
	for _, entry := range contents.Entries() {
		if entry.Key == key {
			v.offer = budget.Offer{Key: key, Created: entry.Created, Wanted: entry.Cost}
		}
	}
}

// showExport returns the export of a pair, within the cluster's budget. It verifies a pair that was
// not verified with the cluster's key.
func (s *state) showExport(c *cluster, p pair, key mcs.Key) shownExport {
	v := p.verified
	if v == nil || v.author != c.author {
		v = s.verify(p, c.author, key)
		if v.isOffered() && c.account.Preview([]budget.Offer{v.offer})[0] {
			s.decode(v, p.value)
		}
	}
	if !v.isOffered() {
		return v.shown
	}
	if v.shown.export != nil {
		if admitted, _ := c.account.Admit([]budget.Offer{v.offer}); admitted[0] {
			return v.shown
		}
	}
	shown := v.shown
	if shown.unreadable == "" {
		shown.export, shown.problems, shown.waiting = nil, nil, &v.offer
	}
	return shown
}

// release subtracts the cost of an export from the account of its cluster, if nothing is kept of
// it.
func (c *cluster) release(key mcs.Key) {
	if c.held[key].export == nil && c.shown[key].export == nil {
		c.account.Release(key)
	}
}

// isFull reports whether a key is one too many: it stays unknown, so nothing ends by the digest of
// the exports.
func (c *cluster) isFull(key mcs.Key) bool {
	limit := c.account.Limits().Member[budget.Exports]
	_, isShown := c.shown[key]
	return limit > 0 && !isShown && len(c.shown) >= keysPerExport*limit
}

// findRoom requests a list if an export is admitted now that was over budget, or the keys of a
// cluster that had too many fit.
func (s *state) findRoom(now time.Time) {
	if now.Sub(s.relistedAt) < relistPause {
		return
	}
	for _, c := range s.clusters {
		isRelieved, released := c.overflow > 0 && !c.isFull(mcs.Key{}), c.account.Released()
		if !isRelieved && (c.waiting == 0 || released == c.triedAt) {
			continue
		}
		c.triedAt = released
		var waiting []budget.Offer
		for _, e := range c.shown {
			if e.waiting != nil {
				waiting = append(waiting, *e.waiting)
			}
		}
		if isRelieved || slices.Contains(c.account.Preview(waiting), true) {
			s.relist, s.relistedAt = true, now
			c.overflow = 0
			c.readAgain(func(e shownExport) bool { return e.waiting != nil })
		}
	}
}

// readAgain makes the next list read exports although they have not changed.
func (c *cluster) readAgain(selects func(shownExport) bool) {
	for key, e := range c.shown {
		if selects(e) {
			e.revision = 0
			c.shown[key] = e
		}
	}
}

// want adds the exports of a key that were ignored to the unread ones, and reports whether there
// are any.
func (s *state) want(key mcs.Key) (found bool) {
	for _, c := range s.exporters[key] {
		if e, ok := c.shown[key]; ok && e.ignored && e.revision != 0 {
			e.revision, found = 0, true
			c.shown[key] = e
			s.unread[s.layout.export(c.id, key)] = struct{}{}
		}
	}
	return found
}

// excessProblems returns the lines about exports that are over budget.
func (c *cluster) excessProblems() []string {
	if c.waiting+c.overflow == 0 {
		return nil
	}
	counts, examples := map[budget.Excess]int{}, map[budget.Excess]mcs.Key{}
	for _, key := range slices.SortedFunc(maps.Keys(c.shown), func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if w := c.shown[key].waiting; w != nil {
			reason := c.account.Explain([]budget.Offer{*w})[0]
			counts[reason]++
			examples[reason] = key
		}
	}
	delete(counts, budget.Excess{}) // it is being read
	var lines []string
	for excess, count := range counts {
		lines = append(lines, registry.BudgetProblem(count, examples[excess], excess))
	}
	if c.overflow > 0 {
		lines = append(lines, fmt.Sprintf("%d more exports are not read: they are more than %d times the budget of exports for one cluster", c.overflow, keysPerExport))
	}
	slices.Sort(lines)
	return lines
}

// countWaiting updates the number of exports over budget after one that was before is now after.
func (c *cluster) countWaiting(before, after shownExport) {
	if before.waiting != nil {
		c.waiting--
	}
	if after.waiting != nil {
		c.waiting++
	}
}
