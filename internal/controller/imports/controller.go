package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/guard"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// Controller reconciles the imports of this cluster.
type Controller struct {
	client      client.Client
	membership  *membership.Membership
	scope       *kube.Scope
	events      kube.EventRecorder
	metrics     *Metrics
	takeover    Takeover
	requeuer    *kube.Requeuer
	staleRule   mcs.StaleRule
	concurrency int
	// hold is the time for which the clusterset IPs of an ended import stay reserved.
	hold time.Duration
	// mcsVersion is the served version of the MCS API, which owner references to ServiceImports
	// name.
	mcsVersion schema.GroupVersion
	now        func() time.Time
	guard      *guard.Guard
	tracer     *tracing.Tracer
	paths      *paths.Paths
	resolution func() mcs.Resolution
	// metadata selects the exported labels and annotations that are imported.
	metadata mcs.KeyFilter
	// reportInterval is the interval at which the report of imports is computed.
	reportInterval time.Duration

	families      *familyDetector
	distributions *distributions
	waiters       *namespaceWaiters
	budget        *namespaceBudget
	serviceIPs    *serviceIPs
	releases      heldReleases
	// reported holds the keys of imports that are reported as prevented by an object of another
	// owner.
	reported sync.Map // mcs.Key -> struct{}
	// lastIPs holds the IPs of the imports, written the names of the slices that the last reconcile
	// of an import wrote, and failing the imports of which an object cannot be written.
	lastIPs sync.Map // mcs.Key -> []string
	written sync.Map // mcs.Key -> []string
	failing sync.Map // mcs.Key -> failure
	// portNames has the changes of port names that are pending.
	portNames portNames
}

// Config configures New.
type Config struct {
	Client     client.Client
	Membership *membership.Membership
	Scope      *kube.Scope
	Events     kube.EventRecorder
	// Metrics may be nil.
	Metrics *Metrics
	// Requeuer requeues services for this controller alone.
	Requeuer *kube.Requeuer
	// Takeover may be nil.
	Takeover  Takeover
	StaleRule mcs.StaleRule
	// Concurrency is the number of imports that are reconciled in parallel.
	Concurrency int
	// Hold is the time for which the clusterset IPs of an ended import stay reserved; 0 releases
	// them at once.
	Hold time.Duration
	// MCSVersion is the served version of the MCS API.
	MCSVersion schema.GroupVersion
	// NamespaceImports is the maximum number of imports in a namespace; 0 is no limit.
	NamespaceImports int
	// Guard and Tracer may be nil.
	Guard  *guard.Guard
	Tracer *tracing.Tracer
	// Paths may be nil: then all clusters are reachable.
	Paths *paths.Paths
	// Resolution returns whether the names of imports resolve. It may be nil: then that is unknown.
	Resolution func() mcs.Resolution
	// Metadata selects the exported labels and annotations that are imported; the zero value
	// selects all.
	Metadata mcs.KeyFilter
	// ReportInterval is the interval at which the report of imports is computed, 0 the default.
	ReportInterval time.Duration
}

// New returns the controller of imports.
func New(cfg Config) *Controller {
	return &Controller{
		client: cfg.Client, membership: cfg.Membership, scope: cfg.Scope, events: cfg.Events, metrics: cfg.Metrics,
		takeover: cfg.Takeover, requeuer: cfg.Requeuer, staleRule: cfg.StaleRule, mcsVersion: cfg.MCSVersion, now: time.Now,
		concurrency: cfg.Concurrency, hold: cfg.Hold, guard: cfg.Guard, tracer: cfg.Tracer, paths: cfg.Paths, resolution: cfg.Resolution, metadata: cfg.Metadata,
		families: &familyDetector{client: cfg.Client, now: time.Now}, distributions: &distributions{client: cfg.Client}, waiters: newNamespaceWaiters(),
		budget: newNamespaceBudget(cfg.NamespaceImports), reportInterval: cmp.Or(cfg.ReportInterval, defaultReportInterval),
		serviceIPs: &serviceIPs{client: cfg.Client, networks: cfg.Guard.ServiceNetworks, now: time.Now},
	}
}

