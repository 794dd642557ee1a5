package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

const (
	// decoders is the number of catalogs that are decoded at once. Each takes up to 8 MiB for the
	// decompressed page, 16 MiB for one export of the most items, and what the exports take.
	decoders = 2
	// maxWaiting bounds the exports of a page that are over budget, or in namespaces that are not
	// imported, and known by name. 64 pages of them take 1 MiB.
	maxWaiting = 128
)

// pageRead is a read of a page. It is made without the lock: it verifies, decompresses and decodes
// what any member may have written.
type pageRead struct {
	number int
	// parts is the number of parts that were found.
	parts int
	img   format.Page
	// offers are the exports of the page that are imported, decoded those of them that were
	// expected to be admitted.
	offers  []budget.Offer
	decoded record.Page
	// ignored are the keys of exports in namespaces that are not imported.
	ignored []mcs.Key
	// err is the reason why nothing of the page can be used.
	err error
}

// pageReader makes pageReads of one cluster.
type pageReader struct {
	clusterID string
	authors   []format.Author
	account   *budget.Account
	// isWanted reports whether the exports of a namespace are used; nil is all.
	isWanted func(namespace string) bool
}

// readerOf returns the reader of a cluster's pages, nil if the cluster is not known any more. The
// own pages have no limits.
func (c *catalogs) readerOf(id string) *pageReader {
	if id == c.identity.ClusterID {
		return &pageReader{clusterID: id, authors: c.own.authors}
	}
	cluster := c.clusters[id]
	if cluster == nil {
		return nil
	}
	return &pageReader{clusterID: id, authors: []format.Author{cluster.record.Author()}, account: cluster.account, isWanted: c.isWanted}
}

// maxOpenBytes is the size up to which a decompressed page is kept until it is decoded. A larger
// one is decompressed again.
const maxOpenBytes = 64 << 10

// read reads pages from their instances and calls visit for each. Which exports are admitted is
// decided for all pages together, and only those are decoded. It holds one decompressed page at a
// time, besides small ones.
func (r *pageReader) read(pages []int, found map[int][]api.Instance, visit func(pageRead)) {
	reads, contents := make([]pageRead, len(pages)), make([]record.Contents, len(pages))
	var offers []budget.Offer
	for i, page := range pages {
		reads[i] = pageRead{number: page, parts: format.CountParts(page, found[page])}
		if reads[i].img, reads[i].err = format.JoinPage(page, found[page], r.authors...); reads[i].err == nil {
			contents[i], reads[i].err = record.Open(reads[i].img.Data)
		}
		offered, _ := r.offers(contents[i])
		offers = r.keepFirst(append(offers, offered...))
		if contents[i].Size() > maxOpenBytes {
			contents[i] = record.Contents{}
		}
	}
	picked := map[mcs.Key]bool{}
	for i, ok := range r.account.Preview(offers) {
		picked[offers[i].Key] = ok
	}
	for i, read := range reads {
		if read.err == nil && contents[i].Size() == 0 {
			contents[i], read.err = record.Open(read.img.Data)
		}
		if read.err == nil {
			read.offers, read.ignored = r.offers(contents[i])
			read.decoded = contents[i].Decode(r.clusterID, func(key mcs.Key) bool { return picked[key] })
		}
		read.img.Data, contents[i] = nil, record.Contents{}
		visit(read)
	}
}

// keepFirst returns as many of the offers as can be admitted at most, if there are many more: a
// hostile catalog has 640,000.
func (r *pageReader) keepFirst(offers []budget.Offer) []budget.Offer {
	most := r.account.Limits().Member[budget.Exports]
	if r.account == nil || len(offers) <= 4*most {
		return offers
	}
	offers = r.account.WithHeld(offers)
	slices.SortFunc(offers, budget.Compare)
	return slices.Clip(offers[:2*most])
}

// offers returns the exports of a page that are used if the budgets allow it, and the keys of those
// in namespaces that are not imported.
func (r *pageReader) offers(contents record.Contents) (offers []budget.Offer, ignored []mcs.Key) {
	wanted := map[string]bool{}
	for _, e := range contents.Entries() {
		isWanted, known := wanted[e.Key.Namespace]
		if !known {
			isWanted = r.isWanted == nil || r.isWanted(e.Key.Namespace)
			wanted[e.Key.Namespace] = isWanted
		}
		if isWanted {
			offers = append(offers, budget.Offer{Key: e.Key, Created: e.Created, Wanted: e.Cost})
		} else {
			ignored = append(ignored, e.Key)
		}
	}
	return offers, ignored
}

// admit adds the cost of the exports that fit the budgets. It returns the others as keys that
// cannot be used, and records them in after.
func (c *catalog) admit(page int, read *pageRead, exports map[mcs.Key]mcs.Export, after *pageState) {
	p := &c.pages[page]
	isShown := make(map[mcs.Key]bool, len(read.offers))
	var offers []budget.Offer
	for _, o := range read.offers {
		isShown[o.Key] = true
		if _, isDecoded := exports[o.Key]; isDecoded {
			offers = append(offers, o)
		} else if !after.unreadable[o.Key] && format.PageOf(o.Key) == page {
			after.waiting = append(after.waiting, o)
		}
	}
	c.account.Retain(slices.Collect(maps.Keys(p.exports)), func(key mcs.Key) bool { return isShown[key] || after.unnamed })
	admitted, _ := c.account.Admit(offers)
	for i, o := range offers {
		if !admitted[i] {
			delete(exports, o.Key)
			after.waiting = append(after.waiting, o)
		}
	}
	slices.SortFunc(after.waiting, budget.Compare)
	after.excess = len(after.waiting)
	if after.excess > maxWaiting {
		after.unnamed = true
		after.waiting = slices.Clone(after.waiting[:maxWaiting])
	}
	for _, o := range after.waiting {
		after.unreadable[o.Key] = true
	}
	after.reasons = c.account.Explain(after.waiting)
	after.triedAt = c.account.Released()
}

