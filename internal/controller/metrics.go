package controller

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const metricPrefix = "cloud_map_mcs_"

// metrics are what an operator watches. The nil *metrics is valid and does nothing.
type metrics struct {
	propagation *prometheus.HistogramVec
}

// newMetrics registers the metrics at registerer. reader is asked at each scrape, so that what is counted is always
// what is there.
func newMetrics(registerer prometheus.Registerer, reader client.Reader, m *membership) (*metrics, error) {
	if registerer == nil {
		return nil, nil
	}
	out := &metrics{propagation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: metricPrefix + "propagation_seconds",
		Help: "Time from a change in its source cluster until an imported EndpointSlice shows it here, by source cluster. Measured with the clocks of both clusters: it is as exact as they agree, and never below 0.",
		// From one registry poll (1 s) and less up to the 20 s that the conformance suite allows, and beyond.
		Buckets: []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 60},
	}, []string{"source_cluster"})}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: metricPrefix + "build_info",
		Help: "Always 1, with the controller's version as a label.",
	}, []string{"version"})
	build.WithLabelValues(config.Version).Set(1)
	for _, c := range []prometheus.Collector{out.propagation, build, newInventory(reader, m)} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// observePropagation measures how long the changes of other clusters took to become the slices in changes. What changed
// before the session began was not awaited.
func (m *metrics) observePropagation(s *session, exports []mcs.Export, changes plan.SliceChanges, now time.Time) {
	if m == nil || changes.IsEmpty() {
		return
	}
	written := slices.Concat(changes.Create, changes.Update)
	for _, exp := range exports {
		ofExport := func(s *discoveryv1.EndpointSlice) bool { return s.Labels[mcsv1beta1.LabelSourceCluster] == exp.Cluster }
		if exp.Cluster == s.identity.ClusterID || exp.Changed.Before(s.started) || !slices.ContainsFunc(written, ofExport) {
			continue
		}
		m.propagation.WithLabelValues(exp.Cluster).Observe(max(0, now.Sub(exp.Changed)).Seconds())
	}
}

// inventory counts what is in the cache.
type inventory struct {
	reader     client.Reader
	membership *membership

	member, members, stale, up, exports, conflicts, imports, endpoints *prometheus.Desc
}

func newInventory(reader client.Reader, m *membership) *inventory {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
	}
	return &inventory{
		reader:     reader,
		membership: m,
		member:     desc("member", "Whether this replica works and its cluster is a member of a clusterset: 1 or 0."),
		members:    desc("registry_members", "Clusters of the clusterset, this one included, by state (ok, problem, stale).", "state"),
		stale:      desc("member_stale", "Whether another cluster of the clusterset is stale: 1 if it had no heartbeat for --stale-after, else 0.", "member"),
		up:         desc("registry_up", "Whether reading and writing the registry work, by direction (read, write): 1 or 0. A duplicate cluster ID counts as write 0.", "direction"),
		exports:    desc("exports", "ServiceExports in this cluster, by state: exported (Ready is True), failed (the user has to act) or pending.", "state"),
		conflicts:  desc("exports_in_conflict", "ServiceExports in this cluster whose condition Conflict is True: other clusters export the service otherwise."),
		imports:    desc("imports", "ServiceImports of this controller in this cluster."),
		endpoints:  desc("imported_endpoints", "Endpoints in imported EndpointSlices, by source cluster.", "source_cluster"),
	}
}

// Describe implements prometheus.Collector.
func (i *inventory) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{i.member, i.members, i.stale, i.up, i.exports, i.conflicts, i.imports, i.endpoints} {
		ch <- d
	}
}

// inventoryTimeout bounds a scrape that comes before the cache is filled.
const inventoryTimeout = 2 * time.Second

// Collect implements prometheus.Collector. What cannot be counted yet is left out.
func (i *inventory) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), inventoryTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	session := i.membership.standing().session
	gauge(i.member, number(session != nil))
	if session != nil {
		i.collectMembers(ctx, session, gauge)
		report := registry.ReportOf(session.registry)
		gauge(i.up, number(report.Reading == nil), "read")
		gauge(i.up, number(report.Writing == nil), "write")
	}
	i.collectExports(ctx, gauge)
	var imports mcsv1beta1.ServiceImportList
	if i.reader.List(ctx, &imports, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy}) == nil {
		gauge(i.imports, len(imports.Items))
	}
	var imported discoveryv1.EndpointSliceList
	if i.reader.List(ctx, &imported, client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelManagedBy: plan.ManagedBy}) == nil {
		counts := map[string]int{}
		for j := range imported.Items {
			counts[imported.Items[j].Labels[mcsv1beta1.LabelSourceCluster]] += len(imported.Items[j].Endpoints)
		}
		for cluster, n := range counts {
			gauge(i.endpoints, n, cluster)
		}
	}
}

// collectExports counts the ServiceExports by what their status says.
func (i *inventory) collectExports(ctx context.Context, gauge func(*prometheus.Desc, int, ...string)) {
	var exports mcsv1beta1.ServiceExportList
	if i.reader.List(ctx, &exports, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	states := map[string]int{"exported": 0, "pending": 0, "failed": 0}
	conflicts := 0
	for j := range exports.Items {
		conditions := exports.Items[j].Status.Conditions
		states[exportState(conditions)]++
		conflicts += number(meta.IsStatusConditionTrue(conditions, string(mcsv1beta1.ServiceExportConditionConflict)))
	}
	for state, n := range states {
		gauge(i.exports, n, state)
	}
	gauge(i.conflicts, conflicts)
}

// exportState is the state of a ServiceExport with these conditions, as the metrics name it.
func exportState(conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, string(mcsv1beta1.ServiceExportConditionReady))
	switch {
	case ready == nil:
		return "pending"
	case ready.Status == metav1.ConditionTrue:
		return "exported"
	case ready.Reason == string(mcsv1beta1.ServiceExportReasonFailed):
		return "failed"
	}
	return "pending"
}

// collectMembers counts the clusters of the clusterset.
func (i *inventory) collectMembers(ctx context.Context, s *session, gauge func(*prometheus.Desc, int, ...string)) {
	members, err := s.registry.Members(ctx)
	if err != nil {
		return // not read yet
	}
	states := map[string]int{"ok": 0, "problem": 0, "stale": 0}
	for _, m := range members {
		switch {
		case m.Stale:
			states["stale"]++
		case len(m.Problems) > 0:
			states["problem"]++
		default:
			states["ok"]++
		}
		if m.ClusterID != s.identity.ClusterID {
			gauge(i.stale, number(m.Stale), m.ClusterID)
		}
	}
	for state, n := range states {
		gauge(i.members, n, state)
	}
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
