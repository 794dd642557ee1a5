package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/kubestore"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// A registryPlan is the configuration of one registry: a pure function of the command line.
type registryPlan interface {
	// prepare creates the client. The registry is created as soon as the cluster's identity is
	// known.
	prepare(context.Context, dependencies) (membership.RegistryFactory, error)
}

// namedPlan is a registryPlan with the registry's name in metrics, logs and errors, and the flag
// that asks for it.
type namedPlan struct {
	name, flag string
	registryPlan
}

// dependencies are shared by all registries.
type dependencies struct {
	metrics *registry.Metrics
	// tracer may be nil.
	tracer *tracing.Tracer
	log    logr.Logger
	// kube is for the ConfigMap in the controller's own namespace; nil or without a namespace there
	// is none.
	kube      client.Client
	namespace string
	keys      *keys
	// budgets limit the exports of the other clusters.
	budgets *budgets
}

// resourceIDs returns the store of the cluster's heartbeat and Cloud Map resource IDs. ok is false
// if they are not stored.
func (d dependencies) resourceIDs(identity mcs.Identity) (store kubestore.ResourceIDs, ok bool) {
	return kubestore.ResourceIDs{Client: d.kube, Namespace: d.namespace, Identity: identity}, d.kube != nil && d.namespace != ""
}

// joined returns when the cluster joined under identity for the first time, zero if it never did or
// this is not stored.
func (d dependencies) joined(ctx context.Context, identity mcs.Identity) (time.Time, error) {
	if d.kube == nil || d.namespace == "" {
		return time.Time{}, nil
	}
	return (&membership.Identities{Client: d.kube, Namespace: d.namespace}).Joined(ctx, identity)
}

// registryLog returns the log of a registry.
func (d dependencies) registryLog(name string) logr.Logger {
	return d.log.WithName("registry").WithValues("registry", name)
}

// exportPlans return the plan of the registry that is exported to, by the value of --registry.
var exportPlans = map[string]func(config.Options) registryPlan{
	config.RegistryCloudMap: func(options config.Options) registryPlan {
		return planCloudMap(options, config.RegistryCloudMap, options.AWS, false)
	},
	config.RegistryEtcd: func(options config.Options) registryPlan {
		return planEtcd(options, config.RegistryEtcd, options.Etcd, false)
	},
}

// importPlans return the plan of a registry that is only imported from, by the kind in
// --import-from. Settings that the source does not have are those of the registry that is exported
// to.
var importPlans = map[string]func(config.Options, config.Source) registryPlan{
	config.RegistryCloudMap: func(options config.Options, source config.Source) registryPlan {
		source.AWS.Region, source.AWS.Insecure = cmp.Or(source.AWS.Region, options.AWS.Region), options.AWS.Insecure
		return planCloudMap(options, source.Label(), source.AWS, true)
	},
	config.RegistryEtcd: func(options config.Options, source config.Source) registryPlan {
		source.Etcd.Prefix = cmp.Or(source.Etcd.Prefix, options.Etcd.Prefix)
		return planEtcd(options, source.Label(), source.Etcd, true)
	},
}

// planRegistries returns the plans of all registries, the one that is exported to first.
func planRegistries(options config.Options) []namedPlan {
	name := options.Registry.Name
	plans := []namedPlan{{name, "--registry=" + name, exportPlans[name](options)}}
	for _, source := range options.ImportFrom {
		plans = append(plans, namedPlan{source.Label(), "--import-from=" + source.String(), importPlans[source.Backend](options, source)})
	}
	if options.Migration.ImportFromAWSController {
		plans = append(plans, namedPlan{legacy.RegistryName, "--import-from-aws-controller", planLegacy(options)})
	}
	if options.CloudMapServices.Path != "" {
		plans = append(plans, namedPlan{mapped.RegistryName, "--cloud-map-services=" + options.CloudMapServices.Path, planMapped(options)})
	}
	return plans
}

// newRegistry prepares one registry that unites all registries of the options.
func newRegistry(ctx context.Context, options config.Options, deps dependencies) (membership.RegistryFactory, error) {
	if deps.budgets == nil {
		deps.budgets = newBudgets(options)
	}
	var err error
	if deps.keys, err = newKeys(options, deps); err != nil {
		return nil, err
	}
	newRegistry, err := newUnion(ctx, planRegistries(options), map[string]string{mapped.RegistryName: options.CloudMapServices.Cluster}, deps)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		deps.metrics.SetLedger(deps.budgets.open())
		reg, err := newRegistry(ctx, identity)
		if err != nil {
			return nil, err
		}
		keyring, err := deps.keys.keyring(ctx, identity.ClusterSetID)
		if err != nil {
			return nil, err
		}
		return keyringRegistry{reg, keyring}, nil
	}, nil
}

