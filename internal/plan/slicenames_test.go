package plan

import (
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestSlices_ShortNames: the slices of an import that an earlier version created keep its short
// derived name, and new ones get it, so that the import can be given back to that version.
func TestSlices_ShortNames(t *testing.T) {
	short := mcs.ShortDerivedName(key)
	earlier := func(service string) *discoveryv1.EndpointSlice {
		return edited(webSlice("cls1", 0, "10.0.0.1"), func(s *discoveryv1.EndpointSlice) {
			s.Name, s.Labels[discoveryv1.LabelServiceName] = strings.Replace(s.Name, derived, short, 1), service
		})
	}
	tests := []struct {
		name                      string
		importType                mcsv1beta1.ServiceImportType
		service                   string
		existing                  []*discoveryv1.EndpointSlice
		wantCreated, wantOfSlices string
	}{
		{"a new import", mcsv1beta1.ClusterSetIP, derived, nil, derived, derived},
		{"a Service of an earlier version", mcsv1beta1.ClusterSetIP, short, nil, short, short},
		{"a Service and slices of an earlier version", mcsv1beta1.ClusterSetIP, short, []*discoveryv1.EndpointSlice{earlier(short)}, short, short},
		{"a new Service, slices of an earlier version", mcsv1beta1.ClusterSetIP, derived, []*discoveryv1.EndpointSlice{earlier(short)}, derived, derived},
		{"a Service of the legacy controller", mcsv1beta1.ClusterSetIP, "imported-0123456789", nil, derived, "imported-0123456789"},
		{"a new headless import", mcsv1beta1.Headless, derived, nil, derived, derived + "-headless"},
		{"a headless import of an earlier version", mcsv1beta1.Headless, derived, []*discoveryv1.EndpointSlice{earlier(short + "-headless")}, short, short + "-headless"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exports := []mcs.Export{webExport("cls1", "10.0.0.1"), webExport("cls2", "10.0.0.2")}
			m := mcs.Merge(exports)
			m.Type = tt.importType
			changes := Slices(SliceInput{Key: key, Merged: m, Exports: exports, Owner: owner, Derived: tt.service, Existing: tt.existing})
			if len(changes.Create)+len(tt.existing) != len(exports) || len(changes.Delete) > 0 {
				t.Errorf("%d slices are created and %d deleted", len(changes.Create), len(changes.Delete))
			}
			for _, s := range changes.Create {
				if !strings.HasPrefix(s.Name, tt.wantCreated+"-cls") {
					t.Errorf("slice %s is created, want one of %s", s.Name, tt.wantCreated)
				}
			}
			for _, s := range append(changes.Create, changes.Update...) {
				if got := s.Labels[discoveryv1.LabelServiceName]; got != tt.wantOfSlices {
					t.Errorf("slice %s is of Service %s, want %s", s.Name, got, tt.wantOfSlices)
				}
			}
		})
	}

	// After a downgrade and an upgrade there are slices with both names.
	exports := []mcs.Export{webExport("cls1", "10.0.0.1")}
	changes := Slices(SliceInput{Key: key, Merged: mcs.Merge(exports), Exports: exports, Owner: owner, Derived: derived,
		Existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.0.0.1"), earlier(short)}})
	if len(changes.Delete) != 1 || len(changes.Create) > 0 {
		t.Errorf("of two slices with one endpoint, %d are deleted: %+v", len(changes.Delete), changes)
	}
}
