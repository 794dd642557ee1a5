package etcd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// faultStaleAfter is the time after which the importers take a silent cluster for stale: ten
// heartbeats. Another key of such a cluster counts after a minute only, so that forged records
// change nothing.
const faultStaleAfter = 2 * time.Second

// importer is a controller that imports. Its imports and its pins stay when its process restarts.
// Every view is checked.
type importer struct {
	world    *faultSimulation
	identity mcs.Identity
	pins     importerPins
	stop     func(isKilled bool)

	mu    sync.Mutex
	reg   *Registry
	began time.Time
	// imports are the clusters that the ServiceImport of each key names.
	imports [allKeys]map[string]bool
	// seen is the last wish of each cluster and key that was seen, by any process, and stale are
	// the clusters that were stale then.
	seen  map[string]*[allKeys]sight
	stale map[string]bool
	// behind are the clusters that no process has known since one was killed: its pins may lack the
	// latest records. older are the exports of those of them that were stale then: what is seen of
	// them may be an earlier wish until a later one is seen.
	behind map[string]bool
	older  map[string]*[allKeys]bool
}

// sight says which wish was seen last, and when.
type sight struct {
	index int
	at    time.Time
}

// importerPins are the pins that the processes of an importer save.
type importerPins struct {
	mu    sync.Mutex
	pins  registrytest.Pins
	ended time.Time
}

// LoadEnd implements trust.Store.
func (p *importerPins) LoadEnd(context.Context) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended, nil
}

// processPins are the pins that a process saves until it is killed.
type processPins struct {
	*importerPins
	isKilled atomic.Bool
}

// LoadPins implements trust.Store.
func (p *processPins) LoadPins(ctx context.Context) (map[string]trust.Pin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pins.LoadPins(ctx)
}

// SavePins implements trust.Store.
func (p *processPins) SavePins(ctx context.Context, pins map[string]trust.Pin) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isKilled.Load() {
		return context.Canceled
	}
	return p.pins.SavePins(ctx, pins)
}

// SaveEnd implements trust.Store.
func (p *processPins) SaveEnd(_ context.Context, ended time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isKilled.Load() {
		return context.Canceled
	}
	p.ended = ended
	return nil
}

// hasPinned reports whether the key of a cluster is saved.
func (o *importer) hasPinned(e *exporter) bool {
	o.pins.mu.Lock()
	defer o.pins.mu.Unlock()
	pin, ok := o.pins.pins[e.identity.ClusterID]
	return ok && !pin.Left && !pin.Forgotten && pin.Key == registrytest.Signer(o.world.t, e.signer).Key()
}

// newImporter returns an importer whose process has started.
func (w *faultSimulation) newImporter(identity mcs.Identity) *importer {
	o := &importer{
		world: w, identity: identity, pins: importerPins{pins: registrytest.Pins{}},
		seen: map[string]*[allKeys]sight{}, stale: map[string]bool{}, behind: map[string]bool{}, older: map[string]*[allKeys]bool{},
	}
	for _, e := range w.all {
		o.seen[e.identity.ClusterID], o.older[e.identity.ClusterID] = &[allKeys]sight{}, &[allKeys]bool{}
	}
	for i := range o.imports {
		o.imports[i] = map[string]bool{}
	}
	o.start()
	return o
}

func (o *importer) start() {
	w, pins := o.world, &processPins{importerPins: &o.pins}
	cfg := fast(o.identity)
	cfg.StaleAfter = faultStaleAfter
	var err error
	cfg.Keyring, err = trust.Load(w.t.Context(), trust.Config{ClusterSetID: o.identity.ClusterSetID, StaleAfter: time.Minute, Store: pins, Logger: logr.Discard()})
	if err != nil {
		w.t.Fatal(err)
	}
	reg := w.registry(w.t, cfg)
	o.mu.Lock()
	o.reg, o.began = reg, time.Now()
	o.mu.Unlock()
	stop := w.startProcess(reg, func(key mcs.Key) {
		var i int
		if _, err := fmt.Sscanf(key.Name, "web-%d", &i); err != nil {
			w.fail("a notification of %v", key)
		}
		o.check(i)
	})
	o.stop = func(isKilled bool) {
		pins.isKilled.Store(isKilled)
		stop(nil)
	}
}

