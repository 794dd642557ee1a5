package cloudmap

import (
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// heartbeats observes when each cluster writes its record.
type heartbeats struct {
	mu   sync.Mutex
	last map[string]time.Time
	gap  map[string]time.Duration
}

// observeHeartbeats observes the heartbeats of a simulation from now on.
func observeHeartbeats(w *simulation) *heartbeats {
	h := &heartbeats{last: map[string]time.Time{}, gap: map[string]time.Duration{}}
	w.setWrote(func(r request) {
		if r.operation != "RegisterInstance" || !r.names("HEARTBEAT") {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if last, ok := h.last[r.cluster]; ok {
			h.gap[r.cluster] = max(h.gap[r.cluster], time.Since(last))
		}
		h.last[r.cluster] = time.Now()
	})
	return h
}

// wantRegular fails the test if a cluster was without a heartbeat for more than twice the interval.
func (h *heartbeats) wantRegular(t *testing.T, cluster string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if gap := max(h.gap[cluster], time.Since(h.last[cluster])); gap > 2*settings.HeartbeatInterval {
		t.Errorf("cluster %s was without a heartbeat for %v", cluster, gap)
	}
}

// TestSlowPageDelaysOnlyItself has a page whose writes do not work, each for another reason. The
// changes of another page arrive as ever, no page that was written is written again, and no
// heartbeat is late.
func TestSlowPageDelaysOnlyItself(t *testing.T) {
	part := format.PartID(format.PageOf(webKey(0)), 0)
	for name, rule := range map[string]cloudmaplocal.FaultRule{
		"the operation is pending for two minutes, and fails": {Kind: cloudmaplocal.FaultFail, Delay: cloudmaplocal.Duration(2 * time.Minute)},
		"the operation never ends":                            {Kind: cloudmaplocal.FaultLost},
		"no answer":                                           {Kind: cloudmaplocal.FaultHang},
		"a server error":                                      {Kind: cloudmaplocal.FaultError, Code: "InternalFailure"},
		"denied":                                              {Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				beats := observeHeartbeats(w)
				exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
				// of different pages, like the other one
				slow, still := webExport("cls1", 0, 1), webExport("cls1", 2, 1)
				publish(t, exporter.Registry, slow)
				publish(t, exporter.Registry, still)
				w.until(time.Minute, "the page is written", sees(t, importer.Registry, slow))
				rule.Operations, rule.Instance = []string{"RegisterInstance"}, part
				w.plan(1, rule)
				publish(t, exporter.Registry, webExport("cls1", 0, 2))
				before := w.count()["RegisterInstance"]
				changes := 0
				for began := time.Now(); time.Since(began) < 3*time.Minute; changes++ {
					other := webExport("cls1", 8, 1+changes%2)
					publish(t, exporter.Registry, other)
					w.until(1700*time.Millisecond, "a change of another page arrives", sees(t, importer.Registry, other))
					time.Sleep(3 * time.Second)
				}
				_, hits := w.server.Faults()
				if n := w.count()["RegisterInstance"] - before - hits[0]; n > changes+5 {
					t.Errorf("%d writes of pages for %d changes", n, changes)
				}
				if hits[0] > 40 {
					t.Errorf("the page was tried %d times in three minutes, want a few times a minute", hits[0])
				}
				beats.wantRegular(t, "cls1")
				w.plan(1)
				w.until(3*time.Minute, "the slow page is written after all", sees(t, importer.Registry, webExport("cls1", 0, 2)))
				exporter.kill()
				importer.kill()
			})
		})
	}
}

// TestTrimmingDelaysNoHeartbeat removes exports of several parts while AWS answers no removal.
func TestTrimmingDelaysNoHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		beats := observeHeartbeats(w)
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		for i := range 8 {
			publish(t, exporter.Registry, bulky(i, 1))
		}
		w.until(time.Minute, "all are written", sees(t, importer.Registry, bulky(7, 1)))
		w.plan(1, cloudmaplocal.FaultRule{Operations: []string{"DeregisterInstance"}, Kind: cloudmaplocal.FaultHang})
		for i := range 8 {
			publish(t, exporter.Registry, webExport("cls1", i, 1))
		}
		for changes := range 60 {
			exp := webExport("cls1", changes%8, 1+changes%2)
			publish(t, exporter.Registry, exp)
			w.until(1700*time.Millisecond, "a change of a page that is being trimmed arrives", sees(t, importer.Registry, exp))
			time.Sleep(3 * time.Second)
		}
		beats.wantRegular(t, "cls1")
		large := bulky(3, 2)
		publish(t, exporter.Registry, large) // needs the parts again that are being removed
		w.plan(1)
		w.until(2*time.Minute, "a page that needs its parts again is written", sees(t, importer.Registry, large))
		w.until(2*time.Minute, "the parts are removed", func() bool { return len(exporter.state.Writes.Excess()) == 0 })
		time.Sleep(5 * time.Minute) // an audit would find parts that are missing
		if !isExported(t, exporter.Registry, large.Key)() {
			t.Error("the large page is not in the registry any more")
		}
		exporter.kill()
		importer.kill()
	})
}

