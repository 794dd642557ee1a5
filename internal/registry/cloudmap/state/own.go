package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	// aheadFor is the time for which a page may be later than the record. After that the record
	// counts: the process that wrote the page may have ended before it announced it.
	aheadFor = 30 * time.Second
	// A page that cannot be read completely is read again at each poll at first, because Cloud Map
	// is eventually consistent; after eagerRetries failures with a backoff of up to maxRetry.
	eagerRetries = 3
	maxRetry     = 30 * time.Second
)

// retry is the backoff of reads that fail.
type retry struct {
	failures int
	retryAt  time.Time
}

func (r *retry) failed(now time.Time, poll time.Duration) {
	r.failures++
	if r.failures > eagerRetries {
		r.retryAt = now.Add(min(maxRetry, poll<<min(r.failures-eagerRetries, 10)))
	}
}

// ownCatalog is the record and the pages of this cluster as the registry shows them. Only what this
// process or a previous one has signed changes it.
type ownCatalog struct {
	identity         mcs.Identity
	poll, staleAfter time.Duration
	// keys are the keys of this cluster, authors the authors of its records: this process and
	// previous ones.
	keys    []trust.Key
	authors []format.Author

	parsedRecord
	// record is the latest record that counts; without hasRecord there is none.
	record    format.Member
	hasRecord bool
	// properties are the ClusterProperties of record, lastSeen the time at which it was last seen
	// to change.
	properties mcs.DecodedProperties
	lastSeen   time.Time
	pages      [format.PageCount]storedPage
	seal       seal

	// isMember is set while this cluster is the member under its ID.
	isMember bool
	// refusal is the reason why a record under this cluster's ID was refused last, nil if none was,
	// and refusedAt the time. This cluster has replaced the record since.
	refusal   error
	refusedAt time.Time
	// replaced is the key of another record under this cluster's ID that this process has replaced,
	// zero without one, and replacedAt the time.
	replaced   trust.Key
	replacedAt time.Time
}

// storedPage is a page of this cluster as it was last read completely.
type storedPage struct {
	// read is set if the page was read completely since this process started. A page that does not
	// exist, according to the record, counts as read.
	read bool
	// lost is set if the store does not have the page any more that was read.
	lost    bool
	exports map[mcs.Key]mcs.Export
	// unreadable are the keys of exports that exist but cannot be used. unnamed is set if the keys
	// of some cannot be read either. exports has their previous versions.
	unreadable map[mcs.Key]bool
	unnamed    bool
	problems   []string
	generation int64
	// digest is the digest of the page that was read, "" if it does not exist, and author has
	// signed it.
	digest string
	author format.Author
	// readAt is the time of the last complete read, checkedAt the end of the last read with any
	// result. unjoined is the number of reads in a row that did not show the complete page as
	// announced.
	readAt, checkedAt time.Time
	unjoined          int
	// parts is the number of parts of the page that was read, stored the number of parts that a
	// read found in the store.
	parts, stored int
	// trouble is the reason why the page as announced cannot be read, and earlier has the exports
	// of a complete page that is not the announced one.
	trouble string
	earlier map[mcs.Key]mcs.Export
	retry
}

func newOwnCatalog(cfg Config) *ownCatalog {
	o := &ownCatalog{identity: cfg.Identity, poll: cfg.PollInterval, staleAfter: cfg.StaleAfter}
	if cfg.Signer == nil {
		return o
	}
	o.keys = cfg.Signer.Keys()
	for _, key := range o.keys {
		o.addAuthor(format.Author{ClusterSetID: cfg.Identity.ClusterSetID, ClusterID: cfg.Identity.ClusterID, UID: cfg.Identity.UID, Key: key})
	}
	return o
}

// addAuthor adds an author of the own pages: a previous process with another key, or another
// cluster with this cluster's ID.
func (o *ownCatalog) addAuthor(author format.Author) {
	if !slices.Contains(o.authors, author) {
		o.authors = append(o.authors, author)
	}
}

