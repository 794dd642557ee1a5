package exports

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// TestOverBudget: an export that exceeds the budgets of its own cluster is warned about, others are
// not, and there is room again after one has ended.
func TestOverBudget(t *testing.T) {
	many := budget.Amounts{1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20}
	limits := budget.Limits{Member: many, Total: many}
	limits.Member[budget.Ports] = 10
	account := budget.NewLedger(limits).Open(budget.Owner{})
	export := func(name string, ports int) mcs.Export {
		exp := mcs.Export{Key: mcs.Key{Namespace: "demo", Name: name}, Type: "ClusterSetIP"}
		for i := range ports {
			exp.Ports = append(exp.Ports, mcs.Port{Protocol: corev1.ProtocolTCP, Port: int32(1 + i)})
		}
		return exp
	}
	if got := overBudget(account, export("a", 6)); got != "" {
		t.Errorf("within the budget: %q", got)
	}
	const want = "this cluster exports more than the budget of 10 ports for one cluster (--budget-scale)"
	if got := overBudget(account, export("b", 6)); !strings.HasPrefix(got, want) {
		t.Errorf("over the budget: %q", got)
	}
	account.Release(mcs.Key{Namespace: "demo", Name: "a"})
	if got := overBudget(account, export("b", 6)); got != "" {
		t.Errorf("with room: %q", got)
	}
	if got := overBudget(nil, export("c", 1000)); got != "" {
		t.Errorf("without budgets: %q", got)
	}
}
