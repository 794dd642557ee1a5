package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

var key = mcs.Key{Namespace: "demo", Name: "web"}

func TestMetrics(t *testing.T) {
	gatherer := prometheus.NewPedanticRegistry()
	metrics, err := registry.NewMetrics(gatherer)
	if err != nil {
		t.Fatal(err)
	}
	inner := memory.NewHub().Registry(mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid"})
	reg := registry.WithMetrics(inner, "memory", metrics)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	notified := make(chan mcs.Key, 100)
	done := make(chan error)
	go func() { done <- reg.Run(ctx, func(k mcs.Key) { notified <- k }) }()

	if err := reg.Publish(ctx, mcs.Export{Key: key, Cluster: "cls1"}); err != nil {
		t.Fatal(err)
	}
	if err := reg.Publish(ctx, mcs.Export{Key: key, Cluster: "cls2"}); err == nil {
		t.Fatal("an export of another cluster was accepted")
	}
	<-notified
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	metrics.ObserveRequest("memory", "Read", "ok", time.Millisecond)
	metrics.ObserveRequest("memory", "Read", "throttled", time.Millisecond)
	metrics.SetRequestLimit("memory", "Read", 50)
	metrics.SetObjects("memory", "pages", 3)
	metrics.SetPending("memory", "pages", 2)
	metrics.SetLimitUsed("memory", "page", 64, 256)
	want := `
# HELP cloud_map_mcs_registry_changes_total Requested changes of exports, by operation (publish, withdraw) and result (ok, invalid, error).
# TYPE cloud_map_mcs_registry_changes_total counter
cloud_map_mcs_registry_changes_total{operation="publish",registry="memory",result="invalid"} 1
cloud_map_mcs_registry_changes_total{operation="publish",registry="memory",result="ok"} 1
# HELP cloud_map_mcs_registry_limit_used_ratio Used share of a limit of the registry, from 0 to 1, by limit: ` + docs.URL("runbooks/CloudMapMCSNearLimit.md") + `
# TYPE cloud_map_mcs_registry_limit_used_ratio gauge
cloud_map_mcs_registry_limit_used_ratio{limit="page",registry="memory"} 0.25
# HELP cloud_map_mcs_registry_pending Objects that wait to be written to the registry, by kind: exports, pages, or services of the instance view.
# TYPE cloud_map_mcs_registry_pending gauge
cloud_map_mcs_registry_pending{kind="pages",registry="memory"} 2
# HELP cloud_map_mcs_registry_request_limit Client-side rate limit in requests per second, by operation. It decreases when the backend throttles, and recovers.
# TYPE cloud_map_mcs_registry_request_limit gauge
cloud_map_mcs_registry_request_limit{operation="Read",registry="memory"} 50
# HELP cloud_map_mcs_registry_requests_total Requests to the registry, by result: ok, throttled, denied, not_found, conflict, invalid, canceled, error or unknown.
# TYPE cloud_map_mcs_registry_requests_total counter
cloud_map_mcs_registry_requests_total{operation="Read",registry="memory",result="ok"} 1
cloud_map_mcs_registry_requests_total{operation="Read",registry="memory",result="throttled"} 1
# HELP cloud_map_mcs_registry_objects Objects of this cluster in the registry, by kind (exports, pages, instances).
# TYPE cloud_map_mcs_registry_objects gauge
cloud_map_mcs_registry_objects{kind="pages",registry="memory"} 3
`
	err = testutil.GatherAndCompare(gatherer, strings.NewReader(want), "cloud_map_mcs_registry_changes_total",
		"cloud_map_mcs_registry_limit_used_ratio", "cloud_map_mcs_registry_pending", "cloud_map_mcs_registry_request_limit", "cloud_map_mcs_registry_requests_total", "cloud_map_mcs_registry_objects")
	if err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(gatherer)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	var invalid prometheus.AlreadyRegisteredError
	if _, err := registry.NewMetrics(gatherer); !errors.As(err, &invalid) {
		t.Errorf("registering twice: error %v, want AlreadyRegisteredError", err)
	}
}

func TestNoMetrics(t *testing.T) {
	var metrics *registry.Metrics
	metrics.ObserveRequest("memory", "Read", "ok", 0)
	metrics.SetRequestLimit("memory", "Read", 1)
	metrics.SetObjects("memory", "pages", 1)
	metrics.SetPending("memory", "pages", 1)
	metrics.SetLimitUsed("memory", "page", 1, 256)
	inner := memory.NewHub().Registry(mcs.Identity{})
	if reg := registry.WithMetrics(inner, "memory", nil); reg != registry.Registry(inner) {
		t.Error("the registry is wrapped although there are no metrics")
	}
}

func TestPublished(t *testing.T) {
	exp := mcs.Export{Key: key, Cluster: "cls1", Backends: []mcs.Backends{{Endpoints: []mcs.Endpoint{{Node: "node-1"}}}}}
	if got := registry.Published(exp).Backends[0].Endpoints[0].Node; got != "" {
		t.Errorf("node %q is published", got)
	}
	if got := exp.Backends[0].Endpoints[0].Node; got != "node-1" {
		t.Errorf("the export's own node became %q", got)
	}
}

func TestCountRefusedRecord(t *testing.T) {
	gatherer := prometheus.NewRegistry()
	metrics, err := registry.NewMetrics(gatherer)
	if err != nil {
		t.Fatal(err)
	}
	registry.WithMetrics(memory.NewHub().Registry(mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid"}), "memory", metrics)
	const name = "cloud_map_mcs_registry_records_refused_total"
	if n, err := testutil.GatherAndCount(gatherer, name); n != 1 || err != nil {
		t.Errorf("%d series before the first refused record (%v), want 1", n, err)
	}
	metrics.CountRefusedRecord("memory")
	want := "# HELP " + name + " Records under the ID of another cluster that were refused, because their signature is missing or does not verify.\n" +
		"# TYPE " + name + " counter\n" + name + `{registry="memory"} 1` + "\n"
	if err := testutil.GatherAndCompare(gatherer, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
	(*registry.Metrics)(nil).CountRefusedRecord("memory")
}

func TestIsRefused(t *testing.T) {
	if problem := registry.RefusedProblem("page 7", errors.New("it has no signature")); problem != "refused page 7: it has no signature" || !registry.IsRefused(problem) {
		t.Errorf("problem %q, refused %t", problem, registry.IsRefused(problem))
	}
	if registry.IsRefused("page 7 is missing") {
		t.Error("another problem is a refused record")
	}
}
