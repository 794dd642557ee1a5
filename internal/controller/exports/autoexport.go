package exports

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// AutoExporter creates a ServiceExport for each Service that --auto-export-selector selects, and
// deletes it when the Service is no longer selected. It also runs without the flag, to delete the
// ServiceExports of a previous setting.
type AutoExporter struct {
	client      client.Client
	scope       *kube.Scope
	events      kube.EventRecorder
	concurrency int
}

// NewAutoExporter returns the controller of automatic exports, which reconciles concurrency
// Services in parallel.
func NewAutoExporter(c client.Client, scope *kube.Scope, events kube.EventRecorder, concurrency int) *AutoExporter {
	return &AutoExporter{client: c, scope: scope, events: events, concurrency: concurrency}
}

// Reconcile implements reconcile.Reconciler.
func (r *AutoExporter) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc, exp := &corev1.Service{}, &mcsv1beta1.ServiceExport{}
	found, err := kube.Find(ctx, r.client, req.NamespacedName, svc, client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !found {
		svc = nil
	}
	if found, err = kube.Find(ctx, r.client, req.NamespacedName, exp, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	if !found {
		exp = nil
	}
	ns, _, err := kube.ReadNamespace(ctx, r.client, req.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch decideAutoExport(r.scope, ns, svc, exp) {
	case autoCreate:
		if err = r.createExport(ctx, svc); kube.IsRefused(err) {
			r.events.Publish(kube.AutoExportRefused(svc, "the Service matches --auto-export-selector and is not exported: "+err.Error()))
		}
	case autoDelete:
		if err = r.deleteExport(ctx, exp); kube.IsRefused(err) {
			r.events.Publish(kube.AutoExportRefused(exp, "the Service may not be exported any more and still is: "+err.Error()))
		}
	}
	return kube.RequeueOnConflict(err)
}

// Register adds the controller to mgr. It reconciles a Service when the Service, its ServiceExport
// or the labels of its namespace change.
func (r *AutoExporter) Register(mgr manager.Manager) error {
	m := kube.ServiceMapper{Client: r.client}
	return builder.ControllerManagedBy(mgr).
		Named("autoexport").
		WithLogConstructor(kube.LogConstructor(mgr.GetLogger(), "autoexport", "Service")).
		For(&corev1.Service{}).
		Watches(&mcsv1beta1.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(m.MapNamespaceToServices), kube.NamespaceLabelsChanged).
		WithOptions((&kube.Requeuer{}).Options(r.concurrency)).
		Complete(r)
}

// autoVerdict is the decision about the ServiceExport of a Service.
type autoVerdict int

const (
	autoNone autoVerdict = iota
	autoCreate
	autoDelete
)

// decideAutoExport decides about svc and its ServiceExport exp; both are nil if they do not exist.
// ServiceExports that the AutoExporter did not create stay as they are.
func decideAutoExport(s *kube.Scope, ns *metav1.PartialObjectMetadata, svc *corev1.Service, exp *mcsv1beta1.ServiceExport) autoVerdict {
	wanted := svc != nil && shouldAutoExport(s, ns, svc)
	switch {
	case exp == nil && wanted:
		return autoCreate
	case exp == nil, exp.DeletionTimestamp != nil, !isAutoCreated(exp):
		return autoNone
	case wanted && isOwnedBy(exp, svc):
		return autoNone
	}
	// also if it belongs to a previous Service of the name: the next reconcile creates one for this
	// Service
	return autoDelete
}

// shouldAutoExport reports whether svc is exported automatically: selected, allowed, exportable and
// not itself imported. Service default/kubernetes is never selected, since every cluster has its
// own.
func shouldAutoExport(s *kube.Scope, ns *metav1.PartialObjectMetadata, svc *corev1.Service) bool {
	switch {
	case svc.DeletionTimestamp != nil, ns.DeletionTimestamp != nil:
		return false
	case svc.Spec.Type == corev1.ServiceTypeExternalName, isDerived(svc):
		return false
	case svc.Namespace == metav1.NamespaceDefault && svc.Name == "kubernetes":
		return false
	}
	return s.SelectsService(svc) && s.ExportDenial(ns) == ""
}

// isDerived reports whether svc is the derived Service of a ServiceImport, of any implementation,
// or holds the IPs of one.
func isDerived(svc *corev1.Service) bool {
	return mcs.ImportOf(svc) != "" || mcs.IsDerivedName(svc.Name) && (plan.IsManaged(svc) || plan.IsHeld(svc))
}

// isAutoCreated reports whether the AutoExporter created exp: it has our label and the Service of
// its name as an owner, which no copy and no manifest has by accident.
func isAutoCreated(exp *mcsv1beta1.ServiceExport) bool {
	return plan.IsManaged(exp) && slices.ContainsFunc(exp.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == serviceKind && o.Name == exp.Name
	})
}

func isOwnedBy(exp *mcsv1beta1.ServiceExport, svc *corev1.Service) bool {
	return slices.ContainsFunc(exp.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == svc.UID })
}

const serviceKind = "Service"

func (r *AutoExporter) createExport(ctx context.Context, svc *corev1.Service) error {
	exp := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: svc.Namespace, Name: svc.Name,
		Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
		// By its owner it is deleted with the Service even while no controller runs.
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: serviceKind, Name: svc.Name, UID: svc.UID}},
	}}
	err := r.client.Create(ctx, exp)
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch will show it
	}
	if err != nil {
		return kube.IgnoreTerminatingNamespace(fmt.Errorf("creating ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err))
	}
	log.FromContext(ctx).Info("Created ServiceExport", "reason", "the Service matches --auto-export-selector")
	return nil
}

func (r *AutoExporter) deleteExport(ctx context.Context, exp *mcsv1beta1.ServiceExport) error {
	// The precondition on the version keeps a ServiceExport that a user has just changed.
	err := r.client.Delete(ctx, exp, client.Preconditions{UID: &exp.UID, ResourceVersion: &exp.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err)
	}
	log.FromContext(ctx).Info("Deleted ServiceExport", "reason", "the Service was deleted, does not match --auto-export-selector or may not be exported")
	return nil
}
