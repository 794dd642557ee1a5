// Package registrytest has the contract of package registry as tests, which every backend passes
// unchanged. Tests wait for notifications, so a backend that misses one fails.
package registrytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Backend is one store, empty at first, with hooks to create registries on it and to inject faults.
// Clauses that need a hook are skipped if it is nil.
type Backend struct {
	// New creates a registry for identity, as a starting process does. The same identity again is a
	// restart.
	New func(t *testing.T, identity mcs.Identity, options Options) registry.Registry
	// NewReader creates a registry that only imports: its cluster is no member.
	NewReader func(t *testing.T, identity mcs.Identity) registry.Registry
	// Fail makes every request fail until restore is called.
	Fail func(t *testing.T) (restore func())
	// Corrupt replaces a cluster's stored export of key with garbage until the cluster publishes
	// again. It returns whether the garbage covers a key: backends store several keys together.
	Corrupt func(t *testing.T, clusterSetID, clusterID string, key mcs.Key) (covers func(mcs.Key) bool)
	// DeleteExport deletes a cluster's stored export of key, as another user of the store may.
	DeleteExport func(t *testing.T, clusterSetID, clusterID string, key mcs.Key)
	// DropHeartbeats keeps the heartbeats of all clusters from the store, which otherwise works,
	// until restore is called.
	DropHeartbeats func(t *testing.T) (restore func())
	// DeleteMember deletes a cluster's stored membership, but not its exports.
	DeleteMember func(t *testing.T, clusterSetID, clusterID string)
	// StaleAfter is the time after which registries created by New find a cluster stale; 0 skips
	// the clauses about it.
	StaleAfter time.Duration
	// Writes counts the writes of exports so far, without heartbeats.
	Writes func() int
	// Empty reports whether the store holds nothing of a cluster but its farewell.
	Empty func(t *testing.T, clusterSetID, clusterID string) bool
	// Wipe deletes everything that the store holds, as another user of it may.
	Wipe func(t *testing.T)
	// Forge replaces the member record of a cluster by one that announces no exports and is signed
	// with a key of another cluster, as another member may with the policies that a backend ships.
	Forge func(t *testing.T, clusterSetID, clusterID string)
	// Record returns a function that writes everything that the store holds of a cluster now again,
	// and deletes what came since: as from a backup, or by another user who kept it.
	Record func(t *testing.T, clusterSetID, clusterID string) (replay func())
	// NewWithRotatedKey creates a registry as New does, after the key of the cluster was rotated.
	NewWithRotatedKey func(t *testing.T, identity mcs.Identity) registry.Registry
	// IsVariant skips the clauses of evidence.go, for a setting that does not change them of a
	// backend that runs them in another test.
	IsVariant bool
	// Timeout bounds each wait; 0 is a minute, for machines that do other work.
	Timeout time.Duration
}

// Options are what a clause changes of the registries that New creates.
type Options struct {
	// HeartbeatInterval replaces the time between two heartbeats if it is not 0. Backends without
	// heartbeats ignore it.
	HeartbeatInterval time.Duration
}

// Heartbeat returns the time between two heartbeats, which is standard without the option.
func (o Options) Heartbeat(standard time.Duration) time.Duration {
	if o.HeartbeatInterval != 0 {
		return o.HeartbeatInterval
	}
	return standard
}

// Run runs every clause in parallel, each on a store of its own.
func Run(t *testing.T, factory func(t *testing.T) Backend) {
	t.Helper()
	run(t, clauses, factory)
	run(t, evidenceClauses, func(t *testing.T) Backend {
		b := factory(t)
		if b.IsVariant {
			t.Skip("another test of this backend runs it")
		}
		return b
	})
}

func run(t *testing.T, clauses []clause, factory func(t *testing.T) Backend) {
	t.Helper()
	for _, clause := range clauses {
		t.Run(clause.name, func(t *testing.T) {
			t.Parallel()
			h := &harness{Backend: factory(t)}
			if h.Timeout == 0 {
				h.Timeout = time.Minute
			}
			clause.test(t, h)
		})
	}
}

type clause struct {
	name string
	test func(*testing.T, *harness)
}

