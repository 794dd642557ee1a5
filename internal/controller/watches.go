package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// register makes mgr run r: it looks at a service when its ServiceExport, Service or EndpointSlices change, or the
// registry says so.
func (r *exportReconciler) register(mgr manager.Manager, look *trigger, options controller.Options) error {
	w := watcher{r.client}
	return builder.ControllerManagedBy(mgr).
		Named("serviceexport").
		For(&mcsv1beta1.ServiceExport{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(w.exportedService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(w.exportedSlice)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(w.exportsIn), relabelled).
		WatchesRawSource(look.source()).
		WithOptions(options).
		Complete(r)
}

// register makes mgr run r: it looks at a service when what was made of its import changes, its namespace comes, the
// registry says so, or this cluster's own export of it changes.
func (r *importReconciler) register(mgr manager.Manager, options controller.Options) error {
	w := watcher{r.client}
	both := func(a, b handler.MapFunc) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			return append(a(ctx, obj), b(ctx, obj)...)
		})
	}
	return builder.ControllerManagedBy(mgr).
		Named("serviceimport").
		For(&mcsv1beta1.ServiceImport{}).
		Watches(&mcsv1beta1.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		Watches(&corev1.Service{}, both(w.exportedService, derivedService)).
		Watches(&discoveryv1.EndpointSlice{}, both(w.exportedSlice, importedSlice)).
		WatchesMetadata(&corev1.Namespace{}, both(w.exportsIn, w.importsIn), relabelled).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.waitingIn), relabelled).
		WatchesRawSource(r.look.source()).
		WithOptions(options).
		Complete(r)
}

// relabelled passes a namespace's coming and every change of its labels, which decide what is exported and imported there.
var relabelled = builder.WithPredicates(predicate.LabelChangedPredicate{})

// waitingIn maps a namespace to the services that could not be imported into it so far.
func (r *importReconciler) waitingIn(_ context.Context, ns client.Object) []reconcile.Request {
	return r.waiting.requests(ns.GetName())
}

// watcher maps objects to the services that they are part of. Those of Services that are not exported, most of a
// cluster's, are of no interest; becoming exported is an event of its own.
type watcher struct{ client client.Reader }

func (w watcher) exportedService(ctx context.Context, svc client.Object) []reconcile.Request {
	return w.ifExported(ctx, mcs.Key{Namespace: svc.GetNamespace(), Name: svc.GetName()})
}

func (w watcher) exportedSlice(ctx context.Context, slice client.Object) []reconcile.Request {
	if plan.IsManaged(slice) {
		return nil
	}
	return w.ifExported(ctx, mcs.Key{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]})
}

func (w watcher) ifExported(ctx context.Context, key mcs.Key) []reconcile.Request {
	var exp mcsv1beta1.ServiceExport
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	found, err := find(ctx, w.client, name, &exp, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if !found && err == nil {
		return nil
	}
	return []reconcile.Request{requestFor(key)} // an error is the reconciler's to see
}

// exportsIn maps a namespace to its ServiceExports.
func (w watcher) exportsIn(ctx context.Context, ns client.Object) []reconcile.Request {
	return w.allIn(ctx, ns, &mcsv1beta1.ServiceExportList{})
}

// importsIn maps a namespace to its ServiceImports.
func (w watcher) importsIn(ctx context.Context, ns client.Object) []reconcile.Request {
	return w.allIn(ctx, ns, &mcsv1beta1.ServiceImportList{})
}

// servicesIn maps a namespace to its Services.
func (w watcher) servicesIn(ctx context.Context, ns client.Object) []reconcile.Request {
	return w.allIn(ctx, ns, &corev1.ServiceList{})
}

// allIn are the objects of a namespace that are of list's kind.
func (w watcher) allIn(ctx context.Context, ns client.Object, list client.ObjectList) []reconcile.Request {
	err := w.client.List(ctx, list, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		log.FromContext(ctx).Error(err, "Looking at a namespace whose labels changed", "namespace", ns.GetName())
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		requests = append(requests, requestFor(keyOf(client.ObjectKeyFromObject(item.(client.Object)))))
		return nil
	})
	return requests
}

// derivedService maps a derived Service to its import, whose label it has before it has an owner.
func derivedService(_ context.Context, svc client.Object) []reconcile.Request {
	if name := svc.GetLabels()[mcsv1beta1.LabelServiceName]; name != "" && plan.IsManaged(svc) {
		return []reconcile.Request{requestFor(mcs.Key{Namespace: svc.GetNamespace(), Name: name})}
	}
	for _, owner := range svc.GetOwnerReferences() {
		if owner.Kind == mcsv1beta1.ServiceImportKindName && plan.IsManaged(svc) {
			return []reconcile.Request{requestFor(mcs.Key{Namespace: svc.GetNamespace(), Name: owner.Name})}
		}
	}
	return nil
}

// importedSlice maps an imported EndpointSlice to its import.
func importedSlice(_ context.Context, slice client.Object) []reconcile.Request {
	name := slice.GetLabels()[mcsv1beta1.LabelServiceName]
	if name == "" || !plan.IsManaged(slice) {
		return nil
	}
	return []reconcile.Request{requestFor(mcs.Key{Namespace: slice.GetNamespace(), Name: name})}
}