// member observes the record with this cluster's ID in service members. counts reports whether a
// record counts. beats is set if it is another one than before, and isRefused if it is a new one
// that does not count.
func (o *ownCatalog) member(now time.Time, instance api.Instance, counts func(format.Member) bool, changed engine.Keys) (beats, isRefused bool) {
	differs := o.parse(instance, o.identity.ClusterSetID)
	r := o.parsed
	switch {
	case o.parseErr != nil:
		o.refusal, o.refusedAt = o.parseErr, now
		return false, differs
	case !counts(r):
		// otherwise it is a cluster with the same ID
		if o.isMember && !slices.Contains(o.keys, r.Key) {
			o.refusal, o.refusedAt = fmt.Errorf("another cluster has signed it with key %s", r.Key), now
			return false, differs
		}
		return false, false
	}
	o.addAuthor(r.Author())
	if o.hasRecord && r.Key == o.record.Key && o.record.IsLaterThan(r) {
		return false, false // a late read, or a replay
	}
	return o.take(now, r, changed), false
}

// unannounced records that no record has this cluster's ID, and no cluster has claimed it: no pages
// are announced, and the existing ones count.
func (o *ownCatalog) unannounced() { o.record, o.hasRecord = format.Member{}, false }

// take sets the record, and reports whether it differs from the previous one.
func (o *ownCatalog) take(now time.Time, r format.Member, changed engine.Keys) (written bool) {
	written = !o.hasRecord || !r.IsSameWrite(o.record)
	before := o.record
	o.record, o.hasRecord = r, true
	if written {
		o.lastSeen = now
	}
	for i := range o.pages {
		o.takePage(now, i, &before, &r, changed)
		if before.Properties != r.Properties {
			diff(o.pages[i].exports, nil, changed)
		}
	}
	return written
}

// takePage updates a page for record r, which follows the record before.
func (o *ownCatalog) takePage(now time.Time, i int, before, r *format.Member, changed engine.Keys) {
	p := &o.pages[i]
	if before.UID != r.UID || before.Key != r.Key {
		p.generation = min(p.generation, r.Generation) // by another clock
	}
	isChanged := before.Pages[i] != r.Pages[i] || before.Key != r.Key
	if isChanged {
		p.retry, p.unjoined = retry{}, 0
	}
	if isChanged && o.shows(i) {
		// read before it was announced: it counts as published from now on
		diff(p.exports, nil, changed)
	}
	isRemoved := !p.read || p.digest != "" && !p.ahead(now, r)
	if r.Pages[i] == "" && (r.Farewell || isRemoved) {
		o.removePage(i, r.Generation, changed)
	}
}

// removePage makes a page one that is known not to exist.
func (o *ownCatalog) removePage(page int, generation int64, changed engine.Keys) {
	p := &o.pages[page]
	diff(p.exports, nil, changed)
	*p = storedPage{read: true, generation: generation, stored: p.stored}
}

// shows reports whether the page that was read last is the announced one.
func (o *ownCatalog) shows(page int) bool { return o.record.Pages[page] == o.pages[page].digest }

// ahead reports whether the page that was read is later than the record, and a record that
// announces it is expected. The expectation expires: the process that wrote the page may have ended
// before it wrote the record, and the clock of the next process may be behind.
func (p *storedPage) ahead(now time.Time, r *format.Member) bool {
	return p.generation > r.Generation && now.Sub(p.readAt) < aheadFor
}

// has reports whether key is one of the exports of the page that was read last.
func (p *storedPage) has(key mcs.Key) bool {
	_, ok := p.exports[key]
	return ok
}

// unreadPages returns the pages that have to be read now.
func (o *ownCatalog) unreadPages(now time.Time) (pages []int) {
	for i := range o.pages {
		if o.needsRead(now, i) && !now.Before(o.pages[i].retryAt) {
			pages = append(pages, i)
		}
	}
	return pages
}

