package state

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"

// usedNamespaces are the namespaces whose exports are used. A changed page that has none of them is
// not read (docs/proposals/022-changes-for-importers.md).
type usedNamespaces struct {
	// selection is nil if all namespaces are used.
	selection *format.NamespaceSelection
}

// setUsed sets the namespaces whose exports are used.
func (c *catalogs) setUsed(selection *format.NamespaceSelection) { c.used.selection = selection }

// isUnused reports whether nothing of a page is used, neither of the version that was read nor,
// according to the record, of the announced one. So no import ends without the page being read.
func (c *catalog) isUnused(page int) bool {
	return c.used != nil && c.used.selection != nil && c.pages[page].isUnused() && !c.used.selection.Intersects(c.record.Namespaces[page])
}

// isUnused reports whether no export of the page is used, and none would be if there were room.
func (p *pageState) isUnused() bool {
	return p.read && len(p.exports)+len(p.unreadable)+p.excess == 0 && !p.unnamed
}

// mayHaveGained reports whether the announced version of a page, which is skipped, may have exports
// of the namespace with a code: the namespace may be used since a moment ago.
func (c *catalog) mayHaveGained(page int, code string) bool {
	return c.pages[page].isSkipped && !c.shows(page) && c.record.Namespaces[page].Has(code)
}