// restart ends the process and starts the next one. One that is killed does not save the latest
// pins.
func (o *importer) restart(isKilled bool) {
	o.world.history.Logf("%s restarts, killed: %t", o.identity.ClusterID, isKilled)
	o.stop(isKilled)
	o.mu.Lock()
	for _, e := range o.world.all {
		o.behind[e.identity.ClusterID] = o.behind[e.identity.ClusterID] || isKilled
		o.forgetUnsaved(e)
	}
	o.mu.Unlock()
	o.start()
}

// forgetUnsaved allows earlier versions of a cluster whose key is not saved: the next process takes
// the first record that it reads for that of a new cluster, and etcd may have been set back.
// docs/reliability-tests.md has that as a limit. The caller holds o.mu.
func (o *importer) forgetUnsaved(e *exporter) {
	if o.hasPinned(e) {
		return
	}
	for i := range o.older[e.identity.ClusterID] {
		o.older[e.identity.ClusterID][i] = true
	}
}

// restartWithoutImports restarts the process as if nothing was imported.
func (o *importer) restartWithoutImports() {
	o.stop(false)
	for i := range o.imports {
		clear(o.imports[i])
	}
	o.start()
}

// view returns the view of a key, as the import reconciler looks it up; ok is false before the
// first read. The caller holds o.mu.
func (o *importer) view(i int) (view registry.View, ok bool) {
	var named []string
	if i < allKeys {
		named = slices.Sorted(maps.Keys(o.imports[i]))
	}
	view, err := o.reg.Lookup(o.world.t.Context(), webKey(i), named...)
	return view, err == nil
}

// versionIn returns the version of a cluster's export in a view, 0 for none. isOpen reports whether
// the view leaves open which one it is.
func versionIn(view registry.View, id string) (n int, isOpen bool) {
	for _, exp := range view.Exports() {
		if exp.Cluster == id {
			return int(exp.Ports[0].Port) - 1, false
		}
	}
	return 0, view.Clusters[id].State == registry.Unknown || view.Clusters[id].State == registry.Unseen || view.Clusters[id].State == registry.Ignored
}

// check checks one key.
func (o *importer) check(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	view, ok := o.view(i)
	if !ok {
		return
	}
	if i == allKeys && len(view.Exports()) > 0 {
		o.world.fail("the export of the duplicate cluster is visible")
	}
	o.checkStale(view)
	if i >= allKeys {
		return
	}
	for _, e := range o.world.all {
		o.checkRename(e, i, view)
	}
	for _, e := range o.world.all {
		o.checkExport(e, i, view)
	}
}

// checkExport checks what is seen of an export: a wish of its cluster's user that is not earlier
// than the one that was seen before. So what was seen ends only if it was withdrawn, or the process
// was restarted and says that it does not know.
func (o *importer) checkExport(e *exporter, i int, view registry.View) {
	id := e.identity.ClusterID
	last, named := &o.seen[id][i], o.imports[i]
	n, isOpen := versionIn(view, id)
	wasSeen := last.at.After(o.began)
	switch {
	case isOpen && wasSeen && e.find(i, 0, last.index) < 0:
		o.world.fail("%s has seen %s's export %d and does not know of it any more", o.identity.ClusterID, id, i)
		return
	// it may not have read the export yet: nothing that was imported ends
	case isOpen, n == 0 && !wasSeen && !named[id]:
		return
	}
	index := e.find(i, n, e.floor(i, last.index))
	if o.takesForEnded(id) {
		for key := range o.older[id] {
			o.older[id][key] = true
		}
	}
	if index < 0 && o.older[id][i] && e.find(i, n, 0) >= 0 {
		return
	}
	if index < 0 {
		o.world.fail("%s sees version %d of %s's export %d, after wish %d of %s", o.identity.ClusterID, n, id, i, last.index, e.describe(i))
		return
	}
	if index != last.index || !wasSeen {
		o.world.history.Logf("%s sees version %d of %s's export %d, wish %d", o.identity.ClusterID, n, id, i, index)
		*last = sight{index, time.Now()}
	}
	if isStale, _ := o.takesForStale(id); !isStale {
		delete(o.behind, id)
		o.older[id][i] = false
	}
	if delete(named, id); n > 0 {
		named[id] = true
	}
}

