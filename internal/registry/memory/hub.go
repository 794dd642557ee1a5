// Package memory is the reference registry: the contract of package registry in its simplest form,
// for tests and for comparison. Clusters that share a Hub form a clusterset.
package memory

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// Hub is the shared store of any number of registries, with faults that tests can switch on. NewHub
// creates one.
type Hub struct {
	mu       sync.Mutex
	clusters map[clusterRef]*cluster
	// left are the clusters that left with a farewell.
	left map[clusterRef]struct{}
	// forgotten are the clusters that the others have forgotten, as pairs of a reader and a
	// cluster.
	forgotten      map[[2]clusterRef]struct{}
	running        map[*Registry]struct{}
	err            error // SetError
	held           bool  // HoldConfirmations
	dropHeartbeats bool
	unreadable     map[string]bool
	writes         int
	// staleAfter never changes once there is a registry; 0 is never.
	staleAfter time.Duration
}

// clusterRef identifies a cluster; several clustersets may share a store.
type clusterRef struct{ clusterSetID, clusterID string }

// cluster is the stored state of one cluster.
type cluster struct {
	uid string
	// owner is the registry that runs for the cluster, nil if none does. An owner is the heartbeat
	// of the cluster.
	owner   *Registry
	joined  time.Time
	exports map[mcs.Key]mcs.Export
	// properties are the ClusterProperties that the cluster has published.
	properties mcs.Properties
	// imports is its report of imports.
	imports mcs.ImportReport
	// lost are the exports that another user has removed.
	lost map[mcs.Key]struct{}
	// isMissing is true while the record of the cluster is missing.
	isMissing bool
	// settleAt is the time from which the exports of a new process are complete. Until then,
	// exports that another user has removed may be missing.
	settleAt time.Time
}

// isAbsent reports whether the record of the cluster is missing. c is nil if its exports are
// missing as well.
func (c *cluster) isAbsent() bool { return c == nil || c.isMissing }

// isSettled reports whether the exports of the cluster are complete.
func (c *cluster) isSettled() bool { return !time.Now().Before(c.settleAt) }

// NewHub creates an empty store.
func NewHub() *Hub {
	return &Hub{
		clusters:   map[clusterRef]*cluster{},
		left:       map[clusterRef]struct{}{},
		forgotten:  map[[2]clusterRef]struct{}{},
		running:    map[*Registry]struct{}{},
		unreadable: map[string]bool{},
	}
}

// SetStaleAfter sets the time after its last heartbeat after which a cluster is stale; without it
// no cluster becomes stale. It must be called before the first registry is created.
func (h *Hub) SetStaleAfter(after time.Duration) { h.staleAfter = after }

// Registry creates a registry for a cluster. A second one with the same identity is the same
// cluster after a restart.
func (h *Hub) Registry(identity mcs.Identity) *Registry { return h.newRegistry(identity, false) }

// Reader creates a read-only registry, for a cluster that exports to another registry.
func (h *Hub) Reader(identity mcs.Identity) *Registry { return h.newRegistry(identity, true) }

func (h *Hub) newRegistry(identity mcs.Identity, readOnly bool) *Registry {
	r := &Registry{
		hub:      h,
		identity: identity,
		wake:     engine.NewSignal(),
		readOnly: readOnly,
		desired:  map[mcs.Key]*mcs.Export{},
		lookups:  engine.NewPendingLookups(engine.MaxPendingLookups),
	}
	r.Publisher = engine.NewPublisher(identity.ClusterID, readOnly, r.setDesired)
	if h.staleAfter > 0 {
		r.liveness = registry.NewLiveness(identity.ClusterID, h.staleAfter)
	}
	return r
}

// SetError makes every read and write fail with err, or succeed again if err is nil.
func (h *Hub) SetError(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	h.wakeAll()
}

// SetUnreadable sets whether the exports of a cluster are unreadable for the others.
func (h *Hub) SetUnreadable(clusterID string, unreadable bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unreadable[clusterID] = unreadable
	h.wakeAll()
}

// HoldConfirmations sets whether writers do not read their own writes. Other clusters read them.
func (h *Hub) HoldConfirmations(hold bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = hold
	h.wakeAll()
}

// DropHeartbeats sets whether heartbeats are lost. Exports are still written.
func (h *Hub) DropHeartbeats(drop bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropHeartbeats = drop
}

// Wipe removes everything, as another user of a store may, without farewells.
func (h *Hub) Wipe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.clusters)
	clear(h.left)
	h.wakeAll()
}

// DeleteMember removes the record of a cluster as another user may, but not its exports.
func (h *Hub) DeleteMember(clusterSetID, clusterID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clusters[clusterRef{clusterSetID, clusterID}]; c != nil {
		c.isMissing = true
	}
	h.wakeAll()
}

// DeleteExport removes an export as another user may.
func (h *Hub) DeleteExport(clusterSetID, clusterID string, key mcs.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.clusters[clusterRef{clusterSetID, clusterID}]; c != nil {
		delete(c.exports, key)
		c.lost[key] = struct{}{}
	}
	h.wakeAll()
}

// Exports returns all exports of a clusterset, sorted by key and cluster.
func (h *Hub) Exports(clusterSetID string) []mcs.Export {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []mcs.Export
	for ref, c := range h.clusters {
		if ref.clusterSetID == clusterSetID {
			all = slices.AppendSeq(all, maps.Values(c.exports))
		}
	}
	slices.SortFunc(all, func(a, b mcs.Export) int {
		return strings.Compare(a.Key.String()+" "+a.Cluster, b.Key.String()+" "+b.Cluster)
	})
	return all
}

// Writes returns the number of exports that have been stored or removed.
func (h *Hub) Writes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

// wakeAll wakes every running registry. The caller holds h.mu.
func (h *Hub) wakeAll() {
	for r := range h.running {
		r.wake.Set()
	}
}