// newUnion prepares one registry that unites the registries of the plans. pseudoClusters has the
// IDs of pseudo-clusters by the names of their registries.
func newUnion(ctx context.Context, plans []namedPlan, pseudoClusters map[string]string, deps dependencies) (membership.RegistryFactory, error) {
	constructors := make([]membership.RegistryFactory, len(plans))
	for i, plan := range plans {
		var err error
		if constructors[i], err = plan.prepare(ctx, deps); err != nil {
			return nil, fmt.Errorf("%s: %w", plan.flag, err)
		}
	}
	if len(plans) == 1 {
		return constructors[0], nil
	}
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		sources := make([]union.Source, len(plans))
		for i, newRegistry := range constructors {
			reg, err := newRegistry(ctx, identity)
			if err != nil {
				return nil, fmt.Errorf("registry %s: %w", plans[i].name, err)
			}
			sources[i] = union.Source{Name: plans[i].name, Registry: reg}
		}
		keyring, err := deps.keys.keyring(ctx, identity.ClusterSetID)
		if err != nil {
			return nil, err
		}
		cfg := union.Config{Identity: identity, Logger: deps.log.WithName("registry"), PseudoClusters: pseudoClusters, IsSigned: keyring.IsSigned}
		return union.New(cfg, sources[0], sources[1:]...), nil
	}, nil
}

// cloudMapPlan is a registry on AWS Cloud Map.
type cloudMapPlan struct {
	client        cloudmapapi.Config
	registry      cloudmap.Config
	notifications config.PeerNotifications
}

func planCloudMap(options config.Options, name string, account config.AWS, readOnly bool) cloudMapPlan {
	plan := cloudMapPlan{
		client: cloudMapClient(name, account),
		registry: cloudmap.Config{
			Version:                       config.Version,
			InstanceView:                  options.Registry.InstanceView,
			Instances:                     instanceSettings(options.Registry),
			ReadOnly:                      readOnly,
			InstancesPerNamespace:         account.InstancesPerNamespace,
			PollInterval:                  options.Registry.PollInterval,
			PollIntervalWithNotifications: options.Registry.PollIntervalWithNotifications,
			HeartbeatInterval:             options.Registry.HeartbeatInterval,
			StaleAfter:                    options.Registry.StaleAfter,
		},
	}
	plan.client.NamespaceOwner = account.NamespaceOwner
	plan.client.Rates = cloudMapRates(options.AWSRates)
	if !readOnly {
		plan.notifications = options.PeerNotifications
	}
	return plan
}

// instanceSettings returns the settings of the instance view.
func instanceSettings(options config.Registry) instances.Settings {
	flags := options.Instances
	settings := instances.Settings{
		VPC: flags.VPC, TTL: int64(flags.TTL / time.Second), Routing: strings.ToUpper(flags.Routing), Unready: instances.Unready(flags.Unready),
	}
	if flags.Stale == config.StaleUnhealthy {
		settings.Stale = options.StaleRule().Policy
	}
	return settings
}

// cloudMapClient returns the configuration of a client for an account and Region.
func cloudMapClient(name string, account config.AWS) cloudmapapi.Config {
	return cloudmapapi.Config{
		Name:         name,
		Region:       account.Region,
		Endpoint:     account.Endpoint,
		DataEndpoint: account.DataEndpoint,
		Insecure:     account.Insecure,
		Role:         cloudmapapi.Role{ARN: account.RoleARN, ExternalID: account.ExternalID, SessionName: account.SessionName},
	}
}

func cloudMapRates(configured config.Rates) map[string]cloudmapapi.Rate {
	rates := map[string]cloudmapapi.Rate{}
	for operation, r := range configured {
		rates[operation] = cloudmapapi.Rate(r)
	}
	return rates
}

