package imports

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// heldService returns a Service that holds the IPs of an ended import since a minute of 12 o'clock.
func heldService(namespace, name, since string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: mcs.DerivedName(mcs.Key{Namespace: namespace, Name: name}), Annotations: map[string]string{plan.AnnotationHeldSince: "2026-07-01T12:" + since + ":00Z"},
			Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: name},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}},
	}
}

func TestGiveWay(t *testing.T) {
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "web", errors.New("exceeded quota: none, used: services=1"))
	full := apierrors.NewInternalError(errors.New("failed to allocate a serviceIP: range is full"))
	for name, tt := range map[string]struct {
		err  error
		want []string // the released imports, by attempt
	}{
		"a quota: the oldest of the namespace": {err: quota, want: []string{"demo/older", "demo/younger", ""}},
		"a full range: the oldest of all":      {err: full, want: []string{"shop/oldest", "demo/older", "demo/younger", ""}},
		"the share of imports":                 {err: shareError{8}, want: []string{"shop/oldest"}},
		"a policy":                             {err: apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "web", errors.New("denied")), want: []string{""}},
		"no error":                             {want: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 7, 1, 13, 0, 0, 0, time.UTC)
			used := heldService("demo", "used", "00")
			delete(used.Annotations, plan.AnnotationHeldSince)
			copied, ending := heldService("demo", "copied", "01"), heldService("demo", "ending", "02")
			copied.Name = "by-a-user" // with all labels and annotations of a held Service
			ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: now}, []string{"example.com/keep"}
			r := &Controller{
				client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(
					heldService("demo", "younger", "30"), heldService("demo", "older", "20"), heldService("shop", "oldest", "10"), used, copied, ending).Build(),
				now: func() time.Time { return now }, events: kube.EventRecorder{Recorder: events.NewFakeRecorder(10)},
			}
			for _, want := range tt.want {
				left := countServices(t, r)
				err := r.giveWay(context.Background(), importFacts{key: webKey}, tt.err)
				if want == "" {
					if !errors.Is(err, tt.err) || countServices(t, r) != left {
						t.Errorf("error %v and %d Services released, want none", err, left-countServices(t, r))
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), "of the ended import "+want) || kube.IsRefused(err) || countServices(t, r) != left-1 {
					t.Errorf("error %v, want %s released, and a retry", err, want)
				}
				if again := r.giveWay(context.Background(), importFacts{key: webKey}, tt.err); !errors.Is(again, tt.err) || countServices(t, r) != left-1 {
					t.Errorf("error %v: another one is released within %s", again, releasePause)
				}
				now = now.Add(releasePause)
			}
		})
	}
}

// TestChooseHeld: a cluster that exports one name after the other, under any number of IDs, takes
// the IPs of its own ended imports, and of those that hold many.
func TestChooseHeld(t *testing.T) {
	held := func(name, since string, clusters ...string) corev1.Service {
		svc := heldService("demo", name, since)
		plan.SetHeldFor(svc, clusters)
		return *svc
	}
	victims, intruders := held("victim", "10", "victim"), held("intruder", "20", "intruder")
	joint, unknown := held("joint", "05", "intruder", "victim"), held("unknown", "30")
	many := []corev1.Service{held("many-1", "41", "many"), held("many-2", "42", "many"), held("many-3", "43", "many")}
	for name, tt := range map[string]struct {
		held      []corev1.Service
		exporters []string
		want      string
	}{
		"its own":                        {[]corev1.Service{victims, joint, intruders}, []string{"intruder"}, "intruder"},
		"none of another cluster":        {[]corev1.Service{victims, joint}, []string{"intruder"}, ""},
		"none to another ID":             {[]corev1.Service{victims, intruders}, []string{"intruder-2"}, ""},
		"several clusters export it":     {[]corev1.Service{victims, joint, intruders}, []string{"intruder", "victim"}, "joint"},
		"a cluster that holds many":      {append(many, victims, joint), []string{"other"}, "many-1"},
		"one that is not more than many": {many[1:2], []string{"other"}, ""},
		"of an earlier version":          {[]corev1.Service{victims, unknown}, []string{"intruder"}, "unknown"},
		"any, to an own export":          {[]corev1.Service{victims, joint}, nil, "joint"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if svc := chooseHeld(tt.held, tt.exporters, 2); svc != nil {
				got = svc.Labels[mcsv1beta1.LabelServiceName]
			}
			if got != tt.want {
				t.Errorf("%q gives way, want %q", got, tt.want)
			}
		})
	}
}

// TestGiveWay_Undone: an import that finds nothing to release keeps no other one from it.
func TestGiveWay_Undone(t *testing.T) {
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "web", errors.New("exceeded quota: none, used: services=1"))
	held := heldService("demo", "held", "10")
	plan.SetHeldFor(held, []string{"cls2"})
	r := &Controller{
		client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(held).Build(),
		now:    time.Now, events: kube.EventRecorder{Recorder: events.NewFakeRecorder(10)},
	}
	of := func(cluster string) importFacts {
		return importFacts{key: webKey, view: registrytest.ViewOf(mcs.Export{Cluster: cluster})}
	}
	if err := r.giveWay(t.Context(), of("cls3"), quota); !errors.Is(err, quota) || countServices(t, r) != 1 {
		t.Errorf("error %v, want nothing released", err)
	}
	established := of("cls3")
	established.imp = &mcsv1beta1.ServiceImport{Spec: mcsv1beta1.ServiceImportSpec{IPs: []string{"10.96.0.9"}}}
	if held, err := r.findHeld(t.Context(), webKey.Namespace, established); held == nil || err != nil {
		t.Errorf("no IP gives way to an import that had IPs: %v", err)
	}
	if err := r.giveWay(t.Context(), of("cls2"), quota); kube.IsRefused(err) || countServices(t, r) != 0 {
		t.Errorf("error %v, want the IP released", err)
	}
}

func countServices(t *testing.T, r *Controller) int {
	t.Helper()
	var list corev1.ServiceList
	if err := r.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}
