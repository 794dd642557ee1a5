package state

import (
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// unknowns has the catalogs that may be unknown for a key, sorted by cluster. Without it a lookup
// asks the catalogs of all clusters. review keeps it.
type unknowns struct {
	// pages has the catalogs whose page does not show all keys.
	pages [format.PageCount][]*catalog
	// skipped has the other catalogs that announce a version of a page that was not read, by the
	// namespaces of that version.
	skipped map[pageNamespace][]*catalog
}

// pageNamespace is a page and the code of a namespace.
type pageNamespace struct {
	page int
	code string
}

// listing says where unknowns has a catalog for a page.
type listing struct {
	inPages bool
	skipped format.Namespaces
}

// of returns the catalogs that may be unknown for the keys of a page and of the namespace with a
// code.
func (u *unknowns) of(page int, code string) []*catalog {
	skipped := u.skipped[pageNamespace{page, code}]
	if len(skipped) == 0 {
		return u.pages[page]
	}
	all := slices.Concat(u.pages[page], skipped)
	slices.SortFunc(all, func(a, b *catalog) int { return strings.Compare(a.id, b.id) })
	return all
}

// isOpen reports whether another cluster has not shown a page: all keys of the page are unknown for
// it.
func (u *unknowns) isOpen(page int) bool {
	return slices.ContainsFunc(u.pages[page], func(c *catalog) bool { return c.isUncertain() || c.pages[page].isBlank() })
}

// isUnknown reports whether the cluster is Unknown in the view of key, in a page and a namespace
// with a code: its record does not show whether it exports key.
func (c *catalog) isUnknown(key mcs.Key, page int, code string) bool {
	if !c.hasRecord {
		return false
	}
	p := &c.pages[page]
	return c.isUncertain() || !c.isCopy && (!p.knows(key) || c.mayHaveGained(page, code)) && !p.ignored[key]
}

// isUncertain reports whether nothing of the cluster counts yet.
func (c *catalog) isUncertain() bool { return c.mayBeOld || c.isReturning }

// listingOf returns where unknowns has to have the catalog for a page, so that of returns all
// catalogs for which isUnknown does.
func (c *catalog) listingOf(page int) listing {
	p := &c.pages[page]
	switch {
	case !c.hasRecord:
		return listing{}
	case c.isUncertain():
		return listing{inPages: true}
	case c.isCopy:
		return listing{}
	case !p.read || p.unnamed || len(p.unreadable) > 0:
		return listing{inPages: true}
	case p.isSkipped && !c.shows(page):
		return listing{skipped: c.record.Namespaces[page]}
	}
	return listing{}
}

// review updates unknowns after a change of a page, or of the part of the record that is about it.
func (c *catalog) review(page int) {
	before, now := c.listings[page], c.listingOf(page)
	if now == before || c.unknowns == nil {
		return
	}
	c.listings[page] = now
	c.unknowns.pages[page] = c.listIn(c.unknowns.pages[page], now.inPages)
	for code := range before.skipped.Codes {
		c.list(pageNamespace{page, code}, false)
	}
	for code := range now.skipped.Codes {
		c.list(pageNamespace{page, code}, true)
	}
}

// reviewAll updates unknowns after a change of the record.
func (c *catalog) reviewAll() {
	for page := range c.pages {
		c.review(page)
	}
}

// list adds the catalog to those of a skipped page and namespace, or removes it.
func (c *catalog) list(of pageNamespace, isListed bool) {
	if list := c.listIn(c.unknowns.skipped[of], isListed); len(list) > 0 {
		c.unknowns.skipped[of] = list
	} else {
		delete(c.unknowns.skipped, of)
	}
}

// listIn returns a sorted list with the catalog or without it.
func (c *catalog) listIn(list []*catalog, isListed bool) []*catalog {
	at, found := slices.BinarySearchFunc(list, c.id, func(other *catalog, id string) int { return strings.Compare(other.id, id) })
	switch {
	case isListed && !found:
		return slices.Insert(list, at, c)
	case !isListed && found:
		return slices.Delete(list, at, at+1)
	}
	return list
}
