package registrytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// The clauses of registry.Liveness as far as real time lets one see them. How it counts is tested in virtual time.

// staleAre wants exactly these clusters to be stale.
func staleAre(want ...string) condition {
	return func(v registry.View) string {
		if !slices.Equal(v.Stale, want) {
			return fmt.Sprintf("stale clusters %v, want %v", v.Stale, want)
		}
		return ""
	}
}

// live wants every exporting cluster to be known to live.
func live(v registry.View) string {
	if len(v.Stale)+len(v.LivenessUnknown) > 0 {
		return fmt.Sprintf("stale clusters %v, unheard ones %v, want none", v.Stale, v.LivenessUnknown)
	}
	return ""
}

// staleMembers wants Members to say what the Views say.
func (n *node) staleMembers(want ...string) {
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

// exporting starts cls1 with an export that cls2 imports and has heard of.
func (h *harness) exporting(t *testing.T) (a, b *node, web mcs.Export) {
	t.Helper()
	if h.StaleAfter == 0 {
		t.Skip("nobody is ever stale in this backend")
	}
	a, b = h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	web = export("cls1", key("web"), 3)
	a.publish(web)
	b.await(key("web"), all(exportsAre(web), live))
	return a, b, web
}

func testStale(t *testing.T, h *harness) {
	a, b, web := h.exporting(t)
	a.stop(nil)
	b.await(key("web"), all(exportsAre(web), staleAre("cls1")))
	b.staleMembers("cls1")
	h.start(t, identity("cls1"))
	b.await(key("web"), all(exportsAre(web), live))
	b.staleMembers()
}

func testStaleForgotten(t *testing.T, h *harness) {
	if h.Forget == nil {
		t.Skip("the backend's members cannot be forgotten")
	}
	a, b, web := h.exporting(t)
	a.stop(nil)
	h.Forget(t, clusterSet, "cls1")
	b.forbid(func(_ mcs.Key, v registry.View) string { return exportsAre(web)(v) })
	b.await(key("web"), staleAre("cls1"))
	h.start(t, identity("cls1"))
	b.await(key("web"), live)
}

func testStaleAtStart(t *testing.T, h *harness) {
	a, b, web := h.exporting(t)
	a.stop(nil)
	b.await(key("web"), staleAre("cls1"))
	c := h.start(t, identity("cls3"))
	c.await(key("web"), func(v registry.View) string {
		switch {
		case len(v.Stale) > 0:
			return "" // a busy machine: the first look came late
		case !slices.Equal(v.LivenessUnknown, []string{"cls1"}):
			return fmt.Sprintf("unheard clusters %v, want cls1", v.LivenessUnknown)
		}
		return exportsAre(web)(v)
	})
	c.await(key("web"), all(exportsAre(web), staleAre("cls1")))
}

func testStaleWhileBroken(t *testing.T, h *harness) { testNotStaleWhile(t, h, h.Break) }

func testStaleWhileMute(t *testing.T, h *harness) { testNotStaleWhile(t, h, h.Mute) }

// testNotStaleWhile hurts the registry for longer than it takes to become stale: a cluster that died is stale only after that.
func testNotStaleWhile(t *testing.T, h *harness, hurt func(*testing.T) func()) {
	t.Helper()
	if hurt == nil {
		t.Skip("the backend cannot be hurt in this way")
	}
	a, b, _ := h.exporting(t)
	mend := hurt(t)
	a.stop(nil)
	time.Sleep(2 * h.StaleAfter)
	if lacks := live(b.look(key("web"))); lacks != "" {
		t.Error(lacks)
	}
	mend()
	b.await(key("web"), staleAre("cls1"))
}
