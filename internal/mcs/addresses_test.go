package mcs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// aged returns e as old as n seconds after the others of the test; a negative n is no creation
// time.
func aged(n int, e Export) Export {
	e.Created = start.Add(time.Duration(n) * time.Second)
	if n < 0 {
		e.Created = time.Time{}
	}
	return e
}

func TestOwnAddresses(t *testing.T) {
	of := func(cluster, ports string, addresses ...string) Export {
		return servingPorts(cluster, mcsv1beta1.ClusterSetIP, ports, addresses...)
	}
	withoutPorts := func(e Export) Export {
		e.Type, e.Backends[0].Ports = mcsv1beta1.Headless, nil
		return e
	}
	udp := of("cls2", "http:80", "10.0.0.1")
	udp.Backends[0].Ports[0].Protocol = corev1.ProtocolUDP
	mapped := of("cls2", "http:80", "10.0.0.1")
	mapped.Backends[0].Endpoints[0].Address = netip.AddrFrom16(netip.MustParseAddr("10.0.0.1").As16())
	twice := of("cls2", "http:80", "10.0.0.1", "10.0.0.2")
	twice.Backends = append(twice.Backends, of("", "alt:81", "10.0.0.1", "10.0.0.1").Backends...)
	for _, tc := range []struct {
		name    string
		exports []Export
		want    []string // "cluster address", in the order of the exports
		shared  []string // "cluster owner number examples"
	}{
		{
			name: "a younger export has it as not ready", exports: []Export{aged(0, of("cls1", "http:80", "10.0.0.1")), aged(1, of("cls2", "http:80", "!10.0.0.1", "10.0.0.2"))},
			want: []string{"cls1 10.0.0.1", "cls2 10.0.0.2"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name: "the older export has it as not ready", exports: []Export{aged(1, of("cls1", "http:80", "10.0.0.1")), aged(0, of("cls2", "http:80", "!10.0.0.1"))},
			want: []string{"cls2 10.0.0.1"}, shared: []string{"cls1 cls2 1 10.0.0.1"},
		},
		{
			name: "of the same second", exports: []Export{of("cls2", "http:80", "10.0.0.1"), of("cls1", "http:80", "10.0.0.1")},
			want: []string{"cls1 10.0.0.1"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name: "without a time", exports: []Export{aged(-1, of("cls1", "http:80", "10.0.0.1")), aged(9, of("cls2", "http:80", "10.0.0.1"))},
			want: []string{"cls2 10.0.0.1"}, shared: []string{"cls1 cls2 1 10.0.0.1"},
		},
		{
			name: "another port", exports: []Export{of("cls1", "http:80", "10.0.0.1"), of("cls2", "http:81", "10.0.0.1")},
			want: []string{"cls1 10.0.0.1", "cls2 10.0.0.1"},
		},
		{
			name: "another protocol", exports: []Export{of("cls1", "http:80", "10.0.0.1"), udp},
			want: []string{"cls1 10.0.0.1", "cls2 10.0.0.1"},
		},
		{
			name: "one of several ports, by another name", exports: []Export{of("cls1", "http:80", "10.0.0.1"), of("cls2", "alt:81 web:80", "10.0.0.1")},
			want: []string{"cls1 10.0.0.1"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name:    "an endpoint that is left out claims nothing",
			exports: []Export{aged(0, of("cls1", "http:80", "10.0.0.1")), aged(1, of("cls2", "http:80 alt:81", "10.0.0.1")), aged(2, of("cls3", "alt:81", "10.0.0.1"))},
			want:    []string{"cls1 10.0.0.1", "cls3 10.0.0.1"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name:    "the oldest of several owners",
			exports: []Export{aged(1, of("cls1", "http:80", "10.0.0.1")), aged(0, of("cls2", "alt:81", "10.0.0.1")), aged(2, of("cls3", "http:80 alt:81", "10.0.0.1"))},
			want:    []string{"cls1 10.0.0.1", "cls2 10.0.0.1"}, shared: []string{"cls3 cls2 1 10.0.0.1"},
		},
		{
			name: "in another form", exports: []Export{of("cls1", "http:80", "10.0.0.1"), mapped},
			want: []string{"cls1 10.0.0.1"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name: "IPv6", exports: []Export{of("cls1", "http:80", "fd00::1", "10.0.0.1"), of("cls2", "http:80", "fd00::1", "fd00::2")},
			want: []string{"cls1 fd00::1", "cls1 10.0.0.1", "cls2 fd00::2"}, shared: []string{"cls2 cls1 1 fd00::1"},
		},
		{
			name: "headless without ports", exports: []Export{withoutPorts(of("cls1", "", "10.0.0.1")), withoutPorts(of("cls2", "", "10.0.0.1")), servingPorts("cls3", mcsv1beta1.Headless, "http:80", "10.0.0.1")},
			want: []string{"cls1 10.0.0.1"}, shared: []string{"cls2 cls1 1 10.0.0.1", "cls3 cls1 1 10.0.0.1"},
		},
		{
			name: "headless under another port", exports: []Export{servingPorts("cls1", mcsv1beta1.Headless, "http:80", "!10.0.0.1"), servingPorts("cls2", mcsv1beta1.Headless, "alt:81", "10.0.0.1", "10.0.0.2")},
			want: []string{"cls1 10.0.0.1", "cls2 10.0.0.2"}, shared: []string{"cls2 cls1 1 10.0.0.1"},
		},
		{
			name: "several names of one cluster at a headless address", exports: []Export{servingPorts("cls1", mcsv1beta1.Headless, "http:80", "10.0.0.1", "10.0.0.1"), servingPorts("cls2", mcsv1beta1.Headless, "alt:81", "10.0.0.2")},
			want: []string{"cls1 10.0.0.1", "cls1 10.0.0.1", "cls2 10.0.0.2"},
		},
		{
			name: "several groups of one cluster", exports: []Export{twice}, want: []string{"cls2 10.0.0.1", "cls2 10.0.0.2", "cls2 10.0.0.1", "cls2 10.0.0.1"},
		},
		{
			name: "several groups", exports: []Export{aged(0, of("cls1", "http:80 alt:81", "10.0.0.1")), aged(1, twice)},
			want: []string{"cls1 10.0.0.1", "cls2 10.0.0.2"}, shared: []string{"cls2 cls1 3 10.0.0.1"},
		},
		{
			name: "examples", exports: []Export{of("cls1", "http:80", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"), of("cls2", "http:80", "10.0.0.4", "10.0.0.3", "10.0.0.2", "10.0.0.1")},
			want: []string{"cls1 10.0.0.1", "cls1 10.0.0.2", "cls1 10.0.0.3", "cls1 10.0.0.4"}, shared: []string{"cls2 cls1 4 10.0.0.4,10.0.0.3,10.0.0.2"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			owned, shared := OwnAddresses(Merge(tc.exports).Type, tc.exports, nil)
			if got := addressesOf(owned); !slices.Equal(got, tc.want) {
				t.Errorf("endpoints %v, want %v", got, tc.want)
			}
			var got []string
			for _, s := range shared {
				got = append(got, fmt.Sprint(s.Cluster, " ", s.Owner, " ", s.Endpoints, " ", strings.Join(s.Examples, ",")))
			}
			if !slices.Equal(got, tc.shared) {
				t.Errorf("left out %v, want %v", got, tc.shared)
			}
		})
	}
}

// An address does not belong to a cluster that announces other networks, also where its export is
// older. A cluster that announces nothing loses nothing by the announcement of another one.
func TestOwnAddressesByNetwork(t *testing.T) {
	of := func(age int, cluster string, addresses ...string) Export {
		return aged(age, servingPorts(cluster, mcsv1beta1.ClusterSetIP, "http:80", addresses...))
	}
	for name, tc := range map[string]struct {
		exports  []Export
		networks map[string]string
		want     []string
		shared   []string // "cluster owner announced number examples"
	}{
		"a younger cluster announces the network of one that announces nothing": {
			exports: []Export{of(0, "cls1", "10.1.0.1"), of(1, "cls2", "!10.1.0.1")}, networks: map[string]string{"cls2": "10.0.0.0/8"},
			want: []string{"cls1 10.1.0.1"}, shared: []string{"cls2 cls1 false 1 10.1.0.1"},
		},
		"an older export of a cluster that announces nothing": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1", "10.2.0.1")}, networks: map[string]string{"cls1": "10.1.0.0/16"},
			want: []string{"cls2 10.1.0.1", "cls2 10.2.0.1"}, shared: []string{"cls1 cls2 false 1 10.1.0.1"},
		},
		"one announces another network": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1", "10.2.0.1")}, networks: map[string]string{"cls2": "10.2.0.0/16"},
			want: []string{"cls1 10.1.0.1", "cls2 10.2.0.1"}, shared: []string{"cls2 cls1 true 1 10.1.0.1"},
		},
		"both announce networks": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1", "10.2.0.1")}, networks: map[string]string{"cls1": "10.1.0.0/16", "cls2": "10.2.0.0/16"},
			want: []string{"cls1 10.1.0.1", "cls2 10.2.0.1"}, shared: []string{"cls2 cls1 true 1 10.1.0.1"},
		},
		"both announce the network": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1")}, networks: map[string]string{"cls1": "10.1.0.0/16", "cls2": "10.0.0.0/8"},
			want: []string{"cls2 10.1.0.1"}, shared: []string{"cls1 cls2 false 1 10.1.0.1"},
		},
		"both announce other networks": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1")}, networks: map[string]string{"cls1": "10.3.0.0/16", "cls2": "10.4.0.0/16"},
			want: []string{"cls2 10.1.0.1"}, shared: []string{"cls1 cls2 true 1 10.1.0.1"},
		},
		"a network that is not valid": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "!10.1.0.1")}, networks: map[string]string{"cls2": "0.0.0.0/0"},
			want: []string{"cls2 10.1.0.1"}, shared: []string{"cls1 cls2 false 1 10.1.0.1"},
		},
		"only one cluster exports the address": {
			exports: []Export{of(1, "cls1", "10.1.0.1"), of(0, "cls2", "10.1.0.2")}, networks: map[string]string{"cls1": "10.1.0.0/16"},
			want: []string{"cls1 10.1.0.1", "cls2 10.1.0.2"},
		},
		"addresses by network and by age": {
			exports: []Export{of(1, "cls1", "10.1.0.1", "10.2.0.1"), of(0, "cls2", "10.1.0.1", "10.2.0.1")}, networks: map[string]string{"cls2": "10.2.0.0/16"},
			want: []string{"cls1 10.1.0.1", "cls2 10.2.0.1"}, shared: []string{"cls1 cls2 false 1 10.2.0.1", "cls2 cls1 true 1 10.1.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			properties := map[string]Properties{}
			for cluster, text := range tc.networks {
				properties[cluster] = Properties{PropertyNetworks: text}
			}
			owned, shared := OwnAddresses(mcsv1beta1.ClusterSetIP, tc.exports, properties)
			if got := addressesOf(owned); !slices.Equal(got, tc.want) {
				t.Errorf("endpoints %v, want %v", got, tc.want)
			}
			var got []string
			for _, s := range shared {
				got = append(got, fmt.Sprint(s.Cluster, " ", s.Owner, " ", s.Announced, " ", s.Endpoints, " ", strings.Join(s.Examples, ",")))
			}
			if !slices.Equal(got, tc.shared) {
				t.Errorf("left out %v, want %v", got, tc.shared)
			}
		})
	}
}

