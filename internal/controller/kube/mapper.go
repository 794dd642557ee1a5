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

// MapService maps a Service to its ServiceExports.
func (m ServiceMapper) MapService(ctx context.Context, svc client.Object) []reconcile.Request {
	return m.mapExported(ctx, svc.GetNamespace(), svc.GetName())
}

// MapSlice maps an EndpointSlice to the ServiceExports of its Service. mcs.NewExport decides
// whether it is exported.
func (m ServiceMapper) MapSlice(ctx context.Context, slice client.Object) []reconcile.Request {
	return m.mapExported(ctx, slice.GetNamespace(), slice.GetLabels()[discoveryv1.LabelServiceName])
}

func (m ServiceMapper) mapExported(ctx context.Context, namespace, service string) []reconcile.Request {
	return m.mapObjects(ctx, namespace, &mcsv1beta1.ServiceExportList{}, client.MatchingFields{IndexExported: service})
}

// MapNamespaceToExports maps a namespace to its ServiceExports.
func (m ServiceMapper) MapNamespaceToExports(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapObjects(ctx, ns.GetName(), &mcsv1beta1.ServiceExportList{})
}

// MapNamespaceToImports maps a namespace to its ServiceImports.
func (m ServiceMapper) MapNamespaceToImports(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapObjects(ctx, ns.GetName(), &mcsv1beta1.ServiceImportList{})
}

// MapNamespaceToServices maps a namespace to its Services.
func (m ServiceMapper) MapNamespaceToServices(ctx context.Context, ns client.Object) []reconcile.Request {
	return m.mapObjects(ctx, ns.GetName(), &corev1.ServiceList{})
}

// mapObjects returns a request for each object of list's kind in a namespace.
func (m ServiceMapper) mapObjects(ctx context.Context, namespace string, list client.ObjectList, options ...client.ListOption) []reconcile.Request {
	err := m.Client.List(ctx, list, append(options, client.InNamespace(namespace), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)...)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to requeue the services that a change concerns", "namespace", namespace)
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item.(client.Object))})
		return nil
	})
	return requests
}
