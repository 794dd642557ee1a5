package plan

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// elsewhere is the zone, or the node, that the hint of an endpoint names which has none that means something here. Nothing
// is called so: the domain belongs to the clusterset.
const elsewhere = "elsewhere.clusterset.local"

// hints tell kube-proxy for which clients an endpoint is meant, given the service's trafficDistribution and the
// endpoint's zone and node, "" if it has none; the node of an endpoint of another cluster is none.
//
// kube-proxy looks at hints and at nothing else, neither at an endpoint's zone nor at the derived Service's
// trafficDistribution. Of the ready endpoints in all slices of the Service, whichever cluster they come from, it uses
//
//	those with a hint for the client's node   if every one has a hint for some node, and one has it for the client's
//	those with a hint for the client's zone   if every one has a hint for some zone, and one has it for the client's
//	all                                       otherwise
//
// So an endpoint without hint would end the preference for the whole service, in every cluster. Kubernetes wants that,
// as it cannot know whether hints are still being written. We know: an endpoint of another cluster is on nobody's node
// here, and one in no known zone is not known to be in anybody's. Their hints say so by naming elsewhere, and whoever is
// nearer stays preferred. To an importing cluster without endpoints of its own PreferSameNode is PreferSameZone.
//
// A name of another cluster's node must not be in a hint: nodes of two clusters may well have the same name.
//
// Endpoints that are not ready have hints too; they cost nothing and are right when the endpoint becomes ready.
func hints(trafficDistribution, zone, node string) *discoveryv1.EndpointHints {
	forZones := []discoveryv1.ForZone{{Name: cmp.Or(zone, elsewhere)}}
	switch trafficDistribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return &discoveryv1.EndpointHints{ForZones: forZones, ForNodes: []discoveryv1.ForNode{{Name: cmp.Or(node, elsewhere)}}}
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return &discoveryv1.EndpointHints{ForZones: forZones}
	}
	return nil
}
