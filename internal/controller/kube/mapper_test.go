package kube_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	copied := controllertest.EndpointSlice(exported, nil)
	copied.Labels[plan.LabelManagedBy] = plan.ManagedBy
	tests := []struct {
		name   string
		mapper func(context.Context, client.Object) []reconcile.Request
		obj    client.Object
		want   []reconcile.Request
	}{
		{"exported Service", m.MapService, controllertest.Service(exported), []reconcile.Request{kube.RequestFor(exported)}},
		{"other Service", m.MapService, controllertest.Service(other), nil},
		{"slice of an exported Service", m.MapSlice, controllertest.EndpointSlice(exported, nil), []reconcile.Request{kube.RequestFor(exported)}},
		{"slice of an exported Service with our label, copied with a manifest", m.MapSlice, copied, []reconcile.Request{kube.RequestFor(exported)}},
		{"slice of another Service", m.MapSlice, controllertest.EndpointSlice(other, nil), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.mapper(t.Context(), tt.obj)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
