package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// portsExport returns an export with ports like "http 80>8080", which lead to a port of its only
// endpoint, or ">8080" after the number alone if the port has no name.
func portsExport(t *testing.T, cluster, ports string) mcs.Export {
	t.Helper()
	e := webExport(cluster, "10.10.0.1")
	e.Ports, e.Backends[0].Ports = nil, nil
	for one := range strings.SplitSeq(ports, ", ") {
		name, numbers, named := strings.Cut(one, " ")
		if !named {
			name, numbers = "", one
		}
		var number, target int32
		if _, err := fmt.Sscanf(numbers, "%d>%d", &number, &target); err != nil {
			t.Fatalf("port %q: %v", one, err)
		}
		e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: number})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: target})
	}
	return e
}

// String returns the ports of the Service and of the slice whose name sorts first, as "http 80 |
// http=8080".
func (s *portSimulation) String() string {
	var service, slice []string
	for _, p := range s.service {
		service = append(service, fmt.Sprintf("%s %d", p.Name, p.Port))
	}
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	for _, p := range slices.MinFunc(s.slices, byName).Ports {
		slice = append(slice, fmt.Sprintf("%s=%d", *p.Name, *p.Port))
	}
	return strings.Join(service, ", ") + " | " + strings.Join(slice, ", ")
}

