package mcs

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestSanitizeLeavesGoodExportsAlone(t *testing.T) {
	for _, e := range []Export{
		webExport("cls1", 0),
		webExport("cls1", 0, headless, withPorts(), func(e *Export) { e.Backends = nil }),
		webExport("cls1", 0, clientIP(86400), withFamilies(corev1.IPv6Protocol, corev1.IPv4Protocol), func(e *Export) {
			e.Ports = []Port{{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 65535, AppProtocol: "kubernetes.io/h2c", TargetPort: "http-alt"}}
			e.InternalTrafficPolicy, e.TrafficDistribution = "Local", "PreferSameNode"
			e.Labels = map[string]string{"app.kubernetes.io/name": "web", "team": ""}
			e.Annotations = map[string]string{"example.com/Note": "ünïcode\n" + strings.Repeat("x", 3_000)}
			e.Annotations["pad"] = strings.Repeat("x", maxAnnotationBytes-len("example.com/Note")-len(e.Annotations["example.com/Note"])-len("pad"))
			e.Backends = []Backends{{
				Ports: []BackendPort{{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 1}},
				Endpoints: []Endpoint{
					{Address: netip.MustParseAddr("10.0.0.1"), Hostname: "web-0", Zone: "us-west-2a", Node: "ip-10-0-0-1.ec2.internal"},
					readyEndpoint("fd00:10::1"),
				},
			}}
		}),
	} {
		got, lines, err := Sanitize(e)
		if err != nil || lines != nil {
			t.Errorf("Sanitize: lines %q, error %v", lines, err)
		}
		if diff := cmp.Diff(e.Canonical(), got, compareAddr); diff != "" {
			t.Errorf("Sanitize changed a good export (-want +got):\n%s", diff)
		}
	}
}

func TestSanitizeRefuses(t *testing.T) {
	for want, edit := range map[string]func(*Export){
		`namespace "Kube System" is not a DNS label`:                                      func(e *Export) { e.Key.Namespace = "Kube System" },
		`namespace "" is not a DNS label`:                                                 func(e *Export) { e.Key.Namespace = "" },
		`service name "../web" is not a DNS label`:                                        func(e *Export) { e.Key.Name = "../web" },
		`service name "` + strings.Repeat("x", 64) + `..." is no`:                         func(e *Export) { e.Key.Name = strings.Repeat("x", 1<<20) },
		`source cluster: ID "a.b" is not a DNS label`:                                     func(e *Export) { e.Cluster = "a.b" },
		`type "" is neither`:                                                              func(e *Export) { e.Type = "" },
		`type "ExternalName" is neither`:                                                  func(e *Export) { e.Type = "ExternalName" },
		`ClusterSetIP has no usable port: it has none`:                                    withPorts(),
		`no usable port: port http 0/TCP left out: the number is not between 1 and 65535`: withPorts(tcp("http", 0)),
	} {
		_, _, err := Sanitize(webExport("cls1", 0, edit))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Sanitize = %v, want an error with %q", err, want)
		}
	}
}

