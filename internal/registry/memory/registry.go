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
)

// Registry is one cluster's sight of a Hub.
type Registry struct {
	hub      *Hub
	identity mcs.Identity
	wake     chan struct{}
	readOnly bool

	// mu is taken after hub.mu where both are needed.
	mu sync.Mutex
	// want is what this process was asked for and has not forgotten; nil is a withdrawal that is not yet shown.
	want map[mcs.Key]*mcs.Export
	// asked are the keys of which Look could not tell everything: their readers want to know when it can.
	asked map[mcs.Key]struct{}
	view  view
	// liveness is nil where nobody is ever stale.
	liveness *registry.Liveness
}

var _ registry.Registry = (*Registry)(nil)

// view is the last whole read. A view is never changed, only replaced, and shares no map with the hub.
type view struct {
	synced bool
	// others are the exports of each other cluster; a nil map is a cluster that could not be read yet.
	others map[string]map[mcs.Key]mcs.Export
	own    map[mcs.Key]mcs.Export
	// problem is why what was asked for is not written.
	problem error
	members []registry.Member
}

// Publish implements registry.Registry.
func (r *Registry) Publish(_ context.Context, exp mcs.Export) error {
	if err := registry.CheckOwn(exp, r.identity.ClusterID); err != nil {
		return err
	}
	if r.readOnly {
		return registry.ErrReadOnly
	}
	exp = registry.Published(exp)
	r.ask(exp.Key, &exp)
	return nil
}

// Withdraw implements registry.Registry.
func (r *Registry) Withdraw(_ context.Context, key mcs.Key) error {
	if r.readOnly {
		return registry.ErrReadOnly
	}
	r.ask(key, nil)
	return nil
}

func (r *Registry) ask(key mcs.Key, exp *mcs.Export) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.want[key]; have != nil && exp != nil && have.Equal(*exp) {
		return
	}
	r.want[key] = exp
	r.poke()
}

// poke makes Run look again; it never blocks, because one pending look covers every change before it.
func (r *Registry) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Lookup implements registry.Registry.
func (r *Registry) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.view.synced {
		r.asked[key] = struct{}{}
		return registry.View{}, fmt.Errorf("looking up %s: %w", key, registry.ErrNotSynced)
	}
	result := registry.View{Local: r.publication(key)}
	for _, id := range slices.Sorted(maps.Keys(r.view.others)) {
		exports := r.view.others[id]
		exp, ok := exports[key]
		switch {
		case exports == nil:
			result.Unknown = append(result.Unknown, id)
			continue
		case !ok:
			continue
		}
		result.Exports = append(result.Exports, exp)
		switch {
		case r.liveness == nil:
		case r.liveness.Stale(id):
			result.Stale = append(result.Stale, id)
		case r.liveness.Unheard(id):
			result.LivenessUnknown = append(result.LivenessUnknown, id)
		}
	}
	if len(result.Unknown) > 0 {
		r.asked[key] = struct{}{}
	}
	return result, nil
}

