package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestRandomFaults runs two clusters that publish, withdraw and restart at random, and two that
// only read, on an etcd with three members. Its members are killed, suspended and disconnected from
// clients and from one another; etcd is compacted at bad moments, runs out of space, and revokes
// and grants permissions. It is emptied and set back to backups, and another user deletes, forges
// and replays member records and exports. Clusters leave and return, are renamed, have clones and
// two leaders for a moment, stop and start several times, write and list slowly, move between
// clocks, and are silent until they are stale. An importer restarts with its imports and its pins,
// or is killed before it has saved the latest ones. The rule is that what is imported changes only
// on evidence. So the test checks at every notification and every step:
//
//   - what is seen of an export is a wish of its user that is not earlier than the one seen before,
//     by any process of the importer: nothing ends that is not withdrawn, and neither a late write
//     of an ended process counts nor a replay;
//   - what a process has seen it knows, and what is imported it knows or says that it does not;
//   - a service of a renamed cluster is imported all the time;
//   - no cluster with heartbeats becomes stale, and a silent one does;
//   - a corrupt export affects no other cluster;
//   - the exports of a cluster with a duplicate ID are never seen, and it reports the reason.
//
// From time to time the faults end. Then everything must become as desired, in every cluster alike,
// and only heartbeats may be written.
//
// FAULTS_RUNS runs, each with an etcd of its own, share the steps and the processors: everything is
// in real time here, and most of the time a run waits. FAULTS_SEED is the first seed, which a
// failure replays as far as real processes and clocks allow, FAULTS_STEPS is the number of steps,
// and FAULTS_TRACE names a folder for the trace of a failure. CI runs 2,000 steps with eight runs
// after the other tests (make faults).
func TestRandomFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("make faults runs it")
	}
	seed, steps := registrytest.Setting(t, "FAULTS_SEED", 1), registrytest.Setting(t, "FAULTS_STEPS", 1_200)
	runs := registrytest.Setting(t, "FAULTS_RUNS", 2)
	standard := patience
	patience = 2 * time.Minute // for machines that do other work
	defer func() { patience = standard }()
	var group sync.WaitGroup
	defer group.Wait()
	for i := range runs { // t.Parallel would run as many as there are processors
		group.Go(func() {
			t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) { newFaultSimulation(t, seed+i).run(int(steps / runs)) })
		})
	}
}

// run makes the steps.
func (w *faultSimulation) run(steps int) {
	for step := range steps {
		w.history.Logf("step %d", step)
		w.step()
		w.tally.Add("steps", 1)
		w.check()
		if step%100 == 99 {
			w.settle()
		}
	}
	w.settle()
}

const (
	// steadyKeys are changed and never withdrawn; the others, up to allKeys, are.
	steadyKeys = 4
	allKeys    = 10
)

// tlsEvery is how many seeds there are for one whose clients use TLS. The registry does the same
// with and without, and TLS handshakes take a fifth of the processor time of this process.
const tlsEvery = 4

// faultSimulation is an etcd cluster with faults and the registries on it.
type faultSimulation struct {
	t *testing.T
	// rnd are the dice of users and faults, clocks those of the processes' clocks.
	rnd, clocks *rand.Rand
	*testStore
	// exporters are the clusters that export by their present IDs, all those under any ID.
	exporters, all []*exporter
	// watcher imports all the time, and late since everything was as desired last.
	watcher, late *importer
	duplicate     *Registry
	// beats are the heartbeats that etcd has accepted.
	beats heartbeats
	// hasOldRecord is set while an earlier record of a silent cluster may be in etcd.
	hasOldRecord bool
	// old is the time in nanoseconds at which another user has last written earlier records.
	old atomic.Int64
	// restore ends the current fault, nil if there is none; stepsLeft is the number of steps that
	// it lasts.
	restore   func()
	stepsLeft int
	// recorded are values that another user has kept; backup restores etcd as it was.
	recorded []recordedValue
	backup   func() error
	// backups is the folder of the backup.
	backups string
	// tally counts the operations of the test.
	tally *registrytest.Counts
}

// recordedValue is an earlier value of a key of an exporter.
type recordedValue struct{ key, value string }