// takesForEnded reports whether a cluster counts as an earlier record says because the importer was
// killed before it had saved the later ones, and the cluster has written none for so long that it
// is stale. docs/reliability-tests.md has that as a limit.
func (o *importer) takesForEnded(id string) bool {
	isStale, _ := o.takesForStale(id)
	return o.behind[id] && isStale && !o.world.beats.lastOf(id).After(o.world.oldAt())
}

// checkRename checks that the import of a service stays while its cluster gets another ID: the
// export under the new one is there before the cluster leaves.
func (o *importer) checkRename(e *exporter, i int, view registry.View) {
	if e.alias == nil || !o.imports[i][e.alias.identity.ClusterID] || !e.isConfirmed(i) {
		return
	}
	for _, id := range []string{e.identity.ClusterID, e.alias.identity.ClusterID} {
		if n, isOpen := versionIn(view, id); n > 0 || isOpen || o.takesForEnded(id) {
			return
		}
	}
	if isOld := o.world.old.Load() > 0; isOld && o.began.After(o.world.oldAt()) && o.hasNoRecord(e.identity.ClusterID) {
		return // docs/reliability-tests.md has that as a limit
	}
	o.world.fail("%s imports export %d neither of %s nor of %s", o.identity.ClusterID, i, e.alias.identity.ClusterID, e.identity.ClusterID)
}

// hasNoRecord reports whether the importer's process has read no record of a cluster that counts.
func (o *importer) hasNoRecord(id string) bool {
	members, _ := o.reg.Members(o.world.t.Context())
	return !slices.ContainsFunc(members, func(m registry.Member) bool { return m.ClusterID == id && !m.NoRecord })
}

// checkStale checks that no cluster becomes stale that has heartbeats.
func (o *importer) checkStale(view registry.View) {
	for _, exp := range view.Exports() {
		isStale := view.Clusters[exp.Cluster].Liveness == registry.Stale
		if isStale && !o.stale[exp.Cluster] && o.world.beats.isSteady(exp.Cluster) {
			o.world.fail("%s takes %s for stale, which has heartbeats", o.identity.ClusterID, exp.Cluster)
		}
		o.stale[exp.Cluster] = isStale
	}
}

// takesForStale reports whether the importer takes a cluster for stale. isMember is false if it is
// no member.
func (o *importer) takesForStale(id string) (isStale, isMember bool) {
	members, _ := o.reg.Members(o.world.t.Context())
	for _, m := range members {
		if m.ClusterID == id {
			return m.Stale, true
		}
	}
	return false, false
}

// lacks returns what the importer does not see as it should be, "" for nothing.
func (o *importer) lacks(e *exporter, i int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	view, ok := o.view(i)
	n, isOpen := versionIn(view, e.identity.ClusterID)
	switch want := e.wanted(i); {
	case !ok, isOpen, n != want:
		return fmt.Sprintf("%s sees version %d of %s's export %d (synced: %t, open: %t), want %d", o.identity.ClusterID, n, e.identity.ClusterID, i, ok, isOpen, want)
	case view.Clusters[e.identity.ClusterID].Liveness == registry.Stale:
		return fmt.Sprintf("%s takes %s for stale", o.identity.ClusterID, e.identity.ClusterID)
	}
	return ""
}

