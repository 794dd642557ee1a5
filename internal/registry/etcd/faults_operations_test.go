package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
)

// step makes one random change and starts or ends a fault.
func (w *faultSimulation) step() {
	w.exporters[w.rnd.IntN(len(w.exporters))].step()
	if w.rnd.IntN(20) == 0 {
		w.record()
	}
	if w.rnd.IntN(80) == 0 {
		w.restartImporter()
	}
	if w.stepsLeft--; w.stepsLeft <= 0 {
		w.endFault()
		if w.rnd.IntN(4) == 0 {
			w.startFault()
		}
	}
	// not a wait: the time scale of the steps
	time.Sleep(time.Duration(w.rnd.IntN(30)) * time.Millisecond)
}

// endFault ends the current fault.
func (w *faultSimulation) endFault() {
	if w.restore != nil {
		w.history.Logf("the fault ends")
		w.restore()
		w.restore = nil
	}
}

// startFault starts a random fault.
func (w *faultSimulation) startFault() {
	w.stepsLeft = 5 + w.rnd.IntN(40)
	some := slices.Clone(w.Members)
	w.rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:1+w.rnd.IntN(2)] // two of three: no quorum
	faults := map[string]func() (restore func()){
		"killed": func() func() { return each(some, (*etcdtest.Member).Kill, w.startMember) },
		"stuck":  func() func() { return each(some, (*etcdtest.Member).Pause, (*etcdtest.Member).Resume) },
		"cut off from clients": func() func() {
			return each(some, func(m *etcdtest.Member) { m.Clients.Cut() }, func(m *etcdtest.Member) { m.Clients.Restore() })
		},
		"cut off from members": func() func() {
			return each(some, func(m *etcdtest.Member) { m.Peers.Cut() }, func(m *etcdtest.Member) { m.Peers.Restore() })
		},
		"compacted while cut off": func() func() {
			restore := each(w.Members, func(m *etcdtest.Member) { m.Clients.Cut() }, func(m *etcdtest.Member) { m.Clients.Restore() })
			return func() { w.compact(); restore() }
		},
		"compacted":      func() func() { w.compact(); return nil },
		"denied":         func() func() { return w.deny(w.victim()) },
		"full":           w.fillUp,
		"deleted":        w.byOther(func() { w.deleteSome(w.any()) }),
		"forged":         w.byOther(func() { w.forge(w.victim()) }),
		"replayed":       w.byOther(w.replay),
		"backed up":      w.backUp,
		"restored":       w.byOther(w.restoreBackup),
		"set back":       w.setBack,
		"silent cluster": w.silence,
		"slow writes":    w.slowDown,
		"slow lists":     w.slowLists,
		"renamed":        w.rename,
		"left":           w.leave, "clone": w.clone, "two leaders": w.overlap, "flicker": w.flicker,
	}
	names := slices.Sorted(maps.Keys(faults))
	name := names[w.rnd.IntN(len(names))]
	w.t.Logf("%s (%d members) for %d steps", name, len(some), w.stepsLeft)
	w.tally.Add(name, 1)
	w.history.Logf("fault: %s (%d members) for %d steps", name, len(some), w.stepsLeft)
	w.restore = faults[name]()
}

// each does something with members of etcd, and returns a function that undoes it.
func each(members []*etcdtest.Member, do, undo func(*etcdtest.Member)) (restore func()) {
	for _, m := range members {
		do(m)
	}
	return func() {
		for _, m := range members {
			undo(m)
		}
	}
}

func (w *faultSimulation) startMember(m *etcdtest.Member) {
	if err := m.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// attempt bounds a request of another user: a member that was suspended or has no leader may never
// answer, and the next request goes to another one.
const attempt = time.Second

// retry repeats an action that may fail while etcd recovers.
func (w *faultSimulation) retry(what string, do func(context.Context) error) {
	w.t.Helper()
	w.retryWithin(attempt, what, do)
}

// retryWithin is retry with another limit of one attempt.
func (w *faultSimulation) retryWithin(limit time.Duration, what string, do func(context.Context) error) {
	w.t.Helper()
	var err error
	defer func() {
		if w.t.Failed() {
			w.t.Log(err)
		}
	}()
	within(w.t, what, func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), limit)
		defer cancel()
		if err = do(ctx); err != nil {
			w.history.Logf("not %s yet: %v", what, err)
		}
		return err == nil
	})
}

