package legacy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// oldInstance returns an instance as version 0.3.1 of the legacy controller writes it, recorded
// against cloudmap-local.
func oldInstance(cluster, address string, edits map[string]string) api.Instance {
	attrs := map[string]string{
		"AWS_INSTANCE_IPV4": address, "AWS_INSTANCE_PORT": "8080", "CLUSTER_ID": cluster, "CLUSTERSET_ID": "set1",
		"ENDPOINT_PORT_NAME": "http", "ENDPOINT_PROTOCOL": "TCP", "HOSTNAME": "", "NODENAME": "node-1", "READY": "true",
		"SERVICE_PORT": "80", "SERVICE_PORT_NAME": "http", "SERVICE_PROTOCOL": "TCP", "SERVICE_TARGET_PORT": "8080",
		"SERVICE_TYPE": "ClusterSetIP", "SERVICE_EXPORT_CREATION_TIMESTAMP": "1790000000000",
		"K8S_CONTROLLER": "aws-cloud-map-mcs-controller-for-k8s ",
	}
	for k, v := range edits {
		if v == "absent" {
			delete(attrs, k)
		} else {
			attrs[k] = v
		}
	}
	return api.Instance{ID: fmt.Sprintf("tcp-%s-%s", strings.ReplaceAll(address, ".", "_"), attrs["AWS_INSTANCE_PORT"]), Attributes: attrs}
}

