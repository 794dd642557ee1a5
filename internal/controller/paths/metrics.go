package paths

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
)

// metrics has the metrics of Paths.
type metrics struct {
	probes            *prometheus.CounterVec
	unreachable, here *prometheus.Desc
}

func newMetrics() *metrics {
	m := &metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_path_probes_total",
			Help: "Test connections to pods of other clusters, by target (controller, endpoint) and result (reached, unreached, error).",
		}, []string{"target", "result"}),
		unreachable: prometheus.NewDesc("cloud_map_mcs_member_unreachable",
			"Whether pods of this cluster cannot reach the pods of another cluster: 1 or 0. Absent while that is not known.", []string{"member"}, nil),
		here: prometheus.NewDesc("cloud_map_mcs_paths_fault_here",
			"Whether more than half of the clusters are unreachable, so that no endpoints are withdrawn: 1 or 0.", nil, nil),
	}
	for kind := range targetNames {
		for outcome := range resultNames {
			m.probes.WithLabelValues(targetNames[kind], resultNames[outcome])
		}
	}
	return m
}

var (
	targetNames = map[pathhealth.Kind]string{pathhealth.Controller: "controller", pathhealth.Endpoints: "endpoint"}
	resultNames = map[outcome]string{reached: "reached", unreached: "unreached", inconclusive: "error"}
)

func (m *metrics) count(p probe) {
	m.probes.WithLabelValues(targetNames[p.kind], resultNames[p.outcome]).Inc()
}

// Describe implements prometheus.Collector.
func (p *Paths) Describe(ch chan<- *prometheus.Desc) {
	p.metrics.probes.Describe(ch)
	ch <- p.metrics.unreachable
	ch <- p.metrics.here
}

// Collect implements prometheus.Collector.
func (p *Paths) Collect(ch chan<- prometheus.Metric) {
	p.metrics.probes.Collect(ch)
	v := p.Verdict()
	for id, path := range v.Paths {
		if path.State == pathhealth.Reachable || path.State == pathhealth.Unreachable {
			ch <- prometheus.MustNewConstMetric(p.metrics.unreachable, prometheus.GaugeValue, number(path.State == pathhealth.Unreachable), id)
		}
	}
	ch <- prometheus.MustNewConstMetric(p.metrics.here, prometheus.GaugeValue, number(v.FaultHere))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
