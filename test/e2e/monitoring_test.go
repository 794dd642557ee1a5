package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/chromiumtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/monitoring"
)

// reader is the ServiceAccount whose token Prometheus has, as in docs/install.md.
const reader = "metrics-reader"

// noData is the panel without a series here: no service of Cloud Map is mapped.
const noData = "Mapped services"

// TestMonitoring has a real Prometheus scrape the controllers of cls2 while cls1 exports, scales
// and dies. Each panel of the dashboard shows data, and the alert of a stale cluster fires.
// PICTURES=1 writes pictures into docs/monitoring. Needs Debian's packages prometheus and chromium:
// make monitoring.
func TestMonitoring(t *testing.T) {
	if os.Getenv("MONITORING") == "" {
		t.Skip("runs with make monitoring")
	}
	cls1, cls2 := installed(t)
	kubectl(t, cls2, "-n", system, "create", "serviceaccount", reader)
	kubectl(t, cls2, "create", "clusterrolebinding", reader, "--clusterrole=cloud-map-mcs-controller-metrics-reader", "--serviceaccount="+system+":"+reader)
	t.Cleanup(func() {
		_, _ = suite.Kubectl(context.Background(), cls2.name, "delete", "clusterrolebinding", reader)
		_, _ = suite.Kubectl(context.Background(), cls2.name, "-n", system, "delete", "serviceaccount", reader)
	})
	server := startPrometheus(t, cls2)

	ns := namespace(t, cls1, cls2)
	for _, name := range []string{"web", "shop"} {
		apply(t, cls1, web(ns, name, 2))
		export(t, cls1, ns, name)
	}
	apply(t, cls2, web(ns, "back", 1))
	export(t, cls2, ns, "back")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2) })
	for i := range 12 {
		kubectl(t, cls1, "-n", ns, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", 1+i%4))
		eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 1+i%4) })
		time.Sleep(5 * time.Second) // for a graph that one can read
	}
	dashboard, err := monitoring.ReadDashboard(suite.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		series := 0
		for _, target := range panel.Targets {
			series += server.query(t, grafana.Replace(target.Expr))
		}
		if series == 0 && len(panel.Targets) > 0 && panel.Title != noData {
			t.Errorf("panel %q has no data", panel.Title)
		}
	}

	restart := killController(t, cls1)
	// --stale-after, 2 minutes, and 1 minute of the rule
	eventually(t, 6*time.Minute, func() error { return server.fires(t.Context(), "CloudMapMCSMemberStale") })
	if os.Getenv("PICTURES") != "" {
		server.picture(t, dashboard)
	}
	restart()
	eventually(t, started, func() error {
		if server.fires(t.Context(), "CloudMapMCSMemberStale") == nil {
			return errors.New("the alert still fires")
		}
		return nil
	})
}

// grafana replaces the variables of the dashboard as Grafana does: all jobs, and four scrapes of 5
// s.
var grafana = strings.NewReplacer("$job", ".*", "$__rate_interval", "20s")

// prometheus is a Prometheus server.
type prometheus struct {
	url, consoles string
	started       time.Time
}

// startPrometheus starts Debian's Prometheus with the alert rules of deploy/alerts. It scrapes the
// controllers of a cluster, as docs/install.md says.
func startPrometheus(t *testing.T, c cluster) prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("prometheus is not on the PATH: apt-get install prometheus")
	}
	pods, err := controllers(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, pod := range pods {
		targets = append(targets, fmt.Sprintf(`{targets: [%q], labels: {namespace: %s, pod: %s}}`, net.JoinHostPort(pod.Status.PodIP, "8080"), system, pod.Name))
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: [%s]
scrape_configs:
- job_name: %s
  scheme: https
  authorization: {credentials: %q}
  tls_config: {insecure_skip_verify: true}
  static_configs: [%s]
`, filepath.Join(suite.Root, "deploy/alerts/rules.yaml"), names.Product,
		strings.TrimSpace(kubectl(t, c, "-n", system, "create", "token", reader, "--duration=1h")), strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := testprocess.FreeAddress(t)
	p := prometheus{url: "http://" + address, consoles: filepath.Join(dir, "consoles"), started: time.Now()}
	if err := os.Mkdir(p.consoles, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address,
		"--web.console.templates="+p.consoles)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // t.Context has ended it
	eventually(t, soon, func() error {
		var up struct{ Result []struct{ Value []any } }
		if err := p.get(t.Context(), "query?query="+url.QueryEscape("sum(up)"), &up); err != nil {
			return err
		}
		if len(up.Result) != 1 || up.Result[0].Value[1] != fmt.Sprint(len(pods)) {
			return fmt.Errorf("Prometheus scrapes %v, want %d controllers", up.Result, len(pods))
		}
		return nil
	})
	return p
}

// get calls the API of Prometheus.
func (p prometheus) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Data         json.RawMessage
		Status       string
		ErrorMessage string `json:"error"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.ErrorMessage)
	}
	return json.Unmarshal(answer.Data, data)
}

