package state

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// signerOf returns the signer of the cluster with a UID.
func signerOf(uid string) *trust.Signer {
	seed := make([]byte, 32)
	copy(seed, uid)
	signer, err := trust.NewSigner(seed, nil)
	if err != nil {
		panic(err)
	}
	return signer
}

// newKeyring returns a keyring that has seen no cluster.
func newKeyring() *trust.Keyring {
	keyring, err := trust.Load(context.Background(), trust.Config{ClusterSetID: "set1", StaleAfter: 2 * time.Minute, Logger: logr.Discard()})
	if err != nil {
		panic(err)
	}
	return keyring
}

// testConfig is the configuration of cls1.
func testConfig() Config {
	return Config{
		Identity: cls1, Signer: signerOf(cls1.UID), Keyring: newKeyring(), Process: "1-own", WallClock: time.Now, Logger: logr.Discard(),
		StaleAfter: 2 * time.Minute, PollInterval: time.Second, HeartbeatInterval: 12 * time.Second, Intervals: Intervals{Settle: 2 * time.Second},
		AllowsContact: func(netip.Addr) bool { return true },
	}
}

// testOutbox is the outbox of cls1.
func testOutbox() *outbox { return newOutbox(cls1, signerOf(cls1.UID)) }

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

// bulky is an export that needs some 14 instances, with n endpoints, in one of eight namespaces. No user can write as many annotations.
func bulky(i, n int) mcs.Export {
	exp := webExport("cls1", i, n)
	exp.Key.Namespace = fmt.Sprint("ns-", i%8)
	exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(48_000 + i))}
	return exp
}
