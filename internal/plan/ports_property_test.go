package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// settleTicks is SettleTime in the time of the simulation. A kube-proxy sees each object as it was
// less than that ago.
const settleTicks = 3

// portWorld is one import whose derived Service and slices a controller writes, at one moment.
type portWorld struct {
	exports []mcs.Export
	service []corev1.ServicePort
	slices  []*discoveryv1.EndpointSlice
}

// fataler is a test of the table, or one of rapid.
type fataler interface{ Fatalf(string, ...any) }

// portSimulation runs the controller of one import.
type portSimulation struct {
	portWorld
	past    []portWorld // the last settleTicks moments, the present one included
	pending map[NameChange]int
	now     int
}

var (
	simulatedPorts = []int32{80, 443, 9090}
	simulatedNames = []string{"a", "b", "c", "tcp-80", "tcp-443"}
)

// anyPorts draws ports with distinct names, and a single one sometimes without a name.
func anyPorts(t *rapid.T) []mcs.Port {
	numbers := rapid.SliceOfNDistinct(rapid.SampledFrom(simulatedPorts), 1, 3, rapid.ID).Draw(t, "ports")
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(simulatedNames), len(numbers), len(numbers), rapid.ID).Draw(t, "names")
	if len(numbers) == 1 && rapid.IntRange(0, 2).Draw(t, "unnamed") == 0 {
		names[0] = ""
	}
	var out []mcs.Port
	for i, number := range numbers {
		out = append(out, mcs.Port{Name: names[i], Protocol: corev1.ProtocolTCP, Port: number})
	}
	return out
}

// anyPortExports draws the exports of two clusters, each with its own ports and names. targets are
// the ports of the endpoints by cluster and port.
func anyPortExports(t *rapid.T, targets [2]map[int32]int32) []mcs.Export {
	var out []mcs.Export
	for c, ports := range [][]mcs.Port{anyPorts(t), anyPorts(t)} {
		e := webExport(fmt.Sprintf("cls%d", c+1))
		e.Created = e.Created.Add(1)
		e.Ports, e.Backends = ports, nil
		b := mcs.Backends{}
		for _, p := range ports {
			b.Ports = append(b.Ports, mcs.BackendPort{Name: p.Name, Protocol: p.Protocol, Port: targets[c][p.Port]})
		}
		for n := range rapid.IntRange(1, 6).Draw(t, "endpoints") {
			b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: netip.AddrFrom4([4]byte{10, byte(c), 0, byte(n)}), Ready: true, Serving: true})
		}
		e.Backends = []mcs.Backends{b}
		out = append(out, e.Canonical())
	}
	return out
}

// reconcile writes what is planned now. The API server refuses writes of the Service, and of the
// slices in refused.
func (s *portSimulation) reconcile(t fataler, refuseService bool, refused []string) {
	in := s.input()
	for change, since := range s.pending {
		if s.now-since >= settleTicks {
			in.Settled = append(in.Settled, change)
		}
	}
	p := Ports(in)
	pending := map[NameChange]int{}
	for _, change := range p.Pending {
		pending[change] = s.now
		if since, ok := s.pending[change]; ok {
			pending[change] = since
		}
	}
	s.pending = pending
	c := Slices(s.sliceInput(p))
	drop := func(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
		return slices.DeleteFunc(list, func(e *discoveryv1.EndpointSlice) bool { return slices.Contains(refused, e.Name) })
	}
	c.Create, c.Update, c.Delete = drop(c.Create), drop(c.Update), drop(c.Delete)
	s.slices = apply(s.slices, c)
	if !refuseService {
		s.service = servicePorts(p.Service)
	}
	s.checkValid(t)
	s.checkComplete(t, refuseService || len(refused) > 0)
}

func (s *portSimulation) input() PortInput {
	in := PortInput{Key: key, Merged: mcs.Merge(s.exports), Exports: s.exports, Slices: s.slices}
	if s.service != nil {
		in.Service = &corev1.Service{Spec: corev1.ServiceSpec{Ports: s.service}}
	}
	return in
}

func (s *portSimulation) sliceInput(p PortPlan) SliceInput {
	in := input(s.exports, s.slices...)
	in.PortNames = p.Names
	return in
}

// checkValid fails if the API server would refuse the objects.
func (s *portSimulation) checkValid(t fataler) {
	names := map[string]bool{}
	for _, p := range s.service {
		if names[p.Name] || p.Name == "" && len(s.service) > 1 {
			t.Fatalf("the names of the Service's ports are not valid: %v", s.service)
		}
		names[p.Name] = true
	}
	for _, e := range s.slices {
		names := map[string]bool{}
		for _, p := range e.Ports {
			if names[*p.Name] {
				t.Fatalf("slice %s has the name %q twice", e.Name, *p.Name)
			}
			names[*p.Name] = true
		}
	}
}

// checkComplete fails if a change of endpoints or a new port waits, unless writes were refused. A
// new port may wait beside one without a name.
func (s *portSimulation) checkComplete(t fataler, refused bool) {
	if refused {
		return
	}
	var got []string
	for _, e := range s.slices {
		for _, ep := range e.Endpoints {
			got = append(got, SourceCluster(e)+" "+ep.Addresses[0])
		}
	}
	slices.Sort(got)
	var want []string
	m := mcs.Merge(s.exports)
	for _, e := range s.exports {
		for _, b := range m.Backends(e) {
			for _, ep := range b.Endpoints {
				want = append(want, e.Cluster+" "+ep.Address.String())
			}
		}
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("endpoints (-want +got):\n%s", d)
	}
	if !slices.ContainsFunc(s.service, func(p corev1.ServicePort) bool { return p.Name == "" }) && len(s.service) != len(m.Ports) {
		t.Fatalf("the Service has the ports %v, want %v", s.service, m.Ports)
	}
}