// query returns the number of series of a query.
func (p prometheus) query(t *testing.T, expr string) int {
	t.Helper()
	var data struct{ Result []json.RawMessage }
	if err := p.get(t.Context(), "query?query="+url.QueryEscape(expr), &data); err != nil {
		t.Error(err)
	}
	return len(data.Result)
}

// fires returns an error unless an alert fires.
func (p prometheus) fires(ctx context.Context, alert string) error {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := p.get(ctx, "alerts", &data); err != nil {
		return err
	}
	for _, a := range data.Alerts {
		if a.Labels["alertname"] == alert && a.State == "firing" {
			return nil
		}
	}
	return fmt.Errorf("alert %s does not fire; Prometheus has %+v", alert, data.Alerts)
}

// console is a page of Prometheus with a graph for each panel of the dashboard. GRAPHS stands for
// their parameters as JSON, SECONDS for the time that they show.
const console = `<!doctype html>
<meta charset="utf-8"><title>Cloud Map MCS Controller</title>
<link rel="stylesheet" href="/classic/static/rickshaw/rickshaw.min.css">
<link rel="stylesheet" href="/classic/static/css/prom_console.css">
<script src="/classic/static/d3/d3.min.js"></script>
<script src="/classic/static/rickshaw/rickshaw.min.js"></script>
<script>PATH_PREFIX = ""</script>
<script src="/classic/static/js/prom_console.js"></script>
<body>
<style>
  body { margin: 16px; font: 13px sans-serif; background: #f4f5f5; color: #24292e }
  h2 { font-size: 15px; margin: 12px 0 6px }
  .row { display: grid; grid-template-columns: repeat(4, 1fr); gap: 8px }
  .panel { background: #fff; border: 1px solid #e0e2e5; padding: 8px; min-width: 0 }
  .panel b { display: block; margin-bottom: 4px }
  .panel .rickshaw_legend { background: none; color: inherit; padding: 4px 0 0; box-sizing: border-box }
  .rickshaw_legend .action { display: none }
  .prom_graph_xtitle, .prom_graph_link { display: none }
</style>
<script>
  const formats = {
    s: (x) => x < 1 ? Math.round(1000 * x) + "m" : String(+x.toFixed(1)),
    bytes: (x) => Math.round(x / 1024 / 1024) + "Mi",
  }
  let row, body = document.body
  for (const panel of GRAPHS) {
    if (panel.type === "row") {
      body.append(Object.assign(document.createElement("h2"), { textContent: panel.title }))
      row = body.appendChild(Object.assign(document.createElement("div"), { className: "row" }))
      continue
    }
    const node = row.appendChild(Object.assign(document.createElement("div"), { className: "panel" }))
    node.append(Object.assign(document.createElement("b"), { textContent: panel.title }))
    new PromConsole.Graph({ node, expr: panel.expr, name: panel.name, width: 300, height: 130, min: 0, duration: SECONDS,
      yUnits: panel.unit === "s" ? "s" : "", yAxisFormatter: formats[panel.unit] || PromConsole.NumberFormatter.humanizeNoSmallPrefix })
  }
</script>
`

// picture writes pictures of the dashboard and of the alert that fires into docs/monitoring.
func (p prometheus) picture(t *testing.T, dashboard monitoring.Dashboard) {
	t.Helper()
	type graph struct {
		Type  string   `json:"type"`
		Title string   `json:"title"`
		Unit  string   `json:"unit"`
		Expr  []string `json:"expr"`
		Name  []string `json:"name"`
	}
	var graphs []graph
	for _, panel := range dashboard.Panels {
		g := graph{Type: panel.Type, Title: panel.Title, Unit: panel.FieldConfig.Defaults.Unit}
		for _, target := range panel.Targets {
			g.Expr = append(g.Expr, grafana.Replace(target.Expr))
			g.Name = append(g.Name, strings.NewReplacer("{{", "[[", "}}", "]]").Replace(target.LegendFormat))
		}
		graphs = append(graphs, g)
	}
	text, err := json.Marshal(graphs)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.consoles, "dashboard.html"), []byte(strings.NewReplacer("GRAPHS", string(text), "SECONDS", fmt.Sprint(int(time.Since(p.started).Seconds()))).Replace(console)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := chromiumtest.Start(t)
	docs := filepath.Join(suite.Root, "docs/monitoring")
	b.Look(1480, 3000, "light")
	b.Open(p.url + "/consoles/dashboard.html")
	b.Until(`document.querySelectorAll(".panel").length > 20 && [...document.querySelectorAll(".rickshaw_graph")].every((e) => e.textContent !== "")`)
	var height int
	b.Eval(`Math.ceil(document.documentElement.getBoundingClientRect().height) + 16`, &height)
	b.Look(1480, height, "light")
	b.Picture(filepath.Join(docs, "dashboard.png"))
	b.Look(1280, 700, "light")
	b.Open(p.url + "/classic/alerts")
	b.Until(`document.readyState === "complete" && document.body.textContent.includes("CloudMapMCSMemberStale")`)
	b.Eval(`document.querySelectorAll("td, th").forEach((e) => { if (!e.children.length) e.textContent = e.textContent.replace(/^\/.*\/deploy\//, "deploy/") })`, nil)
	b.Picture(filepath.Join(docs, "alerts.png"))
}
