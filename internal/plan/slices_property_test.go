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
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// anyExports draws exports of up to three clusters from few addresses, so that consecutive states
// overlap.
func anyExports(t *rapid.T) []mcs.Export {
	var out []mcs.Export
	kind := rapid.SampledFrom([]mcsv1beta1.ServiceImportType{mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless}).Draw(t, "type")
	for c := range rapid.IntRange(0, 3).Draw(t, "clusters") {
		e := webExport(fmt.Sprintf("cls%d", c))
		e.Type = kind
		e.Backends = nil
		for port := range rapid.IntRange(0, 2).Draw(t, "groups") {
			b := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(8080 + port)}}}
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 40), 0, 25, rapid.ID).Draw(t, "endpoints") {
				address := netip.AddrFrom4([4]byte{10, byte(c), 0, byte(n)})
				if n > 30 {
					address = netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", c, n))
				}
				names := []string{""}
				if kind == mcsv1beta1.Headless { // pods that share an address
					names = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "web-0", "web-1", "web-2"}), 1, 4, rapid.ID).Draw(t, "host names")
				}
				for _, name := range names {
					b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: address, Hostname: name, Ready: rapid.Bool().Draw(t, "ready")})
				}
			}
			e.Backends = append(e.Backends, b)
		}
		out = append(out, e)
	}
	return out
}

// present returns the endpoints in list as "cluster ports address hostname ready".
func present(t *rapid.T, limit int, list []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range list {
		if len(s.Endpoints) > limit {
			t.Fatalf("slice %s has %d endpoints, more than %d", s.Name, len(s.Endpoints), limit)
		}
		for _, ep := range s.Endpoints {
			if is4 := netip.MustParseAddr(ep.Addresses[0]).Is4(); is4 != (s.AddressType == discoveryv1.AddressTypeIPv4) {
				t.Fatalf("slice %s of %s has address %s", s.Name, s.AddressType, ep.Addresses[0])
			}
			out = append(out, fmt.Sprint(s.Labels[mcsv1beta1.LabelSourceCluster], " ", *s.Ports[0].Port, " ", ep.Addresses[0], " ", ptr.Deref(ep.Hostname, ""), " ", *ep.Conditions.Ready))
		}
	}
	slices.Sort(out)
	return out
}

func wanted(exports []mcs.Export) []string {
	var out []string
	for _, e := range exports {
		for _, b := range e.Backends {
			for _, ep := range b.Endpoints {
				out = append(out, fmt.Sprint(e.Cluster, " ", b.Ports[0].Port, " ", ep.Address, " ", ep.Hostname, " ", ep.Ready))
			}
		}
	}
	slices.Sort(out)
	return out
}

func copies(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range list {
		out = append(out, s.DeepCopy())
	}
	return out
}

// From any state to any other, the slices hold exactly the exported endpoints, a second reconcile
// finds no changes, and the input is not changed.
func TestSlicesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 8
		var existing []*discoveryv1.EndpointSlice
		for range rapid.IntRange(1, 4).Draw(t, "states") {
			exports := anyExports(t)
			in := input(exports, existing...)
			in.MaxEndpoints = limit
			before := copies(existing)
			c := Slices(in)
			if diff := cmp.Diff(before, existing); diff != "" {
				t.Fatalf("inputs were changed (-before +after):\n%s", diff)
			}
			in.Existing = rapid.Permutation(existing).Draw(t, "listed")
			if diff := cmp.Diff(c, Slices(in)); diff != "" {
				t.Fatalf("the order in which slices are listed matters:\n%s", diff)
			}
			names := map[string]bool{}
			for _, s := range slices.Concat(c.Create, c.Update, c.Delete) {
				if names[s.Name] {
					t.Fatalf("slice %s is in the changes twice", s.Name)
				}
				names[s.Name] = true
			}
			existing = apply(existing, c)
			if diff := cmp.Diff(wanted(exports), present(t, limit, existing)); diff != "" {
				t.Fatalf("endpoints (-want +got):\n%s", diff)
			}
			for _, e := range exports {
				if !slices.ContainsFunc(existing, func(s *discoveryv1.EndpointSlice) bool { return s.Labels[mcsv1beta1.LabelSourceCluster] == e.Cluster }) {
					t.Fatalf("cluster %s has no slice at all", e.Cluster)
				}
			}
			for _, e := range exports {
				var got []mcs.Backends
				for _, read := range ExportsOf(in.Merged, existing, []string{e.Cluster}) {
					got = in.Merged.Backends(read)
				}
				if diff := cmp.Diff(in.Merged.Backends(e), got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Fatalf("backends of %s as its slices have them (-want +got):\n%s", e.Cluster, diff)
				}
			}
			in.Existing = rapid.Permutation(existing).Draw(t, "order")
			if again := Slices(in); !again.IsEmpty() {
				t.Fatalf("the second pass: %+v", again)
			}
		}
	})
}