// needsRead reports whether a page has to be read: the announced page is not the one that was read.
// The parts of one that is announced as not written may be adopted.
func (o *ownCatalog) needsRead(now time.Time, page int) bool {
	p, announced := &o.pages[page], o.record.Pages[page]
	switch {
	case !o.hasRecord, announced == "":
		return false
	case !p.read, p.lost:
		return true
	}
	return announced != format.UnwrittenDigest && !o.shows(page) && !p.ahead(now, &o.record)
}

// behind reports whether the next read may show a page that is announced. A page that failed
// several times has its own backoff.
func (o *ownCatalog) behind(now time.Time) bool {
	for i := range o.pages {
		if o.needsRead(now, i) && o.pages[i].failures <= eagerRetries {
			return true
		}
	}
	return false
}

// failed records that a page could not be read.
func (o *ownCatalog) failed(now time.Time, page int, reason error) {
	o.pages[page].trouble = reason.Error()
	o.pages[page].failed(now, o.poll)
}

// observePage takes in a read of a page. Only a whole generation counts, and only if it is the
// announced one or a later one.
func (o *ownCatalog) observePage(now time.Time, read pageRead, changed engine.Keys) {
	p, img, err := &o.pages[read.number], read.img, read.err
	p.stored = max(p.stored, read.parts)
	p.checkedAt = now
	if err == nil && !slices.Contains(o.authors, img.Author) {
		err = fmt.Errorf("generation %d is signed with a previous key", img.Generation)
	}
	if err == nil && p.read && img.Generation < p.generation && now.Sub(p.readAt) < aheadFor {
		err = olderPageError(img.Generation, p.generation)
	}
	if err == nil && o.announcesOther(read.number, img) {
		earlier, _ := belonging(read.number, read.decoded.Exports)
		p.earlier = byKey(earlier)
		err = unannouncedError(img.Generation)
	}
	if err != nil {
		o.failed(now, read.number, err)
		p.unjoined++
		return
	}
	o.takeRead(now, read, changed)
	if o.shows(read.number) {
		// Announced before it was read: until now none of its exports counted as published, those
		// that stayed the same either.
		diff(p.exports, nil, changed)
	}
}

// announcesOther reports whether the record announces another page than this one, which is not a
// later one. A page that is announced as not written may be adopted as it is.
func (o *ownCatalog) announcesOther(page int, img format.Page) bool {
	announced := o.record.Pages[page]
	return announced != format.UnwrittenDigest && announced != img.Digest && img.Generation <= o.record.Generation
}

// takeRead replaces what was read of a page. Exports that are there but cannot be used stay as they
// were.
func (o *ownCatalog) takeRead(now time.Time, read pageRead, changed engine.Keys) {
	p := &o.pages[read.number]
	list, problems := belonging(read.number, read.decoded.Exports)
	exports := byKey(list)
	after := storedPage{
		read: true, readAt: now, checkedAt: now, generation: read.img.Generation, digest: read.img.Digest, author: read.img.Author,
		parts: read.img.Parts, stored: p.stored, unnamed: read.decoded.Unnamed, unreadable: map[mcs.Key]bool{},
		exports: exports, problems: append(read.decoded.Problems, problems...),
	}
	for _, key := range read.decoded.Unreadable {
		after.unreadable[key] = true
	}
	for key, exp := range p.exports {
		if _, ok := exports[key]; !ok && (after.unnamed || after.unreadable[key]) {
			exports[key] = exp
		}
	}
	diff(p.exports, exports, changed)
	*p = after
}

