package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestRandomFaults runs two clusters that publish, withdraw and restart at random, and a third that only reads, on an etcd with
// three members. Its members are killed, suspended and disconnected from clients and from one another; etcd is compacted at bad
// moments, runs out of space, and revokes and grants permissions. It is emptied and restored from a backup, and another user deletes,
// forges and replays member records and exports. Clusters leave and return, have clones and two leaders for a moment, stop and start
// several times, and move between clocks. The test checks at every notification and every step:
//
//   - an export that is not withdrawn never disappears, and no cluster becomes stale;
//   - no cluster sees an earlier version of an export after a later one, so neither a late write of an ended process counts nor a replay;
//   - a corrupt export affects no other cluster;
//   - the exports of a cluster with a duplicate ID are never seen, and it reports the reason.
//
// From time to time the faults end. Then everything must become as desired, in every cluster alike, and only heartbeats may
// be written.
//
// FAULTS_RUNS runs, each with an etcd of its own, share the steps and the processors: everything is in real time here, and most of the time a run waits.
// FAULTS_SEED is the first seed, which a failure replays as far as real processes and clocks allow, FAULTS_STEPS is the number of steps, and FAULTS_TRACE names
// a folder for the trace of a failure. CI runs 20,000 steps with eight runs after the other tests (make faults).
func TestRandomFaults(t *testing.T) {
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

// tlsEvery is how many seeds there are for one whose clients use TLS. The registry does the same with and without, and TLS
// handshakes take a fifth of the processor time of this process.
const tlsEvery = 4

// faultSimulation is an etcd cluster with faults and the registries on it.
type faultSimulation struct {
	t *testing.T
	// rnd are the dice of users and faults, clocks those of the processes' clocks.
	rnd, clocks *rand.Rand
	*testStore
	exporters []*exporter
	// watcher reads all the time, and late since everything was as desired last.
	watcher, late *observer
	duplicate     *Registry
	// restore ends the current fault, nil if there is none; stepsLeft is the number of steps that it lasts.
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
	w.direct = true
	w.history = registrytest.NewTrace(t, fmt.Sprintf("etcd-%d.log", seed))
	w.tally = registrytest.NewCounts(t, fmt.Sprintf("etcd-%d.counts", seed))
	for _, id := range []string{"cls3", "cls4"} { // before the first fault
		if _, _, err := w.AddCluster(t.Context(), w.prefix, "set1", id); err != nil {
			t.Fatal(err)
		}
	}
	w.watcher = w.observe(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"})
	for _, identity := range []mcs.Identity{cls1, cls2} {
		e := &exporter{world: w, identity: identity, joined: time.Now(), want: map[int]int{}, version: map[int]int{}, mayBeAbsent: map[int]bool{}}
		w.exporters = append(w.exporters, e)
		e.start()
		for i := range steadyKeys {
			e.change(i)
		}
	}
	duplicate := cls1
	duplicate.UID = "uid-of-the-duplicate"
	for _, e := range w.exporters {
		awaitVersion(t, w.watcher.reg, e.identity.ClusterID, 0, 1)
	}
	w.duplicate = w.registry(t, fast(duplicate))
	start(t, w.duplicate)
	if err := w.duplicate.Publish(t.Context(), webExport("cls1", allKeys, 1)); err != nil {
		t.Fatal(err)
	}
	w.putKey(t, w.layout("set1").export("cls2", webKey(allKeys+1)), "garbage")
	return w
}

// registry returns a registry that does not wait long for etcd when it ends: during most faults there is no answer.
func (w *faultSimulation) registry(t testing.TB, cfg Config) *Registry {
	t.Helper()
	timings := fastTimings()
	timings.release = 300 * time.Millisecond
	return w.registryWith(t, cfg, timings)
}

// startProcess is startWith for a process, whose connections end with it: thousands of restarts would need more open files than a process may have.
func (w *faultSimulation) startProcess(reg *Registry, notify func(mcs.Key)) (stop func(error)) {
	stopReg := startWith(w.t, reg, notify)
	return func(cause error) {
		stopReg(cause)
		closeClient(w.t, reg.client)
	}
}

// observer is a registry with a check of every view.
type observer struct {
	world *faultSimulation
	reg   *Registry
	stop  func(error)
	mu    sync.Mutex
	// last is the last version seen of each export, by cluster and key, and now the one at the last check, 0 without one.
	last, now map[string]int
}

func (w *faultSimulation) observe(identity mcs.Identity) *observer {
	o := &observer{world: w, reg: w.registry(w.t, fast(identity)), last: map[string]int{}, now: map[string]int{}}
	o.stop = w.startProcess(o.reg, func(key mcs.Key) {
		var i int
		if _, err := fmt.Sscanf(key.Name, "web-%d", &i); err != nil {
			w.fail("a notification of %v", key)
		}
		o.check(i)
	})
	return o
}

// check checks one key.
func (o *observer) check(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	view, err := o.reg.Lookup(o.world.t.Context(), webKey(i))
	if err != nil {
		return // before the first read
	}
	seen := map[string]int{}
	for _, exp := range view.Exports {
		seen[exp.Cluster] = int(exp.Ports[0].Port) - 1
	}
	for _, e := range o.world.exporters {
		id := e.identity.ClusterID
		name := fmt.Sprintf("%s %d", id, i)
		n := seen[id]
		if n != o.now[name] {
			o.world.history.Logf("%s sees %s as version %d, after %d", o.reg.cfg.Identity.ClusterID, name, n, o.now[name])
			o.now[name] = n
		}
		switch {
		case n == 0 && i < steadyKeys && o.last[name] > 0 && !e.isAbsenceAllowed(i):
			o.world.fail("the export %s disappeared without a withdrawal", name)
		case n != 0 && n < o.last[name] && n == e.clonedVersion(i):
			o.last[name] = n
		case n != 0 && n < o.last[name]:
			o.world.fail("the export %s went back from version %d to %d", name, o.last[name], n)
		default:
			o.last[name] = max(o.last[name], n)
		}
	}
	if i == allKeys && len(view.Exports) > 0 {
		o.world.fail("the export of the duplicate cluster is visible")
	}
	if len(view.Stale) > 0 {
		o.world.fail("stale clusters %v, want none: all are live", view.Stale)
	}
}

// exporter is a controller that publishes, withdraws and restarts.
type exporter struct {
	world    *faultSimulation
	identity mcs.Identity
	// joined is the time at which the cluster joined, which its controller remembers.
	joined time.Time
	reg    *Registry
	stop   func(error)
	// stopBefore ends the process before, if the cluster has two leaders, else it is nil.
	stopBefore func(error)
	// heartbeats keeps what the controller saves.
	heartbeats savedHeartbeats
	mu         sync.Mutex
	// want is the desired version of each key, 0 for none; version is the last one published.
	want, version map[int]int
	// mayBeAbsent are the exports that the cluster ended when it left, until all of them are confirmed again.
	mayBeAbsent map[int]bool
	// cloned are the versions that a clone has published since everything was confirmed last. The registry has signed records of both processes then, and
	// their key is the same.
	cloned map[int]int
}

func (e *exporter) start() {
	cfg := fast(e.identity)
	cfg.Joined = e.joined
	e.heartbeats.load(&cfg)
	skew := time.Duration(e.world.clocks.IntN(7)-3) * 20 * time.Minute // more than what is not saved
	e.world.history.Logf("%s starts, its clock is %v ahead", e.identity.ClusterID, skew)
	cfg.wall = func() time.Time { return time.Now().Add(skew) }
	e.reg = e.world.registry(e.world.t, cfg)
	reg := e.reg
	e.stop = e.world.startProcess(reg, func(key mcs.Key) {
		// As the controller does: an export in etcd that is not desired, because another user wrote it again, is withdrawn.
		var i int
		if _, err := fmt.Sscanf(key.Name, "web-%d", &i); err == nil && e.wanted(i) == 0 {
			_ = reg.Withdraw(context.Background(), key) // it never fails
		}
	})
}

// wanted returns the desired version of a key.
func (e *exporter) wanted(i int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.want[i]
}

// isAbsenceAllowed reports whether the cluster has ended the export of a key when it left.
func (e *exporter) isAbsenceAllowed(i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mayBeAbsent[i]
}

// clonedVersion returns the version that a clone may have written, 0 for none.
func (e *exporter) clonedVersion(i int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cloned[i]
}

func (e *exporter) setWanted(i, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.want[i] = n
}

// change publishes a new version.
func (e *exporter) change(i int) {
	e.version[i]++
	e.setWanted(i, e.version[i])
	e.apply(i)
}

// apply publishes or withdraws one key as desired.
func (e *exporter) apply(i int) {
	n := e.wanted(i)
	e.world.history.Logf("%s's user wants version %d of export %d", e.identity.ClusterID, n, i)
	if n > 0 {
		publish(e.world.t, e.reg, i, n)
	} else {
		withdraw(e.world.t, e.reg, i)
	}
}

// restart ends the process and starts the next one. A process that lost its leader election has ended by then: else it would leave the ID to the next one for two
// heartbeats only, and on a busy machine a process takes longer than these 0.4 s to start.
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

// flicker restarts the controller's part several times.
func (w *faultSimulation) flicker() (restore func()) {
	e := w.exporters[w.rnd.IntN(len(w.exporters))]
	for range 2 + w.rnd.IntN(3) {
		e.restart()
		time.Sleep(time.Duration(w.rnd.IntN(100)) * time.Millisecond) // not a wait: the time scale of the steps
	}
	return nil
}

// overlap starts the next leader while the process before it goes on for a moment.
func (w *faultSimulation) overlap() (restore func()) {
	e := w.exporters[w.rnd.IntN(len(w.exporters))]
	w.history.Logf("%s has two leaders", e.identity.ClusterID)
	within(w.t, "the process before has begun", e.reg.writer.session.hasBegun) // before it lost its leader election
	e.stopBefore = e.stop
	e.start()
	e.applyAll()
	return e.endBefore
}

// endBefore ends the process that lost its leader election, if there is one.
func (e *exporter) endBefore() {
	if e.stopBefore != nil {
		e.stopBefore(nil)
		e.stopBefore = nil
	}
}

// clone starts another process with a cluster's identity and key, as the restore of a control plane beside the original does. It wants what the
// cluster wants now. Of two processes the later one has the ID, until it ends.
func (w *faultSimulation) clone() (restore func()) {
	e := w.exporters[w.rnd.IntN(len(w.exporters))]
	w.history.Logf("%s has a clone", e.identity.ClusterID)
	c := &exporter{world: w, identity: e.identity, joined: e.joined, want: map[int]int{}, version: map[int]int{}}
	for i := range allKeys {
		c.want[i] = e.wanted(i)
	}
	c.heartbeats.byIdentity = e.heartbeats.all()
	e.mu.Lock()
	e.cloned = maps.Clone(c.want)
	e.mu.Unlock()
	c.start()
	c.applyAll()
	return func() { c.stop(nil) }
}

// leave makes a cluster leave, which may not succeed while etcd fails, and return. The other exporter stays: the ID of a cluster that has left is free, and
// the duplicate would take it.
func (w *faultSimulation) leave() (restore func()) {
	e := w.exporters[1]
	w.history.Logf("%s leaves", e.identity.ClusterID)
	e.mu.Lock()
	for i := range allKeys {
		e.mayBeAbsent[i] = true
	}
	e.mu.Unlock()
	e.stop(registry.ErrLeave)
	e.start()
	for i := range allKeys {
		if e.wanted(i) > 0 {
			e.change(i)
		} else {
			e.apply(i)
		}
	}
	return nil
}

func (e *exporter) step(rnd *rand.Rand) {
	i := rnd.IntN(allKeys)
	switch dice := rnd.IntN(100); {
	case dice < 4:
		e.world.tally.Add("process restarted", 1)
		e.restart()
	case dice < 30 && i >= steadyKeys:
		e.setWanted(i, 0)
		e.apply(i)
	default:
		e.change(i)
	}
}

// fail reports an error, in the trace too.
func (w *faultSimulation) fail(format string, args ...any) {
	w.t.Helper()
	w.history.Logf("FAILED: "+format, args...)
	w.t.Errorf(format, args...)
}

// step makes one random change and starts or ends a fault.
func (w *faultSimulation) step() {
	w.exporters[w.rnd.IntN(len(w.exporters))].step(w.rnd)
	if w.rnd.IntN(20) == 0 {
		w.record()
	}
	if w.stepsLeft--; w.stepsLeft <= 0 {
		w.endFault()
		if w.rnd.IntN(4) == 0 {
			w.startFault()
		}
	}
	time.Sleep(time.Duration(w.rnd.IntN(30)) * time.Millisecond) // not a wait: the time scale of the steps
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
		"compacted": func() func() { w.compact(); return nil },
		"denied":    w.deny,
		"full":      w.fillUp,
		"deleted":   w.deleteSome,
		"forged":    w.forge,
		"replayed":  w.replay,
		"backed up": w.backUp,
		"restored":  w.restoreBackup,
		"left":      w.leave, "clone": w.clone, "two leaders": w.overlap, "flicker": w.flicker,
	}
	names := slices.Sorted(maps.Keys(faults))
	name := names[w.rnd.IntN(len(names))]
	w.t.Logf("%s (%d members) for %d steps", name, len(some), w.stepsLeft)
	w.tally.Add(name, 1)
	w.history.Logf("fault: %s (%d members) for %d steps", name, len(some), w.stepsLeft)
	w.restore = faults[name]()
}

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

// attempt bounds a request of another user: a member that was suspended or has no leader may never answer, and the next request goes to another one.
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

func (w *faultSimulation) deny() (restore func()) {
	e := w.exporters[w.rnd.IntN(len(w.exporters))]
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

// victim returns a random exporter.
func (w *faultSimulation) victim() string {
	return w.exporters[w.rnd.IntN(len(w.exporters))].identity.ClusterID
}

// deleteSome deletes keys without the word of their cluster.
func (w *faultSimulation) deleteSome() (restore func()) {
	l, id := w.layout("set1"), w.victim()
	prefixes := []string{
		l.member(id), l.alive(id), l.cluster(id) + exportsSuffix, l.export(id, webKey(w.rnd.IntN(allKeys))), l.cluster(id), l.root,
	}
	prefix := prefixes[w.rnd.IntN(len(prefixes))]
	w.retry("deleted", func(ctx context.Context) error {
		_, err := w.Root().Delete(ctx, prefix, clientv3.WithPrefix())
		return err
	})
	return nil
}

// forge writes a member record or an export that another cluster has signed.
func (w *faultSimulation) forge() (restore func()) {
	l, id := w.layout("set1"), w.victim()
	forger := mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-of-the-forger"}
	i, later := w.rnd.IntN(allKeys), time.Now().Add(time.Hour)
	key, value := l.member(id), memberValue(w.t, forger, later, setOf(nil))
	switch w.rnd.IntN(3) {
	case 0:
		key, value = l.member(id), forgedFarewell(w.t, map[string]mcs.Identity{"cls1": cls1, "cls2": cls2}[id], later)
	case 1:
		key, value = l.export(id, webKey(i)), exportValue(w.t, forger, i, 9999, later.UnixMilli())
	}
	w.retry("forged", func(ctx context.Context) error {
		_, err := w.Root().Put(ctx, key, string(value))
		return err
	})
	return nil
}

// replay writes an earlier value of a key again.
func (w *faultSimulation) replay() (restore func()) {
	if len(w.recorded) == 0 {
		return nil
	}
	old := w.recorded[w.rnd.IntN(len(w.recorded))]
	w.retry("replayed", func(ctx context.Context) error {
		_, err := w.Root().Put(ctx, old.key, old.value)
		return err
	})
	return nil
}

// record keeps the values of an exporter's keys.
func (w *faultSimulation) record() {
	ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
	defer cancel()
	answer, err := w.Root().Get(ctx, w.layout("set1").cluster(w.victim()), clientv3.WithPrefix(), clientv3.WithSerializable())
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
func (w *faultSimulation) restoreBackup() (restore func()) {
	if w.backup == nil {
		return nil
	}
	if err := w.backup(); err != nil {
		w.t.Fatal(err)
	}
	return nil
}

func (w *faultSimulation) fillUp() (restore func()) {
	fillStorage(w.t, w.testStore)
	return func() {
		w.retryWithin(10*attempt, "freeing etcd's storage", func(ctx context.Context) error { return tryFreeStorage(ctx, w.testStore) })
	}
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
	if w.late != nil {
		w.late.stop(nil) // what it has not read yet may have been allowed until now
	}
	late := w.observe(mcs.Identity{ClusterID: "cls4", ClusterSetID: "set1", UID: "uid-4"})
	w.late = late
	for _, e := range w.exporters {
		id := e.identity.ClusterID
		for i := range allKeys {
			wanted := registry.Absent
			if e.wanted(i) > 0 {
				wanted = registry.Exported
			}
			awaitState(w.t, e.reg, i, wanted)
			awaitVersion(w.t, w.watcher.reg, id, i, e.wanted(i))
			awaitVersion(w.t, late.reg, id, i, e.wanted(i))
		}
	}
	awaitReason(w.t, w.duplicate, allKeys, "uid-1")
	for _, e := range w.exporters {
		e.mu.Lock()
		clear(e.mayBeAbsent)
		clear(e.cloned)
		e.mu.Unlock()
	}
	w.checkSameViews(late.reg)
	w.checkSteadyState()
	w.check()
}

// checkSameViews checks that all clusters see the same exports.
func (w *faultSimulation) checkSameViews(late *Registry) {
	for i := range allKeys {
		a, b := lookupView(w.t, w.watcher.reg, i), lookupView(w.t, late, i)
		if len(a.Unknown)+len(b.Unknown) > 0 {
			w.fail("unknown clusters %v and %v of %v", a.Unknown, b.Unknown, webKey(i))
		}
		if !slices.EqualFunc(a.Exports, b.Exports, mcs.Export.Equal) {
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