func TestSanitizeLeavesOut(t *testing.T) {
	tests := []struct {
		name      string
		edit      func(*Export)
		want      func(*Export)
		wantLines []string
	}{
		{
			name:      "creation time",
			edit:      func(e *Export) { e.Created = time.Time{} },
			want:      func(e *Export) { e.Created = time.Time{} },
			wantLines: []string{"there is no creation time: every other export wins against this one"},
		},
		{
			name:      "omitted creation time, which decodes to 1970",
			edit:      func(e *Export) { e.Created = time.Unix(0, 0) },
			want:      func(e *Export) { e.Created = time.Time{} },
			wantLines: []string{"creation time 1970-01-01T00:00:00Z left out: it is not between 2020 and 2200, so every other export wins against this one"},
		},
		{
			name:      "creation time before the API existed",
			edit:      func(e *Export) { e.Created = time.Date(2019, 12, 31, 23, 59, 59, 0, time.UTC) },
			want:      func(e *Export) { e.Created = time.Time{} },
			wantLines: []string{"creation time 2019-12-31T23:59:59Z left out: it is not between 2020 and 2200, so every other export wins against this one"},
		},
		{
			name: "times that have no JSON",
			edit: func(e *Export) { e.Created, e.Changed = time.Unix(math.MaxInt32<<8, 0), time.UnixMilli(math.MinInt64) },
			want: func(e *Export) { e.Created, e.Changed = time.Time{}, time.Time{} },
			wantLines: []string{
				"creation time 19391-01-25T12:13:52Z left out: it is not between 2020 and 2200, so every other export wins against this one",
			},
		},
		{
			name: "ports",
			edit: withPorts(tcp("http", 80), tcp("http", 81), tcp("web", 80), tcp("UPPER", 82), tcp("p", -1), tcp("p", 65536),
				Port{Name: "p", Protocol: "ICMP", Port: 83}, Port{Name: "ok", Protocol: "TCP", Port: 84, AppProtocol: "a b", TargetPort: "0"}),
			want: withPorts(tcp("http", 80), tcp("ok", 84)),
			wantLines: []string{
				"port http 81/TCP left out: another port has its name or number",
				"port web 80/TCP left out: another port has its name or number",
				"port UPPER 82/TCP left out: the name is not a DNS label",
				"port p -1/TCP left out: the number is not between 1 and 65535",
				"port p 65536/TCP left out: the number is not between 1 and 65535",
				"port p 83/ICMP left out: the protocol is none of TCP, UDP, SCTP",
				`appProtocol "a b" of port ok left out: it is not a qualified name`,
				`targetPort "0" of port ok left out: it is neither a port number nor a port name`,
			},
		},
		{
			name: "policies",
			edit: func(e *Export) {
				e.SessionAffinity, e.InternalTrafficPolicy, e.TrafficDistribution = "Cookie", "Zone", "PreferMoon"
				e.IPFamilies = []corev1.IPFamily{"IPv5", "IPv4"}
			},
			want: func(*Export) {},
			wantLines: []string{
				`sessionAffinity "Cookie" left out: it is unknown`,
				`internalTrafficPolicy "Zone" left out: it is unknown`,
				`trafficDistribution "PreferMoon" left out: it is unknown`,
				`IP family "IPv5" left out: it is unknown`,
			},
		},
		{
			name:      "affinity timeout",
			edit:      clientIP(86401),
			want:      clientIP(10800),
			wantLines: []string{"sessionAffinityConfig left out: a timeout of 86401 s is not between 1 and 86400"},
		},
		{
			name:      "negative affinity timeout",
			edit:      clientIP(-1),
			want:      clientIP(10800),
			wantLines: []string{"sessionAffinityConfig left out: a timeout of -1 s is not between 1 and 86400"},
		},
		{
			name: "labels and annotations",
			edit: func(e *Export) {
				e.Labels = map[string]string{
					"app.kubernetes.io/managed-by": "me", "multicluster.kubernetes.io/service-name": "x", "kubernetes.io/service-name": "x",
					"topology.k8s.io/zone": "x", "ok": "yes", "bad value": "x", "bad": "a b",
				}
				e.Annotations = map[string]string{
					"kubectl.kubernetes.io/last-applied-configuration": "{}", "multicluster.k8s.aws/derived-service": "x",
					"Multicluster.Kubernetes.IO/derived-service": "x", "multicluster.x-k8s.io/x": "y", "ok": "yes", "": "x",
					"notkubernetes.io/ok": "yes",
				}
			},
			want: func(e *Export) {
				e.Labels = map[string]string{"ok": "yes"}
				e.Annotations = map[string]string{"ok": "yes", "notkubernetes.io/ok": "yes"}
			},
			wantLines: []string{
				`label "app.kubernetes.io/managed-by" left out: its prefix is reserved`,
				`label "bad" left out: its key or value is not valid`,
				`label "bad value" left out: its key or value is not valid`,
				`label "kubernetes.io/service-name" left out: its prefix is reserved`,
				`label "multicluster.kubernetes.io/service-name" left out: its prefix is reserved`,
				`label "topology.k8s.io/zone" left out: its prefix is reserved`,
				`annotation "" left out: its key is not valid`,
				`annotation "Multicluster.Kubernetes.IO/derived-service" left out: its prefix is reserved`,
				`annotation "kubectl.kubernetes.io/last-applied-configuration" left out: its prefix is reserved`,
				`annotation "multicluster.k8s.aws/derived-service" left out: its prefix is reserved`,
				`annotation "multicluster.x-k8s.io/x" left out: its prefix is reserved`,
			},
		},
		{
			name: "endpoints",
			edit: func(e *Export) {
				e.Backends[0].Endpoints = []Endpoint{
					{}, readyEndpoint("0.0.0.0"), readyEndpoint("0.1.2.3"), readyEndpoint("::"), readyEndpoint("127.0.0.1"), readyEndpoint("::1"),
					readyEndpoint("::ffff:127.0.0.1"), readyEndpoint("169.254.169.254"), readyEndpoint("fe80::1"), readyEndpoint("fd00::1%eth0"),
					readyEndpoint("224.0.0.1"), readyEndpoint("ff05::1"), readyEndpoint("255.255.255.255"), readyEndpoint("::ffff:10.0.0.7"),
					{Address: netip.MustParseAddr("10.0.0.8"), Hostname: "no.label", Zone: "no zone", Node: "no/node"},
				}
			},
			want: func(e *Export) {
				e.Backends[0].Endpoints = []Endpoint{readyEndpoint("10.0.0.7"), {Address: netip.MustParseAddr("10.0.0.8")}}
			},
			wantLines: []string{
				"endpoint invalid IP left out: it has no address",
				"endpoint 0.0.0.0 left out: the address is unspecified",
				"endpoint 0.1.2.3 left out: the address is unspecified",
				`hostname "no.label" of endpoint 10.0.0.8 left out: it is not a DNS label`,
				`zone "no zone" of endpoint 10.0.0.8 left out: it is not a label value`,
				`node "no/node" of endpoint 10.0.0.8 left out: it is not a DNS name`,
				"endpoint 127.0.0.1 left out: the address is a loopback address",
				"endpoint 169.254.169.254 left out: the address is link-local",
				"endpoint 224.0.0.1 left out: the address is a multicast address",
				"endpoint 255.255.255.255 left out: the address is the broadcast address",
				"endpoint :: left out: the address is unspecified",
				"endpoint ::1 left out: the address is a loopback address",
				"endpoint fd00::1%eth0 left out: an address with a zone is valid on one host only",
				"endpoint fe80::1 left out: the address is link-local",
				"endpoint ff05::1 left out: the address is a multicast address",
			},
		},
		{
			name: "addresses of metadata services, and those that contain another address",
			edit: func(e *Export) {
				e.Backends[0].Endpoints = []Endpoint{
					readyEndpoint("fd00:ec2::254"), readyEndpoint("fd00:ec2::23"), readyEndpoint("fd20:ce::254"), readyEndpoint("168.63.129.16"),
					readyEndpoint("::ffff:168.63.129.16"), readyEndpoint("100.100.100.200"), readyEndpoint("192.0.0.192"),
					readyEndpoint("64:ff9b::169.254.169.254"), readyEndpoint("64:ff9b:1::a9fe:a9fe"), readyEndpoint("::ffff:0:169.254.169.254"),
					readyEndpoint("::169.254.169.254"), readyEndpoint("2002:a9fe:a9fe::1"), readyEndpoint("2001:0:4136:e378:8000:63bf:3fff:fdd2"),
					readyEndpoint("100.100.100.201"), readyEndpoint("2001:db8::1"), readyEndpoint("fd00:ec1::1"),
				}
			},
			want: func(e *Export) {
				e.Backends[0].Endpoints = []Endpoint{
					readyEndpoint("100.100.100.201"), readyEndpoint("2001:db8::1"), readyEndpoint("fd00:ec1::1"),
				}
			},
			wantLines: []string{
				"endpoint 100.100.100.200 left out: the address is the metadata service of Alibaba Cloud",
				"endpoint 168.63.129.16 left out: the address is the platform service of Azure",
				"endpoint 192.0.0.192 left out: the address is in a reserved network (RFC 6890), which has the metadata service of Oracle Cloud",
				"endpoint ::a9fe:a9fe left out: the address is an IPv4-compatible address",
				"endpoint ::ffff:0:a9fe:a9fe left out: the address is a translated IPv4 address (SIIT)",
				"endpoint 64:ff9b::a9fe:a9fe left out: the address is a translated IPv4 address (NAT64)",
				"endpoint 64:ff9b:1::a9fe:a9fe left out: the address is a translated IPv4 address (NAT64)",
				"endpoint 2001:0:4136:e378:8000:63bf:3fff:fdd2 left out: the address is a tunnelled IPv4 address (Teredo)",
				"endpoint 2002:a9fe:a9fe::1 left out: the address is a tunnelled IPv4 address (6to4)",
				"endpoint fd00:ec2::23 left out: the address is a metadata service of AWS",
				"endpoint fd00:ec2::254 left out: the address is a metadata service of AWS",
				"endpoint fd20:ce::254 left out: the address is the metadata service of Google Cloud",
			},
		},
		{
			name: "endpoint ports",
			edit: func(e *Export) {
				e.Backends = append(e.Backends,
					Backends{Ports: []BackendPort{{Name: "http", Protocol: "TCP", Port: 0}}, Endpoints: []Endpoint{readyEndpoint("10.0.0.5")}},
					Backends{Ports: []BackendPort{{Name: "http", Protocol: "TCP", Port: 1}, {Name: "http", Protocol: "TCP", Port: 2}, {Name: "A", Protocol: "TCP", Port: 2}, {Name: "x", Protocol: "TCP", Port: 3, AppProtocol: "a b"}}, Endpoints: []Endpoint{readyEndpoint("10.0.0.6")}})
			},
			want: func(e *Export) {
				e.Backends = append([]Backends{{Ports: []BackendPort{{Name: "http", Protocol: "TCP", Port: 1}, {Name: "x", Protocol: "TCP", Port: 3}}, Endpoints: []Endpoint{readyEndpoint("10.0.0.6")}}}, e.Backends...)
			},
			wantLines: []string{
				`endpoint port "A" 2/TCP left out: the name is not a DNS label`,
				`endpoint port "http" 2/TCP left out: another port has its name`,
				`appProtocol "a b" of endpoint port "x" left out: it is not a qualified name`,
				`endpoint port "http" 0/TCP left out: the number is not between 1 and 65535`,
				"1 endpoints left out: none of their ports is usable",
			},
		},
		{
			name: "ports of headless backends: the addresses stay, which is what clients use",
			edit: func(e *Export) {
				headless(e)
				e.Backends = []Backends{{Ports: []BackendPort{{Name: "http", Protocol: "TCP", Port: 0}}, Endpoints: []Endpoint{readyEndpoint("10.0.0.5")}}}
			},
			want: func(e *Export) {
				headless(e)
				e.Backends = []Backends{{Endpoints: []Endpoint{readyEndpoint("10.0.0.5")}}}
			},
			wantLines: []string{`endpoint port "http" 0/TCP left out: the number is not between 1 and 65535`},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, lines, err := Sanitize(webExport("cls1", 0, tc.edit))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(webExport("cls1", 0, tc.want), got, compareAddr); diff != "" {
				t.Errorf("Sanitize (-want +got):\n%s", diff)
			}
			// The order of lines is not promised.
			if diff := cmp.Diff(sorted(tc.wantLines), sorted(lines)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSanitizeCapsEndlessLists(t *testing.T) {
	e := webExport("cls1", 0, func(e *Export) {
		e.Labels, e.Annotations = map[string]string{}, map[string]string{}
		for i := range 2000 {
			e.Ports = append(e.Ports, tcp(fmt.Sprintf("p%d", i), int32(1000+i)))
			e.Labels[fmt.Sprintf("l%04d", i)] = "x"
			e.Annotations[fmt.Sprintf("a%04d", i)] = strings.Repeat("x", 1000)
		}
		for i := range 200 {
			b := Backends{Ports: []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(1 + i)}}}
			for j := range 101 {
				b.Endpoints = append(b.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, byte(i), byte(j)})})
			}
			e.Backends = append(e.Backends, b)
		}
	})
	got, lines, err := Sanitize(e)
	if err != nil {
		t.Fatal(err)
	}
	annotations, _ := json.Marshal(got.Annotations)
	for what, n := range map[string][2]int{
		"ports":            {len(got.Ports), 1000},
		"labels":           {len(got.Labels), 100},
		"annotation bytes": {len(annotations), 4_400},
		"groups":           {len(got.Backends), 100},
		"endpoints":        {got.EndpointCount(), 10_000},
		"lines":            {len(lines), 21},
	} {
		if n[0] > n[1] || n[0] < n[1]*9/10 {
			t.Errorf("%d %s, want at most, and about, %d", n[0], what, n[1])
		}
	}
	if last := lines[len(lines)-1]; !strings.HasSuffix(last, "more problems") {
		t.Errorf("last line: %s", last)
	}
}

