package main

import (
	"context"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// oldClustersName is the registry of the clusters that still run the AWS Cloud Map MCS Controller for K8s, in metrics, logs and
// problems.
const oldClustersName = "aws-controller"

// oldClusters prepares that registry, in the account and Region of --aws-region and the like.
func oldClusters(ctx context.Context, s setup) (controller.NewRegistry, error) {
	account := s.options.AWS
	client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{
		Name:     oldClustersName,
		Region:   account.Region,
		Endpoint: account.Endpoint,
		Role:     cloudmapapi.Role{ARN: account.RoleARN, ExternalID: account.ExternalID, SessionName: account.SessionName},
		Rates:    cloudmap.CompatRates(),
		Metrics:  s.metrics,
	})
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		return cloudmap.NewCompat(client, cloudmap.CompatConfig{
			Identity:     identity,
			PollInterval: s.options.Migration.PollInterval,
			Logger:       s.log.WithName("registry").WithValues("registry", oldClustersName),
		}), nil
	}, nil
}