func TestExportsOf(t *testing.T) {
	type edits = map[string]string
	export := func(change func(*mcs.Export)) *mcs.Export {
		e := mcs.Export{
			Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: "cls1", Created: time.Unix(1_790_000_000, 0), Type: mcsv1beta1.ClusterSetIP,
			Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Backends: []mcs.Backends{{
				Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
				Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}},
			}},
		}
		if change != nil {
			change(&e)
		}
		e = e.Canonical()
		return &e
	}
	endpoint := func(address string) mcs.Endpoint {
		return mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true}
	}
	metrics := edits{"AWS_INSTANCE_PORT": "9090", "SERVICE_PORT": "81", "SERVICE_PORT_NAME": "metrics", "ENDPOINT_PORT_NAME": "metrics", "SERVICE_TARGET_PORT": "9090"}
	tests := []struct {
		name string
		have []api.Instance
		want []InstanceExport
	}{
		{name: "no instances"},
		{
			name: "one endpoint",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", nil)},
			want: []InstanceExport{{Cluster: "cls1", Export: export(nil)}},
		},
		{
			name: "instances of others are ignored",
			have: []api.Instance{
				oldInstance("cls1", "10.0.0.1", nil),
				oldInstance("cls1", "10.0.0.2", edits{"CLUSTERSET_ID": "set2"}),
				oldInstance("cls1", "10.0.0.3", edits{"CLUSTERSET_ID": "absent"}),
				{ID: "ecs", Attributes: edits{"AWS_INSTANCE_IPV4": "10.0.0.4", "CLUSTERSET_ID": "set1"}},
			},
			want: []InstanceExport{{Cluster: "cls1", Export: export(nil)}},
		},
		{
			name: "two clusters",
			have: []api.Instance{oldInstance("cls2", "10.0.0.2", nil), oldInstance("cls1", "10.0.0.1", nil)},
			want: []InstanceExport{
				{Cluster: "cls1", Export: export(nil)},
				{Cluster: "cls2", Export: export(func(e *mcs.Export) {
					e.Cluster = "cls2"
					e.Backends[0].Endpoints = []mcs.Endpoint{endpoint("10.0.0.2")}
				})},
			},
		},
		{
			name: "two ports of one endpoint, not ready in one instance",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", nil), oldInstance("cls1", "10.0.0.1", with(metrics, "READY", "false"))},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Ports = append(e.Ports, mcs.Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 81, TargetPort: "9090"})
				e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090})
				e.Backends[0].Endpoints[0].Ready, e.Backends[0].Endpoints[0].Serving = false, false
			})}},
		},
		{
			name: "a port of which only some endpoints have been written",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", nil), oldInstance("cls1", "10.0.0.2", nil), oldInstance("cls1", "10.0.0.2", metrics)},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Ports = append(e.Ports, mcs.Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 81, TargetPort: "9090"})
				e.Backends = append(e.Backends, mcs.Backends{
					Ports:     []mcs.BackendPort{e.Backends[0].Ports[0], {Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090}},
					Endpoints: []mcs.Endpoint{endpoint("10.0.0.2")},
				})
			})}},
		},
		{
			name: "a named targetPort that pods resolve differently",
			have: []api.Instance{
				oldInstance("cls1", "10.0.0.1", edits{"SERVICE_TARGET_PORT": "web"}),
				oldInstance("cls1", "10.0.0.2", edits{"SERVICE_TARGET_PORT": "web", "AWS_INSTANCE_PORT": "8081"}),
			},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Ports[0].TargetPort = "web"
				e.Backends = append(e.Backends, mcs.Backends{
					Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8081}},
					Endpoints: []mcs.Endpoint{endpoint("10.0.0.2")},
				})
			})}},
		},
		{
			name: "an endpoint's port number changes while it is read",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", nil), oldInstance("cls1", "10.0.0.1", edits{"AWS_INSTANCE_PORT": "8081"})},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Backends = append(e.Backends, mcs.Backends{
					Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8081}}, Endpoints: []mcs.Endpoint{endpoint("10.0.0.1")},
				})
			})}},
		},
		{
			name: "headless, with host names and IPv6",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", edits{"SERVICE_TYPE": "Headless", "HOSTNAME": "web-0", "AWS_INSTANCE_IPV6": "fd00::1"})},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Type, e.IPFamilies = mcsv1beta1.Headless, append(e.IPFamilies, corev1.IPv6Protocol)
				e.Backends[0].Endpoints = []mcs.Endpoint{endpoint("10.0.0.1"), endpoint("fd00::1")}
				for i := range e.Backends[0].Endpoints {
					e.Backends[0].Endpoints[i].Hostname = "web-0"
				}
			})}},
		},
		{
			name: "the value of most instances counts",
			have: []api.Instance{
				oldInstance("cls1", "10.0.0.1", nil), oldInstance("cls1", "10.0.0.2", nil),
				oldInstance("cls1", "10.0.0.3", edits{"SERVICE_TYPE": "Headless", "SERVICE_EXPORT_CREATION_TIMESTAMP": "1"}),
			},
			want: []InstanceExport{{Cluster: "cls1", Export: export(func(e *mcs.Export) {
				e.Backends[0].Endpoints = []mcs.Endpoint{endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3")}
			})}},
		},
		{
			name: "an early version without READY and creation time",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", edits{"READY": "absent", "SERVICE_EXPORT_CREATION_TIMESTAMP": "absent"})},
			want: []InstanceExport{{
				Cluster: "cls1", Export: export(func(e *mcs.Export) { e.Created = time.Time{} }),
				Problems: []string{"there is no creation time: every other export wins against this one"},
			}},
		},
		{
			name: "an invalid instance is left out",
			have: []api.Instance{
				oldInstance("cls1", "10.0.0.1", nil),
				oldInstance("cls1", "10.0.0.2", edits{"SERVICE_PORT": "0"}),
				oldInstance("cls1", "10.0.0.3", edits{"AWS_INSTANCE_PORT": "65536"}),
				oldInstance("cls1", "10.0.0.4", edits{"AWS_INSTANCE_IPV4": "10.0.0"}),
				oldInstance("cls1", "10.0.0.5", edits{"READY": "perhaps"}),
				oldInstance("cls1", "10.0.0.6", edits{"AWS_INSTANCE_IPV4": "absent"}),
				oldInstance("cls1", "10.0.0.7", edits{"AWS_INSTANCE_IPV4": "127.0.0.1"}),
			},
			want: []InstanceExport{{Cluster: "cls1", Export: export(nil), Problems: []string{
				`instance tcp-10_0_0_2-8080 left out: SERVICE_PORT is "0", no port number`,
				`instance tcp-10_0_0_3-65536 left out: AWS_INSTANCE_PORT is "65536", no port number`,
				`instance tcp-10_0_0_4-8080 left out: "10.0.0" is not an IP address`,
				`instance tcp-10_0_0_5-8080 left out: READY is "perhaps", neither true nor false`,
				`instance tcp-10_0_0_6-8080 left out: it has neither AWS_INSTANCE_IPV4 nor AWS_INSTANCE_IPV6`,
				`endpoint 127.0.0.1 left out: the address is a loopback address`,
			}}},
		},
		{
			name: "an invalid cluster ID",
			have: []api.Instance{oldInstance("cls1", "10.0.0.1", nil), oldInstance("Not.A.Label", "10.0.0.2", nil)},
			want: []InstanceExport{
				{Cluster: "Not.A.Label", Problems: []string{`checking the source cluster: ID "Not.A.Label" is not a DNS label: use at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit`}},
				{Cluster: "cls1", Export: export(nil)},
			},
		},
		{
			name: "instances of this controller have pages",
			have: []api.Instance{
				oldInstance("cls1", "10.0.0.1", edits{"K8S_CONTROLLER": "cloud-map-mcs-controller 1.0.0"}),
				oldInstance("cls2", "10.0.0.1", edits{"K8S_CONTROLLER": "cloud-map-mcs-controller 1.0.0"}),
				oldInstance("cls2", "10.0.0.2", nil),
			},
			want: []InstanceExport{
				{Cluster: "cls1", HasPages: true, Export: export(nil)},
				{Cluster: "cls2", Export: export(func(e *mcs.Export) {
					e.Cluster = "cls2"
					e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, endpoint("10.0.0.2"))
				})},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			compareAddresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(tt.want, ExportsOf(mcs.Key{Namespace: "demo", Name: "web"}, "set1", tt.have), compareAddresses); diff != "" {
				t.Errorf("ExportsOf (-want +got):\n%s", diff)
			}
		})
	}
}

