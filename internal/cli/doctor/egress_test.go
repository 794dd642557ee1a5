package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// policyWith returns a NetworkPolicy for the controller's pods with egress rules.
func policyWith(rules ...networkingv1.NetworkPolicyEgressRule) networkingv1.NetworkPolicy {
	return networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: session.DefaultNamespace, Name: "limits"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: session.ManagerLabels()},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: rules,
		},
	}
}

func TestEgressAllows(t *testing.T) {
	port := func(protocol corev1.Protocol, port intstr.IntOrString, end *int32) []networkingv1.NetworkPolicyPort {
		return []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port, EndPort: end}}
	}
	block := func(cidr string, except ...string) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}
	}
	type rule = networkingv1.NetworkPolicyEgressRule
	for name, tc := range map[string]struct {
		policies egress
		want     bool
	}{
		"no policy":                {nil, true},
		"no rule":                  {egress{policyWith()}, false},
		"all":                      {egress{policyWith(rule{})}, true},
		"the port":                 {egress{policyWith(rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(8080), nil)})}, true},
		"another port":             {egress{policyWith(rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(443), nil)})}, false},
		"a range":                  {egress{policyWith(rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(8000), new(int32(9000)))})}, true},
		"a range below":            {egress{policyWith(rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(7000), new(int32(8000)))})}, false},
		"UDP":                      {egress{policyWith(rule{Ports: port(corev1.ProtocolUDP, intstr.FromInt32(8080), nil)})}, false},
		"a named port":             {egress{policyWith(rule{Ports: port(corev1.ProtocolTCP, intstr.FromString("http"), nil)})}, false},
		"any TCP port":             {egress{policyWith(rule{Ports: []networkingv1.NetworkPolicyPort{{}}})}, true},
		"the network":              {egress{policyWith(rule{To: block("10.1.0.0/16")})}, true},
		"another network":          {egress{policyWith(rule{To: block("10.2.0.0/16")})}, false},
		"all but the network":      {egress{policyWith(rule{To: block("10.0.0.0/8", "10.1.0.0/16")})}, false},
		"pods of the same cluster": {egress{policyWith(rule{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}})}, false},
		"one of two policies":      {egress{policyWith(), policyWith(rule{})}, true},
		"port and network of two rules": {egress{policyWith(
			rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(8080), nil), To: block("10.2.0.0/16")},
			rule{Ports: port(corev1.ProtocolTCP, intstr.FromInt32(443), nil), To: block("10.1.0.0/16")})}, false},
	} {
		if got := tc.policies.allows("10.1.0.1:8080", false); got != tc.want {
			t.Errorf("%s: allowed %v, want %v", name, got, tc.want)
		}
		// Only a rule that selects pods differs for an endpoint of the same cluster.
		if got, want := tc.policies.allows("10.1.0.1:8080", true), tc.want || name == "pods of the same cluster"; got != want {
			t.Errorf("%s, in the same cluster: allowed %v, want %v", name, got, want)
		}
	}
}

// TestReadEgress reads the policies that select the controller's pods and limit what these connect
// to.
func TestReadEgress(t *testing.T) {
	ingress, other, implied := policyWith(), policyWith(), policyWith(networkingv1.NetworkPolicyEgressRule{})
	ingress.Name, ingress.Spec.PolicyTypes = "ingress", []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	other.Name, other.Spec.PodSelector = "other", metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	implied.Name, implied.Spec.PolicyTypes = "implied", nil
	limits, elsewhere := policyWith(), policyWith()
	elsewhere.Namespace = "demo"
	clusters := clitest.NewClusters()
	for _, p := range []networkingv1.NetworkPolicy{ingress, other, implied, limits, elsewhere} {
		clusters["cls1"].Add(&p)
	}
	got := readEgress(t.Context(), clusters.Start(t)["cls1"], session.DefaultNamespace).names()
	if want := []string{session.DefaultNamespace + "/implied", session.DefaultNamespace + "/limits"}; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("policies %v, want %v", got, want)
	}
}
