package registry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// Namespaces selects the namespaces whose exports are used. It is called often, and answers from
// memory.
type Namespaces interface {
	// Uses reports whether the exports of a namespace are used.
	Uses(namespace string) bool
	// Used returns all such namespaces; ok is false if they are not known.
	Used() (namespaces []string, ok bool)
}

// NamespaceFilter selects the namespaces whose exports are used. The zero value and nil select all.
type NamespaceFilter struct {
	selected atomic.Pointer[Namespaces]
}

// Set sets the selection.
func (f *NamespaceFilter) Set(selected Namespaces) { f.selected.Store(&selected) }

// Wants reports whether the exports of a namespace are used.
func (f *NamespaceFilter) Wants(namespace string) bool {
	selected := f.load()
	return selected == nil || selected.Uses(namespace)
}

// Used returns the namespaces that Wants is true for; ok is false if they are not known.
func (f *NamespaceFilter) Used() (namespaces []string, ok bool) {
	selected := f.load()
	if selected == nil {
		return nil, false
	}
	return selected.Used()
}

// load returns the selection, nil for all namespaces.
func (f *NamespaceFilter) load() Namespaces {
	if f == nil || f.selected.Load() == nil {
		return nil
	}
	return *f.selected.Load()
}

// budgetMetrics exposes the budgets of a ledger.
type budgetMetrics struct {
	ledger atomic.Pointer[budget.Ledger]
	// imports returns the imports of the namespace with most, their limit, and the number of those
	// that wait.
	imports                      atomic.Pointer[func() (used, limit, waiting int)]
	used, limit, excess, waiting *prometheus.Desc
}

func newBudgetMetrics() *budgetMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cloud_map_mcs_"+name, help, labels, nil)
	}
	kinds := "by kind and scope: " + docs.URL("operations.md#where-it-shows")
	return &budgetMetrics{
		used:    desc("budget_used", "Use of the budget for the exports of the other clusters, "+kinds, "scope", "kind"),
		limit:   desc("budget_limit", "Budget for the exports of the other clusters, "+kinds, "scope", "kind"),
		excess:  desc("budget_excess_exports", "Exports of other clusters that exceed a budget: they are not imported, or an earlier version of them is."),
		waiting: desc("budget_excess_imports", "Imports that do not exist because their namespace has as many as the budgets allow (--budget-scale)."),
	}
}

// Describe implements prometheus.Collector.
func (b *budgetMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- b.used
	ch <- b.limit
	ch <- b.excess
	ch <- b.waiting
}

// Collect implements prometheus.Collector.
func (b *budgetMetrics) Collect(ch chan<- prometheus.Metric) {
	if imports := b.imports.Load(); imports != nil {
		used, limit, waiting := (*imports)()
		ch <- prometheus.MustNewConstMetric(b.used, prometheus.GaugeValue, float64(used), "namespace", "imports")
		ch <- prometheus.MustNewConstMetric(b.limit, prometheus.GaugeValue, float64(limit), "namespace", "imports")
		ch <- prometheus.MustNewConstMetric(b.waiting, prometheus.GaugeValue, float64(waiting))
	}
	ledger := b.ledger.Load()
	if ledger == nil {
		return
	}
	u := ledger.Usage()
	for _, kind := range budget.Kinds() {
		for scope, amounts := range map[string][2]budget.Amounts{"member": {u.Member, u.Limits.Member}, "total": {u.Total, u.Limits.Total}} {
			ch <- prometheus.MustNewConstMetric(b.used, prometheus.GaugeValue, float64(amounts[0][kind]), scope, kind.String())
			ch <- prometheus.MustNewConstMetric(b.limit, prometheus.GaugeValue, float64(amounts[1][kind]), scope, kind.String())
		}
	}
	ch <- prometheus.MustNewConstMetric(b.excess, prometheus.GaugeValue, float64(u.Excess))
}

// SetLedger sets the ledger whose budgets are exposed.
func (m *Metrics) SetLedger(ledger *budget.Ledger) {
	if m != nil {
		m.budgets.ledger.Store(ledger)
	}
}

// SetNamespaceImports sets the function that returns the imports of the namespace with most, their
// limit, and the number of those that wait.
func (m *Metrics) SetNamespaceImports(imports func() (used, limit, waiting int)) {
	if m != nil {
		m.budgets.imports.Store(&imports)
	}
}

// Budgets returns how much of the budgets is used; ok is false if there are none.
func (m *Metrics) Budgets() (usage budget.Usage, ok bool) {
	if m == nil || m.budgets.ledger.Load() == nil {
		return budget.Usage{}, false
	}
	return m.budgets.ledger.Load().Usage(), true
}
