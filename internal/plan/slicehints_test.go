package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	sameNode    = corev1.ServiceTrafficDistributionPreferSameNode
	sameZone    = corev1.ServiceTrafficDistributionPreferSameZone
	preferClose = corev1.ServiceTrafficDistributionPreferClose
)

func forZone(zone string) *discoveryv1.EndpointHints {
	return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
}

func forNode(zone, node string) *discoveryv1.EndpointHints {
	h := forZone(zone)
	h.ForNodes = []discoveryv1.ForNode{{Name: node}}
	return h
}

func TestSlices_Hints(t *testing.T) {
	tests := []struct {
		name                   string
		distribution           string
		cluster                string // "local" is this one
		zone, node             string
		wantZone, wantNodeName *string
		wantHints              *discoveryv1.EndpointHints
	}{
		{name: "no distribution", cluster: "local", zone: "zone-a", node: "node-1", wantZone: ptr.To("zone-a"), wantNodeName: ptr.To("node-1")},
		{name: "no distribution, endpoint of another cluster", cluster: "cls2", zone: "zone-a", node: "node-1", wantZone: ptr.To("zone-a")},
		{
			name: "same zone", distribution: sameZone, cluster: "local", zone: "zone-a", node: "node-1",
			wantZone: ptr.To("zone-a"), wantNodeName: ptr.To("node-1"), wantHints: forZone("zone-a"),
		},
		{
			name: "same zone, endpoint of another cluster", distribution: sameZone, cluster: "cls2", zone: "zone-a", node: "node-1",
			wantZone: ptr.To("zone-a"), wantHints: forZone("zone-a"),
		},
		{
			name: "PreferClose is the older name of PreferSameZone", distribution: preferClose, cluster: "cls2", zone: "zone-a", node: "node-1",
			wantZone: ptr.To("zone-a"), wantHints: forZone("zone-a"),
		},
		{name: "same zone, unknown zone", distribution: sameZone, cluster: "cls2", wantHints: forZone(unmatchedName)},
		{
			name: "same node", distribution: sameNode, cluster: "local", zone: "zone-a", node: "node-1",
			wantZone: ptr.To("zone-a"), wantNodeName: ptr.To("node-1"), wantHints: forNode("zone-a", "node-1"),
		},
		{
			name: "same node, endpoint of another cluster", distribution: sameNode, cluster: "cls2", zone: "zone-a", node: "node-1",
			wantZone: ptr.To("zone-a"), wantHints: forNode("zone-a", unmatchedName),
		},
		{
			name: "same node, unknown zone and node", distribution: sameNode, cluster: "local",
			wantHints: forNode(unmatchedName, unmatchedName),
		},
		{name: "unknown distribution", distribution: "PreferSameRack", cluster: "cls2", zone: "zone-a", wantZone: ptr.To("zone-a")},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			e := webExport(tc.cluster, "10.10.0.1")
			e.TrafficDistribution = tc.distribution
			e.Backends[0].Endpoints[0].Zone, e.Backends[0].Endpoints[0].Node = tc.zone, tc.node
			want := webSlice(tc.cluster, 0, "10.10.0.1")
			want.Endpoints[0].Zone, want.Endpoints[0].NodeName, want.Endpoints[0].Hints = tc.wantZone, tc.wantNodeName, tc.wantHints
			if diff := cmp.Diff(SliceChanges{Create: []*discoveryv1.EndpointSlice{want}}, Slices(input([]mcs.Export{e}))); diff != "" {
				t.Errorf("Slices (-want +got):\n%s", diff)
			}
		})
	}
}

// drawZonesAndNodes sets or clears the zone and node of each endpoint. The nodes of all clusters
// have the same names.
func drawZonesAndNodes(t *rapid.T, exports []mcs.Export) {
	for _, e := range exports {
		for _, b := range e.Backends {
			for i := range b.Endpoints {
				ep := &b.Endpoints[i]
				ep.Zone = rapid.SampledFrom([]string{"", "zone-a", "zone-b"}).Draw(t, "zone")
				ep.Node = rapid.SampledFrom([]string{"", "node-1", "node-2"}).Draw(t, "node")
			}
		}
	}
}

// A change of the distribution updates each slice at most once and creates and deletes none, so
// that no connection is lost.
func TestSlices_NewDistributionOnlyUpdates(t *testing.T) {
	distributions := []string{"", preferClose, sameZone, sameNode}
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t)
		drawZonesAndNodes(t, exports)
		in := input(exports)
		in.LocalCluster = "cls0"
		in.Existing = apply(nil, Slices(in))
		for range 3 {
			in.Merged.TrafficDistribution = rapid.SampledFrom(distributions).Draw(t, "distribution")
			c := Slices(in)
			if len(c.Create) > 0 || len(c.Delete) > 0 || len(c.Update) > len(in.Existing) {
				t.Fatalf("a change of trafficDistribution creates %d slices, updates %d and deletes %d", len(c.Create), len(c.Update), len(c.Delete))
			}
			in.Existing = apply(in.Existing, c)
			if again := Slices(in); !again.IsEmpty() {
				t.Fatalf("the second pass still changes slices: %+v", again)
			}
		}
	})
}