// addressesOf lists the endpoints of exports as "cluster address".
func addressesOf(exports []Export) (out []string) {
	for _, e := range exports {
		for _, b := range e.Backends {
			for _, ep := range b.Endpoints {
				out = append(out, e.Cluster+" "+ep.Address.String())
			}
		}
	}
	return out
}

// TestOwnAddressesOnce: the result does not depend on the order of the exports, no address and port
// of it belongs to two clusters, the oldest export keeps everything, and the others lose only what
// an older one has.
func TestOwnAddressesOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		before, kind := slices.Clone(exports), Merge(exports).Type
		owned, shared := OwnAddresses(kind, exports, nil)
		if diff := cmp.Diff(before, exports, compareAddr); diff != "" {
			t.Fatalf("OwnAddresses changed its input:\n%s", diff)
		}
		again, sharedAgain := OwnAddresses(kind, rapid.Permutation(exports).Draw(t, "order"), nil)
		slices.SortFunc(again, func(a, b Export) int { return strings.Compare(a.Cluster, b.Cluster) })
		if diff := cmp.Diff(owned, again, compareAddr); diff != "" {
			t.Fatalf("another order, other endpoints:\n%s", diff)
		}
		if diff := cmp.Diff(shared, sharedAgain); diff != "" {
			t.Fatalf("another order, other reports:\n%s", diff)
		}
		type addressPort struct {
			netip.Addr
			portKey
		}
		owners := map[addressPort]string{}
		for i, e := range oldestFirst(owned) {
			for _, b := range e.Backends {
				for key := range b.claimedPorts(kind) {
					for _, ep := range b.Endpoints {
						at := addressPort{ep.Address, key}
						if owner, ok := owners[at]; ok && owner != e.Cluster {
							t.Fatalf("%v belongs to %s and %s", at, owner, e.Cluster)
						}
						owners[at] = e.Cluster
					}
				}
			}
			if original := oldestFirst(exports)[i]; i == 0 && e.EndpointCount() != original.EndpointCount() {
				t.Fatalf("the oldest export lost endpoints: %v of %v", e.Backends, original.Backends)
			}
		}
		lost := 0
		for _, e := range exports {
			for _, b := range e.Backends {
				for _, ep := range b.Endpoints {
					isOwned := false
					for key := range b.claimedPorts(kind) {
						owner, ok := owners[addressPort{ep.Address, key}]
						isOwned = isOwned || ok && owner != e.Cluster
					}
					if isOwned {
						lost++
					}
				}
			}
		}
		if reported := endpointsOf(shared); lost != reported || lost != countEndpoints(exports)-countEndpoints(owned) {
			t.Fatalf("%d endpoints are owned by others, %d reported, %d left out", lost, reported, countEndpoints(exports)-countEndpoints(owned))
		}
	})
}