// FuzzSanitize checks that the Kubernetes API accepts every sanitized export.
func FuzzSanitize(f *testing.F) {
	for _, e := range []Export{webExport("cls1", 0, clientIP(10)), webExport("cls1", 0, headless, withPorts())} {
		seed, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var e Export
		if json.Unmarshal(data, &e) != nil {
			return
		}
		got, _, err := Sanitize(e)
		if err != nil {
			return
		}
		checkUsable(t, got)
		again, lines, err := Sanitize(got)
		if err != nil || len(lines) > 0 && !got.Created.IsZero() || !again.Equal(got) {
			t.Errorf("sanitizing again: %q, %v\n%s", lines, err, cmp.Diff(got, again, compareAddr))
		}
		Merge([]Export{got, webExport("cls2", 0)}).Backends(got)
	})
}

// checkUsable applies the rules of the Kubernetes API, as its validation of Services and
// EndpointSlices has them.
func checkUsable(t *testing.T, e Export) {
	t.Helper()
	names := map[string]bool{}
	for _, p := range e.Ports {
		if p.Port < 1 || p.Port > 65535 || names[p.Name] || p.Name != "" && validation.IsDNS1123Label(p.Name) != nil {
			t.Errorf("bad port %+v", p)
		}
		names[p.Name] = true
	}
	for k, v := range e.Labels {
		if validation.IsQualifiedName(k) != nil || validation.IsValidLabelValue(v) != nil {
			t.Errorf("bad label %q=%q", k, v)
		}
	}
	for _, b := range e.Backends {
		for _, p := range b.Ports {
			if p.Port < 1 || p.Port > 65535 {
				t.Errorf("bad endpoint port %+v", p)
			}
		}
		for _, ep := range b.Endpoints {
			if a := ep.Address; !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
				netip.MustParsePrefix("fd00:ec2::/32").Contains(a) || netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
				t.Errorf("bad address %s", a)
			}
		}
	}
	if e.Type == mcsv1beta1.ClusterSetIP && len(e.Ports) == 0 {
		t.Error("a clusterset IP without port")
	}
}

