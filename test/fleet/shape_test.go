package fleet

import (
	"net/netip"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestShape: ten clusters have the same services, a tenth of them is imported, and no address is
// there twice.
func TestShape(t *testing.T) {
	for _, tt := range []struct{ members, exports, services int }{{9, 99, 11}, {100, 1000, 100}, {300, 3000, 300}, {999, 9983, 1000}} {
		exports, services := imported(tt.members)
		if exports != tt.exports || services != tt.services {
			t.Errorf("of %d members %d exports of %d services are imported, want %d of %d", tt.members, exports, services, tt.exports, tt.services)
		}
	}
	addresses := map[netip.Addr]bool{}
	keys := map[mcs.Key]int{}
	for c := range 20 {
		for i := range ServicesPerCluster {
			exp := export(c, i, 0)
			keys[exp.Key]++
			for _, e := range exp.Backends[0].Endpoints {
				if addresses[e.Address] || isMarker(e.Address) {
					t.Fatalf("address %s is there twice, or is a marker", e.Address)
				}
				addresses[e.Address] = true
			}
		}
	}
	for key, n := range keys {
		if n != exporters {
			t.Fatalf("%s has %d exporters", key, n)
		}
	}
	if len(keys) != 2*ServicesPerCluster {
		t.Errorf("two groups have %d services", len(keys))
	}
	changed := export(998, 99, 7)
	if got := changed.Backends[0].Endpoints; len(got) != EndpointsPerService || !isMarker(marker(7)) || got[0].Address != marker(7) {
		t.Errorf("version 7 has the endpoints %v", got)
	}
	if _, problems, err := mcs.Sanitize(changed); err != nil || len(problems) > 0 {
		t.Errorf("the export has problems: %v, %v", problems, err)
	}
}
