package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestTriggerRemembersWhatCameEarly(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	var look trigger
	look.notify(mcs.Key{Namespace: "a", Name: "early"})
	look.notify(mcs.Key{Namespace: "a", Name: "early"})
	if err := look.source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	look.notify(mcs.Key{Namespace: "a", Name: "late"})
	var got []string
	for queue.Len() > 0 {
		req, _ := queue.Get()
		got = append(got, req.String())
		queue.Done(req)
	}
	if d := cmp.Diff([]string{"a/early", "a/late"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestFirstStatusWaits has the first status of a new export wait for the registry, and no other status.
func TestFirstStatusWaits(t *testing.T) {
	began := time.Unix(1000, 0)
	key := mcs.Key{Namespace: "a", Name: "b"}
	exp, told := &mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExport{}
	told.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	valid := mcs.ExportValid(&corev1.Service{})
	pending, exported := registry.PublishStatus{State: registry.Pending}, registry.PublishStatus{State: registry.Exported}
	refused := registry.PublishStatus{State: registry.Pending, Err: errors.New("no room")}
	for name, c := range map[string]struct {
		age   time.Duration
		exp   *mcsv1beta1.ServiceExport
		facts exportFacts
		want  time.Duration
	}{
		"new, to be exported any moment": {time.Second, exp, exportFacts{valid: valid, own: pending}, 2 * time.Second},
		"not exported for long":          {4 * time.Second, exp, exportFacts{valid: valid, own: pending}, 0},
		"exported at once":               {0, exp, exportFacts{valid: valid, own: exported}, 0},
		"it has a status":                {0, told, exportFacts{valid: valid, own: pending}, 0},
		"AWS refuses it":                 {0, exp, exportFacts{valid: valid, own: refused}, 0},
		"it cannot be exported":          {0, exp, exportFacts{valid: valid, own: pending, problem: "left"}, 0},
		"it may not be exported":         {0, exp, exportFacts{valid: valid, own: pending, forbidden: "namespace"}, 0},
		"there is no Service":            {0, exp, exportFacts{valid: mcs.ExportValid(nil), own: pending}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &exportReconciler{now: func() time.Time { return began.Add(c.age) }}
			r.published.Store(key, publishedExport{since: began})
			if got := r.statusIn(key, c.exp, c.facts); got != c.want {
				t.Errorf("the ServiceExport's status waits %v, want %v", got, c.want)
			}
		})
	}
}

func TestWaitingRoom(t *testing.T) {
	w := newWaitingRoom()
	a, b := mcs.Key{Namespace: "n", Name: "a"}, mcs.Key{Namespace: "n", Name: "b"}
	w.enter(a)
	w.enter(b)
	w.enter(mcs.Key{Namespace: "m", Name: "a"})
	w.leave(a)
	if d := cmp.Diff([]reconcile.Request{requestFor(b)}, w.requests("n")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	w.leave(b)
	if len(w.keys) != 1 {
		t.Errorf("%d namespaces are remembered, want 1", len(w.keys))
	}
}

func TestMetrics(t *testing.T) {
	scheme, err := newScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	conflict := mcs.ExportConflict([]mcs.Conflict{{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: "ports"}})
	exportWith := func(name string, conditions ...metav1.Condition) *mcsv1beta1.ServiceExport {
		return &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Status: mcsv1beta1.ServiceExportStatus{Conditions: conditions},
		}
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}},
		exportWith("b", mcs.ExportReady(mcs.Progress{Exported: true}), conflict),
		exportWith("c", mcs.ExportReady(mcs.Progress{Problem: "denied"}), mcs.ExportConflict(nil)),
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", Labels: ours}},
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "foreign"}},
		importedSliceOf("cls2", 2), importedSliceOf("cls3", 0),
	).Build()
	start := time.Unix(1000, 0)
	s := &session{identity: mcs.Identity{ClusterID: "cls1"}, started: start, registry: membersOf{
		{ClusterID: "cls1"}, {ClusterID: "cls2", Problems: []string{"x"}}, {ClusterID: "cls3", Problems: []string{"x"}, Stale: true},
	}}
	m := &membership{}
	m.current.Store(&standing{session: s})
	registerer := prometheus.NewPedanticRegistry()
	metrics, err := newMetrics(registerer, reader, m)
	if err != nil {
		t.Fatal(err)
	}

	exports := []mcs.Export{
		{Cluster: "cls1", Changed: start.Add(time.Second)}, // its own
		{Cluster: "cls2", Changed: start.Add(8 * time.Second)},
		{Cluster: "cls3", Changed: start.Add(-time.Hour)},  // from before the session
		{Cluster: "cls4", Changed: start.Add(time.Second)}, // not written
	}
	changes := plan.SliceChanges{
		Create: []*discoveryv1.EndpointSlice{importedSliceOf("cls1", 1), importedSliceOf("cls3", 1)},
		Update: []*discoveryv1.EndpointSlice{importedSliceOf("cls2", 1)},
	}
	metrics.observePropagation(s, exports, changes, start.Add(10*time.Second))

	want := `
# HELP cloud_map_mcs_exports ServiceExports in this cluster, by state: exported (Ready is True), failed (the user has to act) or pending.
# TYPE cloud_map_mcs_exports gauge
cloud_map_mcs_exports{state="exported"} 1
cloud_map_mcs_exports{state="failed"} 1
cloud_map_mcs_exports{state="pending"} 1
# HELP cloud_map_mcs_exports_in_conflict ServiceExports in this cluster whose condition Conflict is True: other clusters export the service otherwise.
# TYPE cloud_map_mcs_exports_in_conflict gauge
cloud_map_mcs_exports_in_conflict 1
# HELP cloud_map_mcs_imported_endpoints Endpoints in imported EndpointSlices, by source cluster.
# TYPE cloud_map_mcs_imported_endpoints gauge
cloud_map_mcs_imported_endpoints{source_cluster="cls2"} 2
cloud_map_mcs_imported_endpoints{source_cluster="cls3"} 0
# HELP cloud_map_mcs_imports ServiceImports of this controller in this cluster.
# TYPE cloud_map_mcs_imports gauge
cloud_map_mcs_imports 1
# HELP cloud_map_mcs_member Whether this replica works and its cluster is a member of a clusterset: 1 or 0.
# TYPE cloud_map_mcs_member gauge
cloud_map_mcs_member 1
# HELP cloud_map_mcs_member_stale Whether another cluster of the clusterset is stale: 1 if it had no heartbeat for --stale-after, else 0.
# TYPE cloud_map_mcs_member_stale gauge
cloud_map_mcs_member_stale{member="cls2"} 0
cloud_map_mcs_member_stale{member="cls3"} 1
# HELP cloud_map_mcs_registry_up Whether reading and writing the registry work, by direction (read, write): 1 or 0. A duplicate cluster ID counts as write 0.
# TYPE cloud_map_mcs_registry_up gauge
cloud_map_mcs_registry_up{direction="read"} 0
cloud_map_mcs_registry_up{direction="write"} 1
# HELP cloud_map_mcs_registry_members Clusters of the clusterset, this one included, by state (ok, problem, stale).
# TYPE cloud_map_mcs_registry_members gauge
cloud_map_mcs_registry_members{state="ok"} 1
cloud_map_mcs_registry_members{state="problem"} 1
cloud_map_mcs_registry_members{state="stale"} 1
`
	gauges := []string{"cloud_map_mcs_exports", "cloud_map_mcs_exports_in_conflict", "cloud_map_mcs_registry_up", "cloud_map_mcs_imported_endpoints", "cloud_map_mcs_imports", "cloud_map_mcs_member", "cloud_map_mcs_member_stale", "cloud_map_mcs_registry_members"}
	if err := testutil.GatherAndCompare(registerer, strings.NewReader(want), gauges...); err != nil {
		t.Error(err)
	}
	families, err := registerer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "cloud_map_mcs_propagation_seconds" {
			continue
		}
		if len(f.Metric) != 1 || f.Metric[0].Label[0].GetValue() != "cls2" || f.Metric[0].Histogram.GetSampleSum() != 2 {
			t.Errorf("propagation is %v, want 2 s of cls2 alone", f.Metric)
		}
		return
	}
	t.Error("there is no propagation metric")
}

