package mcs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func tiersOf(texts ...string) []Tier {
	var tiers []Tier
	for _, text := range texts {
		tiers = append(tiers, Tier{Clusters: strings.Fields(text)})
	}
	return tiers
}

func TestMerged_Choose(t *testing.T) {
	web := func(cluster string, addresses ...string) Export {
		return servingPorts(cluster, mcsv1beta1.ClusterSetIP, "http:80", addresses...)
	}
	terminating := web("cls1", "10.1.0.1")
	terminating.Backends[0].Endpoints[0] = Endpoint{Address: netip.MustParseAddr("10.1.0.1"), Serving: true, Terminating: true}
	both := []Export{web("cls1", "10.1.0.1"), web("cls2", "10.2.0.1")}
	tests := []struct {
		name    string
		exports []Export
		ipv6    bool
		tiers   []Tier
		minimum int32
		reserve string
		edit    func(m *Merged)
		want    []string
		served  string // "port family tier", with - if nothing is ready
	}{
		{name: "no tiers", exports: both, want: []string{"http 10.1.0.1", "http 10.2.0.1"}},
		{
			name: "the first tier serves", exports: []Export{web("cls1", "10.1.0.1", "!10.1.0.2"), web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1", "cls1 cls2"), want: []string{"http 10.1.0.1", "http 10.1.0.2"}, served: "http IPv4 0",
		},
		{
			name: "the next tier serves", exports: []Export{web("cls1", "!10.1.0.1"), web("cls2", "10.2.0.1"), web("cls3", "10.3.0.1")},
			tiers: tiersOf("cls1", "", "cls2"), want: []string{"http 10.2.0.1"}, served: "http IPv4 2",
		},
		{
			name: "all clusters serve", exports: []Export{web("cls1", "!10.1.0.1"), web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1", "cls9"), want: []string{"http 10.1.0.1", "http 10.2.0.1"}, served: "http IPv4 2",
		},
		{
			name: "no cluster is ready", exports: []Export{web("cls1", "!10.1.0.1"), web("cls2", "!10.2.0.1")},
			tiers: tiersOf("cls1"), want: []string{"http 10.1.0.1", "http 10.2.0.1"}, served: "http IPv4 1-",
		},
		{
			name: "an endpoint that serves while it terminates", exports: []Export{terminating, web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1"), want: []string{"http 10.1.0.1"}, served: "http IPv4 0",
		},
		{
			name: "each port has its tier", exports: []Export{web("cls1", "10.1.0.1"), servingPorts("cls2", mcsv1beta1.ClusterSetIP, "http:80 extra:81", "10.2.0.1")},
			tiers: tiersOf("cls1", "cls2"), want: []string{"extra 10.2.0.1", "http 10.1.0.1"}, served: "http IPv4 0, extra IPv4 1",
		},
		{
			name: "each family has its tier", exports: []Export{web("cls1", "10.1.0.1"), web("cls2", "10.2.0.1", "fd00:2::1")}, ipv6: true,
			tiers: tiersOf("cls1"), want: []string{"http 10.1.0.1", "http fd00:2::1"}, served: "http IPv4 0, http IPv6 1",
		},
		{
			name: "less than the minimum", exports: []Export{web("cls1", "10.1.0.1", "!10.1.0.2", "!10.1.0.3"), web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1", "cls1 cls2"), minimum: 50, want: []string{"http 10.1.0.1", "http 10.1.0.2", "http 10.1.0.3", "http 10.2.0.1"}, served: "http IPv4 1",
		},
		{
			name: "exactly the minimum", exports: []Export{web("cls1", "10.1.0.1", "!10.1.0.2"), web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1"), minimum: 50, want: []string{"http 10.1.0.1", "http 10.1.0.2"}, served: "http IPv4 0",
		},
		{
			name: "a cluster in reserve leaves its tier", exports: both,
			tiers: tiersOf("cls1", "cls2"), reserve: "cls1", want: []string{"http 10.2.0.1"}, served: "http IPv4 1",
		},
		{
			name: "a cluster in reserve has the only ready endpoint", exports: []Export{web("cls1", "!10.1.0.1"), web("cls2", "10.2.0.1")},
			tiers: tiersOf("cls1", "cls2"), reserve: "cls2", want: []string{"http 10.2.0.1"}, served: "http IPv4 1",
		},
		{
			name: "internalTrafficPolicy Local", exports: both, tiers: tiersOf("cls1"),
			edit: func(m *Merged) { m.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal },
			want: []string{"http 10.1.0.1", "http 10.2.0.1"},
		},
		{
			name: "headless", exports: both, tiers: tiersOf("cls1"), edit: func(m *Merged) { m.Type = mcsv1beta1.Headless },
			want: []string{"http 10.1.0.1", "http 10.2.0.1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := Merge(tt.exports)
			m.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
			if tt.ipv6 {
				m.IPFamilies = append(m.IPFamilies, corev1.IPv6Protocol)
			}
			if tt.edit != nil {
				tt.edit(&m)
			}
			choice := m.Choose(Candidates{Exports: tt.exports, Tiers: tt.tiers, MinimumReady: tt.minimum, Reserve: strings.Fields(tt.reserve)})
			if got := inUse(m, choice.Exports); !slices.Equal(got, tt.want) {
				t.Errorf("in use are %v, want %v", got, tt.want)
			}
			var served []string
			for _, s := range choice.Served {
				text := fmt.Sprintf("%s %s %d", s.Port, s.Family, s.Tier)
				if !s.Ready {
					text += "-"
				}
				served = append(served, text)
			}
			if got := strings.Join(served, ", "); got != tt.served {
				t.Errorf("served %q, want %q", got, tt.served)
			}
		})
	}
}

// For all exports, tiers, drains and clusters in reserve: the result does not depend on the order
// of the exports, nothing appears, a port and family that had a ready endpoint outside of forced
// drains has one, each use is served by its tier alone, and without a reason nothing changes.
func TestMerged_ChooseProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		c := randomCandidates(random)
		m := Merge(c.Exports)
		m.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		choice := m.Choose(c)

		shuffled := c
		shuffled.Exports = slices.Clone(c.Exports)
		random.Shuffle(len(c.Exports), func(i, j int) { shuffled.Exports[i], shuffled.Exports[j] = shuffled.Exports[j], shuffled.Exports[i] })
		if other := m.Choose(shuffled); !slices.Equal(inUse(m, choice.Exports), inUse(m, other.Exports)) || !slices.Equal(choice.Served, other.Served) {
			t.Fatalf("the order of the exports matters: %+v", c)
		}
		before := inUse(m, c.Exports)
		for _, u := range inUse(m, choice.Exports) {
			if !slices.Contains(before, u) {
				t.Fatalf("%q appeared: %+v", u, c)
			}
		}
		has := m.servedUses(choice.Exports)
		unforced := slices.DeleteFunc(slices.Clone(c.Exports), func(e Export) bool { return c.Drains[e.Cluster] == DrainForced })
		for u := range m.servedUses(unforced) {
			if !has[u] {
				t.Fatalf("nothing serves %+v any more: %+v", u, c)
			}
		}
		for _, s := range choice.Served {
			if s.Tier == len(c.Tiers) {
				continue
			}
			u := use{port: s.Port, ipv4: s.Family == corev1.IPv4Protocol}
			for _, e := range choice.Exports {
				if m.tallies(e)[u].known > 0 && !slices.Contains(c.Tiers[s.Tier].Clusters, e.Cluster) {
					t.Fatalf("cluster %s serves %+v, which tier %d serves: %+v", e.Cluster, u, s.Tier, c)
				}
			}
		}
		if len(c.Tiers)+len(c.Reserve)+len(c.Drains) == 0 {
			if d := cmp.Diff(c.Exports, choice.Exports, cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Fatalf("something changed without a reason: %s", d)
			}
		}
	}
}

func randomCandidates(random *rand.Rand) Candidates {
	ports := []string{"http:80", "http:80 extra:81", "web:80", "http:8080", "extra:81 http:80 more:82"}
	c := Candidates{MinimumReady: int32(random.IntN(3) * 40), Drains: map[string]Drain{}}
	n := 1 + random.IntN(4)
	for i := range n {
		var addresses []string
		for j := range random.IntN(4) {
			address := []string{"10.%d.0.%d", "!10.%d.1.%d", "fd00:%d::%d", "!fd00:%d::1:%d"}[random.IntN(4)]
			addresses = append(addresses, fmt.Sprintf(address, i, j))
		}
		c.Exports = append(c.Exports, servingPorts(fmt.Sprint("cls", i), mcsv1beta1.ClusterSetIP, ports[random.IntN(len(ports))], addresses...))
		if random.IntN(4) == 0 {
			c.Reserve = append(c.Reserve, c.Exports[i].Cluster)
		}
		if random.IntN(3) == 0 {
			c.Drains[c.Exports[i].Cluster] = []Drain{"30%", "90%", DrainAll, DrainForced}[random.IntN(4)]
		}
	}
	for range random.IntN(4) {
		var tier Tier
		for i := range n {
			if random.IntN(2) == 0 {
				tier.Clusters = append(tier.Clusters, fmt.Sprint("cls", i))
			}
		}
		c.Tiers = append(c.Tiers, tier)
	}
	return c
}

func TestImportSelection(t *testing.T) {
	selectors, _ := PreferSameRegion.Selectors()
	m := Merged{Type: mcsv1beta1.ClusterSetIP, ClusterSelectors: selectors}
	tiers := tiersOf("cls1", "cls1 cls2")
	served := func(port string, tier int, ready bool) ServedUse {
		return ServedUse{Port: port, Family: corev1.IPv4Protocol, Tier: tier, Ready: ready}
	}
	tests := []struct {
		name    string
		m       Merged
		minimum int32
		served  []ServedUse
		want    string
	}{
		{"no selectors", Merged{}, 0, nil, "False NoSelectors: the exports do not prefer any cluster"},
		{"internalTrafficPolicy Local", m, 0, nil, "False LocalTraffic: internalTrafficPolicy is Local: only endpoints of this cluster are eligible, so no cluster is preferred"},
		{"the first selector", m, 0, []ServedUse{served("http", 0, true), served("extra", 0, true)}, "True FirstSelector: every port: selector 1 (cls1)"},
		{
			"a later selector for one port", m, 0, []ServedUse{served("http", 0, true), served("extra", 1, true)},
			"True LaterSelector: http IPv4: selector 1 (cls1); extra IPv4: selector 2 (cls1, cls2), because selector 1 (cls1) has no ready endpoint",
		},
		{"all clusters", m, 0, []ServedUse{served("", 2, true)}, "True AllClusters: every port: all clusters, because each of 2 selectors has no ready endpoint"},
		{"a minimum", m, 20, []ServedUse{served("", 2, true)}, "True AllClusters: every port: all clusters, because each of 2 selectors has less than 20% of its endpoints ready"},
		{"nothing is ready", m, 0, []ServedUse{served("", 2, false)}, "True AllClusters: every port: no cluster has a ready endpoint"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.m.MinimumReady = tt.minimum
			c := ImportSelection(tt.m, tiers, tt.served)
			if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}