// publication compares what was asked for with what the hub showed. The caller holds r.mu.
func (r *Registry) publication(key mcs.Key) registry.PublishStatus {
	shown, isShown := r.view.own[key]
	want, asked := r.want[key]
	switch {
	case !asked && isShown, want != nil && isShown && want.Equal(shown):
		return registry.PublishStatus{State: registry.Exported}
	case want == nil && !isShown:
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
		members[i].Stale = r.liveness != nil && r.liveness.Stale(members[i].ClusterID)
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

func (h *Hub) attach(r *Registry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[r] = struct{}{}
}

// detach ends r's run. What the cluster has stays, unless it leaves.
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

// removeAbandoned removes what an earlier life of r's cluster left, unless somebody lives under its identity.
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
	return nil
}

func (r *Registry) ref() clusterRef {
	return clusterRef{clusterSetID: r.identity.ClusterSetID, clusterID: r.identity.ClusterID}
}

// exchange writes what was asked for, reads everything and returns the keys whose View may have changed.
func (r *Registry) exchange() []mcs.Key {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.view
	pending := slices.Collect(maps.Keys(r.want))
	if h.err != nil {
		r.view.problem = h.err
		if r.liveness != nil {
			r.liveness.Unanswered()
		}
		return pending
	}
	problem := h.write(r)
	r.view = h.read(r, before)
	r.view.problem = problem
	for key, exp := range r.want {
		if _, shown := r.view.own[key]; exp == nil && !shown {
			delete(r.want, key)
		}
	}
	return r.changes(before, pending, h.alive(r, before))
}

// alive lets r judge who lives, and returns those of whom it thinks something else than before. A cluster for which a
// registry runs shows a new sign of life at every look. The caller holds h.mu and r.mu.
func (h *Hub) alive(r *Registry, before view) (changed []string) {
	if r.liveness == nil {
		return nil
	}
	signs := map[string]bool{}
	for ref, c := range h.clusters {
		if ref.clusterSetID != r.identity.ClusterSetID {
			continue
		}
		signs[ref.clusterID] = before.synced && c.owner != nil && !h.muted
	}
	for id := range before.others {
		if _, there := r.view.others[id]; !there {
			r.liveness.Forget(id)
		}
	}
	return r.liveness.Answered(time.Now(), signs)
}

// changes are the keys whose View differs from before, with those of clusters that live or not, as they did not before, and of which more
// is known than a Look could tell. The caller holds r.mu.
func (r *Registry) changes(before view, pending []mcs.Key, alive []string) []mcs.Key {
	changed := map[mcs.Key]struct{}{}
	for _, id := range alive {
		diff(r.view.others[id], nil, changed)
	}
	for id := range r.view.others {
		diff(before.others[id], r.view.others[id], changed)
	}
	for id := range before.others {
		diff(before.others[id], r.view.others[id], changed)
	}
	diff(before.own, r.view.own, changed)
	if fmt.Sprint(r.view.problem) != fmt.Sprint(before.problem) {
		for _, key := range pending {
			changed[key] = struct{}{}
		}
	}
	maps.Copy(changed, r.asked)
	clear(r.asked)
	return slices.Collect(maps.Keys(changed))
}

func diff(a, b map[mcs.Key]mcs.Export, changed map[mcs.Key]struct{}) {
	for key, exp := range b {
		if old, ok := a[key]; !ok || !old.Equal(exp) {
			changed[key] = struct{}{}
		}
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			changed[key] = struct{}{}
		}
	}
}

// write claims the cluster's place and stores what was asked for. The caller holds h.mu and r.mu.
func (h *Hub) write(r *Registry) error {
	if r.readOnly {
		return nil
	}
	c := h.clusters[r.ref()]
	switch {
	case c == nil:
		c = &cluster{joined: time.Now(), exports: map[mcs.Key]mcs.Export{}}
		h.clusters[r.ref()] = c
	case c.owner != nil && c.uid != r.identity.UID:
		return &registry.DuplicateIDError{ClusterID: r.identity.ClusterID, OtherUID: c.uid}
	}
	changed := c.owner != r
	c.owner, c.uid = r, r.identity.UID
	for key, exp := range r.want {
		old, stored := c.exports[key]
		switch {
		case exp != nil && (!stored || !old.Equal(*exp)):
			c.exports[key] = *exp
			h.writes++
			changed = true
		case exp == nil && stored:
			delete(c.exports, key)
			h.writes++
			changed = true
		}
	}
	if changed {
		h.wakeAll()
	}
	return nil
}

// read makes the view of r, keeping from before what cannot be read now. The caller holds h.mu.
func (h *Hub) read(r *Registry, before view) view {
	now := view{synced: true, others: map[string]map[mcs.Key]mcs.Export{}, own: map[mcs.Key]mcs.Export{}}
	for ref, c := range h.clusters {
		if ref.clusterSetID != r.identity.ClusterSetID {
			continue
		}
		switch {
		case ref.clusterID != r.identity.ClusterID && h.unreadable[ref.clusterID]:
			now.others[ref.clusterID] = before.others[ref.clusterID]
		case ref.clusterID != r.identity.ClusterID:
			now.others[ref.clusterID] = maps.Clone(c.exports)
		case h.held:
			now.own = before.own
		case c.uid == r.identity.UID && !r.readOnly:
			now.own = maps.Clone(c.exports)
		}
		seen := c.lastSeen(ref.clusterID, before.members)
		now.members = append(now.members, registry.Member{ClusterID: ref.clusterID, UID: c.uid, LastSeen: seen, Joined: c.joined, Beat: seen})
	}
	slices.SortFunc(now.members, func(a, b registry.Member) int { return strings.Compare(a.ClusterID, b.ClusterID) })
	return now
}

// lastSeen is now for a cluster that runs, for the others what it was before.
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