var clauses = []clause{
	{"an export is seen by the others and confirmed to its publisher", testPublish},
	{"nothing is known before the first read", testNotSynced},
	{"a lookup before the first read is notified", testLookupBeforeSync},
	{"repeating a publication costs nothing", testRepublish},
	{"an export is replaced", testUpdate},
	{"an export is withdrawn", testWithdraw},
	{"withdrawing a missing export is no error", testWithdrawAbsent},
	{"the last change counts", testLastChange},
	{"zero endpoints is an export", testZeroEndpoints},
	{"every field travels", testFields},
	{"a large export travels whole", testLarge},
	{"many exports at once", testMany},
	{"two clusters export one key", testTwoExporters},
	{"clustersets are separate", testClusterSets},
	{"an export of another cluster is refused", testWrongCluster},
	{"a start notifies of every key", testStartNotifiesAll},
	{"a restart withdraws nothing", testRestartKeeps},
	{"a previous process's export can be withdrawn", testRestartWithdraws},
	{"results are not shared", testAliasing},
	{"the end of the context ends Run and keeps everything", testStop},
	{"leaving removes everything", testLeave},
	{"leaving removes what a previous process left", testLeaveAfterRestart},
	{"leaving keeps a live clone's exports", testLeaveClone},
	{"members are listed", testMembers},
	{"ClusterProperties travel, and a change notifies of the cluster's keys", testProperties},
	{"a report of imports travels, and outlives the process", testImports},
	{"a report names every key", testReport},
	{"a duplicate cluster ID is refused until the first cluster leaves", testDuplicateID},
	{"a duplicate that leaves ends nothing of the first cluster", testDuplicateLeaves},
	{"exports stay while the registry fails", testFailing},
	{"a registry that cannot be read is not synced", testFailingFromStart},
	{"a corrupt export affects only itself", testCorrupt},
	{"a corrupt export is unknown after a start", testCorruptAtStart},
	{"a deleted export is restored", testDeletedExport},
	{"a dead cluster is stale until it is back", testStale},
	{"a dead cluster without a member record is stale", testStaleWithoutRecord},
	{"a dead cluster has unknown liveness after a start", testStaleAtStart},
	{"a dead cluster whose export is unknown is stale", testStaleUnknown},
	{"a registry that fails makes no cluster stale", testNotStaleWhileFailing},
	{"a registry without heartbeats makes no cluster stale", testNotStaleWithoutHeartbeats},
}

const clusterSet = "set1"

func identity(clusterID string) mcs.Identity {
	return mcs.Identity{ClusterID: clusterID, ClusterSetID: clusterSet, UID: "uid-of-" + clusterID}
}

func key(name string) mcs.Key { return mcs.Key{Namespace: "demo", Name: name} }

func testPublish(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	want := export("cls1", key("web"), 3)
	a.publish(want)
	b.await(key("web"), exportsAre(want))
	a.await(key("web"), isState(registry.Exported))
	if view := a.lookup(key("web")); len(view.Exports()) != 0 {
		t.Errorf("the publisher's View has its own export: %v", view.Exports())
	}
	if view := b.lookup(key("web")); view.Local.State != registry.Absent {
		t.Errorf("the other's own status is %v, want Absent", view.Local.State)
	}
}

func testNotSynced(t *testing.T, h *harness) {
	reg := h.New(t, identity("cls1"), Options{})
	if _, err := reg.Lookup(t.Context(), key("web")); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Lookup before Run: error %v, want ErrNotSynced", err)
	}
	if _, err := reg.Members(t.Context()); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Members before Run: error %v, want ErrNotSynced", err)
	}
	if err := reg.Publish(t.Context(), export("cls1", key("web"), 1)); err != nil {
		t.Fatalf("Publish before Run: %v", err)
	}
	h.run(t, reg).await(key("web"), isState(registry.Exported))
}

func testLookupBeforeSync(t *testing.T, h *harness) {
	reg := h.New(t, identity("cls1"), Options{})
	if _, err := reg.Lookup(t.Context(), key("missing")); !errors.Is(err, registry.ErrNotSynced) {
		t.Fatalf("Lookup before Run: error %v, want ErrNotSynced", err)
	}
	h.run(t, reg).await(key("missing"), all(isState(registry.Absent), exportsAre(), unknownAre()))
}

