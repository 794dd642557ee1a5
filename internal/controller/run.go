package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/exports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/guard"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/imports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/serve"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// Setup configures Run.
type Setup struct {
	Options config.Options
	// NewRegistry creates the registry of this cluster under an identity.
	NewRegistry membership.RegistryFactory
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
	// RegistryMetrics has the registry's requests, for the status endpoint; nil means none.
	RegistryMetrics *registry.Metrics
	// Namespaces is set to select the namespaces whose exports are used; nil means all.
	Namespaces *registry.NamespaceFilter
	// Probes is how the paths to the other clusters are probed; the zero value is the product's.
	Probes paths.Probes
	// Resolver resolves names of clusterset.local; nil is that of the pod.
	Resolver *net.Resolver
	// ReportInterval is the interval at which imports are reported, and the reports of other
	// clusters are read; 0 is the product's.
	ReportInterval time.Duration
	// Tracer may be nil.
	Tracer *tracing.Tracer
	Logger logr.Logger
}

const (
	// leaseName is the name of the Lease that the replicas compete for; deploy/rbac allows just
	// this one.
	leaseName = names.Lease
	// reconcileTimeout ends a reconcile that hangs. One takes milliseconds; a hundred new slices at
	// 500 requests a second and eight at a time take two seconds.
	reconcileTimeout = time.Minute
	// shutdownTimeout leaves 5 s of the Deployment's terminationGracePeriodSeconds (15) to release
	// the Lease.
	shutdownTimeout = 10 * time.Second
)

// Run runs the controller in the cluster of cfg until ctx ends. It waits for the CRDs of the MCS
// API.
func Run(ctx context.Context, cfg *rest.Config, setup Setup) error {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("creating a client for the Kubernetes API: %w", err)
	}
	mcsVersion, err := waitForMCS(ctx, d, setup.Options.Serving.Probes, setup.Logger)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended while waiting
		}
		return err
	}
	mgr, err := newManager(cfg, mcsVersion, setup)
	if err != nil {
		return err
	}
	if err := addControllers(ctx, mgr, d, mcsVersion, setup); err != nil {
		return err
	}
	setup.Logger.Info("Starting controller", "version", config.Version, "mcsVersion", mcsVersion.String())
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the controller: %w", err)
	}
	return nil
}

// newManager returns the manager, with caches, clients, leader election, probes and metrics.
func newManager(cfg *rest.Config, mcsVersion schema.GroupVersion, setup Setup) (manager.Manager, error) {
	scheme, err := kube.NewScheme(mcsVersion)
	if err != nil {
		return nil, err
	}
	o := setup.Options
	lock, err := newElectionLock(cfg, o.Election, setup.Logger.WithName("election"))
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(cfg, manager.Options{
		Scheme: scheme,
		Logger: setup.Logger,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: guard.NodeTransform}},
		},
		// Reads wait for our own writes, so that no decision is made from a cache that does not
		// show them yet. deploy/rbac/policy.yaml recognizes ServiceImports by the field manager.
		Client: client.Options{
			Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}, FieldOwner: names.Product,
		},
		LeaderElection:                      o.Election.Enabled,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       new(leaseDuration),
		RenewDeadline:                       new(renewDeadline),
		RetryPeriod:                         new(renewInterval),
		GracefulShutdownTimeout:             new(shutdownTimeout),
		// Package serve has servers with narrower bounds.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		PprofBindAddress:       o.Serving.Pprof,
		Controller: ctrlconfig.Controller{
			// A standby replica has its caches filled and takes over at once.
			EnableWarmup:          new(true),
			ReconciliationTimeout: reconcileTimeout,
			// Names need only be unique in a process with one manager; tests run several.
			SkipNameValidation: new(true),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the controller manager: %w", err)
	}
	return mgr, nil
}

