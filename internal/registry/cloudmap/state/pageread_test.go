package state

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// plenty is a budget that no test of another kind reaches.
var plenty = budget.Amounts{1 << 20, 1 << 20, 1 << 20, 1 << 30, 1 << 30}

// within returns a ledger with a budget for one cluster.
func within(kind budget.Kind, limit int) *budget.Ledger {
	limits := budget.Limits{Member: plenty, Total: plenty}
	limits.Member[kind] = limit
	return budget.NewLedger(limits)
}

// sized is an export of cls2 with n endpoints, created after a number of seconds.
func sized(name string, created, n int) mcs.Export {
	exp := webExport("cls2", 0, n)
	exp.Key.Name, exp.Created = name, exp.Created.Add(time.Duration(created)*time.Second)
	return exp
}

// problems returns the problems of cls2 that are about budgets.
func (s *story) budgetProblems() []string {
	for _, m := range s.catalogs.list() {
		if m.ClusterID == "cls2" {
			return slices.DeleteFunc(m.Problems, func(p string) bool { return !registry.IsOverBudget(p) })
		}
	}
	return nil
}

// TestBudgetRefusesExport: an export that exceeds a budget by itself stays unknown, and the others
// of its cluster are imported.
func TestBudgetRefusesExport(t *testing.T) {
	s := newStory(t)
	s.catalogs.ledger = within(budget.PortEndpoints, 100)
	s.publishAll(200, sized("small", 1, 10), sized("huge", 0, 101))
	s.members(s.record)
	s.read()
	s.expect("within the budget", mcs.Key{Namespace: "demo", Name: "small"}, "••••••••••")
	s.expect("over the budget", mcs.Key{Namespace: "demo", Name: "huge"}, "unknown")
	s.record.Heartbeat++
	s.members(s.record)
	s.expect("of another name", mcs.Key{Namespace: "demo", Name: "other"}, "none")
	want := "over budget: 1 exports, such as demo/huge, exceed the budget of 100 port-endpoints for one cluster (--budget-scale): " +
		"they are not imported, or stay as they were imported before"
	if got := s.budgetProblems(); len(got) != 1 || got[0] != want {
		t.Errorf("problems %q, want %q", got, want)
	}
	if over := s.catalogs.clusters["cls2"].overBudget(); len(over.Keys) != 1 || over.Keys[0].Name != "huge" || over.HasOthers {
		t.Errorf("over budget: %+v, want demo/huge", over)
	}
	s.wanted("nothing is read again and again")
}

// publishAll makes these the exports of cls2.
func (s *story) publishAll(generation int64, exports ...mcs.Export) {
	s.t.Helper()
	byPage := map[int][]mcs.Export{}
	for _, exp := range exports {
		byPage[format.PageOf(exp.Key)] = append(byPage[format.PageOf(exp.Key)], exp)
	}
	for page := range s.record.Pages {
		switch {
		case len(byPage[page]) > 0:
			s.publish(generation, page, byPage[page]...)
		case s.record.Pages[page] != "":
			delete(s.pages, page)
			s.record.Pages[page], s.record.Generation = "", generation
		}
	}
}

// update makes cls2 publish these exports, and cls1 read them.
func (s *story) update(generation int64, exports ...mcs.Export) {
	s.t.Helper()
	s.publishAll(generation, exports...)
	s.record.Heartbeat++
	s.members(s.record)
	for _, cluster := range s.catalogs.clusters {
		s.catalogs.findRoom(s.now, cluster)
	}
	s.read()
}

// TestBudgetKeepsEstablishedExports: an export that is imported stays, whatever its cluster adds;
// one that grows too much stays as it was; and one that waits is imported when there is room.
func TestBudgetKeepsEstablishedExports(t *testing.T) {
	s := newStory(t)
	s.catalogs.ledger = within(budget.Exports, 2)
	a, b, c := sized("a", 3, 1), sized("b", 2, 1), sized("c", 1, 1)
	s.update(200, a, b)
	s.update(300, a, b, c)
	s.expect("the first", a.Key, "•")
	s.expect("the second", b.Key, "•")
	s.expect("an older one that came later", c.Key, "unknown")
	s.update(400, a, sized("b", 2, 3), c)
	s.expect("an established one has more endpoints", b.Key, "•••")
	s.update(500, a, c)
	s.expect("withdrawn", b.Key, "none")
	for _, cluster := range s.catalogs.clusters {
		s.catalogs.findRoom(s.now, cluster)
	}
	s.read()
	s.expect("the room is taken by the one that waited", c.Key, "•")
	if got := s.budgetProblems(); len(got) != 0 {
		t.Errorf("problems %q after all are imported", got)
	}

	s = newStory(t)
	s.catalogs.ledger = within(budget.Endpoints, 4)
	s.update(200, sized("a", 1, 2))
	s.update(300, sized("a", 1, 5))
	s.expect("it grows too much", a.Key, "••")
	s.update(400, sized("a", 1, 1))
	s.expect("it shrinks", a.Key, "•")
	s.record.Farewell, s.record.Generation = true, 500
	s.record.Pages = [format.PageCount]string{}
	s.record.Heartbeat++
	s.members(s.record)
	s.expect("the cluster left", a.Key, "none")
	if used := s.catalogs.ledger.Usage().Total; used != (budget.Amounts{}) {
		t.Errorf("the usage is %v after the cluster has left", used)
	}
}

