package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// registryName is the name of the hub in the keyrings.
const registryName = "hub"

// Registry is the registry of one cluster on a Hub.
type Registry struct {
	engine.Publisher
	hub      *Hub
	identity mcs.Identity
	readOnly bool
	wake     engine.Signal

	// mu is taken after hub.mu where both are needed.
	mu sync.Mutex
	// desired are the exports that this process publishes; nil is a withdrawal that the hub has not
	// shown yet.
	desired map[mcs.Key]*mcs.Export
	// properties are those of this cluster, nil while they are not known.
	properties mcs.Properties
	// imports is the report of this cluster, "" while it is not known.
	imports mcs.ImportReport

	// isSynced is set once the hub was read. The fields below are the result.
	isSynced bool
	// belief is what is known of the other clusters.
	belief *belief.State
	// members has the content of the latest record of each cluster.
	members map[string]registry.Member
	// own are the exports of this cluster that the hub has shown.
	own map[mcs.Key]*mcs.Export
	// problem is the reason why the desired exports are not written, or nil.
	problem error
	lookups *engine.PendingLookups
	// changed are the keys that have to be notified.
	changed engine.Keys
}

var _ registry.Registry = (*Registry)(nil)

func newRegistry(h *Hub, identity mcs.Identity, readOnly bool) *Registry {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keyrings[identity] == nil {
		h.keyrings[identity] = trust.New(trust.Config{ClusterSetID: identity.ClusterSetID, StaleAfter: h.staleAfter}, nil)
	}
	cfg := belief.Config{
		Own: identity.ClusterID, UnitOf: unitOf, Poll: h.interval, Eager: h.interval, StaleAfter: h.staleAfter, Keyring: h.keyrings[identity], Registry: registryName,
	}
	r := &Registry{
		hub:      h,
		identity: identity,
		readOnly: readOnly,
		wake:     engine.NewSignal(),
		desired:  map[mcs.Key]*mcs.Export{},
		belief:   belief.New(cfg),
		members:  map[string]registry.Member{},
		lookups:  engine.NewPendingLookups(engine.MaxPendingLookups),
		changed:  engine.Keys{},
	}
	r.Publisher = engine.NewPublisher(identity.ClusterID, readOnly, r.setDesired)
	return r
}

func (r *Registry) ref() clusterRef {
	return clusterRef{clusterSetID: r.identity.ClusterSetID, clusterID: r.identity.ClusterID}
}

// setDesired sets the desired export of key, nil to withdraw it.
func (r *Registry) setDesired(key mcs.Key, exp *mcs.Export) error {
	if exp != nil {
		published := registry.Published(*exp)
		exp = &published
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.desired[key]; before != nil && exp != nil && before.Equal(*exp) {
		return nil
	}
	r.desired[key] = exp
	r.wake.Set()
	return nil
}

// SetProperties implements registry.Registry.
func (r *Registry) SetProperties(properties mcs.Properties) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.properties, _ = properties.Publishable()
	r.wake.Set()
}

// SetImports implements registry.Registry. The report is written at once: no write of it costs
// anything.
func (r *Registry) SetImports(report mcs.ImportReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.imports != report {
		r.imports = report
		r.wake.Set()
	}
}

// Forget implements registry.Registry.
func (r *Registry) Forget(clusterID string) {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(belief.Forget{Cluster: clusterID})
	r.wake.Set()
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isSynced {
		return registry.View{}, r.lookups.NotSynced(key, nil)
	}
	view := r.lookups.Lookup(key, imported, r.viewOf, r.belief.StatusOf)
	view.Local = r.publishStatus(key)
	return view, nil
}

// publishStatus compares the desired export with the one that the hub has shown. The caller holds
// r.mu.
func (r *Registry) publishStatus(key mcs.Key) registry.PublishStatus {
	want, isAsked := r.desired[key]
	shown := desired.ShownExport{Presence: desired.Absent}
	if exp := r.own[key]; exp != nil {
		shown = desired.ShownExport{Presence: desired.Present, Export: exp}
	}
	status := registry.PublishStatus{State: desired.StatusOf(want, isAsked, shown)}
	if status.State == registry.Pending {
		status.Err = r.problem
	}
	return status
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isSynced {
		return nil, fmt.Errorf("listing members: %w", registry.ErrNotSynced)
	}
	var members []registry.Member
	for id, m := range r.members {
		record := r.belief.RecordOf(id)
		if id == r.identity.ClusterID || record != nil && !record.Farewell {
			m.Stale = r.belief.LivenessOf(id) == registry.Stale
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b registry.Member) int { return strings.Compare(a.ClusterID, b.ClusterID) })
	return members, nil
}

// countCurrent returns the number of other clusters whose exports are certain.
func (r *Registry) countCurrent() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.members {
		if r.belief.StateOf(id) == belief.Current {
			n++
		}
	}
	return n
}

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if !isLeaving(ctx) {
		r.run(ctx, notify)
	}
	return r.end(isLeaving(ctx))
}

// isLeaving reports whether ctx has ended because the cluster leaves.
func isLeaving(ctx context.Context) bool { return errors.Is(context.Cause(ctx), registry.ErrLeave) }

// run exchanges records until ctx ends.
func (r *Registry) run(ctx context.Context, notify func(mcs.Key)) {
	r.hub.attach(r)
	ticker := time.NewTicker(r.hub.interval)
	defer ticker.Stop()
	for {
		for _, key := range r.exchange() {
			notify(key)
		}
		select {
		case <-r.wake:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// end ends the run. What this cluster has written stays, unless it leaves and no other registry has
// its ID.
func (r *Registry) end(isLeaving bool) error {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.hub.detach(r)
	c := r.hub.clusters[r.ref()]
	if !isLeaving || r.readOnly || c == nil || c.owner != nil || c.member.UID != r.identity.UID {
		return nil
	}
	return r.hub.remove(r)
}
