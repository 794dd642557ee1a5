package etcd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestRandomFaults has two clusters that publish, withdraw, restart and leave at random, and a third that only watches, on an
// etcd of three members that are killed, stuck and cut off, from clients and from one another, that is compacted at bad
// moments and runs out of room, and that takes permissions away and gives them back. It checks at every notification and every step:
//
//   - an export that nobody withdraws never goes away (promises 1, 3 and 5), and no cluster is taken for stale (4);
//   - nobody ever sees an earlier version of an export after a later one, so no late write of a process that is gone counts;
//   - garbage hurts nobody else (2);
//   - the exports of a second cluster with an ID in use are never seen, and it says why (8).
//
// Now and then the faults end. Then everything must become as it was asked for, in every cluster alike (9), and nothing but
// heartbeats be written any more (10).
//
// FAULTS_SEED replays a run as far as real processes and clocks allow, FAULTS_STEPS makes it longer.
func TestRandomFaults(t *testing.T) {
	seed, steps := registrytest.Setting(t, "FAULTS_SEED", uint64(time.Now().UnixNano())), registrytest.Setting(t, "FAULTS_STEPS", 600)
	t.Logf("seed %d", seed)
	w := newFaultyWorld(t, rand.New(rand.NewPCG(seed, 1)))
	for step := range steps {
		w.step()
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

// faultyWorld is everything that takes part.
type faultyWorld struct {
	t   *testing.T
	rnd *rand.Rand
	*testStore
	exporters []*exporter
	watcher   *observer
	twin      *Registry
	// mend ends the fault that is there, nil when none is; it stays for some steps more.
	mend  func()
	stays int
}

func newFaultyWorld(t *testing.T, rnd *rand.Rand) *faultyWorld {
	t.Helper()
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{
		Program: program(t), Dir: t.TempDir(), Members: 3,
		Args: []string{"--heartbeat-interval=50", "--election-timeout=500", "--bcrypt-cost=4", "--auth-token-ttl=5", "--unsafe-no-fsync", "--quota-backend-bytes=8388608"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	w := &faultyWorld{t: t, rnd: rnd, testStore: newTestStore(t, c)}
	w.direct = true
	for _, id := range []string{"cls3", "cls4"} { // before anything goes wrong
		if _, _, err := w.AddCluster(t.Context(), w.prefix, "set1", id); err != nil {
			t.Fatal(err)
		}
	}
	w.watcher = w.observe(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"})
	for _, identity := range []mcs.Identity{cls1, cls2} {
		e := &exporter{world: w, identity: identity, want: map[int]int{}, version: map[int]int{}}
		w.exporters = append(w.exporters, e)
		e.start()
		for i := range steadyKeys {
			e.change(i)
		}
	}
	twin := cls1
	twin.UID = "uid-of-the-twin"
	for _, e := range w.exporters {
		awaitVersion(t, w.watcher.reg, e.identity.ClusterID, 0, 1)
	}
	w.twin = w.registry(t, fast(twin))
	start(t, w.twin)
	if err := w.twin.Publish(t.Context(), webExport("cls1", allKeys, 1)); err != nil {
		t.Fatal(err)
	}
	w.put(t, w.layout("set1").export("cls2", webKey(allKeys+1)), "garbage")
	return w
}

// observer is a registry whose every view is checked.
type observer struct {
	world *faultyWorld
	reg   *Registry
	mu    sync.Mutex
	// last is the last version seen of each export, by cluster and key.
	last map[string]int
}

func (w *faultyWorld) observe(identity mcs.Identity) *observer {
	o := &observer{world: w, reg: w.registry(w.t, fast(identity)), last: map[string]int{}}
	startWith(w.t, o.reg, func(key mcs.Key) {
		var i int
		if _, err := fmt.Sscanf(key.Name, "web-%d", &i); err != nil {
			w.t.Errorf("a notification of %v", key)
		}
		o.check(i)
	})
	return o
}

// check looks at one key.
func (o *observer) check(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	view, err := o.reg.Lookup(o.world.t.Context(), webKey(i))
	if err != nil {
		return // before the first read; it must not come back, which version's zero would show
	}
	seen := map[string]int{}
	for _, exp := range view.Exports {
		seen[exp.Cluster] = int(exp.Ports[0].Port) - 1
	}
	for _, id := range []string{"cls1", "cls2"} {
		name := fmt.Sprintf("%s %d", id, i)
		switch n := seen[id]; {
		case n == 0 && i < steadyKeys && o.last[name] > 0:
			o.world.t.Errorf("the export %s went away, though nobody withdrew it", name)
		case n != 0 && n < o.last[name]:
			o.world.t.Errorf("the export %s went back from version %d to %d", name, o.last[name], n)
		default:
			o.last[name] = max(o.last[name], n)
		}
	}
	if i == allKeys && len(view.Exports) > 0 {
		o.world.t.Error("the export of the second cluster with one ID is seen")
	}
	if len(view.Stale) > 0 {
		o.world.t.Errorf("stale clusters %v, though all live", view.Stale)
	}
}

// exporter is a controller that forgets and comes back.
type exporter struct {
	world    *faultyWorld
	identity mcs.Identity
	reg      *Registry
	stop     func(error)
	// want is the version that the user wants of each key, 0 none; version the last that there ever was.
	want, version map[int]int
}

func (e *exporter) start() {
	timings := fastTimings()
	if e.identity == cls1 {
		// Its lease outlasts every fault, so that the twin never gets the ID. cls2's runs out now and then.
		timings.lease = time.Minute
	}
	e.reg = e.world.registryWith(e.world.t, fast(e.identity), timings)
	e.stop = start(e.world.t, e.reg)
}

// change makes a new version.
func (e *exporter) change(i int) {
	e.version[i]++
	e.want[i] = e.version[i]
	e.tell(i)
}

// tell passes on what the user wants of one key.
func (e *exporter) tell(i int) {
	if n := e.want[i]; n > 0 {
		publish(e.world.t, e.reg, i, n)
	} else {
		withdraw(e.world.t, e.reg, i)
	}
}

func (e *exporter) step(rnd *rand.Rand) {
	i := rnd.IntN(allKeys)
	switch dice := rnd.IntN(100); {
	case dice < 4:
		e.stop(nil)
		e.start()
		for i := range allKeys {
			e.tell(i)
		}
	case dice < 30 && i >= steadyKeys:
		e.want[i] = 0
		e.tell(i)
	default:
		e.change(i)
	}
}

// step is one thing that happens.
func (w *faultyWorld) step() {
	w.exporters[w.rnd.IntN(len(w.exporters))].step(w.rnd)
	if w.stays--; w.stays <= 0 {
		w.heal()
		if w.rnd.IntN(4) == 0 {
			w.hurt()
		}
	}
	time.Sleep(time.Duration(w.rnd.IntN(30)) * time.Millisecond) // the scale of what is going on, not a wait for anything
}

func (w *faultyWorld) heal() {
	if w.mend != nil {
		w.mend()
		w.mend = nil
	}
}

// hurt makes one fault.
func (w *faultyWorld) hurt() {
	w.stays = 5 + w.rnd.IntN(40)
	some := slices.Clone(w.Members)
	w.rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:1+w.rnd.IntN(2)] // two of three: no quorum
	faults := map[string]func() (mend func()){
		"killed": func() func() { return each(some, (*etcdtest.Member).Kill, w.startMember) },
		"stuck":  func() func() { return each(some, (*etcdtest.Member).Pause, (*etcdtest.Member).Resume) },
		"cut off from clients": func() func() {
			return each(some, func(m *etcdtest.Member) { m.Clients.Cut() }, func(m *etcdtest.Member) { m.Clients.Restore() })
		},
		"cut off from members": func() func() {
			return each(some, func(m *etcdtest.Member) { m.Peers.Cut() }, func(m *etcdtest.Member) { m.Peers.Restore() })
		},
		"compacted while cut off": func() func() {
			mend := each(w.Members, func(m *etcdtest.Member) { m.Clients.Cut() }, func(m *etcdtest.Member) { m.Clients.Restore() })
			return func() { mend(); w.compact() }
		},
		"compacted": func() func() { w.compact(); return nil },
		"denied":    w.deny,
		"full":      w.fillUp,
	}
	names := slices.Sorted(maps.Keys(faults))
	name := names[w.rnd.IntN(len(names))]
	w.t.Logf("%s (%d members) for %d steps", name, len(some), w.stays)
	w.mend = faults[name]()
}

func each(members []*etcdtest.Member, do, undo func(*etcdtest.Member)) (mend func()) {
	for _, m := range members {
		do(m)
	}
	return func() {
		for _, m := range members {
			undo(m)
		}
	}
}

func (w *faultyWorld) startMember(m *etcdtest.Member) {
	if err := m.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// insist repeats what may fail while etcd recovers.
func (w *faultyWorld) insist(what string, do func() error) {
	w.t.Helper()
	var err error
	defer func() {
		if w.t.Failed() {
			w.t.Log(err)
		}
	}()
	within(w.t, what, func() bool { err = do(); return err == nil })
}

func (w *faultyWorld) compact() {
	w.insist("compacted", func() error {
		answer, err := w.Root().Get(w.t.Context(), w.prefix)
		if err == nil {
			_, err = w.Root().Compact(w.t.Context(), answer.Header.Revision)
		}
		return err
	})
}

func (w *faultyWorld) deny() (mend func()) {
	e := w.exporters[w.rnd.IntN(len(w.exporters))]
	user, _, err := w.AddCluster(w.t.Context(), w.prefix, e.identity.ClusterSetID, e.identity.ClusterID)
	if err != nil {
		w.t.Fatal(err)
	}
	done := func(do func() error) func() error {
		return func() error {
			if err := do(); err != nil && !strings.Contains(err.Error(), "not granted") && !strings.Contains(err.Error(), "already") {
				return err
			}
			return nil
		}
	}
	w.insist("denied", done(func() error { return w.Revoke(w.t.Context(), user) }))
	return func() { w.insist("allowed", done(func() error { return w.Restore(w.t.Context(), user) })) }
}

func (w *faultyWorld) fillUp() (mend func()) {
	fill(w.t, w.testStore)
	return func() {
		w.insist("there is room", func() error { return tryMakeRoom(w.t.Context(), w.testStore) })
	}
}

// check looks at every key in every cluster.
func (w *faultyWorld) check() {
	for i := range allKeys + 1 {
		w.watcher.check(i)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// settle ends the faults and waits until everything is as it was asked for, everywhere.
func (w *faultyWorld) settle() {
	w.heal()
	w.stays = 0
	late := w.observe(mcs.Identity{ClusterID: "cls4", ClusterSetID: "set1", UID: "uid-4"})
	for _, e := range w.exporters {
		id := e.identity.ClusterID
		for i := range allKeys {
			wanted := registry.Absent
			if e.want[i] > 0 {
				wanted = registry.Exported
			}
			awaitState(w.t, e.reg, i, wanted)
			awaitVersion(w.t, w.watcher.reg, id, i, e.want[i])
			awaitVersion(w.t, late.reg, id, i, e.want[i])
		}
	}
	awaitReason(w.t, w.twin, allKeys, "uid-1")
	w.sameMerge(late.reg)
	w.silent()
	w.check()
}

// sameMerge checks that every cluster comes to the same result.
func (w *faultyWorld) sameMerge(late *Registry) {
	for i := range allKeys {
		a, b := look(w.t, w.watcher.reg, i), look(w.t, late, i)
		if len(a.Unknown)+len(b.Unknown) > 0 {
			w.t.Errorf("unknown clusters %v and %v of %v", a.Unknown, b.Unknown, webKey(i))
		}
		if !slices.EqualFunc(a.Exports, b.Exports, mcs.Export.Equal) {
			w.t.Errorf("two clusters see %v differently", webKey(i))
		}
	}
}

// silent checks that nothing is written of exports while nothing changes.
func (w *faultyWorld) silent() {
	before, l := w.writes.Load(), w.layout("set1")
	first := ""
	within(w.t, "another heartbeat", func() bool {
		answer, err := w.Root().Get(w.t.Context(), l.member("cls1"), clientv3.WithSerializable())
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
		w.t.Errorf("%d exports were written with nothing changing", after-before)
	}
}
