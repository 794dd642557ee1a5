package registry

import (
	"fmt"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// View is the state of one key.
type View struct {
	// Clusters has the other clusters that export the key or may export it, by ID. Every other
	// cluster is known not to export it, unless the View is Incomplete. This cluster's own export
	// is not read from the registry.
	Clusters map[string]ClusterView
	// Incomplete is true if clusters that are not in Clusters may export the key, too. That is the
	// case if one of several registries has not been read, and at the start of a controller while
	// the registry throttles. The key is notified when it is over.
	Incomplete bool
	// Order has the order in which the registry got the exports of the key, by cluster, this one
	// included: no cluster can claim it. It is nil if the registry does not know it.
	Order map[string]int64
	// Local is the status of this cluster's own export of the key.
	Local PublishStatus
	// Mapped is the service of AWS Cloud Map that an administrator has mapped to the key, nil if
	// there is none. A change of it alone is not notified.
	Mapped *MappedService
}

// ClusterView is the state of one key in one other cluster.
type ClusterView struct {
	State ClusterState
	// Liveness is that of a cluster that exports the key, or that is Unknown and that the caller
	// named as imported. The caller decides about its endpoints. The key is notified when an export
	// gets another one, and when an Unknown cluster becomes Stale or is it no more.
	Liveness LivenessState
	// Export is the export in state Exports, nil in all others.
	Export *mcs.Export
	// Properties are the ClusterProperties of a cluster that exports the key, or that is Unknown
	// and that the caller named as imported. They are nil while they are not known, and empty for a
	// cluster without any. The key is notified when they change.
	Properties mcs.Properties
}

// ClusterState reports whether another cluster exports a key. A cluster for which several states
// hold is in the first of them.
type ClusterState uint8

const (
	// None means that the cluster is known not to export the key. View.Clusters has no such
	// cluster.
	None ClusterState = iota
	// Exports means that the cluster exports the key.
	Exports
	// Unknown means that the cluster's export of the key could not be read since this process
	// started: it may or may not exist. Unknown does not mean absent: imports of a previous process
	// stay.
	Unknown
	// Ignored means that the cluster exports the key, while the registry has kept only the key of
	// the export, because services are not imported into its namespace. When they are, the next
	// Lookup makes the registry read the export, and the key is notified.
	Ignored
	// Unseen means that the registry has shown no record of the cluster since this process started,
	// and that the cluster neither left nor was forgotten. Only an imported cluster is Unseen. It
	// may export the key, however long ago this process started: missing records are no evidence.
	Unseen
)

// String returns the state's name.
func (s ClusterState) String() string {
	switch s {
	case None:
		return "None"
	case Exports:
		return "Exports"
	case Unknown:
		return "Unknown"
	case Ignored:
		return "Ignored"
	case Unseen:
		return "Unseen"
	}
	return fmt.Sprintf("ClusterState(%d)", uint8(s))
}

// mayExport reports whether a cluster in the state may export the key, and its export is not known.
func (s ClusterState) mayExport() bool {
	switch s {
	case Unknown, Ignored, Unseen:
		return true
	case None, Exports:
	}
	return false
}

// LivenessState is the liveness of a cluster as Liveness finds it: by this cluster's clock, and
// only while the registry itself answers.
type LivenessState uint8

const (
	// Live means that the cluster has sent a heartbeat within the configured time.
	Live LivenessState = iota
	// Stale means that it had no heartbeat for the configured time.
	Stale
	// Undecided means that it had no heartbeat since this process started, but not for long enough
	// to be Stale. The caller keeps the decision of a previous process about it.
	Undecided
)

// String returns the state's name.
func (s LivenessState) String() string {
	switch s {
	case Live:
		return "Live"
	case Stale:
		return "Stale"
	case Undecided:
		return "Undecided"
	}
	return fmt.Sprintf("LivenessState(%d)", uint8(s))
}

// MappedService is what is known of a service of AWS Cloud Map that is mapped to a key.
type MappedService struct {
	// Cluster is the pseudo-cluster that exports it. Namespace and Service are its names in Cloud
	// Map.
	Cluster, Namespace, Service string
	// Instances is the number of instances at ReadAt, the last read that succeeded, which is the
	// zero time if none has since this process started.
	Instances int
	ReadAt    time.Time
	// Problems are those of Member about this service.
	Problems []string
}

// Set sets the state of a cluster.
func (v *View) Set(clusterID string, c ClusterView) {
	if v.Clusters == nil {
		v.Clusters = map[string]ClusterView{}
	}
	v.Clusters[clusterID] = c
}

// SetUnseen sets the state of those of the imported clusters to Unseen that have no state in v and
// that isKnown does not know.
func (v *View) SetUnseen(imported []string, isKnown func(clusterID string) bool) {
	for _, id := range imported {
		if _, hasState := v.Clusters[id]; !hasState && !isKnown(id) {
			v.Set(id, ClusterView{State: Unseen})
		}
	}
}

// Exports returns the exports, sorted by cluster.
func (v View) Exports() []mcs.Export {
	ids := v.In(Exports)
	exports := slices.Grow([]mcs.Export(nil), len(ids))
	for _, id := range ids {
		exports = append(exports, *v.Clusters[id].Export)
	}
	return exports
}

// In returns the clusters, sorted, that are in one of states.
func (v View) In(states ...ClusterState) []string {
	return v.find(func(c ClusterView) bool { return slices.Contains(states, c.State) })
}

// Has reports whether a cluster is in state.
func (v View) Has(state ClusterState) bool {
	for _, c := range v.Clusters {
		if c.State == state {
			return true
		}
	}
	return false
}

// MayExport returns the clusters, sorted, that may export the key and whose exports are not known.
func (v View) MayExport() []string {
	return v.find(func(c ClusterView) bool { return c.State.mayExport() })
}

// WithLiveness returns the clusters, sorted, that have a liveness.
func (v View) WithLiveness(liveness LivenessState) []string {
	return v.find(func(c ClusterView) bool { return c.Liveness == liveness })
}

// find returns the clusters, sorted, for which is returns true.
func (v View) find(is func(ClusterView) bool) (ids []string) {
	for id, c := range v.Clusters {
		if is(c) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// PropertiesWith returns the ClusterProperties, as far as they are known, of the clusters in v and
// of cluster, whose own they are.
func (v View) PropertiesWith(cluster string, own mcs.Properties) map[string]mcs.Properties {
	out := map[string]mcs.Properties{cluster: own}
	for id, c := range v.Clusters {
		if c.Properties != nil && id != cluster {
			out[id] = c.Properties
		}
	}
	return out
}