func testRepublish(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	exp := export("cls1", key("web"), 3)
	a.publish(exp)
	b.await(key("web"), exportsAre(exp))
	a.await(key("web"), isState(registry.Exported))
	// A read may still have been under way when Exported showed; the next export comes after it.
	a.publish(export("cls1", key("fence-1"), 1))
	a.await(key("fence-1"), isState(registry.Exported))
	writes := h.writes()
	shuffled := export("cls1", key("web"), 3)
	shuffled.Changed = shuffled.Changed.Add(time.Hour)
	endpoints := shuffled.Backends[0].Endpoints
	endpoints[0], endpoints[2] = endpoints[2], endpoints[0]
	for range 3 {
		a.publish(exp)
		a.publish(shuffled)
	}
	if view := a.lookup(key("web")); view.Local.State != registry.Exported {
		t.Errorf("after repeating, the status is %v, want Exported", view.Local)
	}
	a.publish(export("cls1", key("fence-2"), 1))
	a.await(key("fence-2"), isState(registry.Exported))
	b.await(key("fence-2"), oneExport)
	if h.Writes == nil {
		return
	}
	if more := h.writes() - writes; more != 1 {
		t.Errorf("repeating a publication and publishing another export made %d writes, want 1", more)
	}
}

func testUpdate(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	exp := export("cls1", key("web"), 3)
	a.publish(exp)
	a.await(key("web"), isState(registry.Exported)) // a key that was not read yet has no status
	b.await(key("web"), exportsAre(exp))
	exp.Backends[0].Endpoints[1].Ready = false
	a.publish(exp)
	b.await(key("web"), exportsAre(exp))
	exp.Backends[0].Endpoints = exp.Backends[0].Endpoints[:1]
	a.publish(exp)
	if view := a.lookup(key("web")); view.Local.State != registry.Pending && view.Local.State != registry.Exported {
		t.Errorf("status %v, want Pending or Exported", view.Local)
	}
	b.await(key("web"), exportsAre(exp))
	a.await(key("web"), isState(registry.Exported))
}

func testWithdraw(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web, db := export("cls1", key("web"), 3), export("cls1", key("db"), 1)
	a.publish(web)
	a.publish(db)
	b.await(key("web"), exportsAre(web))
	b.await(key("db"), exportsAre(db))
	a.withdraw(key("web"))
	b.await(key("web"), exportsAre())
	a.await(key("web"), isState(registry.Absent))
	b.await(key("db"), exportsAre(db))
}

func testWithdrawAbsent(t *testing.T, h *harness) {
	a := h.start(t, identity("cls1"))
	a.withdraw(key("never-there"))
	a.await(key("never-there"), isState(registry.Absent))
	a.publish(export("cls1", key("web"), 1))
	a.await(key("web"), isState(registry.Exported))
	a.withdraw(key("never-there"))
	a.await(key("never-there"), isState(registry.Absent))
}

func testLastChange(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	want := export("cls1", key("web"), 7)
	for n := range 7 {
		a.publish(export("cls1", key("web"), n))
		a.withdraw(key("web"))
		a.publish(export("cls1", key("gone"), n))
	}
	a.publish(want)
	a.withdraw(key("gone"))
	a.await(key("web"), isState(registry.Exported))
	a.await(key("gone"), isState(registry.Absent))
	b.await(key("web"), exportsAre(want))
	b.await(key("gone"), exportsAre())
}

func testZeroEndpoints(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	full, none := export("cls1", key("web"), 3), export("cls1", key("web"), 0)
	a.publish(none)
	b.await(key("web"), exportsAre(none))
	a.await(key("web"), isState(registry.Exported))
	a.publish(full)
	b.await(key("web"), exportsAre(full))
	a.publish(none)
	b.await(key("web"), exportsAre(none))
}

