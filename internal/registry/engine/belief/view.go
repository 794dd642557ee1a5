package belief

import (
	"maps"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// KeyState is the state of a key in a cluster. It is the only result of the tables that a controller
// sees.
type KeyState int

const (
	// NotExported means that the cluster does not export the key, by a record that it has signed,
	// a farewell, or an administrator: an import ends.
	NotExported KeyState = iota
	// Exports means that the cluster exports the key.
	Exports
	// Unknown means that the cluster may export the key: an import stays as it is.
	Unknown
	// Ignored means that the cluster exports the key, and its namespace is not imported.
	Ignored
	// Unseen means that no record of the cluster was read, and an import from it exists: it stays
	// as it is.
	Unseen
)

// Liveness is the liveness of a cluster.
type Liveness int

const (
	// LivenessUnknown means that the cluster had no heartbeat since this process started, but not for
	// long enough to be stale.
	LivenessUnknown Liveness = iota
	// Alive means that it had a heartbeat.
	Alive
	// Stale means that it had none for the time of Config.StaleAfter.
	Stale
)

// ClusterView is a key as one cluster has it. Export is nil in other states than Exports.
type ClusterView struct {
	Cluster  string
	State    KeyState
	Liveness Liveness
	Export   *mcs.Export
}

// View returns the clusters, sorted, that export a key or may do so. imported are the clusters of the
// import that exists: those without a record are Unseen.
func (s *State) View(key mcs.Key, imported ...string) (views []ClusterView) {
	ids := slices.Collect(maps.Keys(s.clusters))
	for _, id := range imported {
		if s.clusters[id] == nil && id != s.cfg.Own {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		view := s.viewIn(s.clusters[id], key, slices.Contains(imported, id))
		if view.State != NotExported {
			view.Cluster, view.Liveness = id, s.LivenessOf(id)
			views = append(views, view)
		}
	}
	return views
}

// viewIn returns the view of a key in a cluster, which is nil if nothing is known of it.
func (s *State) viewIn(c *cluster, key mcs.Key, isImported bool) ClusterView {
	unseen := ClusterView{State: NotExported}
	if isImported {
		unseen.State = Unseen
	}
	if c == nil {
		return unseen
	}
	switch c.viewed() {
	case NotRead:
		return unseen
	case Saving:
		return ClusterView{State: Unknown}
	case First:
		state, exp := c.signed.answer(key, s.cfg.UnitOf(key))
		return ClusterView{State: addFirst(state), Export: exp}
	case Current:
		state, exp := c.signed.answer(key, s.cfg.UnitOf(key))
		return ClusterView{State: state, Export: exp}
	case Left:
	}
	return ClusterView{State: NotExported}
}

// LivenessOf returns the liveness of a cluster.
func (s *State) LivenessOf(id string) Liveness {
	c := s.clusters[id]
	switch {
	case s.liveness.IsStale(id):
		return Stale
	case c == nil || c.signed == nil || c.viewed() == First || s.liveness.IsUnknown(id):
		return LivenessUnknown
	}
	return Alive
}
