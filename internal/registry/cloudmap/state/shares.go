package state

import (
	"fmt"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// A namespace may use a quarter of a page and of the catalog, so that a user with rights in one
// namespace does not take the room of the others. Three quarters of a page hold 370,000 endpoints.
const (
	namespaceParts     = format.MaxParts / 4
	namespaceInstances = catalogRoom / 4
)

// partBytes is how many compressed bytes an instance holds.
const partBytes = 3400

// namespaceSizes is how many compressed bytes the exports of each namespace take, each encoded
// alone.
type namespaceSizes map[string]int

func sizesOf(exports map[mcs.Key]mcs.Export) namespaceSizes {
	sizes := namespaceSizes{}
	for key, exp := range exports {
		sizes[key.Namespace] += encodedSize(exp)
	}
	return sizes
}

// limitNamespaces leaves exports out of the drafts with which their namespace would use more than
// its share of a page or of the catalog. Namespaces are measured only where one can exceed its
// share.
func (o *outbox) limitNamespaces(drafts []*pageDraft) {
	for _, d := range drafts {
		if d.err == nil && len(d.Instances) <= namespaceParts {
			continue
		}
		reason := fmt.Sprintf("its namespace has a quarter of page %s, %d instances, and this export does not fit: export fewer or smaller services of the namespace",
			format.PageName(d.page), namespaceParts)
		for namespace, size := range sizesOf(d.exports) {
			d.leaveOutOf(namespace, size-namespaceParts*partBytes, reason)
		}
	}
	if needed(drafts)+catalogRoom-o.roomBeside(drafts) <= namespaceInstances {
		return
	}
	total := o.namespaceSizes(drafts)
	reason := fmt.Sprintf("its namespace has a quarter of this cluster's catalog, %d instances, and this export does not fit: export fewer or smaller services of the namespace",
		namespaceInstances)
	for namespace, size := range total {
		for _, d := range drafts {
			if over := size - namespaceInstances*partBytes; over > 0 {
				size -= d.leaveOutOf(namespace, over, reason)
			}
		}
	}
}

// namespaceSizes returns the sizes of all pages, as drafted or as they are.
func (o *outbox) namespaceSizes(drafts []*pageDraft) namespaceSizes {
	total := namespaceSizes{}
	add := func(sizes namespaceSizes) {
		for namespace, size := range sizes {
			total[namespace] += size
		}
	}
	drafted := map[int]bool{}
	for _, d := range drafts {
		drafted[d.page] = true
		add(sizesOf(d.exports))
	}
	for i := range o.pages {
		p, stored := &o.pages[i], o.stored(i)
		if drafted[i] || stored.IsNone() {
			continue
		}
		if digest := stored.Version.Digest; p.sizes == nil || p.sizedAs != digest {
			p.sizes, p.sizedAs = sizesOf(stored.Exports), digest
		}
		add(p.sizes)
	}
	return total
}

// leaveOutOf leaves the largest changes of a namespace out until it takes at least a number of
// bytes less, or none is left. It returns how many it takes less.
func (d *pageDraft) leaveOutOf(namespace string, bytes int, reason string) (saved int) {
	if bytes <= 0 {
		return 0
	}
	if d.changes == nil {
		d.changes = d.sizeChanges()
	}
	left := false
	for i := 0; i < len(d.changes) && saved < bytes; {
		if d.changes[i].key.Namespace != namespace {
			i++
			continue
		}
		saved += d.changes[i].growth
		d.omit(d.changes[i].key, reason)
		d.changes = slices.Delete(d.changes, i, i+1)
		left = true
	}
	if left {
		d.encode()
	}
	return saved
}

// omit keeps what the store has of an export.
func (d *pageDraft) omit(key mcs.Key, reason string) {
	if d.tooLarge == nil {
		d.tooLarge = map[mcs.Key]error{}
	}
	d.tooLarge[key] = refusal(key, reason)
	if old, ok := d.of.Stored.Exports[key]; ok {
		d.exports[key] = old
	} else {
		delete(d.exports, key)
	}
}
