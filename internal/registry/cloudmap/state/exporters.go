package state

import (
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// exporters has the catalogs, sorted by cluster, whose pages have an export of a key or name one
// that is ignored. Without it a lookup searches the maps of all catalogs: most of its time with
// 1,000 clusters. setPage keeps it.
type exporters map[mcs.Key][]*catalog

func (e exporters) find(key mcs.Key, c *catalog) (at int, found bool) {
	return slices.BinarySearchFunc(e[key], c.id, func(other *catalog, id string) int { return strings.Compare(other.id, id) })
}

// replace replaces the page that a catalog has by another one.
func (e exporters) replace(c *catalog, before, after *pageState) {
	for key := range before.keys {
		if at, found := e.find(key, c); found && !after.names(key) {
			if e[key] = slices.Delete(e[key], at, at+1); len(e[key]) == 0 {
				delete(e, key)
			}
		}
	}
	for key := range after.keys {
		if at, found := e.find(key, c); !found {
			e[key] = slices.Insert(e[key], at, c)
		}
	}
}

// keys yields the keys that the page names: of its exports and of those that are ignored.
func (p *pageState) keys(yield func(mcs.Key) bool) {
	for key := range p.exports {
		if !yield(key) {
			return
		}
	}
	for key := range p.ignored {
		if !yield(key) {
			return
		}
	}
}

// has reports whether key is one of the exports of the page that was read last.
func (p *pageState) has(key mcs.Key) bool {
	_, ok := p.exports[key]
	return ok
}

// names reports whether key is one of keys.
func (p *pageState) names(key mcs.Key) bool {
	return p.has(key) || p.ignored[key]
}

// setPage replaces what is known of a page.
func (c *catalog) setPage(page int, after pageState) {
	if len(after.unreadable) == 0 {
		after.unreadable = nil // lookups in nil read no memory
	}
	c.exporters.replace(c, &c.pages[page], &after)
	c.pages[page] = after
	c.review(page)
}
