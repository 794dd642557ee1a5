// Package memory is the reference registry: the contract of package registry in its simplest form,
// for tests and for comparison. Clusters that share a Hub form a clusterset.
//
// # Files
//
//	hub.go       the store: records and units of clusters, and the keyring of each
//	faults.go    the faults of the store that tests can switch on
//	driver.go    passes what the hub shows to engine/belief, which decides about other clusters
//	registry.go  the methods of registry.Registry
//	report.go    the method of registry.Reporter
package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Hub is the shared store of any number of registries. It decides nothing about the records that it
// has. NewHub creates one.
type Hub struct {
	mu       sync.Mutex
	clusters map[clusterRef]*cluster
	// keyrings has the keyring of each cluster, which its next process takes over. They are no part
	// of the store that clusters share.
	keyrings map[mcs.Identity]*trust.Keyring
	running  map[*Registry]struct{}
	// clock counts the writes: each record and version is later than all before it.
	clock  int64
	writes int
	faults
	// staleAfter and interval never change once there is a registry.
	staleAfter, interval time.Duration
}

const (
	// never is longer than any test.
	never = 24 * 365 * time.Hour
	// standardInterval is the time between two heartbeats, and between two reads without a change.
	// The exports of a cluster are certain with its second record.
	standardInterval = 100 * time.Millisecond
	// heartbeats is the number of heartbeats until a cluster is stale, as with the defaults of the
	// controller.
	heartbeats = 10
)

// hubKey is the key of all clusters. There are no signatures.
var hubKey = trust.Key{1}

// clusterRef identifies a cluster; several clustersets may share a store.
type clusterRef struct{ clusterSetID, clusterID string }

// cluster is the stored state of one cluster.
type cluster struct {
	// owner is the registry that holds the ID of the cluster, nil if none runs.
	owner *Registry
	// record is the latest record of the cluster, a farewell if it has left, and member the rest
	// of its content.
	record belief.Record
	member registry.Member
	// isMissing is set while the store does not show the record.
	isMissing bool
	// units are the exports of the cluster.
	units map[belief.UnitName]belief.Unit
}

// NewHub creates an empty store, in which no cluster becomes stale.
func NewHub() *Hub {
	return &Hub{
		clusters:   map[clusterRef]*cluster{},
		keyrings:   map[mcs.Identity]*trust.Keyring{},
		running:    map[*Registry]struct{}{},
		faults:     faults{unreadable: map[string]bool{}},
		staleAfter: never, interval: standardInterval,
	}
}

// SetStaleAfter sets the time after its last heartbeat after which a cluster is stale. It must be
// called before the first registry is created.
func (h *Hub) SetStaleAfter(after time.Duration) {
	h.staleAfter, h.interval = after, after/heartbeats
}

// Registry creates a registry for a cluster. A second one with the same identity is the same
// cluster after a restart.
func (h *Hub) Registry(identity mcs.Identity) *Registry { return newRegistry(h, identity, false) }

// Reader creates a read-only registry, for a cluster that exports to another registry.
func (h *Hub) Reader(identity mcs.Identity) *Registry { return newRegistry(h, identity, true) }

// AreKnown reports whether the registries of n clusters of a clusterset run, and each of them is
// certain what the others export.
func (h *Hub) AreKnown(clusterSetID string, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	running := 0
	for r := range h.running {
		if r.identity.ClusterSetID != clusterSetID {
			continue
		}
		if running++; r.countCurrent() != n-1 {
			return false
		}
	}
	return running == n
}

