package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// pageInfo is what is known of a page of another cluster besides its content, which belief has.
type pageInfo struct {
	// generation and parts are those of the page that was read, problems those of its exports.
	generation int64
	parts      int
	problems   []string
	// trouble is the reason why the last read of the page did not count, "" if it did, and failures
	// the number of such reads in a row.
	trouble  string
	failures int
	// waiting are the exports that are over budget, and reasons the budgets that they exceed.
	// excess is their number, including those that are not named. triedAt is the Released of the
	// account when they were tried last.
	waiting []budget.Offer
	reasons []budget.Excess
	excess  int
	triedAt uint64
	// isWanted is set if the page is read again, to use exports that were over budget or ignored.
	isWanted bool
}

// observePage takes in a read of a page of another cluster.
func (c *catalogs) observePage(now time.Time, id string, read pageRead, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // left meanwhile
	}
	p, unit, err := &cluster.pages[read.number], belief.Unit{Name: unitNames[read.number]}, read.err
	if err == nil {
		unit.Version = belief.Version{Generation: read.img.Generation, Digest: read.img.Digest}
		unit.Author = belief.Author{Key: read.img.Author.Key, UID: read.img.Author.UID}
		if !c.belief.Counts(id, &unit) {
			err = cluster.reasonAgainst(p, &unit)
		}
	}
	if err != nil {
		p.trouble, p.failures = err.Error(), p.failures+1
		c.step(now, cluster, belief.UnitsRead{Cluster: id, Units: []belief.Unit{unit}}, changed)
		return
	}
	before, _ := c.belief.UnitOf(id, unit.Name)
	failures := p.failures
	unit.Content = cluster.contentOf(&before, read)
	c.step(now, cluster, belief.UnitsRead{Cluster: id, Units: []belief.Unit{unit}}, changed)
	if _, state := c.belief.UnitOf(id, unit.Name); state == belief.Behind {
		p.trouble, p.failures = unannouncedError(read.img.Generation).Error(), failures+1
	}
	c.reportChanges(before.Exports, unit.Content.Exports)
}

// reasonAgainst returns the reason why a read of a page does not count.
func (c *catalog) reasonAgainst(p *pageInfo, u *belief.Unit) error {
	switch {
	case c.record != nil && (c.record.Key != u.Author.Key || c.record.UID != u.Author.UID):
		return fmt.Errorf("generation %d is signed with a previous key", u.Version.Generation)
	case u.Version.Generation < p.generation:
		return olderPageError(u.Version.Generation, p.generation)
	}
	return unannouncedError(u.Version.Generation)
}

// olderPageError is the error of a page that is older than one that was read before.
func olderPageError(found, before int64) error {
	return fmt.Errorf("it has generation %d, which is older than generation %d that was read before", found, before)
}

// unannouncedError is the error of a page that is not the announced one.
func unannouncedError(found int64) error {
	return fmt.Errorf("generation %d is there, which is not what the cluster's record announces", found)
}

// belonging returns the exports that belong to page.
func belonging(page int, list []mcs.Export) (exports []mcs.Export, problems []string) {
	for i, exp := range list {
		if right := format.PageOf(exp.Key); right != page {
			problems = append(problems, fmt.Sprintf("export %s is ignored: it belongs to page %s", exp.Key, format.PageName(right)))
			continue
		}
		exports = append(exports, list[i])
	}
	return exports, problems
}

// reportChanges reports the exports of another cluster that a read has changed.
func (c *catalogs) reportChanges(before, after map[mcs.Key]*mcs.Export) {
	if c.observed == nil {
		return
	}
	for key, exp := range after {
		if known := before[key]; known == nil || !known.Equal(*exp) {
			c.observed(*exp)
		}
	}
}

// contentOf replaces what is known of a page by a read that counts, and returns its content.
// before is that of the page that was read last.
func (c *catalog) contentOf(before *belief.Content, read pageRead) belief.Content {
	exports, problems := belonging(read.number, read.decoded.Exports)
	content := belief.Content{
		Exports: make(map[mcs.Key]*mcs.Export, len(exports)), Unusable: setOf(read.decoded.Unreadable), Unnamed: read.decoded.Unnamed,
		Ignored: setOf(read.ignored[:min(len(read.ignored), maxWaiting)]),
	}
	for _, exp := range exports {
		content.Exports[exp.Key] = &exp
	}
	c.pages[read.number] = pageInfo{generation: read.img.Generation, parts: read.img.Parts, problems: append(read.decoded.Problems, problems...)}
	c.admit(before, &read, &content)
	c.countExcess()
	return content
}

// setOf returns a set of keys, nil if there are none.
func setOf(keys []mcs.Key) map[mcs.Key]bool {
	if len(keys) == 0 {
		return nil
	}
	set := make(map[mcs.Key]bool, len(keys))
	for _, key := range keys {
		set[key] = true
	}
	return set
}

