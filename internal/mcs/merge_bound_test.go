package mcs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// portsOf returns n ports whose numbers begin with first.
func portsOf(first, n int) []Port {
	var out []Port
	for i := range n {
		out = append(out, tcp(fmt.Sprint("p-", first+i), int32(first+i)))
	}
	return out
}

// portsIn returns how many of the ports of e are in m.
func portsIn(m Merged, e Export) (n int) {
	for _, p := range e.Ports {
		if slices.Contains(m.Ports, p.withoutTargetPort()) {
			n++
		}
	}
	return n
}

// TestMerge_BoundsPorts: a member with several IDs cannot use up the ports that a service may have.
func TestMerge_BoundsPorts(t *testing.T) {
	full := func(cluster string, age, first int) Export {
		return webExport(cluster, age, withPorts(portsOf(first, maxPorts)...))
	}
	few := func(cluster string, age int) Export { return webExport(cluster, age, withPorts(portsOf(60_000, 3)...)) }
	var many []Export // of one port each
	for i := range 80 {
		many = append(many, webExport(fmt.Sprintf("id-%02d", i), 1+i, withPorts(tcp(fmt.Sprint("one-", i), int32(50_000+i)))))
	}
	for _, tc := range []struct {
		name    string
		exports []Export
		want    map[string]int // ports in use
		left    string
	}{
		{name: "as many as there may be", exports: []Export{full("a", 0, 1), full("b", 1, 1001)}, want: map[string]int{"a": 1000, "b": 1000}},
		{name: "the same ports", exports: []Export{full("a", 0, 1), full("b", 1, 1), full("c", 2, 1), few("victim", 3)}, want: map[string]int{"a": 1000, "b": 1000, "c": 1000, "victim": 3}},
		{
			name: "the victim is the youngest", exports: []Export{full("a", 0, 1), full("b", 1, 1001), full("c", 2, 2001), full("d", 3, 3001), few("victim", 4)},
			// 62 and the rest of the room are of b
			want: map[string]int{"a": 1000, "b": 884, "c": 58, "d": 55, "victim": 3},
			left: "most of them cluster a (1000), cluster b (1000), cluster c (1000), cluster d (1000), cluster victim (3); left out are ports of cluster b (116), cluster c (942), cluster d (945)",
		},
		{
			name: "the victim is older", exports: []Export{full("a", 0, 1), few("victim", 1), full("b", 2, 1001), full("c", 3, 2001)},
			want: map[string]int{"a": 1000, "victim": 3, "b": 939, "c": 58}, left: "left out are ports of cluster b (61), cluster c (942)",
		},
		{
			name: "the oldest has few", exports: []Export{few("victim", 0), full("a", 1, 1), full("b", 2, 1001), full("c", 3, 2001)},
			want: map[string]int{"victim": 3, "a": 1000, "b": 888, "c": 109}, left: "left out are ports of cluster b (112), cluster c (891)",
		},
		{
			name: "many IDs", exports: append([]Export{full("a", 0, 1), full("b", 90, 1001), full("victim", 91, 2001)}, many...),
			want: map[string]int{"a": 1000, "id-00": 1, "id-79": 1, "b": 867, "victim": 53}, left: "left out are ports of cluster b (133), cluster victim (947)",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := Merge(tc.exports)
			if len(m.Ports) > maxMergedPorts {
				t.Errorf("%d ports", len(m.Ports))
			}
			for _, e := range tc.exports {
				if want, ok := tc.want[e.Cluster]; ok && portsIn(m, e) != want {
					t.Errorf("%d ports of %s, want %d", portsIn(m, e), e.Cluster, want)
				}
			}
			var message string
			for _, c := range m.Conflicts {
				if c.Reason == ReasonPortLimitConflict {
					message = c.Message
				}
			}
			if !strings.HasSuffix(message, tc.left) || (message == "") != (tc.left == "") {
				t.Errorf("conflict %q, want one that ends with %q", message, tc.left)
			}
		})
	}
}

// TestAddPorts_Bound: ports are added up to the same number, and none is removed.
func TestAddPorts_Bound(t *testing.T) {
	for _, had := range []int{0, 1, maxMergedPorts - 1, maxMergedPorts, maxMergedPorts + 1} {
		m := Merged{Ports: portsOf(1, had)}
		m.AddPorts([]Export{webExport("a", 0, withPorts(portsOf(10_001, maxPorts)...)), webExport("b", 1, withPorts(portsOf(20_001, maxPorts)...))})
		if want := max(had, maxMergedPorts); len(m.Ports) != want || !slices.Equal(m.Ports[:had], portsOf(1, had)) {
			t.Errorf("%d ports become %d, want %d", had, len(m.Ports), want)
		}
	}
}

// TestAddPorts_Shares: while a cluster is unknown, the ports that the import lacks are added within
// the same shares. No number of other exports keeps out the few that a cluster adds.
func TestAddPorts_Shares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		victim, clusters := rapid.IntRange(0, 28).Draw(t, "victim"), rapid.IntRange(29, 60).Draw(t, "clusters")
		m := Merged{Ports: portsOf(1, rapid.SampledFrom([]int{1, 60, maxPorts}).Draw(t, "ports"))}
		before := slices.Clone(m.Ports)
		var exports []Export
		for i := range clusters {
			exports = append(exports, webExport(fmt.Sprintf("cls%02d", i), i, withPorts(portsOf(2_000+i*maxPorts%60_000, maxPorts)...)))
		}
		exports[victim].Ports = portsOf(64_000, 10)
		m.AddPorts(exports)
		if got := portsIn(m, exports[victim]); got != 10 || len(m.Ports) > maxMergedPorts {
			t.Fatalf("%d of 10 ports of export %d, %d ports of all", got, victim, len(m.Ports))
		}
		if got := portsIn(m, Export{Ports: before}); got != len(before) {
			t.Fatalf("%d of %d ports stay", got, len(before))
		}
	})
}

// TestMerge_YoungerExportsTakeNoPorts: an export with few ports keeps them, whatever younger ones
// have.
func TestMerge_YoungerExportsTakeNoPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var exports []Export
		older := rapid.IntRange(0, 28).Draw(t, "older")
		for i := range rapid.IntRange(older+1, older+40).Draw(t, "clusters") {
			n := rapid.SampledFrom([]int{1, 10, maxPorts}).Draw(t, "ports")
			exports = append(exports, webExport(fmt.Sprintf("cls%02d", i), i, withPorts(portsOf(1+i*maxPorts%60_000, n)...)))
		}
		exports[older].Ports = portsOf(64_000, 10)
		m := Merge(exports)
		if got := portsIn(m, exports[older]); got != 10 || len(m.Ports) > maxMergedPorts {
			t.Fatalf("%d of 10 ports of export %d, %d ports of all", got, older, len(m.Ports))
		}
		if m.PortUses != nil && len(m.Ports) < maxMergedPorts {
			t.Fatalf("ports are left out, although there are only %d", len(m.Ports))
		}
	})
}
