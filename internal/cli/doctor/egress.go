package doctor

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// egress are the NetworkPolicies that limit the connections of the controller's pods.
type egress []networkingv1.NetworkPolicy

// readEgress returns the NetworkPolicies that limit the connections of the controller's pods, none
// if they cannot be read.
func readEgress(ctx context.Context, k *session.Cluster, namespace string) (limiting egress) {
	var list networkingv1.NetworkPolicyList
	if err := k.List(ctx, namespace, &list); err != nil {
		return nil
	}
	for i := range list.Items {
		p := &list.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err == nil && selector.Matches(labels.Set(session.ManagerLabels())) && limitsEgress(p) {
			limiting = append(limiting, *p)
		}
	}
	return limiting
}

// limitsEgress reports whether a policy is about connections that pods make. Without policyTypes it
// is if it has a rule for them.
func limitsEgress(p *networkingv1.NetworkPolicy) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return len(p.Spec.Egress) > 0
	}
	return slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// names returns the names of the policies.
func (e egress) names() (names []string) {
	for i := range e {
		names = append(names, e[i].Namespace+"/"+e[i].Name)
	}
	return names
}

// allows reports whether the controller may connect to a TCP address. Rules of all policies add up.
// Those that select pods or namespaces match no address of another cluster, and may match one of
// this cluster (isLocal).
func (e egress) allows(address string, isLocal bool) bool {
	to, err := netip.ParseAddrPort(address)
	if err != nil || len(e) == 0 {
		return true
	}
	for i := range e {
		for _, rule := range e[i].Spec.Egress {
			if allowsPort(rule.Ports, to.Port()) && allowsPeer(rule.To, to.Addr(), isLocal) {
				return true
			}
		}
	}
	return false
}

// allowsPort reports whether the ports of a rule have a TCP port. A name is that of a port of a pod
// in the same cluster.
func allowsPort(ports []networkingv1.NetworkPolicyPort, port uint16) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			return false
		}
		if p.Port == nil {
			return true
		}
		first := p.Port.IntValue()
		last := first
		if p.EndPort != nil {
			last = int(*p.EndPort)
		}
		return first <= int(port) && int(port) <= last
	})
}

// allowsPeer reports whether the destinations of a rule have an address, or may have it.
func allowsPeer(peers []networkingv1.NetworkPolicyPeer, to netip.Addr, isLocal bool) bool {
	contains := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		return err == nil && prefix.Contains(to)
	}
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock == nil {
			return isLocal
		}
		return contains(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, contains)
	})
}
