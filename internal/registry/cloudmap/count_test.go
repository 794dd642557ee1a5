package cloudmap

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestNamespaceIsCounted: what the metric says of the control namespace is what all clusters have
// in there, while pages grow and a cluster leaves.
func TestNamespaceIsCounted(t *testing.T) {
	const quota = 1000
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	gatherer := prometheus.NewRegistry()
	metrics, err := registry.NewMetrics(gatherer)
	if err != nil {
		t.Fatal(err)
	}
	watching := fast(cls1)
	watching.Metrics, watching.InstancesPerNamespace = metrics, quota
	reg, other := c.registry(t, watching), c.registry(t, fast(cls2))
	start(t, reg)
	leave := start(t, other)
	stored := func() (all int) {
		for _, name := range []string{format.MembersService, format.CatalogName("cls1"), format.CatalogName("cls2")} {
			all += len(c.instances(t, format.ControlNamespace("set1"), name))
		}
		return all
	}
	isCounted := func(what string, atLeast, atMost int) {
		t.Helper()
		var there int
		var counted float64
		defer func() { t.Logf("%s: %d instances, counted %v of %d", what, there, counted, quota) }()
		within(t, 20*time.Second, what, func() bool {
			there, counted = stored(), limitUsed(t, gatherer, "namespace")
			return there >= atLeast && there <= atMost && counted == float64(there)/quota
		})
	}
	isCounted("two records and their copies", 4, 4)
	publish(t, other, webExport("cls2", 0, 1))
	isCounted("a page of another cluster", 5, 5)
	publish(t, reg, bulky(1, 1))
	isCounted("a page of many parts", 15, 32)
	publish(t, reg, webExport("cls1", 1, 1))
	isCounted("a page that shrank", 6, 6)
	leave(registry.ErrLeave)
	isCounted("one cluster left, its farewell stays", 4, 4)
}

// limitUsed returns the metric of a limit, -1 while there is none.
func limitUsed(t *testing.T, gatherer prometheus.Gatherer, limit string) float64 {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if labels := m.GetLabel(); family.GetName() == "cloud_map_mcs_registry_limit_used_ratio" && labels[0].GetValue() == limit {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// TestStoredIsCounted: the report has the instances that Cloud Map has of the cluster, of its
// records and of the instance view.
func TestStoredIsCounted(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	cfg := fast(cls1)
	cfg.InstanceView = true
	reg := c.registry(t, cfg)
	start(t, reg)
	export := webExport("cls1", 0, 3)
	isCounted := func(when string, want registry.Stored, view func() int) {
		t.Helper()
		var got, there registry.Stored
		defer func() { t.Logf("%s: counted %+v of %+v", when, got, there) }()
		within(t, 20*time.Second, when, func() bool {
			got = *reg.Report().Stored
			there = registry.Stored{Records: len(c.instances(t, format.ControlNamespace("set1"), format.MembersService)) + len(c.instances(t, format.ControlNamespace("set1"), format.CatalogName("cls1"))), View: view()}
			return got == want && there == want
		})
	}
	none := func() int { return 0 }
	isCounted("the record and its copy", registry.Stored{Records: 2}, none)
	publish(t, reg, export)
	isCounted("an export of three endpoints", registry.Stored{Records: 3, View: 3}, func() int { return len(c.instances(t, export.Key.Namespace, export.Key.Name)) })
	if err := reg.Withdraw(t.Context(), export.Key); err != nil {
		t.Fatal(err)
	}
	isCounted("no export any more", registry.Stored{Records: 2}, none)
}
