package etcd

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// plenty is a budget that no test of another kind reaches.
var plenty = budget.Amounts{1 << 20, 1 << 20, 1 << 20, 1 << 30, 1 << 30}

// limit sets the budget of one kind for one cluster.
func (s *stateTest) limit(kind budget.Kind, limit int) {
	limits := budget.Limits{Member: plenty, Total: plenty}
	limits.Member[kind] = limit
	s.ledger = budget.NewLedger(limits)
}

// TestBudget: what exceeds a budget is unknown and reported, established exports stay, and what
// waits is read again when there is room.
func TestBudget(t *testing.T) {
	s := newStateTest(t)
	s.limit(budget.Exports, 2)
	all := map[int]int64{1: 5, 2: 5}
	s.list(s.member(0, all), s.export(1, 1, 5), s.export(2, 1, 5))
	s.want("within the budget", 0, 1, 1)

	all[0] = 6
	s.show(s.member(1, all), s.export(0, 1, 6))
	s.want("one too many", -1, 1, 1)
	if got := s.problems(); !strings.Contains(got, "over budget: 1 exports, such as demo/web-0, exceed the budget of 2 exports for one cluster") {
		t.Errorf("problems %q", got)
	}
	if over := s.clusters["cls2"].overBudget(); len(over.Keys) != 1 || over.Keys[0].Name != "web-0" || over.HasOthers {
		t.Errorf("over budget: %+v, want demo/web-0", over)
	}
	all[1] = 7
	s.show(s.member(2, all), s.export(1, 3, 7))
	s.want("an established export changes", -1, 3, 1)

	s.findRoom(s.at(60))
	if s.isDue(60) {
		t.Error("a read is requested although there is no room")
	}
	delete(all, 2)
	s.show(s.member(3, all), s.gone(2))
	s.want("one is withdrawn", -1, 3, 0)
	s.findRoom(s.at(60))
	if !s.isDue(60) {
		t.Fatal("no read is requested although there is room")
	}
	s.list(s.member(3, all), s.export(0, 1, 6), s.export(1, 3, 7))
	s.want("there is room", 1, 3, 0)
	if got := s.problems(); strings.Contains(got, "budget") {
		t.Errorf("problems %q after all are read", got)
	}

	farewell := newMemberRecord(cls2, "v1").withHeartbeat(s.at(9))
	farewell.Farewell = true
	s.show(pair{key: s.layout.member("cls2"), value: sign(t, cls2, farewell)}, s.gone(0), s.gone(1))
	s.want("the cluster left", 0, 0, 0)
	if used := s.ledger.Usage().Total; used != (budget.Amounts{}) {
		t.Errorf("the usage is %v after the cluster has left", used)
	}
}

// TestBudgetOfKeys: a cluster with far too many keys keeps what was read of it, and nothing of it
// ends.
func TestBudgetOfKeys(t *testing.T) {
	s := newStateTest(t)
	s.limit(budget.Exports, 1)
	all := map[int]int64{0: 5}
	s.list(s.member(0, all), s.export(0, 1, 5))
	var pairs []pair
	for i := 1; i < 10; i++ {
		all[i] = s.at(1).UnixMilli()
		pairs = append(pairs, s.export(i, 1, all[i]))
	}
	s.show(append(pairs, s.member(1, all))...)
	s.want("ten exports", 1, -1, -1, -1)
	if c := s.clusters["cls2"]; len(c.shown) > keysPerExport || c.overflow != 10-keysPerExport {
		t.Errorf("%d keys are known, %d more", len(c.shown), c.overflow)
	}
	if over := s.clusters["cls2"].overBudget(); !over.HasOthers {
		t.Errorf("over budget: %+v, want others whose keys are not known", over)
	}
	s.show(s.gone(0))
	s.want("removed by another user", 1)
	if got := s.problems(); !strings.Contains(got, "6 more exports are not read") {
		t.Errorf("problems %q", got)
	}
}

