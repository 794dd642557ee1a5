package kube

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// NamespaceLabelsChanged selects the creation of a namespace and changes of its labels, which
// decide whether its services are exported and imported.
var NamespaceLabelsChanged = builder.WithPredicates(predicate.LabelChangedPredicate{})

// NamespaceExportsChanged also selects changes of the annotations with the cluster preference, the
// recipients and the DNS records.
var NamespaceExportsChanged = builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld != nil && e.ObjectNew != nil && slices.ContainsFunc([]string{mcs.AnnotationClusterPreference, mcs.AnnotationExportTo, mcs.AnnotationInstanceDNS}, func(key string) bool {
			_, before, had := mcs.Annotation(e.ObjectOld.GetAnnotations(), key)
			_, after, has := mcs.Annotation(e.ObjectNew.GetAnnotations(), key)
			return before != after || had != has
		})
	},
}))

// ServiceMapper maps objects to requests for the services that they belong to. It ignores Services
// without a ServiceExport, which most of a cluster's Services are.
type ServiceMapper struct{ Client client.Reader }

// MapService maps an exported Service to its request.
func (m ServiceMapper) MapService(ctx context.Context, svc client.Object) []reconcile.Request {
	return m.mapExported(ctx, mcs.Key{Namespace: svc.GetNamespace(), Name: svc.GetName()})
}

// MapSlice maps an EndpointSlice of an exported Service to the Service's request. mcs.NewExport
// decides whether it is exported.
func (m ServiceMapper) MapSlice(ctx context.Context, slice client.Object) []reconcile.Request {
	return m.mapExported(ctx, mcs.Key{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]})
}

func (m ServiceMapper) mapExported(ctx context.Context, key mcs.Key) []reconcile.Request {
	var exp mcsv1beta1.ServiceExport
	found, err := Find(ctx, m.Client, NameOf(key), &exp, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if !found && err == nil {
		return nil
	}
	return []reconcile.Request{RequestFor(key)} // the reconciler reports the error
}

// MapNamespaceToExports maps a namespace to its ServiceExports.
func (m ServiceMapper) MapNamespaceToExports(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapNamespace(ctx, ns, &mcsv1beta1.ServiceExportList{})
}

// MapNamespaceToImports maps a namespace to its ServiceImports.
func (m ServiceMapper) MapNamespaceToImports(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapNamespace(ctx, ns, &mcsv1beta1.ServiceImportList{})
}

// MapNamespaceToServices maps a namespace to its Services.
func (m ServiceMapper) MapNamespaceToServices(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapNamespace(ctx, ns, &corev1.ServiceList{})
}

// mapNamespace returns a request for each object of list's kind in a namespace.
func (m ServiceMapper) mapNamespace(ctx context.Context, ns client.Object, list client.ObjectList) []reconcile.Request {
	err := m.Client.List(ctx, list, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to requeue the services of a namespace whose labels changed", "namespace", ns.GetName())
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item.(client.Object))})
		return nil
	})
	return requests
}