// heartbeats are the times at which the clusters have written records.
type heartbeats struct {
	mu sync.Mutex
	// last is the time of the last one, resumed that of the last one after a pause.
	last, resumed map[string]time.Time
}

// longPause is a pause in the heartbeats after which a cluster may become stale: the importer may
// have read the one before late. After steadyTime without one it may not.
const (
	longPause  = faultStaleAfter / 2
	steadyTime = 5 * time.Second
)

func (h *heartbeats) note(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Sub(h.last[id]) >= longPause {
		h.resumed[id] = now
	}
	h.last[id] = now
}

// lastOf returns the time of the last heartbeat of a cluster.
func (h *heartbeats) lastOf(id string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[id]
}

// isSteady reports whether a cluster has written heartbeats for a while, without a long pause.
func (h *heartbeats) isSteady(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.last[id]) < longPause && time.Since(h.resumed[id]) > steadyTime
}

// exporter is a controller that publishes, withdraws and restarts.
type exporter struct {
	world    *faultSimulation
	identity mcs.Identity
	// signer is the identity of which the cluster has the key: the first one.
	signer mcs.Identity
	// joined is the time at which the cluster joined, which its controller remembers.
	joined time.Time
	reg    *Registry
	stop   func(error)
	// stopBefore ends the process before, if the cluster has two leaders, else it is nil.
	stopBefore func(error)
	// isStopped is set while no process runs.
	isStopped bool
	// alias is the other identity of the same cluster, nil if it is never renamed, and becomes is
	// alias while it is being renamed. isRetired is set while the cluster has the other ID, and
	// isFarewellLost if another user may have removed its farewell since.
	alias, becomes            *exporter
	isRetired, isFarewellLost bool
	// heartbeats keeps what the controller saves.
	heartbeats savedHeartbeats
	// version is the last version of each key. Both identities of a cluster share it.
	version map[int]int

	mu sync.Mutex
	// wishes are the versions of each key in the order in which the user wanted them, 0 for none.
	wishes [allKeys][]int
	// cloned are the wishes that a clone has published since everything was confirmed last, nil
	// without one. The registry has signed records of both processes then, and their key is the
	// same.
	cloned *[allKeys]int
	// confirmed are the wishes that were confirmed when the cluster left under its other ID, -1 for
	// none.
	confirmed [allKeys]int
}

func (w *faultSimulation) newExporter(identity, signer mcs.Identity, version map[int]int) *exporter {
	e := &exporter{world: w, identity: identity, signer: signer, joined: time.Now(), version: version}
	for i := range e.wishes {
		e.wishes[i], e.confirmed[i] = []int{0}, -1
	}
	return e
}

func (e *exporter) start() {
	cfg := fast(e.identity)
	cfg.Joined, cfg.Signer = e.joined, registrytest.Signer(e.world.t, e.signer)
	e.heartbeats.load(&cfg)
	// more than what is not saved
	skew := time.Duration(e.world.clocks.IntN(7)-3) * 20 * time.Minute
	e.world.history.Logf("%s starts, its clock is %v ahead", e.identity.ClusterID, skew)
	cfg.wall = func() time.Time { return time.Now().Add(skew) }
	e.reg = e.world.registry(e.world.t, cfg)
	e.isStopped = false
	reg := e.reg
	e.stop = e.world.startProcess(reg, func(key mcs.Key) {
		// As the controller does: an export in etcd that is not desired, because another user wrote
		// it again, is withdrawn.
		var i int
		if _, err := fmt.Sscanf(key.Name, "web-%d", &i); err == nil && e.wanted(i) == 0 {
			_ = reg.Withdraw(context.Background(), key) // it never fails
		}
	})
}

