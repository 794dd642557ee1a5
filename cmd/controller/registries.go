package main

import (
	"context"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
)

// backend prepares a kind of registry for whatever identity the cluster will have.
type backend func(context.Context, config.Options, *registry.Metrics, logr.Logger) (controller.NewRegistry, error)

// registries are the backends by the value of --registry.
var registries = map[string]backend{
	config.RegistryCloudMap: cloudMap,
}

func cloudMap(ctx context.Context, options config.Options, metrics *registry.Metrics, log logr.Logger) (controller.NewRegistry, error) {
	client, err := cloudmap.NewClient(ctx, cloudmap.ClientConfig{
		Region:   options.AWS.Region,
		Endpoint: options.AWS.Endpoint,
		Metrics:  metrics,
	})
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg, err := cloudmap.New(client, cloudmap.Config{
			Identity:          identity,
			Version:           config.Version,
			InstanceView:      options.Registry.InstanceView,
			PollInterval:      options.Registry.PollInterval,
			HeartbeatInterval: options.Registry.HeartbeatInterval,
			StaleAfter:        options.Registry.StaleAfter,
			Logger:            log.WithName("registry").WithValues("registry", config.RegistryCloudMap),
			Metrics:           metrics,
		})
		if err != nil {
			return nil, err
		}
		return registry.WithMetrics(reg, config.RegistryCloudMap, metrics), nil
	}, nil
}