// A change of one endpoint writes one slice, or two if the rest of a slice moves to another.
func TestSlicesOneChangeWritesFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 8
		e := webExport("cls1", addresses(1, rapid.IntRange(1, 60).Draw(t, "endpoints"))...)
		in := input([]mcs.Export{e})
		in.MaxEndpoints = limit
		in.Existing = apply(nil, Slices(in))
		b := &e.Backends[0]
		for range rapid.IntRange(1, 80).Draw(t, "changes") {
			i := rapid.IntRange(0, 1000).Draw(t, "which")
			switch what := rapid.IntRange(0, 2).Draw(t, "what"); {
			case what == 0 || len(b.Endpoints) == 0:
				b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})})
			case what == 1:
				i %= len(b.Endpoints)
				b.Endpoints = slices.Delete(slices.Clone(b.Endpoints), i, i+1)
			default:
				b.Endpoints = slices.Clone(b.Endpoints)
				ep := &b.Endpoints[i%len(b.Endpoints)]
				ep.Ready = !ep.Ready
			}
			in.Exports = []mcs.Export{e.Canonical()}
			in.Merged = mcs.Merge(in.Exports)
			c := Slices(in)
			if n := len(c.Create) + len(c.Update) + len(c.Delete); n > 2 {
				t.Fatalf("one change wrote %d slices: %d created, %d updated, %d deleted", n, len(c.Create), len(c.Update), len(c.Delete))
			}
			in.Existing = apply(in.Existing, c)
			if diff := cmp.Diff(wanted(in.Exports), present(t, limit, in.Existing)); diff != "" {
				t.Fatalf("endpoints (-want +got):\n%s", diff)
			}
		}
		// Slices do not pile up: those that shrank to a quarter have been dissolved.
		if need := (e.EndpointCount() + limit - 1) / limit; len(in.Existing) > 3*need+2 {
			t.Fatalf("%d slices for %d endpoints of %d each", len(in.Existing), e.EndpointCount(), limit)
		}
	})
}

// benchInput has one service that each cluster exports.
func benchInput(clusters, endpoints int) SliceInput {
	var exports []mcs.Export
	for c := range clusters {
		e := webExport(fmt.Sprintf("cls%d", c))
		for i := range endpoints {
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, byte(c >> 8), byte(c), byte(i)}), Ready: true, Serving: true, Zone: "us-west-2a",
			})
		}
		exports = append(exports, e)
	}
	in := input(exports)
	in.MaxEndpoints = MaxEndpoints
	return in
}

func BenchmarkSlicesNew(b *testing.B) {
	in := benchInput(10, 100)
	b.ReportAllocs()
	for b.Loop() {
		Slices(in)
	}
}

func BenchmarkSlicesSteady(b *testing.B) {
	in := benchInput(10, 100)
	in.Existing = apply(nil, Slices(in))
	b.ReportAllocs()
	for b.Loop() {
		if !Slices(in).IsEmpty() {
			b.Fatal("there is something to do")
		}
	}
}

// BenchmarkSlicesClusters has a service that many clusters export with 10 endpoints each, and
// nothing to do.
func BenchmarkSlicesClusters(b *testing.B) {
	for _, clusters := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			in := benchInput(clusters, 10)
			in.Existing = apply(nil, Slices(in))
			b.ReportAllocs()
			for b.Loop() {
				if !Slices(in).IsEmpty() {
					b.Fatal("there is something to do")
				}
			}
		})
	}
}
