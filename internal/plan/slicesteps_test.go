package plan

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// describe returns "verb name" of each write.
func describe(writes []SliceWrite) []string {
	var out []string
	for _, w := range writes {
		out = append(out, string(w.Verb)+" "+w.Slice.Name[len(derived)+1:])
	}
	return out
}

func TestSteps(t *testing.T) {
	exported := Exported{"cls1": {"10.10.0.1": true, "10.10.0.2": true}}
	renamed := edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Name = "web" })
	for name, tt := range map[string]struct {
		existing, create, update, remove     []*discoveryv1.EndpointSlice
		wantRemovals, wantAdds, wantWithdraw []string
	}{
		"a new slice": {
			create: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")}, wantAdds: []string{"create cls1-ipv4-0"},
		},
		"an endpoint that has ended": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.9")},
			update:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			wantRemovals: []string{"update cls1-ipv4-0"},
		},
		"an endpoint that another one replaces in its slice": {
			existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.9")},
			update:   []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			wantAdds: []string{"update cls1-ipv4-0"},
		},
		"an endpoint that is not used but exported": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.2")},
			update:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			wantWithdraw: []string{"update cls1-ipv4-0"},
		},
		"a port with another name": {
			existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			update:   []*discoveryv1.EndpointSlice{renamed},
			wantAdds: []string{"update cls1-ipv4-0"},
		},
		"slices of a cluster that does not export the service": {
			remove:       []*discoveryv1.EndpointSlice{webSlice("cls2", 0, "10.10.0.1")},
			wantRemovals: []string{"delete cls2-ipv4-0"},
		},
		"endpoints of another cluster that take their place": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1"), placeholder(webSlice("cls2", 0))},
			update:       []*discoveryv1.EndpointSlice{placeholder(webSlice("cls1", 0)), webSlice("cls2", 0, "10.20.0.1")},
			wantAdds:     []string{"update cls2-ipv4-0"},
			wantWithdraw: []string{"update cls1-ipv4-0"},
		},
		"the last ready endpoint becomes not ready, and another cluster takes its place": {
			existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			create:   []*discoveryv1.EndpointSlice{webSlice("cls2", 0, "10.20.0.1")},
			update:   []*discoveryv1.EndpointSlice{notReady(webSlice("cls1", 0, "10.10.0.1"))},
			wantAdds: []string{"create cls2-ipv4-0", "update cls1-ipv4-0"},
		},
		"the last ready endpoint has ended, and another cluster takes its place": {
			existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.9")},
			create:   []*discoveryv1.EndpointSlice{webSlice("cls2", 0, "10.20.0.1")},
			remove:   []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.9")},
			wantAdds: []string{"create cls2-ipv4-0", "delete cls1-ipv4-0"},
		},
		"one endpoint becomes not ready, and one of another cluster ready": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1"), notReady(webSlice("cls2", 0, "10.20.0.1"))},
			update:       []*discoveryv1.EndpointSlice{notReady(webSlice("cls1", 0, "10.10.0.1")), webSlice("cls2", 0, "10.20.0.1")},
			wantRemovals: []string{"update cls2-ipv4-0", "update cls1-ipv4-0"},
		},
		"a ready endpoint has ended, and others are ready": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.9")},
			create:       []*discoveryv1.EndpointSlice{webSlice("cls2", 0, "10.20.0.1")},
			update:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			wantRemovals: []string{"update cls1-ipv4-0"},
			wantAdds:     []string{"create cls2-ipv4-0"},
		},
		"the last ready endpoint becomes not ready in an update that adds another, and a slice brings a ready one": {
			existing: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1"), placeholder(webSlice("cls2", 0))},
			update:   []*discoveryv1.EndpointSlice{notReady(webSlice("cls1", 0, "10.10.0.1", "10.10.0.2")), webSlice("cls2", 0, "10.20.0.1")},
			wantAdds: []string{"update cls2-ipv4-0", "update cls1-ipv4-0"},
		},
		"an endpoint that another cluster takes over": {
			create:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			remove:       []*discoveryv1.EndpointSlice{webSlice("cls2", 0, "10.10.0.1")},
			wantAdds:     []string{"create cls1-ipv4-0"},
			wantWithdraw: []string{"delete cls2-ipv4-0"},
		},
		"an endpoint that another cluster takes over in a slice that it has": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.2"), webSlice("cls2", 0, "10.10.0.1", "10.10.0.3")},
			update:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.2"), webSlice("cls2", 0, "10.10.0.3")},
			wantAdds:     []string{"update cls1-ipv4-0"},
			wantWithdraw: []string{"update cls2-ipv4-0"},
		},
		"a slice whose endpoints moved": {
			existing:     []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")},
			update:       []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1", "10.10.0.2")},
			remove:       []*discoveryv1.EndpointSlice{webSlice("cls1", 1, "10.10.0.2")},
			wantAdds:     []string{"update cls1-ipv4-0"},
			wantWithdraw: []string{"delete cls1-ipv4-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			steps := SliceChanges{Create: tt.create, Update: tt.update, Delete: tt.remove}.Steps(slices.Concat(tt.existing, tt.remove), exported)
			got := [][]string{describe(steps.Removals), describe(steps.Additions), describe(steps.Withdrawals)}
			if d := cmp.Diff([][]string{tt.wantRemovals, tt.wantAdds, tt.wantWithdraw}, got); d != "" {
				t.Errorf("removals, additions, withdrawals (-want +got):\n%s", d)
			}
		})
	}
}

