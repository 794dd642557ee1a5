package registrytest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// The rule that an import ends only by a record that the exporting cluster has signed.

var evidenceClauses = []clause{
	{"a deleted member record ends no import", testDeletedMemberEndsNothing},
	{"a deleted export ends no import", testDeletedExportEndsNothing},
	{"a wiped registry ends no import", testWipedEndsNothing},
	{"a wiped registry of live clusters is written again", testWipedIsWrittenAgain},
	{"a cluster is unseen until it is read", testUnseen},
	{"a farewell ends imports of readers that were down", testFarewell},
	{"the last member says farewell to clusters that only read", testLastFarewell},
	{"a forgotten cluster returns with its next record", testForget},
	{"a forged record changes nothing", testForged},
	{"a replayed record changes nothing", testReplayed},
	{"a rotated key interrupts nothing", testRotatedKey},
}

// unseenAre is met if exactly these imported clusters are unseen.
func unseenAre(want ...string) condition {
	return func(v registry.View) string {
		if !slices.Equal(v.In(registry.Unseen), want) {
			return fmt.Sprintf("unseen clusters %v, want %v", v.In(registry.Unseen), want)
		}
		return ""
	}
}

// keeps is met if an import from cls1 stays: its export is exp, or not known.
func keeps(exp mcs.Export) condition {
	return func(v registry.View) string {
		if len(v.Exports()) > 0 {
			return exportsAre(exp)(v)
		}
		if v.Clusters[exp.Cluster].State != registry.Unknown && v.Clusters[exp.Cluster].State != registry.Unseen {
			return fmt.Sprintf("cluster %s has no export, and it is neither unknown nor unseen", exp.Cluster)
		}
		return ""
	}
}

// ended is met if no cluster exports the service, and this is certain.
var ended = all(exportsAre(), unknownAre(), unseenAre())

// startImported starts cls1 with an export, and cls2, which imports it. From then on the test fails
// if cls2 has another version of it or none.
func (h *harness) startImported(t *testing.T) (exporter, reader *node, web mcs.Export) {
	t.Helper()
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2")).imports("cls1")
	web = export("cls1", key("web"), 3)
	a.publish(web)
	a.await(key("web"), isState(registry.Exported))
	b.await(key("web"), exportsAre(web))
	b.forbid(func(k mcs.Key, v registry.View) string {
		if k == key("web") {
			return exportsAre(web)(v)
		}
		return ""
	})
	return a, b, web
}

// testSilence changes the store after the exporter has stopped. The reader keeps the import, even
// when the exporter is stale, and so does a reader that starts then. A restarted exporter writes
// everything again.
func testSilence(t *testing.T, h *harness, change func()) {
	t.Helper()
	a, b, web := h.startImported(t)
	a.stop(nil)
	change()
	if h.StaleAfter > 0 {
		b.await(key("web"), all(exportsAre(web), staleAre("cls1")))
	}
	late := h.start(t, identity("cls3")).imports("cls1")
	late.await(key("web"), keeps(web))
	late.forbid(func(k mcs.Key, v registry.View) string {
		if k == key("web") {
			return keeps(web)(v)
		}
		return ""
	})
	b.stop(nil)
	b = h.start(t, identity("cls2")).imports("cls1")
	b.await(key("web"), keeps(web))
	again := h.startPublishing(t, identity("cls1"), web)
	for _, n := range []*node{b, late} {
		n.await(key("web"), all(exportsAre(web), unknownAre(), unseenAre()))
		n.forbid(nil)
	}
	again.withdraw(key("web"))
	for _, n := range []*node{b, late} {
		n.await(key("web"), ended)
	}
}

func testDeletedMemberEndsNothing(t *testing.T, h *harness) {
	if h.DeleteMember == nil {
		t.Skip("the backend has no hook DeleteMember")
	}
	testSilence(t, h, func() { h.DeleteMember(t, clusterSet, "cls1") })
}

func testDeletedExportEndsNothing(t *testing.T, h *harness) {
	if h.DeleteExport == nil {
		t.Skip("the backend has no hook DeleteExport")
	}
	testSilence(t, h, func() { h.DeleteExport(t, clusterSet, "cls1", key("web")) })
}

func testWipedEndsNothing(t *testing.T, h *harness) {
	if h.Wipe == nil {
		t.Skip("the backend has no hook Wipe")
	}
	testSilence(t, h, func() { h.Wipe(t) })
}

func testWipedIsWrittenAgain(t *testing.T, h *harness) {
	if h.Wipe == nil {
		t.Skip("the backend has no hook Wipe")
	}
	a, b, web := h.startImported(t)
	db := export("cls1", key("db"), 1)
	a.publish(db)
	b.await(key("db"), exportsAre(db))
	h.Wipe(t)
	c := h.start(t, identity("cls3")).imports("cls1")
	c.await(key("web"), exportsAre(web))
	c.await(key("db"), exportsAre(db))
	a.withdraw(key("db"))
	for _, n := range []*node{b, c} {
		n.await(key("db"), ended)
		n.await(key("web"), exportsAre(web))
	}
	a.await(key("web"), isState(registry.Exported))
}

func testUnseen(t *testing.T, h *harness) {
	b := h.start(t, identity("cls2")).imports("cls1", "cls9")
	b.await(key("web"), all(exportsAre(), unseenAre("cls1", "cls9")))
	a := h.start(t, identity("cls1"))
	web := export("cls1", key("web"), 3)
	a.publish(web)
	b.await(key("web"), all(exportsAre(web), unseenAre("cls9")))
	b.imports("cls2").await(key("web"), unseenAre()) // the own cluster is never imported
}

