package state

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
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

var webKey, webExport, noise = cloudmaptest.WebKey, cloudmaptest.WebExport, cloudmaptest.Noise

// bulky is an export that needs some 14 instances, with n endpoints, in one of eight namespaces. No
// user can write as many annotations.
func bulky(i, n int) mcs.Export {
	exp := webExport("cls1", i, n)
	exp.Key.Namespace = fmt.Sprint("ns-", i%8)
	exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(48_000 + i))}
	return exp
}