// admit adds the cost of the exports that fit the budgets. The others become keys that cannot be
// used.
func (c *catalog) admit(before *belief.Content, read *pageRead, content *belief.Content) {
	p := &c.pages[read.number]
	c.releaseEnded(before, read, content)
	var offers []budget.Offer
	for _, o := range read.offers {
		if content.Exports[o.Key] != nil {
			offers = append(offers, o)
		} else if !content.Unusable[o.Key] && format.PageOf(o.Key) == read.number {
			p.waiting = append(p.waiting, o)
		}
	}
	admitted, _ := c.account.Admit(offers)
	for i, o := range offers {
		if !admitted[i] {
			delete(content.Exports, o.Key)
			p.waiting = append(p.waiting, o)
		}
	}
	slices.SortFunc(p.waiting, budget.Compare)
	p.excess = len(p.waiting)
	if p.excess > maxWaiting {
		content.Unnamed = true
		p.waiting = slices.Clone(p.waiting[:maxWaiting])
	}
	for _, o := range p.waiting {
		if content.Unusable == nil {
			content.Unusable = map[mcs.Key]bool{}
		}
		content.Unusable[o.Key] = true
	}
	p.reasons = c.account.Explain(p.waiting)
	p.triedAt = c.account.Released()
}

// releaseEnded releases the exports that the page that was read last has, and this one has not.
func (c *catalog) releaseEnded(before *belief.Content, read *pageRead, content *belief.Content) {
	if len(before.Exports) == 0 || content.Unnamed {
		return
	}
	isShown := make(map[mcs.Key]bool, len(read.offers))
	for _, o := range read.offers {
		isShown[o.Key] = true
	}
	c.account.Retain(slices.Collect(maps.Keys(before.Exports)), func(key mcs.Key) bool { return isShown[key] })
}

// countExcess updates the metric of exports over budget.
func (c *catalog) countExcess() {
	excess := 0
	for i := range c.pages {
		excess += c.pages[i].excess
	}
	c.account.SetExcess(excess)
}

// findRoom makes the pages be read again of which an export that was over budget is admitted now.
func (c *catalogs) findRoom(now time.Time, cluster *catalog) {
	account := cluster.account
	if account == nil {
		return
	}
	for i := range cluster.pages {
		p := &cluster.pages[i]
		// the exports of later pages had not been admitted yet
		if slices.Contains(p.reasons, budget.Excess{}) {
			p.reasons = account.Explain(p.waiting)
		}
		if released := account.Released(); len(p.waiting) > 0 && released != p.triedAt {
			p.triedAt = released
			if slices.Contains(account.Preview(p.waiting), true) {
				c.readAgain(now, cluster, i)
			}
		}
	}
}

// want makes the page of a key be read again of clusters whose exports of it were ignored, because
// its namespace is imported now. It reports whether there are any that are not read again already.
func (c *catalogs) want(now time.Time, key mcs.Key, clusters []string) (found bool) {
	for _, id := range clusters {
		if cluster := c.clusters[id]; cluster != nil {
			found = c.readAgain(now, cluster, format.PageOf(key)) || found
		}
	}
	return found
}

// readAgain makes a page be read again, and reports whether it was not already.
func (c *catalogs) readAgain(now time.Time, cluster *catalog, page int) bool {
	p := &cluster.pages[page]
	if p.isWanted {
		return false
	}
	p.isWanted = true
	c.step(now, cluster, belief.ReadAgain{Cluster: cluster.id, Units: []belief.UnitName{unitNames[page]}}, engine.Keys{})
	return true
}

// overBudget returns the exports that are over budget.
func (c *catalog) overBudget() (over mcs.OverBudget) {
	for i := range c.pages {
		p := &c.pages[i]
		for _, o := range p.waiting {
			over.Keys = append(over.Keys, o.Key)
		}
		over.HasOthers = over.HasOthers || p.excess > len(p.waiting)
	}
	return over
}

// excessProblems returns the lines about exports that are over budget.
func (c *catalog) excessProblems() []string {
	counts := map[budget.Excess]int{}
	examples := map[budget.Excess]mcs.Key{}
	for i := range c.pages {
		p := &c.pages[i]
		for j, o := range p.waiting {
			counts[p.reasons[j]]++
			examples[p.reasons[j]] = o.Key
		}
		if more := p.excess - len(p.waiting); more > 0 {
			counts[p.reasons[0]] += more
		}
	}
	delete(counts, budget.Excess{}) // it is being read
	var lines []string
	for excess, count := range counts {
		lines = append(lines, registry.BudgetProblem(count, examples[excess], excess))
	}
	slices.Sort(lines)
	return lines
}