func testFarewell(t *testing.T, h *harness) {
	a, b, web := h.startImported(t)
	c := h.start(t, identity("cls3"))
	c.await(key("web"), exportsAre(web))
	// Cloud Map keeps the farewell of the last member for some polls only
	c.awaitMembers("cls1", "cls2", "cls3")
	b.stop(nil)
	a.stop(registry.ErrLeave)
	c.await(key("web"), exportsAre())
	b = h.start(t, identity("cls2")).imports("cls1")
	b.await(key("web"), ended)
	b.awaitMembers("cls2", "cls3")
	h.startPublishing(t, identity("cls1"), web)
	b.await(key("web"), exportsAre(web))
}

func testLastFarewell(t *testing.T, h *harness) {
	if h.NewReader == nil {
		t.Skip("the backend has no reader, or tests it with virtual time")
	}
	web := export("cls1", key("web"), 3)
	a := h.startPublishing(t, identity("cls1"), web)
	reader := h.run(t, h.NewReader(t, identity("cls2"))).imports("cls1")
	reader.await(key("web"), exportsAre(web))
	a.stop(registry.ErrLeave)
	reader.await(key("web"), ended)
}

func testForget(t *testing.T, h *harness) {
	a, b, web := h.startImported(t)
	a.stop(nil)
	if h.StaleAfter > 0 { // a late read of the exporter's last record would make the cluster return
		b.await(key("web"), all(exportsAre(web), staleAre("cls1")))
	}
	b.forbid(nil)
	b.reg.Forget("cls1")
	b.await(key("web"), ended)
	b.awaitMembers("cls2")
	b.stop(nil)
	b = h.start(t, identity("cls2")).imports("cls1")
	b.await(key("web"), ended)
	h.startPublishing(t, identity("cls1"), web)
	b.await(key("web"), exportsAre(web))
	b.awaitMembers("cls1", "cls2")
}

func testForged(t *testing.T, h *harness) {
	if h.Forge == nil {
		t.Skip("the backend has no hook Forge")
	}
	a, b, web := h.startImported(t)
	a.stop(nil)
	h.Forge(t, clusterSet, "cls1")
	b.awaitProblem("cls1")
	if lacks := exportsAre(web)(b.lookup(key("web"))); lacks != "" {
		t.Error(lacks)
	}
	b.stop(nil)
	b = h.start(t, identity("cls2")).imports("cls1")
	b.await(key("web"), keeps(web))
	h.startPublishing(t, identity("cls1"), web)
	b.await(key("web"), exportsAre(web))
	h.until(t, "no refused record is left", func() bool {
		members, err := b.reg.Members(t.Context())
		return err == nil && !slices.ContainsFunc(members, func(m registry.Member) bool { return slices.ContainsFunc(m.Problems, registry.IsRefused) })
	})
}

func testReplayed(t *testing.T, h *harness) {
	if h.Record == nil {
		t.Skip("the backend has no hook Record")
	}
	a, b, _ := h.startImported(t)
	replay := h.Record(t, clusterSet, "cls1")
	b.forbid(nil)
	web, db := export("cls1", key("web"), 5), export("cls1", key("db"), 1)
	a.publish(web)
	a.publish(db)
	b.await(key("web"), exportsAre(web))
	b.await(key("db"), exportsAre(db))
	b.forbid(func(k mcs.Key, v registry.View) string {
		if k == key("web") {
			return keeps(web)(v)
		}
		return keeps(db)(v)
	})
	a.stop(nil)
	replay()
	late := h.start(t, identity("cls3")) // reads the whole registry
	late.awaitMembers("cls1", "cls2", "cls3")
	for k, exp := range map[mcs.Key]mcs.Export{key("web"): web, key("db"): db} {
		if lacks := exportsAre(exp)(b.lookup(k)); lacks != "" {
			t.Errorf("%v: %s", k, lacks)
		}
	}
	b.stop(nil)
	b = h.start(t, identity("cls2")).imports("cls1")
	b.await(key("web"), keeps(web))
	b.await(key("db"), keeps(db))
	h.startPublishing(t, identity("cls1"), web, db)
	b.await(key("web"), exportsAre(web))
	b.await(key("db"), exportsAre(db))
}

// testRotatedKey restarts the exporter with a rotated key. Until it has signed an export with the
// new key, the others have the one that it signed with the previous key, and report no problem:
// they can verify that the previous key signed the new one. The exporter publishes all exports
// before it runs, as a controller does: those that it does not publish end.
func testRotatedKey(t *testing.T, h *harness) {
	if h.NewWithRotatedKey == nil {
		t.Skip("the backend has no hook NewWithRotatedKey")
	}
	a, b, web := h.startImported(t)
	before := b.member("cls1").Key
	a.stop(nil)
	db := export("cls1", key("db"), 1)
	a = h.runPublishing(t, h.NewWithRotatedKey(t, identity("cls1")), web, db)
	h.until(t, "the new key is known", func() bool { key := b.member("cls1").Key; return key != "" && key != before })
	if problems := b.member("cls1").Problems; len(problems) > 0 {
		t.Errorf("problems %q after the rotation", problems)
	}
	if lacks := exportsAre(web)(b.lookup(key("web"))); lacks != "" {
		t.Error(lacks)
	}
	b.await(key("db"), exportsAre(db))
	a.await(key("web"), isState(registry.Exported))
	late := h.start(t, identity("cls3"))
	late.await(key("web"), all(exportsAre(web), unknownAre()))
	b.forbid(nil)
	a.withdraw(key("web"))
	for _, n := range []*node{b, late} {
		n.await(key("web"), ended)
		n.await(key("db"), exportsAre(db))
	}
}
