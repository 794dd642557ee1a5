// Package monitoring reads the metrics that the alert rules and the dashboard use, for the tests
// that compare them with the metrics of the controller: in its reference and in a real scrape.
package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Rule is an alert rule.
type Rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// ReadRules reads a file of Prometheus rules.
func ReadRules(path string) ([]Rule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct{ Groups []struct{ Rules []Rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var out []Rule
	for _, group := range file.Groups {
		out = append(out, group.Rules...)
	}
	return out, nil
}

// Dashboard holds the fields of a Grafana dashboard that the tests use.
type Dashboard struct {
	Panels []struct {
		Type, Title, Description string
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct{ Expr, LegendFormat string }
	}
}

// ReadDashboard reads the dashboard under root, the repository.
func ReadDashboard(root string) (d Dashboard, err error) {
	file := filepath.Join(root, "deploy/dashboards/cloud-map-mcs-controller.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", file, err)
	}
	return d, nil
}

// Use is the use of a metric, by an alert or a panel, with the labels that it selects by.
type Use struct {
	By, Metric string
	Labels     []string
}

// Used returns the metrics that the alert rules and the dashboard under root, the repository, use.
// A histogram counts under its own name.
func Used(root string) ([]Use, error) {
	rules, err := ReadRules(filepath.Join(root, "deploy/alerts/rules.yaml"))
	if err != nil {
		return nil, err
	}
	var out []Use
	for _, rule := range rules {
		out = append(out, uses("alert "+rule.Alert, rule.Expr)...)
	}
	dashboard, err := ReadDashboard(root)
	if err != nil {
		return nil, err
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			out = append(out, uses("panel "+panel.Title, target.Expr)...)
		}
	}
	return out, nil
}

var (
	// metricPattern matches a metric's name and selector. Every metric here has an underscore in
	// its name, and no label outside of braces has the name of a metric. promtool checks the rest
	// with the real parser.
	metricPattern   = regexp.MustCompile(`\b((?:cloud_map_mcs|controller_runtime|workqueue|process|go|rest_client)_\w+)(?:\{([^}]*)\})?`)
	selectorPattern = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	rowPattern      = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*) \\|")
)

func uses(by, expr string) []Use {
	var out []Use
	for _, m := range metricPattern.FindAllStringSubmatch(expr, -1) {
		use := Use{By: by, Metric: histogram(m[1])}
		for _, label := range selectorPattern.FindAllStringSubmatch(m[2], -1) {
			use.Labels = append(use.Labels, label[1])
		}
		out = append(out, use)
	}
	return out
}

// histogram returns the name of the histogram that a series belongs to, or the series' own.
func histogram(series string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(series, suffix); ok {
			return name
		}
	}
	return series
}

// Documented returns the labels of every metric in the reference of the repository root.
func Documented(root string) (map[string][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/metrics.md"))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, m := range rowPattern.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = strings.Fields(strings.ReplaceAll(m[2], ",", " "))
	}
	return out, nil
}

// Missing returns the metrics, sorted, that alerts or dashboards use and that are not among names,
// those of a scrape.
func Missing(used []Use, names map[string]bool) []string {
	var out []string
	for _, u := range used {
		if !names[u.Metric] {
			out = append(out, fmt.Sprintf("%s (%s)", u.Metric, u.By))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
