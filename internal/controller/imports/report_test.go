package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

func TestReportFailure(t *testing.T) {
	var (
		resource = schema.GroupResource{Group: mcsv1beta1.GroupName, Resource: "serviceimports"}
		timeout  = errors.New("timeout")
		rejected = apierrors.NewForbidden(resource, "web", errors.New("quota exceeded"))
		conflict = apierrors.NewConflict(resource, "web", errors.New("the object has been modified"))
		ours     = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	)
	for name, tt := range map[string]struct {
		labels map[string]string
		// first is the error now, then the one after another pause.
		first error
		pause time.Duration
		then  error
		want  bool
	}{
		"a failure":                               {labels: ours, first: timeout},
		"a failure that lasts":                    {labels: ours, first: timeout, pause: failureGrace, then: timeout, want: true},
		"a failure that does not last":            {labels: ours, first: timeout, pause: failureGrace - 1, then: timeout},
		"a failure after a success":               {labels: ours, first: nil, pause: failureGrace, then: timeout},
		"a rejected object":                       {labels: ours, first: rejected, want: true},
		"a rejected object of another controller": {first: rejected},
		"conflicts":                               {labels: ours, first: conflict, pause: failureGrace, then: conflict},
		"the end of the process":                  {labels: ours, first: context.Canceled, pause: failureGrace, then: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: webKey.Name, Labels: tt.labels}}
			now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
			r := &Controller{
				client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(imp).WithStatusSubresource(imp).Build(),
				now:    func() time.Time { return now },
				events: kube.EventRecorder{Recorder: events.NewFakeRecorder(10)},
			}
			facts := importFacts{key: webKey, imp: imp}
			for _, err := range []error{tt.first, tt.then} {
				out := &outcome{}
				out.add(err)
				r.reportFailure(t.Context(), facts, false, out)
				now = now.Add(tt.pause)
				if tt.pause == 0 {
					break
				}
			}
			var got mcsv1beta1.ServiceImport
			if err := r.client.Get(t.Context(), kube.NameOf(webKey), &got); err != nil {
				t.Fatal(err)
			}
			if reported := meta.IsStatusConditionFalse(got.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady)); reported != tt.want {
				t.Errorf("condition Ready is False: %t, want %t", reported, tt.want)
			}
		})
	}
}

// Messages that differ with each attempt, as those of a webhook with a request ID, are one event in
// messagePause: the status would start the next attempt.
func TestReportFailure_VaryingMessages(t *testing.T) {
	imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: webKey.Name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}}}
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	recorder := events.NewFakeRecorder(100)
	r := &Controller{
		client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(imp).WithStatusSubresource(imp).Build(),
		now:    func() time.Time { return now }, events: kube.EventRecorder{Recorder: recorder},
	}
	for i := range 20 {
		out := &outcome{}
		out.add(apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "web", fmt.Errorf("denied, request %d", i)))
		r.reportFailure(t.Context(), importFacts{key: webKey, imp: imp}, false, out)
		now = now.Add(messagePause / 10)
	}
	if n := len(recorder.Events); n != 2 {
		t.Errorf("%d events within twice the pause, want 2", n)
	}
}

