package kube_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestServiceMapperIgnoresServicesThatAreNotExported(t *testing.T) {
	exported, other := mcs.Key{Namespace: "n", Name: "exported"}, mcs.Key{Namespace: "n", Name: "other"}
	m := kube.ServiceMapper{
		Client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(controllertest.ServiceExport(exported)).Build(),
	}
	imported := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "imported-x", Labels: map[string]string{
		plan.LabelManagedBy: plan.ManagedBy, discoveryv1.LabelServiceName: "exported",
	}}}
	tests := []struct {
		name   string
		mapper func(context.Context, client.Object) []reconcile.Request
		obj    client.Object
		want   []reconcile.Request
	}{
		{"exported Service", m.MapService, controllertest.Service(exported), []reconcile.Request{kube.RequestFor(exported)}},
		{"other Service", m.MapService, controllertest.Service(other), nil},
		{"slice of an exported Service", m.MapSlice, controllertest.EndpointSlice(exported, nil), []reconcile.Request{kube.RequestFor(exported)}},
		{"slice of another Service", m.MapSlice, controllertest.EndpointSlice(other, nil), nil},
		{"imported slice", m.MapSlice, imported, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.mapper(t.Context(), tt.obj)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
