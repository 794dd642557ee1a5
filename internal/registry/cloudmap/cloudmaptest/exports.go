// Package cloudmaptest makes exports for tests of the registry on AWS Cloud Map, and for the tables
// in the documentation.
package cloudmaptest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// WebKey returns the key of export i.
func WebKey(i int) mcs.Key { return mcs.Key{Namespace: "demo", Name: fmt.Sprintf("web-%d", i)} }

// WebExport returns export i of a cluster: n endpoints of its own with one port, in three zones,
// with neighbouring addresses.
func WebExport(clusterID string, i, n int) mcs.Export {
	exp := mcs.Export{
		Key: WebKey(i), Cluster: clusterID, Created: time.Unix(1_790_000_000, 0),
		Type:       mcsv1beta1.ClusterSetIP,
		Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Backends:   []mcs.Backends{{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}},
	}
	for j := range n {
		number := i*n + j
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, byte(10 + number>>16), byte(number >> 8), byte(number)}),
			Ready:   true, Serving: true, Zone: fmt.Sprintf("eu-west-1%c", 'a'+j%3), Node: "node-1",
		})
	}
	return exp.Canonical()
}

// Noise returns n bytes that do not compress.
func Noise(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	return data
}
