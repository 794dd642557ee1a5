package mcs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// webSource returns a Service with port http 80 -> 8080 in cluster cls1, exported, with slices.
func webSource(slices ...discoveryv1.EndpointSlice) Source {
	return Source{
		Identity: Identity{ClusterID: "cls1", ClusterSetID: "set1"},
		ServiceExport: &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "demo", Name: "web", CreationTimestamp: metav1.NewTime(start),
				Labels: map[string]string{"not": "exported"}, Annotations: map[string]string{"not": "exported"},
			},
		},
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web", Labels: map[string]string{"not": "exported"}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.20.0.1", SessionAffinity: corev1.ServiceAffinityNone,
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}},
			},
		},
		Slices: slices,
	}
}

func webSlice(name string, endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](8080)}},
		Endpoints:   endpoints,
	}
}

func pod(address string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: ptr.To(false)},
	}
}

func TestNewExport(t *testing.T) {
	tests := []struct {
		name      string
		src       func() Source
		want      func(*Export) // from webExport("cls1", 0) without endpoints
		wantLines []string
	}{
		{name: "no slices", src: func() Source { return webSource() }, want: func(*Export) {}},
		{name: "no endpoints", src: func() Source { return webSource(webSlice("a")) }, want: func(*Export) {}},
		{
			name: "everything of the Service and the ServiceExport",
			src: func() Source {
				src := webSource()
				spec := &src.Service.Spec
				spec.Type = corev1.ServiceTypeLoadBalancer
				spec.Ports[0].AppProtocol, spec.Ports[0].NodePort = ptr.To("http"), 30080
				spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromString("dns")},
					corev1.ServicePort{Name: "plain", Port: 9})
				spec.SessionAffinity = corev1.ServiceAffinityClientIP
				spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
				spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				spec.TrafficDistribution = ptr.To("PreferSameZone")
				spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
				src.ServiceExport.Spec.ExportedLabels = map[string]string{"team": "a"}
				src.ServiceExport.Spec.ExportedAnnotations = map[string]string{"note": "b", "kubernetes.io/x": "y"}
				return src
			},
			want: func(e *Export) {
				clientIP(10)(e)
				e.Ports[0].AppProtocol = "http"
				e.Ports = append(e.Ports, Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: "dns"},
					Port{Name: "plain", Protocol: corev1.ProtocolTCP, Port: 9, TargetPort: "9"})
				e.InternalTrafficPolicy, e.TrafficDistribution = "Local", "PreferSameZone"
				e.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
				e.Labels, e.Annotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
			},
			wantLines: []string{`annotation "kubernetes.io/x" left out: its prefix is reserved`},
		},
		{
			name: "conditions with their defaults, and what comes with an endpoint",
			src: func() Source {
				return webSource(webSlice("a",
					discoveryv1.Endpoint{Addresses: []string{"10.10.0.1", "10.10.9.9"}},
					discoveryv1.Endpoint{
						Addresses:  []string{"10.10.0.2"},
						Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)},
						Hostname:   ptr.To("web-0"), Zone: ptr.To("zone-a"), NodeName: ptr.To("node-1"),
					},
					discoveryv1.Endpoint{},
				))
			},
			want: func(e *Export) {
				e.Backends = []Backends{{
					Ports: []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
					Endpoints: []Endpoint{
						{Address: netip.MustParseAddr("10.10.0.1"), Ready: true, Serving: true},
						{Address: netip.MustParseAddr("10.10.0.2"), Serving: true, Terminating: true, Hostname: "web-0", Zone: "zone-a", Node: "node-1"},
					},
				}}
			},
			wantLines: []string{"1 endpoints of EndpointSlice a left out: the endpoint has no address"},
		},
		{
			name: "an address in two slices while it moves",
			src: func() Source {
				serving := pod("10.10.0.1", false)
				serving.Conditions.Serving = ptr.To(true)
				return webSource(webSlice("b", serving), webSlice("a", pod("10.10.0.1", true)), webSlice("c", serving))
			},
			want: func(e *Export) {
				e.Backends = []Backends{{[]BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}, []Endpoint{readyEndpoint("10.10.0.1")}}}
			},
		},
		{
			name: "ports that pods resolve differently, and both families",
			src: func() Source {
				other, six := webSlice("b", pod("10.10.0.2", true)), webSlice("c", pod("fd00:10::1", true))
				other.Ports[0].Port = ptr.To[int32](9090)
				six.AddressType = discoveryv1.AddressTypeIPv6
				return webSource(webSlice("a", pod("10.10.0.1", true)), other, six)
			},
			want: func(e *Export) {
				e.Backends = []Backends{
					{[]BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}, []Endpoint{readyEndpoint("10.10.0.1"), readyEndpoint("fd00:10::1")}},
					{[]BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 9090}}, []Endpoint{readyEndpoint("10.10.0.2")}},
				}
			},
		},
		{
			// The AWS Cloud Map MCS Controller for K8s panics on these (its issue 150).
			name: "ports with nothing said about them",
			src: func() Source {
				src := webSource(webSlice("a", pod("10.10.0.1", true)))
				src.Service.Spec.Ports[0].Name = ""
				src.Slices[0].Ports = []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}, {Name: ptr.To("all")}}
				return src
			},
			want: func(e *Export) {
				e.Ports[0].Name = ""
				e.Backends = []Backends{{[]BackendPort{{Name: "", Protocol: corev1.ProtocolTCP, Port: 8080}}, []Endpoint{readyEndpoint("10.10.0.1")}}}
			},
			wantLines: []string{`endpoint port "all" of EndpointSlice a left out: it has no number, and no port of the Service has that meaning`},
		},
		{
			name: "headless without ports",
			src: func() Source {
				src := webSource(webSlice("a", pod("10.10.0.1", true)))
				src.Service.Spec.ClusterIP, src.Service.Spec.Ports, src.Slices[0].Ports = corev1.ClusterIPNone, nil, nil
				return src
			},
			want: func(e *Export) {
				headless(e)
				e.Ports = nil
				e.Backends = []Backends{{nil, []Endpoint{readyEndpoint("10.10.0.1")}}}
			},
		},
		{
			name: "addresses that other clusters cannot use",
			src: func() Source {
				return webSource(webSlice("a", pod("127.0.0.1", true), pod("nonsense", true), pod("10.10.0.1", true)))
			},
			want: func(e *Export) {
				e.Backends = []Backends{{[]BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}, []Endpoint{readyEndpoint("10.10.0.1")}}}
			},
			wantLines: []string{
				`endpoint "nonsense" of EndpointSlice a left out: it is not an IP address`,
				"endpoint 127.0.0.1 of EndpointSlice a left out: the address is a loopback address",
			},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			src, before := tc.src(), tc.src()
			got, left, err := NewExport(src, nil, start)
			if err != nil {
				t.Fatal(err)
			}
			want := webExport("cls1", 0, func(e *Export) { e.Backends = nil }, tc.want)
			if diff := cmp.Diff(want, got, compareAddr); diff != "" {
				t.Errorf("NewExport (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLines, left.lines()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, src); diff != "" {
				t.Errorf("NewExport changed its input (-before +after):\n%s", diff)
			}
		})
	}
}

func TestNewExportChanged(t *testing.T) {
	later := start.Add(time.Hour)
	first, _, err := NewExport(webSource(webSlice("a", pod("10.10.0.1", true))), nil, start)
	if err != nil {
		t.Fatal(err)
	}
	same, _, _ := NewExport(webSource(webSlice("b", pod("10.10.0.1", true)), webSlice("a")), &first, later)
	if !same.Changed.Equal(start) {
		t.Errorf("nothing changed, but Changed moved to %s", same.Changed)
	}
	other, _, _ := NewExport(webSource(webSlice("a", pod("10.10.0.1", false))), &first, later)
	if !other.Changed.Equal(later) {
		t.Errorf("an endpoint changed, but Changed is %s", other.Changed)
	}
}

func TestNewExportRefuses(t *testing.T) {
	src := webSource()
	src.Identity.ClusterID = "Not a label"
	if _, _, err := NewExport(src, nil, start); err == nil {
		t.Error("NewExport accepted a bad cluster ID")
	}
}
