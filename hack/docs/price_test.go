package main

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

// TestModels compares the constants of package cost, which imports neither, with the packages
// legacy and mapped.
func TestModels(t *testing.T) {
	reads := 0.
	for operation, n := range legacy.RequestsPerMinute(1, 0) {
		if cost.IsDiscovery(operation) {
			reads += n
		}
	}
	if reads != cost.LegacyReads {
		t.Errorf("%v requests for a service of the legacy controller, want %v", reads, cost.LegacyReads)
	}
	if n := mapped.RequestsPerMinute(servicesfile.MaxServices, 1)["DiscoverInstances"]; n != cost.MappedReads {
		t.Errorf("%v requests for mapped services, want %v", n, cost.MappedReads)
	}
	if n := mapped.RevisionsPerMinute(1); n != cost.MappedRevisions {
		t.Errorf("%v requests for the revision of a mapped service, want %v", n, cost.MappedRevisions)
	}
}