func TestPorts(t *testing.T) {
	tests := map[string]struct {
		before, after string
		// want are the ports of Service and slice: at once, and after each time that something has
		// settled.
		want []string
	}{
		"nothing changes": {before: "http 80>8080", after: "http 80>8080", want: []string{"http 80 | http=8080"}},
		"renamed": {before: "http 80>8080", after: "web 80>8080", want: []string{
			"http 80 | http=8080, web=8080",
			"web 80 | http=8080, web=8080",
			"web 80 | web=8080",
		}},
		"named beside another, which is new": {before: "80>8080", after: "http 80>8080, https 443>8443", want: []string{
			" 80 | =8080, http=8080, https=8443",
			"http 80, https 443 | =8080, http=8080, https=8443",
			"http 80, https 443 | http=8080, https=8443",
		}},
		"unnamed, and the other one goes": {before: "http 80>8080, https 443>8443", after: "80>8080", want: []string{
			"http 80 | =8080, http=8080",
			" 80 | =8080, http=8080",
			" 80 | =8080",
		}},
		"swapped": {before: "a 80>8080, b 443>8443", after: "b 80>8080, a 443>8443", want: []string{
			"a 80, b 443 | a=8080, b=8443, tcp-443=8443, tcp-80=8080",
			"tcp-80 80, tcp-443 443 | a=8080, b=8443, tcp-443=8443, tcp-80=8080",
			"tcp-80 80, tcp-443 443 | a=8443, b=8080, tcp-443=8443, tcp-80=8080",
			"b 80, a 443 | a=8443, b=8080, tcp-443=8443, tcp-80=8080",
			"b 80, a 443 | a=8443, b=8080",
		}},
		"swapped, and both lead to one port: the slices have both names already": {before: "a 80>8080, b 443>8080", after: "b 80>8080, a 443>8080", want: []string{
			"a 80, b 443 | a=8080, b=8080, tcp-443=8080, tcp-80=8080",
			"tcp-80 80, tcp-443 443 | a=8080, b=8080, tcp-443=8080, tcp-80=8080",
			"b 80, a 443 | a=8080, b=8080, tcp-443=8080, tcp-80=8080",
			"b 80, a 443 | a=8080, b=8080",
		}},
		"three change places": {before: "a 80>1, b 81>2, c 82>3", after: "b 80>1, c 81>2, a 82>3", want: []string{
			"a 80, b 81, c 82 | a=1, b=2, c=3, tcp-80=1, tcp-81=2, tcp-82=3",
			"tcp-80 80, tcp-81 81, tcp-82 82 | a=1, b=2, c=3, tcp-80=1, tcp-81=2, tcp-82=3",
			"tcp-80 80, tcp-81 81, tcp-82 82 | a=3, b=1, c=2, tcp-80=1, tcp-81=2, tcp-82=3",
			"b 80, c 81, a 82 | a=3, b=1, c=2, tcp-80=1, tcp-81=2, tcp-82=3",
			"b 80, c 81, a 82 | a=3, b=1, c=2",
		}},
		"one takes the name of another, which has a new one: it waits": {before: "a 80>8080, b 443>8443", after: "b 80>8080, c 443>8443", want: []string{
			"a 80, b 443 | a=8080, b=8443, c=8443",
			"a 80, c 443 | a=8080, b=8443, c=8443",
			"a 80, c 443 | a=8080, b=8080, c=8443",
			"b 80, c 443 | a=8080, b=8080, c=8443",
			"b 80, c 443 | b=8080, c=8443",
		}},
		"a new one takes the name of another: it is there at once": {before: "http 80>8080", after: "web 80>8080, http 8000>8443", want: []string{
			"http 80, tcp-8000 8000 | http=8080, tcp-8000=8443, web=8080",
			"web 80, tcp-8000 8000 | http=8080, tcp-8000=8443, web=8080",
			"web 80, tcp-8000 8000 | http=8443, tcp-8000=8443, web=8080",
			"web 80, http 8000 | http=8443, tcp-8000=8443, web=8080",
			"web 80, http 8000 | http=8443, web=8080",
		}},
		"the name between is taken": {before: "a 80>8080, tcp-80 443>8443", after: "tcp-80 80>8080, a 443>8443", want: []string{
			"a 80, tcp-80 443 | a=8080, tcp-443=8443, tcp-80=8443, tcp-80-2=8080",
			"tcp-80-2 80, tcp-443 443 | a=8080, tcp-443=8443, tcp-80=8443, tcp-80-2=8080",
			"tcp-80-2 80, tcp-443 443 | a=8443, tcp-443=8443, tcp-80=8080, tcp-80-2=8080",
			"tcp-80 80, a 443 | a=8443, tcp-443=8443, tcp-80=8080, tcp-80-2=8080",
			"tcp-80 80, a 443 | a=8443, tcp-80=8080",
		}},
		"another number of the Service, at once":       {before: "http 80>8080", after: "http 81>8080", want: []string{"http 81 | http=8080"}},
		"another number of the endpoints, at once":     {before: "http 80>8080", after: "http 80>8081", want: []string{"http 80 | http=8081"}},
		"one more, at once":                            {before: "http 80>8080", after: "http 80>8080, https 443>8443", want: []string{"http 80, https 443 | http=8080, https=8443"}},
		"one more that leads to the same port":         {before: "http 80>8080", after: "http 80>8080, alt 81>8080", want: []string{"http 80, alt 81 | alt=8080, http=8080"}},
		"one fewer, at once":                           {before: "http 80>8080, https 443>8443", after: "http 80>8080", want: []string{"http 80 | http=8080"}},
		"renamed to the name of one that goes":         {before: "a 80>8080, b 443>8443", after: "b 80>8080", want: []string{"a 80 | a=8080, b=8080", "b 80 | a=8080, b=8080", "b 80 | b=8080"}},
		"renamed while another one comes and one goes": {before: "a 80>8080, b 443>8443", after: "c 80>8080, d 82>8443", want: []string{"a 80, d 82 | a=8080, c=8080, d=8443", "c 80, d 82 | a=8080, c=8080, d=8443", "c 80, d 82 | c=8080, d=8443"}},
		"renamed, with another number of the endpoints": {before: "http 80>8080", after: "web 80>8081", want: []string{
			"http 80 | http=8081, web=8081",
			"web 80 | http=8081, web=8081",
			"web 80 | web=8081",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &portSimulation{portWorld: portWorld{exports: []mcs.Export{portsExport(t, "cls1", tc.before)}}}
			s.reconcile(t, false, nil)
			s.exports = []mcs.Export{portsExport(t, "cls1", tc.after)}
			var got []string
			for range 20 * settleTicks {
				s.now++
				s.reconcile(t, false, nil)
				if len(got) == 0 || got[len(got)-1] != s.String() {
					got = append(got, s.String())
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("ports of Service and slices (-want +got):\n%s", d)
			}
			if s.checkFinal(t); len(s.pending) > 0 {
				t.Errorf("pending in the end: %v", s.pending)
			}
		})
	}
}

// Nothing waits where no connection can fail: without endpoints, and when another client has
// renamed the port of the derived Service.
func TestPortsAtOnce(t *testing.T) {
	m := mcs.Merge([]mcs.Export{portsExport(t, "cls1", "http 80>8080")})
	foreign := func(ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Ports: ports}}
	}
	foo := corev1.ServicePort{Name: "foo", Protocol: corev1.ProtocolTCP, Port: 80}
	terminating := edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Name = &foo.Name
		s.DeletionTimestamp = new(metav1.Now())
	})
	for name, in := range map[string]PortInput{
		"no Service":               {},
		"no slices":                {Service: foreign(foo)},
		"a slice without the name": {Service: foreign(foo), Slices: []*discoveryv1.EndpointSlice{webSlice("cls1", 0, "10.10.0.1")}},
		"a slice that is being deleted has the name": {Service: foreign(foo), Slices: []*discoveryv1.EndpointSlice{terminating}},
		"a slice of another service has the name": {Service: foreign(foo), Slices: []*discoveryv1.EndpointSlice{
			edited(webSlice("cls1", 0, "10.10.0.1"), func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels, s.Ports[0].Name = "by-hand", nil, &foo.Name }),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in.Key, in.Merged = key, m
			p := Ports(in)
			if !slices.Equal(p.Service, m.Ports) || len(p.Pending) > 0 {
				t.Errorf("ports %v, pending %v, want %v at once", p.Service, p.Pending, m.Ports)
			}
			if names := p.Names["http"]; len(names) > 1 {
				t.Errorf("the slices get the names %v", names)
			}
		})
	}
}

// The slices of a cluster whose export is not known stay as they are: while they have the old name
// alone, the derived Service keeps it.
func TestPortsKeepNameOfUnknownCluster(t *testing.T) {
	s := &portSimulation{portWorld: portWorld{exports: []mcs.Export{portsExport(t, "cls1", "http 80>8080"), portsExport(t, "cls2", "http 80>8080")}}}
	s.reconcile(t, false, nil)
	s.exports = []mcs.Export{portsExport(t, "cls1", "web 80>8080")}
	var unknown []string
	for _, slice := range s.slices {
		if SourceCluster(slice) == "cls2" {
			unknown = append(unknown, slice.Name)
		}
	}
	for range 5 * settleTicks {
		s.now++
		s.reconcile(t, false, unknown)
	}
	if got, want := s.String(), "http 80 | http=8080, web=8080"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
