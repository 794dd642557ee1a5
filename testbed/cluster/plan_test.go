package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compare treats addresses as values.
var compare = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestNewPlan(t *testing.T) {
	plan := NewPlan(Config{Clusters: 2, Nodes: 2, DualStack: true})
	want := Cluster{
		Name:            "cls2",
		PodNetworks:     prefixes("10.12.0.0/16", "fd00:10:12::/48"),
		ServiceNetworks: prefixes("172.20.0.0/16", "fd00:172:20::/108"),
		ProxyMode:       ProxyNFTables,
		Nodes: []Node{
			{
				Name: "cls2-node1", Port: "c2n1", Zone: "ap-southeast-2a", ZoneID: "apse2-az1", Region: "ap-southeast-2",
				Addresses: prefixes("172.30.0.21/24", "fd00:172:30::21/64"), PodNetworks: prefixes("10.12.0.0/24", "fd00:10:12::/64"),
			},
			{
				Name: "cls2-node2", Port: "c2n2", Zone: "ap-southeast-2b", ZoneID: "apse2-az2", Region: "ap-southeast-2",
				Addresses: prefixes("172.30.0.22/24", "fd00:172:30::22/64"), PodNetworks: prefixes("10.12.1.0/24", "fd00:10:12:1::/64"),
			},
		},
	}
	if diff := cmp.Diff(want, plan.Clusters[1], compare); diff != "" {
		t.Errorf("cls2 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(prefixes("172.30.0.1/24", "fd00:172:30::1/64"), plan.Host, compare); diff != "" {
		t.Errorf("host (-want +got):\n%s", diff)
	}
	if got := plan.Clusters[1].APIServer(); got != "https://172.30.0.21:6443" {
		t.Errorf("API server is %s", got)
	}
	if got := plan.Clusters[0].DNSService().String(); got != "172.20.0.10" {
		t.Errorf("DNS is %s", got)
	}
}

// TestNewPlanNetworks checks the assumptions of routing for every plan.
func TestNewPlanNetworks(t *testing.T) {
	for clusters := 1; clusters <= MaxClusters; clusters++ {
		for nodes := 1; nodes <= MaxNodes; nodes++ {
			for _, dualStack := range []bool{false, true} {
				cfg := Config{Clusters: clusters, Nodes: nodes, DualStack: dualStack}
				t.Run(cfg.String(), func(t *testing.T) { checkNetworks(t, NewPlan(cfg), dualStack) })
			}
		}
	}
}

func checkNetworks(t *testing.T, plan Plan, dualStack bool) {
	seen := append([]netip.Prefix{}, plan.Host...)
	for i := range seen {
		seen[i] = netip.PrefixFrom(seen[i].Addr(), seen[i].Addr().BitLen())
	}
	families := 1
	if dualStack {
		families = 2
	}
	for _, c := range plan.Clusters {
		for _, n := range c.Nodes {
			if len(n.Addresses) != families || len(n.PodNetworks) != families {
				t.Errorf("%s has addresses %v and Pods %v", n.Name, n.Addresses, n.PodNetworks)
			}
			for k := range n.PodNetworks {
				if !c.PodNetworks[k].Contains(n.PodNetworks[k].Addr()) {
					t.Errorf("Pods %v of %s are outside of %v", n.PodNetworks[k], n.Name, c.PodNetworks[k])
				}
				if !plan.Host[k].Masked().Contains(n.Addresses[k].Addr()) {
					t.Errorf("%v of %s is not on the bridge", n.Addresses[k], n.Name)
				}
				own := netip.PrefixFrom(n.Addresses[k].Addr(), n.Addresses[k].Addr().BitLen())
				for _, p := range []netip.Prefix{own, n.PodNetworks[k]} {
					for _, other := range append(seen, c.ServiceNetworks...) {
						if p.Overlaps(other) {
							t.Errorf("%v of %s overlaps %v", p, n.Name, other)
						}
					}
					seen = append(seen, p)
				}
			}
		}
	}
}

func TestConfigValidate(t *testing.T) {
	tests := []struct {
		cfg    Config
		wantOK bool
	}{
		{Config{Clusters: 1, Nodes: 1}, true},
		{Config{Clusters: 4, Nodes: 2, DualStack: true}, true},
		{Config{Clusters: 0, Nodes: 1}, false},
		{Config{Clusters: 5, Nodes: 1}, false},
		{Config{Clusters: 1, Nodes: 0}, false},
		{Config{Clusters: 1, Nodes: 3}, false},
		{Config{Clusters: 2, Nodes: 1, Kubernetes: []string{"1.31", ""}, ProxyModes: []string{"", ProxyIPTables}}, true},
		{Config{Clusters: 1, Nodes: 1, Kubernetes: []string{"", "1.31"}}, false},
		{Config{Clusters: 1, Nodes: 1, ProxyModes: []string{"ipvs"}}, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.cfg), func(t *testing.T) {
			if err := tt.cfg.Validate(); (err == nil) != tt.wantOK {
				t.Errorf("Validate() = %v", err)
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	plan := NewPlan(Config{Clusters: 2, Nodes: 1, DualStack: true})
	c := plan.Clusters[0]
	addr := netip.MustParseAddr
	want := []Route{
		{To: netip.MustParsePrefix("10.12.0.0/24"), Via: addr("172.30.0.21")},
		{To: netip.MustParsePrefix("fd00:10:12::/64"), Via: addr("fd00:172:30::21")},
		{To: netip.MustParsePrefix("172.20.0.0/16"), Src: addr("172.30.0.11")},
		{To: netip.MustParsePrefix("fd00:172:20::/108"), Src: addr("fd00:172:30::11")},
	}
	if diff := cmp.Diff(want, plan.routes(c, c.Nodes[0]), compare); diff != "" {
		t.Errorf("routes of cls1-node1 (-want +got):\n%s", diff)
	}
	if got := len(plan.PodRoutes("")); got != 4 {
		t.Errorf("the host has %d routes to Pods, want one for each node and family: 4", got)
	}
}
