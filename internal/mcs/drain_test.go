package mcs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestParseDrain(t *testing.T) {
	tests := map[string]Drain{"": "", "0%": "", "30%": "30%", "030%": "30%", "100%": DrainAll, "force": DrainForced}
	for text, want := range tests {
		if got, err := ParseDrain(text); got != want || err != nil {
			t.Errorf("ParseDrain(%q) is %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"true", "30", "101%", "-1%", "Force", "force ", "30%,force", strings.Repeat("9", 1000) + "%"} {
		if got, err := ParseDrain(text); got != "" || err == nil || len(err.Error()) > 200 {
			t.Errorf("ParseDrain(%q) is %q, %v, want a short error", abbreviate(text), got, err)
		}
	}
	for _, d := range []struct{ a, b, want Drain }{{"", "30%", "30%"}, {"30%", "5%", "30%"}, {DrainAll, DrainForced, DrainForced}, {DrainForced, DrainAll, DrainForced}, {"", "", ""}} {
		if got := d.a.Max(d.b); got != d.want {
			t.Errorf("%q.Max(%q) is %q, want %q", d.a, d.b, got, d.want)
		}
	}
}

// A cluster can be drained by its own record only, and an importer uses its own endpoints always.
func TestDrains(t *testing.T) {
	exports := []Export{{Cluster: "cls1", Drain: "30%"}, {Cluster: "cls2"}, {Cluster: "cls3", Drain: "20%"}, {Cluster: "cls4"}}
	properties := map[string]Properties{
		"cls2": {PropertyDrain: "force"}, "cls3": {PropertyDrain: "40%"}, "cls4": {PropertyDrain: "yes"}, "cls9": {PropertyDrain: "100%"},
	}
	want := map[string]Drain{"cls1": "30%", "cls2": "force", "cls3": "40%"}
	if got := Drains(exports, properties, "cls4"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	delete(want, "cls2")
	if got := Drains(exports, properties, "cls2"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in cls2: %v, want %v", got, want)
	}
}

func TestMerged_ChooseDrained(t *testing.T) {
	web := func(cluster string, addresses ...string) Export {
		return servingPorts(cluster, mcsv1beta1.ClusterSetIP, "http:80", addresses...)
	}
	four := []string{"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"}
	both := []Export{web("cls1", "10.1.0.1"), web("cls2", "10.2.0.1")}
	tests := []struct {
		name              string
		exports           []Export
		drains            map[string]Drain
		reserve, excluded string
		tiers             []Tier
		headless          bool
		want              []string
		count             int // instead of want
		condition         string
	}{
		{name: "none", exports: both, want: []string{"http 10.1.0.1", "http 10.2.0.1"}, condition: "False NoneDrained: no exporting cluster is drained"},
		{
			name: "in full", exports: both, drains: map[string]Drain{"cls1": DrainAll}, want: []string{"http 10.2.0.1"},
			condition: "True Drained: drained: cluster cls1 (endpoints not used)",
		},
		{
			name: "the last endpoints", exports: []Export{web("cls1", "10.1.0.1"), web("cls2", "!10.2.0.1")}, drains: map[string]Drain{"cls1": DrainAll},
			want: []string{"http 10.1.0.1", "http 10.2.0.1"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "the last endpoints of a port", exports: []Export{servingPorts("cls1", mcsv1beta1.ClusterSetIP, "http:80 extra:81", "10.1.0.1"), web("cls2", "10.2.0.1")},
			drains: map[string]Drain{"cls1": DrainAll}, want: []string{"extra 10.1.0.1", "http 10.2.0.1"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "forced", exports: []Export{web("cls1", "10.1.0.1"), web("cls2", "!10.2.0.1")}, drains: map[string]Drain{"cls1": DrainForced},
			want: []string{"http 10.2.0.1"}, condition: "True Drained: drained: cluster cls1 (endpoints not used)",
		},
		{
			name: "all clusters", exports: both, drains: map[string]Drain{"cls1": DrainAll, "cls2": DrainAll}, want: []string{"http 10.1.0.1", "http 10.2.0.1"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use), cls2 (its last endpoints stay in use): no other cluster has " +
				"ready endpoints for the service, one of its ports or one of its IP families",
		},
		{
			name: "one in full, one in part", exports: []Export{web("cls1", "10.1.0.1"), web("cls2", "10.2.0.1", "10.2.0.2")},
			drains: map[string]Drain{"cls1": DrainAll, "cls2": "50%"}, want: []string{"http 10.2.0.1", "http 10.2.0.2"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (endpoints not used), cls2 (its last endpoints stay in use): no other cluster has " +
				"ready endpoints for the service, one of its ports or one of its IP families",
		},
		{
			name: "three quarters", exports: []Export{web("cls1", four...), web("cls2", "10.2.0.1")}, drains: map[string]Drain{"cls1": "75%"}, count: 2,
			condition: "True Drained: drained: cluster cls1 (75% of its endpoints not used)",
		},
		{
			name: "nearly all keeps one endpoint", exports: []Export{web("cls1", four...), web("cls2", "10.2.0.1")}, drains: map[string]Drain{"cls1": "99%"}, count: 2,
			condition: "True Drained: drained: cluster cls1 (99% of its endpoints not used)",
		},
		{
			name: "in part, an IP family not ready", drains: map[string]Drain{"cls1": "50%"}, count: 7,
			exports: []Export{
				servingPorts("cls1", mcsv1beta1.ClusterSetIP, "http:80 extra:81", "10.1.0.1", "10.1.0.2", "!fd00:1::1"), web("cls2", "10.2.0.1", "fd00:2::1"),
			},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "in part without another cluster", exports: []Export{web("cls1", four...)}, drains: map[string]Drain{"cls1": "75%"}, count: 4,
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "a drained cluster is used before one that cannot be reached", exports: both, drains: map[string]Drain{"cls1": DrainAll}, reserve: "cls2",
			want: []string{"http 10.1.0.1"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "a cluster with a forced drain is used after one that cannot be reached", exports: both, drains: map[string]Drain{"cls1": DrainForced}, reserve: "cls2",
			want: []string{"http 10.2.0.1"}, condition: "True Drained: drained: cluster cls1 (endpoints not used)",
		},
		{
			name: "a drained cluster is used before one that is excluded", exports: both, drains: map[string]Drain{"cls1": DrainAll}, excluded: "cls2",
			want: []string{"http 10.1.0.1"},
			condition: "True LastEndpointsKept: drained: cluster cls1 (its last endpoints stay in use): no other cluster has ready endpoints for the service, " +
				"one of its ports or one of its IP families",
		},
		{
			name: "the next tier serves", exports: both, drains: map[string]Drain{"cls1": DrainAll}, tiers: tiersOf("cls1", "cls2"),
			want: []string{"http 10.2.0.1"}, condition: "True Drained: drained: cluster cls1 (endpoints not used)",
		},
		{
			name: "headless", exports: both, drains: map[string]Drain{"cls1": DrainAll}, headless: true,
			want: []string{"http 10.2.0.1"}, condition: "True Drained: drained: cluster cls1 (endpoints not used)",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exports := slices.Clone(tt.exports)
			if tt.headless {
				for i := range exports {
					exports[i].Type = mcsv1beta1.Headless
				}
			}
			m := Merge(exports)
			m.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
			choice := m.Choose(Candidates{
				Exports: exports, Drains: tt.drains, Reserve: strings.Fields(tt.reserve), Excluded: strings.Fields(tt.excluded), Tiers: tt.tiers,
			})
			got := inUse(m, choice.Exports)
			if tt.count == 0 && !slices.Equal(got, tt.want) || tt.count != 0 && len(got) != tt.count {
				t.Errorf("in use are %v, want %v %d", got, tt.want, tt.count)
			}
			c := ImportDrained(choice.Drained)
			if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != tt.condition {
				t.Errorf("%s\nwant %s", got, tt.condition)
			}
		})
	}
}

// Half of the addresses of a headless service are drained, whatever their ports are, and all names
// of an address together.
func TestMerged_ChooseDrainedHeadless(t *testing.T) {
	named := func(address, hostname string) Endpoint {
		ep := readyEndpoint(address)
		ep.Hostname = hostname
		return ep
	}
	drained := webExport("cls1", 0, headless, withBackends())
	for i := range 4 {
		address := fmt.Sprint("10.1.0.", i)
		drained.Backends = append(drained.Backends, Backends{
			Ports:     []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(8080 + i)}},
			Endpoints: []Endpoint{named(address, "a"), named(address, "b"), readyEndpoint(fmt.Sprint("fd00::", i+1))},
		})
	}
	exports := []Export{drained, webExport("cls2", 1, headless)}
	got := Merge(exports).Choose(Candidates{Exports: exports, Drains: map[string]Drain{"cls1": "50%"}}).Exports[0]
	names, six := map[netip.Addr][]string{}, 0
	for _, b := range got.Backends {
		for _, ep := range b.Endpoints {
			if ep.Address.Is6() {
				six++ // no other cluster has one
				continue
			}
			names[ep.Address] = append(names[ep.Address], ep.Hostname)
		}
	}
	if len(names) != 2 || six != 4 {
		t.Errorf("of 4 addresses of each family %d IPv4 and %d IPv6 ones stay, want 2 and 4", len(names), six)
	}
	for address, hostnames := range names {
		if !slices.Equal(sorted(hostnames), []string{"a", "b"}) {
			t.Errorf("of %s the names %v stay, want both", address, hostnames)
		}
	}
}

// For all exports and drains: no endpoint is listed twice for a port, and a partial drain removes
// ready endpoints only.
func TestMerged_ChooseDrainedListsEndpointsOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	count := func(e Export) map[string]int {
		counts := map[string]int{}
		for _, b := range e.Backends {
			for _, ep := range b.Endpoints {
				for _, p := range b.Ports {
					counts[fmt.Sprint(p.Name, " ", ep.Address, " ", ep.Ready)]++
				}
			}
		}
		return counts
	}
	for range 3000 {
		c := randomCandidates(random)
		c.Tiers, c.Reserve = nil, nil
		if random.IntN(3) == 0 {
			for i := range c.Exports {
				c.Exports[i].Type = mcsv1beta1.Headless
			}
		}
		m := Merge(c.Exports)
		for i, e := range m.Choose(c).Exports {
			got, names := count(e), m.portNames(e)
			for endpoint, n := range got {
				if n != 1 {
					t.Fatalf("cluster %s lists %q %d times: %+v", e.Cluster, endpoint, n, c)
				}
			}
			for endpoint := range count(c.Exports[i]) {
				port, _, _ := strings.Cut(endpoint, " ")
				_, used := names[port]
				if c.Drains[e.Cluster].Percent() < 100 && used && strings.HasSuffix(endpoint, "false") && got[endpoint] == 0 {
					t.Fatalf("cluster %s does not list %q: %+v", e.Cluster, endpoint, c)
				}
			}
		}
	}
}

// A larger share contains the smaller ones, all importers choose the same endpoints, and each share
// has its part of the ready endpoints.
func TestKeepShare(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		var endpoints []Endpoint
		ready := 0
		for i := range random.IntN(30) {
			ep := Endpoint{Address: netip.AddrFrom4([4]byte{10, 1, byte(random.IntN(3)), byte(i)}), Ready: random.IntN(3) > 0}
			endpoints = append(endpoints, ep)
			if ep.Ready {
				ready++
			}
		}
		before := -1
		var smaller []Endpoint
		for _, percent := range []int32{1, 25, 50, 75, 99, 100} {
			kept := keepShare(endpoints, percent)
			shuffled := slices.Clone(endpoints)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			n := 0
			for _, ep := range kept {
				if ep.Ready {
					n++
				}
				if !slices.Contains(keepShare(shuffled, percent), ep) {
					t.Fatalf("the order of the endpoints decides about %v", ep)
				}
			}
			if want := (ready*int(percent) + 99) / 100; n != want || n < before {
				t.Fatalf("%d%% of %d ready endpoints are %d, want %d", percent, ready, n, want)
			}
			for _, ep := range smaller {
				if !slices.Contains(kept, ep) {
					t.Fatalf("%v is in a smaller share than %d%%, and not in that", ep, percent)
				}
			}
			before, smaller = n, kept
		}
	}
}
