package instances

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

var (
	start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	key   = mcs.Key{Namespace: "demo", Name: "web"}
)

// webExport returns cluster's ClusterSetIP export of port http 80 -> 8080 with ready endpoints of
// these addresses.
func webExport(cluster string, addresses ...string) mcs.Export {
	e := mcs.Export{
		Key: key, Cluster: cluster, Created: start, Type: mcsv1beta1.ClusterSetIP,
		Ports:           []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol},
	}
	b := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}
	for _, a := range addresses {
		b.Endpoints = append(b.Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	e.Backends = []mcs.Backends{b}
	return e
}

func TestFromExport(t *testing.T) {
	e := webExport("cls1", "10.10.21.133")
	e.Ports = []mcs.Port{
		{Name: "", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "http"},
		{Name: "alias", Protocol: corev1.ProtocolTCP, Port: 81, TargetPort: "8080"},
		{Name: "unused", Protocol: corev1.ProtocolTCP, Port: 82},
	}
	e.Backends = []mcs.Backends{
		{
			Ports: []mcs.BackendPort{
				{Name: "alias", Protocol: corev1.ProtocolTCP, Port: 8080}, {Name: "", Protocol: corev1.ProtocolTCP, Port: 8080},
				{Name: "not of the Service", Protocol: corev1.ProtocolTCP, Port: 9},
			},
			Endpoints: []mcs.Endpoint{
				{Address: netip.MustParseAddr("10.10.21.133"), Ready: true, Node: "node-1"},
				{Address: netip.MustParseAddr("fd00:10::1"), Hostname: "web-0"},
			},
		},
		{Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.10.0.9")}}},
	}
	attributes := func(edits map[string]string) map[string]string {
		out := map[string]string{
			"AWS_INSTANCE_PORT": "8080", "ENDPOINT_PORT_NAME": "", "ENDPOINT_PROTOCOL": "TCP",
			"SERVICE_PORT": "80", "SERVICE_PORT_NAME": "", "SERVICE_PROTOCOL": "TCP", "SERVICE_TARGET_PORT": "http",
			"CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1", "SERVICE_TYPE": "ClusterSetIP",
			"SERVICE_EXPORT_CREATION_TIMESTAMP": "1795176000000", "K8S_CONTROLLER": "cloud-map-mcs-controller v1.2.3",
		}
		maps.Copy(out, edits)
		return out
	}
	want := []api.Instance{
		{ID: "tcp-10_10_21_133-8080", Attributes: attributes(map[string]string{
			"AWS_INSTANCE_IPV4": "10.10.21.133", "READY": "true", "HOSTNAME": "", "NODENAME": "node-1",
		})},
		{ID: "tcp-fd00_10__1-8080", Attributes: attributes(map[string]string{
			"AWS_INSTANCE_IPV6": "fd00:10::1", "READY": "false", "HOSTNAME": "web-0", "NODENAME": "",
		})},
	}
	if diff := cmp.Diff(want, FromExport(e, "set1", "v1.2.3")); diff != "" {
		t.Errorf("FromExport (-want +got):\n%s", diff)
	}
	e.Type = mcsv1beta1.Headless
	if got := FromExport(e, "set1", "v1.2.3")[0].Attributes["SERVICE_TYPE"]; got != "Headless" {
		t.Errorf("SERVICE_TYPE = %q", got)
	}
}

// Pods of a headless Service that share an address share its instances, which show a ready one.
func TestFromExport_SeveralHostNames(t *testing.T) {
	e := webExport("cls1")
	e.Type = mcsv1beta1.Headless
	endpoint := func(address, hostname string, isReady bool) mcs.Endpoint {
		return mcs.Endpoint{Address: netip.MustParseAddr(address), Hostname: hostname, Ready: isReady}
	}
	e.Backends[0].Endpoints = []mcs.Endpoint{
		endpoint("10.0.0.1", "web-0", false), endpoint("10.0.0.1", "web-1", true), endpoint("10.0.0.1", "web-2", false), endpoint("10.0.0.2", "web-3", false),
	}
	for name, tt := range map[string]struct {
		shape shape
		want  []string
	}{
		"all":        {shape{}, []string{"tcp-10_0_0_1-8080 web-1 true", "tcp-10_0_0_2-8080 web-3 false"}},
		"ready only": {shape{hasReadyOnly: true}, []string{"tcp-10_0_0_1-8080 web-1 true"}},
	} {
		var got []string
		instances, omitted := firstFromExport(e.Canonical(), "set1", "v1", maxInstances, tt.shape)
		for _, i := range instances {
			got = append(got, strings.Join([]string{i.ID, i.Attributes[AttrHostname], i.Attributes[AttrReady]}, " "))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || omitted > 0 {
			t.Errorf("%s: %d omitted, instances (-want +got):\n%s", name, omitted, diff)
		}
	}
}

// TestFirstFromExport_BoundsMemory mirrors a Service of 500 ports and 2,000 endpoints, which would
// be a million instances of 2 KiB.
func TestFirstFromExport_BoundsMemory(t *testing.T) {
	const ports, endpoints, limit = 500, 2000, 1000
	e := webExport("cls1")
	e.Ports, e.Backends = nil, []mcs.Backends{{}}
	for i := range ports {
		name := fmt.Sprint("port-", i)
		e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(8000 + i)})
	}
	for i := range endpoints {
		e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Ready: true})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out, omitted := firstFromExport(e, "set1", "v1", limit, shape{})
	runtime.ReadMemStats(&after)
	if len(out) != limit || omitted != ports*endpoints-limit {
		t.Errorf("%d instances and %d omitted, want %d and %d", len(out), omitted, limit, ports*endpoints-limit)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 10; took > 8<<10 {
		t.Errorf("it allocated %d KiB, want at most 8 MiB", took)
	}
	if again, _ := firstFromExport(e, "set1", "v1", limit, shape{}); !reflect.DeepEqual(out, again) {
		t.Error("the same export has other instances at the second call")
	}
}

func TestFromExport_ReplacesInvalidValues(t *testing.T) {
	e := webExport("cls1", "10.10.0.1")
	attrs := FromExport(e, " s ét\x00~ ", strings.Repeat("v", 2000))[0].Attributes
	if got := attrs["CLUSTERSET_ID"]; got != "s ?t?~" {
		t.Errorf("CLUSTERSET_ID = %q", got)
	}
	if n := len(attrs["K8S_CONTROLLER"]); n != 1024 {
		t.Errorf("K8S_CONTROLLER has %d characters", n)
	}
	if attrs["AWS_INSTANCE_IPV4"] != "10.10.0.1" {
		t.Errorf("the address is missing: %v", attrs)
	}
}

func TestDiff(t *testing.T) {
	ours := func(id string, more ...string) api.Instance {
		a := map[string]string{"CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1", "READY": "true"}
		for i := 0; i < len(more); i += 2 {
			a[more[i]] = more[i+1]
		}
		return api.Instance{ID: id, Attributes: a}
	}
	tests := []struct {
		name        string
		want, have  []api.Instance
		wantChanges Changes
	}{
		{
			name:        "new instances",
			want:        []api.Instance{ours("b"), ours("a")},
			wantChanges: Changes{Register: []api.Instance{ours("a"), ours("b")}},
		},
		{name: "nothing to do", want: []api.Instance{ours("a"), ours("b")}, have: []api.Instance{ours("b"), ours("a")}},
		{
			name:        "a change",
			want:        []api.Instance{ours("a", "READY", "false")},
			have:        []api.Instance{ours("a")},
			wantChanges: Changes{Register: []api.Instance{ours("a", "READY", "false")}},
		},
		{
			// Issue 312 of the legacy controller, which registers such an instance again and again.
			name: "attributes of others are no change",
			want: []api.Instance{ours("a")}, have: []api.Instance{ours("a", "LAMBDA", "x", "AWS_INIT_HEALTH_STATUS", "HEALTHY")},
		},
		{
			name:        "attributes of others survive a change, own attributes that are no longer written are removed",
			want:        []api.Instance{ours("a", "AWS_INSTANCE_IPV6", "fd00::1")},
			have:        []api.Instance{ours("a", "AWS_INSTANCE_IPV4", "10.0.0.1", "LAMBDA", "x")},
			wantChanges: Changes{Register: []api.Instance{ours("a", "AWS_INSTANCE_IPV6", "fd00::1", "LAMBDA", "x")}},
		},
		{
			name:        "unwanted instances of this cluster are deregistered",
			have:        []api.Instance{ours("c"), ours("b", "CLUSTER_ID", "cls2"), {ID: "ecs"}, ours("d", "CLUSTERSET_ID", "set2"), ours("a")},
			wantChanges: Changes{Deregister: []string{"a", "c"}},
		},
		{
			name:        "an instance of a controller without clusterset ID belongs to the cluster",
			have:        []api.Instance{{ID: "a", Attributes: map[string]string{"CLUSTER_ID": "cls1", "K8S_CONTROLLER": "aws-cloud-map-mcs-controller-for-k8s 0.2.0"}}},
			wantChanges: Changes{Deregister: []string{"a"}},
		},
		{
			name: "an instance of a user with an attribute CLUSTER_ID",
			have: []api.Instance{{ID: "a", Attributes: map[string]string{"CLUSTER_ID": "cls1"}}},
		},
		{
			name:        "instances of others are not overwritten",
			want:        []api.Instance{ours("c"), ours("b"), ours("a")},
			have:        []api.Instance{ours("a"), ours("c", "CLUSTER_ID", "cls2"), {ID: "b", Attributes: map[string]string{"ECS": "x"}}},
			wantChanges: Changes{Collisions: []Collision{{ID: "b"}, {ID: "c", ClusterID: "cls2"}}},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			own := OwnedBy("cls1", "set1")
			changes := Diff(tc.want, tc.have, own)
			if diff := cmp.Diff(tc.wantChanges, changes); diff != "" {
				t.Errorf("Diff (-want +got):\n%s", diff)
			}
			if again := Diff(tc.want, applyChanges(tc.have, changes), own); len(again.Register)+len(again.Deregister) > 0 {
				t.Errorf("the next diff has more changes: %v", again)
			}
		})
	}
}

