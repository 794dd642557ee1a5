package config

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// TestBudgetScale: one factor sets all budgets, and each stays at least 1.
func TestBudgetScale(t *testing.T) {
	for arg, want := range map[string]int{"": 5_000, "--budget-scale=1": 5_000, "--budget-scale=2": 10_000, "--budget-scale=0.01": 50, "--budget-scale=100": 500_000} {
		args := []string{"--aws-region=eu-west-1"}
		if arg != "" {
			args = append(args, arg)
		}
		options, err := Parse(args)
		if err != nil {
			t.Fatal(err)
		}
		b, all := options.Budgets, defaultBudgets()
		for _, kind := range budget.Kinds() {
			member, total := all.Member[kind]*want/5_000, all.Total[kind]*want/5_000
			if b.Member[kind] != member || b.Total[kind] != total {
				t.Errorf("%q: %d %s of one member and %d of all, want %d and %d", arg, b.Member[kind], kind, b.Total[kind], member, total)
			}
		}
		if want := all.NamespaceImports * want / 5_000; b.NamespaceImports != want {
			t.Errorf("%q: %d imports in a namespace, want %d", arg, b.NamespaceImports, want)
		}
	}
	for _, value := range []string{"0", "-1", "0.009", "101", "NaN", "Inf", "two"} {
		if _, err := Parse([]string{"--aws-region=eu-west-1", "--budget-scale=" + value}); err == nil || !strings.Contains(err.Error(), "from 0.01 to 100") {
			t.Errorf("--budget-scale=%s: error %v", value, err)
		}
	}
}
