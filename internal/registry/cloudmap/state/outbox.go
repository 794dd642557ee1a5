package state

import (
	"cmp"
	"maps"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// outbox is what this cluster wants in its pages and what it wrote there. Pages are adopted from the previous process before
// they are written, so that an export which the starting controller has not reached yet is not lost.
type outbox struct {
	clusterID string
	pages     [format.PageCount]ownPage
	// generation is the last one that was used.
	generation int64
	// orphanedPages says that the ID was claimed when there was no record, but pages of the previous process: what there is of them was not
	// announced by any cluster, and may be what a cluster that left could not remove, or what is left of what the others know.
	orphanedPages bool
}

// ownPage is a page as it was last written whole, by this process or by the previous process.
type ownPage struct {
	// want is what this process was asked for; nil is a withdrawal that the registry has not shown yet.
	want map[mcs.Key]*mcs.Export
	// dirty means that want may differ from exports, torn that the store may differ from exports.
	dirty, torn bool

	adopted bool
	// settled says that exports is what this process has decided on of the keys that it was asked for, and not only what it has
	// found.
	settled bool
	exports map[mcs.Key]mcs.Export
	digest  string
	// parts is the number of parts of the page, stored the number that the store may have.
	parts, stored int
	// tooLarge are the exports for which there is no room, with the error for their users.
	tooLarge map[mcs.Key]error
	// problem is why the page is not as wanted. A page that AWS refuses is written again at retryAt, whatever becomes of the others.
	problem error
	refusal string // what it was refused with last
	retry
	// operations are those that wrote it, until the registry has shown the page, and undone is why earlier ones came to nothing.
	operations []string
	undone     error
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

// ask notes what key is to be, nil for withdrawn, and reports whether that is news.
func (o *outbox) ask(key mcs.Key, exp *mcs.Export) bool {
	p := &o.pages[format.PageOf(key)]
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

// abandon gives up a page of the previous process that cannot be read as it was announced: it is written anew, from what is
// known of it. Until then it stays announced as it is, for without a digest the others would take it for removed.
func (o *outbox) abandon(page int, shown *pageState, announced format.Member) {
	p := &o.pages[page]
	exports := shown.earlier
	if shown.read {
		exports = shown.exports
	}
	*p = ownPage{
		want: p.want, torn: true, adopted: true, exports: exports, digest: announced.Pages[page], parts: shown.stored, stored: shown.stored,
	}
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

// pending says how many pages have to be written, or looked at for that, and when a page that was refused is to be tried again,
// zero if there is none.
func (o *outbox) pending(now time.Time) (dirty, torn int, again time.Time) {
	for i := range o.pages {
		switch p := &o.pages[i]; {
		case !p.adopted:
		case p.torn && !now.Before(p.retryAt):
			torn++
		case p.dirty:
			dirty++
		case p.torn && (again.IsZero() || p.retryAt.Before(again)):
			again = p.retryAt
		}
	}
	return dirty, torn, again
}

// nextGeneration is later than all before, and over restarts too, because it is the time in milliseconds if that is later.
func (o *outbox) nextGeneration(now time.Time) int64 {
	o.generation = max(o.generation+1, now.UnixMilli())
	return o.generation
}

// after makes generations later than those of all pages that are shown.
func (o *outbox) after(shown *catalog) {
	for i := range shown.pages {
		o.generation = max(o.generation, shown.pages[i].generation)
	}
}

// announcement returns the digest to announce of a page.
func (o *outbox) announcement(page int, shown *catalog) (digest string) {
	p, s := &o.pages[page], &shown.pages[page]
	switch {
	case o.orphanedPages && !p.decided():
		return format.UnwrittenDigest
	case p.adopted:
		return p.digest
	case s.read:
		return s.digest
	}
	return shown.record.Pages[page]
}

// decided reports whether the page is what this process was asked for, all of it, and nothing that was only found.
func (p *ownPage) decided() bool {
	for key := range p.exports {
		if _, asked := p.want[key]; !asked {
			return false
		}
	}
	return p.settled
}

// batch returns the writes that are due, and the pages of which there is another problem now. wall is the time for generations.
//
// Exports that do not fit, because their page or the catalog is full, are left out, the largest first; the store keeps what it has of
// them. A page that cannot be encoded all the same stays as it is.
func (o *outbox) batch(now, wall time.Time) (writes []PageWrite, problems []int) {
	generation := max(o.generation+1, wall.UnixMilli())
	var drafts []*pageDraft
	for i := range o.pages {
		p := &o.pages[i]
		if !p.adopted || !p.dirty && (!p.torn || now.Before(p.retryAt)) {
			continue
		}
		p.dirty = false
		drafts = append(drafts, newPageDraft(o.clusterID, i, generation, p.exports, o.desired(i)))
	}
	fitDrafts(drafts, o.roomBeside(drafts))
	for _, d := range drafts {
		p := &o.pages[d.page]
		if !sameErrors(p.tooLarge, d.tooLarge) || d.err != nil {
			problems = append(problems, d.page)
		}
		p.tooLarge = d.tooLarge
		switch {
		case d.err != nil: // an earlier problem is one until this write has ended
			p.problem, p.settled = d.err, true // what cannot be replaced counts
		case !p.torn && sameExports(d.exports, p.exports):
			p.problem, p.settled = nil, true
		default:
			d.before = min(p.parts, len(d.Instances))
			writes = append(writes, d.PageWrite)
			o.generation = generation
		}
	}
	return writes, problems
}

// roomBeside returns how many instances the catalog has room for besides the pages that are not drafted.
func (o *outbox) roomBeside(drafts []*pageDraft) int {
	room := catalogRoom - o.instances()
	for _, d := range drafts {
		d.stored = o.pages[d.page].stored
		room += d.stored
	}
	return room
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

// written notes that all of w is in the store, by these operations.
func (o *outbox) written(now time.Time, w PageWrite, operations []string) {
	p := &o.pages[w.page]
	p.exports, p.digest, p.parts = w.exports, w.digest, len(w.Instances)
	p.stored = max(p.stored, p.parts)
	p.torn, p.settled, p.problem, p.refusal, p.retry = false, true, nil, "", retry{}
	p.operations, p.unshown = operations, now
}

// failed notes that any part of w may be in the store, and why not all of it is.
func (o *outbox) failed(w PageWrite, reason error) {
	p := &o.pages[w.page]
	p.torn, p.problem = true, reason
	p.stored = max(p.stored, len(w.Instances))
}

// ExcessParts are the parts of a page from one number up to another that the store should not have.
type ExcessParts struct{ Page, from, to int }

// excess returns the parts that pages no longer have.
func (o *outbox) excess() (found []ExcessParts) {
	for i := range o.pages {
		if p := &o.pages[i]; p.adopted && !p.torn && p.parts < p.stored {
			found = append(found, ExcessParts{Page: i, from: p.parts, to: p.stored})
		}
	}
	return found
}

// IDs returns the IDs of the instances.
func (l ExcessParts) IDs() (ids []string) {
	for part := l.from; part < l.to; part++ {
		ids = append(ids, format.PartID(l.Page, part))
	}
	return ids
}

// trimmed records that the parts are gone. Exports that did not fit are tried again.
func (o *outbox) trimmed(l ExcessParts) {
	o.pages[l.Page].stored = l.from
	for i := range o.pages {
		if p := &o.pages[i]; len(p.tooLarge) > 0 {
			p.dirty = true
		}
	}
}

// confirm compares the pages with what the registry shows of them, and takes over what the store was seen to have of
// each. It returns the pages that it has not shown for longer than patience, to be written again.
func (o *outbox) confirm(now time.Time, shown *catalog, patience time.Duration) (overdue []int) {
	for i := range o.pages {
		p := &o.pages[i]
		switch s := &shown.pages[i]; {
		case !p.adopted:
			p.stored = s.stored // it takes room
		case p.torn:
		case o.orphanedPages && !p.decided():
			if !p.unshown.IsZero() {
				p.unshown = now // it is not announced
			}
		case p.shownBy(shown, i):
			p.unshown, p.operations, p.undone = time.Time{}, nil, nil
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

// shownBy reports whether the registry shows the page as it was written.
func (p *ownPage) shownBy(shown *catalog, page int) bool {
	s := &shown.pages[page]
	return s.read && !s.lost && s.digest == p.digest && shown.shows(page)
}

// unconfirmed reports whether the registry has still to show something that was written.
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
func (o *outbox) publication(key mcs.Key, shown *catalog) registry.PublishStatus {
	p, page := &o.pages[format.PageOf(key)], &shown.pages[format.PageOf(key)]
	want, asked := p.want[key]
	have, isShown := page.exports[key]
	announced := shown.shows(format.PageOf(key))
	switch {
	case announced && isShown && (!asked || want != nil && have.Equal(registry.Published(*want))):
		return registry.PublishStatus{State: registry.Exported}
	case want == nil && !isShown && (page.read || !asked):
		return registry.PublishStatus{State: registry.Absent}
	}
	return registry.PublishStatus{State: registry.Pending, Err: cmp.Or(p.tooLarge[key], p.problem, p.undone)}
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
