package serve

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestMetrics(t *testing.T) {
	ours := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	conflict := mcs.ExportConflict([]mcs.Conflict{{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: "ports"}})
	exportWith := func(name string, conditions ...metav1.Condition) *mcsv1beta1.ServiceExport {
		return &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Status: mcsv1beta1.ServiceExportStatus{Conditions: conditions},
		}
	}
	reader := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(
		&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}},
		exportWith("b", mcs.ExportReady(mcs.Progress{Exported: true}), conflict),
		exportWith("c", mcs.ExportReady(mcs.Progress{Problem: "denied"}), mcs.ExportConflict(nil)),
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", Labels: ours}},
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "foreign"}},
		importedSliceOf("cls2", 2), importedSliceOf("cls3", 0),
	).Build()
	s := &membership.Session{Identity: mcs.Identity{ClusterID: "cls1"}, Registry: membersOf{
		{ClusterID: "cls1"}, {ClusterID: "cls2", Problems: []string{"x"}, Properties: mcs.Properties{mcs.PropertyDrain: "30%"}}, {ClusterID: "cls3", Problems: []string{registry.RefusedProblem("the member record", errors.New("x"))}, Stale: true},
	}}
	registerer := prometheus.NewPedanticRegistry()
	if err := RegisterMetrics(registerer, reader, fixedMembership{state: &membership.State{Session: s, IdentityProblem: "no ClusterProperty"}}); err != nil {
		t.Fatal(err)
	}

	want := `
# HELP cloud_map_mcs_exports ServiceExports in this cluster, by state: exported (Ready is True), failed (the user has to act) or pending.
# TYPE cloud_map_mcs_exports gauge
cloud_map_mcs_exports{state="exported"} 1
cloud_map_mcs_exports{state="failed"} 1
cloud_map_mcs_exports{state="pending"} 1
# HELP cloud_map_mcs_exports_in_conflict ServiceExports in this cluster whose condition Conflict is True.
# TYPE cloud_map_mcs_exports_in_conflict gauge
cloud_map_mcs_exports_in_conflict 1
# HELP cloud_map_mcs_identity_missing Whether this cluster keeps an identity that its ClusterProperties and flags do not have any more: 1 or 0.
# TYPE cloud_map_mcs_identity_missing gauge
cloud_map_mcs_identity_missing 1
# HELP cloud_map_mcs_imported_endpoints Endpoints in imported EndpointSlices, by source cluster.
# TYPE cloud_map_mcs_imported_endpoints gauge
cloud_map_mcs_imported_endpoints{source_cluster="cls2"} 2
cloud_map_mcs_imported_endpoints{source_cluster="cls3"} 0
# HELP cloud_map_mcs_imports ServiceImports of this controller in this cluster.
# TYPE cloud_map_mcs_imports gauge
cloud_map_mcs_imports 1
# HELP cloud_map_mcs_member Whether this replica is the leader and its cluster is a member of a clusterset: 1 or 0.
# TYPE cloud_map_mcs_member gauge
cloud_map_mcs_member 1
# HELP cloud_map_mcs_member_drained_ratio Part of the endpoints of a cluster, this one included, that others do not use because the cluster is drained: 0 to 1.
# TYPE cloud_map_mcs_member_drained_ratio gauge
cloud_map_mcs_member_drained_ratio{member="cls1"} 0
cloud_map_mcs_member_drained_ratio{member="cls2"} 0.3
cloud_map_mcs_member_drained_ratio{member="cls3"} 0
# HELP cloud_map_mcs_member_stale Whether another cluster of the clusterset is stale: 1 if it had no heartbeat for --stale-after, else 0.
# TYPE cloud_map_mcs_member_stale gauge
cloud_map_mcs_member_stale{member="cls2"} 0
cloud_map_mcs_member_stale{member="cls3"} 1
# HELP cloud_map_mcs_members_refused Clusters, this one included, under whose IDs the registry has, or had, records that they have not signed.
# TYPE cloud_map_mcs_members_refused gauge
cloud_map_mcs_members_refused 1
# HELP cloud_map_mcs_registry_members Clusters of the clusterset, this one included, by state (ok, problem, stale).
# TYPE cloud_map_mcs_registry_members gauge
cloud_map_mcs_registry_members{state="ok"} 1
cloud_map_mcs_registry_members{state="problem"} 1
cloud_map_mcs_registry_members{state="stale"} 1
# HELP cloud_map_mcs_registry_up Whether reading and writing the registry work, by direction (read, write): 1 or 0.
# TYPE cloud_map_mcs_registry_up gauge
cloud_map_mcs_registry_up{direction="read"} 0
cloud_map_mcs_registry_up{direction="write"} 1
`
	gauges := []string{"cloud_map_mcs_exports", "cloud_map_mcs_exports_in_conflict", "cloud_map_mcs_registry_up", "cloud_map_mcs_identity_missing", "cloud_map_mcs_imported_endpoints", "cloud_map_mcs_imports", "cloud_map_mcs_member", "cloud_map_mcs_member_drained_ratio", "cloud_map_mcs_member_stale", "cloud_map_mcs_members_refused", "cloud_map_mcs_registry_members"}
	if err := testutil.GatherAndCompare(registerer, strings.NewReader(want), gauges...); err != nil {
		t.Error(err)
	}
}

// fixedMembership is a membership that does not change.
type fixedMembership struct{ state *membership.State }

func (m fixedMembership) State() *membership.State { return m.state }

func (m fixedMembership) Properties() (mcs.Properties, bool) { return nil, false }

func (m fixedMembership) Leftovers() []registry.Leftover { return nil }

func (m fixedMembership) LeavingIdentities(context.Context) ([]mcs.Identity, error) { return nil, nil }

// membersOf is a registry with these members and no exports, whose reads fail now.
type membersOf []registry.Member

func (membersOf) Report() registry.Report {
	return registry.Report{Reading: errors.New("no answer")}
}

func (m membersOf) Members(context.Context) ([]registry.Member, error) { return m, nil }
func (membersOf) Publish(context.Context, mcs.Export) error            { return nil }
func (membersOf) Withdraw(context.Context, mcs.Key) error              { return nil }
func (membersOf) SetProperties(mcs.Properties)                         {}
func (membersOf) SetImports(mcs.ImportReport)                          {}
func (membersOf) Run(context.Context, func(mcs.Key)) error             { return nil }
func (membersOf) Lookup(context.Context, mcs.Key, ...string) (registry.View, error) {
	return registry.View{}, nil
}
func (membersOf) Forget(string) {}

func importedSliceOf(cluster string, n int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "imported-" + cluster,
			Labels: map[string]string{mcsv1beta1.LabelSourceCluster: cluster, plan.LabelManagedBy: plan.ManagedBy},
		},
		Endpoints: controllertest.Endpoints(1, n),
	}
}
