package belief

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// View returns the clusters that export a key or may do so. imported are the clusters of the import
// that exists: those without a record are Unseen. A cluster that is not among them is only shown if
// its unit of the key names it or may have it, or if the cluster returns.
func (s *State) View(key mcs.Key, imported ...string) (view registry.View) {
	name := s.cfg.UnitOf(key)
	found := s.index.find(key, name)
	for _, c := range found {
		s.addTo(&view, c, key, name, slices.Contains(imported, c.id))
	}
	for id, c := range s.returning {
		if !found.has(id) {
			s.addTo(&view, c, key, name, slices.Contains(imported, id))
		}
	}
	for _, id := range imported {
		if c := s.clusters[id]; c != nil && !found.has(id) && s.returning[id] == nil {
			s.addTo(&view, c, key, name, true)
		}
	}
	view.SetUnseen(imported, func(id string) bool { return id == s.cfg.Own || s.isKnown(id) })
	return view
}

// addTo adds the state of a key in a cluster to a view.
func (s *State) addTo(view *registry.View, c *cluster, key mcs.Key, name UnitName, isImported bool) {
	in := s.viewIn(c, key, name, isImported)
	if in.State == registry.None {
		return
	}
	in.Liveness = s.LivenessOf(c.id)
	if c.signed != nil {
		in.Properties = c.signed.record.Properties
		if u := c.signed.units[name]; u != nil && u.order > 0 {
			if view.Order == nil {
				view.Order = map[string]int64{}
			}
			view.Order[c.id] = u.order
		}
	}
	view.Set(c.id, in)
}

// isKnown reports whether it is known what a cluster exports, also if that is nothing because it
// has ended, which counts once the next process will know of it. After it has moved to another
// registry, its records in this one are out of date.
func (s *State) isKnown(id string) bool {
	known := s.known(id)
	if c := s.clusters[id]; c == nil || c.signed == nil {
		return known.HasEnded && known.IsSaved
	}
	return known.IsLatest
}

// viewIn returns the view of a key in a cluster. None is also that of a cluster of which nothing is
// known.
func (s *State) viewIn(c *cluster, key mcs.Key, name UnitName, isImported bool) registry.ClusterView {
	switch c.viewed() {
	case Saving:
		return registry.ClusterView{State: registry.Unknown}
	case First:
		if c.signed.record.Farewell && !isImported {
			break // nothing of it can end
		}
		state, exp := c.signed.answer(key, name, isImported)
		if isImported {
			state = addFirst(state)
		}
		return registry.ClusterView{State: state, Export: exp}
	case Current:
		state, exp := c.signed.answer(key, name, isImported)
		return registry.ClusterView{State: state, Export: exp}
	case NotRead, Left:
	}
	return registry.ClusterView{State: registry.None}
}

// LivenessOf returns the liveness of a cluster.
func (s *State) LivenessOf(id string) registry.LivenessState {
	of := s.liveness.Of(id)
	if c := s.clusters[id]; of == registry.Live && (c == nil || c.signed == nil || c.viewed() == First) {
		return registry.Undecided
	}
	return of
}

// Keys returns the keys, sorted, that clusters export.
func (s *State) Keys() []mcs.Key {
	exported := keys{}
	for _, c := range s.clusters {
		if c.signed == nil {
			continue
		}
		for _, u := range c.signed.units {
			for key := range u.content.Exports {
				exported.add(key)
			}
		}
	}
	return exported.sorted()
}

// ProblemOf returns the reason why the record that the store shows of a cluster does not count.
func (s *State) ProblemOf(id string) Problem {
	if c := s.clusters[id]; c != nil {
		return c.problem
	}
	return Problem{}
}

// ExportOf returns an export of a cluster as it was read last, nil without one.
func (s *State) ExportOf(id string, key mcs.Key) *mcs.Export {
	if c := s.clusters[id]; c != nil && c.signed != nil {
		if u := c.signed.units[s.cfg.UnitOf(key)]; u != nil {
			return u.content.Exports[key]
		}
	}
	return nil
}

// Versions returns the versions of the units of a cluster that were read last.
func (s *State) Versions(id string) map[UnitName]Version {
	versions := map[UnitName]Version{}
	if c := s.clusters[id]; c != nil && c.signed != nil {
		for name, u := range c.signed.units {
			if u.version != (Version{}) {
				versions[name] = u.version
			}
		}
	}
	return versions
}
