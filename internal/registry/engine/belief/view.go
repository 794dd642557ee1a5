package belief

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// View returns the clusters that export a key or may do so. imported are the clusters of the import
// that exists: those without a record are Unseen. A cluster that is not among them is only shown if
// its unit of the key names it or may have it, or if the cluster returns.
func (s *State) View(key mcs.Key, imported ...string) (view registry.View) {
	at := s.at(key)
	found := s.index.find(at)
	if len(found) > 0 {
		view.Clusters = make(map[string]registry.ClusterView, len(found))
	}
	for _, c := range found {
		s.addTo(&view, c, at, slices.Contains(imported, c.id))
	}
	for id, c := range s.returning {
		if !found.has(id) {
			s.addTo(&view, c, at, slices.Contains(imported, id))
		}
	}
	for _, id := range imported {
		if c := s.clusters[id]; c != nil && !found.has(id) && s.returning[id] == nil {
			s.addTo(&view, c, at, true)
		}
	}
	if len(view.Clusters) == 0 {
		view.Clusters = nil
	}
	view.SetUnseen(imported, func(id string) bool { return id == s.cfg.Own || s.isKnown(id) })
	return view
}

// ViewOfUnused returns the View of a key that is not imported, in a namespace whose exports are not
// used: nine tenths of all keys, which only wait for their namespaces. Of the clusters that are
// Unknown and do not name it, of which there are 1,000 at a start, it has one.
func (s *State) ViewOfUnused(key mcs.Key) (view registry.View) {
	at := s.at(key)
	for _, c := range s.index.naming[at.key] {
		s.addTo(&view, c, at, false)
	}
	for _, list := range []clusters{s.index.open[at.name], s.index.skipped[unitCode{at.name, at.code}]} {
		isUnknown := func(c *cluster) bool { return s.viewIn(c, at, false).State == registry.Unknown }
		if i := slices.IndexFunc(list, isUnknown); i >= 0 {
			s.addTo(&view, list[i], at, false)
			break
		}
	}
	for _, c := range s.returning {
		s.addTo(&view, c, at, false)
	}
	return view
}

// StatusOf returns the status of the View of a key, without the clusters in it that imported does
// not name. It implements engine.StatusFunc.
func (s *State) StatusOf(key mcs.Key, imported []string) (status engine.Status) {
	at := s.at(key)
	isUnknown := func(c *cluster) bool {
		return s.viewIn(c, at, slices.Contains(imported, c.id)).State == registry.Unknown
	}
	status.IsOpen = slices.ContainsFunc(s.index.find(at), isUnknown)
	for _, c := range s.returning {
		status.IsOpen = status.IsOpen || isUnknown(c)
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(imported))) {
		c, state := s.clusters[id], registry.None
		if c != nil {
			state = s.viewIn(c, at, true).State
		}
		switch state {
		case registry.Unknown:
			status.IsOpen = true
			status.Unknown = append(status.Unknown, id)
			if s.LivenessOf(id) == registry.Stale {
				status.Stale = append(status.Stale, id)
			}
		case registry.None:
			if id != s.cfg.Own && !s.isKnown(id) {
				status.Unseen = append(status.Unseen, id)
			}
		case registry.Exports, registry.Ignored, registry.Unseen:
		}
	}
	return status
}

// keyAt is a key, the unit that has it and the code of its namespace.
type keyAt struct {
	key  mcs.Key
	name UnitName
	code string
}

func (s *State) at(key mcs.Key) keyAt {
	return keyAt{key: key, name: s.cfg.UnitOf(key), code: s.cfg.CodeOf(key.Namespace)}
}

// addTo adds the state of a key in a cluster to a view.
func (s *State) addTo(view *registry.View, c *cluster, at keyAt, isImported bool) {
	in := s.viewIn(c, at, isImported)
	switch in.State {
	case registry.None:
		return
	case registry.Unknown:
		if !isImported { // nothing else of it matters, and there are 1,000 of them at a start
			view.Set(c.id, in)
			return
		}
	case registry.Exports, registry.Ignored, registry.Unseen:
	}
	in.Liveness = s.LivenessOf(c.id)
	if c.signed != nil {
		in.Properties = c.signed.record.Properties
		if u := c.signed.units[at.name]; u != nil && u.order > 0 {
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
func (s *State) viewIn(c *cluster, at keyAt, isImported bool) registry.ClusterView {
	switch c.viewed() {
	case Saving:
		return registry.ClusterView{State: registry.Unknown}
	case First:
		if c.signed.record.Farewell && !isImported {
			break // nothing of it can end
		}
		state, exp := c.signed.answer(at, isImported)
		if isImported {
			state = addFirst(state)
		}
		return registry.ClusterView{State: state, Export: exp}
	case Current:
		state, exp := c.signed.answer(at, isImported)
		return registry.ClusterView{State: state, Export: exp}
	case NotRead, Left:
	}
	return registry.ClusterView{State: registry.None}
}

// LivenessOf returns the liveness of a cluster.
func (s *State) LivenessOf(id string) registry.LivenessState {
	of := s.liveness.Of(id)
	if c := s.clusters[id]; of == registry.Live && (c == nil || c.signed == nil || !s.liveness.Has(id)) {
		return registry.Undecided
	}
	return of
}

// IsCurrent reports whether the store has answered since it last failed.
func (s *State) IsCurrent() bool { return s.liveness.IsCurrent() }

// Keys returns the keys, sorted, that clusters export, also those that are not imported.
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
			for key := range u.content.Ignored {
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

// UnitOf returns the content of a unit as it was read last, and its state: Absent if it is not
// known.
func (s *State) UnitOf(id string, name UnitName) (content Content, state UnitState) {
	if c := s.clusters[id]; c != nil && c.signed != nil {
		if u := c.signed.units[name]; u != nil {
			return u.content, u.state
		}
	}
	return Content{}, Absent
}

// IsOpen reports whether a cluster may have keys of a unit that it does not name, of any namespace.
func (s *State) IsOpen(name UnitName) bool { return len(s.index.open[name])+len(s.returning) > 0 }