// TestCheckPodAddress has the first and last address of each refused network, and its neighbours.
func TestCheckPodAddress(t *testing.T) {
	for reason, addresses := range map[string][]string{
		"metadata service of Oracle Cloud":  {"fd00:c1::a9fe:a9fe", "192.0.0.192", "::ffff:192.0.0.192"},
		"metadata service of Scaleway":      {"fd00:42::42"},
		"metadata service of Linode":        {"fd00:a9fe:a9fe::1"},
		"metadata service of Alibaba Cloud": {"fd00:100::100:200", "100.100.100.200"},
		"metadata service of AWS":           {"fd00:ec2::", "fd00:ec2::254", "fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff"},
		"metadata service of Google Cloud":  {"fd20:ce::254"},
		"platform service of Azure":         {"168.63.129.16"},
		"site-local address":                {"fec0::", "fec0:0:0:ffff::1", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		"relay of 6to4":                     {"192.88.99.0", "192.88.99.1", "192.88.99.255"},
		"broadcast":                         {"255.255.255.255"},
		"link-local":                        {"169.254.169.254", "169.254.42.42", "fe80::a9fe:a9fe"},
		"translated IPv4 address (NAT64)":   {"64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"},
		"tunnelled IPv4 address (6to4)":     {"2002:a9fe:a9fe::1"},
	} {
		for _, address := range addresses {
			if err := CheckPodAddress(netip.MustParseAddr(address)); err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: %v, want %q", address, err, reason)
			}
		}
	}
	// Class E is a network of pods on GKE.
	for _, address := range []string{
		"10.0.0.1", "100.64.0.1", "100.100.100.201", "168.63.129.17", "192.88.98.255", "192.88.100.0", "240.0.0.1", "2001:db8::1", "fd00::1", "fd00:c1::a9fe:a9ff", "fd00:c1::1",
		"fd00:42::43", "fd00:a9fe:a9fe::2", "fd00:100::100:201", "fd00:ec1::1", "fd00:ec3::1", "fd20:cf::1",
	} {
		if err := CheckPodAddress(netip.MustParseAddr(address)); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}
