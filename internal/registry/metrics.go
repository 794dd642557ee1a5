package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Metrics are the metrics of all registries of a process. Labels are a backend, an operation and a
// result, never a service or an address: their number does not grow with the clusterset. A nil
// *Metrics counts nothing.
type Metrics struct {
	requests          *prometheus.CounterVec
	seconds           *prometheus.HistogramVec
	limits            *prometheus.GaugeVec
	changes           *prometheus.CounterVec
	notifications     *prometheus.CounterVec
	objects           *prometheus.GaugeVec
	peerNotifications *prometheus.CounterVec
	pollInterval      *prometheus.GaugeVec
	omitted           *prometheus.GaugeVec
	pending           *prometheus.GaugeVec
	limitUsed         *prometheus.GaugeVec
	refused           *prometheus.CounterVec
	keyChanges        *prometheus.CounterVec
	mapped            *prometheus.GaugeVec
	budgets           *budgetMetrics
	recent            recent
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_requests_total",
			Help: "Requests to the registry, by result: ok, throttled, denied, not_found, conflict, invalid, canceled, error or unknown.",
		}, []string{"registry", "operation", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cloud_map_mcs_registry_request_duration_seconds",
			Help: "Duration of requests to the registry, without the time spent waiting for the client-side rate limiter.",
			// A local etcd answers in a millisecond; a request times out after ten seconds.
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"registry", "operation"}),
		limits: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_request_limit",
			Help: "Client-side rate limit in requests per second, by operation. It decreases when the backend throttles, and recovers.",
		}, []string{"registry", "operation"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_changes_total",
			Help: "Requested changes of exports, by operation (publish, withdraw) and result (ok, invalid, error).",
		}, []string{"registry", "operation", "result"}),
		notifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_notifications_total",
			Help: "Notifications that the view of a service may have changed.",
		}, []string{"registry"}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_objects",
			Help: "Objects of this cluster in the registry, by kind (exports, pages, instances).",
		}, []string{"registry", "kind"}),
		peerNotifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_peer_notifications_total",
			Help: "Peer notifications, records and questions that were sent and received, by direction and result: " + docs.URL("operations.md#checking-that-they-arrive"),
		}, []string{"registry", "direction", "result"}),
		pollInterval: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_poll_interval_seconds",
			Help: "Interval between polls of the registry while nothing changes: short while some peer notifications do not arrive.",
		}, []string{"registry"}),
		omitted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_omitted_instances",
			Help: "Endpoints that the instance view omits, by reason: " + docs.URL("instance-view.md#endpoints-that-are-not-shown"),
		}, []string{"registry", "reason"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_pending",
			Help: "Objects that wait to be written to the registry, by kind: exports, pages, or services of the instance view.",
		}, []string{"registry", "kind"}),
		limitUsed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_limit_used_ratio",
			Help: "Used share of a limit of the registry, from 0 to 1, by limit: " + docs.URL("runbooks/CloudMapMCSNearLimit.md"),
		}, []string{"registry", "limit"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_records_refused_total",
			Help: "Records under the ID of another cluster that were refused, because their signature is missing or does not verify.",
		}, []string{"registry"}),
	}
	m.keyChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cloud_map_mcs_registry_key_changes_total",
		Help: "Changes of the keys of other clusters, by reason: " + docs.URL("runbooks/CloudMapMCSKeyChanged.md"),
	}, []string{"reason"})
	for _, reason := range trust.Reasons {
		m.keyChanges.WithLabelValues(string(reason)) // 0, so that the first change is an increase
	}
	m.mapped = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cloud_map_mcs_mapped_services",
		Help: "Services of --cloud-map-services, by state: " + docs.URL("ecs-ec2-lambda.md#failures"),
	}, []string{"state"})
	m.budgets = newBudgetMetrics()
	for _, c := range []prometheus.Collector{
		m.budgets, m.requests, m.seconds, m.limits, m.changes, m.notifications, m.objects, m.peerNotifications, m.pollInterval, m.omitted, m.pending, m.limitUsed, m.refused, m.keyChanges, m.mapped,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("registering the registry's metrics: %w", err)
		}
	}
	return m, nil
}