func with(edits map[string]string, more ...string) map[string]string {
	out := maps.Clone(edits)
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// TestExportsOf_IsInverseOfFromExport checks this for the properties that instances have, in any
// order of the instances.
func TestExportsOf_IsInverseOfFromExport(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		want := randomShownExport(random)
		instances := instances.FromExport(want, "set1", "v1")
		random.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })
		got := ExportsOf(want.Key, "set1", instances)
		if len(got) != 1 || got[0].Export == nil || len(got[0].Problems) > 0 || !got[0].HasPages {
			t.Fatalf("seed %d: %+v", seed, got)
		}
		if !got[0].Export.Equal(want) {
			t.Fatalf("seed %d:\nwant %+v\ngot  %+v", seed, want, *got[0].Export)
		}
	}
}

// randomShownExport returns an export with only the properties that instances hold.
func randomShownExport(random *rand.Rand) mcs.Export {
	e := mcs.Export{
		// 2020 to 2032
		Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: "cls1", Created: time.Unix(1_577_836_800+random.Int64N(400_000_000), 0),
		Type: []mcsv1beta1.ServiceImportType{mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless}[random.IntN(2)],
	}
	ports := 1 + random.IntN(3)
	for i := range ports {
		e.Ports = append(e.Ports, mcs.Port{Name: fmt.Sprintf("p%d", i), Protocol: corev1.ProtocolTCP, Port: int32(80 + i), TargetPort: fmt.Sprint("t", i)})
	}
	for g := range 1 + random.IntN(3) {
		b := mcs.Backends{}
		for i := range ports {
			b.Ports = append(b.Ports, mcs.BackendPort{Name: fmt.Sprintf("p%d", i), Protocol: corev1.ProtocolTCP, Port: int32(8000 + 100*g + i)})
		}
		for i := range 1 + random.IntN(4) {
			ready := random.IntN(2) == 0
			b.Endpoints = append(b.Endpoints, mcs.Endpoint{
				Address: netip.AddrFrom4([4]byte{10, 0, byte(g), byte(i)}), Ready: ready, Serving: ready, Hostname: []string{"", "web-0"}[random.IntN(2)],
			})
		}
		e.Backends = append(e.Backends, b)
	}
	e.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	return e.Canonical()
}

func FuzzExportsOf(f *testing.F) {
	seeds := [][]string{{"10.0.0.1", "8080", "80", "http", "TCP", "ClusterSetIP", "true", "1790000000000", "web-0"}}
	for _, s := range append(seeds, []string{"::ffff:1.2.3.4%eth0", "-1", "99999999999", "\x00", "", "Headless", "TRUE ", "-9223372036854775808", "..."}) {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8])
	}
	f.Fuzz(func(t *testing.T, address, port, svcPort, name, protocol, kind, ready, created, hostname string) {
		instances := []api.Instance{
			oldInstance("cls1", "10.0.0.1", map[string]string{
				"AWS_INSTANCE_IPV4": address, "AWS_INSTANCE_PORT": port, "SERVICE_PORT": svcPort, "SERVICE_PORT_NAME": name, "SERVICE_PROTOCOL": protocol,
				"ENDPOINT_PROTOCOL": protocol, "SERVICE_TYPE": kind, "READY": ready, "SERVICE_EXPORT_CREATION_TIMESTAMP": created, "HOSTNAME": hostname,
			}),
			oldInstance("cls2", "10.0.0.2", nil),
		}
		got := ExportsOf(mcs.Key{Namespace: "demo", Name: "web"}, "set1", instances)
		if !slices.ContainsFunc(got, func(e InstanceExport) bool {
			return e.Cluster == "cls2" && e.Export != nil && e.Export.EndpointCount() == 1
		}) {
			t.Fatalf("a bad instance of one cluster hurt another: %+v", got)
		}
		for _, e := range got {
			if e.Export == nil {
				continue
			}
			again, problems, err := mcs.Sanitize(*e.Export)
			if err != nil || !again.Equal(*e.Export) {
				t.Fatalf("what was read is not sanitized (%v, %v): %+v", err, problems, *e.Export)
			}
		}
	})
}