// TestIgnoredNamespace: of an export in a namespace that is not imported only the key is kept,
// until it is.
func TestIgnoredNamespace(t *testing.T) {
	s := newStateTest(t)
	isWanted := false
	s.isWanted = func(string) bool { return isWanted }
	s.limit(budget.Exports, 2)
	m := newMirror(s.state, "cls1", 0, logr.Discard())
	list := func() {
		s.list(s.member(0, map[int]int64{0: 5}), s.export(0, 1, 5))
	}
	list()
	if v := s.view(webKey(0), nil); len(v.In(registry.Ignored)) != 1 || len(v.In(registry.Exports, registry.Unknown)) > 0 {
		t.Errorf("the view is %+v, want an ignored export", v)
	}
	keys := engine.Keys{}
	if s.addAllKeys(keys); len(keys) != 1 || s.ledger.Usage().Total != (budget.Amounts{}) {
		t.Errorf("keys %v, used %v", keys, s.ledger.Usage().Total)
	}
	m.want(webKey(0))
	if due, _ := m.dueReads(1); len(due) > 0 {
		t.Errorf("%v is read for a namespace that is not imported", due)
	}
	isWanted = true
	m.want(webKey(0))
	if due, _ := m.dueReads(1); len(due) != 1 || len(due[0].keys) != 1 {
		t.Error("nothing is read for a namespace that is imported now")
	}
	list()
	s.want("imported", 1)
	if due, _ := m.dueReads(1); len(due) > 0 {
		t.Errorf("%v is read although a list had it", due)
	}
}

// TestMemoryOfHostileList reads a list of the largest exports that a member can write, before and
// after its member record is known.
func TestMemoryOfHostileList(t *testing.T) {
	s := newStateTest(t)
	s.ledger = budget.NewLedger(budget.Limits{
		Member: budget.Amounts{5000, 50_000, 20_000, 100_000, 8 << 20}, Total: budget.Amounts{20_000, 200_000, 80_000, 400_000, 32 << 20},
	})
	const exports = 12
	set := &exportSet{Count: exports}
	var list []pair
	for i := range exports {
		exp := webExport("cls2", i, 1)
		group := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}
		for j := range 10_000 {
			group.Endpoints = append(group.Endpoints, mcs.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 1, byte(j >> 8), byte(j)}), Ready: true, Serving: true, Hostname: strings.Repeat("a", 63),
			})
		}
		exp.Backends = []mcs.Backends{group}
		d, err := newDesiredExport(exp)
		if err != nil {
			t.Fatal(err)
		}
		value := signExport(registrytest.Signer(t, cls2), authorOf(t, cls2), exp.Key, 5, d.data)
		set.Digest = set.Digest.With(unitOf(exp.Key), 5)
		list = append(list, pair{key: s.layout.export("cls2", exp.Key), value: value, revision: 1})
	}
	list = append(list, pair{key: s.layout.member("cls2"), value: memberValue(t, cls2, s.at(0), set), revision: 1})
	m := newMirror(s.state, "cls1", 0, logr.Discard())
	peak := registrytest.HeapPeak(func() { relist(m, 1, list...) })
	t.Logf("the heap grew by %d MiB", peak>>20)
	if peak > 64<<20 {
		t.Errorf("the heap grew by %d MiB, want at most 64", peak>>20)
	}
	imported := 0
	for i := range exports {
		imported += max(0, s.version(i))
	}
	if used := s.ledger.Usage().Total; imported != 3 || used[budget.Endpoints] != 30_000 {
		t.Errorf("%d exports are imported with %v, want the 3 that the budget of endpoints admits of one namespace", imported, used)
	}
	runtime.KeepAlive(m)
}

// TestListDropsValues: a list keeps the values that a cluster's budget of bytes may need, and one
// key more than are known.
func TestListDropsValues(t *testing.T) {
	limits := budget.Limits{Member: plenty, Total: plenty}
	limits.Member[budget.Exports], limits.Member[budget.Bytes], limits.Total[budget.Bytes] = 2, 100, 250
	k := kept{keys: map[string]int{}, byCluster: map[string]int{}}
	for i, want := range []bool{true, true, false, false} {
		if got := k.keep("cls2", 100, limits); got != want {
			t.Errorf("value %d of cls2 is kept: %v", i, got)
		}
	}
	for i, want := range []bool{true, true, false} {
		if got := k.keep(fmt.Sprint("other-", i), 150, limits); got != want {
			t.Errorf("the value of another cluster %d is kept: %v", i, got)
		}
	}
	for i := range 2*keysPerExport + 3 {
		if got := k.isFull("cls2", limits); got != (i > 2*keysPerExport) {
			t.Errorf("with %d keys: full %v", i+1, got)
		}
	}
	if none := (budget.Limits{}); !k.keep("cls2", 1<<40, none) || k.isFull("cls2", none) {
		t.Error("there is a limit without budgets")
	}
}
