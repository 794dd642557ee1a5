package controller

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/generated"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// docs/reference/metrics.md is what the metrics say of themselves. "make generate" writes it.
func TestDocsMetrics(t *testing.T) {
	generated.Check(t, filepath.Join("..", "..", "docs", "reference", "metrics.md"), metricsPage(t))
}

// descriptions is a Registerer that keeps what is registered with it: a registry shows nothing of a metric without a value.
type descriptions struct {
	prometheus.Registerer
	rows []string
}

// description is how a prometheus.Desc prints itself, the only way to read one.
var description = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}`)

func (d *descriptions) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for desc := range ch {
		m := description.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("unreadable description %s", desc)
		}
		d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), m[2]))
	}
	return nil
}

func metricsPage(t *testing.T) string {
	t.Helper()
	all := &descriptions{}
	if _, err := newMetrics(all, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.NewMetrics(all); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all.rows)
	return "# Metrics of the controller\n\n" +
		"Generated from the code by `make generate`. Beside these there are those of controller-runtime and of the Go runtime.\n\n" +
		"| metric | labels | meaning |\n| --- | --- | --- |\n" + strings.Join(all.rows, "")
}