// ignore records the exports in namespaces that are not imported.
func (p *pageState) ignore(keys []mcs.Key) {
	p.ignored = make(map[mcs.Key]bool, min(len(keys), maxWaiting))
	for _, key := range keys {
		if len(p.ignored) < maxWaiting {
			p.ignored[key] = true
		}
	}
	p.ignoredCount = len(keys)
}

// observePage takes in a read of a page of another cluster. Only a whole generation counts, and
// only if it is the announced one or a later one.
func (c *catalogs) observePage(now time.Time, id string, read pageRead, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // left meanwhile
	}
	p, page, img, err := &cluster.pages[read.number], read.number, read.img, read.err
	if err == nil && img.Author != cluster.record.Author() {
		err = fmt.Errorf("generation %d is signed with a previous key", img.Generation)
	}
	if err == nil {
		err = cluster.checkOrder(now, page, img)
	}
	if err == nil && cluster.announcesOther(page, img) {
		err = unannouncedError(img.Generation)
	}
	if err != nil {
		p.trouble = err.Error()
		p.failed(now, c.poll)
		return
	}
	if cluster.isUncertain() {
		changed = engine.Keys{} // no lookup shows them yet; makeCertain and compareFirst add them
	}
	before := p.exports
	cluster.takeRead(now, read, changed)
	c.reportChanges(before, p.exports)
}

// reportChanges reports the exports of another cluster that a read has changed.
func (c *catalogs) reportChanges(before, after map[mcs.Key]mcs.Export) {
	if c.observed == nil {
		return
	}
	for key, exp := range after {
		if known, ok := before[key]; !ok || !known.Equal(exp) {
			c.observed(exp)
		}
	}
}

// announcesOther reports whether the record announces another page than this one, which is not a
// later one.
func (c *catalog) announcesOther(page int, img format.Page) bool {
	return c.record.Pages[page] != img.Digest && img.Generation <= c.record.Generation
}

// takeRead replaces what was read of a page. Exports that are there but cannot be used stay as they
// were.
func (c *catalog) takeRead(now time.Time, read pageRead, changed engine.Keys) {
	p := &c.pages[read.number]
	exports, problems := belonging(read.number, read.decoded.Exports)
	after := pageState{
		read: true, readAt: now, generation: read.img.Generation, digest: read.img.Digest, parts: read.img.Parts, unnamed: read.decoded.Unnamed, unreadable: map[mcs.Key]bool{},
		problems: append(read.decoded.Problems, problems...),
	}
	for _, key := range read.decoded.Unreadable {
		after.unreadable[key] = true
	}
	c.admit(read.number, &read, exports, &after)
	after.ignore(read.ignored)
	isIgnored := make(map[mcs.Key]bool, len(read.ignored))
	for _, key := range read.ignored {
		isIgnored[key] = true
	}
	for key, exp := range p.exports {
		if _, ok := exports[key]; !ok && !isIgnored[key] && (after.unnamed || after.unreadable[key]) {
			exports[key] = exp
		}
	}
	diff(p.exports, exports, changed)
	for key := range after.ignored {
		if !p.ignored[key] {
			changed.Add(key)
		}
	}
	after.exports = exports
	c.setPage(read.number, after)
	c.countExcess()
}

// countExcess updates the metric of exports over budget.
func (c *catalog) countExcess() {
	excess := 0
	for i := range c.pages {
		excess += c.pages[i].excess
	}
	c.account.SetExcess(excess)
}

// removePage makes a page one that is known not to exist.
func (c *catalog) removePage(page int, generation int64, changed engine.Keys) {
	p := &c.pages[page]
	c.account.Retain(slices.Collect(maps.Keys(p.exports)), func(mcs.Key) bool { return false })
	diff(p.exports, nil, changed)
	c.setPage(page, pageState{read: true, generation: generation})
	c.countExcess()
}

// findRoom marks the pages of which an export that was over budget is admitted now: they are read
// again.
func (c *catalog) findRoom() {
	if c.account == nil {
		return
	}
	for i := range c.pages {
		p := &c.pages[i]
		// the exports of later pages had not been admitted yet
		if slices.Contains(p.reasons, budget.Excess{}) {
			p.reasons = c.account.Explain(p.waiting)
		}
		if released := c.account.Released(); len(p.waiting) > 0 && released != p.triedAt {
			p.triedAt = released
			p.isWanted = p.isWanted || slices.Contains(c.account.Preview(p.waiting), true)
		}
	}
}

// want marks the pages that were read without the exports of a namespace that is imported now, and
// reports whether there are any.
func (c *catalogs) want(key mcs.Key) (found bool) {
	for _, cluster := range c.clusters {
		if p := &cluster.pages[format.PageOf(key)]; p.ignored[key] && !p.isWanted {
			p.isWanted, found = true, true
		}
	}
	return found
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
