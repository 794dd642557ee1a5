package config

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// Budgets limit the cost of the exports of the other clusters in this one.
// docs/operations-measurements.md has the arithmetic.
type Budgets struct {
	budget.Limits
	// NamespaceImports is the maximum number of imports in a namespace.
	NamespaceImports int
}

// defaultBudgets returns the default budgets. The Deployment has 512 MiB. GOMEMLIMIT makes the
// garbage collector keep the process below 460. docs/operations-measurements.md has the
// measurements:
//   - exports: Kubernetes is tested with 10,000 Services in a cluster (sig-scalability's
//     thresholds); one member may export half of them. An import that uses its part of all budgets
//     takes some 17 KiB of heap with its cached ServiceImport, Service and EndpointSlice, so 10,000
//     imports take 170 MiB.
//   - endpoints: an endpoint takes 100 bytes of heap as it was read, and some 300 in the cached
//     EndpointSlice. So 100,000 take 40 MiB, a part of the 170.
//   - ports: a port takes 100 bytes as it was read, and some 320 in the cached objects
//     (mcs.Sanitize). So 40,000 take 16 MiB, a part of the 170.
//   - port-endpoints: kube-proxy has an entry for each on every node, and the controller none. A
//     cluster of Kubernetes' tested size has 150,000 pods; one member may add two thirds of as many
//     entries.
//   - bytes: an export of ten endpoints takes some 200, so 5,000 take 1 MiB; 4 KiB of annotations
//     each for a quarter of the exports fit besides it.
//   - imports in a namespace: the same thresholds have 5,000 Services in a namespace, and its own
//     Services need a part.
//
// The total budget is that of two members, for port-endpoints that of four. Half of it is reserved
// in equal shares for the members that use less, and half of a member's budget for its namespaces
// (package budget): one alone cannot use it up.
func defaultBudgets() Budgets {
	member := budget.Amounts{
		budget.Exports: 5_000, budget.Endpoints: 50_000, budget.Ports: 20_000, budget.PortEndpoints: 100_000, budget.Bytes: 8 << 20,
	}
	total := member
	for kind := range total {
		total[kind] *= 2
	}
	total[budget.PortEndpoints] = 4 * member[budget.PortEndpoints]
	return Budgets{Limits: budget.Limits{Member: member, Total: total}, NamespaceImports: 4_000}
}

// budgetKinds describe the kinds of budgets.
var budgetKinds = map[budget.Kind]string{
	budget.Exports: "exports", budget.Endpoints: "endpoints",
	budget.Ports:         "ports (of the Services, and of each group of endpoints with the same ports)",
	budget.PortEndpoints: "ports times endpoints (the entries of kube-proxy on every node)",
	budget.Bytes:         "bytes of exports (before compression)",
}

func (b *Budgets) bind(flags *pflag.FlagSet) {
	for _, kind := range budget.Kinds() {
		flags.IntVar(&b.Member[kind], "budget-member-"+kind.String(), b.Member[kind],
			"Maximum number of "+budgetKinds[kind]+" from one other cluster. An export that exceeds it is not imported, or stays as it was imported before.")
	}
	for _, kind := range budget.Kinds() {
		flags.IntVar(&b.Total[kind], "budget-total-"+kind.String(), b.Total[kind],
			"Maximum number of "+budgetKinds[kind]+" from all other clusters together.")
	}
	flags.IntVar(&b.NamespaceImports, "budget-namespace-imports", b.NamespaceImports,
		"Maximum number of imports in a namespace. Imports that exist stay.")
}

func (b *Budgets) validate() error {
	var problems []error
	check := func(name string, value, least int, why string) {
		if value < least {
			problems = append(problems, fmt.Errorf("--budget-%s=%d: must be at least %d%s", name, value, least, why))
		}
	}
	for _, kind := range budget.Kinds() {
		check("member-"+kind.String(), b.Member[kind], 1, "")
		check("total-"+kind.String(), b.Total[kind], b.Member[kind], ", which is --budget-member-"+kind.String())
	}
	check("namespace-imports", b.NamespaceImports, 1, "")
	return errors.Join(problems...)
}