// TestNotFoundVerifiesKnownIDs answers one read with ServiceNotFound: the clusters verify the IDs
// that they know and make no list. While even that is throttled, heartbeats go to the known
// service.
func TestNotFoundVerifiesKnownIDs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		beats := observeHeartbeats(w)
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is imported", sees(t, importer.Registry, exp))
		time.Sleep(5 * time.Minute)
		lists := func() int { return w.count()["ListNamespaces"] + w.count()["ListServices"] }
		before := lists()
		w.plan(1,
			cloudmaplocal.FaultRule{
				Operations: []string{"DiscoverInstances"}, Service: format.MembersService, AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "ServiceNotFound", Next: 1,
			},
			cloudmaplocal.FaultRule{
				Operations: []string{"GetNamespace", "GetService", "ListNamespaces", "ListServices"}, Kind: cloudmaplocal.FaultError, Code: "ThrottlingException",
			})
		time.Sleep(3 * time.Minute)
		beats.wantRegular(t, "cls1")
		w.plan(1)
		exp = webExport("cls1", 0, 2)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "a change is imported", sees(t, importer.Registry, exp))
		if n := lists() - before; n > 0 {
			t.Errorf("%d lists after one answer that the service does not exist, want none", n)
		}
		beats.wantRegular(t, "cls1")
		exporter.kill()
		importer.kill()
	})
}

// TestDeniedWriteVerifiesKnownIDs deletes the clusterset's namespace in an account whose IAM policy
// denies access to resources without the tags, deleted ones among them.
func TestDeniedWriteVerifiesKnownIDs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exporter, exp := exporting(t)
		old, _ := exporter.control.lastKnown()
		admin, _ := w.clientAt("admin", unlimitedRates())
		for _, s := range []api.Service{old.members, old.catalog} {
			found, err := admin.ListInstances(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			for _, instance := range found {
				if err := admin.DeregisterInstance(t.Context(), s.ID, instance.ID); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			if err := admin.DeleteService(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		denied := func(operations ...string) cloudmaplocal.FaultRule {
			return cloudmaplocal.FaultRule{Operations: operations, AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"}
		}
		w.plan(1, denied("RegisterInstance", "GetNamespace", "GetService"), cloudmaplocal.FaultRule{
			// reads say nothing
			Operations: []string{"DiscoverInstances"}, AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure",
		})
		w.until(5*time.Minute, "it has found another place", func() bool {
			now, _ := exporter.control.lastKnown()
			return now.members.ID != old.members.ID
		})
		w.plan(1)
		w.until(2*time.Minute, "it is exported again", isExported(t, exporter.Registry, exp.Key))
		exporter.kill()
	})
}

// TestRefusedPageHasItsOwnTime is a page that AWS goes on to refuse: the others are not held up by
// it, and it is not tried all the time.
func TestRefusedPageHasItsOwnTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 4})
		w.plan(1, cloudmaplocal.FaultRule{
			Operations: []string{"RegisterInstance"}, Instance: format.PartID(format.PageOf(webKey(0)), 0), Kind: cloudmaplocal.FaultError, Code: "ResourceLimitExceeded",
		})
		refused := func() int {
			_, hits := w.server.Faults()
			return hits[0]
		}
		exporter := w.begin(cls1, nil)
		publish(t, exporter.Registry, webExport("cls1", 0, 1))
		w.until(time.Minute, "the page is refused", func() bool {
			return look(t, exporter.Registry, webKey(0)).Local.Err != nil && refused() > 0
		})
		time.Sleep(5 * time.Minute)
		if n := refused(); n > 60 {
			t.Errorf("it was tried %d times in five minutes, want about twice a minute once it has failed for long", n)
		}
		for i := range 20 {
			exp := webExport("cls1", 8, i+1)
			publish(t, exporter.Registry, exp)
			w.until(3*time.Second, "another page is written and shown", isExported(t, exporter.Registry, exp.Key))
		}
		exporter.kill()
	})
}
