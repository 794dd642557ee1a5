package serve

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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const metricPrefix = "cloud_map_mcs_"

// RegisterMetrics registers the gauges of the objects in the cluster at registerer, if that is not
// nil. They read from reader at each scrape.
func RegisterMetrics(registerer prometheus.Registerer, reader client.Reader, m Membership) error {
	if registerer == nil {
		return nil
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: metricPrefix + "build_info",
		Help: "Always 1, with the controller's version as a label.",
	}, []string{"version"})
	build.WithLabelValues(config.Version).Set(1)
	for _, c := range []prometheus.Collector{build, newInventory(reader, m)} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// Membership is the cluster's membership.
type Membership interface {
	// State returns the membership state; it is never nil.
	State() *membership.State
	// Properties returns the ClusterProperties of this cluster; known is false until they were
	// read.
	Properties() (own mcs.Properties, known bool)
	// LeavingIdentities returns the identities under which this cluster is leaving or will leave.
	LeavingIdentities(ctx context.Context) ([]mcs.Identity, error)
	// Leftovers returns the resources of the registry that stayed when this cluster left.
	Leftovers() []registry.Leftover
}

// inventory counts the objects in the cache.
type inventory struct {
	reader     client.Reader
	membership Membership

	member, missing, members, refused, stale, drained, up, exports, conflicts, imports, endpoints *prometheus.Desc
}

func newInventory(reader client.Reader, m Membership) *inventory {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
	}
	return &inventory{
		reader:     reader,
		membership: m,
		member:     desc("member", "Whether this replica is the leader and its cluster is a member of a clusterset: 1 or 0."),
		missing:    desc("identity_missing", "Whether this cluster keeps an identity that its ClusterProperties and flags do not have any more: 1 or 0."),
		members:    desc("registry_members", "Clusters of the clusterset, this one included, by state (ok, problem, stale).", "state"),
		refused:    desc("members_refused", "Clusters, this one included, under whose IDs the registry has, or had, records that they have not signed."),
		stale:      desc("member_stale", "Whether another cluster of the clusterset is stale: 1 if it had no heartbeat for --stale-after, else 0.", "member"),
		drained:    desc("member_drained_ratio", "Part of the endpoints of a cluster, this one included, that others do not use because the cluster is drained: 0 to 1.", "member"),
		up:         desc("registry_up", "Whether reading and writing the registry work, by direction (read, write): 1 or 0.", "direction"),
		exports:    desc("exports", "ServiceExports in this cluster, by state: exported (Ready is True), failed (the user has to act) or pending.", "state"),
		conflicts:  desc("exports_in_conflict", "ServiceExports in this cluster whose condition Conflict is True."),
		imports:    desc("imports", "ServiceImports of this controller in this cluster."),
		endpoints:  desc("imported_endpoints", "Endpoints in imported EndpointSlices, by source cluster.", "source_cluster"),
	}
}

// Describe implements prometheus.Collector.
func (i *inventory) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{i.member, i.missing, i.members, i.refused, i.stale, i.drained, i.up, i.exports, i.conflicts, i.imports, i.endpoints} {
		ch <- d
	}
}

// inventoryTimeout limits a scrape before the cache is filled.
const inventoryTimeout = 2 * time.Second

// Collect implements prometheus.Collector. It omits metrics that cannot be computed yet.
func (i *inventory) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), inventoryTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	state := i.membership.State()
	session := state.Session
	gauge(i.member, boolValue(session != nil))
	gauge(i.missing, boolValue(session != nil && state.IdentityProblem != "" && state.Next == (mcs.Identity{})))
	if session != nil {
		i.collectMembers(ctx, session, gauge, ch)
		report := registry.ReportOf(session.Registry)
		gauge(i.up, boolValue(report.Reading == nil), "read")
		gauge(i.up, boolValue(report.Writing == nil), "write")
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

// collectExports counts the ServiceExports by state.
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
		conflicts += boolValue(meta.IsStatusConditionTrue(conditions, string(mcsv1beta1.ServiceExportConditionConflict)))
	}
	for state, n := range states {
		gauge(i.exports, n, state)
	}
	gauge(i.conflicts, conflicts)
}

// exportState returns the value of label state for a ServiceExport with these conditions.
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
func (i *inventory) collectMembers(ctx context.Context, s *membership.Session, gauge func(*prometheus.Desc, int, ...string), ch chan<- prometheus.Metric) {
	members, err := s.Registry.Members(ctx)
	if err != nil {
		return // not read yet
	}
	states, refused := map[string]int{"ok": 0, "problem": 0, "stale": 0}, 0
	for _, m := range members {
		if slices.ContainsFunc(m.Problems, registry.IsRefused) {
			refused++
		}
		switch {
		case m.Stale:
			states["stale"]++
		case len(m.Problems) > 0:
			states["problem"]++
		default:
			states["ok"]++
		}
		ch <- prometheus.MustNewConstMetric(i.drained, prometheus.GaugeValue, float64(m.Properties.Drain().Percent())/100, m.ClusterID)
		if m.ClusterID != s.Identity.ClusterID {
			gauge(i.stale, boolValue(m.Stale), m.ClusterID)
		}
	}
	for state, n := range states {
		gauge(i.members, n, state)
	}
	gauge(i.refused, refused)
}

func boolValue(b bool) int {
	if b {
		return 1
	}
	return 0
}