// TestBudgetOrderAtStart: a process that reads a whole catalog imports the oldest exports, on
// whatever pages they are.
func TestBudgetOrderAtStart(t *testing.T) {
	s := newStory(t)
	cfg := testConfig()
	// one of them is kept for another namespace
	cfg.Ledger, cfg.Keyring = within(budget.Exports, 6), s.catalogs.keyring
	state := New(cfg)
	var exports []mcs.Export
	for i := range 40 {
		exports = append(exports, sized(fmt.Sprint("svc-", i), 40-i, 1))
	}
	s.publishAll(200, exports...)
	var all []api.Instance
	for _, parts := range s.pages {
		all = append(all, parts...)
	}
	changed := map[mcs.Key]struct{}{}
	state.Reads.ObserveMembers([]api.Instance{s.record.Instance(signerOf("uid-2"))}, changed)
	state.Reads.ObserveCatalog(time.Now(), "cls2", all)
	for i, exp := range exports {
		view, err := state.Lookup(exp.Key, nil)
		if imported := len(view.Exports()) == 1; err != nil || imported != (i >= 35) || imported == (len(view.In(registry.Unknown)) == 1) {
			t.Errorf("export %d: imported %v, unknown %v, %v; want the five oldest", i, imported, view.In(registry.Unknown), err)
		}
	}
}

// TestIgnoredNamespace: of an export in a namespace that is not imported only the key is kept,
// until it is.
func TestIgnoredNamespace(t *testing.T) {
	s := newStory(t)
	wanted := map[string]bool{}
	cfg := testConfig()
	cfg.Ledger, cfg.Keyring = within(budget.Endpoints, 5), s.catalogs.keyring
	cfg.Wanted = func(namespace string) bool { return wanted[namespace] }
	state := New(cfg)
	exp := sized("a", 1, 3)
	page := format.PageOf(exp.Key)
	s.publishAll(200, exp)
	changed := map[mcs.Key]struct{}{}
	state.Reads.ObserveMembers([]api.Instance{s.record.Instance(signerOf("uid-2"))}, changed)
	if notified := state.Reads.ObservePage(time.Now(), "cls2", page, s.pages[page]); len(notified) != 1 {
		t.Errorf("notified of %v, want the key: its import may wait for the namespace", notified)
	}
	look := func(what string, ignored, exports, pages int) {
		t.Helper()
		view, err := state.Lookup(exp.Key, nil)
		if err != nil || len(view.In(registry.Ignored)) != ignored || len(view.Exports()) != exports || len(view.In(registry.Unknown)) > 0 {
			t.Errorf("%s: ignored by %v, exported by %d, unknown %v, %v", what, view.In(registry.Ignored), len(view.Exports()), view.In(registry.Unknown), err)
		}
		got := 0
		for _, read := range staleReads(state) {
			got += len(read.Pages)
		}
		if got != pages {
			t.Errorf("%s: %d pages have to be read, want %d", what, got, pages)
		}
	}
	look("without the namespace", 1, 0, 0)
	if keys := state.Report().Keys; !slices.Contains(keys, exp.Key) {
		t.Errorf("the report has keys %v, want the ignored one", keys)
	}
	if used := cfg.Ledger.Usage().Total; used != (budget.Amounts{}) {
		t.Errorf("an ignored export costs %v", used)
	}
	wanted["demo"] = true
	look("the namespace appears", 1, 0, 1)
	state.Reads.ObservePage(time.Now(), "cls2", page, s.pages[page])
	look("read again", 0, 1, 0)
}

// hostile are the largest catalogs that a member can write, by how they cost most.
var hostile = map[string]func(page int) []mcs.Export{
	"many small exports": func(page int) []mcs.Export {
		return onPage(page, 10_000, func(key mcs.Key) mcs.Export { return sized(key.Name, 0, 1) })
	},
	"exports of 10,000 endpoints with host names": func(page int) []mcs.Export {
		return onPage(page, 10, func(key mcs.Key) mcs.Export {
			exp := sized(key.Name, 0, 1)
			for i := range 10_000 {
				exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{
					Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true, Serving: true, Hostname: strings.Repeat("a", 63),
				})
			}
			return exp
		})
	},
	"exports of 1,000 ports and 10,000 endpoints": func(page int) []mcs.Export {
		return onPage(page, 20, func(key mcs.Key) mcs.Export {
			exp := sized(key.Name, 0, 10_000)
			for i := range 1000 {
				port := mcs.Port{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: int32(1000 + i)}
				exp.Ports = append(exp.Ports, port)
				exp.Backends[0].Ports = append(exp.Backends[0].Ports, mcs.BackendPort{Name: port.Name, Protocol: "TCP", Port: port.Port})
			}
			return exp
		})
	},
}

