package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// TestRun_BudgetsOverCloudMap: exports in a namespace that does not exist cost nothing, and are
// imported when it is created; a namespace with as many imports as it may have gets no further one
// until one has ended.
func TestRun_BudgetsOverCloudMap(t *testing.T) {
	a, b := twoClusters(t)
	url := localCloudMap(t, cloudmaplocal.Options{})
	keyrings := newKeyrings()
	filter := &registry.NamespaceFilter{}
	gatherer := prometheus.NewRegistry()
	metrics, err := registry.NewMetrics(gatherer)
	if err != nil {
		t.Fatal(err)
	}
	options := testOptions(flags("cls2"))
	options.Budgets.NamespaceImports = 1
	ledger := budget.NewLedger(options.Budgets.Limits)
	newRegistry := func(ledger *budget.Ledger, filter *registry.NamespaceFilter) func(context.Context, mcs.Identity) (registry.Registry, error) {
		return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url})
			if err != nil {
				return nil, err
			}
			cfg := cloudMapConfig(t, keyrings, identity)
			cfg.Ledger, cfg.Wanted, cfg.UsedNamespaces = ledger, filter.Wants, filter.Used
			return cloudmap.New(client, cfg)
		}
	}
	first := newKey("budgets")
	second := mcs.Key{Namespace: first.Namespace, Name: first.Name + "-2"}
	elsewhere := newKey("budgets-elsewhere")
	a.namespace(t, first.Namespace)
	a.namespace(t, elsewhere.Namespace)
	b.namespace(t, elsewhere.Namespace)
	a.runWith(t, newRegistry(nil, &registry.NamespaceFilter{}), testOptions(flags("cls1")))
	runSetup(t, b.cfg, Setup{Options: options, NewRegistry: newRegistry(ledger, filter), Namespaces: filter, RegistryMetrics: metrics})

	a.export(t, first, 1, 2)
	a.export(t, elsewhere, 1, 1)
	b.imported(t, elsewhere, map[string][]string{"cls1": {"10.1.0.1"}})
	a.condition(t, first, "Ready=True Exported", "")
	costs := func(exports int) func() error {
		return func() error {
			if got := ledger.Usage().Total[budget.Exports]; got != exports {
				return fmt.Errorf("the budgets count %d exports, want %d", got, exports)
			}
			return nil
		}
	}
	eventually(t, "the export without a namespace costs nothing", costs(1))

	b.namespace(t, first.Namespace)
	b.imported(t, first, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})

	a.export(t, second, 1, 1)
	eventually(t, "the second export is read", costs(3))
	eventually(t, "its import waits", func() error {
		families, err := gatherer.Gather()
		for _, f := range families {
			if f.GetName() == "cloud_map_mcs_budget_excess_imports" && f.GetMetric()[0].GetGauge().GetValue() == 1 {
				return nil
			}
		}
		return fmt.Errorf("no import waits: %w", err)
	})
	b.event(t, second, "OverBudget")
	b.notImported(t, second)
	a.delete(t, controllertest.ServiceExport(first))
	b.notImported(t, first)
	b.imported(t, second, map[string][]string{"cls1": {"10.1.0.1"}})
}

// TestRun_OverBudgetReachesTheExporter: the condition of a ServiceExport names the cluster whose
// budgets it exceeds, and no more once there is room.
func TestRun_OverBudgetReachesTheExporter(t *testing.T) {
	a, b := twoClusters(t)
	url := localCloudMap(t, cloudmaplocal.Options{})
	keyrings := newKeyrings()
	newRegistry := func(ledger *budget.Ledger) func(context.Context, mcs.Identity) (registry.Registry, error) {
		return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url})
			if err != nil {
				return nil, err
			}
			cfg := cloudMapConfig(t, keyrings, identity)
			cfg.Ledger = ledger
			return cloudmap.New(client, cfg)
		}
	}
	options := testOptions(flags("cls2"))
	limits := options.Budgets.Limits
	limits.Member[budget.PortEndpoints] = 3
	first := newKey("over-budget")
	second := mcs.Key{Namespace: first.Namespace, Name: first.Name + "-2"}
	for _, k := range []*cluster{a, b} {
		k.namespace(t, first.Namespace)
	}
	runSetup(t, a.cfg, Setup{Options: testOptions(flags("cls1")), NewRegistry: newRegistry(nil), ReportInterval: 50 * time.Millisecond})
	runSetup(t, b.cfg, Setup{Options: options, NewRegistry: newRegistry(budget.NewLedger(limits)), ReportInterval: 50 * time.Millisecond})

	a.export(t, first, 1, 2)
	b.imported(t, first, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	a.export(t, second, 1, 2)
	a.condition(t, second, mcs.ConditionImported+"=False OverBudget", "over the budgets of cls2")
	a.delete(t, controllertest.ServiceExport(first))
	b.imported(t, second, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	a.condition(t, second, mcs.ConditionImported+"=True Imported", "imported by cls2")
}
