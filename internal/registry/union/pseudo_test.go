package union

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestPseudoClusterBelongsToItsRegistry: a member of the clusterset that joins under the ID of the
// pseudo-cluster can neither replace, add nor end its exports, whatever its records say about their
// age.
func TestPseudoClusterBelongsToItsRegistry(t *testing.T) {
	for _, tt := range []struct {
		name      string
		claimed   registry.View
		mapped    registry.View
		wantPorts []int32
		unknown   bool
		unseen    bool
	}{
		{name: "both have an export", claimed: exports(export("cloud-map", 666)), mapped: exports(export("cloud-map", 80)), wantPorts: []int32{80}},
		{name: "only the member has one", claimed: exports(export("cloud-map", 666))},
		{name: "the service was not read", claimed: exports(export("cloud-map", 666)), mapped: registrytest.With(registry.View{}, registry.Unknown, "cloud-map"), unknown: true},
		{name: "the mapping was not read", mapped: registrytest.With(registry.View{}, registry.Unseen, "cloud-map"), unseen: true},
		{name: "the member has one and the mapping was not read", claimed: exports(export("cloud-map", 666)), mapped: registrytest.With(registry.View{}, registry.Unseen, "cloud-map"), unseen: true},
		{name: "the member is unknown", claimed: registrytest.With(registry.View{}, registry.Unknown, "cloud-map")},
		{name: "other clusters", claimed: exports(export("cls2", 2)), mapped: exports(export("cloud-map", 80)), wantPorts: []int32{2, 80}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first, mapped := newFake(), newFake()
			cfg := testConfig(time.Hour)
			cfg.PseudoClusters = map[string]string{"mapped": "cloud-map"}
			reg := New(cfg, Source{"first", first}, Source{"mapped", mapped})
			first.set([]registry.Member{member("cls2", 0, 9), member("cloud-map", 0, 9)}, map[mcs.Key]registry.View{web: tt.claimed})
			tt.mapped.Mapped = &registry.MappedService{Cluster: "cloud-map"}
			mapped.set([]registry.Member{{ClusterID: "cloud-map", Mapped: true}}, map[mcs.Key]registry.View{web: tt.mapped})
			view, err := reg.Lookup(t.Context(), web, "cloud-map")
			if err != nil {
				t.Fatal(err)
			}
			if view.Mapped != tt.mapped.Mapped {
				t.Errorf("the mapped service is %+v", view.Mapped)
			}
			var ports []int32
			for _, e := range view.Exports() {
				ports = append(ports, e.Ports[0].Port)
			}
			slices.Sort(ports)
			if !slices.Equal(ports, tt.wantPorts) || (len(view.In(registry.Unknown)) > 0) != tt.unknown || (len(view.In(registry.Unseen)) > 0) != tt.unseen {
				t.Errorf("ports %v, unknown %v, unseen %v; want ports %v", ports, view.In(registry.Unknown), view.In(registry.Unseen), tt.wantPorts)
			}
			members, err := reg.Members(t.Context())
			if err != nil || len(members) != 2 {
				t.Fatalf("members %+v, %v", members, err)
			}
			i := slices.IndexFunc(members, func(m registry.Member) bool { return m.ClusterID == "cloud-map" })
			if m := members[i]; !m.Mapped || len(m.Problems) != 1 || !strings.Contains(m.Problems[0], "registry first has another cluster with this ID") {
				t.Errorf("the pseudo-cluster is %+v, want the problem with the duplicate", m)
			}
		})
	}
}

// TestForgetPseudoCluster: without its registry, the pseudo-cluster is unseen in its imports, until
// an administrator forgets it.
func TestForgetPseudoCluster(t *testing.T) {
	hub := memory.NewHub()
	reg := New(testConfig(time.Hour), Source{"first", hub.Registry(self)}, Source{"other", hub.Reader(self)})
	l := runListener(t, reg)
	unseen := func(want ...string) func(registry.View, error) bool {
		return func(registry.View, error) bool {
			view, err := reg.Lookup(t.Context(), web, "cloud-map")
			return err == nil && slices.Equal(view.In(registry.Unseen), want)
		}
	}
	l.await(web, "the pseudo-cluster is unseen", unseen("cloud-map"))
	reg.Forget("cloud-map")
	l.await(web, "it is forgotten", unseen())
}
