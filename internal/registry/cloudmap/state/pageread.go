package state

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
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
	if cluster == nil || cluster.record == nil {
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
