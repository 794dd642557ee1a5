package main

import (
	"context"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// legacyPlan is the registry of the clusters that run the legacy controller, in the account and
// Region of the --aws-… flags.
type legacyPlan struct {
	client   cloudmapapi.Config
	registry legacy.Config
}

func planLegacy(options config.Options) legacyPlan {
	plan := legacyPlan{
		client:   cloudMapClient(legacy.RegistryName, options.AWS),
		registry: legacy.Config{PollInterval: options.Migration.PollInterval},
	}
	plan.client.Rates = legacy.Rates()
	return plan
}

func (p legacyPlan) prepare(ctx context.Context, deps dependencies) (membership.RegistryFactory, error) {
	p.client.Metrics, p.client.Logger = deps.metrics, deps.registryLog(p.client.Name)
	client, err := cloudmapapi.NewClient(ctx, p.client)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		cfg := p.registry
		cfg.Identity, cfg.Logger = identity, deps.registryLog(legacy.RegistryName)
		cfg.Ledger, _ = deps.budgets.current()
		return legacy.NewRegistry(client, cfg), nil
	}, nil
}
