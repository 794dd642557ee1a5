package imports

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// A slice has an endpoint that another cluster's replaces, and one that has ended. The ended one
// leaves whatever the API server answers to the slice of the other cluster; the replaced one leaves
// if that is written, or will not be.
func TestSliceSet_EndedEndpointsLeave(t *testing.T) {
	resource := discoveryv1.Resource("endpointslices")
	for name, tt := range map[string]struct {
		answer error
		want   []string
	}{
		"it is created":              {nil, nil},
		"it is refused":              {apierrors.NewForbidden(resource, "x", errors.New("exceeded quota")), nil},
		"another slice has its name": {apierrors.NewAlreadyExists(resource, "x"), nil},
		"no answer":                  {apierrors.NewServerTimeout(resource, "create", 1), []string{"10.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			replaced, replacing := exportOf("cls1", 80), exportOf("cls2", 80)
			ended := replaced.Backends[0].Endpoints[0]
			ended.Address = ended.Address.Next().Next().Next()
			with := replaced
			with.Backends = slices.Clone(replaced.Backends)
			with.Backends[0].Endpoints = append(slices.Clone(replaced.Backends[0].Endpoints), ended)
			existing := plan.Slices(plan.SliceInput{Key: webKey, Merged: mcs.Merge([]mcs.Export{with}), Exports: []mcs.Export{with}}).Create
			created := plan.Slices(plan.SliceInput{Key: webKey, Merged: mcs.Merge([]mcs.Export{replacing}), Exports: []mcs.Export{replacing}}).Create

			funcs := interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if tt.answer != nil {
					return tt.answer
				}
				return c.Create(ctx, obj, opts...)
			}}
			c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(existing[0]).WithInterceptorFuncs(funcs).Build()
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(existing[0]), existing[0]); err != nil {
				t.Fatal(err)
			}
			r := &Controller{client: c}
			set := r.newSliceSet(importFacts{key: webKey, slices: existing}, []mcs.Export{replaced, replacing}, nil, &outcome{})
			steps := plan.SliceChanges{Create: created, Delete: existing}.Steps(existing, set.exported)
			set.write(t.Context(), steps.Removals)
			set.write(t.Context(), steps.Additions)
			set.withdraw(t.Context(), steps.Withdrawals)

			var left []string
			var list discoveryv1.EndpointSliceList
			if err := c.List(t.Context(), &list); err != nil {
				t.Fatal(err)
			}
			for _, s := range list.Items {
				if plan.SourceCluster(&s) != "cls1" {
					continue
				}
				for _, ep := range s.Endpoints {
					left = append(left, ep.Addresses...)
				}
			}
			if d := cmp.Diff(tt.want, left); d != "" {
				t.Errorf("endpoints of cls1 (-want +got):\n%s", d)
			}
		})
	}
}
