package deploy_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestNetworkPolicy evaluates the chart's policy as Kubernetes defines it, for addresses outside
// the cluster and for the cluster's own pods, to which some plugins do not apply CIDRs (local).
func TestNetworkPolicy(t *testing.T) {
	const (
		enabled = "networkPolicy.egressTo={192.0.2.0/24}"
		pods    = enabled + ",networkPolicy.podNetworks={10.10.0.0/16,fd00:10::/32}"
		probes  = pods + ",networkPolicy.probeTo={10.10.0.0/16,172.20.0.0/16}"
	)
	tests := map[string]struct {
		set      string
		outside  string // address of a peer outside this cluster; "" is a pod of it
		port     int32
		protocol corev1.Protocol
		in, out  bool
	}{
		"API server":                        {set: pods, outside: "192.0.2.1", port: 443, out: true},
		"API server, any network":           {set: "replicas=2", outside: "203.0.113.1", port: 6443, out: true},
		"API server on a node":              {set: "replicas=2", port: 6443, out: true},
		"Pod Identity":                      {set: pods, outside: "169.254.170.23", port: 80, out: true},
		"Pod Identity, IPv6":                {set: pods, outside: "fd00:ec2::23", port: 80, out: true},
		"instance profile":                  {set: pods, outside: "169.254.169.254", port: 80, out: true},
		"another link-local address":        {set: pods, outside: "169.254.169.253", port: 80},
		"HTTP":                              {set: pods, outside: "192.0.2.1", port: 80},
		"another port there":                {set: pods, outside: "192.0.2.1", port: 22},
		"etcd":                              {set: pods + ",etcd.endpoints={https://192.0.2.2:2379}", outside: "192.0.2.2", port: 2379, out: true},
		"DNS":                               {set: pods, outside: "203.0.113.1", port: 53, protocol: corev1.ProtocolUDP, out: true},
		"metrics from this cluster":         {set: pods, port: 8080, in: true},
		"metrics from another cluster":      {set: pods, outside: "10.10.3.4", port: 8080},
		"notification":                      {set: pods, outside: "10.10.3.4", port: 8479, protocol: corev1.ProtocolUDP, in: true, out: true},
		"notification, IPv6":                {set: pods, outside: "fd00:10:0:1::4", port: 8479, protocol: corev1.ProtocolUDP, in: true, out: true},
		"notification from another network": {set: pods, outside: "203.0.113.1", port: 8479, protocol: corev1.ProtocolUDP},
		"notifications without podNetworks": {set: enabled, outside: "203.0.113.1", port: 8479, protocol: corev1.ProtocolUDP, in: true, out: true},
		"notifications off":                 {set: pods + ",peerNotifications.enabled=false", outside: "10.10.3.4", port: 8479, protocol: corev1.ProtocolUDP},
		"another controller":                {set: pods, outside: "10.10.3.4", port: 8081, in: true, out: true},
		"health port, notifications off":    {set: pods + ",peerNotifications.enabled=false", outside: "10.10.3.4", port: 8081, in: true, out: true},
		"health port from another network":  {set: pods, outside: "203.0.113.1", port: 8081},
		"imported service":                  {set: pods, outside: "10.10.3.4", port: 3306},
		"imported service, probes":          {set: probes, outside: "10.10.3.4", port: 3306, out: true},
		"its clusterset IP, probes":         {set: probes, outside: "172.20.3.4", port: 80, out: true},
		"one of this cluster":               {set: pods, port: 65535},
		"one of this cluster, probes":       {set: probes, port: 65535, out: true},
		"a service over UDP, probes":        {set: probes, outside: "10.10.3.4", port: 3306, protocol: corev1.ProtocolUDP},
		"other network, probes":             {set: probes, outside: "203.0.113.1", port: 3306},
		"service on the health port":        {set: probes, outside: "172.20.3.4", port: 8081, out: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var policy networkingv1.NetworkPolicy
			rendered := objects(t, mustTemplate(t, "--set", tt.set))["NetworkPolicy/cloud-map-mcs-controller-manager"]
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rendered.Object, &policy); err != nil {
				t.Fatal(err)
			}
			in := slices.ContainsFunc(policy.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
				return allows(r.From, r.Ports, tt.outside, tt.port, tt.protocol)
			})
			out := slices.ContainsFunc(policy.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
				return allows(r.To, r.Ports, tt.outside, tt.port, tt.protocol)
			})
			if in != tt.in || out != tt.out {
				t.Errorf("in %t, out %t, want %t, %t", in, out, tt.in, tt.out)
			}
		})
	}
}

// allows reports whether a rule allows a connection: to a peer by its address, or by selector to
// any pod of this cluster.
func allows(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, outside string, port int32, protocol corev1.Protocol) bool {
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	return (len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock == nil || outside == "" {
			return p.IPBlock == nil && outside == ""
		}
		return netip.MustParsePrefix(p.IPBlock.CIDR).Contains(netip.MustParseAddr(outside))
	})) && slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		last := p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return *p.Protocol == protocol && p.Port.IntVal <= port && port <= last
	})
}
