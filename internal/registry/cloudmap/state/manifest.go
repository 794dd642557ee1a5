package state

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// unitNames are the names of the pages, which are the units of package belief.
var unitNames = func() (names [format.PageCount]belief.UnitName) {
	for page := range names {
		names[page] = belief.UnitName(format.PageName(page))
	}
	return names
}()

// unitOf returns the unit that has the export of a key.
func unitOf(key mcs.Key) belief.UnitName { return unitNames[format.PageOf(key)] }

// pagesOf returns the pages that units are.
func pagesOf(units []belief.UnitName) (pages []int) {
	for _, name := range units {
		pages = append(pages, pageOf(name))
	}
	return pages
}

// pageOf returns the page that a unit is.
func pageOf(unit belief.UnitName) int { return slices.Index(unitNames[:], unit) }

// manifest makes the manifests of the records of a cluster. Most records announce the pages of the
// previous one: they share one manifest. The zero value has made none.
type manifest struct {
	pages      format.Digests
	namespaces format.PageNamespaces
	made       *belief.ByUnit
}

// of returns the manifest of a record.
func (m *manifest) of(r *format.Member) belief.ByUnit {
	if m.made != nil && m.pages == r.Pages && m.namespaces == r.Namespaces {
		return *m.made
	}
	made := belief.ByUnit{Digests: map[belief.UnitName]string{}, Unwritten: map[belief.UnitName]bool{}, Codes: map[belief.UnitName][]string{}}
	for page, name := range unitNames {
		switch digest := r.Pages[page]; digest {
		case "":
			continue
		case format.UnwrittenDigest:
			made.Unwritten[name] = true
		default:
			made.Digests[name] = digest
		}
		if namespaces := r.Namespaces[page]; namespaces != "" {
			made.Codes[name] = slices.Collect(namespaces.Codes)
		}
	}
	*m = manifest{pages: r.Pages, namespaces: r.Namespaces, made: &made}
	return made
}
