package imports

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Metrics measures how fast exports of other clusters are imported. The nil *Metrics is valid and
// does nothing.
type Metrics struct {
	propagation *prometheus.HistogramVec
	selections  *prometheus.CounterVec

	mu sync.Mutex
	// measured are the source clusters of propagation.
	measured map[string]bool
}

// NewMetrics registers the metrics at registerer; it returns nil if that is nil.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	if registerer == nil {
		return nil, nil
	}
	m := &Metrics{measured: map[string]bool{}, propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "cloud_map_mcs_propagation_seconds",
		Help: "Time from a change in its source cluster until an imported EndpointSlice shows it, by the clocks of both clusters.",
		// From one registry poll (1 s) and less up to the 20 s that the conformance suite allows,
		// and beyond.
		Buckets: []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 60},
	}, []string{"source_cluster"})}
	m.selections = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cloud_map_mcs_cluster_selection_changes_total",
		Help: "Changes of the clusters that serve an import by its selectors, by the new reason of condition ClusterSelection.",
	}, []string{"reason"})
	for _, reason := range []string{mcs.SelectionReasonFirst, mcs.SelectionReasonLater, mcs.SelectionReasonAll} {
		m.selections.WithLabelValues(reason)
	}
	return m, errors.Join(registerer.Register(m.propagation), registerer.Register(m.selections))
}

// countSelectionChange counts a change of the clusters that serve an import.
func (m *Metrics) countSelectionChange(reason string) {
	if m != nil {
		m.selections.WithLabelValues(reason).Inc()
	}
}

// observePropagation measures the time from the changes of exports until now.
func (m *Metrics) observePropagation(exports []mcs.Export, now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, exp := range exports {
		m.measured[exp.Cluster] = true
		m.propagation.WithLabelValues(exp.Cluster).Observe(max(0, now.Sub(exp.Changed)).Seconds())
	}
}

// forgetOthers deletes the series of the source clusters that isKnown does not report. Without it,
// each ID that was ever imported would keep its series.
func (m *Metrics) forgetOthers(isKnown func(cluster string) bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster := range m.measured {
		if !isKnown(cluster) {
			m.propagation.DeleteLabelValues(cluster)
			delete(m.measured, cluster)
		}
	}
}

// arrivedExports returns those of the exports of other clusters whose slices were written, without
// changes from before the session. written has the clusters of the slices that were created or
// updated.
func arrivedExports(s *membership.Session, exports []mcs.Export, written map[string]bool) (arrived []mcs.Export) {
	for _, exp := range exports {
		if exp.Cluster != s.Identity.ClusterID && !exp.Changed.Before(s.Started) && written[exp.Cluster] {
			arrived = append(arrived, exp)
		}
	}
	return arrived
}