// audit observes a read of all of this cluster's pages. It finds pages that the previous process
// wrote and did not announce, and pages that others changed or removed since the last read. Until
// isAlone is set, the record may be that of another process that is running, so a page that it
// announces as not written is not known to be empty: another user may have deleted it.
func (o *ownCatalog) audit(now time.Time, instances []api.Instance, isAlone bool, changed engine.Keys) {
	byPage := format.GroupByPage(instances)
	for i := range o.pages {
		p := &o.pages[i]
		wasLost := p.lost
		p.stored = format.CountParts(i, byPage[i])
		img, err := format.JoinPage(i, byPage[i], o.authors...)
		switch {
		case err == nil && p.read && img.Digest == p.digest:
			p.lost = false
		case o.record.Pages[i] == format.UnwrittenDigest && len(byPage[i]) == 0 && p.digest == "" && (p.read || isAlone):
			o.removePage(i, o.record.Generation, changed)
		case o.withdrew(i, len(byPage[i]) > 0, img, err):
			o.removePage(i, o.record.Generation, changed) // its remaining parts are excess
		default:
			p.lost = p.read
			r := pageReader{clusterID: o.identity.ClusterID, authors: o.authors}
			r.read([]int{i}, byPage, func(read pageRead) { o.observePage(now, read, changed) })
		}
		if p.lost != wasLost {
			diff(p.exports, nil, changed) // they are exported no longer, or again
		}
	}
}

// withdrew reports whether the record announces the removal of a page, given the results of an
// audit: whether any part exists, and the newest complete image or the error why there is none.
func (o *ownCatalog) withdrew(page int, exists bool, found format.Page, err error) bool {
	return o.record.Pages[page] == "" && (!exists || o.hasRecord && (err != nil || found.Generation <= o.record.Generation))
}

// exported yields the keys of the exports that the registry shows of this cluster.
func (o *ownCatalog) exported(yield func(mcs.Key) bool) {
	for i := range o.pages {
		for key := range o.pages[i].exports {
			if !yield(key) {
				return
			}
		}
	}
}

// instances returns the number of instances in the catalog: its pages as they were last read, and
// the copy of the record.
func (o *ownCatalog) instances() (count int) {
	if o.hasRecord {
		count++
	}
	for i := range o.pages {
		count += o.pages[i].parts
	}
	return count
}

// problems returns the problems of this cluster's records, one line each.
func (o *ownCatalog) problems() (lines []string) {
	if since := time.Since(o.refusedAt); o.refusal != nil && since < refusalLifetime {
		lines = append(lines, registry.RefusedProblem("the member record", fmt.Errorf("%w; it was read %s ago, and this cluster writes its own again",
			o.refusal, since.Round(time.Second))))
	}
	lines = append(lines, o.record.Problems()...)
	for i := range o.pages {
		p := &o.pages[i]
		lines = append(lines, pageProblems(i, p.trouble, p.failures, p.problems)...)
	}
	return append(lines, o.successionProblems()...)
}

// successionProblems returns why other clusters may refuse the records of this one, one line or
// none: it has another key than the record that it has replaced.
func (o *ownCatalog) successionProblems() []string {
	since := time.Since(o.replacedAt)
	if o.replaced == (trust.Key{}) || since >= refusalLifetime {
		return nil
	}
	id := o.identity.ClusterID
	return []string{registry.RefusedProblem("by clusters that knew this one before", fmt.Errorf("its key is %s since %s ago, in place of %s: they accept it once that key has been "+
		"silent for %s, if this cluster's catalog has the tag %s=%s; otherwise run kubectl mcs trust %s in them", o.keys[0], since.Round(time.Second), o.replaced, o.staleAfter,
		api.TagCatalogOf, id, id))}
}

// refusalLifetime is the time for which a refused record under the own ID is reported after it was
// replaced.
const refusalLifetime = time.Hour

// byKey returns exports by their keys.
func byKey(list []mcs.Export) map[mcs.Key]mcs.Export {
	exports := make(map[mcs.Key]mcs.Export, len(list))
	for _, exp := range list {
		exports[exp.Key] = exp
	}
	return exports
}

// diff adds the keys whose exports differ.
func diff(before, after map[mcs.Key]mcs.Export, changed engine.Keys) {
	for key, exp := range after {
		if old, ok := before[key]; !ok || !old.Equal(exp) {
			changed[key] = struct{}{}
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			changed[key] = struct{}{}
		}
	}
}
