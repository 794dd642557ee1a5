package exports

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/guard"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// Controller publishes the exports of this cluster and writes the conditions of each ServiceExport.
type Controller struct {
	client     client.Client
	membership *membership.Membership
	scope      *kube.Scope
	events     kube.EventRecorder
	now        func() time.Time
	requeuer   *kube.Requeuer
	// concurrency is the number of exports that are reconciled in parallel.
	concurrency int
	// releaseExport removes the finalizer of another controller from a ServiceExport; nil if there
	// is none.
	releaseExport func(context.Context, mcs.Key) error
	guard         *guard.Guard
	tracer        *tracing.Tracer
	// reports has the reports of imports of the other members, read every reportInterval.
	reports        atomic.Pointer[memberReports]
	reportInterval time.Duration

	// budget has the cost of the exports of this cluster as in a cluster with the same budgets that
	// imports them; nil has no limits.
	budget *budget.Account

	// published holds the last exports by key, to detect changes.
	published sync.Map // mcs.Key -> publishedExport
	// warnings holds the registry's last warnings by key, to report changes only.
	warnings sync.Map // mcs.Key -> string
	// unwritten holds the reasons for which conditions cannot be written, to report changes only.
	unwritten sync.Map // mcs.Key -> string
	// unshown holds since when the registry has not shown an export as it is.
	unshown sync.Map // mcs.Key -> time.Time
}

// publishedExport is an export and the parts that were left out of it.
type publishedExport struct {
	export  mcs.Export
	leftOut mcs.LeftOuts
	// overBudget is the reason why clusters with this cluster's budgets do not import it as it is,
	// or "".
	overBudget string
	// deprecation is the sentence about its deprecated annotations, or "".
	deprecation string
	// since is the time of its first publication.
	since time.Time
}

// Config configures New.
type Config struct {
	Client     client.Client
	Membership *membership.Membership
	Scope      *kube.Scope
	Events     kube.EventRecorder
	// Requeuer requeues services for this controller alone.
	Requeuer *kube.Requeuer
	// Concurrency is the number of exports that are reconciled in parallel.
	Concurrency int
	// ReleaseExport removes the finalizer of another controller from a ServiceExport; it may be
	// nil.
	ReleaseExport func(context.Context, mcs.Key) error
	// Budgets are those for the exports of other clusters; the zero value is none.
	Budgets budget.Limits
	// Guard and Tracer may be nil.
	Guard  *guard.Guard
	Tracer *tracing.Tracer
	// ReportInterval is the interval at which the reports of the other members are read, 0 the
	// default.
	ReportInterval time.Duration
}

// New returns the controller of ServiceExports.
func New(cfg Config) *Controller {
	r := &Controller{
		client: cfg.Client, membership: cfg.Membership, scope: cfg.Scope, events: cfg.Events, now: time.Now, requeuer: cfg.Requeuer,
		concurrency: cfg.Concurrency, releaseExport: cfg.ReleaseExport, guard: cfg.Guard, tracer: cfg.Tracer,
		reportInterval: cmp.Or(cfg.ReportInterval, defaultReportInterval),
	}
	if cfg.Budgets != (budget.Limits{}) {
		r.budget = budget.NewLedger(cfg.Budgets).Open(budget.Owner{})
	}
	return r
}

// Reconcile implements reconcile.Reconciler. The writes to the API server, which a policy may
// refuse, do not keep it from publishing or withdrawing.
func (r *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key, state := kube.KeyOf(req.NamespacedName), r.membership.State()
	if state.IsPending() {
		return reconcile.Result{}, nil
	}
	result, err := r.reconcileExport(ctx, key, state)
	if r.releaseExport == nil {
		return result, err
	}
	released, releaseErr := kube.RequeueOnConflict(r.releaseExport(ctx, key))
	result.RequeueAfter = max(result.RequeueAfter, released.RequeueAfter)
	return result, errors.Join(err, releaseErr)
}

// reconcileExport publishes or withdraws the export of key, and writes its status.
func (r *Controller) reconcileExport(ctx context.Context, key mcs.Key, state *membership.State) (reconcile.Result, error) {
	began := r.now()
	src, err := kube.ReadLocalSource(ctx, r.client, r.scope, state.Identity(), key)
	if err != nil {
		return reconcile.Result{}, err
	}
	facts := exportFacts{denial: src.Denial, problem: state.Problem}
	if src.ServiceExport != nil {
		facts.valid = mcs.ExportValid(src.ServiceExport, src.Service)
	}
	if src.IsExported() {
		facts.selection = mcs.ExportSelection(src.Source)
	}
	if state.Session != nil {
		if err := r.publish(ctx, state.Session.Registry, src, key, &facts); err != nil {
			return reconcile.Result{}, err
		}
		r.trace(state.Identity(), key, began)
	}
	switch {
	case src.Terminating != nil:
		return kube.RequeueOnConflict(r.updateStatus(ctx, src.Terminating, exportFacts{terminating: src.Terminating}))
	case src.ServiceExport == nil:
		return reconcile.Result{}, nil
	}
	return r.reconcileStatus(ctx, key, src.ServiceExport, facts)
}

