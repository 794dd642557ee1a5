package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// Registry is the registry of one cluster on a Hub.
type Registry struct {
	engine.Publisher
	hub      *Hub
	identity mcs.Identity
	wake     engine.Signal
	readOnly bool
	// hasOwned is true once this process has been the owner of its cluster. It is guarded by
	// hub.mu.
	hasOwned bool

	// mu is taken after hub.mu where both are needed.
	mu sync.Mutex
	// desired are the exports that this process publishes; nil is a withdrawal that the hub has not
	// shown yet.
	desired map[mcs.Key]*mcs.Export
	lookups *engine.PendingLookups
	view    view
	// properties are those of this cluster, nil while they are not known.
	properties mcs.Properties
	// imports is the report of this cluster, "" while it is not known.
	imports mcs.ImportReport
	// liveness is nil if no cluster becomes stale.
	liveness *registry.Liveness
}

var _ registry.Registry = (*Registry)(nil)

// view is the last complete read. A view is never changed, only replaced, and shares no map with
// the hub.
type view struct {
	synced bool
	// others are the exports of each other cluster; the map is nil for a cluster that could not be
	// read yet. ended are the clusters that left with a farewell or were forgotten.
	others map[string]map[mcs.Key]mcs.Export
	ended  map[string]bool
	// lost are the exports that could not be read. unsettled are the clusters that may have more
	// exports.
	lost      map[string]map[mcs.Key]struct{}
	unsettled map[string]bool
	own       map[mcs.Key]mcs.Export
	// problem is the reason why the desired exports are not written, or nil.
	problem error
	members []registry.Member
}

// propertiesOf returns the properties of a cluster.
func (v view) propertiesOf(id string) mcs.Properties {
	for _, m := range v.members {
		if m.ClusterID == id {
			return m.Properties
		}
	}
	return nil
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

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.view.synced {
		return registry.View{}, r.lookups.NotSynced(key, nil)
	}
	result := r.lookups.Lookup(key, imported, r.viewOf, engine.ViewFunc(r.viewOf).Status)
	result.Local = r.publishStatus(key)
	return result, nil
}

// SetProperties implements registry.Registry.
func (r *Registry) SetProperties(properties mcs.Properties) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.properties, _ = properties.Publishable()
	r.wake.Set()
}

// SetImports implements registry.Registry. There are no heartbeats to write it with, so it is
// written at once.
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
	r.hub.forgotten[[2]clusterRef{r.ref(), {r.identity.ClusterSetID, clusterID}}] = struct{}{}
	r.wake.Set()
}

// viewOf returns the exports of the other clusters under key. The caller holds r.mu.
func (r *Registry) viewOf(key mcs.Key, imported []string) registry.View {
	var result registry.View
	for id, exports := range r.view.others {
		exp, ok := exports[key]
		_, lost := r.view.lost[id][key]
		switch {
		case ok:
			c := registry.ClusterView{State: registry.Exports, Export: new(exp), Properties: r.view.propertiesOf(id)}
			if r.liveness != nil {
				c.Liveness = r.liveness.Of(id)
			}
			result.Set(id, c)
		case exports == nil, lost, r.view.unsettled[id] && slices.Contains(imported, id):
			result.Set(id, registry.ClusterView{State: registry.Unknown, Properties: r.view.propertiesOf(id)})
		}
	}
	result.SetUnseen(imported, func(id string) bool {
		_, seen := r.view.others[id]
		return seen || r.view.ended[id] || id == r.identity.ClusterID
	})
	return result
}

// publishStatus compares the desired export with the one that the hub has shown. The caller holds
// r.mu.
func (r *Registry) publishStatus(key mcs.Key) registry.PublishStatus {
	shown, isShown := r.view.own[key]
	desired, requested := r.desired[key]
	switch {
	case !requested && isShown, desired != nil && isShown && desired.Equal(shown):
		return registry.PublishStatus{State: registry.Exported}
	case desired == nil && !isShown:
		return registry.PublishStatus{State: registry.Absent}
	}
	return registry.PublishStatus{State: registry.Pending, Err: r.view.problem}
}

// Members implements registry.Registry.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.view.synced {
		return nil, fmt.Errorf("listing members: %w", registry.ErrNotSynced)
	}
	members := slices.Clone(r.view.members)
	for i := range members {
		members[i].Stale = r.liveness != nil && r.liveness.IsStale(members[i].ClusterID)
	}
	return members, nil
}

// Run implements registry.Registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		if r.readOnly {
			return nil
		}
		return r.hub.removeAbandoned(r)
	}
	r.hub.attach(r)
	var tick <-chan time.Time
	if r.hub.staleAfter > 0 {
		ticker := time.NewTicker(r.hub.staleAfter / 10)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		for _, key := range r.exchange() {
			notify(key)
		}
		select {
		case <-r.wake:
		case <-tick:
		case <-ctx.Done():
			return r.hub.detach(r, errors.Is(context.Cause(ctx), registry.ErrLeave))
		}
	}
}

