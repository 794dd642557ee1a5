package registrytest

import (
	"context"
	"crypto/sha256"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Signer returns the signer of a cluster: the same for the same identity, another for a duplicate.
func Signer(t testing.TB, identity mcs.Identity) *trust.Signer {
	t.Helper()
	return newSigner(t, seedOf(identity), nil)
}

// RotatedSigner returns the signer of a cluster after its key was rotated.
func RotatedSigner(t testing.TB, identity mcs.Identity) *trust.Signer {
	t.Helper()
	next := sha256.Sum256(seedOf(identity))
	return newSigner(t, next[:], seedOf(identity))
}

func newSigner(t testing.TB, seed, previous []byte) *trust.Signer {
	t.Helper()
	signer, err := trust.NewSigner(seed, previous)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// seedOf returns the first key of a cluster.
func seedOf(identity mcs.Identity) []byte {
	seed := sha256.Sum256([]byte(identity.ClusterSetID + " " + identity.ClusterID + " " + identity.UID))
	return seed[:]
}

// Keyrings are the keyrings of the clusters of a test. A cluster has the same one after a restart,
// as if it had been saved.
type Keyrings struct {
	staleAfter time.Duration

	mu    sync.Mutex
	rings map[mcs.Identity]*trust.Keyring
}

// NewKeyrings returns Keyrings without keys.
func NewKeyrings(staleAfter time.Duration) *Keyrings {
	return &Keyrings{staleAfter: staleAfter, rings: map[mcs.Identity]*trust.Keyring{}}
}

// Of returns the keyring of a cluster.
func (k *Keyrings) Of(t testing.TB, identity mcs.Identity) *trust.Keyring {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rings[identity] == nil {
		ring, err := trust.Load(context.Background(), trust.Config{ClusterSetID: identity.ClusterSetID, StaleAfter: k.staleAfter, Logger: logr.Discard()})
		if err != nil {
			t.Fatal(err)
		}
		k.rings[identity] = ring
	}
	return k.rings[identity]
}

// Pins are stored pins, which a process that is killed has saved as far as its Keyring had Run.
type Pins map[string]trust.Pin

// LoadPins implements trust.Store.
func (p Pins) LoadPins(context.Context) (map[string]trust.Pin, error) { return maps.Clone(p), nil }

// SavePins implements trust.Store.
func (p Pins) SavePins(_ context.Context, pins map[string]trust.Pin) error {
	maps.Copy(p, pins)
	return nil
}

// LoadEnd implements trust.Store: each process was killed.
func (Pins) LoadEnd(context.Context) (time.Time, error) { return time.Time{}, nil }

// SaveEnd implements trust.Store.
func (Pins) SaveEnd(context.Context, time.Time) error { return nil }

// Load returns the Keyring of a process of clusterset set1 that starts.
func (p Pins) Load(t testing.TB) *trust.Keyring {
	t.Helper()
	ring, err := trust.Load(context.Background(), trust.Config{ClusterSetID: "set1", StaleAfter: 2 * time.Minute, Store: p, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}