// victim returns a random exporter.
func (w *faultSimulation) victim() *exporter { return w.exporters[w.rnd.IntN(len(w.exporters))] }

// any returns a random exporter, also one that has another ID now.
func (w *faultSimulation) any() *exporter { return w.all[w.rnd.IntN(len(w.all))] }

// restartImporter restarts the importer. While old records may be all that there is of a silent
// cluster its pins are saved: two records of those that the previous process has read, and has not
// saved, could not be distinguished from later ones.
func (w *faultSimulation) restartImporter() {
	isKilled := w.rnd.IntN(2) == 0 && !w.hasOldRecord
	w.tally.Add(map[bool]string{true: "importer killed", false: "importer restarted"}[isKilled], 1)
	w.watcher.restart(isKilled)
}

// byOther is a change of records by another user. The importer may restart before the clusters have
// written theirs again.
func (w *faultSimulation) byOther(change func()) func() (restore func()) {
	return func() func() {
		change()
		if w.rnd.IntN(2) == 0 {
			w.restartImporter()
		}
		return nil
	}
}

func (w *faultSimulation) compact() {
	w.retry("compacted", func(ctx context.Context) error {
		answer, err := w.Root().Get(ctx, w.prefix)
		if err == nil {
			_, err = w.Root().Compact(ctx, answer.Header.Revision)
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil // by an attempt without an answer
		}
		return err
	})
}

// oldAt returns the time at which another user has last written earlier records.
func (w *faultSimulation) oldAt() time.Time { return time.Unix(0, w.old.Load()) }

// awaitWritten waits until a cluster has written its record since another user has written an
// earlier one. A cluster that is silent before that and becomes stale is as the earlier one says
// for an importer that was killed: no later one would follow.
func (w *faultSimulation) awaitWritten(e *exporter) {
	w.t.Helper()
	w.awaitRecord(e, w.oldAt())
}

func (w *faultSimulation) deny(e *exporter) (restore func()) {
	w.awaitWritten(e)
	user, _, err := w.AddCluster(w.t.Context(), w.prefix, e.identity.ClusterSetID, e.identity.ClusterID)
	if err != nil {
		w.t.Fatal(err)
	}
	done := func(do func(context.Context, string) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := do(ctx, user); err != nil && !strings.Contains(err.Error(), "not granted") && !strings.Contains(err.Error(), "already") {
				return err
			}
			return nil
		}
	}
	w.retry("denied", done(w.Revoke))
	return func() { w.retry("allowed", done(w.Restore)) }
}

// deleteSome deletes keys without the word of their cluster.
func (w *faultSimulation) deleteSome(e *exporter) {
	l, id := w.layout("set1"), e.identity.ClusterID
	prefixes := []string{
		l.member(id), l.alive(id), l.cluster(id) + exportsSuffix, l.export(id, webKey(w.rnd.IntN(allKeys))), l.cluster(id), l.root,
	}
	prefix := prefixes[w.rnd.IntN(len(prefixes))]
	w.history.Logf("%s is deleted", prefix)
	w.retry("deleted", func(ctx context.Context) error {
		_, err := w.Root().Delete(ctx, prefix, clientv3.WithPrefix())
		return err
	})
	for _, a := range w.all {
		a.isFarewellLost = a.isFarewellLost || a.isRetired && strings.HasPrefix(l.member(a.identity.ClusterID), prefix)
	}
}

// forge writes a member record or an export that another cluster has signed, if the importers have
// saved the key of the victim: before that they take any key in its place.
func (w *faultSimulation) forge(e *exporter) {
	if !w.watcher.hasPinned(e) || !w.late.hasPinned(e) {
		return
	}
	l, id := w.layout("set1"), e.identity.ClusterID
	forger := mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-of-the-forger"}
	i, later := w.rnd.IntN(allKeys), time.Now().Add(time.Hour)
	key, value := l.member(id), memberValue(w.t, forger, later, setOf(nil))
	switch w.rnd.IntN(3) {
	case 0:
		key, value = l.member(id), forgedFarewell(w.t, e.identity, later)
	case 1:
		key, value = l.export(id, webKey(i)), exportValue(w.t, forger, i, 9999, later.UnixMilli())
	}
	w.history.Logf("%s is forged", key)
	w.retry("forged", func(ctx context.Context) error {
		_, err := w.Root().Put(ctx, key, string(value))
		return err
	})
}

