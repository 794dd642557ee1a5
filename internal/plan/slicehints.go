package plan

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// unmatchedName is the zone or node in the topology hint of an endpoint whose own is unknown in
// this cluster. No zone and no node has this name: the domain belongs to the clusterset.
const unmatchedName = "elsewhere.clusterset.local"

// topologyHints returns the topology hints by which kube-proxy selects the clients of an endpoint,
// given the service's trafficDistribution and the endpoint's zone and node. node is "" for an
// endpoint of another cluster.
//
// kube-proxy uses only the hints, neither the endpoint's zone nor the derived Service's
// trafficDistribution. Of the ready endpoints in all slices of the Service, from all clusters, it
// uses
//
//	those with a hint for the client's node   if every endpoint has a node hint, and one has it for the client's node
//	those with a hint for the client's zone   if every endpoint has a zone hint, and one has it for the client's zone
//	all                                       otherwise
//
// An endpoint without hint would therefore end the preference for the whole service, in every
// cluster. Kubernetes intends that because it does not know whether hints are still being written.
// Here they are known: an endpoint of another cluster is on no node of this cluster, and the zone
// of an endpoint may be unknown. Their hints have unmatchedName, so that nearer endpoints stay
// preferred. In an importing cluster without endpoints of its own, PreferSameNode is
// PreferSameZone.
//
// A hint must not name a node of another cluster: nodes of two clusters may have the same name.
//
// Endpoints that are not ready have hints, too, which are correct as soon as the endpoint becomes
// ready.
func topologyHints(trafficDistribution, zone, node string) *discoveryv1.EndpointHints {
	forZones := []discoveryv1.ForZone{{Name: cmp.Or(zone, unmatchedName)}}
	switch trafficDistribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return &discoveryv1.EndpointHints{ForZones: forZones, ForNodes: []discoveryv1.ForNode{{Name: cmp.Or(node, unmatchedName)}}}
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return &discoveryv1.EndpointHints{ForZones: forZones}
	}
	return nil
}
