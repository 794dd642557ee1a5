package plan

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestInstancesOf(t *testing.T) {
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
	want := []Instance{
		{ID: "tcp-10_10_21_133-8080", Attributes: attributes(map[string]string{
			"AWS_INSTANCE_IPV4": "10.10.21.133", "READY": "true", "HOSTNAME": "", "NODENAME": "node-1",
		})},
		{ID: "tcp-fd00_10__1-8080", Attributes: attributes(map[string]string{
			"AWS_INSTANCE_IPV6": "fd00:10::1", "READY": "false", "HOSTNAME": "web-0", "NODENAME": "",
		})},
	}
	if diff := cmp.Diff(want, InstancesOf(e, "set1", "v1.2.3")); diff != "" {
		t.Errorf("InstancesOf (-want +got):\n%s", diff)
	}
	e.Type = mcsv1beta1.Headless
	if got := InstancesOf(e, "set1", "v1.2.3")[0].Attributes["SERVICE_TYPE"]; got != "Headless" {
		t.Errorf("SERVICE_TYPE = %q", got)
	}
}

func TestInstancesOfBadValues(t *testing.T) {
	e := webExport("cls1", "10.10.0.1")
	attrs := InstancesOf(e, " sét\x00 ", strings.Repeat("v", 2000))[0].Attributes
	if got := attrs["CLUSTERSET_ID"]; got != "s?t?" {
		t.Errorf("CLUSTERSET_ID = %q", got)
	}
	if n := len(attrs["K8S_CONTROLLER"]); n != 1024 {
		t.Errorf("K8S_CONTROLLER has %d characters", n)
	}
	if attrs["AWS_INSTANCE_IPV4"] != "10.10.0.1" {
		t.Errorf("the rest is broken: %v", attrs)
	}
}

func TestInstances(t *testing.T) {
	ours := func(id string, more ...string) Instance {
		a := map[string]string{"CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1", "READY": "true"}
		for i := 0; i < len(more); i += 2 {
			a[more[i]] = more[i+1]
		}
		return Instance{ID: id, Attributes: a}
	}
	tests := []struct {
		name       string
		want, have []Instance
		wantDo     InstanceChanges
	}{
		{
			name:   "new ones",
			want:   []Instance{ours("b"), ours("a")},
			wantDo: InstanceChanges{Register: []Instance{ours("a"), ours("b")}},
		},
		{name: "nothing to do", want: []Instance{ours("a"), ours("b")}, have: []Instance{ours("b"), ours("a")}},
		{
			name:   "a change",
			want:   []Instance{ours("a", "READY", "false")},
			have:   []Instance{ours("a")},
			wantDo: InstanceChanges{Register: []Instance{ours("a", "READY", "false")}},
		},
		{
			// Issue 312 of the AWS Cloud Map MCS Controller for K8s: it registers such an instance again for ever.
			name: "attributes of others change nothing",
			want: []Instance{ours("a")}, have: []Instance{ours("a", "LAMBDA", "x", "AWS_INIT_HEALTH_STATUS", "HEALTHY")},
		},
		{
			name:   "attributes of others survive a change, what we no longer write goes",
			want:   []Instance{ours("a", "AWS_INSTANCE_IPV6", "fd00::1")},
			have:   []Instance{ours("a", "AWS_INSTANCE_IPV4", "10.0.0.1", "LAMBDA", "x")},
			wantDo: InstanceChanges{Register: []Instance{ours("a", "AWS_INSTANCE_IPV6", "fd00::1", "LAMBDA", "x")}},
		},
		{
			name:   "what is not wanted goes if it is ours",
			have:   []Instance{ours("c"), ours("b", "CLUSTER_ID", "cls2"), {ID: "ecs"}, ours("d", "CLUSTERSET_ID", "set2"), ours("a")},
			wantDo: InstanceChanges{Deregister: []string{"a", "c"}},
		},
		{
			name:   "what the early controller wrote is ours",
			have:   []Instance{{ID: "a", Attributes: map[string]string{"CLUSTER_ID": "cls1"}}},
			wantDo: InstanceChanges{Deregister: []string{"a"}},
		},
		{
			name:   "others' instances are not overwritten",
			want:   []Instance{ours("c"), ours("b"), ours("a")},
			have:   []Instance{ours("a"), ours("c", "CLUSTER_ID", "cls2"), {ID: "b", Attributes: map[string]string{"ECS": "x"}}},
			wantDo: InstanceChanges{Collisions: []Collision{{ID: "b"}, {ID: "c", ClusterID: "cls2"}}},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			own := OwnInstance("cls1", "set1")
			do := Instances(tc.want, tc.have, own)
			if diff := cmp.Diff(tc.wantDo, do); diff != "" {
				t.Errorf("Instances (-want +got):\n%s", diff)
			}
			if again := Instances(tc.want, applyInstances(tc.have, do), own); len(again.Register)+len(again.Deregister) > 0 {
				t.Errorf("the next pass finds more to do: %v", again)
			}
		})
	}
}

func applyInstances(have []Instance, do InstanceChanges) []Instance {
	byID := map[string]Instance{}
	for _, list := range [][]Instance{have, do.Register} {
		for _, i := range list {
			byID[i.ID] = i
		}
	}
	for _, id := range do.Deregister {
		delete(byID, id)
	}
	var out []Instance
	for _, i := range byID {
		out = append(out, i)
	}
	return out
}
