package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// setup is what every registry is made with.
type setup struct {
	options config.Options
	metrics *registry.Metrics
	log     logr.Logger
}

// registries prepare, by the value of --registry, the registry that is exported to for whatever identity the cluster will
// have.
var registries = map[string]func(context.Context, setup) (controller.NewRegistry, error){
	config.RegistryCloudMap: func(ctx context.Context, s setup) (controller.NewRegistry, error) {
		return cloudMap(ctx, s, config.RegistryCloudMap, s.options.AWS, false)
	},
	config.RegistryEtcd: func(_ context.Context, s setup) (controller.NewRegistry, error) {
		return onEtcd(s, config.RegistryEtcd, s.options.Etcd, false)
	},
}

// sources prepare, by the kind that --import-from begins with, a registry that is only imported from.
var sources = map[string]func(context.Context, setup, config.Source) (controller.NewRegistry, error){
	config.RegistryCloudMap: func(ctx context.Context, s setup, source config.Source) (controller.NewRegistry, error) {
		source.AWS.Region = cmp.Or(source.AWS.Region, s.options.AWS.Region)
		return cloudMap(ctx, s, source.Label(), source.AWS, true)
	},
	config.RegistryEtcd: func(_ context.Context, s setup, source config.Source) (controller.NewRegistry, error) {
		source.Etcd.Prefix = cmp.Or(source.Etcd.Prefix, s.options.Etcd.Prefix)
		return onEtcd(s, source.Label(), source.Etcd, true)
	},
}

// newRegistry prepares one registry of all that the options name.
func newRegistry(ctx context.Context, s setup) (controller.NewRegistry, error) {
	first, err := registries[s.options.Registry.Name](ctx, s)
	if err != nil {
		return nil, err
	}
	names, parts := []string{s.options.Registry.Name}, []controller.NewRegistry{first}
	for _, source := range s.options.ImportFrom {
		part, err := sources[source.Backend](ctx, s, source)
		if err != nil {
			return nil, fmt.Errorf("--import-from=%s: %w", source, err)
		}
		names, parts = append(names, source.Label()), append(parts, part)
	}
	if s.options.Migration.ImportFromAWSController {
		part, err := oldClusters(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("--import-from-aws-controller: %w", err)
		}
		names, parts = append(names, oldClustersName), append(parts, part)
	}
	if len(parts) == 1 {
		return first, nil
	}
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		made := make([]union.Source, len(parts))
		for i, part := range parts {
			reg, err := part(ctx, identity)
			if err != nil {
				return nil, fmt.Errorf("registry %s: %w", names[i], err)
			}
			made[i] = union.Source{Name: names[i], Registry: reg}
		}
		return union.New(union.Config{Identity: identity, Logger: s.log.WithName("registry")}, made[0], made[1:]...), nil
	}, nil
}

// cloudMap prepares a registry on AWS Cloud Map under a name of its own.
func cloudMap(ctx context.Context, s setup, name string, account config.AWS, readOnly bool) (controller.NewRegistry, error) {
	client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{
		Name:           name,
		Region:         account.Region,
		Endpoint:       account.Endpoint,
		Role:           cloudmapapi.Role{ARN: account.RoleARN, ExternalID: account.ExternalID, SessionName: account.SessionName},
		NamespaceOwner: account.NamespaceOwner,
		Rates:          rates(s.options.AWSRates),
		Metrics:        s.metrics,
	})
	if err != nil {
		return nil, err
	}
	var notifications *peernotify.Config
	if !readOnly {
		if notifications, err = peerNotifications(s.options.PeerNotifications, s.log); err != nil {
			return nil, err
		}
	}
	options := s.options.Registry
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg, err := cloudmap.New(client, cloudmap.Config{
			Identity:                      identity,
			Version:                       config.Version,
			InstanceView:                  options.InstanceView,
			ReadOnly:                      readOnly,
			InstancesPerNamespace:         account.InstancesPerNamespace,
			PollInterval:                  options.PollInterval,
			PollIntervalWithNotifications: options.PollIntervalWithNotifications,
			PeerNotifications:             notifications,
			HeartbeatInterval:             options.HeartbeatInterval,
			StaleAfter:                    options.StaleAfter,
			Logger:                        s.log.WithName("registry").WithValues("registry", name),
			Metrics:                       s.metrics,
		})
		if err != nil {
			return nil, err
		}
		return registry.WithMetrics(reg, name, s.metrics), nil
	}, nil
}

// onEtcd prepares a registry on etcd under a name of its own.
func onEtcd(s setup, name string, where config.Etcd, readOnly bool) (controller.NewRegistry, error) {
	client, err := etcd.NewClient(etcd.ClientConfig{
		Name:      name,
		Endpoints: where.List(),
		CAFile:    where.CAFile, CertFile: where.CertFile, KeyFile: where.KeyFile,
		Username: where.Username, PasswordFile: where.PasswordFile,
		Metrics: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	options := s.options.Registry
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg, err := etcd.New(client, etcd.Config{
			Identity:          identity,
			Version:           config.Version,
			Prefix:            where.Prefix,
			ReadOnly:          readOnly,
			PollInterval:      options.PollInterval,
			HeartbeatInterval: options.HeartbeatInterval,
			StaleAfter:        options.StaleAfter,
			Logger:            s.log.WithName("registry").WithValues("registry", name),
			Metrics:           s.metrics,
		})
		if err != nil {
			return nil, err
		}
		return registry.WithMetrics(reg, name, s.metrics), nil
	}, nil
}

func rates(configured config.Rates) map[string]cloudmapapi.Rate {
	rates := map[string]cloudmapapi.Rate{}
	for operation, r := range configured {
		rates[operation] = cloudmapapi.Rate(r)
	}
	return rates
}

// peerNotifications is how this process takes part in the clusters' telling one another of changes; nil is not at all.
func peerNotifications(options config.PeerNotifications, log logr.Logger) (*peernotify.Config, error) {
	if !options.Enabled {
		return nil, nil
	}
	address, err := options.Address(os.Getenv)
	if errors.Is(err, config.ErrNoPeerNotificationAddress) {
		log.Info("Going without hints from the other clusters", "reason", err.Error())
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &peernotify.Config{
		Listen:  func() (net.PacketConn, error) { return peernotify.ListenUDP(options.Bind) },
		Contact: peernotify.Contact{Address: address, Token: peernotify.NewToken()},
	}, nil
}
