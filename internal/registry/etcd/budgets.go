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
	// roomPause is the shortest time between two searches that have found room in a budget.
	roomPause = 10 * time.Second
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
	v, by := p.verified, s.authorOf(c.id, author{})
	if v == nil || v.author != by {
		v = s.verify(p, by, key)
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

// isFull reports whether a key is one too many: it stays unknown, so nothing ends by the digest of
// the exports.
func (c *cluster) isFull(key mcs.Key) bool {
	limit := c.account.Limits().Member[budget.Exports]
	_, isShown := c.shown[key]
	return limit > 0 && !isShown && len(c.shown) >= keysPerExport*limit
}

// findRoom requests reads of the exports that are admitted now and were over budget, and of all of
// a cluster that had too many keys and has fewer now.
func (s *state) findRoom(now time.Time) {
	if now.Sub(s.foundRoomAt) < roomPause {
		return
	}
	for _, c := range s.clusters {
		isRelieved, released := c.overflow > 0 && !c.isFull(mcs.Key{}), c.account.Released()
		switch {
		case isRelieved:
			c.isUnread, s.hasDue, s.foundRoomAt = true, true, now
		case c.waiting > 0 && released != c.triedAt:
			if c.requestAdmitted() {
				s.hasDue, s.foundRoomAt = true, now
			}
		}
		c.triedAt = released
	}
}

// requestAdmitted requests reads of the exports that are admitted now and were over budget, and
// reports whether there are any.
func (c *cluster) requestAdmitted() (found bool) {
	var keys []mcs.Key
	var waiting []budget.Offer
	for key, e := range c.shown {
		if e.waiting != nil {
			keys, waiting = append(keys, key), append(waiting, *e.waiting)
		}
	}
	for i, isAdmitted := range c.account.Preview(waiting) {
		if isAdmitted {
			c.request(keys[i])
			found = true
		}
	}
	return found
}

// overBudget returns the exports that are over budget.
func (c *cluster) overBudget() mcs.OverBudget {
	over := mcs.OverBudget{HasOthers: c.overflow > 0}
	if c.waiting == 0 {
		return over
	}
	for key, e := range c.shown {
		if e.waiting != nil {
			over.Keys = append(over.Keys, key)
		}
	}
	return over
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
