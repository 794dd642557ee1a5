package main

import (
	"context"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// legacyName is the name of the registry of the clusters that run the legacy controller, in metrics, logs and errors.
const legacyName = "aws-controller"

// legacyPlan is that registry, in the account and Region of the --aws-… flags.
type legacyPlan struct {
	client   cloudmapapi.Config
	registry cloudmap.CompatConfig
}

func planLegacy(options config.Options) legacyPlan {
	plan := legacyPlan{
		client:   cloudMapClient(legacyName, options.AWS),
		registry: cloudmap.CompatConfig{PollInterval: options.Migration.PollInterval},
	}
	plan.client.Rates = cloudmap.CompatRates()
	return plan
}

func (p legacyPlan) prepare(ctx context.Context, deps dependencies) (membership.RegistryFactory, error) {
	p.client.Metrics = deps.metrics
	client, err := cloudmapapi.NewClient(ctx, p.client)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		cfg := p.registry
		cfg.Identity, cfg.Logger = identity, deps.registryLog(legacyName)
		return cloudmap.NewCompat(client, cfg), nil
	}, nil
}
