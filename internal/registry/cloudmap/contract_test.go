package cloudmap

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

func TestContract(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		b := backend(startCloud(t, cloudmaplocal.Options{Unthrottled: true}), fast)
		b.IsVariant = false
		return b
	})
}

func TestContractWithInstanceView(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestContract and TestContractUnderIAM: NIGHTLY=1 runs this one too")
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		return backend(startCloud(t, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 30_000}), func(identity mcs.Identity) Config {
			cfg := fast(identity)
			cfg.InstanceView = true
			return cfg
		})
	})
}

// TestContractWhenReadsAreLate is Cloud Map as it is: what was written shows half a second
// later.
func TestContractWhenReadsAreLate(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestContract and TestContractUnderIAM: NIGHTLY=1 runs this one too")
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		b := backend(startCloud(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}), func(identity mcs.Identity) Config {
			cfg := fast(identity)
			cfg.times.Confirm, cfg.times.Settle = 3*time.Second, time.Second
			return cfg
		})
		b.Timeout = time.Minute
		return b
	})
}

// TestContractPessimistic has the shipped policies and the worst behaviors that are plausible of
// AWS, with a tenth of their delays, as the intervals of the test are a tenth of those of users.
// TestPessimistic has the hosts of AWS.
func TestContractPessimistic(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestPessimistic: NIGHTLY=1 runs this one too")
	}
	behaviors := cloudmaplocal.Pessimistic()
	behaviors.StrictHosts = false
	// pessimisticFails
	behaviors.RefuseOwnerFilter, behaviors.HTTPNameSuffix, behaviors.InUseFor = false, "", 0
	for _, delay := range []*cloudmaplocal.Duration{
		&behaviors.TagsVisibleAfter, &behaviors.HealthDelay, &behaviors.ConsistencyDelay, &behaviors.ConsistencySpread, &behaviors.OperationDelay,
	} {
		*delay /= 10
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		if strings.HasSuffix(t.Name(), "/members_are_listed") {
			t.Skip("while policies do not see the tags of its catalog, or reads show it late, a new cluster's member record is there " +
				"without its key, and the others report it as refused")
		}
		b := backend(startGuarded(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: behaviors}, joinPolicies), func(identity mcs.Identity) Config {
			cfg := fast(identity)
			cfg.times.Confirm, cfg.times.Settle = 3*time.Second, time.Second
			return cfg
		})
		b.Timeout = time.Minute
		return b
	})
}

// TestContractThrottled has AWS's limits, shared by all clusters of the test.
func TestContractThrottled(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestContract and TestContractUnderIAM: NIGHTLY=1 runs this one too")
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		b := backend(startCloud(t, cloudmaplocal.Options{}), fast)
		b.Timeout = time.Minute
		return b
	})
}

// staleAfter is fifteen of the heartbeats of fast.
const staleAfter = 3 * time.Second

func backend(c *cloud, config func(mcs.Identity) Config) registrytest.Backend {
	return backendOf(c, config, c.registry)
}

// backendOf is backend with another way to create a registry, for clusters with another client.
func backendOf(c *cloud, config func(mcs.Identity) Config, newRegistry func(*testing.T, Config) *Registry) registrytest.Backend {
	create := func(t *testing.T, identity mcs.Identity, signer *trust.Signer, options registrytest.Options) registry.Registry {
		cfg := config(identity)
		cfg.StaleAfter, cfg.Signer = staleAfter, signer
		cfg.HeartbeatInterval = options.Heartbeat(cfg.HeartbeatInterval)
		return savingRegistry{newRegistry(t, cfg)}
	}
	return registrytest.Backend{
		IsVariant: true,
		New: func(t *testing.T, identity mcs.Identity, options registrytest.Options) registry.Registry {
			return create(t, identity, signerOf(identity.UID), options)
		},
		NewWithRotatedKey: func(t *testing.T, identity mcs.Identity) registry.Registry {
			return create(t, identity, rotatedSignerOf(identity.UID), registrytest.Options{})
		},
		StaleAfter: staleAfter,
		DropHeartbeats: func(*testing.T) func() {
			c.denied.Store(true)
			return func() { c.denied.Store(false) }
		},
		DeleteMember: func(t *testing.T, clusterSetID, clusterID string) {
			c.drop(t, format.ControlNamespace(clusterSetID), format.MembersService, clusterID)
		},
		Fail: func(*testing.T) func() {
			c.broken.Store(true)
			return func() { c.broken.Store(false) }
		},
		Corrupt:      c.spoil,
		DeleteExport: c.dropPage,
		Empty:        c.empty,
		Writes:       func() int { return int(c.pageWrites.Load()) },
	}
}

// savingRegistry is a Registry that saves the keys of the other clusters while it runs, as a
// controller does.
type savingRegistry struct{ *Registry }

func (r savingRegistry) Run(ctx context.Context, notify func(mcs.Key)) error {
	return r.cfg.Keyring.Run(ctx, func() error { return r.Registry.Run(ctx, notify) })
}