func testFields(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	want := fullExport("cls1", key("web"))
	a.publish(want)
	b.await(key("web"), exportsAre(want))
	selecting := selectingExport("cls1", key("selecting"))
	a.publish(selecting)
	b.await(key("selecting"), exportsAre(selecting))
	for _, got := range b.lookup(key("web")).Exports() {
		if !got.Changed.Equal(want.Changed) {
			t.Errorf("Changed arrived as %v, want %v", got.Changed, want.Changed)
		}
		if got.InstanceAttributes != "" || got.Region != "" || got.InstanceDNS != "" {
			t.Errorf("attributes of instances %q of Region %q, with records %q, were published", got.InstanceAttributes, got.Region, got.InstanceDNS)
		}
		for _, group := range got.Backends {
			for _, e := range group.Endpoints {
				if e.Node != "" || e.Pod != "" {
					t.Errorf("node name %q and pod name %q were published", e.Node, e.Pod)
				}
			}
		}
	}
}

func testProperties(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	propertiesAre := func(want mcs.Properties) condition {
		return func(v registry.View) string {
			members, err := b.reg.Members(t.Context())
			for _, m := range members {
				if m.ClusterID == "cls1" {
					return cmp.Diff(want, m.Properties) + cmp.Diff(want, v.Clusters["cls1"].Properties)
				}
			}
			return fmt.Sprintf("no cls1 among the members %v, %v", members, err)
		}
	}
	first := mcs.Properties{mcs.PropertyRegion: "eu-west-1", "note.example.com": "ünïcode, <with> \"quotes\" 🌍"}
	a.reg.SetProperties(first.OfCluster("cls9", "other"))
	a.publish(export("cls1", key("web"), 1))
	b.await(key("web"), oneExport)
	b.await(key("web"), propertiesAre(first))
	a.await(key("web"), isState(registry.Exported))
	second := mcs.Properties{mcs.PropertyRegion: "eu-west-2"}
	a.reg.SetProperties(second)
	b.await(key("web"), propertiesAre(second))

	// A new process does not take them back before it knows its own.
	a.stop(nil)
	a = h.startPublishing(t, identity("cls1"), export("cls1", key("web"), 1), export("cls1", key("more"), 1))
	b.await(key("more"), oneExport)
	if diff := propertiesAre(second)(b.lookup(key("web"))); diff != "" {
		t.Errorf("properties after a restart (-want +got):\n%s", diff)
	}
	a.reg.SetProperties(mcs.Properties{})
	b.await(key("web"), propertiesAre(mcs.Properties{}))
}

func testImports(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	shows := func(want mcs.ImportReport) {
		t.Helper()
		h.until(t, fmt.Sprintf("the others read report %q", want), func() bool {
			members, err := b.reg.Members(t.Context())
			return err == nil && slices.ContainsFunc(members, func(m registry.Member) bool { return m.ClusterID == "cls1" && m.Imports == want })
		})
	}
	a.publish(export("cls1", key("web"), 1))
	b.await(key("web"), oneExport)
	shows("")
	first := mcs.NewImportReport(map[string][]mcs.Key{"cls2": {key("db")}}, nil)
	a.reg.SetImports(first)
	shows(first)

	// A new process does not take it back before it knows its imports.
	a.stop(nil)
	a = h.startPublishing(t, identity("cls1"), export("cls1", key("web"), 1), export("cls1", key("more"), 1))
	b.await(key("more"), oneExport)
	shows(first)
	a.reg.SetImports(mcs.ManyImports)
	shows(mcs.ManyImports)
	none := mcs.NewImportReport(nil, nil)
	a.reg.SetImports(none)
	shows(none)
}

func testLarge(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	want := dualStackExport("cls1", key("web"), 1500)
	a.publish(want)
	b.await(key("web"), exportsAre(want))
	a.await(key("web"), isState(registry.Exported))
	// Growing and shrinking a large export must not mix two versions of it.
	smaller := dualStackExport("cls1", key("web"), 200)
	a.publish(smaller)
	b.await(key("web"), exportsAre(smaller))
	a.withdraw(key("web"))
	b.await(key("web"), exportsAre())
	a.await(key("web"), isState(registry.Absent))
}

func testMany(t *testing.T, h *harness) {
	const count = 300
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	for i := range count {
		a.publish(export("cls1", key(fmt.Sprintf("svc-%d", i)), 10))
	}
	for i := range count {
		k := key(fmt.Sprintf("svc-%d", i))
		b.await(k, exportsAre(export("cls1", k, 10)))
		a.await(k, isState(registry.Exported))
	}
	for i := range count {
		a.withdraw(key(fmt.Sprintf("svc-%d", i)))
	}
	for i := range count {
		b.await(key(fmt.Sprintf("svc-%d", i)), exportsAre())
	}
}

