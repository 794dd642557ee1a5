package awsprobe

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// TestAssumptions: each switch of cloudmap-local is of an assumption that a probe checks, and each
// probe checks one.
func TestAssumptions(t *testing.T) {
	switches, probed := map[string]bool{}, map[int]bool{}
	for _, a := range Assumptions {
		if a.Text == "" || a.Where == "" || a.Evidence == "" || a.Evidence != cloudmaplocal.Unknown && a.Source == "" || a.Switch != "" && a.Probe == 0 {
			t.Errorf("incomplete: %+v", a)
		}
		switches[a.Switch], probed[a.Probe] = true, true
	}
	known := map[string]bool{"": true}
	for _, s := range cloudmaplocal.Switches() {
		known[s.Name] = true
		if !switches[s.Name] {
			t.Errorf("no assumption has the switch %s", s.Name)
		}
	}
	for name := range switches {
		if !known[name] {
			t.Errorf("cloudmap-local has no switch %s", name)
		}
	}
	for _, p := range probes {
		if !probed[p.number] {
			t.Errorf("probe %d checks no assumption", p.number)
		}
	}
}
