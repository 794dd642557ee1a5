package registrytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// The clauses of registry.Liveness in real time. Its counting is tested in virtual time.

// staleAre is met if exactly these clusters are stale.
func staleAre(want ...string) condition {
	return func(v registry.View) string {
		if !slices.Equal(v.WithLiveness(registry.Stale), want) {
			return fmt.Sprintf("stale clusters %v, want %v", v.WithLiveness(registry.Stale), want)
		}
		return ""
	}
}

// live is met if every exporting cluster is known to be live.
func live(v registry.View) string {
	if len(v.WithLiveness(registry.Stale))+len(v.WithLiveness(registry.Undecided)) > 0 {
		return fmt.Sprintf("stale clusters %v, unknown liveness %v, want none", v.WithLiveness(registry.Stale), v.WithLiveness(registry.Undecided))
	}
	return ""
}

// awaitStaleMembers waits until Members has exactly these stale clusters.
func (n *node) awaitStaleMembers(want ...string) {
	n.t.Helper()
	n.h.until(n.t, fmt.Sprintf("stale members %v", want), func() bool {
		members, err := n.reg.Members(n.t.Context())
		if err != nil {
			return false
		}
		var got []string
		for _, m := range members {
			if m.Stale {
				got = append(got, m.ClusterID)
			}
		}
		return slices.Equal(got, want)
	})
}

// startExporter starts cls1 with an export, and cls2, which imports it and knows that cls1 is live.
func (h *harness) startExporter(t *testing.T) (a, b *node, web mcs.Export) {
	t.Helper()
	if h.StaleAfter == 0 {
		t.Skip("no cluster becomes stale in this backend")
	}
	a, b = h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web = export("cls1", key("web"), 3)
	a.publish(web)
	b.await(key("web"), all(exportsAre(web), live))
	return a, b, web
}

func testStale(t *testing.T, h *harness) {
	a, b, web := h.startExporter(t)
	a.stop(nil)
	b.await(key("web"), all(exportsAre(web), staleAre("cls1")))
	b.awaitStaleMembers("cls1")
	h.start(t, identity("cls1"))
	b.await(key("web"), all(exportsAre(web), live))
	b.awaitStaleMembers()
}

func testStaleWithoutRecord(t *testing.T, h *harness) {
	if h.DeleteMember == nil {
		t.Skip("the backend has no hook DeleteMember")
	}
	a, b, web := h.startExporter(t)
	a.stop(nil)
	h.DeleteMember(t, clusterSet, "cls1")
	b.forbid(func(_ mcs.Key, v registry.View) string { return exportsAre(web)(v) })
	b.await(key("web"), staleAre("cls1"))
	h.start(t, identity("cls1"))
	b.await(key("web"), live)
}

func testStaleAtStart(t *testing.T, h *harness) {
	a, b, web := h.startExporter(t)
	a.stop(nil)
	b.await(key("web"), staleAre("cls1"))
	c := h.start(t, identity("cls3"))
	c.await(key("web"), func(v registry.View) string {
		switch {
		case len(v.WithLiveness(registry.Stale)) > 0:
			return "" // a busy machine: the first read came late
		case !slices.Equal(v.WithLiveness(registry.Undecided), []string{"cls1"}):
			return fmt.Sprintf("clusters of unknown liveness %v, want cls1", v.WithLiveness(registry.Undecided))
		}
		return exportsAre(web)(v)
	})
	c.await(key("web"), all(exportsAre(web), staleAre("cls1")))
}

// testStaleUnknown: a cluster dies, and one that starts after that cannot read its export.
func testStaleUnknown(t *testing.T, h *harness) {
	if h.Corrupt == nil {
		t.Skip("the backend has no hook Corrupt")
	}
	a, _, web := h.startExporter(t)
	a.stop(nil)
	h.Corrupt(t, clusterSet, "cls1", key("web"))
	c := h.start(t, identity("cls3")).imports("cls1")
	c.await(key("web"), all(unknownAre("cls1"), staleAre("cls1")))
	h.startPublishing(t, identity("cls1"), web)
	c.await(key("web"), all(exportsAre(web), live))
}

func testNotStaleWhileFailing(t *testing.T, h *harness) { testNotStaleWhile(t, h, h.Fail) }

func testNotStaleWithoutHeartbeats(t *testing.T, h *harness) {
	testNotStaleWhile(t, h, h.DropHeartbeats)
}

// testNotStaleWhile injects a fault for longer than StaleAfter: a cluster that stops meanwhile is
// stale only after the fault.
func testNotStaleWhile(t *testing.T, h *harness, inject func(*testing.T) (restore func())) {
	t.Helper()
	if inject == nil {
		t.Skip("the backend has no hook for this fault")
	}
	a, b, _ := h.startExporter(t)
	restore := inject(t)
	a.stop(nil)
	time.Sleep(2 * h.StaleAfter)
	if lacks := live(b.lookup(key("web"))); lacks != "" {
		t.Error(lacks)
	}
	restore()
	b.await(key("web"), staleAre("cls1"))
}