func (p cloudMapPlan) prepare(ctx context.Context, deps dependencies) (membership.RegistryFactory, error) {
	p.client.Metrics, p.client.Logger = deps.metrics, deps.registryLog(p.client.Name)
	client, err := cloudmapapi.NewClient(ctx, p.client)
	if err != nil {
		return nil, err
	}
	cfg := p.registry
	cfg.Logger, cfg.Metrics = deps.registryLog(p.client.Name), deps.metrics
	if cfg.PeerNotifications, err = newPeerNotifications(p.notifications, deps.log); err != nil {
		return nil, err
	}
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		cfg := cfg
		cfg.Identity, cfg.Trace = identity, deps.tracer.Of(identity)
		ledger, namespaces := deps.budgets.current()
		cfg.Ledger, cfg.Wanted, cfg.UsedNamespaces = ledger, namespaces.Wants, namespaces.Used
		var err error
		if cfg.Keyring, err = deps.keys.keyring(ctx, identity.ClusterSetID); err != nil {
			return nil, err
		}
		if !cfg.ReadOnly {
			if store, ok := deps.resourceIDs(identity); ok {
				cfg.ResourceIDs = store
			}
			if cfg.Signer, err = deps.keys.ownKey(ctx); err != nil {
				return nil, err
			}
			if cfg.Joined, err = deps.joined(ctx, identity); err != nil {
				return nil, err
			}
		}
		reg, err := cloudmap.New(client, cfg)
		if err != nil {
			return nil, err
		}
		return registry.WithMetrics(reg, p.client.Name, deps.metrics), nil
	}, nil
}

// etcdPlan is a registry on etcd.
type etcdPlan struct {
	client   etcd.ClientConfig
	registry etcd.Config
}

func planEtcd(options config.Options, name string, connection config.Etcd, readOnly bool) etcdPlan {
	return etcdPlan{
		client: etcd.ClientConfig{
			Name:      name,
			Endpoints: connection.List(),
			CAFile:    connection.CAFile, CertFile: connection.CertFile, KeyFile: connection.KeyFile,
			Username: connection.Username, PasswordFile: connection.PasswordFile,
		},
		registry: etcd.Config{
			Version:           config.Version,
			Prefix:            connection.Prefix,
			ReadOnly:          readOnly,
			PollInterval:      options.Registry.PollInterval,
			HeartbeatInterval: options.Registry.HeartbeatInterval,
			StaleAfter:        options.Registry.StaleAfter,
		},
	}
}

func (p etcdPlan) prepare(ctx context.Context, deps dependencies) (membership.RegistryFactory, error) {
	p.client.Metrics = deps.metrics
	client, err := etcd.NewClient(p.client)
	if err != nil {
		return nil, err
	}
	if !p.registry.ReadOnly {
		// A controller that cannot use its registry does not start, so that a rollout stops and the
		// previous pods go on.
		if err := client.CheckServers(ctx); err != nil {
			return nil, errors.Join(err, client.Close())
		}
	}
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		cfg := p.registry
		cfg.Identity, cfg.Logger, cfg.Metrics, cfg.Trace = identity, deps.registryLog(p.client.Name), deps.metrics, deps.tracer.Of(identity)
		ledger, namespaces := deps.budgets.current()
		cfg.Ledger, cfg.Wanted = ledger, namespaces.Wants
		var err error
		if cfg.Keyring, err = deps.keys.keyring(ctx, identity.ClusterSetID); err != nil {
			return nil, err
		}
		if !cfg.ReadOnly {
			if cfg.Signer, err = deps.keys.ownKey(ctx); err != nil {
				return nil, err
			}
			if cfg.Joined, err = deps.joined(ctx, identity); err != nil {
				return nil, err
			}
			if store, ok := deps.resourceIDs(identity); ok {
				ids, err := store.LoadResourceIDs(ctx)
				if err != nil {
					return nil, err
				}
				cfg.SavedHeartbeat, cfg.SaveHeartbeat = ids.Heartbeat, store.SaveHeartbeat
			}
		}
		reg, err := etcd.New(client, cfg)
		if err != nil {
			return nil, err
		}
		return registry.WithMetrics(reg, p.client.Name, deps.metrics), nil
	}, nil
}

// newPeerNotifications returns the configuration of this process for peer notifications, nil if
// they are disabled or there is no address to publish.
func newPeerNotifications(options config.PeerNotifications, log logr.Logger) (*peernotify.Config, error) {
	if !options.Enabled {
		return nil, nil
	}
	address, err := options.Address(os.Getenv)
	if errors.Is(err, config.ErrNoPeerNotificationAddress) {
		log.Error(err, "Peer notifications are disabled")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &peernotify.Config{
		Listen:  func() (net.PacketConn, error) { return peernotify.ListenUDP(options.Bind) },
		Address: address, Networks: options.Networks,
	}, nil
}