// checkTraffic fails if a kube-proxy, which sees the Service and each slice as they were at any of
// the last moments, has no endpoint of a cluster for a port that Service and cluster had all the
// time, or a wrong port of it.
func (s *portSimulation) checkTraffic(t *rapid.T) {
	for _, id := range s.lastingPorts() {
		for _, e := range s.exports {
			numbers := s.lastingNumbers(id, e.Cluster)
			for _, seen := range s.past {
				i := slices.IndexFunc(seen.service, func(p corev1.ServicePort) bool { return portIDOf(p.Protocol, p.Port) == id })
				for _, slice := range s.pastSlices(e.Cluster) {
					j := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return *p.Name == seen.service[i].Name })
					if len(numbers) > 0 && (j < 0 || !numbers[*slice.Ports[j].Port]) {
						t.Fatalf("at %d port %s is %q in the Service, and slice %s has %s, want one of %v", s.now, id, seen.service[i].Name, slice.Name, portsString(slice), numbers)
					}
				}
			}
		}
	}
}

// lastingPorts returns the ports that the Service had at each of the last moments.
func (s *portSimulation) lastingPorts() []portID {
	var out []portID
	for _, p := range s.service {
		has := func(w portWorld) bool {
			return slices.ContainsFunc(w.service, func(o corev1.ServicePort) bool { return o.Port == p.Port }) &&
				slices.ContainsFunc(mcs.Merge(w.exports).Ports, func(o mcs.Port) bool { return o.Port == p.Port })
		}
		if !slices.ContainsFunc(s.past, func(w portWorld) bool { return !has(w) }) {
			out = append(out, portIDOf(p.Protocol, p.Port))
		}
	}
	return out
}

// lastingNumbers returns the ports that the cluster's endpoints had for the port, none if the
// cluster did not have it at each of the last moments.
func (s *portSimulation) lastingNumbers(id portID, cluster string) map[int32]bool {
	out := map[int32]bool{}
	for _, w := range s.past {
		m, found := mcs.Merge(w.exports), false
		i := slices.IndexFunc(m.Ports, func(p mcs.Port) bool { return p.Port == id.number })
		for _, e := range w.exports {
			for _, b := range m.Backends(e) {
				for _, p := range b.Ports {
					if i >= 0 && e.Cluster == cluster && p.Name == m.Ports[i].Name {
						out[p.Port], found = true, true
					}
				}
			}
		}
		if !found {
			return nil
		}
	}
	return out
}

// pastSlices returns the slices of a cluster with endpoints, as they were at the last moments.
func (s *portSimulation) pastSlices(cluster string) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, w := range s.past {
		for _, e := range w.slices {
			if SourceCluster(e) == cluster && len(e.Endpoints) > 0 {
				out = append(out, e)
			}
		}
	}
	return out
}

// tick lets time pass, reconciles, and checks that kube-proxy connects.
func (s *portSimulation) tick(t *rapid.T, refuseService bool, refused ...string) {
	s.now++
	s.reconcile(t, refuseService, refused)
	s.past = append(s.past, portWorld{s.exports, slices.Clone(s.service), copies(s.slices)})
	s.past = s.past[max(0, len(s.past)-settleTicks):]
	s.checkTraffic(t)
}

// anyTargets draws the ports of the endpoints of each cluster.
func anyTargets(t *rapid.T) (out [2]map[int32]int32) {
	for c := range out {
		out[c] = map[int32]int32{}
		for i, target := range rapid.Permutation([]int32{8080, 8443, 9999}).Draw(t, "targets") {
			out[c][simulatedPorts[i]] = target
		}
	}
	return out
}

// Whatever names the ports get in whatever order, also while writes are refused and after restarts:
// no connection finds no endpoint or a wrong port, nothing but names waits, and in the end all
// objects have the merged names and nothing is left to do. No two ports lead to the same port of
// the endpoints: their names in the slices are not distinct.
func TestPortsCostNoConnection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &portSimulation{pending: map[NameChange]int{}}
		targets := anyTargets(t)
		s.exports = anyPortExports(t, targets)
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			var refused []string
			refuseService := false
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0, 1, 2:
				s.exports = anyPortExports(t, targets)
			case 3:
				clear(s.pending) // a restart
			case 4:
				refuseService = s.service != nil
			case 5:
				if len(s.slices) > 0 {
					refused = []string{rapid.SampledFrom(s.slices).Draw(t, "refused").Name}
				}
			}
			s.tick(t, refuseService, refused...)
		}
		for range 10 * settleTicks {
			s.tick(t, false)
		}
		s.checkFinal(t)
	})
}

// checkFinal fails unless Service and slices have the merged names, and nothing is left to do.
func (s *portSimulation) checkFinal(t fataler) {
	m := mcs.Merge(s.exports)
	if d := cmp.Diff(servicePorts(m.Ports), s.service); d != "" {
		t.Fatalf("ports of the Service (-want +got):\n%s", d)
	}
	p := Ports(s.input())
	if len(p.Pending) > 0 || !Slices(s.sliceInput(PortPlan{})).IsEmpty() {
		t.Fatalf("left to do: %v, slices %s", p.Pending, slices.Collect(maps.Keys(s.pending)))
	}
}

// portsString returns the ports of the slice as "a=8080 b=8443".
func portsString(s *discoveryv1.EndpointSlice) string {
	var out []string
	for _, p := range s.Ports {
		out = append(out, fmt.Sprintf("%s=%d", *p.Name, *p.Port))
	}
	return fmt.Sprint(out)
}
