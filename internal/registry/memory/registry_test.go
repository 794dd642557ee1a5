package memory_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

func TestContract(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Backend {
		hub := memory.NewHub()
		hub.SetStaleAfter(time.Second)
		return registrytest.Backend{
			StaleAfter: time.Second,
			DropHeartbeats: func(*testing.T) func() {
				hub.DropHeartbeats(true)
				return func() { hub.DropHeartbeats(false) }
			},
			New: func(_ *testing.T, identity mcs.Identity, _ registrytest.Options) registry.Registry {
				return hub.Registry(identity)
			},
			NewReader: func(_ *testing.T, identity mcs.Identity) registry.Registry { return hub.Reader(identity) },
			Fail: func(*testing.T) func() {
				hub.SetError(errors.New("the hub is broken"))
				return func() { hub.SetError(nil) }
			},
			DeleteMember: func(_ *testing.T, clusterSetID, clusterID string) { hub.DeleteMember(clusterSetID, clusterID) },
			DeleteExport: func(_ *testing.T, clusterSetID, clusterID string, key mcs.Key) {
				hub.DeleteExport(clusterSetID, clusterID, key)
			},
			Wipe:   func(*testing.T) { hub.Wipe() },
			Writes: hub.Writes,
			Empty: func(_ *testing.T, clusterSetID, clusterID string) bool {
				for _, exp := range hub.Exports(clusterSetID) {
					if exp.Cluster == clusterID {
						return false
					}
				}
				return true
			},
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnreadable(t *testing.T) {
	hub := memory.NewHub()
	writer, before, after := hub.Registry(identity("cls1")), hub.Registry(identity("cls2")), hub.Registry(identity("cls3"))
	key := mcs.Key{Namespace: "demo", Name: "web"}
	if err := writer.Publish(t.Context(), mcs.Export{Key: key, Cluster: "cls1"}); err != nil {
		t.Fatal(err)
	}
	start(t, writer)
	start(t, before)
	await(t, before, key, func(v registry.View) bool { return len(v.Exports()) == 1 })

	hub.SetUnreadable("cls1", true)
	start(t, after)
	await(t, after, key, func(v registry.View) bool { return slices.Equal(v.In(registry.Unknown), []string{"cls1"}) })
	await(t, before, key, func(v registry.View) bool { return len(v.Exports()) == 1 && v.In(registry.Unknown) == nil })

	hub.SetUnreadable("cls1", false)
	await(t, after, key, func(v registry.View) bool { return len(v.Exports()) == 1 && v.In(registry.Unknown) == nil })
}

func TestHoldConfirmations(t *testing.T) {
	hub := memory.NewHub()
	hub.HoldConfirmations(true)
	writer, reader := hub.Registry(identity("cls1")), hub.Registry(identity("cls2"))
	key := mcs.Key{Namespace: "demo", Name: "web"}
	start(t, writer)
	start(t, reader)
	if err := writer.Publish(t.Context(), mcs.Export{Key: key, Cluster: "cls1"}); err != nil {
		t.Fatal(err)
	}
	await(t, reader, key, func(v registry.View) bool { return len(v.Exports()) == 1 })
	await(t, writer, key, func(v registry.View) bool { return v.Local.State == registry.Pending })
	hub.HoldConfirmations(false)
	await(t, writer, key, func(v registry.View) bool { return v.Local.State == registry.Exported })
}

func identity(clusterID string) mcs.Identity {
	return mcs.Identity{ClusterID: clusterID, ClusterSetID: "set1", UID: "uid-of-" + clusterID}
}

// start runs reg until the test ends.
func start(t *testing.T, reg registry.Registry) {
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func await(t *testing.T, reg registry.Registry, key mcs.Key, met func(registry.View) bool) {
	t.Helper()
	var view registry.View
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if view, err = reg.Lookup(t.Context(), key); err == nil && met(view) {
			return
		}
	}
	t.Fatalf("not within 10s: %+v, %v", view, err)
}
