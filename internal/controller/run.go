package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Setup is what Run needs besides a cluster.
type Setup struct {
	Options config.Options
	// NewRegistry makes the registry of this cluster under an identity.
	NewRegistry NewRegistry
	// Registerer takes the metrics; nil is none.
	Registerer prometheus.Registerer
	// RegistryMetrics has the registry's requests, for the status endpoint; nil is none.
	RegistryMetrics *registry.Metrics
	Logger          logr.Logger
}

const (
	// leaseName is the name of the Lease that the replicas compete for; deploy/rbac allows just this one.
	leaseName = names.Lease
	// reconcileTimeout ends a look that hangs. One takes milliseconds; a hundred new slices at 500 requests a second and
	// eight at a time take two seconds.
	reconcileTimeout = time.Minute
	// shutdownTimeout fits into the Deployment's terminationGracePeriodSeconds of 15 with the lease's release.
	shutdownTimeout = 10 * time.Second
)

// Run runs the controller in the cluster that cfg leads to, until ctx ends. It waits for the CRDs of the MCS API.
func Run(ctx context.Context, cfg *rest.Config, setup Setup) error {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client for the Kubernetes API: %w", err)
	}
	mcsVersion, err := waitForMCS(ctx, d, setup.Options.Serving.Probes, setup.Logger)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop while waiting
		}
		return err
	}
	mgr, err := newManager(cfg, mcsVersion, setup)
	if err != nil {
		return err
	}
	if err := wire(ctx, mgr, d, mcsVersion, setup); err != nil {
		return err
	}
	setup.Logger.Info("Starting", "version", config.Version, "mcsVersion", mcsVersion.String())
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the controller: %w", err)
	}
	return nil
}

// newManager makes the manager: caches, clients, leader election, probes and metrics.
func newManager(cfg *rest.Config, mcsVersion schema.GroupVersion, setup Setup) (manager.Manager, error) {
	scheme, err := newScheme(mcsVersion)
	if err != nil {
		return nil, err
	}
	o := setup.Options
	mgr, err := manager.New(cfg, manager.Options{
		Scheme: scheme,
		Logger: setup.Logger,
		Cache:  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		// Reads wait for our own writes, so that nothing is decided from a cache that does not show them yet.
		Client:                        client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}},
		LeaderElection:                o.Election.Enabled,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.Election.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(shutdownTimeout),
		Metrics:                       metricsserver.Options{BindAddress: o.Serving.Metrics},
		HealthProbeBindAddress:        o.Serving.Probes,
		Controller: ctrlconfig.Controller{
			MaxConcurrentReconciles: o.Kubernetes.Concurrency,
			// A standby has its caches filled and takes over at once.
			EnableWarmup:          new(true),
			ReconciliationTimeout: reconcileTimeout,
			// Names need only be unique in a process with one manager; tests run several.
			SkipNameValidation: new(true),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("making the controller manager: %w", err)
	}
	return mgr, nil
}

// wire puts the parts together.
func wire(ctx context.Context, mgr manager.Manager, d discovery.DiscoveryInterface, mcsVersion schema.GroupVersion, setup Setup) error {
	if err := addIndices(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	exports, imports := &trigger{}, &trigger{}
	m, err := newMembership(mgr, d, setup, exports, imports)
	if err != nil {
		return err
	}
	metrics, err := newMetrics(setup.Registerer, mgr.GetCache(), m)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	scope, err := newScope(setup.Options.Scope)
	if err != nil {
		return err
	}
	events := recorder{mgr.GetEventRecorder(leaseName)}
	takeOver := setup.Options.Migration.ImportFromAWSController
	exporter := &exportReconciler{
		client: mgr.GetClient(), membership: m, scope: scope, events: events, now: time.Now, takeOver: takeOver,
	}
	if err := exporter.register(mgr, exports, controller.Options{}); err != nil {
		return fmt.Errorf("setting up exports: %w", err)
	}
	err = (&importReconciler{
		client: mgr.GetClient(), membership: m, scope: scope, events: events, metrics: metrics, now: time.Now, mcsVersion: mcsVersion,
		families: &families{client: mgr.GetClient()}, distributions: &distributions{client: mgr.GetClient()}, waiting: newWaitingRoom(),
		staleRule: setup.Options.Registry.StaleRule(),
		takeOver:  takeOver,
		look:      imports,
	}).register(mgr, controller.Options{})
	if err != nil {
		return fmt.Errorf("setting up imports: %w", err)
	}
	if err := (&autoExporter{client: mgr.GetClient(), scope: scope}).register(mgr, controller.Options{}); err != nil {
		return fmt.Errorf("setting up automatic exports: %w", err)
	}
	if err := addStatus(mgr, setup, m, exporter); err != nil {
		return fmt.Errorf("setting up the status endpoint: %w", err)
	}
	return addProbes(mgr)
}

// newMembership makes the membership, which mgr runs.
func newMembership(mgr manager.Manager, d discovery.DiscoveryInterface, setup Setup, look ...*trigger) (*membership, error) {
	uncached, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return nil, fmt.Errorf("making a client without a cache: %w", err)
	}
	m := &membership{
		flags:       setup.Options.Identity,
		reader:      mgr.GetCache(),
		newRegistry: setup.NewRegistry,
		identities:  &identities{client: uncached, namespace: homeNamespace(setup.Options.Election)},
		look:        look,
		log:         setup.Logger.WithName("membership"),
		wake:        make(chan struct{}, 1),
		withdrawals: map[mcs.Identity]*withdrawal{},
	}
	m.properties = &propertyReader{config: mgr.GetConfig(), discovery: d, changed: m.poke, log: m.log}
	if err := mgr.Add(m); err != nil {
		return nil, fmt.Errorf("setting up membership: %w", err)
	}
	return m, nil
}

// addProbes makes the controller healthy while it runs and ready once its caches are filled, whether or not it leads and
// whatever becomes of the registry: nothing that depends on the registry is mended by a restart.
func addProbes(mgr manager.Manager) error {
	filled := &cacheFilled{cache: mgr.GetCache()}
	if err := mgr.Add(filled); err != nil {
		return fmt.Errorf("setting up readiness: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }); err != nil {
		return fmt.Errorf("setting up liveness: %w", err)
	}
	if err := mgr.AddReadyzCheck("caches", filled.check); err != nil {
		return fmt.Errorf("setting up readiness: %w", err)
	}
	return nil
}

// cacheFilled waits for the caches of all that the controller watches.
type cacheFilled struct {
	cache cache.Cache
	done  atomic.Bool
}

// Start implements manager.Runnable.
func (f *cacheFilled) Start(ctx context.Context) error {
	for _, obj := range []client.Object{
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceImport{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}, namespaceMetadata(),
	} {
		if _, err := f.cache.GetInformer(ctx, obj); err != nil && ctx.Err() == nil {
			return fmt.Errorf("filling the cache of %T: %w", obj, err)
		}
	}
	f.done.Store(ctx.Err() == nil)
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a standby is ready too.
func (f *cacheFilled) NeedLeaderElection() bool { return false }

func (f *cacheFilled) check(*http.Request) error {
	if !f.done.Load() {
		return errors.New("the caches of the Kubernetes objects are not filled yet")
	}
	return nil
}
