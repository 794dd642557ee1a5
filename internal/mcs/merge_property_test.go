package mcs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// anyExport draws exports from few values, so that they often agree and often do not.
func anyExport(t *rapid.T, cluster string) Export {
	families := [][]corev1.IPFamily{nil, {corev1.IPv4Protocol}, {corev1.IPv6Protocol}, {corev1.IPv4Protocol, corev1.IPv6Protocol}}
	maps := []map[string]string{nil, {"a": "1"}, {"a": "2", "b": "1"}}
	e := Export{
		Key:                   Key{Namespace: "demo", Name: "web"},
		Cluster:               cluster,
		Created:               start.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "created")) * time.Second),
		Type:                  rapid.SampledFrom([]mcsv1beta1.ServiceImportType{mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless}).Draw(t, "type"),
		SessionAffinity:       rapid.SampledFrom([]corev1.ServiceAffinity{"", "None", "ClientIP"}).Draw(t, "affinity"),
		InternalTrafficPolicy: rapid.SampledFrom([]corev1.ServiceInternalTrafficPolicy{"", "Cluster", "Local"}).Draw(t, "policy"),
		TrafficDistribution:   rapid.SampledFrom([]string{"", "PreferClose", "PreferSameZone", "PreferSameNode"}).Draw(t, "distribution"),
		IPFamilies:            rapid.SampledFrom(families).Draw(t, "families"),
		Labels:                rapid.SampledFrom(maps).Draw(t, "labels"),
		Annotations:           rapid.SampledFrom(maps).Draw(t, "annotations"),
	}
	e.Ports = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Port {
		return Port{
			Name:     rapid.SampledFrom([]string{"", "a", "b", "tcp-80"}).Draw(t, "name"),
			Protocol: rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}).Draw(t, "protocol"),
			Port:     rapid.SampledFrom([]int32{80, 443}).Draw(t, "port"),
		}
	}), 0, 3, func(p Port) string { return p.Name }).Draw(t, "ports")
	// as Kubernetes requires
	e.Ports = slices.DeleteFunc(e.Ports, func(p Port) bool { return p.Name == "" && len(e.Ports) > 1 })
	for i := range rapid.IntRange(0, 2).Draw(t, "groups") {
		b := Backends{}
		for _, p := range e.Ports {
			b.Ports = append(b.Ports, BackendPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port + int32(i)})
		}
		// a slice that follows no Service port
		if rapid.IntRange(0, 3).Draw(t, "made by hand") == 0 {
			b.Ports = rapid.SampledFrom([][]BackendPort{nil, {{Name: "b", Protocol: corev1.ProtocolTCP, Port: 7}}, {{Name: "", Protocol: corev1.ProtocolUDP, Port: 8}}}).Draw(t, "slice ports")
		}
		for _, n := range rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "endpoints") {
			b.Endpoints = append(b.Endpoints, Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 0, 0, n % 4}), Hostname: []string{"", "a", "b", "c"}[n/64], Ready: n%8 > 3,
			})
		}
		e.Backends = append(e.Backends, b)
	}
	return e
}

func anyExports(t *rapid.T, least int) []Export {
	var out []Export
	for i := range rapid.IntRange(least, 5).Draw(t, "clusters") {
		out = append(out, anyExport(t, fmt.Sprintf("cls%d", i)))
	}
	return out
}

func TestMergeDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		want := Merge(exports)
		shuffled := rapid.Permutation(exports).Draw(t, "order")
		before := slices.Clone(shuffled)
		if diff := cmp.Diff(want, Merge(shuffled), compareAddr); diff != "" {
			t.Fatalf("another order, another merge:\n%s", diff)
		}
		if diff := cmp.Diff(before, shuffled, compareAddr); diff != "" {
			t.Fatalf("Merge changed its input:\n%s", diff)
		}
	})
}

func TestMergeOfCanonicalIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		var canonical []Export
		for _, e := range exports {
			canonical = append(canonical, e.Canonical())
		}
		if diff := cmp.Diff(Merge(exports), Merge(canonical), compareAddr); diff != "" {
			t.Fatalf("-merge +merge of canonical exports:\n%s", diff)
		}
	})
}

func TestMergeKeepsTheRulesOfServices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		m := Merge(exports)
		names, keys := map[string]bool{}, map[portKey]bool{}
		for _, p := range m.Ports {
			if names[p.Name] || keys[p.key()] || p.Name == "" && len(m.Ports) > 1 {
				t.Fatalf("bad ports: %v", m.Ports)
			}
			names[p.Name], keys[p.key()] = true, true
		}
		for _, e := range exports {
			for _, p := range e.Ports {
				// Each port is exposed, or its name or its number is taken by another one.
				taken := slices.ContainsFunc(m.Ports, func(o Port) bool { return o.Name == p.Name || o.key() == p.key() || p.Name == "" })
				if !taken {
					t.Fatalf("port %v of %s is missing in %v", p, e.Cluster, m.Ports)
				}
			}
			for _, b := range m.Backends(e) {
				if len(b.Endpoints) == 0 || len(b.Ports) == 0 && m.Type == mcsv1beta1.ClusterSetIP {
					t.Fatalf("useless backends %v", b)
				}
				for _, p := range b.Ports {
					if m.Type == mcsv1beta1.ClusterSetIP && !names[p.Name] {
						t.Fatalf("backend port %v is none of %v", p, m.Ports)
					}
				}
			}
		}
	})
}

// Whatever the Services of the other clusters have, a headless import has all endpoints of each
// cluster, with the ports of its slices.
func TestHeadlessBackendsAreThoseOfTheSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		for i := range exports {
			if rapid.Bool().Draw(t, "headless") {
				exports[i].Type = mcsv1beta1.Headless
			}
		}
		exports[0].Type, exports[0].Created = mcsv1beta1.Headless, start.Add(-time.Hour)
		m := Merge(exports)
		chosen := m.Choose(Candidates{Exports: exports}).Exports
		for i, e := range exports {
			e.Type = mcsv1beta1.Headless
			want := e.Canonical().Backends
			if diff := cmp.Diff(want, m.Backends(exports[i]), compareAddr); diff != "" {
				t.Fatalf("backends of %s (-slices +import):\n%s", e.Cluster, diff)
			}
			if diff := cmp.Diff(want, m.Backends(chosen[i]), compareAddr); diff != "" {
				t.Fatalf("chosen backends of %s (-slices +import):\n%s", e.Cluster, diff)
			}
		}
	})
}

// Canonical keeps each address and host name of a headless export once, and each address of others,
// in a ready endpoint if there is one.
func TestCanonicalKeepsEachEndpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyExport(t, "cls1")
		shown := func(e Export) map[string]bool {
			out := map[string]bool{}
			for _, b := range e.Backends {
				ports := slices.SortedFunc(slices.Values(b.Ports), compareBackendPorts)
				for _, ep := range b.Endpoints {
					id := fmt.Sprint(ports, ep.Address)
					if e.Type == mcsv1beta1.Headless {
						id += ep.Hostname
					}
					out[id] = out[id] || ep.Ready
				}
			}
			return out
		}
		canonical := e.Canonical()
		if diff := cmp.Diff(shown(e), shown(canonical)); diff != "" {
			t.Fatalf("endpoints and whether they are ready (-before +canonical):\n%s", diff)
		}
		if n := canonical.EndpointCount(); n != len(shown(canonical)) {
			t.Fatalf("%d endpoints, want %d", n, len(shown(canonical)))
		}
		if diff := cmp.Diff(canonical, canonical.Canonical(), compareAddr); diff != "" {
			t.Fatalf("not idempotent:\n%s", diff)
		}
	})
}

