package etcd

import (
	"cmp"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// exporters has the clusters that have an export of a key, or of which etcd shows one, sorted by
// ID. Without it a lookup searches the maps of all clusters.
type exporters map[mcs.Key][]*cluster

// find returns the place of a cluster among clusters that are sorted by ID.
func find(clusters []*cluster, id string) (at int, found bool) {
	return slices.BinarySearchFunc(clusters, id, func(c *cluster, id string) int { return cmp.Compare(c.id, id) })
}

// update updates the index after a change of held or shown.
func (e exporters) update(c *cluster, key mcs.Key) {
	_, isHeld := c.held[key]
	_, isShown := c.shown[key]
	at, found := find(e[key], c.id)
	switch {
	case found == (isHeld || isShown):
	case !found:
		e[key] = slices.Insert(e[key], at, c)
	case len(e[key]) == 1:
		delete(e, key)
	default:
		e[key] = slices.Delete(e[key], at, at+1)
	}
}

// candidates returns the clusters of which a view of key may show something, sorted by ID: the
// exporters, and those that are imported from. The result must not be changed.
func (s *state) candidates(key mcs.Key, imported []string) []*cluster {
	found := s.exporters[key]
	var others []*cluster
	for _, id := range imported {
		if _, isExporter := find(found, id); !isExporter && s.clusters[id] != nil {
			others = append(others, s.clusters[id])
		}
	}
	if len(others) == 0 {
		return found
	}
	all := slices.Concat(found, others)
	slices.SortFunc(all, func(a, b *cluster) int { return cmp.Compare(a.id, b.id) })
	return slices.Compact(all)
}
