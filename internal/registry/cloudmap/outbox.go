package cloudmap

import (
	"fmt"
	"maps"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// outbox is what this cluster wants in its pages and what it wrote there. Pages are adopted from an earlier life before
// they are written, so that an export which the starting controller has not reached yet is not lost.
type outbox struct {
	clusterID string
	pages     [pageCount]ownPage
	// generation is the last one that was used.
	generation int64
}

// ownPage is a page as it was last written whole, by this process or by an earlier life.
type ownPage struct {
	// want is what this process was asked for; nil is a withdrawal that the registry has not shown yet.
	want map[mcs.Key]*mcs.Export
	// dirty means that want may differ from exports, torn that the store may differ from exports.
	dirty, torn bool

	adopted bool
	exports map[mcs.Key]mcs.Export
	digest  string
	// parts are those of the page, stored those that the store may have.
	parts, stored int
	// problem is why the page is not as wanted.
	problem error
	// operations are those that wrote it, until the registry has shown the page.
	operations []string
	// unshown is since when the registry shows something else, zero while it does not.
	unshown time.Time
}

func newOutbox(clusterID string) *outbox {
	o := &outbox{clusterID: clusterID}
	for i := range o.pages {
		o.pages[i].want = map[mcs.Key]*mcs.Export{}
	}
	return o
}

// ask notes what key is to be, nil for withdrawn, and says whether that is news.
func (o *outbox) ask(key mcs.Key, exp *mcs.Export) bool {
	p := &o.pages[pageOf(key)]
	before, asked := p.want[key]
	if asked && (before == nil) == (exp == nil) && (exp == nil || before.Equal(*exp)) {
		return false
	}
	p.want[key] = exp
	p.dirty = true
	return true
}

// adopt makes what the registry shows of a page the base of what is written next.
func (o *outbox) adopt(page int, shown *pageState) {
	p := &o.pages[page]
	*p = ownPage{
		want: p.want, dirty: len(p.want) > 0,
		adopted: true, exports: shown.exports, digest: shown.digest, parts: shown.parts, stored: shown.stored,
	}
	o.generation = max(o.generation, shown.generation)
}

// abandon gives up a page of an earlier life that cannot be read as it was announced: it is written anew, from what is
// known of it. Until then it stays announced as it is, for without a digest the others would take it for removed.
func (o *outbox) abandon(page int, shown *pageState, announced string) {
	p := &o.pages[page]
	exports := shown.earlier
	if shown.read {
		exports = shown.exports
	}
	*p = ownPage{want: p.want, torn: true, adopted: true, exports: exports, digest: announced, parts: shown.stored, stored: shown.stored}
}

// disown forgets what was written, because another cluster has the pages now.
func (o *outbox) disown() {
	for i := range o.pages {
		o.pages[i] = ownPage{want: o.pages[i].want}
	}
}

// rewrite makes every page be written again: the store has lost them.
func (o *outbox) rewrite() {
	for i := range o.pages {
		if p := &o.pages[i]; p.adopted && p.digest != "" {
			p.torn = true
		}
	}
}

// pending says whether a page has to be written, or looked at for that.
func (o *outbox) pending() (dirty, torn int) {
	for i := range o.pages {
		if p := &o.pages[i]; p.adopted && p.torn {
			torn++
		} else if p.adopted && p.dirty {
			dirty++
		}
	}
	return dirty, torn
}

// nextGeneration is later than all before, and over restarts too, because it is the time in milliseconds if that is later.
func (o *outbox) nextGeneration(now time.Time) int64 {
	o.generation = max(o.generation+1, now.UnixMilli())
	return o.generation
}

// pageWrite is a page to be written. Without instances it is to be removed.
type pageWrite struct {
	page      int
	exports   map[mcs.Key]mcs.Export
	digest    string
	instances []plan.Instance
	// before is how many of them overwrite parts of the page as it is.
	before int
}

// batch is what has to be written now. Pages that cannot be written, being too large, stay as they are with a problem.
func (o *outbox) batch(now time.Time) (writes []pageWrite, refused []int) {
	generation := max(o.generation+1, now.UnixMilli())
	for i := range o.pages {
		p := &o.pages[i]
		if !p.adopted || !p.dirty && !p.torn {
			continue
		}
		exports := o.desired(i)
		p.dirty = false
		if !p.torn && sameExports(exports, p.exports) {
			p.problem = nil
			continue
		}
		w, err := encodePage(o.clusterID, i, generation, exports)
		if p.problem = err; err != nil {
			refused = append(refused, i)
			continue
		}
		w.before = min(p.parts, len(w.instances))
		writes = append(writes, w)
		o.generation = generation
	}
	return writes, refused
}

// desired is what page is to hold: what was there, changed by what was asked for.
func (o *outbox) desired(page int) map[mcs.Key]mcs.Export {
	p := &o.pages[page]
	exports := make(map[mcs.Key]mcs.Export, len(p.exports)+len(p.want))
	maps.Copy(exports, p.exports)
	for key, exp := range p.want {
		if exp == nil {
			delete(exports, key)
		} else {
			exports[key] = registry.Published(*exp)
		}
	}
	return exports
}

func sameExports(a, b map[mcs.Key]mcs.Export) bool {
	return maps.EqualFunc(a, b, mcs.Export.Equal)
}

func encodePage(clusterID string, page int, generation int64, exports map[mcs.Key]mcs.Export) (pageWrite, error) {
	w := pageWrite{page: page, exports: exports}
	if len(exports) == 0 {
		return w, nil
	}
	list := make([]mcs.Export, 0, len(exports))
	for _, exp := range exports {
		list = append(list, exp)
	}
	data, err := record.Encode(list)
	if err != nil {
		return w, fmt.Errorf("encoding page %s: %w", pageName(page), err)
	}
	w.digest = digestOf(data)
	w.instances, err = splitPage(clusterID, page, generation, data)
	return w, err
}

// written notes that all of w is in the store, by these operations.
func (o *outbox) written(now time.Time, w pageWrite, operations []string) {
	p := &o.pages[w.page]
	p.exports, p.digest, p.parts = w.exports, w.digest, len(w.instances)
	p.stored = max(p.stored, p.parts)
	p.torn, p.problem = false, nil
	p.operations, p.unshown = operations, now
}

// failed notes that any part of w may be in the store, and why not all of it is.
func (o *outbox) failed(w pageWrite, reason error) {
	p := &o.pages[w.page]
	p.torn, p.problem = true, reason
	p.stored = max(p.stored, len(w.instances))
}

// excess are the instances of parts that pages no longer have, by page.
func (o *outbox) excess() map[int][]string {
	ids := map[int][]string{}
	for i := range o.pages {
		p := &o.pages[i]
		if !p.adopted || p.torn {
			continue
		}
		for part := p.parts; part < p.stored; part++ {
			ids[i] = append(ids[i], partID(i, part))
		}
	}
	return ids
}

// trimmed notes that the excess instances of a page are gone.
func (o *outbox) trimmed(page int) { o.pages[page].stored = o.pages[page].parts }

// confirm compares the pages with what the registry shows of them, and takes over what the store was seen to have of
// each. It returns the pages that it has not shown for longer than patience, to be written again.
func (o *outbox) confirm(now time.Time, shown *catalog, patience time.Duration) (overdue []int) {
	for i := range o.pages {
		p := &o.pages[i]
		switch s := &shown.pages[i]; {
		case !p.adopted || p.torn:
		case s.read && !s.lost && s.digest == p.digest && shown.record.pages[i] == p.digest:
			p.unshown, p.operations = time.Time{}, nil
			p.forget()
			p.stored, s.stored = max(p.stored, s.stored), 0
		case p.unshown.IsZero():
			p.unshown = now
		case now.Sub(p.unshown) >= patience:
			overdue = append(overdue, i)
		}
	}
	return overdue
}

// unconfirmed says whether the registry has still to show something that was written.
func (o *outbox) unconfirmed() bool {
	for i := range o.pages {
		if !o.pages[i].unshown.IsZero() {
			return true
		}
	}
	return false
}

// forget drops the withdrawals that are carried out.
func (p *ownPage) forget() {
	for key, exp := range p.want {
		if _, has := p.exports[key]; exp == nil && !has {
			delete(p.want, key)
		}
	}
}

// publication says where key stands, given what the registry shows. A page that is there without being announced is
// nothing that another cluster sees.
func (o *outbox) publication(key mcs.Key, shown *catalog) registry.Publication {
	p, page := &o.pages[pageOf(key)], &shown.pages[pageOf(key)]
	want, asked := p.want[key]
	have, isShown := page.exports[key]
	announced := shown.record.pages[pageOf(key)] == page.digest
	switch {
	case announced && isShown && (!asked || want != nil && have.Equal(registry.Published(*want))):
		return registry.Publication{State: registry.Exported}
	case want == nil && !isShown && (page.read || !asked):
		return registry.Publication{State: registry.Absent}
	}
	return registry.Publication{State: registry.Pending, Err: p.problem}
}

// size is how much the cluster has in the registry.
func (o *outbox) size() (exports, pages int) {
	for i := range o.pages {
		exports += len(o.pages[i].exports)
		if o.pages[i].digest != "" {
			pages++
		}
	}
	return exports, pages
}
