package cloudmaplocal

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts requests, and counts resources when it is scraped.
type metrics struct {
	countResources func() resourceCounts

	mu     sync.Mutex
	counts map[requestKey]int
}

// requestKey is the operation and "ok" or the error's code: 30 times at most 30 values.
type requestKey struct{ operation, result string }

var (
	requestsDesc = prometheus.NewDesc("cloudmap_local_requests_total",
		"Requests by operation and result: ok or the code of the error.", []string{"operation", "result"}, nil)
	namespacesDesc = prometheus.NewDesc("cloudmap_local_namespaces", "Namespaces that exist.", nil, nil)
	servicesDesc   = prometheus.NewDesc("cloudmap_local_services", "Services that exist.", nil, nil)
	instancesDesc  = prometheus.NewDesc("cloudmap_local_instances", "Instances that are registered.", nil, nil)
	operationsDesc = prometheus.NewDesc("cloudmap_local_operations_in_flight", "Operations that are submitted or pending.", nil, nil)
)

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(countResources func() resourceCounts) *metrics {
	return &metrics{countResources: countResources, counts: map[requestKey]int{}}
}

func (m *metrics) countRequest(operation, result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[requestKey{operation, result}]++
}

// requestCounts returns the counts by operation.
func (m *metrics) requestCounts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	for key, n := range m.counts {
		out[key.operation] += n
	}
	return out
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{requestsDesc, namespacesDesc, servicesDesc, instancesDesc, operationsDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	now := m.countResources()
	for desc, n := range map[*prometheus.Desc]int{
		namespacesDesc: now.namespaces, servicesDesc: now.services, instancesDesc: now.instances, operationsDesc: now.operations,
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, n := range m.counts {
		ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), key.operation, key.result)
	}
}