// replay writes an earlier value of a key again.
func (w *faultSimulation) replay() {
	if len(w.recorded) == 0 {
		return
	}
	w.old.Store(time.Now().UnixNano())
	old := w.recorded[w.rnd.IntN(len(w.recorded))]
	w.history.Logf("%s is replayed", old.key)
	w.retry("replayed", func(ctx context.Context) error {
		_, err := w.Root().Put(ctx, old.key, old.value)
		return err
	})
}

// record keeps the values of an exporter's keys.
func (w *faultSimulation) record() {
	ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
	defer cancel()
	answer, err := w.Root().Get(ctx, w.layout("set1").cluster(w.victim().identity.ClusterID), clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return // a fault
	}
	for _, kv := range answer.Kvs {
		if !strings.HasSuffix(string(kv.Key), "/"+aliveSuffix) {
			w.recorded = append(w.recorded, recordedValue{string(kv.Key), string(kv.Value)})
		}
	}
}

// backUp copies etcd's data.
func (w *faultSimulation) backUp() (restore func()) {
	backup, err := w.Backup(w.backups)
	if err != nil {
		w.t.Fatal(err)
	}
	w.backup = backup
	return nil
}

// restoreBackup sets etcd back to the last backup.
func (w *faultSimulation) restoreBackup() {
	if w.backup == nil {
		return
	}
	if err := w.backup(); err != nil {
		w.t.Fatal(err)
	}
	w.old.Store(time.Now().UnixNano())
	for _, e := range w.all {
		e.isFarewellLost = e.isFarewellLost || e.isRetired
	}
}

// setBack makes etcd lose what is written during the fault.
func (w *faultSimulation) setBack() (restore func()) {
	w.backUp()
	return func() { w.byOther(w.restoreBackup)() }
}

func (w *faultSimulation) fillUp() (restore func()) {
	fillStorage(w.t, w.testStore)
	return func() {
		w.retryWithin(10*attempt, "freeing etcd's storage", func(ctx context.Context) error { return tryFreeStorage(ctx, w.testStore) })
	}
}

// silence makes a cluster silent until it is stale: its controller ends, or loses its permissions.
// Another user may change its records meanwhile, and the importer may restart. All that ends
// nothing.
func (w *faultSimulation) silence() (restore func()) {
	e := w.victim()
	id := e.identity.ClusterID
	w.awaitWritten(e)
	w.history.Logf("%s is silent", id)
	end := func() { e.start(); e.applyAll() }
	if w.rnd.IntN(2) == 0 {
		e.isStopped = true
		e.stop(nil)
	} else {
		end = w.deny(e)
	}
	w.awaitStale(e)
	for range w.rnd.IntN(3) {
		switch w.rnd.IntN(4) {
		case 0:
			w.deleteSome(e)
		case 1:
			w.forge(e)
		case 2:
			w.hasOldRecord = true
			w.replay()
		case 3:
			w.hasOldRecord = true
			w.restoreBackup()
		}
	}
	if w.rnd.IntN(2) == 0 {
		w.restartImporter()
		w.awaitStale(e)
	}
	return func() { end(); w.hasOldRecord = false }
}

// awaitStale waits until the importer takes a cluster for stale, unless it does not know it.
func (w *faultSimulation) awaitStale(e *exporter) {
	w.t.Helper()
	within(w.t, e.identity.ClusterID+" is stale", func() bool {
		w.check()
		isStale, isMember := w.watcher.takesForStale(e.identity.ClusterID)
		return isStale || !isMember
	})
}

// slowDown makes each transaction of a cluster slow: it reaches etcd late, or its answer is late.
// Some take longer than a request may take.
func (w *faultSimulation) slowDown() (restore func()) {
	slow := slowness{clusterID: w.victim().identity.ClusterID}
	for _, delay := range []*time.Duration{&slow.before, &slow.after} {
		if w.rnd.IntN(2) == 0 {
			*delay = []time.Duration{100 * time.Millisecond, time.Second, requestTimeout}[w.rnd.IntN(3)]
		}
	}
	w.history.Logf("%s's writes take %v and %v more", slow.clusterID, slow.before, slow.after)
	w.slow.Store(&slow)
	return func() { w.slow.Store(nil) }
}

