package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/monitoring"
)

// promtool runs promtool.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlertRules(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "alerts/rules.yaml")
	promtool(t, "test", "rules", "alerts/rules_test.yaml")
}

// TestDashboardQueries parses the queries of the dashboard.
func TestDashboardQueries(t *testing.T) {
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for i, expr := range dashboardExpressions(t) {
		rules = append(rules, rule{Record: fmt.Sprintf("panel:query:%d", i), Expr: strings.ReplaceAll(expr, "$__rate_interval", "5m")})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", "--lint=none", path)
}

// TestMonitoringMetrics checks that alerts and panels use only existing metrics and labels, and
// together all metrics of the controller.
func TestMonitoringMetrics(t *testing.T) {
	known, err := monitoring.Documented("..")
	if err != nil {
		t.Fatal(err)
	}
	used, err := monitoring.Used("..")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, u := range used {
		seen[u.Metric] = true
		labels, ours := known[u.Metric]
		if !ours && strings.HasPrefix(u.Metric, "cloud_map_mcs_") {
			t.Errorf("%s uses %s, which is not in docs/reference/metrics.md", u.By, u.Metric)
		}
		for _, label := range u.Labels {
			if ours && label != "job" && !slices.Contains(labels, label) {
				t.Errorf("%s selects by label %s of %s, which has the labels %v", u.By, label, u.Metric, labels)
			}
		}
	}
	for metric := range known {
		if !seen[metric] {
			t.Errorf("neither alerts nor dashboard use %s", metric)
		}
	}
}

func TestEveryAlertHasRunbookAndCase(t *testing.T) {
	cases, err := os.ReadFile("alerts/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := monitoring.ReadRules("alerts/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, rule := range rules {
		page := rule.Alert + ".md"
		pages = append(pages, page)
		text, err := os.ReadFile(filepath.Join("../docs/runbooks", page))
		if err != nil {
			t.Errorf("alert %s has no runbook: %v", rule.Alert, err)
		}
		for _, want := range []string{"# " + rule.Alert, "Severity " + rule.Labels["severity"] + ", after " + rule.For} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s lacks %q", page, want)
			}
		}
		if url := rule.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/runbooks/"+page) {
			t.Errorf("alert %s has runbook_url %q", rule.Alert, url)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("alert %s lacks a severity, summary or description", rule.Alert)
		}
		if !bytes.Contains(cases, []byte(`'{alertname="`+rule.Alert+`"}'`)) {
			t.Errorf("alert %s fires in no case of rules_test.yaml", rule.Alert)
		}
	}
	files, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if base := filepath.Base(file); base != "README.md" && !slices.Contains(pages, base) {
			t.Errorf("%s has no alert", file)
		}
	}
}

func TestPanelsHaveDescriptions(t *testing.T) {
	for _, p := range readDashboard(t).Panels {
		if p.Type != "row" && (p.Title == "" || len(p.Description) < 20 || len(p.Targets) == 0) {
			t.Errorf("panel %q lacks a title, description or query", p.Title)
		}
	}
}

func readDashboard(t *testing.T) monitoring.Dashboard {
	t.Helper()
	d, err := monitoring.ReadDashboard("..")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func dashboardExpressions(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			out = append(out, target.Expr)
		}
	}
	return out
}
