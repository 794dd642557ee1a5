package state

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
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
		StaleAfter: 2 * time.Minute, PollInterval: time.Second, HeartbeatInterval: 12 * time.Second, Intervals: Intervals{Settle: 2 * time.Second, Confirm: 15 * time.Second},
		AllowsContact: func(netip.Addr) bool { return true },
	}
}

// show makes s read the member records of clusters whose keys it knows.
func show(s *State, records ...format.Member) engine.Keys {
	changed := engine.Keys{}
	var instances []api.Instance
	for _, r := range records {
		s.cfg.Keyring.Observe(trust.Record{Registry: s.cfg.ClientName, ClusterID: r.ClusterID, UID: r.UID, Key: signerOf(r.UID).Key()})
		instances = append(instances, r.Instance(signerOf(r.UID)))
	}
	s.Reads.ObserveMembers(instances, changed)
	return changed
}

// memberOf is a record of a cluster.
func memberOf(id string) format.Member {
	uid := "uid-" + id
	return format.Member{ClusterID: id, ClusterSetID: "set1", UID: uid, Key: signerOf(uid).Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1, Process: "1-" + id}
}

// warmUp encodes and decodes an export: the codec of a bubble could not be used outside of it.
func warmUp(t *testing.T) {
	data, err := record.Encode([]mcs.Export{webExport("cls1", 0, 1)})
	if err == nil {
		_, err = record.Decode(data, "cls1")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testOutbox is the outbox of cls1.
func testOutbox() *outbox { return newOutbox(testConfig()) }

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
