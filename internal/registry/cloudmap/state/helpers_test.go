package state

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

var cls1 = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}

func webKey(i int) mcs.Key { return mcs.Key{Namespace: "demo", Name: fmt.Sprintf("web-%d", i)} }

// webExport is export i of a cluster, with n endpoints of its own.
func webExport(clusterID string, i, n int) mcs.Export {
	exp := mcs.Export{
		Key: webKey(i), Cluster: clusterID, Created: time.Unix(1_790_000_000, 0),
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

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	return data
}

// bulky is an export that needs some 14 instances, with n endpoints. It has nearly all the 64 KiB of annotations that an export may
// have.
func bulky(i, n int) mcs.Export {
	exp := webExport("cls1", i, n)
	exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(48_000 + i))}
	return exp
}
