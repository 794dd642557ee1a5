package fleet

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Every ten clusters export the same services, so that each service has ten exporters, as if each
// team used ten clusters.
const (
	ServicesPerCluster  = 100
	EndpointsPerService = 10
	exporters           = 10
)

// namespaceSizes are the numbers of services in the ten namespaces of ten clusters: 100/H(10)/k, a
// power law, rounded so that the sum is 100.
var namespaceSizes = [...]int{34, 17, 11, 9, 7, 6, 5, 4, 4, 3}

// clusterSet is the clusterset, importerID the cluster that imports.
const (
	clusterSet = "fleet"
	importerID = "importer"
)

// identityOf returns the identity of member c.
func identityOf(c int) mcs.Identity {
	id := fmt.Sprintf("member-%04d", c)
	return mcs.Identity{ClusterID: id, ClusterSetID: clusterSet, UID: "uid-" + id}
}

// namespaceOf returns the namespace of a team of the group of clusters that c belongs to.
func namespaceOf(c, team int) string { return fmt.Sprintf("team-%d-%d", c/exporters, team) }

// teamOf returns the namespace's number of service i.
func teamOf(i int) int {
	for team, size := range namespaceSizes {
		if i < size {
			return team
		}
		i -= size
	}
	panic("no such service")
}

// importedTeam is the team of each group whose namespace the importer has. Ten groups in a row
// have each number once, so that it imports a tenth of their exports; of the first group alone 11
// of 100.
func importedTeam(c int) int { return (c/exporters + 2) % len(namespaceSizes) }

// isImported reports whether the importer has the namespace of service i of member c.
func isImported(c, i int) bool { return teamOf(i) == importedTeam(c) }

// importedNamespaces returns the namespaces of the importer.
func importedNamespaces(members int) (names []string) {
	for c := 0; c < members; c += exporters {
		names = append(names, namespaceOf(c, importedTeam(c)))
	}
	return names
}

// imported returns the numbers of exports and of services that are imported.
func imported(members int) (exports, services int) {
	for c := range members {
		n := namespaceSizes[importedTeam(c)]
		exports += n
		if c%exporters == 0 {
			services += n
		}
	}
	return exports, services
}

// keyOf returns the key of service i of member c.
func keyOf(c, i int) mcs.Key {
	return mcs.Key{Namespace: namespaceOf(c, teamOf(i)), Name: fmt.Sprintf("service-%d", i)}
}

// marker returns the address that only version v of an export has: 100.64.0.0/10 has room for four
// million.
func marker(v int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(64 + v>>16), byte(v >> 8), byte(v)})
}

// isMarker reports whether an address is one of marker.
func isMarker(a netip.Addr) bool { return a.As4()[0] == 100 }

// export returns service i of member c. Each endpoint of the clusterset has an address of its own
// in 172.16.0.0/12, which has room for 1,048 members. Of version v > 0 the last endpoint has
// another one.
func export(c, i, v int) mcs.Export {
	exp := mcs.Export{
		Key: keyOf(c, i), Cluster: identityOf(c).ClusterID, Created: time.Date(2026, 11, 24, 0, 0, c, 0, time.UTC), Type: mcsv1beta1.ClusterSetIP,
		Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Backends:   []mcs.Backends{{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}},
	}
	for j := range EndpointsPerService {
		n := (c*ServicesPerCluster+i)*EndpointsPerService + j
		address := netip.AddrFrom4([4]byte{172, byte(16 + n>>16), byte(n >> 8), byte(n)})
		if v > 0 && j == EndpointsPerService-1 {
			address = marker(v)
		}
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{Address: address, Ready: true, Serving: true, Zone: fmt.Sprintf("eu-west-1%c", 'a'+j%3)})
	}
	return exp.Canonical()
}
