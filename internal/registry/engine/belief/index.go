package belief

import (
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// index finds the clusters that a View has to look at. Without it a View would look at all
// clusters, of which there may be 1,000.
type index struct {
	// naming has the clusters of which a unit names a key: it is exported, unusable or ignored.
	naming map[mcs.Key]clusters
	// open has the clusters of which a unit may have keys that it does not name, and skipped those
	// of which it may have such keys of some namespaces.
	open    map[UnitName]clusters
	skipped map[unitCode]clusters
}

// unitCode is a unit and the code of a namespace.
type unitCode struct {
	unit UnitName
	code string
}

// listing says for a unit of a cluster whether the index has the cluster in open, and for which
// codes in skipped.
type listing struct {
	isOpen bool
	codes  []string
}

func newIndex() index {
	return index{naming: map[mcs.Key]clusters{}, open: map[UnitName]clusters{}, skipped: map[unitCode]clusters{}}
}

// clone returns a copy of x that has the clusters of another State with the same IDs.
func (x index) clone(of map[string]*cluster) index {
	out := newIndex()
	for key, list := range x.naming {
		out.naming[key] = list.clone(of)
	}
	for name, list := range x.open {
		out.open[name] = list.clone(of)
	}
	for at, list := range x.skipped {
		out.skipped[at] = list.clone(of)
	}
	return out
}

// find returns the clusters, sorted by ID, that may have another answer than None for a key because
// of its unit.
func (x index) find(at keyAt) clusters {
	naming, open, skipped := x.naming[at.key], x.open[at.name], x.skipped[unitCode{at.name, at.code}]
	switch {
	case len(open)+len(skipped) == 0:
		return naming
	case len(naming)+len(skipped) == 0:
		return open
	}
	all := slices.Concat(naming, open, skipped)
	slices.SortFunc(all, func(a, b *cluster) int { return strings.Compare(a.id, b.id) })
	return slices.Compact(all)
}

// setNamed replaces the keys that a unit of c names.
func (x index) setNamed(c *cluster, before, after *Content) {
	for key := range before.named {
		if !after.names(key) {
			set(x.naming, key, c, false)
		}
	}
	for key := range after.named {
		if !before.names(key) {
			set(x.naming, key, c, true)
		}
	}
}

// setListing replaces the listing of a unit of c.
func (x index) setListing(c *cluster, name UnitName, before, after *listing) {
	if before.isOpen != after.isOpen {
		set(x.open, name, c, after.isOpen)
	}
	if slices.Equal(before.codes, after.codes) {
		return
	}
	for _, code := range before.codes {
		set(x.skipped, unitCode{name, code}, c, false)
	}
	for _, code := range after.codes {
		set(x.skipped, unitCode{name, code}, c, true)
	}
}

// set adds a cluster to a list of an index, or removes it.
func set[K comparable](lists map[K]clusters, of K, c *cluster, isIn bool) {
	if list := lists[of].with(c, isIn); len(list) > 0 {
		lists[of] = list
	} else {
		delete(lists, of)
	}
}

// named yields the keys that the content names, some of them twice.
func (c *Content) named(yield func(mcs.Key) bool) {
	for key := range c.Exports {
		if !yield(key) {
			return
		}
	}
	for _, others := range []map[mcs.Key]bool{c.Unusable, c.Ignored} {
		for key := range others {
			if !yield(key) {
				return
			}
		}
	}
}

// names reports whether the content names a key.
func (c *Content) names(key mcs.Key) bool {
	return c.Exports[key] != nil || c.Unusable[key] || c.Ignored[key]
}

// clusters is a list that is sorted by ID.
type clusters []*cluster

func (l clusters) search(id string) (at int, found bool) {
	return slices.BinarySearchFunc(l, id, func(c *cluster, id string) int { return strings.Compare(c.id, id) })
}

// has reports whether the list has the cluster with an ID.
func (l clusters) has(id string) bool {
	_, found := l.search(id)
	return found
}

// with returns the list with a cluster or without it.
func (l clusters) with(c *cluster, isIn bool) clusters {
	at, found := l.search(c.id)
	switch {
	case isIn && !found:
		return slices.Insert(l, at, c)
	case !isIn && found:
		return slices.Delete(l, at, at+1)
	}
	return l
}

func (l clusters) clone(of map[string]*cluster) clusters {
	out := make(clusters, len(l))
	for i, c := range l {
		out[i] = of[c.id]
	}
	return out
}