func testTwoExporters(t *testing.T, h *harness) {
	a, b, c := h.start(t, identity("cls1")), h.start(t, identity("cls2")), h.start(t, identity("cls3"))
	ofA, ofB := export("cls1", key("web"), 1), export("cls2", key("web"), 2)
	b.publish(ofB)
	a.publish(ofA)
	c.await(key("web"), exportsAre(ofA, ofB))
	a.await(key("web"), all(exportsAre(ofB), isState(registry.Exported)))
	b.await(key("web"), all(exportsAre(ofA), isState(registry.Exported)))
	a.withdraw(key("web"))
	c.await(key("web"), exportsAre(ofB))
	b.await(key("web"), all(exportsAre(), isState(registry.Exported)))
}

func testClusterSets(t *testing.T, h *harness) {
	other := identity("cls1")
	other.ClusterSetID, other.UID = "set2", "another-uid"
	a, b, c := h.start(t, identity("cls1")), h.start(t, other), h.start(t, identity("cls2"))
	b.publish(export("cls1", key("of-set2"), 2))
	b.await(key("of-set2"), isState(registry.Exported))
	want := export("cls1", key("web"), 1)
	a.publish(want)
	c.await(key("web"), exportsAre(want))
	a.await(key("web"), isState(registry.Exported))
	c.await(key("of-set2"), exportsAre())
	b.await(key("web"), all(exportsAre(), isState(registry.Absent)))
	b.awaitMembers("cls1")
	c.awaitMembers("cls1", "cls2")
}

func testWrongCluster(t *testing.T, h *harness) {
	a := h.start(t, identity("cls1"))
	err := a.reg.Publish(t.Context(), export("cls2", key("web"), 1))
	var invalid *registry.InvalidExportError
	if !errors.As(err, &invalid) || invalid.Key != key("web") {
		t.Errorf("publishing an export of another cluster: error %v, want an InvalidExportError about %v", err, key("web"))
	}
	a.await(key("web"), isState(registry.Absent))
}

func testStartNotifiesAll(t *testing.T, h *harness) {
	a := h.start(t, identity("cls1"))
	var want []mcs.Export
	for i := range 20 {
		exp := export("cls1", key(fmt.Sprintf("svc-%d", i)), 2)
		want = append(want, exp)
		a.publish(exp)
	}
	for _, exp := range want {
		a.await(exp.Key, isState(registry.Exported))
	}
	b := h.start(t, identity("cls2"))
	a.stop(nil)
	again := h.startPublishing(t, identity("cls1"), want...)
	for _, exp := range want {
		// awaitNotified instead of await: there was no lookup of these keys.
		b.awaitNotified(exp.Key)
		again.awaitNotified(exp.Key)
		b.await(exp.Key, exportsAre(exp))
		again.await(exp.Key, all(isState(registry.Exported), exportsAre()))
	}
}

func testRestartKeeps(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	// So many keys that a backend stores some of them together.
	const count = 200
	for i := range count {
		a.publish(export("cls1", key(fmt.Sprintf("old-%d", i)), 1))
	}
	for i := range count {
		b.await(key(fmt.Sprintf("old-%d", i)), oneExport)
	}
	a.stop(nil)
	var exports []mcs.Export
	for i := range count {
		size := 1
		if i < 20 {
			exports = append(exports, export("cls1", key(fmt.Sprintf("new-%d", i)), 1))
			size = 5
		}
		exports = append(exports, export("cls1", key(fmt.Sprintf("old-%d", i)), size))
	}
	a = h.startPublishing(t, identity("cls1"), exports...)
	b.forbid(func(k mcs.Key, v registry.View) string {
		if strings.HasPrefix(k.Name, "old-") {
			return oneExport(v)
		}
		return ""
	})
	for i := range 20 {
		b.await(key(fmt.Sprintf("new-%d", i)), oneExport)
		old := key(fmt.Sprintf("old-%d", i))
		b.await(old, exportsAre(export("cls1", old, 5)))
	}
	for i := 20; i < count; i++ {
		old := key(fmt.Sprintf("old-%d", i))
		b.await(old, exportsAre(export("cls1", old, 1)))
		a.await(old, isState(registry.Exported))
	}
}