// A list may lag behind the last write, and shows instances that a previous process left.
func TestMergeWritten(t *testing.T) {
	own := func(id, ready string, more ...string) api.Instance {
		attrs := map[string]string{"CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1", "READY": ready}
		for i := 0; i < len(more); i += 2 {
			attrs[more[i]] = more[i+1]
		}
		return api.Instance{ID: id, Attributes: attrs}
	}
	other := api.Instance{ID: "ecs", Attributes: map[string]string{"CLUSTER_ID": "cls2", "CLUSTERSET_ID": "set1"}}
	written := []api.Instance{own("not listed yet", "true"), own("written", "true")}
	listed := []api.Instance{own("written", "false", "LAMBDA", "x"), own("leftover", "true"), own("removed", "true"), other}
	isOwn := OwnedBy("cls1", "set1")
	have := mergeWritten(written, listed, isOwn)
	want := []api.Instance{own("not listed yet", "true"), own("written", "true"), own("removed", "true")}
	changes := Diff(want, have, isOwn)
	if diff := cmp.Diff(Changes{Register: []api.Instance{own("removed", "true")}, Deregister: []string{"leftover"}}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if changes := Diff(nil, have, isOwn); len(changes.Collisions) > 0 || !slices.Equal(changes.Deregister, []string{"leftover", "not listed yet", "removed", "written"}) {
		t.Errorf("changes without an export: %v", changes)
	}
}

func applyChanges(have []api.Instance, changes Changes) []api.Instance {
	byID := map[string]api.Instance{}
	for _, list := range [][]api.Instance{have, changes.Register} {
		for _, i := range list {
			byID[i.ID] = i
		}
	}
	for _, id := range changes.Deregister {
		delete(byID, id)
	}
	var out []api.Instance
	for _, i := range byID {
		out = append(out, i)
	}
	return out
}

// Two ports of a Service with one target port are one instance, which has one ID. A headless
// Service has no target ports: all ports of its slices count.
func TestMatchPorts(t *testing.T) {
	service := []mcs.Port{{Name: "http", Port: 80}, {Name: "web", Port: 8080}, {Name: "dns", Port: 53}, {Name: "dns-udp", Port: 53}, {Name: "none", Port: 1}}
	backends := []mcs.BackendPort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}, {Name: "web", Protocol: corev1.ProtocolTCP, Port: 8080},
		{Name: "dns", Protocol: corev1.ProtocolTCP, Port: 53}, {Name: "dns-udp", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "by hand", Protocol: corev1.ProtocolTCP, Port: 9},
	}
	for kind, want := range map[mcsv1beta1.ServiceImportType][]string{
		mcsv1beta1.ClusterSetIP: {"http 80 8080", "dns 53 53", "dns-udp 53 53"},
		mcsv1beta1.Headless:     {"http 80 8080", "dns 53 53", "dns-udp 53 53", "by hand 9 9"},
	} {
		var got []string
		for _, m := range matchPorts(mcs.Export{Type: kind, Ports: service}, backends) {
			got = append(got, fmt.Sprint(m.service.Name, " ", m.service.Port, " ", m.backend.Port))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: ports %v, want %v", kind, got, want)
		}
	}
}

