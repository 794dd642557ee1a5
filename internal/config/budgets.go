package config

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// Budgets limit the cost of the exports of the other clusters in this one. defaultBudgets has the
// arithmetic.
type Budgets struct {
	budget.Limits
	// NamespaceImports is the maximum number of imports in a namespace.
	NamespaceImports int
}

// The values of --budget-scale. A hundredth of the budgets is 50 exports of a member; a hundred
// times as many would need 50 GiB of memory.
const minScale, maxScale = 0.01, 100

// scaledBudgets returns the default budgets times scale.
func scaledBudgets(scale float64) Budgets {
	b := defaultBudgets()
	scaled := func(n int) int { return max(1, int(float64(n)*scale)) }
	for kind := range b.Member {
		b.Member[kind], b.Total[kind] = scaled(b.Member[kind]), scaled(b.Total[kind])
	}
	b.NamespaceImports = scaled(b.NamespaceImports)
	return b
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
//     each for a quarter of the exports fit besides it. They are kept as read and in the cached
//     ServiceImport, so 16 MiB take 32 of the 170.
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

// budgetScale is the value of --budget-scale. One number sets all budgets: they share the memory of
// the process, and docs/operations.md says how much a multiple of them needs.
type budgetScale struct {
	budgets *Budgets
	scale   float64
}

// Set implements pflag.Value.
func (s *budgetScale) Set(text string) error {
	scale, err := strconv.ParseFloat(text, 64)
	if err != nil || !(scale >= minScale && scale <= maxScale) {
		return fmt.Errorf("must be a number from %v to %v", minScale, maxScale)
	}
	s.scale, *s.budgets = scale, scaledBudgets(scale)
	return nil
}

// String implements pflag.Value.
func (s *budgetScale) String() string { return strconv.FormatFloat(s.scale, 'g', -1, 64) }

// Type implements pflag.Value.
func (s *budgetScale) Type() string { return "float" }

func (b *Budgets) bind(_, advanced *pflag.FlagSet) {
	advanced.Var(&budgetScale{budgets: b, scale: 1}, "budget-scale",
		"Factor of the budgets for the exports of the other clusters. The memory limit grows with it: "+docs.URL("operations.md#budgets"))
}
