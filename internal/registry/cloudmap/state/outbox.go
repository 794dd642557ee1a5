package state

import (
	"errors"
	"maps"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// outbox makes the writes of this cluster's pages. Package desired decides which are due, and
// outbox how many instances they may have.
type outbox struct {
	identity mcs.Identity
	signer   *trust.Signer
	state    *desired.State
	pages    [format.PageCount]pageParts
	// generation is the last generation that was used, written the last one of a completely written
	// page.
	generation, written int64
	// latest is the last plausible generation of another author, 0 if there is no limit.
	latest int64
	news   news
	// reportedAfter is the time after which an importer has reported an export.
	reportedAfter time.Duration
	// pace limits the writes that the changes of each namespace cause.
	pace *engine.Pace[string]
}

// pageParts are the instances of a page.
type pageParts struct {
	// namespaces are those of the page that was written last, "" if not all of its exports are
	// known.
	namespaces format.Namespaces
	// parts is the number of parts of the page, stored the number that the store may have.
	parts, stored int
	// sizes are the sizes of the namespaces in the page with digest sizedAs; nil until they are
	// needed.
	sizes   namespaceSizes
	sizedAs string
	// operations are the operations that wrote the page, until the registry has shown it.
	operations []string
	// trimming are the parts that are being removed, and trims is the retry of a failed removal.
	trimming *ExcessParts
	trims    retry
}

// The changes of a namespace may cause 10 writes a second, a fifth of what AWS allows an account,
// after a burst of 300: all 64 pages four times. The pages of 3,000 exports that change at once are
// written within 7 s more.
const (
	namespaceWrites = 10
	namespaceBurst  = 300
)

// trimPause is the longest time for which a page waits for the removal of parts that it needs
// again.
const trimPause = time.Second

func newOutbox(cfg Config) *outbox {
	pace := engine.NewPace[string](namespaceWrites, namespaceBurst)
	// an importer writes its report several times until it would be stale
	return &outbox{identity: cfg.Identity, signer: cfg.Signer, pace: pace, reportedAfter: cfg.StaleAfter, state: desired.New(desired.Config{
		ClusterID: cfg.Identity.ClusterID, Units: unitNames[:], UnitOf: unitOf, Pace: pace, Patience: cfg.Intervals.Confirm, Pause: cfg.backoff().Pause,
	})}
}

// backoff returns the pauses after failed writes.
func (c Config) backoff() engine.Backoff {
	return engine.Backoff{Initial: c.Intervals.Retry, Max: c.Intervals.MaxRetry, Jitter: 1}
}

// isAdopted reports whether the page was adopted since this process holds the ID.
func (o *outbox) isAdopted(page int) bool { return o.state.StateOf(unitNames[page]) != desired.Found }

// stored returns the page as it was last written completely, by this process or a previous one.
func (o *outbox) stored(page int) desired.Stored { return o.state.StoredOf(unitNames[page]) }

// has reports whether the pages have an export of key.
func (o *outbox) has(key mcs.Key) bool {
	_, has := o.state.StoredOf(unitOf(key)).Exports[key]
	return has
}

// adopt makes the page in the registry the base of the next write. One with another key is signed
// again.
func (o *outbox) adopt(page int, shown *storedPage) {
	p := &o.pages[page]
	*p = pageParts{trimming: p.trimming, parts: shown.parts, stored: shown.stored}
	found := desired.Stored{}
	if shown.digest != "" {
		found = desired.Stored{Version: belief.Version{Generation: shown.generation, Digest: shown.digest}, Exports: maps.Clone(shown.exports)}
	}
	for key := range shown.unreadable {
		if _, has := found.Exports[key]; !has {
			found.Exports[key] = record.Undecided(key, o.identity.ClusterID)
		}
	}
	if !shown.unnamed {
		p.namespaces = format.NamespacesOf(found.Exports)
	}
	o.state.Adopt(unitNames[page], found, shown.digest != "" && shown.author != o.author())
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

// abandon gives up a page of the previous process that cannot be read as it was announced: it is
// written anew, with the exports that are known. Until then it stays announced, because without a
// digest it would count as removed.
func (o *outbox) abandon(page int, shown *storedPage, announced format.Member) {
	p := &o.pages[page]
	*p = pageParts{trimming: p.trimming, parts: shown.stored, stored: shown.stored}
	found := desired.Stored{Version: belief.Version{Generation: announced.Generation, Digest: announced.Pages[page]}, Exports: shown.earlier}
	if shown.read {
		found.Exports = shown.exports
	}
	o.state.Adopt(unitNames[page], found, true)
}

// disown drops the written state, because another cluster has the pages now.
func (o *outbox) disown() {
	o.state.Lose(false)
	for i := range o.pages {
		o.pages[i] = pageParts{trimming: o.pages[i].trimming}
	}
}

// pending returns the number of pages that have to be compared with the desired exports (dirty) and
// written (torn), and the time at which the first of the other pages is due, zero if there is none.
func (o *outbox) pending(now time.Time) (dirty, torn int, again time.Time) {
	due := o.state.Pending(now)
	dirty, torn, again = due.Changed, due.Torn, due.Again
	for i := range o.pages {
		switch p := &o.pages[i]; {
		case !o.isTrimmable(i):
		case now.Before(p.trims.retryAt):
			again = earliest(again, p.trims.retryAt)
		default:
			torn++
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
func (o *outbox) announcement(now time.Time, page int, shown *ownCatalog) (digest string) {
	version, isDecided := o.state.NameOf(now, unitNames[page])
	switch s := &shown.pages[page]; {
	case isDecided:
		return version.Digest
	case o.isAdopted(page), o.state.HasPredecessor():
		return format.UnwrittenDigest
	case s.read:
		return s.digest
	}
	return shown.record.Pages[page]
}

// namespacesOf returns the namespaces of the pages as they are announced.
func (o *outbox) namespacesOf(announced format.Digests) (namespaces format.PageNamespaces) {
	for i := range o.pages {
		if o.isAdopted(i) && o.stored(i).Version.Digest == announced[i] {
			namespaces[i] = o.pages[i].namespaces
		}
	}
	return namespaces
}

// batch returns the writes that are due, and the pages whose problem has changed. wall is the time
// for generations.
//
// Exports that do not fit, because their page or the catalog is full, are left out, the largest
// first; the store keeps their previous versions. A page that still cannot be encoded stays as it
// is.
func (o *outbox) batch(now, wall time.Time) (writes []PageWrite, problems []int) {
	generation := max(o.generation+1, wall.UnixMilli())
	var drafts []*pageDraft
	for d := range o.state.Drafts(now) {
		drafts = append(drafts, newPageDraft(o.identity, o.signer, generation, d))
	}
	o.limitNamespaces(drafts)
	fitDrafts(drafts, o.roomBeside(drafts))
	for _, d := range drafts {
		p, unit := &o.pages[d.page], d.of.Unit
		if !sameErrors(o.state.OmittedOf(unit), d.tooLarge) || d.err != nil && errorText(d.err) != errorText(o.state.ProblemOf(unit)) {
			problems = append(problems, d.page)
		}
		switch {
		case d.err != nil:
			o.state.Refuse(now, d.of, d.tooLarge, d.err)
		case d.of.Has():
			o.state.Keep(d.of, d.tooLarge)
		case p.trimming != nil && len(d.Instances) > p.trimming.from:
			o.state.Postpone(unit, now.Add(trimPause))
		default:
			o.generation = generation
			for namespace := range d.of.Changed {
				o.pace.Charge(now, namespace, d.writesOf(namespace))
			}
			writes = append(writes, o.begin(now, d))
		}
	}
	return writes, problems
}

// begin records that a draft is being written, and returns the write with the state of the page
// that the writer needs.
func (o *outbox) begin(now time.Time, d *pageDraft) PageWrite {
	p, w := &o.pages[d.page], d.PageWrite
	w.before, w.previous = min(p.parts, len(w.Instances)), d.of.Stored.Exports
	if d.of.IsTorn && o.state.ProblemOf(d.of.Unit) == nil {
		w.Unconfirmed = p.operations
	}
	p.stored = max(p.stored, len(w.Instances)) // others cannot have that room
	o.state.Begin(now, d.of, belief.Version{Generation: w.generation, Digest: w.digest}, d.tooLarge)
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

// succeed records that these operations have stored all parts of w.
func (o *outbox) succeed(now time.Time, w PageWrite, operations []string) {
	p, before := &o.pages[w.page], o.stored(w.page).Exports
	p.stored = max(p.stored, len(w.Instances))
	if !o.state.End(now, unitNames[w.page], desired.Accepted, nil) {
		return
	}
	o.news.observe(now, before, w.exports, o.reportedAfter)
	p.namespaces, p.parts, p.operations = format.NamespacesOf(w.exports), len(w.Instances), operations
	o.written = max(o.written, w.generation)
}

// fail records that any parts of w may be in the store, and the reason why not all are.
func (o *outbox) fail(now time.Time, w PageWrite, reason error) {
	p, outcome := &o.pages[w.page], desired.Unanswered
	if api.IsInvalid(reason) {
		outcome = desired.Unfit
	}
	p.stored = max(p.stored, len(w.Instances))
	o.state.End(now, unitNames[w.page], outcome, reason)
}

// ExcessParts are the parts of a page from one number up to another that the store should not have.
type ExcessParts struct{ Page, from, to int }

// isTrimmable reports whether the store has parts that the page does not need.
func (o *outbox) isTrimmable(page int) bool {
	p := &o.pages[page]
	return p.trimming == nil && p.parts < p.stored && o.state.IsWhole(unitNames[page])
}

// excess returns the parts that pages no longer have and that are not being removed.
func (o *outbox) excess() (found []ExcessParts) {
	for i := range o.pages {
		if p := &o.pages[i]; o.isTrimmable(i) {
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
	p.trimming = nil
	o.state.Postpone(unitNames[l.Page], time.Time{})
	if !gone {
		return
	}
	p.stored, p.trims = max(p.parts, min(p.stored, l.from)), retry{}
	o.state.Reconsider(func(mcs.Key) bool { return true })
}

// confirm compares the pages with those in the registry, and records the parts that the store was
// seen to have. It reports whether a page has to be written again: the registry has not shown it
// for too long, although it was read since.
func (o *outbox) confirm(now time.Time, shown *ownCatalog) (isOverdue bool) {
	for i := range o.pages {
		p, s := &o.pages[i], &shown.pages[i]
		if !o.isAdopted(i) {
			p.stored = s.stored // it takes room
			continue
		}
		digest, readAt := o.stored(i).Version.Digest, s.checkedAt
		if shown.record.Pages[i] != digest {
			readAt = now // a page that is announced and cannot be read may still exist
		}
		isAsWritten := s.read && !s.lost && s.digest == digest && shown.shows(i)
		isOverdue = o.state.Observe(now, unitNames[i], isAsWritten, readAt) || isOverdue
		if isAsWritten && o.state.IsWhole(unitNames[i]) {
			p.operations, p.stored, s.stored = nil, max(p.stored, s.stored), 0
		}
	}
	return isOverdue
}

// errPageGone is the reason why an export is not in the registry any more.
var errPageGone = errors.New("the registry does not have this export any more: another client has deleted its page. The controller writes it again within a " +
	"minute, and the imports of the other clusters stay")

// publication returns the status of the export of key, given the catalog that the registry shows.
// Other clusters do not see a page that is not announced, and those that start do not see one that
// was lost.
func (o *outbox) publication(now time.Time, key mcs.Key, shown *ownCatalog) registry.PublishStatus {
	i := format.PageOf(key)
	page := &shown.pages[i]
	have, isShown := page.exports[key]
	isKept := o.state.IsSlow(now, unitNames[i]) && shown.record.Pages[i] == format.UnwrittenDigest && page.digest == o.stored(i).Version.Digest
	e := desired.ShownExport{Presence: desired.Unseen}
	switch {
	case isShown && (shown.shows(i) || isKept) && !page.lost:
		e = desired.ShownExport{Presence: desired.Present, Export: &have}
	case isShown:
		e.Presence = desired.Present
	case page.read:
		e.Presence = desired.Absent
	}
	return o.state.StatusOf(key, e)
}
