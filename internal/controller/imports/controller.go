package imports

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// Controller reconciles the imports of this cluster.
type Controller struct {
	client     client.Client
	membership *membership.Membership
	scope      *kube.Scope
	events     kube.EventRecorder
	metrics    *Metrics
	takeover   Takeover
	requeuer   *kube.Requeuer
	staleRule  mcs.StaleRule
	// mcsVersion is the served version of the MCS API, which owner references to ServiceImports name.
	mcsVersion schema.GroupVersion
	now        func() time.Time

	families      *families
	distributions *distributions
	waiters       *namespaceWaiters
	// reported holds the keys of imports that are reported as prevented by an object of another owner.
	reported sync.Map // mcs.Key -> struct{}
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
	// MCSVersion is the served version of the MCS API.
	MCSVersion schema.GroupVersion
}

// New returns the controller of imports.
func New(cfg Config) *Controller {
	return &Controller{
		client: cfg.Client, membership: cfg.Membership, scope: cfg.Scope, events: cfg.Events, metrics: cfg.Metrics,
		takeover: cfg.Takeover, requeuer: cfg.Requeuer, staleRule: cfg.StaleRule, mcsVersion: cfg.MCSVersion, now: time.Now,
		families: &families{client: cfg.Client}, distributions: &distributions{client: cfg.Client}, waiters: newNamespaceWaiters(),
	}
}

// Reconcile implements reconcile.Reconciler.
func (r *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	session := r.membership.State().Session
	if session == nil {
		return reconcile.Result{}, nil // imports stay as they are; a new session requeues all of them
	}
	facts, err := r.gather(ctx, session, kube.KeyOf(req.NamespacedName))
	if err != nil {
		return reconcile.Result{}, err
	}
	decision := decideImport(facts)
	if decision.canWait(facts) && r.requeuer.Defer(facts.key) {
		return reconcile.Result{}, nil
	}
	if decision.verdict != verdictNotOwned {
		r.reported.Delete(facts.key)
	}
	var requeueAfter time.Duration
	switch decision.verdict {
	case verdictNotOwned:
		r.reportNotOwned(ctx, facts)
	case verdictRemove:
		err = r.removeImport(ctx, facts)
	case verdictApply:
		requeueAfter, err = r.applyImport(ctx, session, facts, decision)
	}
	result, err := kube.RequeueOnConflict(err)
	result.RequeueAfter = max(result.RequeueAfter, requeueAfter)
	return result, err
}

// Register adds the controller to mgr. It reconciles a service when an object of its import changes, its namespace is created
// or gets other labels, this cluster's own export of it changes, and when it is requeued.
func (r *Controller) Register(mgr manager.Manager) error {
	m := kube.ServiceMapper{Client: r.client}
	return builder.ControllerManagedBy(mgr).
		Named("serviceimport").
		For(&mcsv1beta1.ServiceImport{}).
		Watches(&mcsv1beta1.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(m.MapService)).
		Watches(&corev1.Service{}, kube.EnqueueAtLowPriority(mapDerivedService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(m.MapSlice)).
		Watches(&discoveryv1.EndpointSlice{}, kube.EnqueueAtLowPriority(mapImportedSlice)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToExports), kube.NamespaceLabelsChanged).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToImports), kube.NamespaceLabelsChanged).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.mapNamespaceToWaiters), kube.NamespaceLabelsChanged).
		WatchesRawSource(r.requeuer.Source()).
		WithOptions(controller.Options{NewQueue: r.requeuer.NewQueue}).
		Complete(r)
}

// mapNamespaceToWaiters maps a namespace to the services that could not be imported into it so far.
func (r *Controller) mapNamespaceToWaiters(_ context.Context, ns client.Object) []reconcile.Request {
	return r.waiters.requests(ns.GetName())
}

// mapDerivedService maps a derived Service to its import, by its label or its owner: it has the label before the owner.
func mapDerivedService(_ context.Context, svc client.Object) []reconcile.Request {
	if name := svc.GetLabels()[mcsv1beta1.LabelServiceName]; name != "" && plan.IsManaged(svc) {
		return []reconcile.Request{kube.RequestFor(mcs.Key{Namespace: svc.GetNamespace(), Name: name})}
	}
	for _, owner := range svc.GetOwnerReferences() {
		if owner.Kind == mcsv1beta1.ServiceImportKindName && plan.IsManaged(svc) {
			return []reconcile.Request{kube.RequestFor(mcs.Key{Namespace: svc.GetNamespace(), Name: owner.Name})}
		}
	}
	return nil
}

// mapImportedSlice maps an imported EndpointSlice to its import.
func mapImportedSlice(_ context.Context, slice client.Object) []reconcile.Request {
	name := slice.GetLabels()[mcsv1beta1.LabelServiceName]
	if name == "" || !plan.IsManaged(slice) {
		return nil
	}
	return []reconcile.Request{kube.RequestFor(mcs.Key{Namespace: slice.GetNamespace(), Name: name})}
}

// reportNotOwned reports, once, that an object of another owner prevents the import.
func (r *Controller) reportNotOwned(ctx context.Context, f importFacts) {
	if _, reported := r.reported.LoadOrStore(f.key, struct{}{}); reported {
		return
	}
	var obj client.Object = f.derived
	message := "Service " + mcs.DerivedName(f.key) + " has the name that the import needs, but was not created by this controller: delete it"
	if isForeign(f.imp) {
		obj = f.imp
		message = "the clusterset exports this service, but its ServiceImport was not created by this controller, which leaves it alone: " +
			"delete it to have it imported"
		if f.takeover.NotOwnedMessage != "" {
			message = f.takeover.NotOwnedMessage
		}
	}
	log.FromContext(ctx).Info("Service not imported", "reason", message)
	r.events.Publish(kube.NotManaged(obj, message))
}