func countEndpoints(exports []Export) (n int) {
	for _, e := range exports {
		n += e.EndpointCount()
	}
	return n
}

func endpointsOf(shared []SharedAddresses) (n int) {
	for _, s := range shared {
		n += s.Endpoints
	}
	return n
}

// TestBackendsHaveOneState: no address and port of a merged service with a clusterset IP has two
// states, whatever the exports are.
func TestBackendsHaveOneState(t *testing.T) {
	type proxied struct {
		netip.Addr
		BackendPort
	}
	type state struct{ ready, serving, terminating bool }
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		for i := range exports {
			exports[i].Backends = append(exports[i].Backends, overlappingGroups(t, exports[i])...)
		}
		exports, _ = OwnAddresses(Merge(exports).Type, exports, nil)
		m := Merge(exports)
		if m.Type == mcsv1beta1.Headless {
			return
		}
		states := map[proxied]state{}
		for _, e := range exports {
			for _, b := range m.Backends(e) {
				for _, p := range b.Ports {
					p.AppProtocol = ""
					for _, ep := range b.Endpoints {
						at, now := proxied{ep.Address, p}, state{ep.Ready, ep.Serving, ep.Terminating}
						if before, ok := states[at]; ok && before != now {
							t.Fatalf("%v has the states %v and %v", at, before, now)
						}
						states[at] = now
					}
				}
			}
		}
	})
}