// Exports returns all exports of a clusterset, sorted by key and cluster.
func (h *Hub) Exports(clusterSetID string) []mcs.Export {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []mcs.Export
	for ref, c := range h.clusters {
		if ref.clusterSetID == clusterSetID {
			for _, exp := range c.exports() {
				all = append(all, *exp)
			}
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

// attach begins the run of r.
func (h *Hub) attach(r *Registry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[r] = struct{}{}
}

// The caller of the functions below holds h.mu.

// detach ends the run of r. What its cluster has written stays.
func (h *Hub) detach(r *Registry) {
	delete(h.running, r)
	if c := h.clusters[r.ref()]; c != nil && c.owner == r {
		c.owner = nil
	}
	h.wakeAll()
}

// claim returns the cluster of r, a new one if it has left or was never there, and an error if
// another cluster holds its ID.
func (h *Hub) claim(r *Registry) (*cluster, error) {
	c := h.clusters[r.ref()]
	switch {
	case c == nil || c.record.Farewell:
		c = &cluster{units: map[belief.UnitName]belief.Unit{}, member: registry.Member{UID: r.identity.UID, Joined: time.Now(), Properties: mcs.Properties{}}}
		h.clusters[r.ref()] = c
	case c.owner != nil && c.owner.identity.UID != r.identity.UID:
		return nil, &registry.DuplicateIDError{ClusterID: r.identity.ClusterID, OtherUID: c.owner.identity.UID}
	}
	return c, nil
}

// put stores an export, or removes it if exp is nil, and reports whether anything changed.
func (h *Hub) put(c *cluster, key mcs.Key, exp *mcs.Export) (changed bool) {
	name := unitOf(key)
	unit, isStored := c.units[name]
	switch {
	case exp == nil && isStored:
		delete(c.units, name)
	case exp != nil && (!isStored || !unit.Content.Exports[key].Equal(*exp)):
		version := h.tick()
		c.units[name] = belief.Unit{
			Name: name, Author: belief.Author{Key: hubKey, UID: c.member.UID},
			Version: belief.Version{Generation: version, Digest: strconv.FormatInt(version, 10)},
			Content: belief.Content{Exports: map[mcs.Key]*mcs.Export{key: exp}},
		}
	default:
		return false
	}
	h.writes++
	return true
}

// sign writes the record of a cluster, whose owner r is then. It names the units if they, or m,
// have changed, and those of the record before otherwise: then it is a heartbeat.
func (h *Hub) sign(r *Registry, c *cluster, m registry.Member, isChanged bool) {
	now := h.tick()
	at, manifest := trust.Time{Generation: c.record.At.Generation, Heartbeat: now}, c.record.Manifest
	if isChanged {
		digests := make(map[belief.UnitName]string, len(c.units))
		for name, unit := range c.units {
			digests[name] = unit.Version.Digest
		}
		at.Generation, manifest = now, belief.ByUnit{Digests: digests}
		h.wakeAll()
	}
	m.LastSeen = time.Now()
	m.Heartbeat = m.LastSeen
	c.owner, c.member, c.isMissing = r, m, false
	c.record = belief.Record{Cluster: m.ClusterID, Place: belief.Own, Key: hubKey, UID: m.UID, At: at, Manifest: manifest, Properties: m.Properties}
}

// remove writes the farewell of the cluster of r, and removes all that it has exported.
func (h *Hub) remove(r *Registry) error {
	if h.err != nil {
		return fmt.Errorf("removing everything of cluster %s: %w", r.identity.ClusterID, h.err)
	}
	now := h.tick()
	h.clusters[r.ref()] = &cluster{record: belief.Record{
		Cluster: r.identity.ClusterID, Place: belief.Own, Key: hubKey, UID: r.identity.UID, At: trust.Time{Generation: now, Heartbeat: now}, Farewell: true,
	}}
	h.wakeAll()
	return nil
}

// shown returns the clusters of a clusterset whose records the store shows.
func (h *Hub) shown(clusterSetID string) map[string]*cluster {
	shown := map[string]*cluster{}
	for ref, c := range h.clusters {
		if ref.clusterSetID == clusterSetID && !c.isMissing {
			shown[ref.clusterID] = c
		}
	}
	return shown
}

// units returns units of a cluster, without a version if the store does not have them.
func (h *Hub) units(ref clusterRef, names []belief.UnitName) (units []belief.Unit) {
	c := cmp.Or(h.clusters[ref], &cluster{})
	for _, name := range names {
		unit := c.units[name]
		unit.Name = name
		units = append(units, unit)
	}
	return units
}

// tick returns the time of a write.
func (h *Hub) tick() int64 {
	h.clock++
	return h.clock
}

// wakeAll wakes every running registry.
func (h *Hub) wakeAll() {
	for r := range h.running {
		r.wake.Set()
	}
}

// exports returns the exports of the cluster.
func (c *cluster) exports() map[mcs.Key]*mcs.Export {
	exports := map[mcs.Key]*mcs.Export{}
	for _, unit := range c.units {
		maps.Copy(exports, unit.Content.Exports)
	}
	return exports
}

// unitOf returns the unit that has the export of a key: each export is a unit.
func unitOf(key mcs.Key) belief.UnitName { return belief.UnitName(key.String()) }
