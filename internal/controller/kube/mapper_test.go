package kube_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestServiceMapperIgnoresServicesThatAreNotExported(t *testing.T) {
	key := func(name string) mcs.Key { return mcs.Key{Namespace: "n", Name: name} }
	exported, other, green, blue := key("exported"), key("other"), key("web-green"), key("web-blue")
	m := kube.ServiceMapper{Client: controllertest.NewClient(
		controllertest.ServiceExport(exported), controllertest.ServiceExportOf(key("shop"), green.Name), controllertest.ServiceExportOf(key("web"), green.Name),
		controllertest.ServiceExportOf(blue, green.Name), controllertest.ServiceExportOf(key("invalid"), "Web"),
		controllertest.ServiceExportOf(mcs.Key{Namespace: "another", Name: "web"}, green.Name),
	)}
	ofGreen := []reconcile.Request{kube.RequestFor(key("shop")), kube.RequestFor(key("web")), kube.RequestFor(blue)}
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
		{"slice of no Service", m.MapSlice, controllertest.EndpointSlice(key(""), nil), nil},
		{"Service with several names", m.MapService, controllertest.Service(green), ofGreen},
		{"slice of a Service with several names", m.MapSlice, controllertest.EndpointSlice(green, nil), ofGreen},
		{"Service with the name of a ServiceExport of another one", m.MapService, controllertest.Service(blue), nil},
		{"Service with the name of a ServiceExport that is not valid", m.MapService, controllertest.Service(key("invalid")), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.mapper(t.Context(), tt.obj)
			slices.SortFunc(got, func(a, b reconcile.Request) int { return strings.Compare(a.String(), b.String()) })
			slices.SortFunc(tt.want, func(a, b reconcile.Request) int { return strings.Compare(a.String(), b.String()) })
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
