package registry_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

func TestView(t *testing.T) {
	view := registrytest.ViewOf(mcs.Export{Cluster: "cls4"}, mcs.Export{Cluster: "cls3"}, mcs.Export{Cluster: "cls2"})
	view = registrytest.With(registrytest.With(view, registry.Unknown, "cls6", "cls5"), registry.Ignored, "cls7")
	view = registrytest.WithLiveness(registrytest.WithLiveness(view, registry.Stale, "cls4", "cls2"), registry.Undecided, "cls3")
	// Of the imported clusters only those are unseen that have no other state.
	view.SetUnseen([]string{"cls9", "cls8", "cls5", "cls4", "known"}, func(id string) bool { return id == "known" })
	var exporters []string
	for _, exp := range view.Exports() {
		exporters = append(exporters, exp.Cluster)
	}
	for name, tt := range map[string]struct{ got, want []string }{
		"exports":      {exporters, []string{"cls2", "cls3", "cls4"}},
		"in one state": {view.In(registry.Unknown), []string{"cls5", "cls6"}},
		"in several":   {view.In(registry.Unseen, registry.Exports), []string{"cls2", "cls3", "cls4", "cls8", "cls9"}},
		"may export":   {view.MayExport(), []string{"cls5", "cls6", "cls7", "cls8", "cls9"}},
		"stale":        {view.WithLiveness(registry.Stale), []string{"cls2", "cls4"}},
		"undecided":    {view.WithLiveness(registry.Undecided), []string{"cls3"}},
		"none":         {view.In(registry.None), nil},
	} {
		if d := cmp.Diff(tt.want, tt.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if !view.Has(registry.Ignored) || view.Has(registry.None) {
		t.Errorf("has %v, and %v", view.Has(registry.Ignored), view.Has(registry.None))
	}
}

// A view without clusters has none of anything.
func TestView_Empty(t *testing.T) {
	var view registry.View
	if got := fmt.Sprint(view.Exports() == nil, view.MayExport() == nil, view.Has(registry.Exports), view.Clusters["cls2"].State); got != "true true false None" {
		t.Error(got)
	}
}

// Properties that are not known are left out, and those of a cluster without any are empty.
func TestView_PropertiesWith(t *testing.T) {
	view := registrytest.ViewOf(mcs.Export{Cluster: "cls2"})
	view.Set("cls3", registry.ClusterView{State: registry.Unknown, Properties: mcs.Properties{}})
	view.Set("cls4", registry.ClusterView{State: registry.Exports, Export: &mcs.Export{}, Properties: mcs.Properties{"a": "4"}})
	want := map[string]mcs.Properties{"cls1": {"a": "1"}, "cls3": {}, "cls4": {"a": "4"}}
	if d := cmp.Diff(want, view.PropertiesWith("cls1", mcs.Properties{"a": "1"})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
