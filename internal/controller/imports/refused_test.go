package imports

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// The endpoints of a stale cluster are withdrawn for those of other clusters. If the slices of
// these cannot be written, they do not serve.
func TestWithRefused_KeepsWhatNothingReplaces(t *testing.T) {
	dead, live, other := exportOf("dead", 80), exportOf("live", 80), exportOf("other", 80)
	live.Backends[0].Endpoints[0].Address, other.Backends[0].Endpoints[0].Address = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	rule := mcs.StaleRule{Policy: mcs.StaleWithdraw, After: time.Minute}
	slicesOf := func(exports ...mcs.Export) []*discoveryv1.EndpointSlice {
		return plan.Slices(plan.SliceInput{Key: webKey, Merged: mcs.Merge(exports), Exports: exports}).Create
	}
	for name, tt := range map[string]struct {
		exports  []mcs.Export
		refused  []string
		current  []*discoveryv1.EndpointSlice
		wantDead int
		want     string
	}{
		"nothing is refused":                    {exports: []mcs.Export{dead, live}, want: "endpoints withdrawn"},
		"the new slice is refused":              {exports: []mcs.Export{dead, live}, refused: []string{"live"}, current: slicesOf(dead), wantDead: 1, want: "endpoints kept"},
		"an update is refused":                  {exports: []mcs.Export{dead, live}, refused: []string{"live"}, current: slicesOf(dead, live), want: "endpoints withdrawn"},
		"another cluster serves":                {exports: []mcs.Export{dead, live, other}, refused: []string{"live"}, current: slicesOf(dead, other), want: "endpoints withdrawn"},
		"the slice of the stale one is refused": {exports: []mcs.Export{dead, live}, refused: []string{"dead"}, current: slicesOf(dead, live), want: "endpoints withdrawn"},
	} {
		t.Run(name, func(t *testing.T) {
			f := importFacts{
				key: webKey, namespace: true, synced: true, staleRule: rule, imp: importShowing("dead"),
				view: registrytest.WithLiveness(registrytest.ViewOf(tt.exports...), registry.Stale, "dead"),
			}
			d := decideImport(f)
			if len(tt.refused) > 0 {
				d = d.withRefused(f, tt.refused, tt.current)
			}
			got := 0
			if i := slices.IndexFunc(d.endpoints, func(e mcs.Export) bool { return e.Cluster == "dead" }); i >= 0 {
				got = d.endpoints[i].EndpointCount()
			}
			if got != tt.wantDead || !strings.Contains(d.staleness.Message, tt.want) {
				t.Errorf("%d endpoints of the stale cluster, condition %q; want %d and %q", got, d.staleness.Message, tt.wantDead, tt.want)
			}
			for _, cluster := range tt.refused {
				if !slices.Contains(d.untouched, cluster) {
					t.Errorf("the slices of %s are planned again", cluster)
				}
			}
		})
	}
}