// overlappingGroups draws groups of endpoints, each with some of the ports of e.
func overlappingGroups(t *rapid.T, e Export) (groups []Backends) {
	for range rapid.IntRange(0, 4).Draw(t, "overlapping groups") {
		var b Backends
		for _, p := range e.Ports {
			if rapid.Bool().Draw(t, "has port") {
				b.Ports = append(b.Ports, BackendPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
			}
		}
		for _, n := range rapid.SliceOfN(rapid.Byte(), 1, 3).Draw(t, "endpoints") {
			b.Endpoints = append(b.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, 0, n % 4}), Ready: n%8 > 3, Serving: n%16 > 7, Terminating: n > 127})
		}
		groups = append(groups, b)
	}
	return groups
}

func TestAddressConflict(t *testing.T) {
	if c := AddressConflict(nil); c != nil {
		t.Errorf("conflict %+v without shared addresses", c)
	}
	c := AddressConflict([]SharedAddresses{
		{Cluster: "cls2", Owner: "cls1", Endpoints: 7, Examples: []string{"10.0.0.1"}},
		{Cluster: "cls3", Owner: "cls1", Endpoints: 1, Examples: []string{"10.0.0.2"}},
	})
	want := "addresses: using each address and port from the oldest export that has them: " +
		"cluster cls2 exports endpoints of cluster cls1, cluster cls3 exports endpoints of cluster cls1"
	if c == nil || c.Reason != ReasonAddressConflict || c.Message != want {
		t.Errorf("conflict %+v, want %q", c, want)
	}
}