func testRestartWithdraws(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web, db := export("cls1", key("web"), 1), export("cls1", key("db"), 1)
	a.publish(web)
	a.publish(db)
	b.await(key("web"), exportsAre(web))
	b.await(key("db"), exportsAre(db))
	a.stop(nil)
	a = h.startPublishing(t, identity("cls1"), db)
	a.awaitNotified(key("web"))
	a.withdraw(key("web"))
	b.await(key("web"), exportsAre())
	a.await(key("web"), isState(registry.Absent))
	b.await(key("db"), exportsAre(db))

	// A withdrawal before the first read counts too.
	a.stop(nil)
	early := h.New(t, identity("cls1"), Options{})
	if err := early.Withdraw(t.Context(), key("db")); err != nil {
		t.Fatal(err)
	}
	a = h.run(t, early)
	b.await(key("db"), exportsAre())
	a.await(key("db"), isState(registry.Absent))
}

func testAliasing(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	exp := fullExport("cls1", key("web"))
	want := fullExport("cls1", key("web"))
	a.publish(exp)
	overwrite(&exp)
	b.await(key("web"), exportsAre(want))
	first := b.lookup(key("web")).Exports()
	first[0].Key.Name = "overwritten"
	_ = append(first[:0], mcs.Export{})
	b.await(key("web"), exportsAre(want))
}

func testStop(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	want := export("cls1", key("web"), 3)
	a.publish(want)
	a.await(key("web"), isState(registry.Exported))
	b.await(key("web"), exportsAre(want))
	a.stop(context.Canceled)
	c := h.start(t, identity("cls3"))
	c.await(key("web"), exportsAre(want))
	b.await(key("web"), exportsAre(want))
}

func testLeave(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web, big, other := export("cls1", key("web"), 3), dualStackExport("cls1", key("big"), 1500), export("cls2", key("web"), 1)
	a.publish(web)
	a.publish(big)
	b.publish(other)
	b.await(key("web"), all(exportsAre(web), isState(registry.Exported)))
	b.await(key("big"), exportsAre(big))
	a.stop(registry.ErrLeave)
	b.await(key("web"), all(exportsAre(), isState(registry.Exported)))
	b.await(key("big"), exportsAre())
	b.awaitMembers("cls2")
	if h.Empty != nil && !h.Empty(t, clusterSet, "cls1") {
		t.Error("the store still holds something of the cluster that left")
	}
	again := h.start(t, identity("cls1"))
	again.await(key("web"), all(exportsAre(other), isState(registry.Absent)))
}

func testLeaveAfterRestart(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	a.await(key("web"), isState(registry.Exported))
	b.await(key("web"), exportsAre(web))
	a.stop(nil)
	h.leaveAs(t, identity("cls1"))
	b.await(key("web"), exportsAre())
	b.awaitMembers("cls2")
	if h.Empty != nil && !h.Empty(t, clusterSet, "cls1") {
		t.Error("the store still holds something of the cluster that left")
	}
	h.leaveAs(t, identity("cls1")) // nothing is stored: nothing to do
	otherCluster := identity("cls2")
	otherCluster.UID = "uid-of-another"
	h.leaveAs(t, otherCluster)
	b.awaitMembers("cls2")
}

func testLeaveClone(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	a.await(key("web"), isState(registry.Exported))
	b.await(key("web"), exportsAre(web))
	b.forbid(func(_ mcs.Key, v registry.View) string { return exportsAre(web)(v) })
	h.leaveAs(t, identity("cls1"))
	b.await(key("web"), exportsAre(web))
	a.await(key("web"), isState(registry.Exported))
	b.awaitMembers("cls1", "cls2")
}

func testMembers(t *testing.T, h *harness) {
	a := h.start(t, identity("cls1"))
	a.awaitMembers("cls1")
	began := time.Now()
	b := h.start(t, identity("cls2"))
	a.awaitMembers("cls1", "cls2")
	b.awaitMembers("cls1", "cls2")
	members, err := a.reg.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.UID != identity(m.ClusterID).UID {
			t.Errorf("member %s has UID %q, want %q", m.ClusterID, m.UID, identity(m.ClusterID).UID)
		}
		if len(m.Problems) != 0 {
			t.Errorf("member %s has problems: %q", m.ClusterID, m.Problems)
		}
		if m.LastSeen.Before(began.Add(-h.Timeout)) {
			t.Errorf("member %s was last seen at %v", m.ClusterID, m.LastSeen)
		}
	}
}

