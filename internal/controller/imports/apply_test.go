package imports

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// The derived Service is created before the ServiceImport. It must not be left behind if the
// ServiceImport cannot be created.
func TestApplyResumesPartialImport(t *testing.T) {
	full := errors.New("no IP is left")
	name := client.ObjectKey{Namespace: webKey.Namespace, Name: webKey.Name}
	foreign := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	for title, c := range map[string]struct {
		// onService is called when the Service is created.
		onService   func(context.Context, client.WithWatch) error
		wantErr     func(error) bool
		wantImport  bool
		wantService bool
	}{
		"both are created": {
			func(context.Context, client.WithWatch) error { return nil },
			func(err error) bool { return err == nil }, true, true,
		},
		"the ServiceImport is created without a Service": {
			func(context.Context, client.WithWatch) error { return full },
			func(err error) bool { return errors.Is(err, full) }, true, false,
		},
		"the Service is deleted if another client created the ServiceImport": {
			func(ctx context.Context, cl client.WithWatch) error { return cl.Create(ctx, foreign.DeepCopy()) },
			apierrors.IsAlreadyExists, false, false,
		},
	} {
		t.Run(title, func(t *testing.T) {
			cl := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, cl client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
					if _, ok := obj.(*corev1.Service); ok {
						if err := c.onService(ctx, cl); err != nil {
							return err
						}
					}
					return cl.Create(ctx, obj, opts...)
				},
			}).Build()
			r := &Controller{
				client: cl, mcsVersion: controllertest.MCSVersion, now: time.Now, families: &familyDetector{now: time.Now, known: []corev1.IPFamily{corev1.IPv4Protocol}, detected: time.Now()}, distributions: &distributions{},
			}
			f := importFacts{key: webKey, derivedName: mcs.DerivedName(webKey)}
			d := importDecision{merged: mcs.Merge([]mcs.Export{exportOf("cls2", 80)})}
			var out outcome
			r.applyObjects(t.Context(), f, d, r.detectSupport(t.Context(), f, d, &out), &out)
			if err := out.result(); !c.wantErr(err) {
				t.Errorf("the error is %v", err)
			}
			var imp mcsv1beta1.ServiceImport
			if err := cl.Get(t.Context(), name, &imp); err != nil {
				t.Fatal(err)
			}
			if ours := plan.IsManaged(&imp); ours != c.wantImport {
				t.Errorf("the ServiceImport is ours: %v, want %v", ours, c.wantImport)
			}
			var svc corev1.Service
			found, err := kube.Find(t.Context(), cl, client.ObjectKey{Namespace: name.Namespace, Name: f.derivedName}, &svc)
			if err != nil || found != c.wantService {
				t.Errorf("the derived Service is there: %v (%v), want %v", found, err, c.wantService)
			}
			if len(svc.OwnerReferences) > 0 {
				t.Errorf("the derived Service has owners: %v", svc.OwnerReferences)
			}
		})
	}
}

// Kubernetes releases the IP of a deleted Service a moment after the deletion.
func TestDerivedServiceGetsItsIPBack(t *testing.T) {
	taken := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), "x", field.ErrorList{
		field.Invalid(field.NewPath("spec", "clusterIPs"), nil, "provided IP is already allocated"),
	})
	for name, c := range map[string]struct {
		refusals int
		want     string
	}{
		"free":               {0, "10.0.0.7"},
		"taken for a moment": {3, "10.0.0.7"},
		"taken":              {1000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refusals := c.refusals
				cl := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
					Create: func(ctx context.Context, cl client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
						if svc := obj.(*corev1.Service); svc.Spec.ClusterIP != "" && refusals > 0 {
							refusals--
							return taken
						}
						return cl.Create(ctx, obj, opts...)
					},
				}).Build()
				svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "x"}}
				svc, err := (&Controller{client: cl}).createDerivedService(t.Context(), svc, []string{"10.0.0.7"})
				if err != nil {
					t.Fatal(err)
				}
				if svc.Spec.ClusterIP != c.want {
					t.Errorf("the Service has IP %q, want %q", svc.Spec.ClusterIP, c.want)
				}
			})
		})
	}
}

