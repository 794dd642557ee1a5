package cloudmap

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// A catalog of more instances than a Cloud Map service holds is spread over several: catalog.<cluster>, catalog.<cluster>.1, … A page
// is in one of them as a whole, and the cluster's record says in which.

const (
	// maxServices is how many services a catalog may have: one digit for each page in the record. 64 pages of 256 parts need
	// 64 * 256 / (serviceRoom - 255) = 24 of them at most, wherever they are.
	maxServices = 36
	// serviceRoom is how many instances are put into a service. A read of 1,000 may not be all, and parts of a new and of an
	// old generation are there together for a moment.
	serviceRoom = 960
)

// services say which of a catalog's services each page is in.
type services [pageCount]uint8

// String is a digit of base 36 for each page, or nothing when all pages are in the first service.
func (s services) String() string {
	if s == (services{}) {
		return ""
	}
	var text strings.Builder
	for _, service := range s {
		text.WriteString(serviceDigit(int(service)))
	}
	return text.String()
}

// parseServices is String undone.
func parseServices(text string) (s services, err error) {
	if text == "" {
		return s, nil
	}
	if len(text) != pageCount {
		return s, fmt.Errorf("%s has %d characters, not one for each of %d pages", attrServices, len(text), pageCount)
	}
	for page := range s {
		service, ok := parseServiceDigit(text[page : page+1])
		if !ok {
			return services{}, fmt.Errorf("%s %q has what is neither a digit nor a lower-case letter", attrServices, text)
		}
		s[page] = uint8(service)
	}
	return s, nil
}

func serviceDigit(service int) string { return strconv.FormatInt(int64(service), maxServices) }

func parseServiceDigit(text string) (service int, ok bool) {
	number, err := strconv.ParseUint(text, maxServices, 8)
	return int(number), err == nil && text == serviceDigit(int(number)) && number < maxServices
}

// catalogName is the name of one of a catalog's services.
func catalogName(clusterID string, service int) string {
	if service == 0 {
		return catalogPrefix + clusterID
	}
	return catalogPrefix + clusterID + "." + serviceDigit(service)
}

// parseCatalogName is catalogName undone; ok is false for every other text. A cluster's ID has no dots.
func parseCatalogName(name string) (clusterID string, service int, ok bool) {
	rest, ok := strings.CutPrefix(name, catalogPrefix)
	if !ok {
		return "", 0, false
	}
	clusterID, digit, further := strings.Cut(rest, ".")
	if further {
		service, ok = parseServiceDigit(digit)
	}
	return clusterID, service, ok && mcs.ValidateClusterID(clusterID) == nil && name == catalogName(clusterID, service)
}

// catalogsIn are the clusters that have a catalog, and the services that each has.
func catalogsIn(all map[string]api.Service) map[string]map[int]api.Service {
	found := map[string]map[int]api.Service{}
	for name, s := range all {
		id, number, ok := parseCatalogName(name)
		if !ok {
			continue
		}
		if found[id] == nil {
			found[id] = map[int]api.Service{}
		}
		found[id][number] = s
	}
	return found
}

// copies are how many parts of a page each service has, or may have.
type copies [maxServices]uint16

// atLeast notes that a service may have so many parts.
func (c *copies) atLeast(service, parts int) { c[service] = max(c[service], uint16(parts)) }

// union is what may be there if either may.
func (c copies) union(o copies) copies {
	for service := range c {
		c[service] = max(c[service], o[service])
	}
	return c
}

// load is how many instances each service has, or may have.
type load [maxServices]int

func (l *load) add(c copies) {
	for service, parts := range c {
		l[service] += int(parts)
	}
}

func (l *load) remove(c copies) {
	for service, parts := range c {
		l[service] -= int(parts)
	}
}

// place is the first service that has room for a page of so many parts, beside the others that l counts; the page's own copies
// give room where they are. Where none has room the page stays in the service that it is in.
func (l *load) place(own copies, at, parts int) int {
	for service, taken := range l {
		if taken+max(int(own[service]), parts) <= serviceRoom {
			return service
		}
	}
	return at
}

// byServices are pages by the service that a record says they are in, the services in order.
func (r memberRecord) byServices(pages []int) (order []int, found map[int][]int) {
	found = map[int][]int{}
	for _, page := range pages {
		found[int(r.services[page])] = append(found[int(r.services[page])], page)
	}
	return slices.Sorted(maps.Keys(found)), found
}

// mayBeIn are the services in which pages of a cluster may be whose record is gone: those of the last record, and those that were
// found.
func (c *catalog) mayBeIn(found map[int]api.Service) []int {
	all := map[int]bool{0: true}
	for _, service := range c.record.services {
		all[int(service)] = true
	}
	for service := range found {
		all[service] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// announces says whether a record announces a page of this digest in this service.
func (r memberRecord) announces(page int, digest string, service int) bool {
	return r.pages[page] == digest && (digest == "" || int(r.services[page]) == service)
}

// newest is which of a catalog's services has what counts of a page: the newest whole generation if that was written after the
// record, or else the one that is announced.
func (r memberRecord) newest(page int, catalog map[int][]api.Instance) (service int) {
	service, generation := int(r.services[page]), r.generation
	for number, instances := range catalog {
		if img, err := joinPage(page, instances); err == nil && img.generation > generation {
			service, generation = number, img.generation
		}
	}
	return service
}
