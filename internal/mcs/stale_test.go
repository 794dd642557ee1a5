package mcs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// servingPorts returns a cluster's export of these ports, each "name:number", with endpoints that
// all listen on them. An endpoint is an address, with "!" before it if it is not ready.
func servingPorts(cluster string, kind mcsv1beta1.ServiceImportType, ports string, addresses ...string) Export {
	e := Export{Key: Key{Namespace: "demo", Name: "web"}, Cluster: cluster, Type: kind, Created: time.Unix(1000, 0)}
	var group Backends
	for port := range strings.FieldsSeq(ports) {
		name, number, _ := strings.Cut(port, ":")
		var n int32
		if _, err := fmt.Sscan(number, &n); err != nil {
			panic(err)
		}
		e.Ports = append(e.Ports, Port{Name: name, Protocol: corev1.ProtocolTCP, Port: n})
		group.Ports = append(group.Ports, BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: n + 8000})
	}
	for _, a := range addresses {
		address, down := strings.CutPrefix(a, "!")
		group.Endpoints = append(group.Endpoints, Endpoint{Address: netip.MustParseAddr(address), Ready: !down, Serving: !down})
	}
	e.Backends = []Backends{group}
	return e
}

// inUse lists what m's clients can reach by exports: "port address", sorted.
func inUse(m Merged, exports []Export) []string {
	var out []string
	for _, e := range exports {
		for _, b := range m.Backends(e) {
			for _, ep := range b.Endpoints {
				for _, p := range b.Ports {
					out = append(out, fmt.Sprint(p.Name, " ", ep.Address))
				}
				if len(b.Ports) == 0 {
					out = append(out, fmt.Sprint("- ", ep.Address))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestWithoutStale(t *testing.T) {
	ip, headless := mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless
	withdrawn := func(c string) StaleExport { return StaleExport{Cluster: c} }
	kept := func(c string) StaleExport { return StaleExport{Cluster: c, Kept: true} }
	one := []Export{servingPorts("cls1", ip, "http:80", "10.1.0.1")}
	two := append(one, servingPorts("cls2", ip, "http:80", "10.2.0.1"))
	tests := map[string]struct {
		exports []Export
		stale   string
		policy  StalePolicy
		want    []string
		fates   []StaleExport
	}{
		"no cluster is stale":                 {exports: two, want: []string{"http 10.1.0.1", "http 10.2.0.1"}},
		"another cluster has endpoints":       {exports: two, stale: "cls1", want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")}},
		"the only exporting cluster is stale": {exports: one, stale: "cls1", want: []string{"http 10.1.0.1"}, fates: []StaleExport{kept("cls1")}},
		"all are stale":                       {exports: two, stale: "cls1 cls2", want: []string{"http 10.1.0.1", "http 10.2.0.1"}, fates: []StaleExport{kept("cls1"), kept("cls2")}},
		"a stale cluster without an export":   {exports: two, stale: "cls9", want: []string{"http 10.1.0.1", "http 10.2.0.1"}},
		"keep":                                {exports: two, stale: "cls1", policy: StaleKeep, want: []string{"http 10.1.0.1", "http 10.2.0.1"}, fates: []StaleExport{kept("cls1")}},
		"withdraw all":                        {exports: one, stale: "cls1", policy: StaleWithdrawAll, fates: []StaleExport{withdrawn("cls1")}},
		"the other has no endpoint": {
			exports: append(one, servingPorts("cls2", ip, "http:80")), stale: "cls1",
			want: []string{"http 10.1.0.1"}, fates: []StaleExport{kept("cls1")},
		},
		"the other has no ready endpoint": {
			exports: append(one, servingPorts("cls2", ip, "http:80", "!10.2.0.1")), stale: "cls1",
			want: []string{"http 10.1.0.1", "http 10.2.0.1"}, fates: []StaleExport{kept("cls1")},
		},
		"two of three are stale": {
			exports: append(two, servingPorts("cls3", ip, "http:80", "10.3.0.1")), stale: "cls1 cls3",
			want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1"), withdrawn("cls3")},
		},
		"a port that only the stale cluster has": {
			exports: []Export{servingPorts("cls1", ip, "http:80 extra:81", "10.1.0.1"), servingPorts("cls2", ip, "http:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"extra 10.1.0.1", "http 10.2.0.1"}, fates: []StaleExport{kept("cls1")},
		},
		"a port under another name": {
			exports: []Export{servingPorts("cls1", ip, "http:80", "10.1.0.1"), servingPorts("cls2", ip, "web:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")},
		},
		"a family that only the stale cluster has": {
			exports: []Export{servingPorts("cls1", ip, "http:80", "10.1.0.1", "fd00::1"), servingPorts("cls2", ip, "http:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"http 10.2.0.1", "http fd00::1"}, fates: []StaleExport{kept("cls1")},
		},
		"a stale cluster without endpoints": {
			exports: []Export{servingPorts("cls1", ip, "http:80"), servingPorts("cls2", ip, "http:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")},
		},
		"headless": {
			exports: []Export{servingPorts("cls1", headless, "http:80", "10.1.0.1"), servingPorts("cls2", headless, "http:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")},
		},
		"headless: an endpoint with other ports is a replacement": {
			exports: []Export{servingPorts("cls1", headless, "http:80 extra:81", "10.1.0.1"), servingPorts("cls2", headless, "http:80", "10.2.0.1")}, stale: "cls1",
			want: []string{"http 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")},
		},
		"headless: the last endpoints of a family": {
			exports: []Export{servingPorts("cls1", headless, "http:80", "10.1.0.1", "fd00::1"), servingPorts("cls2", headless, "http:80", "fd00::2")}, stale: "cls1",
			want: []string{"http 10.1.0.1", "http fd00::2"}, fates: []StaleExport{kept("cls1")},
		},
		"headless without ports": {
			exports: []Export{servingPorts("cls1", headless, "", "10.1.0.1"), servingPorts("cls2", headless, "", "10.2.0.1")}, stale: "cls1",
			want: []string{"- 10.2.0.1"}, fates: []StaleExport{withdrawn("cls1")},
		},
		"headless without ports: the last endpoints": {
			exports: []Export{servingPorts("cls1", headless, "", "10.1.0.1"), servingPorts("cls2", headless, "", "!10.2.0.1")}, stale: "cls1",
			want: []string{"- 10.1.0.1", "- 10.2.0.1"}, fates: []StaleExport{kept("cls1")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := Merge(tt.exports)
			before := inUse(m, tt.exports)
			got, fates := m.WithoutStale(tt.exports, strings.Fields(tt.stale), tt.policy)
			if d := cmp.Diff(tt.want, inUse(m, got)); d != "" {
				t.Errorf("in use (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.fates, fates); d != "" {
				t.Errorf("fates (-want +got):\n%s", d)
			}
			if d := cmp.Diff(before, inUse(m, tt.exports)); d != "" {
				t.Errorf("the exports were changed (-before +after):\n%s", d)
			}
		})
	}
}

// For all exports and stale clusters: no endpoint of a live cluster is withdrawn, no endpoint
// appears, and a port and family that had ready endpoints keeps some, those of live clusters if
// there are any.
func TestWithoutStaleProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ports := []string{"http:80", "http:80 extra:81", "web:80", "http:8080", "extra:81 http:80 more:82", ""}
	for range 3000 {
		kind := mcsv1beta1.ClusterSetIP
		if random.IntN(3) == 0 {
			kind = mcsv1beta1.Headless
		}
		var exports []Export
		var stale []string
		for i := range 1 + random.IntN(4) {
			var addresses []string
			for j := range random.IntN(3) {
				address := []string{"10.%d.0.%d", "!10.%d.1.%d", "fd00:%d::%d"}[random.IntN(3)]
				addresses = append(addresses, fmt.Sprintf(address, i, j))
			}
			exports = append(exports, servingPorts(fmt.Sprint("cls", i), kind, ports[random.IntN(len(ports))], addresses...))
			if random.IntN(2) == 0 {
				stale = append(stale, exports[i].Cluster)
			}
		}
		m := Merge(exports)
		got, _ := m.WithoutStale(exports, stale, StaleWithdraw)
		before, after := inUse(m, exports), inUse(m, got)
		for _, u := range after {
			if !slices.Contains(before, u) {
				t.Fatalf("%q appeared: %+v", u, exports)
			}
		}
		var living []Export
		for i, e := range exports {
			if !slices.Contains(stale, e.Cluster) {
				living = append(living, e)
				if d := cmp.Diff(e, got[i], cmpopts.EquateComparable(netip.Addr{})); d != "" {
					t.Fatalf("cluster %s lives and lost something: %s", e.Cluster, d)
				}
			}
		}
		had, has, lives := m.servedUses(exports), m.servedUses(got), m.servedUses(living)
		for u := range had {
			if !has[u] {
				t.Fatalf("nothing serves %+v any more: %+v, stale %v", u, exports, stale)
			}
		}
		for _, e := range got {
			if !slices.Contains(stale, e.Cluster) {
				continue
			}
			for u := range m.servedUses([]Export{e}) {
				if lives[u] {
					t.Fatalf("stale cluster %s still serves %+v, which others serve: %+v", e.Cluster, u, exports)
				}
			}
		}
	}
}

func TestImportStale(t *testing.T) {
	rule := func(p StalePolicy) StaleRule { return StaleRule{Policy: p, After: 2 * time.Minute} }
	gone, kept := StaleExport{Cluster: "cls1"}, StaleExport{Cluster: "cls2", Kept: true}
	tests := []struct {
		fates      []StaleExport
		policy     StalePolicy
		wantStatus string
		wantReason string
		wantText   string
	}{
		{nil, StaleWithdraw, "False", StaleReasonNone, "all exporting clusters"},
		{[]StaleExport{gone}, StaleWithdraw, "True", StaleReasonWithdrawn, "for more than 2m0s from cluster cls1 (endpoints withdrawn)"},
		{[]StaleExport{gone, kept}, StaleWithdraw, "True", StaleReasonLastEndpoints, "cls1 (endpoints withdrawn), cls2 (endpoints kept): no other cluster"},
		{[]StaleExport{gone}, StaleWithdrawAll, "True", StaleReasonWithdrawn, "cls1"},
		{[]StaleExport{kept}, StaleKeep, "True", StaleReasonKept, "--stale-cluster-policy=keep"},
	}
	for _, tt := range tests {
		got := ImportStale(tt.fates, rule(tt.policy))
		if got.Type != ConditionStale || string(got.Status) != tt.wantStatus || got.Reason != tt.wantReason || !strings.Contains(got.Message, tt.wantText) {
			t.Errorf("%v under %s: got %+v, want %s, %s, %q", tt.fates, tt.policy, got, tt.wantStatus, tt.wantReason, tt.wantText)
		}
	}
}

func TestIsServed(t *testing.T) {
	port := func(name string, number int32) Port {
		return Port{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
	}
	exportWith := func(address string, ready bool, ports ...Port) Export {
		e := Export{Key: Key{Namespace: "n", Name: "web"}, Cluster: "cls1", Type: mcsv1beta1.ClusterSetIP, Ports: ports}
		b := Backends{Endpoints: []Endpoint{{Address: netip.MustParseAddr(address), Ready: ready}}}
		for _, p := range ports {
			b.Ports = append(b.Ports, BackendPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		e.Backends = []Backends{b}
		return e
	}
	served := func(ports ...Port) []Export { return []Export{exportWith("10.0.0.1", true, ports...)} }
	lost := func(addresses ...string) (out []Export) {
		for _, a := range addresses {
			out = append(out, exportWith(a, true))
		}
		return out
	}
	v4, v6 := []corev1.IPFamily{corev1.IPv4Protocol}, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	http, admin := port("http", 80), port("admin", 81)
	for _, tt := range []struct {
		name    string
		merged  Merged
		exports []Export
		lost    []Export
		want    bool
	}{
		{"all ports", Merged{Type: mcsv1beta1.ClusterSetIP, Ports: []Port{http}, IPFamilies: v4}, served(http), nil, true},
		{"one of two ports", Merged{Type: mcsv1beta1.ClusterSetIP, Ports: []Port{http, admin}, IPFamilies: v4}, served(http), nil, false},
		{"one of two families", Merged{Type: mcsv1beta1.ClusterSetIP, Ports: []Port{http}, IPFamilies: v6}, served(http), nil, false},
		{"not ready", Merged{Type: mcsv1beta1.ClusterSetIP, Ports: []Port{http}, IPFamilies: v4}, []Export{exportWith("10.0.0.1", false, http)}, nil, false},
		{"no export", Merged{Type: mcsv1beta1.ClusterSetIP, Ports: []Port{http}, IPFamilies: v4}, nil, nil, false},
		{"headless", Merged{Type: mcsv1beta1.Headless, IPFamilies: v4}, served(), lost("10.9.0.1"), true},
		{"headless, families unknown", Merged{Type: mcsv1beta1.Headless}, served(), lost("10.9.0.1"), true},
		{"headless, other ports", Merged{Type: mcsv1beta1.Headless, Ports: []Port{http, admin}}, served(http), lost("10.9.0.1"), true},
		{"headless, not ready", Merged{Type: mcsv1beta1.Headless, IPFamilies: v4}, []Export{exportWith("10.0.0.1", false)}, lost("10.9.0.1"), false},
		// The API server gives a headless Service without selector both families, also in a cluster
		// that has one.
		{"headless, a family without endpoints", Merged{Type: mcsv1beta1.Headless, IPFamilies: v6}, served(), lost("10.9.0.1"), true},
		{"headless, the last endpoints of a family", Merged{Type: mcsv1beta1.Headless, IPFamilies: v6}, served(), lost("10.9.0.1", "fd00::9"), false},
		{"headless, the last endpoints of a family that the oldest export does not have", Merged{Type: mcsv1beta1.Headless, IPFamilies: v4}, served(), lost("fd00::9"), false},
		{"headless, nothing is lost", Merged{Type: mcsv1beta1.Headless, IPFamilies: v4}, nil, nil, true},
	} {
		if got := tt.merged.IsServed(tt.exports, tt.lost); got != tt.want {
			t.Errorf("%s: served is %t, want %t", tt.name, got, tt.want)
		}
	}
}