func testDuplicateID(t *testing.T, h *harness) {
	first, watcher := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web, theirs := export("cls1", key("web"), 3), export("cls2", key("other"), 1)
	first.publish(web)
	watcher.publish(theirs)
	first.await(key("web"), isState(registry.Exported))
	watcher.await(key("web"), exportsAre(web))

	duplicateOf := identity("cls1")
	duplicateOf.UID = "uid-of-the-duplicate"
	second := h.start(t, duplicateOf)
	mine := export("cls1", key("mine"), 1)
	second.publish(mine)
	second.await(key("mine"), func(v registry.View) string {
		var duplicate *registry.DuplicateIDError
		if v.Local.State != registry.Pending || !errors.As(v.Local.Err, &duplicate) {
			return fmt.Sprintf("own status is %v (%v), want Pending with a DuplicateIDError", v.Local.State, v.Local.Err)
		}
		if duplicate.ClusterID != "cls1" || duplicate.OtherUID != identity("cls1").UID {
			return fmt.Sprintf("the error names %q with UID %q", duplicate.ClusterID, duplicate.OtherUID)
		}
		return ""
	})
	second.await(key("other"), exportsAre(theirs))
	first.await(key("web"), isState(registry.Exported))
	watcher.await(key("web"), exportsAre(web))
	watcher.await(key("mine"), exportsAre())

	first.stop(registry.ErrLeave)
	second.await(key("mine"), isState(registry.Exported))
	watcher.await(key("mine"), exportsAre(mine))
	watcher.await(key("web"), exportsAre())
}

// testDuplicateLeaves: a cluster with a restored copy of another one's signing key, and so with its
// ID and another UID, joins and leaves.
func testDuplicateLeaves(t *testing.T, h *harness) {
	first, watcher := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web := export("cls1", key("web"), 3)
	first.publish(web)
	first.await(key("web"), isState(registry.Exported))
	watcher.await(key("web"), exportsAre(web))
	watcher.forbid(func(k mcs.Key, v registry.View) string {
		if k == key("web") {
			return exportsAre(web)(v)
		}
		return ""
	})

	duplicateOf := identity("cls1")
	duplicateOf.UID = "uid-of-the-duplicate"
	second := h.start(t, duplicateOf)
	second.publish(export("cls1", key("mine"), 1))
	second.await(key("mine"), func(v registry.View) string {
		var duplicate *registry.DuplicateIDError
		if !errors.As(v.Local.Err, &duplicate) {
			return fmt.Sprintf("own status is %v (%v), want a DuplicateIDError", v.Local.State, v.Local.Err)
		}
		return ""
	})
	second.stop(registry.ErrLeave)
	other := export("cls1", key("after"), 1) // a change that is read after all of that
	first.publish(other)
	watcher.await(key("after"), exportsAre(other))
	watcher.await(key("web"), exportsAre(web))
	first.await(key("web"), isState(registry.Exported))
	watcher.awaitMembers("cls1", "cls2")
}

func testFailing(t *testing.T, h *harness) {
	if h.Fail == nil {
		t.Skip("the backend has no hook Fail")
	}
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	b.await(key("web"), exportsAre(web))
	a.await(key("web"), isState(registry.Exported))
	b.awaitMembers("cls1", "cls2")
	restore := h.Fail(t)
	b.forbid(func(k mcs.Key, v registry.View) string {
		if k == key("web") {
			return exportsAre(web)(v)
		}
		return ""
	})
	db := export("cls1", key("db"), 1)
	a.publish(db)
	a.await(key("db"), func(v registry.View) string {
		if v.Local.State != registry.Pending || v.Local.Err == nil {
			return fmt.Sprintf("own status is %v, want Pending with the reason", v.Local)
		}
		return ""
	})
	if view := b.lookup(key("web")); len(view.In(registry.Unknown)) != 0 {
		t.Errorf("unknown clusters %v, want none: the export had been read", view.In(registry.Unknown))
	}
	b.awaitMembers("cls1", "cls2")
	restore()
	a.await(key("db"), isState(registry.Exported))
	b.await(key("db"), exportsAre(db))
	b.await(key("web"), exportsAre(web))
}