// addControllers adds the membership, the controllers, metrics, status and probes to mgr.
func addControllers(ctx context.Context, mgr manager.Manager, d discovery.DiscoveryInterface, mcsVersion schema.GroupVersion, setup Setup) error {
	if err := kube.AddIndices(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	exportRequeuer, importRequeuer := &kube.Requeuer{}, &kube.Requeuer{}
	m, err := membership.New(mgr, d, setup.Options, setup.NewRegistry, setup.Logger.WithName("membership"), exportRequeuer, importRequeuer)
	if err != nil {
		return err
	}
	g, err := newGuard(ctx, mgr, d, m, setup)
	if err != nil {
		return err
	}
	scope, err := newScope(ctx, mgr, g, setup)
	if err != nil {
		return err
	}
	requeueImports := func(ctx context.Context) error { return imports.RequeueAll(ctx, mgr.GetClient(), importRequeuer) }
	watcher := dns.NewWatcher(setup.Resolver, requeueImports, setup.Logger.WithName("dns"))
	prober, err := newPaths(mgr, m, g, importRequeuer, setup)
	if err := errors.Join(err, mgr.Add(watcher)); err != nil {
		return err
	}
	metrics, err := registerMetrics(setup.Registerer, mgr.GetCache(), m, g, prober, watcher)
	if err != nil {
		return err
	}
	events := kube.EventRecorder{Recorder: mgr.GetEventRecorder(leaseName)}
	takeover := legacy.NewTakeover(mgr.GetClient(), setup.Options.Migration.ImportFromAWSController)
	exporter := exports.New(exports.Config{
		Client: mgr.GetClient(), Membership: m, Scope: scope, Events: events, Requeuer: exportRequeuer, ReleaseExport: takeover.ReleaseExport,
		Concurrency: setup.Options.Kubernetes.Concurrency, Budgets: setup.Options.Budgets.Limits, Guard: g, Tracer: setup.Tracer,
		ReportInterval: setup.ReportInterval,
	})
	m.SetPublishAll(exporter.PublishAll)
	if err := exporter.Register(mgr); err != nil {
		return fmt.Errorf("setting up exports: %w", err)
	}
	metadata, err := mcs.ParseKeyFilter(setup.Options.Scope.ImportMetadata)
	if err != nil {
		return err
	}
	importer := imports.New(imports.Config{
		Client: mgr.GetClient(), Membership: m, Scope: scope, Events: events, Metrics: metrics, Takeover: takeover,
		Requeuer: importRequeuer, StaleRule: setup.Options.Registry.StaleRule(), MCSVersion: mcsVersion,
		Concurrency: setup.Options.Kubernetes.Concurrency, Hold: setup.Options.ClusterSetIPHold, Guard: g, Tracer: setup.Tracer, Paths: prober, Resolution: watcher.Resolution,
		NamespaceImports: setup.Options.Budgets.NamespaceImports, Metadata: metadata, ReportInterval: setup.ReportInterval,
	})
	setup.RegistryMetrics.SetNamespaceImports(func() (int, int, int) {
		used, limit, waiting := importer.Budget()
		return used, limit, len(waiting)
	})
	if err := importer.Register(mgr); err != nil {
		return fmt.Errorf("setting up imports: %w", err)
	}
	if err := exports.NewAutoExporter(mgr.GetClient(), scope, events, setup.Options.Kubernetes.Concurrency).Register(mgr); err != nil {
		return fmt.Errorf("setting up automatic exports: %w", err)
	}
	if err := serve.AddStatus(mgr, setup.Options, setup.RegistryMetrics, m, exporter, importer, g, prober, watcher); err != nil {
		return fmt.Errorf("setting up the status endpoint: %w", err)
	}
	return addServers(mgr, setup)
}

// newScope returns the scope of exports and imports, and sets the namespaces that the registry
// reads.
func newScope(ctx context.Context, mgr manager.Manager, g *guard.Guard, setup Setup) (*kube.Scope, error) {
	scope, err := kube.NewScope(setup.Options.Scope)
	if err != nil {
		return nil, err
	}
	scope = scope.WithRules(kube.Rules{
		OwnNamespace: setup.Options.Election.OwnNamespace(), AllowsSystemNamespace: g.AllowsSystemNamespace, CheckAddress: g.CheckOwnAddress,
		HasService: kube.HasService(mgr.GetAPIReader()),
	})
	if setup.Namespaces != nil {
		setup.Namespaces.Set(scope.Namespaces(ctx, mgr.GetClient()))
	}
	return scope, nil
}

// newPaths adds the probes of the paths to the other clusters to mgr. It returns nil if they are
// off.
func newPaths(mgr manager.Manager, m *membership.Membership, g *guard.Guard, requeuer *kube.Requeuer, setup Setup) (*paths.Paths, error) {
	p := paths.New(paths.Config{
		Mode: mcs.PathHealth(setup.Options.Registry.PathHealth), HealthPort: setup.Options.Serving.ProbePort(), State: m.State, Reader: mgr.GetCache(),
		CheckAddress: g.CheckAddress, Requeue: requeuer.Requeue, Probes: setup.Probes, Log: setup.Logger.WithName("path-health"),
	})
	if p == nil {
		return nil, nil
	}
	return p, mgr.Add(p)
}

// addServers adds the servers of metrics and probes to mgr.
func addServers(mgr manager.Manager, setup Setup) error {
	if err := serve.AddMetrics(mgr, setup.Options.Serving, setup.Logger.WithName("metrics")); err != nil {
		return fmt.Errorf("setting up the metrics endpoint: %w", err)
	}
	return serve.AddProbes(mgr, setup.Options.Serving)
}

// newGuard adds the guard of the import policy to mgr.
func newGuard(ctx context.Context, mgr manager.Manager, d discovery.DiscoveryInterface, m *membership.Membership, setup Setup) (*guard.Guard, error) {
	serviceCIDRs, err := guard.ServesServiceCIDR(d)
	if err != nil {
		return nil, err
	}
	local, err := guard.NewLocalReader(ctx, mgr.GetCache(), serviceCIDRs)
	if err != nil {
		return nil, err
	}
	g := guard.New(guard.Config{
		Path: setup.Options.Scope.ImportPolicy, Source: local, Log: setup.Logger.WithName("import-policy"),
		RequeueAll: m.RequeueSession, RequeueAddresses: m.RequeueAddresses, Importer: m.Importer,
	})
	return g, mgr.Add(g)
}

// registerMetrics registers all metrics of the controllers; registerer may be nil.
func registerMetrics(registerer prometheus.Registerer, reader client.Reader, m serve.Membership, g *guard.Guard, p *paths.Paths, d *dns.Watcher) (*imports.Metrics, error) {
	metrics, err := imports.NewMetrics(registerer)
	if err == nil {
		err = serve.RegisterMetrics(registerer, reader, m)
	}
	if err == nil {
		err = guard.RegisterMetrics(registerer, g)
	}
	if err == nil && registerer != nil && p != nil {
		err = registerer.Register(p)
	}
	if err == nil && registerer != nil {
		err = registerer.Register(d)
	}
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return metrics, nil
}