// membersOf is a registry with these members and nothing else, which cannot be read any more.
type membersOf []registry.Member

func (membersOf) Report() registry.Report {
	return registry.Report{Reading: errors.New("no answer")}
}

func (m membersOf) Members(context.Context) ([]registry.Member, error)   { return m, nil }
func (membersOf) Publish(context.Context, mcs.Export) error              { return nil }
func (membersOf) Withdraw(context.Context, mcs.Key) error                { return nil }
func (membersOf) Run(context.Context, func(mcs.Key)) error               { return nil }
func (membersOf) Lookup(context.Context, mcs.Key) (registry.View, error) { return registry.View{}, nil }

func importedSliceOf(cluster string, n int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "imported-" + cluster,
			Labels: map[string]string{mcsv1beta1.LabelSourceCluster: cluster, plan.LabelManagedBy: plan.ManagedBy},
		},
		Endpoints: endpoints(1, n),
	}
}

func TestTellOnlyWhatIsNewAndMattersWhereTheNamespaceStays(t *testing.T) {
	scheme, err := newScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	going := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &metav1.Time{Time: time.Now()}, Finalizers: []string{"x/y"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}, going).Build()
	valid, noService := mcs.ExportValid(&corev1.Service{}), mcs.ExportValid(nil)
	failed := mcs.ExportReady(mcs.Progress{Problem: "denied"})
	conflict := mcs.ExportConflict([]mcs.Conflict{{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: "ports"}})
	tests := []struct {
		name         string
		namespace    string
		valid        metav1.Condition
		before, news []metav1.Condition
		want         []string
	}{
		{
			name: "all is well", namespace: "stays", valid: valid,
			news: []metav1.Condition{valid, mcs.ExportReady(mcs.Progress{Exported: true}), mcs.ExportConflict(nil)},
		},
		{name: "being written", namespace: "stays", valid: valid, news: []metav1.Condition{mcs.ExportReady(mcs.Progress{})}},
		{
			name: "no Service is told once", namespace: "stays", valid: noService,
			news: []metav1.Condition{noService, mcs.ExportNotReady(noService)},
			want: []string{"Warning NoService " + noService.Message},
		},
		{
			name: "failure and conflict", namespace: "stays", valid: valid,
			news: []metav1.Condition{failed, conflict},
			want: []string{"Warning Failed denied", "Warning PortConflict ports"},
		},
		{
			name: "another message is no news", namespace: "stays", valid: valid,
			before: []metav1.Condition{mcs.ExportReady(mcs.Progress{Problem: "unreachable"})}, news: []metav1.Condition{failed},
		},
		{name: "the namespace goes", namespace: "going", valid: noService, news: []metav1.Condition{noService}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fakeRecorder := events.NewFakeRecorder(10)
			r := &exportReconciler{client: c, events: recorder{fakeRecorder}}
			exp := serviceExport(mcs.Key{Namespace: tt.namespace, Name: "web"})
			if err := r.tell(t.Context(), exp, tt.valid, tt.before, tt.news); err != nil {
				t.Fatal(err)
			}
			close(fakeRecorder.Events)
			var got []string
			for e := range fakeRecorder.Events {
				got = append(got, e)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Events of what is not exported are of no interest, and those of what we made lead to its import.
func TestWatchesMapObjectsToServices(t *testing.T) {
	scheme, err := newScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	exportedKey, otherKey := mcs.Key{Namespace: "n", Name: "exported"}, mcs.Key{Namespace: "n", Name: "other"}
	w := watcher{fake.NewClientBuilder().WithScheme(scheme).WithObjects(serviceExport(exportedKey)).Build()}
	derived := service(mcs.Key{Namespace: "n", Name: "imported-x"})
	derived.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	derived.OwnerReferences = []metav1.OwnerReference{{Kind: "ServiceImport", Name: "exported"}}
	unowned := service(mcs.Key{Namespace: "n", Name: "imported-x"})
	unowned.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "exported"}
	imported := importedSliceOf("cls2", 1)
	imported.Labels[mcsv1beta1.LabelServiceName] = "exported"
	imported.Labels[discoveryv1.LabelServiceName] = "imported-x"
	tests := []struct {
		name string
		to   func(context.Context, client.Object) []reconcile.Request
		obj  client.Object
		want []reconcile.Request
	}{
		{"exported Service", w.exportedService, service(exportedKey), []reconcile.Request{requestFor(exportedKey)}},
		{"other Service", w.exportedService, service(otherKey), nil},
		{"exported slice", w.exportedSlice, endpointSlice(exportedKey, nil), []reconcile.Request{requestFor(exportedKey)}},
		{"other slice", w.exportedSlice, endpointSlice(otherKey, nil), nil},
		{"imported slice is not exported", w.exportedSlice, imported, nil},
		{"imported slice", importedSlice, imported, []reconcile.Request{requestFor(exportedKey)}},
		{"slice of this cluster is not imported", importedSlice, endpointSlice(exportedKey, nil), nil},
		{"derived Service", derivedService, derived, []reconcile.Request{requestFor(exportedKey)}},
		{"derived Service without an owner yet", derivedService, unowned, []reconcile.Request{requestFor(exportedKey)}},
		{"user's Service is not derived", derivedService, service(exportedKey), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.to(t.Context(), tt.obj)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