// RequeueAll requeues all imports of this cluster for the controller of requeuer, at low priority.
func RequeueAll(ctx context.Context, reader client.Reader, requeuer *kube.Requeuer) error {
	var imports mcsv1beta1.ServiceImportList
	if err := reader.List(ctx, &imports, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceImports: %w", err)
	}
	for i := range imports.Items {
		requeuer.RequeueAtLowPriority(kube.KeyOf(client.ObjectKeyFromObject(&imports.Items[i])))
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key := kube.KeyOf(req.NamespacedName)
	session := r.membership.State().Session
	if session == nil || !r.guard.IsReady() {
		// imports stay as they are; a new session, and the guard once it is ready, requeue all of
		// them
		return r.reconcileHeld(ctx, key)
	}
	facts, err := r.gather(ctx, session, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	decision, err := r.limitImports(ctx, facts, decideImport(facts))
	if err != nil {
		return reconcile.Result{}, err
	}
	r.guard.Record(key, decision.allRefusals())
	r.paths.SetExports(key, decision.probed(facts))
	if decision.canWait(facts) && r.requeuer.Defer(facts.key) {
		return reconcile.Result{}, nil
	}
	requeueAfter, err := r.apply(ctx, session, facts, decision)
	result, err := kube.RequeueOnConflict(err)
	result.RequeueAfter = max(result.RequeueAfter, requeueAfter)
	return result, err
}

// orphanRetry is the interval at which a derived Service without a ServiceImport is reconciled
// while the cluster is not a member of a clusterset: a new session requeues ServiceImports only.
const orphanRetry = 5 * time.Second

// reconcileHeld deletes the Services whose hold time is over while the cluster is not a member of a
// clusterset.
func (r *Controller) reconcileHeld(ctx context.Context, key mcs.Key) (reconcile.Result, error) {
	services, err := kube.ListDerivedServices(ctx, r.client, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	requeueAfter, err := r.releaseHeld(ctx, key, heldServices(key, services))
	if slices.ContainsFunc(services, func(svc *corev1.Service) bool {
		return plan.IsManaged(svc) && !plan.IsHeld(svc) && len(svc.OwnerReferences) == 0
	}) {
		requeueAfter = sooner(requeueAfter, orphanRetry)
	}
	result, err := kube.RequeueOnConflict(err)
	result.RequeueAfter = max(result.RequeueAfter, requeueAfter)
	return result, err
}

// apply applies the decision and returns the delay until the next reconcile, 0 if it is needed only
// after a change.
func (r *Controller) apply(ctx context.Context, session *membership.Session, f importFacts, d importDecision) (requeueAfter time.Duration, err error) {
	out := &outcome{}
	if d.verdict != verdictNotOwned {
		r.reported.Delete(f.key)
	}
	if d.verdict != verdictApply {
		r.portNames.forget(f.key)
	}
	switch d.verdict {
	case verdictNone:
		if !f.namespace {
			r.lastIPs.Delete(f.key)
		}
		if !f.namespace || !f.hasLeftovers() {
			r.failing.Delete(f.key)
		}
		if f.starting {
			requeueAfter = newImportDelay
		}
	case verdictNotOwned:
		r.failing.Delete(f.key)
		out.add(r.reportNotOwned(ctx, f))
	case verdictRemove:
		r.removeImport(ctx, f, out)
		r.reportFailure(ctx, f, true, out)
	case verdictApply:
		requeueAfter = sooner(r.applyImport(ctx, session, f, d, out), f.lostIn)
		r.reportFailure(ctx, f, false, out)
	}
	if f.namespace {
		releaseAfter, err := r.releaseHeld(ctx, f.key, f.unusedHeld(d))
		out.add(err)
		requeueAfter = sooner(requeueAfter, releaseAfter)
	}
	return requeueAfter, out.result()
}

// Register adds the controller to mgr. It reconciles a service when an object of its import
// changes, its namespace is created or gets other labels, this cluster's own export of it changes,
// and when it is requeued.
func (r *Controller) Register(mgr manager.Manager) error {
	if err := mgr.Add(manager.RunnableFunc(r.publishReports)); err != nil {
		return err
	}
	m, own := kube.ServiceMapper{Client: r.client}, r.mapper()
	return builder.ControllerManagedBy(mgr).
		Named("serviceimport").
		WithLogConstructor(kube.LogConstructor(mgr.GetLogger(), "serviceimport", "ServiceImport")).
		For(&mcsv1beta1.ServiceImport{}).
		Watches(&mcsv1beta1.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(m.MapService)).
		Watches(&corev1.Service{}, kube.EnqueueAtLowPriority(own.mapDerivedService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(m.MapSlice)).
		Watches(&discoveryv1.EndpointSlice{}, kube.EnqueueAtLowPriority(own.mapImportedSlice)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToExports), kube.NamespaceExportsChanged).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToImports), kube.NamespaceLabelsChanged).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(own.mapNamespaceToWaiters), kube.NamespaceLabelsChanged).
		WatchesRawSource(r.requeuer.Source()).
		WithOptions(r.requeuer.Options(r.concurrency)).
		Complete(r)
}

func (r *Controller) mapper() mapper {
	return mapper{client: r.client, waiters: r.waiters, reported: &r.reported}
}