// TestNamesWithOneHash: an import whose derived Service is that of another one is refused and
// reported, and its end leaves that Service alone.
func TestNamesWithOneHash(t *testing.T) {
	// its short derived name is that of s1e37560
	first := mcs.Key{Namespace: "shop", Name: "sf21a8f"}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: first.Namespace, Name: mcs.ShortDerivedName(first), UID: "1",
		Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: first.Name},
	}}
	second := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "s1e37560", Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}}}
	f := importFacts{key: mcs.Key{Namespace: "shop", Name: second.Name}, namespace: true, synced: true, imp: second, derived: service}
	exp := exportOf("cls2", 80)
	exp.Key = f.key
	f.view = registrytest.ViewOf(exp)
	if got := decideImport(f).verdict; got != verdictNotOwned {
		t.Fatalf("the verdict is %d, want %d", got, verdictNotOwned)
	}
	api := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(second, service).WithStatusSubresource(second).Build()
	recorder := events.NewFakeRecorder(4)
	r := &Controller{client: api, now: time.Now, events: kube.EventRecorder{Recorder: recorder}}
	for range 2 {
		if err := r.reportNotOwned(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("%d events, want one", n)
	}
	var imp mcsv1beta1.ServiceImport
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(second), &imp); err != nil {
		t.Fatal(err)
	}
	ready := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
	for where, text := range map[string]string{"event": <-recorder.Events, "condition": ready.Message} {
		if !strings.Contains(text, "derived Service of ServiceImport sf21a8f") || !strings.Contains(text, "under another name") {
			t.Errorf("the %s says %q", where, text)
		}
	}
	if ready.Status != metav1.ConditionFalse {
		t.Errorf("Ready is %s", ready.Status)
	}

	f.view, f.imp = registry.View{}, &imp
	out := &outcome{}
	r.removeImport(t.Context(), f, out)
	var left corev1.Service
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(service), &left); err != nil || plan.IsHeld(&left) || out.err() != nil {
		t.Errorf("the end of the second import changed the Service of the first one: held %t, %v, %v", plan.IsHeld(&left), err, out.err())
	}
}

// TestReportImported: an import that becomes Ready is an event, and another shape of it a line of
// the log.
func TestReportImported(t *testing.T) {
	imp := func(ready bool, ports []int32, clusters ...string) *mcsv1beta1.ServiceImport {
		out := &mcsv1beta1.ServiceImport{Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP}}
		for _, p := range ports {
			out.Spec.Ports = append(out.Spec.Ports, mcsv1beta1.ServicePort{Port: p})
		}
		for _, c := range clusters {
			out.Status.Clusters = append(out.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: c})
		}
		if ready {
			out.Status.Conditions = []metav1.Condition{{Type: string(mcsv1beta1.ServiceImportConditionReady), Status: metav1.ConditionTrue}}
		}
		return out
	}
	usable := mcs.ImportReady(mcs.Merged{Type: mcsv1beta1.ClusterSetIP}, nil, []string{"10.0.0.1"}, mcs.ReachAny, mcs.Resolvable)
	const event = "Normal Imported the service can be used by its DNS name and its clusterset IP; exported by cls1, cls2"
	http, https := []int32{80}, []int32{80, 443}
	for name, tt := range map[string]struct {
		before, now *mcsv1beta1.ServiceImport
		ready       metav1.Condition
		events      []string
		log         string
	}{
		"new":                     {now: imp(false, http, "cls1", "cls2"), ready: usable, events: []string{event}},
		"new and not usable":      {now: imp(false, http, "cls1"), ready: mcs.ImportNotReady("no quota")},
		"usable again":            {before: imp(false, http, "cls1", "cls2"), now: imp(false, http, "cls1", "cls2"), ready: usable, events: []string{event}},
		"unchanged":               {before: imp(true, http, "cls1"), now: imp(true, http, "cls1"), ready: usable},
		"another cluster":         {before: imp(true, http, "cls1"), now: imp(true, http, "cls1", "cls2"), ready: usable, log: `"Changed import" "clusters"=["cls1" "cls2"]`},
		"another port":            {before: imp(true, http, "cls1"), now: imp(true, https, "cls1"), ready: usable, log: `"Changed import" "clusters"=["cls1"]`},
		"as created, without any": {before: imp(false, http), now: imp(false, http, "cls1", "cls2"), ready: usable, events: []string{event}},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(4)
			var lines strings.Builder
			ctx := log.IntoContext(t.Context(), funcr.New(func(_, args string) { lines.WriteString(args) }, funcr.Options{}))
			r := &Controller{events: kube.EventRecorder{Recorder: recorder}}
			r.reportImported(ctx, importFacts{key: webKey, imp: tt.before}, tt.now, tt.now.Status, tt.ready)
			if d := cmp.Diff(tt.events, controllertest.Recorded(recorder)); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
			if (lines.Len() > 0) != (tt.log != "") || !strings.Contains(lines.String(), tt.log) {
				t.Errorf("log %q, want %q", lines.String(), tt.log)
			}
		})
	}
}