// ObserveRequest counts one request to a backend.
func (m *Metrics) ObserveRequest(registry, operation, result string, took time.Duration) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(registry, operation, result).Inc()
	m.seconds.WithLabelValues(registry, operation).Observe(took.Seconds())
	m.recent.add(RequestCount{Registry: registry, Operation: operation, Result: result}, time.Now())
}

// SetRequestLimit sets the client-side rate limit of an operation.
func (m *Metrics) SetRequestLimit(registry, operation string, perSecond float64) {
	if m == nil {
		return
	}
	m.limits.WithLabelValues(registry, operation).Set(perSecond)
}

// SetObjects sets how many objects of a kind this cluster has in the registry.
func (m *Metrics) SetObjects(registry, kind string, count int) {
	if m == nil {
		return
	}
	m.objects.WithLabelValues(registry, kind).Set(float64(count))
}

// CountPeerNotification counts a peer notification that was sent or received.
func (m *Metrics) CountPeerNotification(registry, direction, result string) {
	if m == nil {
		return
	}
	m.peerNotifications.WithLabelValues(registry, direction, result).Inc()
}

// SetPollInterval sets the interval between polls of the registry.
func (m *Metrics) SetPollInterval(registry string, interval time.Duration) {
	if m == nil {
		return
	}
	m.pollInterval.WithLabelValues(registry).Set(interval.Seconds())
}

// SetOmittedInstances sets how many endpoints the instance view omits for a reason.
func (m *Metrics) SetOmittedInstances(registry, reason string, count int) {
	if m == nil {
		return
	}
	m.omitted.WithLabelValues(registry, reason).Set(float64(count))
}

// SetPending sets how many objects of a kind wait to be written.
func (m *Metrics) SetPending(registry, kind string, count int) {
	if m == nil {
		return
	}
	m.pending.WithLabelValues(registry, kind).Set(float64(count))
}

// SetLimitUsed sets the used share of a limit.
func (m *Metrics) SetLimitUsed(registry, limit string, used, most int) {
	if m == nil {
		return
	}
	m.limitUsed.WithLabelValues(registry, limit).Set(float64(used) / float64(most))
}

// CountRefusedRecord counts a record whose signature is missing or does not verify. Callers count
// each version of a record once, not at each poll.
func (m *Metrics) CountRefusedRecord(registry string) {
	if m == nil {
		return
	}
	m.refused.WithLabelValues(registry).Inc()
}

// CountKeyChange counts a change of the key of another cluster.
func (m *Metrics) CountKeyChange(reason trust.Reason) {
	if m == nil {
		return
	}
	m.keyChanges.WithLabelValues(string(reason)).Inc()
}

// SetMappedServices sets the number of mapped services by state.
func (m *Metrics) SetMappedServices(counts map[string]int) {
	if m == nil {
		return
	}
	for state, count := range counts {
		m.mapped.WithLabelValues(state).Set(float64(count))
	}
}

// WithMetrics returns r with metrics under the backend's name.
func WithMetrics(r Registry, name string, m *Metrics) Registry {
	if m == nil {
		return r
	}
	// 0, because increase() does not count the first value of a series
	m.refused.WithLabelValues(name)
	return &measured{Registry: r, name: name, metrics: m}
}

// measured is a Registry with metrics.
type measured struct {
	Registry
	name    string
	metrics *Metrics
}

func (r *measured) Publish(ctx context.Context, exp mcs.Export) error {
	err := r.Registry.Publish(ctx, exp)
	r.countChange("publish", err)
	return err
}

func (r *measured) Withdraw(ctx context.Context, key mcs.Key) error {
	err := r.Registry.Withdraw(ctx, key)
	r.countChange("withdraw", err)
	return err
}

// countChange counts a requested change by its result.
func (r *measured) countChange(operation string, err error) {
	result := "ok"
	var invalid *InvalidExportError
	if errors.As(err, &invalid) {
		result = "invalid"
	} else if err != nil {
		result = "error"
	}
	r.metrics.changes.WithLabelValues(r.name, operation, result).Inc()
}

func (r *measured) Run(ctx context.Context, notify func(mcs.Key)) error {
	notifications := r.metrics.notifications.WithLabelValues(r.name)
	return r.Registry.Run(ctx, func(key mcs.Key) {
		notifications.Inc()
		notify(key)
	})
}
