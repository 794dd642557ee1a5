package state

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// catalogRoom is how many instances a catalog may have. A Cloud Map service holds 1,000, and a read
// that returns 1,000 may not be all. The instances hold some two million typical endpoints.
const catalogRoom = 960

// PageWrite is a page to be written. Without instances it is to be removed.
type PageWrite struct {
	page    int
	exports map[mcs.Key]mcs.Export
	// previous are the exports of the page as it was last written.
	previous  map[mcs.Key]mcs.Export
	digest    string
	Instances []api.Instance
	// before is how many of Instances overwrite parts of the page as it is.
	before     int
	generation int64
	// Unconfirmed are the operations that wrote the page before and whose result was never shown.
	Unconfirmed []string
}

// Page returns the number of the page.
func (w PageWrite) Page() int { return w.page }

// Changes returns the exports that differ from those of the page as it was last written.
func (w PageWrite) Changes() (changes []mcs.Export) {
	for key, exp := range w.exports {
		if before, ok := w.previous[key]; !ok || !before.Equal(exp) {
			changes = append(changes, exp)
		}
	}
	return changes
}

// AddedParts returns the parts that the page does not have yet.
func (w PageWrite) AddedParts() []api.Instance { return w.Instances[w.before:] }

// OverwrittenParts returns the parts that the page has already.
func (w PageWrite) OverwrittenParts() []api.Instance { return w.Instances[:w.before] }

// pageDraft is a page write in the making. Exports are left out of it until the page can be encoded
// and the catalog has room for it.
type pageDraft struct {
	PageWrite
	// of is the draft that decides whether the page has to be written. It has the same exports.
	of         *desired.Draft
	identity   mcs.Identity
	signer     *trust.Signer
	generation int64
	// stored is how many parts of the page the store may have.
	stored int
	// changes are the exports that differ from those in the store, the largest first; nil until it
	// is needed.
	changes []sizedKey
	// tooLarge are the exports that were left out.
	tooLarge map[mcs.Key]error
	// err is the reason why the page cannot be encoded.
	err error
}

func newPageDraft(identity mcs.Identity, signer *trust.Signer, generation int64, of *desired.Draft) *pageDraft {
	d := &pageDraft{PageWrite: PageWrite{page: pageOf(of.Unit), exports: of.Exports}, of: of, identity: identity, signer: signer, generation: generation}
	d.encode()
	return d
}

// encode encodes the exports.
func (d *pageDraft) encode() {
	d.PageWrite, d.err = EncodePage(d.identity, d.signer, d.page, d.generation, d.exports)
}

// EncodePage makes the signed write of a page with these exports.
func EncodePage(identity mcs.Identity, signer *trust.Signer, page int, generation int64, exports map[mcs.Key]mcs.Export) (PageWrite, error) {
	w := PageWrite{page: page, exports: exports, generation: generation}
	if len(exports) == 0 {
		return w, nil
	}
	list := make([]mcs.Export, 0, len(exports))
	for _, exp := range exports {
		list = append(list, exp)
	}
	data, err := record.Encode(list)
	if err != nil {
		return w, fmt.Errorf("encoding page %s: %w", format.PageName(page), err)
	}
	w.digest = format.Digest(data)
	w.Instances, err = format.SplitPage(identity, signer, page, generation, data)
	return w, err
}

// writesOf returns how many of the instances of the page are those of a namespace, by the number of
// its exports and endpoints, at least one: a user who fills a page does not make the changes of its
// other exports expensive for their namespaces.
func (d *pageDraft) writesOf(namespace string) int {
	own, all := 0, 0
	for key, exp := range d.exports {
		size := 1
		for _, b := range exp.Backends {
			size += len(b.Endpoints)
		}
		all += size
		if key.Namespace == namespace {
			own += size
		}
	}
	return max(1, len(d.Instances)*own/max(1, all))
}

// sizedKey is an export with the number of bytes by which it is larger than the version in the
// store.
type sizedKey struct {
	key    mcs.Key
	growth int
}

// largestChange returns the export that grows the most compared with the store; ok is false if none
// grows.
func (d *pageDraft) largestChange() (largest sizedKey, ok bool) {
	if d.changes == nil {
		d.changes = d.sizeChanges()
	}
	if len(d.changes) == 0 {
		return sizedKey{}, false
	}
	return d.changes[0], true
}

// sizeChanges returns the exports that are larger than their versions in the store, the one that
// grows the most first. To leave out one that shrinks would make no room.
func (d *pageDraft) sizeChanges() []sizedKey {
	changes := []sizedKey{}
	for key, exp := range d.exports {
		old, ok := d.of.Stored.Exports[key]
		if ok && old.Equal(exp) {
			continue
		}
		growth := encodedSize(exp)
		if ok {
			growth -= encodedSize(old)
		}
		if growth > 0 {
			changes = append(changes, sizedKey{key, growth})
		}
	}
	slices.SortFunc(changes, func(a, b sizedKey) int {
		return cmp.Or(cmp.Compare(b.growth, a.growth), cmp.Compare(a.key.String(), b.key.String()))
	})
	return changes
}

// encodedSize returns the size of an export when encoded. One that cannot be encoded, which Publish
// refuses (record.Check), is the largest.
func encodedSize(exp mcs.Export) int {
	data, err := record.Encode([]mcs.Export{exp})
	if err != nil {
		return math.MaxInt32
	}
	return len(data)
}

// leaveOutLargest leaves out the export that grows the most, and keeps the version in the store.
func (d *pageDraft) leaveOutLargest(reason string) {
	key := d.changes[0].key
	d.changes = d.changes[1:]
	d.omit(key, reason)
	d.encode()
}

// refusal returns the error of an export that does not fit.
func refusal(key mcs.Key, reason string) error {
	return &registry.InvalidExportError{Key: key, Reason: reason}
}

// fitDrafts leaves the largest changes out of the drafts until each page can be encoded and there
// is room for all.
func fitDrafts(drafts []*pageDraft, room int) {
	for _, d := range drafts {
		for d.err != nil {
			if _, ok := d.largestChange(); !ok {
				break
			}
			d.leaveOutLargest(d.err.Error())
		}
	}
	reason := fmt.Sprintf("this cluster's catalog is full: it has room for %d instances, and of the exports that do not fit this is one of the largest; "+
		"export fewer or smaller services", catalogRoom)
	for needed(drafts) > room {
		d := largestGrowing(drafts)
		if d == nil {
			return // the store has more than it should
		}
		d.leaveOutLargest(reason)
	}
}

// largestGrowing returns the draft with the largest change among those that need more instances,
// nil if there is none.
func largestGrowing(drafts []*pageDraft) (found *pageDraft) {
	most := 0
	for _, d := range drafts {
		if len(d.Instances) <= d.stored {
			continue
		}
		if change, ok := d.largestChange(); ok && change.growth > most {
			found, most = d, change.growth
		}
	}
	return found
}

// needed is how many instances the drafted pages take.
func needed(drafts []*pageDraft) (instances int) {
	for _, d := range drafts {
		instances += max(d.stored, len(d.Instances))
	}
	return instances
}

// sameErrors reports whether a and b have the same errors.
func sameErrors(a, b map[mcs.Key]error) bool {
	return maps.EqualFunc(a, b, func(a, b error) bool { return errors.Is(a, b) || a.Error() == b.Error() })
}
