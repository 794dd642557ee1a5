package belief

import (
	"slices"
	"strings"
)

// index has the clusters that have a unit, sorted by ID. Without it a View would look at all
// clusters, of which there may be 1,000.
type index map[UnitName][]*cluster

// find returns the place of a cluster among those that have a unit.
func (x index) find(name UnitName, id string) (at int, found bool) {
	return slices.BinarySearchFunc(x[name], id, func(c *cluster, id string) int { return strings.Compare(c.id, id) })
}

// add adds a cluster to those that have a unit.
func (x index) add(name UnitName, c *cluster) {
	if at, found := x.find(name, c.id); !found {
		x[name] = slices.Insert(x[name], at, c)
	}
}

// remove removes a cluster from those that have a unit.
func (x index) remove(name UnitName, c *cluster) {
	at, found := x.find(name, c.id)
	switch {
	case !found:
	case len(x[name]) == 1:
		delete(x, name)
	default:
		x[name] = slices.Delete(x[name], at, at+1)
	}
}
