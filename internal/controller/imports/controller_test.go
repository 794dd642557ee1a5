package imports

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestImportedObjectsMapToTheirImport(t *testing.T) {
	key := mcs.Key{Namespace: "n", Name: "web"}
	owned := controllertest.Service(mcs.Key{Namespace: "n", Name: "imported-x"})
	owned.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ServiceImport", Name: key.Name}}
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
		{"imported slice", mapImportedSlice, slice, []reconcile.Request{kube.RequestFor(key)}},
		{"slice of a Service of this cluster", mapImportedSlice, controllertest.EndpointSlice(key, nil), nil},
		{"derived Service", mapDerivedService, owned, []reconcile.Request{kube.RequestFor(key)}},
		{"derived Service without an owner yet", mapDerivedService, labelled, []reconcile.Request{kube.RequestFor(key)}},
		{"Service of a user", mapDerivedService, controllertest.Service(key), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.mapper(t.Context(), tt.obj)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
