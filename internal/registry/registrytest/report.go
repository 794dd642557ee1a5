package registrytest

import (
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// testReport checks that a report has every key.
func testReport(t *testing.T, h *harness) {
	a, b := h.start(t, identity("cls1")), h.start(t, identity("cls2"))
	if _, ok := a.reg.(registry.Reporter); !ok {
		t.Skip("the registry is no registry.Reporter")
	}
	a.publish(export("cls1", key("web"), 1))
	b.publish(export("cls2", key("db"), 1))
	for _, n := range []*node{a, b} {
		h.until(t, "the report names both services", func() bool {
			r := registry.ReportOf(n.reg)
			return len(r.Keys) == 2 && slices.Contains(r.Keys, key("web")) && slices.Contains(r.Keys, key("db")) && r.Writing == nil
		})
	}
}