// wanted returns the desired version of a key, 0 for none.
func (e *exporter) wanted(i int) int {
	if i >= allKeys {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wishes[i][len(e.wishes[i])-1]
}

// want adds a wish.
func (e *exporter) want(i, n int) {
	if e.wanted(i) == n {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wishes[i] = append(e.wishes[i], n)
	e.world.history.Logf("%s's user wants version %d of export %d, wish %d", e.identity.ClusterID, n, i, len(e.wishes[i])-1)
}

// find returns the first wish from index on that is version n of a key, -1 if none is.
func (e *exporter) find(i, n, index int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := slices.Index(e.wishes[i][index:], n); at >= 0 {
		return index + at
	}
	return -1
}

// floor returns the earliest wish that others may see after the one with this index: one that a
// clone has published.
func (e *exporter) floor(i, index int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cloned != nil {
		return min(index, e.cloned[i])
	}
	return index
}

// describe returns the last wishes of a key.
func (e *exporter) describe(i int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := max(0, len(e.wishes[i])-5)
	return fmt.Sprintf("%d, the last ones are versions %v", len(e.wishes[i])-1, e.wishes[i][last:])
}

// confirm records which exports are confirmed before the cluster leaves under its other ID.
func (e *exporter) confirm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, wishes := range e.wishes {
		if e.confirmed[i] = len(wishes) - 1; wishes[len(wishes)-1] == 0 {
			e.confirmed[i] = -1
		}
	}
}

// isConfirmed reports whether an export was confirmed before the cluster left under its other ID,
// and has not been withdrawn since.
func (e *exporter) isConfirmed(i int) bool {
	e.mu.Lock()
	confirmed := e.confirmed[i]
	e.mu.Unlock()
	return confirmed >= 0 && e.find(i, 0, confirmed) < 0
}

// endRename ends the comparison of both IDs: everything is as desired under the new one.
func (e *exporter) endRename() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cloned = nil
	for i := range e.confirmed {
		e.confirmed[i] = -1
	}
}

// change publishes a new version.
func (e *exporter) change(i int) {
	e.version[i]++
	e.wantEverywhere(i, e.version[i])
}

// wantEverywhere publishes a version under each ID that the cluster has now, or withdraws it if it
// is 0.
func (e *exporter) wantEverywhere(i, n int) {
	for _, id := range []*exporter{e, e.becomes} {
		if id != nil {
			id.want(i, n)
			id.apply(i)
		}
	}
}

// apply publishes or withdraws one key as desired.
func (e *exporter) apply(i int) {
	if n := e.wanted(i); n > 0 {
		publish(e.world.t, e.reg, i, n)
	} else {
		withdraw(e.world.t, e.reg, i)
	}
}

// restart ends the process and starts the next one. A process that lost its leader election has
// ended by then: else it would leave the ID to the next one for two heartbeats only, and on a busy
// machine a process takes longer than these 0.4 s to start.
func (e *exporter) restart() {
	e.world.history.Logf("%s restarts", e.identity.ClusterID)
	e.endBefore()
	e.stop(nil)
	e.start()
	e.applyAll()
}

func (e *exporter) applyAll() {
	for i := range allKeys {
		e.apply(i)
	}
}

// endBefore ends the process that lost its leader election, if there is one.
func (e *exporter) endBefore() {
	if e.stopBefore != nil {
		e.stopBefore(nil)
		e.stopBefore = nil
	}
}

// clone returns another process with the cluster's identity and key, which wants what the cluster
// wants now.
func (e *exporter) clone() *exporter {
	c := e.world.newExporter(e.identity, e.signer, map[int]int{})
	c.joined = e.joined
	c.heartbeats.byIdentity = e.heartbeats.all()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cloned = &[allKeys]int{}
	for i, wishes := range e.wishes {
		e.cloned[i] = len(wishes) - 1
		c.wishes[i] = wishes[len(wishes)-1:]
	}
	return c
}

func (e *exporter) step() {
	rnd := e.world.rnd
	i := rnd.IntN(allKeys)
	switch dice := rnd.IntN(100); {
	case dice < 4 && !e.isStopped:
		e.world.tally.Add("process restarted", 1)
		e.restart()
	case dice < 30 && i >= steadyKeys:
		e.wantEverywhere(i, 0)
	default:
		e.change(i)
	}
}