func TestWithoutEnded(t *testing.T) {
	exported := Exported{"cls1": {"10.10.0.1": true}}
	if _, ok := WithoutEnded(webSlice("cls1", 0, "10.10.0.1"), exported); ok {
		t.Error("an update that changes nothing")
	}
	slice := webSlice("cls1", 0, "10.10.0.1", "10.10.0.2")
	w, ok := WithoutEnded(slice, exported)
	if !ok || len(w.Slice.Endpoints) != 1 || w.Slice.Endpoints[0].Addresses[0] != "10.10.0.1" || len(slice.Endpoints) != 2 {
		t.Errorf("got %v, want the endpoint that is exported, and the slice unchanged", w.Slice.Endpoints)
	}
	if w, _ = WithoutEnded(slice, nil); len(w.Slice.Endpoints) != 0 {
		t.Errorf("got %v of a cluster that exports nothing", w.Slice.Endpoints)
	}
	unknown := Exported{}
	if unknown.AddSlices("cls1", []*discoveryv1.EndpointSlice{slice, webSlice("cls2", 0, "10.20.0.1")}); len(unknown["cls1"]) != 2 {
		t.Errorf("an unknown cluster exports %v, want what its slices have", unknown)
	}
	if _, ok := WithoutEnded(slice, unknown); ok {
		t.Error("endpoints of an unknown cluster have ended")
	}
}

// TestStepsInterruptNothing: whichever endpoints come, go, move and change their readiness, an
// endpoint that is wanted before and after is in a slice after each single write, a service with a
// ready endpoint before and after has one after each single write, endpoints that have ended leave
// before others come otherwise, unless one write does both, and the result is that of Slices.
func TestStepsInterruptNothing(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		exports := func() []mcs.Export {
			var out []mcs.Export
			for _, cluster := range []string{"cls1", "cls2", "cls3"} {
				if random.IntN(4) == 0 {
					continue
				}
				var list []string
				for i := range 12 {
					if random.IntN(2) == 0 {
						list = append(list, addresses(i+1, i+1)...)
					}
				}
				e := webExport(cluster, list...)
				for i := range e.Backends[0].Endpoints {
					e.Backends[0].Endpoints[i].Ready = random.IntN(10) == 0
				}
				out = append(out, e)
			}
			return out
		}
		current := apply(nil, Slices(input(exports())))
		after := exports()
		in := input(after, current...)
		steps := Slices(in).Steps(current, ExportedAddresses(after))
		isServed := len(readyPorts(current)) > 0 && len(readyPorts(apply(current, Slices(in)))) > 0
		stays := common(endpointsIn(current), endpointsIn(apply(current, Slices(in))))
		for _, w := range slices.Concat(steps.Removals, steps.Additions, steps.Withdrawals) {
			current = writeSlice(current, w)
			if got := common(stays, endpointsIn(current)); len(got) != len(stays) {
				t.Fatalf("seed %d: after %s %s only %d of %d endpoints are left that stay", seed, w.Verb, w.Slice.Name, len(got), len(stays))
			}
			if isServed && len(readyPorts(current)) == 0 {
				t.Fatalf("seed %d: after %s %s no endpoint is ready", seed, w.Verb, w.Slice.Name)
			}
		}
		for _, w := range steps.Removals {
			if w.isAddition() || w.removesAny(ExportedAddresses(after)[SourceCluster(w.From)]) {
				t.Fatalf("seed %d: the removal of %s does more", seed, w.Slice.Name)
			}
		}
		if d := cmp.Diff(endpointsIn(apply(in.Existing, Slices(in))), endpointsIn(current)); d != "" {
			t.Fatalf("seed %d: the steps have another result than the changes (-changes +steps):\n%s", seed, d)
		}
	}
}

func notReady(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions.Ready = new(false)
	}
	return s
}

func writeSlice(current []*discoveryv1.EndpointSlice, w SliceWrite) []*discoveryv1.EndpointSlice {
	out := slices.DeleteFunc(slices.Clone(current), func(s *discoveryv1.EndpointSlice) bool { return s.Name == w.Slice.Name })
	if w.Verb != VerbDelete {
		out = append(out, w.Slice)
	}
	return out
}

// endpointsIn returns the addresses in slices, with their clusters.
func endpointsIn(list []*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		for _, ep := range s.Endpoints {
			out[SourceCluster(s)+" "+ep.Addresses[0]] = true
		}
	}
	return out
}

func common(a, b map[string]bool) map[string]bool {
	out := maps.Clone(a)
	maps.DeleteFunc(out, func(k string, _ bool) bool { return !b[k] })
	return out
}