// client is the node of the local cluster, and its zone, from which a connection starts.
type client struct{ node, zone string }

// kubeProxy returns the endpoints of list that a client reaches by the rules of
// pkg/proxy/topology.go of Kubernetes 1.37.
func kubeProxy(list []*discoveryv1.EndpointSlice, family discoveryv1.AddressType, c client) []string {
	var ready []discoveryv1.Endpoint
	for _, s := range list {
		for _, ep := range s.Endpoints {
			if s.AddressType == family && *ep.Conditions.Ready {
				ready = append(ready, ep)
			}
		}
	}
	nodes := func(ep discoveryv1.Endpoint) (names []string) {
		for _, n := range ptr.Deref(ep.Hints, discoveryv1.EndpointHints{}).ForNodes {
			names = append(names, n.Name)
		}
		return names
	}
	zones := func(ep discoveryv1.Endpoint) (names []string) {
		for _, z := range ptr.Deref(ep.Hints, discoveryv1.EndpointHints{}).ForZones {
			names = append(names, z.Name)
		}
		return names
	}
	endpointsFor := func(names func(discoveryv1.Endpoint) []string, name string) (matching []discoveryv1.Endpoint) {
		for _, ep := range ready {
			if len(names(ep)) == 0 {
				return nil
			}
			if slices.Contains(names(ep), name) {
				matching = append(matching, ep)
			}
		}
		return matching
	}
	reached := endpointsFor(nodes, c.node)
	if len(reached) == 0 {
		reached = endpointsFor(zones, c.zone)
	}
	if len(reached) == 0 {
		reached = ready
	}
	var out []string
	for _, ep := range reached {
		out = append(out, ep.Addresses...)
	}
	slices.Sort(out)
	return out
}

// nearest returns the endpoints that the distribution prefers: the ready endpoints on the client's
// node in cls0; if there are none, those in its zone; if there are none, all.
func nearest(exports []mcs.Export, distribution string, family discoveryv1.AddressType, c client) []string {
	reached := make([][]string, 3)
	for _, e := range exports {
		for _, b := range e.Backends {
			for _, ep := range b.Endpoints {
				if !ep.Ready || addressType(ep.Address) != family {
					continue
				}
				reached[2] = append(reached[2], ep.Address.String())
				if distribution != "" && c.zone != "" && ep.Zone == c.zone {
					reached[1] = append(reached[1], ep.Address.String())
				}
				if distribution == sameNode && e.Cluster == "cls0" && ep.Node == c.node {
					reached[0] = append(reached[0], ep.Address.String())
				}
			}
		}
	}
	i := slices.IndexFunc(reached, func(list []string) bool { return len(list) > 0 })
	if i < 0 {
		return nil
	}
	slices.Sort(reached[i])
	return reached[i]
}

// For all exports, kube-proxy sends every client to the nearest endpoints.
func TestSlices_KubeProxyPrefersNearestEndpoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := drawFewEndpoints(t)
		drawZonesAndNodes(t, exports)
		in := input(exports)
		in.LocalCluster = "cls0"
		in.Merged.TrafficDistribution = rapid.SampledFrom([]string{"", preferClose, sameZone, sameNode}).Draw(t, "distribution")
		list := apply(nil, Slices(in))
		for _, node := range []string{"node-1", "node-2", "node-3"} {
			for _, zone := range []string{"", "zone-a", "zone-b", "zone-c"} {
				for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
					c := client{node, zone}
					want := nearest(exports, in.Merged.TrafficDistribution, family, c)
					if diff := cmp.Diff(want, kubeProxy(list, family, c)); diff != "" {
						t.Fatalf("a client on %s in zone %q with %q reaches (-want +got):\n%s", node, zone, in.Merged.TrafficDistribution, diff)
					}
				}
			}
		}
	})
}

// drawFewEndpoints draws up to three endpoints in each of up to three clusters, so that often none
// is in the client's zone.
func drawFewEndpoints(t *rapid.T) []mcs.Export {
	var out []mcs.Export
	for c := range rapid.IntRange(1, 3).Draw(t, "clusters") {
		e := webExport(fmt.Sprintf("cls%d", c))
		for n := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			address := netip.AddrFrom4([4]byte{10, byte(c), 0, byte(n)})
			if rapid.Bool().Draw(t, "IPv6") {
				address = netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", c, n))
			}
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: address, Ready: rapid.Bool().Draw(t, "ready")})
		}
		e.IPFamilies = []corev1.IPFamily{v4, v6}
		out = append(out, e)
	}
	return out
}