// A younger export that agrees with the merge changes only the list of clusters.
func TestMergeIsStableWhenAnAgreeingExportJoins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := anyExports(t, 1)
		m := Merge(exports)
		joins := Export{
			Key: m.Key, Cluster: "new", Created: start.Add(time.Hour), Type: m.Type, Ports: m.Ports,
			SessionAffinity: m.SessionAffinity, SessionAffinityConfig: m.SessionAffinityConfig,
			InternalTrafficPolicy: m.InternalTrafficPolicy, TrafficDistribution: m.TrafficDistribution,
			IPFamilies: m.IPFamilies, Labels: m.Labels, Annotations: m.Annotations,
		}
		got := Merge(append(exports, joins))
		if !slices.Contains(got.Clusters, "new") {
			t.Fatal("the new cluster is not listed")
		}
		got.Clusters = m.Clusters
		if diff := cmp.Diff(reasons(m), reasons(got)); diff != "" {
			t.Fatalf("conflicts before and after:\n%s", diff)
		}
		got.Conflicts = m.Conflicts
		if diff := cmp.Diff(m, got, compareAddr); diff != "" {
			t.Fatalf("before and after:\n%s", diff)
		}
	})
}

// Removing the youngest export changes only its own ports and conflicts.
func TestMergeYoungestDecidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ordered := oldestFirst(anyExports(t, 2))
		with, without := Merge(ordered), Merge(ordered[:len(ordered)-1])
		for _, p := range without.Ports {
			if !slices.ContainsFunc(with.Ports, func(o Port) bool { return o.key() == p.key() }) {
				t.Fatalf("port %v was removed when a younger export joined", p)
			}
		}
		// Families may come from the youngest when no other export has any.
		if without.IPFamilies == nil {
			without.IPFamilies = with.IPFamilies
		}
		with.Ports, without.Ports, with.Conflicts, without.Conflicts, with.Clusters, without.Clusters = nil, nil, nil, nil, nil, nil
		if diff := cmp.Diff(without, with); diff != "" {
			t.Fatalf("the youngest changed (-without +with):\n%s", diff)
		}
	})
}

// When the oldest export is removed, the second oldest decides, and properties on which both agree
// stay.
func TestMergeRemovalOfOldestKeepsCommonProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ordered := oldestFirst(anyExports(t, 2))
		before, after := Merge(ordered), Merge(ordered[1:])
		first, second := ordered[0], ordered[1]
		for _, f := range oldestDecides {
			if f.value(first) == f.value(second) && f.value(asExport(before)) != f.value(asExport(after)) {
				t.Fatalf("%s changed from %s to %s though both oldest agree", f.name, f.value(asExport(before)), f.value(asExport(after)))
			}
		}
		if slices.Equal(first.IPFamilies, second.IPFamilies) && !slices.Equal(before.IPFamilies, after.IPFamilies) {
			t.Fatalf("families changed from %v to %v though both oldest agree", before.IPFamilies, after.IPFamilies)
		}
		for _, p := range second.Ports {
			if slices.Contains(first.Ports, p) && !slices.ContainsFunc(after.Ports, func(o Port) bool { return o.key() == p.key() }) {
				t.Fatalf("port %v of both oldest is missing in %v", p, after.Ports)
			}
		}
	})
}

func reasons(m Merged) []mcsv1beta1.ServiceExportConditionReason {
	var out []mcsv1beta1.ServiceExportConditionReason
	for _, c := range m.Conflicts {
		out = append(out, c.Reason)
	}
	return out
}

// asExport returns an export with the properties of m.
func asExport(m Merged) Export {
	return Export{
		Type: m.Type, SessionAffinity: m.SessionAffinity, SessionAffinityConfig: m.SessionAffinityConfig,
		InternalTrafficPolicy: m.InternalTrafficPolicy, TrafficDistribution: m.TrafficDistribution,
		Labels: m.Labels, Annotations: m.Annotations,
	}
}