// attach begins r's run.
func (h *Hub) attach(r *Registry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[r] = struct{}{}
}

// detach ends r's run. The cluster's exports stay, unless it leaves.
func (h *Hub) detach(r *Registry, leave bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, r)
	defer h.wakeAll()
	c := h.clusters[r.ref()]
	if c == nil || c.owner != r {
		return nil
	}
	c.owner = nil
	if !leave {
		return nil
	}
	return h.remove(r)
}

// removeAbandoned removes the records of a previous process of r's cluster, unless another registry
// runs under its identity.
func (h *Hub) removeAbandoned(r *Registry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.wakeAll()
	c := h.clusters[r.ref()]
	if c == nil || c.owner != nil || c.uid != r.identity.UID {
		return nil
	}
	return h.remove(r)
}

// remove removes r's cluster. The caller holds h.mu.
func (h *Hub) remove(r *Registry) error {
	if h.err != nil {
		return fmt.Errorf("removing everything of cluster %s: %w", r.identity.ClusterID, h.err)
	}
	delete(h.clusters, r.ref())
	h.left[r.ref()] = struct{}{}
	return nil
}

func (r *Registry) ref() clusterRef {
	return clusterRef{clusterSetID: r.identity.ClusterSetID, clusterID: r.identity.ClusterID}
}

// exchange writes the desired exports, reads everything and returns the keys with a View that may
// have changed.
func (r *Registry) exchange() []mcs.Key {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.view
	pending := slices.Collect(maps.Keys(r.desired))
	if h.err != nil {
		r.view.problem = h.err
		if r.liveness != nil {
			r.liveness.ObserveFailure()
		}
		return pending
	}
	problem := h.write(r)
	r.view = h.read(r, before)
	r.view.problem = problem
	for key, exp := range r.desired {
		if _, shown := r.view.own[key]; exp == nil && !shown {
			delete(r.desired, key)
		}
	}
	return r.changes(before, pending, h.updateLiveness(r, before))
}

// updateLiveness passes the heartbeats to r's liveness, and returns the clusters that became stale
// or live. A cluster with a running registry has a new heartbeat at every read. The caller holds
// h.mu and r.mu.
func (h *Hub) updateLiveness(r *Registry, before view) (changed []string) {
	if r.liveness == nil {
		return nil
	}
	heartbeats := map[string]bool{}
	for ref, c := range h.clusters {
		if ref.clusterSetID != r.identity.ClusterSetID {
			continue
		}
		heartbeats[ref.clusterID] = before.synced && c.owner != nil && !c.isMissing && !h.dropHeartbeats
	}
	for id := range r.view.others {
		if _, stored := heartbeats[id]; !stored {
			heartbeats[id] = false
		}
	}
	for id := range before.others {
		if _, there := r.view.others[id]; !there {
			r.liveness.Remove(id)
		}
	}
	return r.liveness.ObserveHeartbeats(time.Now(), heartbeats)
}

// changes returns the keys with a View that differs from before, those of clusters that became
// stale or live, and resolved lookups. The caller holds r.mu.
func (r *Registry) changes(before view, pending []mcs.Key, liveness []string) []mcs.Key {
	changed := engine.Keys{}
	for _, id := range liveness {
		diff(r.view.others[id], nil, changed)
	}
	for id := range r.view.others {
		diff(before.others[id], r.view.others[id], changed)
		if !maps.Equal(before.propertiesOf(id), r.view.propertiesOf(id)) {
			diff(r.view.others[id], nil, changed)
		}
	}
	for id := range before.others {
		diff(before.others[id], r.view.others[id], changed)
	}
	diff(before.own, r.view.own, changed)
	if fmt.Sprint(r.view.problem) != fmt.Sprint(before.problem) {
		for _, key := range pending {
			changed.Add(key)
		}
	}
	if r.view.synced {
		r.lookups.AddChanged(changed, engine.ViewFunc(r.viewOf).Status)
	}
	return slices.Collect(maps.Keys(changed))
}

// diff adds the keys that differ between a and b.
func diff(a, b map[mcs.Key]mcs.Export, changed engine.Keys) {
	for key, exp := range b {
		if old, ok := a[key]; !ok || !old.Equal(exp) {
			changed.Add(key)
		}
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			changed.Add(key)
		}
	}
}

// write claims the cluster ID and stores the desired exports. The caller holds h.mu and r.mu.
func (h *Hub) write(r *Registry) error {
	if r.readOnly {
		return nil
	}
	c := h.clusters[r.ref()]
	switch {
	case c == nil:
		c = &cluster{joined: time.Now(), exports: map[mcs.Key]mcs.Export{}, lost: map[mcs.Key]struct{}{}, properties: mcs.Properties{}}
		h.clusters[r.ref()] = c
		delete(h.left, r.ref())
		if !r.hasOwned {
			c.settleAt = time.Now().Add(h.staleAfter / 4)
		}
	case c.owner != nil && c.uid != r.identity.UID:
		return &registry.DuplicateIDError{ClusterID: r.identity.ClusterID, OtherUID: c.uid}
	}
	changed := c.owner != r || c.isMissing
	c.isMissing, r.hasOwned = false, true
	c.owner, c.uid = r, r.identity.UID
	for key, exp := range r.desired {
		changed = h.store(c, key, exp) || changed
	}
	changed = c.setProperties(r.properties) || changed
	changed = c.setImports(r.imports) || changed
	if changed {
		h.wakeAll()
	}
	return nil
}

