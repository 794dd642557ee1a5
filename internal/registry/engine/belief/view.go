package belief

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// View returns the clusters that export a key or may do so. imported are the clusters of the import
// that exists: those without a record are Unseen.
func (s *State) View(key mcs.Key, imported ...string) (view registry.View) {
	for id, c := range s.clusters {
		if in := s.viewIn(c, key, slices.Contains(imported, id)); in.State != registry.None {
			in.Liveness = s.LivenessOf(id)
			if r := s.RecordOf(id); r != nil {
				in.Properties = r.Properties
			}
			view.Set(id, in)
		}
	}
	view.SetUnseen(imported, func(id string) bool { return id == s.cfg.Own || s.isKnown(id) })
	return view
}

// isKnown reports whether it is known what a cluster exports, also if that is nothing because it
// has ended, which counts once the next process will know of it. After it has moved to another registry, its records in this one are out of date.
func (s *State) isKnown(id string) bool {
	known := s.known(id)
	if c := s.clusters[id]; c == nil || c.signed == nil {
		return known.HasEnded && known.IsSaved
	}
	return known.IsLatest
}

// viewIn returns the view of a key in a cluster. None is also that of a cluster of which nothing is
// known.
func (s *State) viewIn(c *cluster, key mcs.Key, isImported bool) registry.ClusterView {
	switch c.viewed() {
	case Saving:
		return registry.ClusterView{State: registry.Unknown}
	case First:
		if c.signed.record.Farewell && !isImported {
			break // nothing of it can end
		}
		state, exp := c.signed.answer(key, s.cfg.UnitOf(key))
		return registry.ClusterView{State: addFirst(state), Export: exp}
	case Current:
		state, exp := c.signed.answer(key, s.cfg.UnitOf(key))
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