// TestFromExport_UserAttributes: attributes that the user names are added, and removed when the
// user does not name them any more. Those of others stay.
func TestFromExport_UserAttributes(t *testing.T) {
	e := webExport("cls1", "10.10.0.1")
	e.InstanceAttributes = "team=a\nwhere=$(zone)"
	e.Backends[0].Endpoints[0].Zone = "eu-west-1a"
	own := OwnedBy("cls1", "set1")
	want := FromExport(e, "set1", "v1")
	attrs := want[0].Attributes
	if attrs["team"] != "a" || attrs["where"] != "eu-west-1a" || attrs[AttrNames] != "team,where" {
		t.Fatalf("attributes %v", attrs)
	}
	present := api.Instance{ID: want[0].ID, Attributes: maps.Clone(attrs)}
	present.Attributes["WEIGHT"] = "7" // of another client
	if changes := Diff(want, []api.Instance{present}, own); len(changes.Register) > 0 {
		t.Errorf("a service in sync is written: %v", changes.Register)
	}
	e.InstanceAttributes = "where=$(zone)"
	changes := Diff(FromExport(e, "set1", "v1"), []api.Instance{present}, own)
	if len(changes.Register) != 1 {
		t.Fatalf("changes %v", changes)
	}
	after := changes.Register[0].Attributes
	if _, has := after["team"]; has || after["where"] != "eu-west-1a" || after["WEIGHT"] != "7" || after[AttrNames] != "where" {
		t.Errorf("attributes after a removal: %v", after)
	}
}

// TestManagedAttributesAreReserved: no user can name an attribute that the controller writes.
func TestManagedAttributesAreReserved(t *testing.T) {
	if !slices.Equal(slices.Sorted(slices.Values(managedAttributes)), slices.Sorted(slices.Values(mcs.ReservedInstanceAttributes))) {
		t.Errorf("mcs.ReservedInstanceAttributes are %v, want %v", mcs.ReservedInstanceAttributes, managedAttributes)
	}
}
