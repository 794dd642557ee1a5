package guard

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collector has the metrics of a Guard, which may be nil.
type collector struct {
	guard          *Guard
	valid, refused *prometheus.Desc
}

// RegisterMetrics registers the metrics of g at registerer, if that is not nil.
func RegisterMetrics(registerer prometheus.Registerer, g *Guard) error {
	if registerer == nil {
		return nil
	}
	return registerer.Register(&collector{
		guard: g,
		valid: prometheus.NewDesc("cloud_map_mcs_import_policy_valid",
			"Whether the file of --import-policy is valid and in use: 1 or 0. Absent without --import-policy.", nil, nil),
		refused: prometheus.NewDesc("cloud_map_mcs_exports_refused",
			"Exports of other clusters that are refused wholly or in part, by source cluster and reason of condition Refused.",
			[]string{"source_cluster", "reason"}, nil),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.valid
	ch <- c.refused
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	state := c.guard.State()
	if state.File != "" {
		value := 1.0
		if state.Problem != "" {
			value = 0
		}
		ch <- prometheus.MustNewConstMetric(c.valid, prometheus.GaugeValue, value)
	}
	type kind struct{ cluster, reason string }
	counts := map[kind]int{}
	for _, refusals := range state.Refusals {
		for _, r := range refusals {
			counts[kind{r.Cluster, string(r.Reason)}]++
		}
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.GaugeValue, float64(n), k.cluster, k.reason)
	}
}