// onPage returns exports with n keys that belong to a page.
func onPage(page, n int, export func(mcs.Key) mcs.Export) (exports []mcs.Export) {
	for i := 0; len(exports) < n; i++ {
		if key := (mcs.Key{Namespace: "demo", Name: fmt.Sprint("s", i)}); format.PageOf(key) == page {
			exports = append(exports, export(key))
		}
	}
	return exports
}

// hostilePages is the number of pages of a hostile catalog. All 64 would take the test minutes,
// most of them to write the catalog; the memory does not depend on it.
const hostilePages = 4

// maxHostileHeap is the maximum heap that one member may use: with the collector's factor of two,
// and two members at once, a quarter of the pod's 512 MiB.
const maxHostileHeap = 64 << 20

// TestMemoryOfHostileMember reads the largest catalogs that a member can write. The heap stays far
// below the limit of the pod, and the exports of another member are imported.
func TestMemoryOfHostileMember(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	for name, exportsOf := range hostile {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			var all []api.Instance
			for page := range hostilePages {
				s.publishHostile(page, exportsOf(page))
				all = append(all, s.pages[page]...)
			}
			cfg := testConfig()
			cfg.Keyring = s.catalogs.keyring
			cfg.Ledger = budget.NewLedger(budget.Limits{
				Member: budget.Amounts{5000, 50_000, 20_000, 100_000, 8 << 20}, Total: budget.Amounts{20_000, 200_000, 80_000, 400_000, 32 << 20},
			})
			state := New(cfg)
			changed := map[mcs.Key]struct{}{}
			state.Reads.ObserveMembers([]api.Instance{s.record.Instance(signerOf("uid-2"))}, changed)
			peak := registrytest.HeapPeak(func() { state.Reads.ObserveCatalog(time.Now(), "cls2", all) })
			t.Logf("%d instances: the heap grew by %d MiB", len(all), peak>>20)
			if peak > maxHostileHeap {
				t.Errorf("the heap grew by %d MiB, want at most %d", peak>>20, maxHostileHeap>>20)
			}
			if used := cfg.Ledger.Usage().Total; used[budget.Exports] > 5000 || used[budget.PortEndpoints] > 100_000 {
				t.Errorf("%v is used", used)
			}
			runtime.KeepAlive(state)
		})
	}
}

// publishHostile writes and announces a page in as many parts as it needs.
func (s *story) publishHostile(page int, exports []mcs.Export) {
	s.t.Helper()
	data, err := record.Encode(exports)
	for err != nil && len(exports) > 1 { // as many as fit
		exports = exports[:len(exports)*9/10]
		data, err = record.Encode(exports)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	parts, err := format.SplitPage(cls2, signerOf("uid-2"), page, 200, data)
	if err != nil {
		s.t.Fatal(err)
	}
	s.pages[page], s.record.Pages[page], s.record.Generation = parts, format.Digest(data), 200
}

// The exports of a cluster that is forgotten count for no budget any more.
func TestForget_ReleasesBudget(t *testing.T) {
	s := newStory(t)
	s.catalogs.ledger = within(budget.PortEndpoints, 100)
	s.publishAll(200, sized("small", 1, 10))
	s.members(s.record)
	s.read()
	if used := s.catalogs.ledger.Usage().Total; used == (budget.Amounts{}) {
		t.Fatal("the export uses no budget")
	}
	s.catalogs.forget(s.now, "cls2", engine.Keys{})
	if used := s.catalogs.ledger.Usage().Total; used != (budget.Amounts{}) {
		t.Errorf("%v is used after the cluster was forgotten", used)
	}
}

// The lines are in one order, so that the problems of a cluster do not change between two reads.
func TestExcessProblems_AreSorted(t *testing.T) {
	exports, endpoints := budget.Excess{Kind: budget.Exports, Limit: 1}, budget.Excess{Kind: budget.PortEndpoints, Limit: 2}
	c := catalog{}
	c.pages[3].waiting, c.pages[3].reasons = []budget.Offer{{Key: webKey(0)}, {Key: webKey(1)}}, []budget.Excess{exports, endpoints}
	c.pages[4].waiting, c.pages[4].reasons, c.pages[4].excess = []budget.Offer{{Key: webKey(2)}}, []budget.Excess{endpoints}, 3
	for range 20 { // the budgets are in a map
		lines := c.excessProblems()
		if len(lines) != 2 || !slices.IsSorted(lines) {
			t.Fatalf("lines %q, want two, sorted", lines)
		}
		if !strings.Contains(strings.Join(lines, ""), " 4 exports, such as demo/web-2, ") {
			t.Fatalf("lines %q, want one about 4 exports", lines)
		}
	}
}