// setProperties sets the properties of the cluster unless they are nil, and reports whether they
// are others than before.
func (c *cluster) setProperties(properties mcs.Properties) (changed bool) {
	if properties == nil || maps.Equal(properties, c.properties) {
		return false
	}
	c.properties = properties
	return true
}

// setImports sets the report of the cluster unless it is "", and reports whether it is another one
// than before.
func (c *cluster) setImports(report mcs.ImportReport) (changed bool) {
	if report == "" || report == c.imports {
		return false
	}
	c.imports = report
	return true
}

// store stores a desired export, or removes it if exp is nil, and reports whether anything changed.
// The caller holds h.mu.
func (h *Hub) store(c *cluster, key mcs.Key, exp *mcs.Export) (changed bool) {
	_, changed = c.lost[key]
	delete(c.lost, key)
	old, stored := c.exports[key]
	switch {
	case exp != nil && (!stored || !old.Equal(*exp)):
		c.exports[key] = *exp
	case exp == nil && stored:
		delete(c.exports, key)
	default:
		return changed
	}
	h.writes++
	return true
}

// read returns the view of r, with the exports from before for clusters that cannot be read or are
// missing without a farewell. The caller holds h.mu.
func (h *Hub) read(r *Registry, before view) view {
	now := view{
		synced: true, others: map[string]map[mcs.Key]mcs.Export{}, own: map[mcs.Key]mcs.Export{},
		ended: h.ended(r), lost: map[string]map[mcs.Key]struct{}{}, unsettled: map[string]bool{},
	}
	maps.Copy(now.others, before.others)
	maps.DeleteFunc(now.others, func(id string, _ map[mcs.Key]mcs.Export) bool { return now.ended[id] })
	for ref, c := range h.clusters {
		if ref.clusterSetID != r.identity.ClusterSetID || now.ended[ref.clusterID] || c.isMissing {
			continue
		}
		switch {
		case ref.clusterID != r.identity.ClusterID:
			h.readOther(ref.clusterID, c, before, &now)
		case h.held:
			now.own = before.own
		case c.uid == r.identity.UID && !r.readOnly:
			now.own = maps.Clone(c.exports)
		}
		seen := c.lastSeen(ref.clusterID, before.members)
		now.members = append(now.members, registry.Member{ClusterID: ref.clusterID, UID: c.uid, LastSeen: seen, Joined: c.joined, Heartbeat: seen, Properties: c.properties, Imports: c.imports})
	}
	for _, m := range before.members {
		_, kept := now.others[m.ClusterID]
		if c := h.clusters[clusterRef{r.identity.ClusterSetID, m.ClusterID}]; kept && c.isAbsent() {
			now.members = append(now.members, m)
		}
	}
	slices.SortFunc(now.members, func(a, b registry.Member) int { return strings.Compare(a.ClusterID, b.ClusterID) })
	return now
}

// readOther reads the exports of another cluster into now. The caller holds h.mu.
func (h *Hub) readOther(id string, c *cluster, before view, now *view) {
	if h.unreadable[id] {
		now.others[id] = before.others[id]
		return
	}
	now.others[id], now.lost[id], now.unsettled[id] = c.read(before.others[id]), maps.Clone(c.lost), !c.isSettled()
}

// ended returns the clusters that left with a farewell, or that r has forgotten and that have had
// no heartbeat since. The caller holds h.mu.
func (h *Hub) ended(r *Registry) map[string]bool {
	ended := map[string]bool{}
	for ref := range h.left {
		if ref.clusterSetID == r.identity.ClusterSetID {
			ended[ref.clusterID] = true
		}
	}
	for refs := range h.forgotten {
		if refs[0] != r.ref() {
			continue
		}
		if c := h.clusters[refs[1]]; c != nil && c.owner != nil {
			delete(h.forgotten, refs)
			continue
		}
		ended[refs[1].clusterID] = true
	}
	return ended
}

// read returns the exports of the cluster, with those from before that another user removed.
func (c *cluster) read(before map[mcs.Key]mcs.Export) map[mcs.Key]mcs.Export {
	exports := maps.Clone(c.exports)
	for key, exp := range before {
		if _, lost := c.lost[key]; lost {
			exports[key] = exp
		} else if _, stored := exports[key]; !stored && !c.isSettled() {
			exports[key] = exp
		}
	}
	return exports
}

// lastSeen returns now for a cluster that runs, else the time from before.
func (c *cluster) lastSeen(id string, before []registry.Member) time.Time {
	if c.owner != nil {
		return time.Now()
	}
	for _, m := range before {
		if m.ClusterID == id {
			return m.LastSeen
		}
	}
	return time.Now()
}
