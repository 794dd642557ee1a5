package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// autoExporter writes a ServiceExport for each Service that --auto-export-selector selects, and deletes it when that is so no
// more. It runs without the flag as well: then nothing is selected, and what an earlier setting made goes.
type autoExporter struct {
	client client.Client
	scope  *scope
}

// register makes mgr run r: it looks at a Service when it, its ServiceExport or the labels of its namespace change.
func (r *autoExporter) register(mgr manager.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		Named("autoexport").
		For(&corev1.Service{}).
		Watches(&mcsv1beta1.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(watcher{r.client}.servicesIn), relabelled).
		WithOptions(options).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *autoExporter) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc, exp := &corev1.Service{}, &mcsv1beta1.ServiceExport{}
	found, err := find(ctx, r.client, req.NamespacedName, svc, client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !found {
		svc = nil
	}
	if found, err = find(ctx, r.client, req.NamespacedName, exp, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	if !found {
		exp = nil
	}
	ns, _, err := readNamespace(ctx, r.client, req.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch decideAutoExport(r.scope, ns, svc, exp) {
	case autoCreate:
		err = r.create(ctx, svc)
	case autoDelete:
		err = r.delete(ctx, exp)
	}
	return retryOnRace(err)
}

// autoVerdict is what becomes of the ServiceExport that we may have written for a Service.
type autoVerdict int

const (
	autoNone autoVerdict = iota
	autoCreate
	autoDelete
)

// decideAutoExport decides of svc and exp, its ServiceExport; both are nil when they are not there. A ServiceExport that
// somebody else wrote is not ours to judge.
func decideAutoExport(s *scope, ns *metav1.PartialObjectMetadata, svc *corev1.Service, exp *mcsv1beta1.ServiceExport) autoVerdict {
	wanted := svc != nil && autoExported(s, ns, svc)
	switch {
	case exp == nil && wanted:
		return autoCreate
	case exp == nil, exp.DeletionTimestamp != nil, !autoWritten(exp):
		return autoNone
	case wanted && ownedBy(exp, svc):
		return autoNone
	}
	return autoDelete // also that of an earlier Service of the name: the next look writes one for this one
}

// autoExported says whether svc is one to export without being told: selected, allowed, and with something to export that is
// not itself imported. The API server's own Service is another one in every cluster under the same name.
func autoExported(s *scope, ns *metav1.PartialObjectMetadata, svc *corev1.Service) bool {
	switch {
	case svc.DeletionTimestamp != nil, ns.DeletionTimestamp != nil:
		return false
	case svc.Spec.Type == corev1.ServiceTypeExternalName, derived(svc):
		return false
	case svc.Namespace == metav1.NamespaceDefault && svc.Name == "kubernetes":
		return false
	}
	return s.autoExport.Matches(labels.Set(svc.Labels)) && s.mayNotExport(ns) == ""
}

// derived says whether svc was made of a ServiceImport, by whichever implementation.
func derived(svc *corev1.Service) bool {
	return plan.IsManaged(svc) || slices.ContainsFunc(svc.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == mcsv1beta1.ServiceImportKindName
	})
}

// autoWritten says whether we wrote exp: it has our label and a Service of its name for an owner, as no copy and no manifest
// has by accident.
func autoWritten(exp *mcsv1beta1.ServiceExport) bool {
	return plan.IsManaged(exp) && slices.ContainsFunc(exp.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == serviceKind && o.Name == exp.Name
	})
}

func ownedBy(exp *mcsv1beta1.ServiceExport, svc *corev1.Service) bool {
	return slices.ContainsFunc(exp.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == svc.UID })
}

const serviceKind = "Service"

func (r *autoExporter) create(ctx context.Context, svc *corev1.Service) error {
	exp := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: svc.Namespace, Name: svc.Name,
		Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
		// The owner takes it along even while no controller runs.
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: serviceKind, Name: svc.Name, UID: svc.UID}},
	}}
	err := r.client.Create(ctx, exp)
	if apierrors.IsAlreadyExists(err) {
		return nil // somebody was faster, and the watch shows it
	}
	if err != nil {
		return ignoreTerminating(fmt.Errorf("creating ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err))
	}
	log.FromContext(ctx).Info("Exported automatically", "reason", "the Service matches --auto-export-selector")
	return nil
}

func (r *autoExporter) delete(ctx context.Context, exp *mcsv1beta1.ServiceExport) error {
	// The version too: a user may have just made it theirs.
	err := r.client.Delete(ctx, exp, client.Preconditions{UID: &exp.UID, ResourceVersion: &exp.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err)
	}
	log.FromContext(ctx).Info("Automatic export ended", "reason", "the Service is gone, does not match --auto-export-selector or may not be exported")
	return nil
}