func newFaultSimulation(t *testing.T, seed uint64) *faultSimulation {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{
		Program: program(t), Dir: t.TempDir(), Members: 3, Plain: seed%tlsEvery != 0, Env: []string{"GOMAXPROCS=1", "GOGC=200"},
		Args: []string{"--heartbeat-interval=50", "--election-timeout=500", "--bcrypt-cost=4", "--auth-token-ttl=5", "--unsafe-no-fsync", "--quota-backend-bytes=8388608"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	w := &faultSimulation{t: t, rnd: rnd, clocks: rand.New(rand.NewPCG(seed, 2)), testStore: newTestStore(t, c), backups: t.TempDir()}
	w.direct, w.wrote = true, w.beats.note
	w.beats.last, w.beats.resumed = map[string]time.Time{}, map[string]time.Time{}
	w.history = registrytest.NewTrace(t, fmt.Sprintf("etcd-%d.log", seed))
	w.tally = registrytest.NewCounts(t, fmt.Sprintf("etcd-%d.counts", seed))
	renamed := cls2
	renamed.ClusterID = "cls2b"
	for _, id := range []string{renamed.ClusterID, "cls3", "cls4"} { // before the first fault
		if _, _, err := w.AddCluster(t.Context(), w.prefix, "set1", id); err != nil {
			t.Fatal(err)
		}
	}
	shared := map[int]int{}
	first, second, alias := w.newExporter(cls1, cls1, map[int]int{}), w.newExporter(cls2, cls2, shared), w.newExporter(renamed, cls2, shared)
	second.alias, alias.alias, alias.isRetired = alias, second, true
	w.exporters, w.all = []*exporter{first, second}, []*exporter{first, second, alias}
	w.watcher = w.newImporter(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"})
	w.late = w.newImporter(mcs.Identity{ClusterID: "cls4", ClusterSetID: "set1", UID: "uid-4"})
	for _, e := range w.exporters {
		e.start()
		for i := range steadyKeys {
			e.change(i)
		}
	}
	duplicate := cls1
	duplicate.UID = "uid-of-the-duplicate"
	for _, e := range w.exporters {
		w.awaitSeen(w.watcher, e)
		// so that it knows the key of the cluster before another user forges a record
		w.awaitSeen(w.late, e)
	}
	w.duplicate = w.registry(t, fast(duplicate))
	start(t, w.duplicate)
	if err := w.duplicate.Publish(t.Context(), webExport("cls1", allKeys, 1)); err != nil {
		t.Fatal(err)
	}
	w.putKey(t, w.layout("set1").export("cls2", webKey(allKeys+1)), "garbage")
	return w
}

// registry returns a registry that does not wait long for etcd when it ends: during most faults
// there is no answer.
func (w *faultSimulation) registry(t testing.TB, cfg Config) *Registry {
	t.Helper()
	timings := fastTimings()
	timings.release = 300 * time.Millisecond
	return w.registryWith(t, cfg, timings)
}

// startProcess is startWith for a process, whose connections end with it: thousands of restarts
// would need more open files than a process may have.
func (w *faultSimulation) startProcess(reg *Registry, notify func(mcs.Key)) (stop func(error)) {
	stopReg := startWith(w.t, reg, notify)
	return func(cause error) {
		stopReg(cause)
		closeClient(w.t, reg.client)
	}
}

// fail reports an error, in the trace too.
func (w *faultSimulation) fail(format string, args ...any) {
	w.t.Helper()
	w.history.Logf("FAILED: "+format, args...)
	w.t.Errorf(format, args...)
}

// check checks every key.
func (w *faultSimulation) check() {
	for i := range allKeys + 1 {
		w.watcher.check(i)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// settle ends the faults and waits until every cluster sees everything as desired.
func (w *faultSimulation) settle() {
	w.history.Logf("settle")
	w.endFault()
	w.stepsLeft = 0
	w.late.restartWithoutImports()
	for _, e := range w.exporters {
		for i := range allKeys {
			wanted := registry.Absent
			if e.wanted(i) > 0 {
				wanted = registry.Exported
			}
			awaitState(w.t, e.reg, i, wanted)
		}
	}
	for _, e := range w.all {
		w.awaitSeen(w.watcher, e)
		w.awaitSeen(w.late, e)
	}
	awaitReason(w.t, w.duplicate, allKeys, "uid-1")
	for _, e := range w.all {
		e.endRename()
	}
	w.checkSameViews()
	w.checkSteadyState()
	w.check()
}

// awaitSeen waits until an importer sees the exports of a cluster as desired. Of a cluster whose
// farewell another user has removed an importer that was down since then cannot know that it has
// left: administrators forget it.
func (w *faultSimulation) awaitSeen(o *importer, e *exporter) {
	w.t.Helper()
	lacks := ""
	defer func() {
		if w.t.Failed() {
			w.t.Log(lacks)
		}
	}()
	for i := range allKeys {
		within(w.t, fmt.Sprintf("%s sees the exports of %s as they are", o.identity.ClusterID, e.identity.ClusterID), func() bool {
			lacks = o.lacks(e, i)
			if lacks != "" && e.isFarewellLost {
				w.tally.Add("forgotten", 1)
				o.reg.Forget(e.identity.ClusterID)
			}
			return lacks == ""
		})
	}
}

// checkSameViews checks that all clusters see the same exports.
func (w *faultSimulation) checkSameViews() {
	for i := range allKeys {
		a, b := lookupView(w.t, w.watcher.reg, i), lookupView(w.t, w.late.reg, i)
		if len(a.In(registry.Unknown))+len(b.In(registry.Unknown)) > 0 {
			w.fail("unknown clusters %v and %v of %v", a.In(registry.Unknown), b.In(registry.Unknown), webKey(i))
		}
		if !slices.EqualFunc(a.Exports(), b.Exports(), mcs.Export.Equal) {
			w.fail("two clusters see %v differently", webKey(i))
		}
	}
}

// checkSteadyState checks that no export is written while nothing changes.
func (w *faultSimulation) checkSteadyState() {
	before, l := w.writes.Load(), w.layout("set1")
	first := ""
	within(w.t, "another heartbeat", func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), attempt)
		defer cancel()
		answer, err := w.Root().Get(ctx, l.member("cls1"))
		if err != nil || len(answer.Kvs) == 0 {
			return false
		}
		now := string(answer.Kvs[0].Value)
		if first == "" {
			first = now
		}
		return now != first
	})
	if after := w.writes.Load(); after != before {
		w.fail("%d exports were written without a change", after-before)
	}
}
