package mcs

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Reach is what the clients of an import reach in one cluster. It changes only when the first
// endpoint becomes usable or the last one does not, so that a condition which has it is seldom
// written.
type Reach int

const (
	// ReachNone means that no cluster has a usable endpoint.
	ReachNone Reach = iota
	// ReachAny means that some cluster has one.
	ReachAny
	// ReachOwnNode means that internalTrafficPolicy is Local, and the cluster has endpoints of its
	// own.
	ReachOwnNode
	// ReachNoNode means that it has none, so that its clients reach nothing.
	ReachNoNode
)

// Reach returns what clients reach in cluster own, whose Services have the IP families supported
// (nil if unknown), with the endpoints of exports.
func (m Merged) Reach(exports []Export, own string, supported []corev1.IPFamily) Reach {
	isLocal := m.Type == mcsv1beta1.ClusterSetIP && m.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	isUsable := slices.ContainsFunc(exports, func(e Export) bool { return (!isLocal || e.Cluster == own) && m.hasUsable(e, supported) })
	switch {
	case isLocal && isUsable:
		return ReachOwnNode
	case isLocal:
		return ReachNoNode
	case isUsable:
		return ReachAny
	}
	return ReachNone
}

// hasUsable reports whether e has an endpoint that clients of the merged service use. For a
// clusterset IP, that includes those which still serve while they terminate; DNS has the ready ones
// only.
func (m Merged) hasUsable(e Export, supported []corev1.IPFamily) bool {
	names := m.portNames(e)
	isHeadless := m.Type == mcsv1beta1.Headless
	return slices.ContainsFunc(e.Backends, func(b Backends) bool {
		if !isHeadless && !slices.ContainsFunc(b.Ports, func(p BackendPort) bool { _, ok := names[p.Name]; return ok }) {
			return false
		}
		return slices.ContainsFunc(b.Endpoints, func(ep Endpoint) bool {
			return ep.Ready && isHeadless || (ep.Ready || ep.Serving) && !isHeadless && m.usesFamily(ep, supported)
		})
	})
}

// usesFamily reports whether the clusterset IPs of a cluster lead to endpoints of the family of ep.
func (m Merged) usesFamily(ep Endpoint, supported []corev1.IPFamily) bool {
	family := corev1.IPv6Protocol
	if ep.Address.Is4() {
		family = corev1.IPv4Protocol
	}
	return (len(m.IPFamilies) == 0 || slices.Contains(m.IPFamilies, family)) && (len(supported) == 0 || slices.Contains(supported, family))
}
