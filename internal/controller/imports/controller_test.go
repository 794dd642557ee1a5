package imports

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestImportedObjectsMapToTheirImport(t *testing.T) {
	key := mcs.Key{Namespace: "n", Name: "web"}
	blocked := mcs.Key{Namespace: "n", Name: "blocked"}
	m := mapper{reported: &sync.Map{}, client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "other"}},
	).Build()}
	m.reported.Store(blocked, struct{}{})
	stripped := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: mcs.DerivedName(key) + "-cls1-ipv4-0"}, AddressType: discoveryv1.AddressTypeIPv4,
	}
	ofKubernetes := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: mcs.DerivedName(key) + "-x7kqp"}, AddressType: discoveryv1.AddressTypeIPv4,
	}
	named := func(name string) *corev1.Service { return controllertest.Service(mcs.Key{Namespace: "n", Name: name}) }
	owned := controllertest.Service(mcs.Key{Namespace: "n", Name: "imported-x"})
	owned.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: key.Name}}
	labelled := controllertest.Service(mcs.Key{Namespace: "n", Name: "imported-x"})
	labelled.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: key.Name}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "imported-x", Labels: map[string]string{
		plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: key.Name, discoveryv1.LabelServiceName: "imported-x",
	}}}
	tests := []struct {
		name   string
		mapper func(context.Context, client.Object) []reconcile.Request
		obj    client.Object
		want   []reconcile.Request
	}{
		{"imported slice", m.mapImportedSlice, slice, []reconcile.Request{kube.RequestFor(key)}},
		{"slice of a Service of this cluster", m.mapImportedSlice, controllertest.EndpointSlice(key, nil), nil},
		{"derived Service", m.mapDerivedService, owned, []reconcile.Request{kube.RequestFor(key)}},
		{"derived Service without an owner yet", m.mapDerivedService, labelled, []reconcile.Request{kube.RequestFor(key)}},
		{"derived Service without any mark", m.mapDerivedService, named(mcs.DerivedName(key)), []reconcile.Request{kube.RequestFor(key)}},
		{"Service that prevents an import", m.mapDerivedService, named(mcs.DerivedName(blocked)), []reconcile.Request{kube.RequestFor(blocked)}},
		{"Service with such a name", m.mapDerivedService, named("imported-0123456789"), nil},
		{"imported slice without any mark", m.mapImportedSlice, stripped, []reconcile.Request{kube.RequestFor(key)}},
		{"slice that Kubernetes made for the derived Service", m.mapImportedSlice, ofKubernetes, nil},
		{"Service of a user", m.mapDerivedService, controllertest.Service(key), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.mapper(t.Context(), tt.obj)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