// trace records that the export of key was made in a reconcile that began then, if it has changed
// in it.
func (r *Controller) trace(identity mcs.Identity, key mcs.Key, began time.Time) {
	if r.tracer == nil {
		return
	}
	if exp, ok := r.PublishedExport(key); ok && !exp.Changed.Before(began.Truncate(time.Millisecond)) {
		r.tracer.Of(identity).Record(tracing.Export, exp, began, r.now())
	}
}

// reconcileStatus writes the status of exp when that is due.
func (r *Controller) reconcileStatus(ctx context.Context, key mcs.Key, exp *mcsv1beta1.ServiceExport, facts exportFacts) (reconcile.Result, error) {
	if delay := r.statusDelay(key, exp, facts); delay > 0 {
		return reconcile.Result{RequeueAfter: delay}, nil
	}
	// Of many new exports, all are published before the first statuses are written.
	if len(exp.Status.Conditions) == 0 && !facts.needsUser() && r.requeuer.Defer(key) {
		return reconcile.Result{}, nil
	}
	changes := facts.problem == "" && (!facts.synced || facts.status.State == registry.Pending && facts.staysReady(exp.Status.Conditions))
	result, err := kube.RequeueOnConflict(r.updateStatus(ctx, exp, facts))
	if changes {
		result.RequeueAfter = max(result.RequeueAfter, facts.recheckAfter())
	}
	if result.RequeueAfter == 0 && err == nil {
		result.RequeueAfter = facts.recheck
	}
	return result, err
}

// Register adds the controller to mgr. It reconciles a service when its ServiceExport, the Service
// that this exports, or EndpointSlices of that change, when the labels of its namespace change, and
// when it is requeued, as it is when another member reports that it imports the service.
func (r *Controller) Register(mgr manager.Manager) error {
	if err := mgr.Add(manager.RunnableFunc(r.watchReports)); err != nil {
		return err
	}
	m := kube.ServiceMapper{Client: r.client}
	return builder.ControllerManagedBy(mgr).
		Named("serviceexport").
		WithLogConstructor(kube.LogConstructor(mgr.GetLogger(), "serviceexport", "ServiceExport")).
		For(&mcsv1beta1.ServiceExport{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(m.MapService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(m.MapSlice)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToExports), kube.NamespaceExportsChanged).
		WatchesRawSource(r.requeuer.Source()).
		WithOptions(r.requeuer.Options(r.concurrency)).
		Complete(r)
}

// LeftOut returns what the published export of key lacks.
func (r *Controller) LeftOut(key mcs.Key) mcs.LeftOuts {
	value, ok := r.published.Load(key)
	if !ok {
		return nil
	}
	return value.(publishedExport).leftOut
}

// PublishedExport returns the export of key that this cluster publishes.
func (r *Controller) PublishedExport(key mcs.Key) (mcs.Export, bool) {
	value, ok := r.published.Load(key)
	if !ok {
		return mcs.Export{}, false
	}
	return value.(publishedExport).export, true
}

// PublishedKeys returns the keys of all exports that this cluster publishes, unsorted.
func (r *Controller) PublishedKeys() []mcs.Key {
	var keys []mcs.Key
	r.published.Range(func(key, _ any) bool {
		keys = append(keys, key.(mcs.Key))
		return true
	})
	return keys
}

// pendingStatusDelay is the time for which the first status of a new export waits for the registry
// to show the export. Within that time, in which AWS usually completes an operation (1 to 2 s), one
// status write is enough; afterwards the status is Pending.
const pendingStatusDelay = 3 * time.Second

// statusDelay returns how much longer the first status of a new export waits for the registry.
func (r *Controller) statusDelay(key mcs.Key, exp *mcsv1beta1.ServiceExport, facts exportFacts) time.Duration {
	published, ok := r.published.Load(key)
	if !ok || len(exp.Status.Conditions) > 0 || facts.needsUser() || facts.status.State != registry.Pending {
		return 0
	}
	return max(0, pendingStatusDelay-r.now().Sub(published.(publishedExport).since))
}
