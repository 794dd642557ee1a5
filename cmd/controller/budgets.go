package main

import (
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// budgets limit the exports of the other clusters. Each session has a ledger for all of its
// registries: during a change of the identity two sessions hold the exports.
type budgets struct {
	limits     budget.Limits
	namespaces *registry.NamespaceFilter
	// ledger is that of the session that is being created.
	ledger *budget.Ledger
}

func newBudgets(options config.Options) *budgets {
	return &budgets{limits: options.Budgets.Limits, namespaces: &registry.NamespaceFilter{}}
}

// open creates the ledger of a session. Sessions are created one after another.
func (b *budgets) open() *budget.Ledger {
	b.ledger = budget.NewLedger(b.limits)
	return b.ledger
}

// current returns the ledger of the session that is being created and its selection of namespaces,
// none for a nil *budgets.
func (b *budgets) current() (*budget.Ledger, *registry.NamespaceFilter) {
	if b == nil {
		return nil, nil
	}
	return b.ledger, b.namespaces
}
