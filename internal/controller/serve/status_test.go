package serve

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestCountMembers(t *testing.T) {
	now := time.Unix(100, 0)
	key := mcs.Key{Namespace: "demo", Name: "web"}
	exp := func(cluster string, n int) mcs.Export {
		return mcs.Export{Key: key, Cluster: cluster, Backends: []mcs.Backends{{Endpoints: make([]mcs.Endpoint, n)}}}
	}
	own := exp("a", 2)
	got := countMembers([]registry.Member{
		{ClusterID: "a", LastSeen: now.Add(time.Second)},
		{ClusterID: "b", LastSeen: now.Add(-90 * time.Second), Stale: true, Problems: []string{"x"}},
		{ClusterID: "c", LastSeen: now},
	}, "a", []status.Service{
		{Own: &own, Exports: []mcs.Export{exp("b", 1), exp("gone", 1)}, Unknown: []string{"c", "gone"}},
		{Exports: []mcs.Export{exp("b", 3)}},
	}, now)
	want := []status.Member{
		{ClusterID: "a", Exports: 1, Endpoints: 2},
		{ClusterID: "b", HeartbeatAge: 90, Stale: true, Exports: 2, Endpoints: 4, Problems: []string{"x"}},
		{ClusterID: "c", Unknown: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestProbeTargets(t *testing.T) {
	imp := &mcsv1beta1.ServiceImport{Spec: mcsv1beta1.ServiceImportSpec{
		IPs:   []string{"10.96.0.7", "fd00::7"},
		Ports: []mcsv1beta1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 53}, {Port: 80}, {Port: 443}},
	}}
	slice := func(cluster string, protocol corev1.Protocol, ready bool, address string) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mcsv1beta1.LabelSourceCluster: cluster}},
			Ports:      []discoveryv1.EndpointPort{{Protocol: &protocol, Port: new(int32(8080))}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	got := probeTargets(imp, []discoveryv1.EndpointSlice{
		slice("b", corev1.ProtocolTCP, false, "10.0.2.1"), slice("b", corev1.ProtocolTCP, true, "10.0.2.2"), slice("b", corev1.ProtocolTCP, true, "10.0.2.3"),
		slice("a", corev1.ProtocolTCP, true, "fd00:1::1"), slice("c", corev1.ProtocolUDP, true, "10.0.3.1"),
	})
	want := []status.Target{
		{Address: "10.96.0.7:80"}, {Address: "[fd00::7]:80"},
		{Address: "[fd00:1::1]:8080", Cluster: "a"}, {Address: "10.0.2.2:8080", Cluster: "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