func testFailingFromStart(t *testing.T, h *harness) {
	if h.Fail == nil {
		t.Skip("the backend has no hook Fail")
	}
	a := h.start(t, identity("cls1"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	a.await(key("web"), isState(registry.Exported))
	restore := h.Fail(t)
	b := h.start(t, identity("cls2"))
	if _, err := b.reg.Lookup(t.Context(), key("web")); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Lookup while nothing can be read: error %v, want ErrNotSynced", err)
	}
	restore()
	b.await(key("web"), exportsAre(web))
}

func testCorrupt(t *testing.T, h *harness) {
	if h.Corrupt == nil {
		t.Skip("the backend has no hook Corrupt")
	}
	a, b, c := h.start(t, identity("cls1")), h.start(t, identity("cls2")), h.start(t, identity("cls3"))
	web, theirs := export("cls1", key("web"), 3), export("cls3", key("web"), 1)
	a.publish(web)
	c.publish(theirs)
	for i := range 20 {
		a.publish(export("cls1", key(fmt.Sprintf("svc-%d", i)), 1))
	}
	b.await(key("web"), exportsAre(web, theirs))
	for i := range 20 {
		b.await(key(fmt.Sprintf("svc-%d", i)), oneExport)
	}
	a.stop(nil)
	covers := h.Corrupt(t, clusterSet, "cls1", key("web"))
	b.forbid(func(_ mcs.Key, v registry.View) string {
		if len(v.Exports()) == 0 {
			return "the export is gone"
		}
		return ""
	})
	theirs = export("cls3", key("web"), 2)
	c.publish(theirs)
	b.await(key("web"), exportsAre(web, theirs))
	b.awaitProblem("cls1")
	for i := range 20 {
		k := key(fmt.Sprintf("svc-%d", i))
		if !covers(k) {
			b.await(k, exportsAre(export("cls1", k, 1)))
		}
	}
}

func testCorruptAtStart(t *testing.T, h *harness) {
	if h.Corrupt == nil {
		t.Skip("the backend has no hook Corrupt")
	}
	a, c := h.start(t, identity("cls1")), h.start(t, identity("cls3"))
	web, theirs := export("cls1", key("web"), 3), export("cls3", key("web"), 1)
	a.publish(web)
	c.publish(theirs)
	a.await(key("web"), isState(registry.Exported))
	c.await(key("web"), isState(registry.Exported))
	a.stop(nil)
	h.Corrupt(t, clusterSet, "cls1", key("web"))
	b := h.start(t, identity("cls2"))
	b.await(key("web"), all(exportsAre(theirs), unknownAre("cls1")))
	// The cluster restarts and publishes again.
	h.startPublishing(t, identity("cls1"), web)
	b.await(key("web"), all(exportsAre(web, theirs), unknownAre()))
}

func testDeletedExport(t *testing.T, h *harness) {
	if h.DeleteExport == nil {
		t.Skip("the backend has no hook DeleteExport")
	}
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	a.await(key("web"), isState(registry.Exported))
	b.await(key("web"), exportsAre(web))
	h.DeleteExport(t, clusterSet, "cls1", key("web"))
	if h.Empty != nil {
		h.until(t, "the export is in the store again", func() bool { return !h.Empty(t, clusterSet, "cls1") })
	}
	c := h.start(t, identity("cls3"))
	c.await(key("web"), exportsAre(web))
	b.await(key("web"), exportsAre(web))
}

// exportsAre is met by exactly these exports, sorted by cluster.
func exportsAre(want ...mcs.Export) condition {
	return func(v registry.View) string {
		if len(v.Exports()) != len(want) {
			return fmt.Sprintf("%d exports, want %d", len(v.Exports()), len(want))
		}
		for i := range want {
			if published := registry.Published(want[i]); !v.Exports()[i].Equal(published) {
				return "export differs (-want +got):\n" + cmp.Diff(published, v.Exports()[i].Canonical(), comparers)
			}
		}
		return ""
	}
}