// slowLists restarts the controller's part, which needs long for its first list: longer than it has
// the cluster ID of the process before.
func (w *faultSimulation) slowLists() (restore func()) {
	e := w.victim()
	slow := slowness{clusterID: e.identity.ClusterID, before: []time.Duration{300 * time.Millisecond, time.Second, requestTimeout}[w.rnd.IntN(3)]}
	w.history.Logf("%s's lists take %v more", slow.clusterID, slow.before)
	w.lateLists.Store(&slow)
	e.restart()
	return func() { w.lateLists.Store(nil) }
}

// flicker restarts the controller's part several times.
func (w *faultSimulation) flicker() (restore func()) {
	e := w.victim()
	for range 2 + w.rnd.IntN(3) {
		e.restart()
		// not a wait: the time scale of the steps
		time.Sleep(time.Duration(w.rnd.IntN(100)) * time.Millisecond)
	}
	return nil
}

// overlap starts the next leader while the process before it goes on for a moment.
func (w *faultSimulation) overlap() (restore func()) {
	e := w.victim()
	w.history.Logf("%s has two leaders", e.identity.ClusterID)
	// before it lost its leader election
	within(w.t, "the process before has begun", e.reg.writer.session.hasBegun)
	e.stopBefore = e.stop
	e.start()
	e.applyAll()
	return e.endBefore
}

// clone starts another process with a cluster's identity and key, as the restore of a control plane
// beside the original does. It wants what the cluster wants now. Of two processes the later one has
// the ID, until it ends.
//
// The cluster writes its record before the next fault: if the last one of a clone whose clock is
// ahead is replaced before that, records of the cluster are replays until its clock has caught up
// (docs/reliability-tests.md).
func (w *faultSimulation) clone() (restore func()) {
	e := w.victim()
	w.history.Logf("%s has a clone", e.identity.ClusterID)
	c := e.clone()
	c.start()
	c.applyAll()
	return func() {
		c.stop(nil)
		w.awaitRecord(e, time.Now())
	}
}

// leave makes a cluster leave, and return with later versions. The other exporter stays: the ID of
// a cluster that has left is free, and the duplicate would take it.
func (w *faultSimulation) leave() (restore func()) {
	e := w.exporters[1]
	w.history.Logf("%s leaves", e.identity.ClusterID)
	var exported []int
	for i := range allKeys {
		if e.wanted(i) > 0 {
			exported = append(exported, i)
		}
		e.want(i, 0)
	}
	e.stop(registry.ErrLeave)
	left := time.Now()
	e.start()
	for _, i := range exported {
		e.change(i)
	}
	e.applyAll()
	w.awaitRecord(e, left) // until then the ID is another user's to take
	return nil
}

// awaitRecord waits until a cluster has written its record since a time.
func (w *faultSimulation) awaitRecord(e *exporter, since time.Time) {
	w.t.Helper()
	within(w.t, e.identity.ClusterID+" has written its record", func() bool { return w.beats.lastOf(e.identity.ClusterID).After(since) })
}

// rename gives a cluster its other ID, as the controller does: it is a member under both until all
// exports are confirmed under the new one, and leaves under the other one then.
func (w *faultSimulation) rename() (restore func()) {
	e := w.exporters[1]
	next := e.alias
	w.history.Logf("%s becomes %s", e.identity.ClusterID, next.identity.ClusterID)
	next.isRetired, next.isFarewellLost, next.joined = false, false, time.Now()
	for i := range allKeys {
		next.want(i, e.wanted(i))
	}
	e.becomes = next
	next.start()
	next.applyAll()
	return func() {
		for i := range allKeys {
			awaitState(w.t, next.reg, i, map[bool]registry.PublishState{true: registry.Exported, false: registry.Absent}[next.wanted(i) > 0])
		}
		next.confirm()
		e.becomes = nil
		for i := range allKeys {
			e.want(i, 0)
		}
		// A process that has not joined yet signs no farewell if it finds no record of its cluster.
		e.isFarewellLost = !e.reg.writer.session.hasHeld()
		e.stop(registry.ErrLeave)
		e.isRetired, w.exporters[1] = true, next
		prefix := w.layout("set1").cluster(e.identity.ClusterID)
		w.recorded = slices.DeleteFunc(w.recorded, func(r recordedValue) bool { return strings.HasPrefix(r.key, prefix) })
	}
}
