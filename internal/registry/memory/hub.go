// Package memory is the reference registry: the contract of package registry in its simplest form, for tests and as the
// measure of the others. Clusters that share a Hub are one another's clusterset.
package memory

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Hub is the shared store behind any number of registries, with the faults that a store can have. Its zero value is not
// ready for use; make one with NewHub.
type Hub struct {
	mu         sync.Mutex
	clusters   map[clusterRef]*cluster
	running    map[*Registry]struct{}
	err        error
	held       bool
	muted      bool
	unreadable map[string]bool
	writes     int
	// staleAfter never changes once there is a registry; 0 is never.
	staleAfter time.Duration
}

// clusterRef tells clusters of different clustersets apart, which may share a store.
type clusterRef struct{ clusterSetID, clusterID string }

// cluster is what the store holds of one cluster.
type cluster struct {
	uid string
	// owner is the registry that runs for the cluster, nil when none does: what a heartbeat tells elsewhere.
	owner   *Registry
	joined  time.Time
	exports map[mcs.Key]mcs.Export
}

// NewHub makes an empty store.
func NewHub() *Hub {
	return &Hub{
		clusters:   map[clusterRef]*cluster{},
		running:    map[*Registry]struct{}{},
		unreadable: map[string]bool{},
	}
}

// SetStaleAfter makes clusters stale that have not run for a time; without it none ever is. It must be called before the first
// registry is made.
func (h *Hub) SetStaleAfter(after time.Duration) { h.staleAfter = after }

// Registry makes a registry for a cluster. A second one with the same identity is the same cluster after a restart.
func (h *Hub) Registry(identity mcs.Identity) *Registry {
	r := &Registry{
		hub:      h,
		identity: identity,
		wake:     make(chan struct{}, 1),
		want:     map[mcs.Key]*mcs.Export{},
		asked:    map[mcs.Key]struct{}{},
	}
	if h.staleAfter > 0 {
		r.liveness = registry.NewLiveness(identity.ClusterID, h.staleAfter)
	}
	return r
}

// Reader makes a registry that only reads, for a cluster that exports elsewhere.
func (h *Hub) Reader(identity mcs.Identity) *Registry {
	r := h.Registry(identity)
	r.readOnly = true
	return r
}

// SetError makes every read and write fail with err until it is called with nil.
func (h *Hub) SetError(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	h.wakeAll()
}

// SetUnreadable says whether the exports of a cluster can be read by the others.
func (h *Hub) SetUnreadable(clusterID string, unreadable bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unreadable[clusterID] = unreadable
	h.wakeAll()
}

// HoldConfirmations says whether writers are kept from seeing what they wrote. The others see it all the same.
func (h *Hub) HoldConfirmations(hold bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = hold
	h.wakeAll()
}

// Mute says whether nobody's signs of life reach the store. What is published does all the same.
func (h *Hub) Mute(muted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.muted = muted
}

// Exports are all that the store holds of a clusterset, sorted by key and cluster.
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

// Writes is how many exports were stored or removed so far.
func (h *Hub) Writes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

// wakeAll makes every running registry look again. The caller holds h.mu.
func (h *Hub) wakeAll() {
	for r := range h.running {
		r.poke()
	}
}