func TestSooner(t *testing.T) {
	for _, tt := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {0, 2, 2}, {2, 0, 2}, {1, 2, 1}, {2, 1, 1}, {1, 1, 1},
	} {
		if got := sooner(tt.a, tt.b); got != tt.want {
			t.Errorf("sooner(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestPropagatedExports(t *testing.T) {
	d := importDecision{exports: []mcs.Export{exportOf("fresh"), exportOf("stale"), exportOf("recovered")}, stale: []string{"stale"}}
	got := propagatedExports(d, []string{"recovered"})
	if len(got) != 1 || got[0].Cluster != "fresh" {
		t.Errorf("got %v, want the export of the cluster that neither became stale nor recovered", got)
	}
	if len(d.exports) != 3 {
		t.Error("the decision was changed")
	}
}

func TestHeldServices(t *testing.T) {
	service := func(name string, held bool) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: name, Annotations: map[string]string{}}}
		if held {
			svc.Annotations[plan.AnnotationHeldSince] = "2026-07-01T12:00:00Z"
		}
		return svc
	}
	derived := mcs.DerivedName(webKey)
	copied := service("copied-with-all-labels", true)
	copied.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: webKey.Name}
	got := heldServices(webKey, []*corev1.Service{service(derived, false), service(derived, true), service("another", true), copied})
	if len(got) != 1 || got[0].Name != derived || !plan.IsHeld(got[0]) {
		t.Errorf("got %v, want only the held Service with the derived name", got)
	}
}

func TestUnusedHeld(t *testing.T) {
	service := func(uid types.UID) *corev1.Service { return &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	used, other := service("used"), service("other")
	held := []*corev1.Service{used, other}
	for name, tt := range map[string]struct {
		derived *corev1.Service
		d       importDecision
		want    int
	}{
		"no derived Service":         {d: importDecision{verdict: verdictApply, merged: mcs.Merged{Type: mcsv1beta1.ClusterSetIP}}, want: 2},
		"one is the derived Service": {derived: used, d: importDecision{verdict: verdictApply, merged: mcs.Merged{Type: mcsv1beta1.ClusterSetIP}}, want: 1},
		"the import is headless":     {derived: used, d: importDecision{verdict: verdictApply, merged: mcs.Merged{Type: mcsv1beta1.Headless}}, want: 2},
		"the import is removed":      {derived: used, d: importDecision{merged: mcs.Merged{Type: mcsv1beta1.ClusterSetIP}}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			got := importFacts{held: held, derived: tt.derived}.unusedHeld(tt.d)
			if len(got) != tt.want || tt.want == 1 && got[0] != other {
				t.Errorf("got %d, want %d", len(got), tt.want)
			}
		})
	}
}

// TestApplyStatus_NotResolvable: an import shows that its name does not resolve, and then that it
// does. A controller that does not know it, as after a restart, writes nothing.
func TestApplyStatus_NotResolvable(t *testing.T) {
	imp := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: webKey.Name},
		Spec:       mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.0.0.1"}},
	}
	c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(imp).WithStatusSubresource(imp).Build()
	f := importFacts{key: webKey, imp: imp}
	exp := exportOf("cls2", 80)
	d := importDecision{merged: mcs.Merge([]mcs.Export{exp}), endpoints: []mcs.Export{exp}}
	for _, step := range []struct {
		names         mcs.Resolution
		wantCondition string
	}{
		{mcs.ResolutionUnknown, ""}, {mcs.Resolvable, ""}, {mcs.NotResolvable, "True DNSNotServed"},
		{mcs.ResolutionUnknown, "True DNSNotServed"}, {mcs.Resolvable, "False DNSServed"},
	} {
		r := &Controller{
			client: c, now: time.Now, events: kube.EventRecorder{Recorder: events.NewFakeRecorder(4)},
			resolution: func() mcs.Resolution { return step.names },
		}
		out := &outcome{}
		r.applyStatus(t.Context(), f, d, importObjects{imp: imp}, nil, out)
		if err := errors.Join(out.err(), c.Get(t.Context(), kube.NameOf(webKey), imp)); err != nil {
			t.Fatal(err)
		}
		got := ""
		if condition := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionNotResolvable); condition != nil {
			got = string(condition.Status) + " " + condition.Reason
		}
		if got != step.wantCondition {
			t.Errorf("names %d: condition %q, want %q", step.names, got, step.wantCondition)
		}
		ready := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
		if not := strings.Contains(ready.Message, "NotResolvable"); not != strings.HasPrefix(step.wantCondition, "True") {
			t.Errorf("names %d: Ready says %q", step.names, ready.Message)
		}
	}
}
