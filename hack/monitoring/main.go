// Command monitoring writes the Grafana dashboard and the PrometheusRule. "make generate" runs it
// at the root of the repository.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

const (
	dashboardFile      = "deploy/dashboards/" + names.Product + ".json"
	rulesFile          = "deploy/alerts/rules.yaml"
	prometheusRuleFile = "deploy/alerts/prometheusrule.yaml"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hack/monitoring:", err)
		os.Exit(1)
	}
}

func run() error {
	encoded, err := dashboard()
	if err != nil {
		return err
	}
	if err := os.WriteFile(dashboardFile, encoded, 0o644); err != nil {
		return err
	}
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		return err
	}
	resource, err := prometheusRule(string(rules))
	if err != nil {
		return fmt.Errorf("%s: %w", rulesFile, err)
	}
	return os.WriteFile(prometheusRuleFile, []byte(resource), 0o644)
}

// prometheusRule returns the PrometheusRule with the groups of a file of rules.
func prometheusRule(rules string) (string, error) {
	_, groups, ok := strings.Cut(rules, "\ngroups:\n")
	if !ok {
		return "", errors.New("the file has no groups")
	}
	var b strings.Builder
	b.WriteString("# Generated from rules.yaml by make generate.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n" +
		"  name: " + names.Product + "\n  namespace: " + names.Namespace + "\nspec:\n  groups:\n")
	for line := range strings.Lines(groups) {
		b.WriteString("  " + line)
	}
	return b.String(), nil
}
