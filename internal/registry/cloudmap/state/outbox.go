package state

import (
	"cmp"
	"errors"
	"maps"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// outbox has the desired and the written state of this cluster's pages. Pages are adopted from the
// previous process before they are written. All exports are published before Run: others that this
// process finds were withdrawn while no process ran.
type outbox struct {
	identity mcs.Identity
	signer   *trust.Signer
	pages    [format.PageCount]ownPage
	// retryAt is the time from which the next page that has failed several times may be written
	// again.
	retryAt time.Time
	// generation is the last generation that was used, written the last one of a completely written
	// page.
	generation, written int64
	// latest is the last plausible generation of another author, 0 if there is no limit.
	latest int64
	// isSuccessor is set from the claim of the ID until all pages are final, if another process has
	// written pages under this ID or other clusters know exports of this process: Cloud Map may
	// have earlier versions of the pages, or lack some. A page is not announced before it has all
	// desired exports, and readers keep the version that they know.
	isSuccessor bool
	// keepWithdrawn is set for a while after the claim of the ID: no export is withdrawn, because
	// another process may hold the ID.
	keepWithdrawn bool
	news          news
	// reportedAfter is the time after which an importer has reported an export.
	reportedAfter time.Duration
	// pace limits the writes that the changes of each namespace cause.
	pace *engine.Pace[string]
}

// ownPage is a page as it was last written completely, by this process or a previous one.
type ownPage struct {
	// want are the desired exports; nil is a withdrawal that the registry has not shown yet.
	want map[mcs.Key]*mcs.Export
	// dirty is set if want may differ from exports, torn if the store may differ from exports.
	dirty, torn bool
	// changed are the namespaces whose desired exports have changed since the page was drafted.
	changed map[string]struct{}

	adopted bool
	// isHeldBack is set while a page is found that is not adopted yet, because another process may
	// have a later one.
	isHeldBack bool
	// isFinal is set if the page was compared with all desired exports since it was adopted.
	isFinal bool
	exports map[mcs.Key]mcs.Export
	digest  string
	// namespaces are those of the page with digest, "" if not all of its exports are known.
	namespaces format.Namespaces
	// parts is the number of parts of the page, stored the number that the store may have.
	parts, stored int
	// tooLarge are the exports that do not fit, with the error for their users.
	tooLarge map[mcs.Key]error
	// sizes are the sizes of the namespaces in the page with digest sizedAs; nil until they are
	// needed.
	sizes   namespaceSizes
	sizedAs string
	// problem is the reason why the page could not be written. A page that AWS refuses is written
	// again at retryAt, independently of the others.
	problem error
	retry
	// operations are the operations that wrote the page, until the registry has shown it. undone is
	// the reason why earlier ones failed.
	operations []string
	undone     error
	// unshown is the time since which the registry shows another page, zero while it shows this
	// one.
	unshown time.Time

	// writing is the generation of the write that is in progress since began, 0 without one. Only
	// one write of a page is in progress.
	writing int64
	began   time.Time
	// superseded is set if the page was disowned or lost since the write began: the store may have
	// any of its parts.
	superseded bool
	// trimming are the parts that are being removed. blocked is set if the page needs them again,
	// and waits for the removal.
	trimming *ExcessParts
	blocked  bool
	// trims is the retry of a failed removal of parts.
	trims retry
}

// renewed returns the page without the state of the store, but with the requests in progress.
func (p *ownPage) renewed() ownPage {
	return ownPage{want: p.want, changed: p.changed, writing: p.writing, began: p.began, superseded: p.writing != 0, trimming: p.trimming}
}

// isWaiting reports whether the page has to be written, or compared with the desired exports, and
// no request for it is in progress.
func (p *ownPage) isWaiting() bool {
	return p.adopted && p.writing == 0 && !p.blocked && (p.dirty || p.torn)
}

// The changes of a namespace may cause 10 writes a second, a fifth of what AWS allows an account,
// after a burst of 300: all 64 pages four times. The pages of 3,000 exports that change at once are
// written within 7 s more.
const (
	namespaceWrites = 10
	namespaceBurst  = 300
)

const (
	// eagerWrites is the number of failures after which a page takes turns with other failing
	// pages: one of them is written every retrySpacing, ten a minute.
	eagerWrites  = 3
	retrySpacing = 6 * time.Second
)

// dueAt returns when a page that is waiting may be written. The zero time is now.
func (o *outbox) dueAt(p *ownPage) time.Time {
	switch {
	case !p.torn:
		return o.pacedAt(p)
	case p.failures > eagerWrites && p.retryAt.Before(o.retryAt):
		return o.retryAt
	}
	return p.retryAt
}

// pacedAt returns when one of the namespaces that have changed a page may write. The changes of the
// others are written with it.
func (o *outbox) pacedAt(p *ownPage) (at time.Time) {
	isFirst := true
	for namespace := range p.changed {
		if due := o.pace.DueAt(namespace); isFirst || due.Before(at) {
			at, isFirst = due, false
		}
	}
	return at
}

// recover makes all failing pages due now, because one of them was written. Pages that AWS refuses
// for their content keep their time.
func (o *outbox) recover() {
	o.retryAt = time.Time{}
	for i := range o.pages {
		if p := &o.pages[i]; p.torn && !api.IsInvalid(p.problem) {
			p.retryAt = time.Time{}
		}
	}
}

func newOutbox(identity mcs.Identity, signer *trust.Signer) *outbox {
	o := &outbox{identity: identity, signer: signer, pace: engine.NewPace[string](namespaceWrites, namespaceBurst)}
	for i := range o.pages {
		o.pages[i].want = map[mcs.Key]*mcs.Export{}
	}
	return o
}

// setDesired sets the desired export of key, nil to withdraw it, and reports whether it changed.
func (o *outbox) setDesired(key mcs.Key, exp *mcs.Export) bool {
	p := &o.pages[format.PageOf(key)]
	before, asked := p.want[key]
	if asked && (before == nil) == (exp == nil) && (exp == nil || before.Equal(*exp)) {
		return false
	}
	p.want[key] = exp
	p.dirty = true
	if p.changed == nil {
		p.changed = map[string]struct{}{}
	}
	p.changed[key.Namespace] = struct{}{}
	return true
}

// adopt makes the page in the registry the base of the next write.
func (o *outbox) adopt(page int, shown *storedPage) {
	p := &o.pages[page]
	*p = p.renewed()
	p.adopted, p.torn = true, shown.digest != "" && shown.author != o.author()
	p.exports, p.digest, p.parts, p.stored = maps.Clone(shown.exports), shown.digest, shown.parts, shown.stored
	for key := range shown.unreadable {
		if _, has := p.exports[key]; !has {
			p.exports[key] = record.Undecided(key, o.identity.ClusterID)
		}
	}
	p.dirty = len(p.exports) > 0 || len(p.want) > 0
	p.isFinal = !p.dirty
	if !shown.unnamed {
		p.namespaces = format.NamespacesOf(p.exports)
	}
	o.raise(shown.generation, shown.author)
}

// raise makes the next generations later than one in the registry. A generation of another author
// counts only if it is plausible: any member can write the highest one.
func (o *outbox) raise(generation int64, by format.Author) {
	if o.latest > 0 && by.Key != o.signer.Key() {
		generation = min(generation, o.latest)
	}
	o.generation = max(o.generation, generation)
}

// author returns the author of the pages that this process writes.
func (o *outbox) author() format.Author {
	return format.Author{ClusterSetID: o.identity.ClusterSetID, ClusterID: o.identity.ClusterID, UID: o.identity.UID, Key: o.signer.Key()}
}

// setKeepWithdrawn sets whether withdrawn exports are kept. When they no longer are, their pages
// have to be written.
func (o *outbox) setKeepWithdrawn(keep bool) {
	if o.keepWithdrawn && !keep {
		for i := range o.pages {
			p := &o.pages[i]
			for key := range p.exports {
				p.dirty = p.dirty || p.isWithdrawn(key)
			}
		}
	}
	o.keepWithdrawn = keep
}

// abandon gives up a page of the previous process that cannot be read as it was announced: it is
// written anew, with the exports that are known. Until then it stays announced, because without a
// digest it would count as removed.
func (o *outbox) abandon(page int, shown *storedPage, announced format.Member) {
	p := &o.pages[page]
	exports := shown.earlier
	if shown.read {
		exports = shown.exports
	}
	*p = p.renewed()
	p.adopted, p.torn = true, true
	p.exports, p.digest, p.parts, p.stored = exports, announced.Pages[page], shown.stored, shown.stored
}

// disown drops the written state, because another cluster has the pages now.
func (o *outbox) disown() {
	for i := range o.pages {
		o.pages[i] = o.pages[i].renewed()
	}
}

// rewrite marks every page to be written again: the store has lost them.
func (o *outbox) rewrite() {
	for i := range o.pages {
		p := &o.pages[i]
		p.superseded = p.writing != 0
		if p.adopted && p.digest != "" {
			p.torn = true
		}
	}
}

// pending returns the number of pages that have to be compared with the desired exports (dirty) and
// written (torn), and the time at which a page that could not be written is due again, zero if
// there is none. Pages that are being written do not count.
func (o *outbox) pending(now time.Time) (dirty, torn int, again time.Time) {
	for i := range o.pages {
		switch p := &o.pages[i]; {
		case !p.isWaiting():
		case now.Before(o.dueAt(p)):
			again = earliest(again, o.dueAt(p))
		case p.torn:
			torn++
		case p.dirty:
			dirty++
		}
		if p := &o.pages[i]; p.isTrimmable() {
			if !now.Before(p.trims.retryAt) {
				torn++
			} else {
				again = earliest(again, p.trims.retryAt)
			}
		}
	}
	return dirty, torn, again
}

// earliest returns the earlier time; a zero time is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// isWriting reports whether pages are being written, and returns when the last of these writes
// began.
func (o *outbox) isWriting() (began time.Time, writing bool) {
	for i := range o.pages {
		if p := &o.pages[i]; p.writing != 0 {
			writing = true
			if p.began.After(began) {
				began = p.began
			}
		}
	}
	return began, writing
}

// nextGeneration returns a generation that is later than all previous ones, also after a restart:
// the time in milliseconds, if that is later.
func (o *outbox) nextGeneration(now time.Time) int64 {
	o.generation = max(o.generation+1, now.UnixMilli())
	return o.generation
}

// after makes the next generations later than those of all pages in the registry.
func (o *outbox) after(shown *ownCatalog) {
	for i := range shown.pages {
		o.raise(shown.pages[i].generation, shown.record.Author())
	}
}

// announcement returns the digest to announce for a page.
func (o *outbox) announcement(page int, shown *ownCatalog) (digest string) {
	p, s := &o.pages[page], &shown.pages[page]
	switch {
	case o.isUndecided(p), p.mayExist(), p.isHeldBack:
		return format.UnwrittenDigest
	case p.adopted:
		return p.digest
	case s.read:
		return s.digest
	}
	return shown.record.Pages[page]
}

// namespacesOf returns the namespaces of the pages as they are announced.
func (o *outbox) namespacesOf(announced format.Digests) (namespaces format.PageNamespaces) {
	for i := range o.pages {
		if p := &o.pages[i]; p.adopted && p.digest == announced[i] {
			namespaces[i] = p.namespaces
		}
	}
	return namespaces
}

// isUndecided reports whether the page must not be announced yet.
func (o *outbox) isUndecided(p *ownPage) bool { return o.isSuccessor && !p.isFinal }

// mayExist reports whether the store may have a page that is announced as none: its write is in
// progress or had no answer. Other clusters may have read it, and must not take a later record for
// its removal.
func (p *ownPage) mayExist() bool {
	isUnanswered := p.torn && p.problem != nil && api.IsRetryable(p.problem)
	return p.adopted && p.digest == "" && p.stored > 0 && (p.writing != 0 || isUnanswered)
}

// isFinal reports whether all pages have exactly the desired exports.
func (o *outbox) isFinal() bool {
	for i := range o.pages {
		if !o.pages[i].isFinal {
			return false
		}
	}
	return true
}

// batch returns the writes that are due, and the pages whose problem has changed. wall is the time
// for generations.
//
// Exports that do not fit, because their page or the catalog is full, are left out, the largest
// first; the store keeps their previous versions. A page that still cannot be encoded stays as it
// is.
func (o *outbox) batch(now, wall time.Time) (writes []PageWrite, problems []int) {
	generation := max(o.generation+1, wall.UnixMilli())
	drafts := o.drafts(now, generation)
	o.limitNamespaces(drafts)
	fitDrafts(drafts, o.roomBeside(drafts))
	for _, d := range drafts {
		p := &o.pages[d.page]
		if !sameErrors(p.tooLarge, d.tooLarge) || d.err != nil {
			problems = append(problems, d.page)
		}
		p.tooLarge = d.tooLarge
		switch {
		case d.err != nil: // an earlier problem is one until this write has ended
			// what cannot be replaced counts
			p.problem, p.isFinal = d.err, true
			p.retryAt = now.Add(maxRetry)
		case !p.torn && sameExports(d.exports, p.exports):
			p.problem, p.isFinal = nil, true
		case p.trimming != nil && len(d.Instances) > p.trimming.from:
			p.dirty, p.blocked, p.changed = true, true, d.changed
		default:
			o.generation = generation
			for namespace := range d.changed {
				o.pace.Charge(now, namespace, d.writesOf(namespace))
			}
			writes = append(writes, p.startWrite(now, d.PageWrite))
		}
	}
	return writes, problems
}

// drafts returns drafts of the pages that are due.
func (o *outbox) drafts(now time.Time, generation int64) (drafts []*pageDraft) {
	for i := range o.pages {
		p := &o.pages[i]
		if !p.isWaiting() || now.Before(o.dueAt(p)) {
			continue
		}
		if p.failures > eagerWrites {
			o.retryAt = now.Add(retrySpacing)
		}
		p.dirty = false
		changed := p.changed
		p.changed = nil
		d := newPageDraft(o.identity, o.signer, i, generation, p.exports, o.desired(i))
		d.changed = changed
		drafts = append(drafts, d)
	}
	return drafts
}

// startWrite records that w is being written, and returns it with the state of the page that the
// writer needs.
func (p *ownPage) startWrite(now time.Time, w PageWrite) PageWrite {
	w.before, w.previous = min(p.parts, len(w.Instances)), p.exports
	if p.torn && p.problem == nil {
		w.Unconfirmed = p.operations
	}
	p.writing, p.began = w.generation, now
	p.stored = max(p.stored, len(w.Instances)) // others cannot have that room
	return w
}

// roomBeside returns the number of instances that the catalog has room for besides the pages that
// are not drafted.
func (o *outbox) roomBeside(drafts []*pageDraft) int {
	room := catalogRoom - o.instances()
	for _, d := range drafts {
		d.stored = o.pages[d.page].stored
		room += d.stored
	}
	return room
}

// desired returns the desired content of a page: its exports with the requested changes.
func (o *outbox) desired(page int) map[mcs.Key]mcs.Export {
	p := &o.pages[page]
	exports := make(map[mcs.Key]mcs.Export, len(p.exports)+len(p.want))
	for key, exp := range p.exports {
		switch {
		case !p.isWithdrawn(key):
			exports[key] = exp
		case o.keepWithdrawn:
			// what was found may be an earlier version
			exports[key] = record.Undecided(key, o.identity.ClusterID)
		}
	}
	for key, exp := range p.want {
		if exp != nil {
			exports[key] = registry.Published(*exp)
		}
	}
	return exports
}

// isWithdrawn reports whether an export that the page has is not one of this cluster any more.
func (p *ownPage) isWithdrawn(key mcs.Key) bool { return p.want[key] == nil }

func sameExports(a, b map[mcs.Key]mcs.Export) bool {
	return maps.EqualFunc(a, b, mcs.Export.Equal)
}

// finish records that the write w has ended. It reports whether the result counts: otherwise the
// page is written again.
func (o *outbox) finish(w PageWrite) bool {
	p := &o.pages[w.page]
	superseded := p.superseded
	p.writing, p.superseded = 0, false
	p.stored = max(p.stored, len(w.Instances))
	if superseded {
		p.torn = p.adopted
	}
	return !superseded
}

// succeed records that these operations have stored all parts of w.
func (o *outbox) succeed(now time.Time, w PageWrite, operations []string) {
	if !o.finish(w) {
		return
	}
	p := &o.pages[w.page]
	if p.failures > 0 {
		o.recover()
	}
	o.news.observe(now, p.exports, w.exports, o.reportedAfter)
	p.exports, p.digest, p.namespaces, p.parts = w.exports, w.digest, format.NamespacesOf(w.exports), len(w.Instances)
	p.torn, p.isFinal, p.problem, p.retry = false, true, nil, retry{}
	p.operations, p.unshown = operations, now
	o.written = max(o.written, w.generation)
}

// fail records that any parts of w may be in the store, and the reason why not all are.
func (o *outbox) fail(w PageWrite, reason error) {
	if !o.finish(w) {
		return
	}
	p := &o.pages[w.page]
	p.torn, p.problem = true, reason
}

// ExcessParts are the parts of a page from one number up to another that the store should not have.
type ExcessParts struct{ Page, from, to int }

// isTrimmable reports whether the store has parts that the page does not need.
func (p *ownPage) isTrimmable() bool {
	return p.adopted && !p.torn && p.writing == 0 && p.trimming == nil && p.parts < p.stored
}

// excess returns the parts that pages no longer have and that are not being removed.
func (o *outbox) excess() (found []ExcessParts) {
	for i := range o.pages {
		if p := &o.pages[i]; p.isTrimmable() {
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

// trim records that the parts are being removed.
func (o *outbox) trim(l ExcessParts) { o.pages[l.Page].trimming = &l }

// trimmed records that the removal of the parts has ended. If they are gone, exports that did not
// fit are tried again.
func (o *outbox) trimmed(l ExcessParts, gone bool) {
	p := &o.pages[l.Page]
	p.trimming, p.blocked = nil, false
	if !gone {
		return
	}
	p.stored, p.trims = max(p.parts, min(p.stored, l.from)), retry{}
	for i := range o.pages {
		if p := &o.pages[i]; len(p.tooLarge) > 0 {
			p.dirty = true
		}
	}
}

// confirm compares the pages with those in the registry, and records the parts that the store was
// seen to have. It returns the pages to write again: those that the registry has not shown for
// longer than patience, although it was read since.
func (o *outbox) confirm(now time.Time, shown *ownCatalog, patience time.Duration) (overdue []int) {
	for i := range o.pages {
		p := &o.pages[i]
		switch s := &shown.pages[i]; {
		case !p.adopted:
			p.stored = s.stored // it takes room
		case p.torn || p.writing != 0:
		case o.isUndecided(p):
			if !p.unshown.IsZero() {
				p.unshown = now // it is not announced
			}
		case p.shownBy(shown, i):
			p.unshown, p.operations, p.undone = time.Time{}, nil, nil
			p.dropWithdrawals()
			p.stored, s.stored = max(p.stored, s.stored), 0
		case p.unshown.IsZero():
			p.unshown = now
		case s.checkedAt.Sub(p.unshown) >= patience, shown.record.Pages[i] != p.digest && now.Sub(p.unshown) >= patience:
			// A page that is announced and cannot be read may still exist.
			overdue = append(overdue, i)
		}
	}
	return overdue
}

// shownBy reports whether the registry shows the page as it was written.
func (p *ownPage) shownBy(shown *ownCatalog, page int) bool {
	s := &shown.pages[page]
	return s.read && !s.lost && s.digest == p.digest && shown.shows(page)
}

// unconfirmed reports whether the registry does not show all written pages yet.
func (o *outbox) unconfirmed() bool {
	for i := range o.pages {
		if !o.pages[i].unshown.IsZero() {
			return true
		}
	}
	return false
}

// dropWithdrawals drops the withdrawals that are complete.
func (p *ownPage) dropWithdrawals() {
	for key, exp := range p.want {
		if _, has := p.exports[key]; exp == nil && !has {
			delete(p.want, key)
		}
	}
}

// errPageGone is the reason why an export is not in the registry any more.
var errPageGone = errors.New("the registry does not have this export any more: another client has deleted its page. The controller writes it again within a " +
	"minute, and the imports of the other clusters stay")

// publication returns the status of the export of key, given the catalog that the registry shows.
// Other clusters do not see a page that is not announced, and those that start do not see one that
// was lost.
func (o *outbox) publication(key mcs.Key, shown *ownCatalog) registry.PublishStatus {
	p, page := &o.pages[format.PageOf(key)], &shown.pages[format.PageOf(key)]
	want, asked := p.want[key]
	have, isShown := page.exports[key]
	announced := shown.shows(format.PageOf(key))
	switch {
	case announced && isShown && !page.lost && (!asked || want != nil && have.Equal(registry.Published(*want))):
		return registry.PublishStatus{State: registry.Exported}
	case want == nil && !isShown && (page.read || !asked):
		return registry.PublishStatus{State: registry.Absent}
	}
	return registry.PublishStatus{State: registry.Pending, Err: cmp.Or(p.tooLarge[key], p.problem, p.undone)}
}

// size returns the numbers of exports and pages that the cluster has in the registry.
func (o *outbox) size() (exports, pages int) {
	for i := range o.pages {
		exports += len(o.pages[i].exports)
		if o.pages[i].digest != "" {
			pages++
		}
	}
	return exports, pages
}
