package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Metrics are the numbers of all registries of a process. Labels name a backend, an operation and a result, never a
// service or an address: their number does not grow with the clusterset. A nil *Metrics counts nothing.
type Metrics struct {
	requests          *prometheus.CounterVec
	seconds           *prometheus.HistogramVec
	limits            *prometheus.GaugeVec
	changes           *prometheus.CounterVec
	notifications     *prometheus.CounterVec
	stored            *prometheus.GaugeVec
	peerNotifications *prometheus.CounterVec
	polls             *prometheus.GaugeVec
	unshown           *prometheus.GaugeVec
	pending           *prometheus.GaugeVec
	fullness          *prometheus.GaugeVec
	recent            recent
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_requests_total",
			Help: "Requests to the registry's backend, by operation and result (ok, throttled, denied, not_found, conflict, invalid, canceled, error).",
		}, []string{"registry", "operation", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cloud_map_mcs_registry_request_duration_seconds",
			Help: "Time that requests to the registry's backend took, waiting for our own pacing not included.",
			// A local etcd answers in a millisecond; a request is given up after ten seconds.
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"registry", "operation"}),
		limits: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_request_limit",
			Help: "Requests a second that we allow ourselves, by operation: sinks when the backend throttles and rises again.",
		}, []string{"registry", "operation"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_changes_total",
			Help: "Publications and withdrawals that were asked for, by operation (publish, withdraw) and result (ok, invalid, error).",
		}, []string{"registry", "operation", "result"}),
		notifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_notifications_total",
			Help: "Notifications that the view of a service may have changed.",
		}, []string{"registry"}),
		stored: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_objects",
			Help: "What this cluster has in the registry, by kind (exports, pages, instances).",
		}, []string{"registry", "kind"}),
		peerNotifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloud_map_mcs_registry_peer_notifications_total",
			Help: "Peer notifications between clusters, by direction (sent, received) and result (ok, error; received also bad_mac, malformed, other_clusterset, oversize, replayed, unknown_peer).",
		}, []string{"registry", "direction", "result"}),
		polls: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_poll_interval_seconds",
			Help: "Time between two looks at the registry as long as nothing changes: short while peer notifications from some cluster do not arrive.",
		}, []string{"registry"}),
		unshown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_omitted_instances",
			Help: "Endpoints that the instance view cannot show, by reason: collision (another owner has the instance ID), limit (1,000 instances a service), refused (AWS Cloud Map takes no such instance), failed (the service cannot be written, for a quota or otherwise).",
		}, []string{"registry", "reason"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_pending",
			Help: "What waits to be written to the registry, by kind (exports on etcd; on AWS Cloud Map pages, and services of the instance view).",
		}, []string{"registry", "kind"}),
		fullness: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloud_map_mcs_registry_limit_used_ratio",
			Help: "Part of a limit of the registry that is used, from 0 to 1, by limit: namespace (instances of all clusters in the namespace mcs.<clusterset>, of --aws-instances-per-namespace), page (parts of this cluster's largest page, of 256), members (clusters of the clusterset, of 1,000 that one answer shows).",
		}, []string{"registry", "limit"}),
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.seconds, m.limits, m.changes, m.notifications, m.stored, m.peerNotifications, m.polls, m.unshown, m.pending, m.fullness,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("registering the registry's metrics: %w", err)
		}
	}
	return m, nil
}

// Request counts one request to a backend.
func (m *Metrics) Request(registry, operation, result string, took time.Duration) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(registry, operation, result).Inc()
	m.seconds.WithLabelValues(registry, operation).Observe(took.Seconds())
	m.recent.add(RequestCount{Registry: registry, Operation: operation, Result: result}, time.Now())
}

// Limit says how many requests a second are allowed now.
func (m *Metrics) Limit(registry, operation string, perSecond float64) {
	if m == nil {
		return
	}
	m.limits.WithLabelValues(registry, operation).Set(perSecond)
}

// Stored says how much of a kind this cluster has in the registry.
func (m *Metrics) Stored(registry, kind string, count int) {
	if m == nil {
		return
	}
	m.stored.WithLabelValues(registry, kind).Set(float64(count))
}

// PeerNotification counts a peer notification that was sent or received.
func (m *Metrics) PeerNotification(registry, direction, result string) {
	if m == nil {
		return
	}
	m.peerNotifications.WithLabelValues(registry, direction, result).Inc()
}

// PollInterval says how often the registry is looked at.
func (m *Metrics) PollInterval(registry string, interval time.Duration) {
	if m == nil {
		return
	}
	m.polls.WithLabelValues(registry).Set(interval.Seconds())
}

// Unshown says how many endpoints the instance view cannot show for a reason.
func (m *Metrics) Unshown(registry, reason string, count int) {
	if m == nil {
		return
	}
	m.unshown.WithLabelValues(registry, reason).Set(float64(count))
}

// Pending says how much of a kind waits to be written.
func (m *Metrics) Pending(registry, kind string, count int) {
	if m == nil {
		return
	}
	m.pending.WithLabelValues(registry, kind).Set(float64(count))
}

// LimitUsed says how many of what limit allows at most are used.
func (m *Metrics) LimitUsed(registry, limit string, used, most int) {
	if m == nil {
		return
	}
	m.fullness.WithLabelValues(registry, limit).Set(float64(used) / float64(most))
}

// WithMetrics is r with its use counted under the backend's name.
func WithMetrics(r Registry, name string, m *Metrics) Registry {
	if m == nil {
		return r
	}
	return &measured{Registry: r, name: name, metrics: m}
}

type measured struct {
	Registry
	name    string
	metrics *Metrics
}

func (r *measured) Publish(ctx context.Context, exp mcs.Export) error {
	err := r.Registry.Publish(ctx, exp)
	r.changed("publish", err)
	return err
}

func (r *measured) Withdraw(ctx context.Context, key mcs.Key) error {
	err := r.Registry.Withdraw(ctx, key)
	r.changed("withdraw", err)
	return err
}

func (r *measured) changed(operation string, err error) {
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
