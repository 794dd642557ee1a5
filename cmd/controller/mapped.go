package main

import (
	"context"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
)

// mappedPlan is the registry of the services of Cloud Map that no cluster exports, in the account
// and Region of the --aws-… flags.
type mappedPlan struct {
	client   cloudmapapi.Config
	registry mapped.Config
}

func planMapped(options config.Options) mappedPlan {
	plan := mappedPlan{
		client:   cloudMapClient(mapped.RegistryName, options.AWS),
		registry: mapped.Config{Path: options.CloudMapServices.Path, Cluster: options.CloudMapServices.Cluster, StaleAfter: options.Registry.StaleAfter},
	}
	plan.client.Rates = mapped.Rates()
	return plan
}

func (p mappedPlan) prepare(ctx context.Context, deps dependencies) (membership.RegistryFactory, error) {
	p.client.Metrics, p.client.Logger = deps.metrics, deps.registryLog(p.client.Name)
	client, err := cloudmapapi.NewClient(ctx, p.client)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		cfg := p.registry
		cfg.Identity, cfg.Logger, cfg.Metrics = identity, deps.registryLog(mapped.RegistryName), deps.metrics
		cfg.Ledger, _ = deps.budgets.current()
		return registry.WithMetrics(mapped.New(client, cfg), mapped.RegistryName, deps.metrics), nil
	}, nil
}
