package imports

import (
	"context"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// mapper maps changed objects to the imports that they belong to.
type mapper struct {
	client  client.Client
	waiters *namespaceWaiters
	// reported holds the keys of imports that are reported as prevented by an object of another
	// owner.
	reported *sync.Map // mcs.Key -> struct{}
}

// mapNamespaceToWaiters maps a namespace to the services that could not be imported into it so far.
func (m mapper) mapNamespaceToWaiters(_ context.Context, ns client.Object) []reconcile.Request {
	return m.waiters.requests(ns.GetName())
}

// mapDerivedService maps a Service with the name of a derived Service, or with our label, to its
// import.
func (m mapper) mapDerivedService(ctx context.Context, svc client.Object) []reconcile.Request {
	derived := ""
	if mcs.IsDerivedName(svc.GetName()) {
		derived = svc.GetName()
	}
	return m.mapObject(ctx, svc, derived)
}

// mapImportedSlice maps an EndpointSlice with the name of an imported one, or with our label, to
// its import.
func (m mapper) mapImportedSlice(ctx context.Context, slice client.Object) []reconcile.Request {
	return m.mapObject(ctx, slice, plan.DerivedNameOfSlice(slice.(*discoveryv1.EndpointSlice)))
}

// mapObject maps an object of an import to it: by its label or its owner, and if another client
// changed these, by the name of the derived Service, with which its own name begins. derived is ""
// if it does not.
func (m mapper) mapObject(ctx context.Context, obj client.Object, derived string) []reconcile.Request {
	managed := plan.IsManaged(obj)
	if derived == "" && !managed {
		return nil
	}
	names := plan.ImportOwners(obj)
	if name := obj.GetLabels()[mcsv1beta1.LabelServiceName]; name != "" {
		names = append(names, name)
	}
	matches := func(name string) bool {
		return mcs.IsDerivedNameOf(derived, mcs.Key{Namespace: obj.GetNamespace(), Name: name})
	}
	if derived != "" {
		names = append(names, m.findReported(obj.GetNamespace(), matches)...)
	}
	if (len(names) == 0 || !managed) && derived != "" && !slices.ContainsFunc(names, matches) {
		names = append(names, m.findImports(ctx, obj.GetNamespace(), matches)...)
	}
	slices.Sort(names)
	var requests []reconcile.Request
	for _, name := range slices.Compact(names) {
		requests = append(requests, kube.RequestFor(mcs.Key{Namespace: obj.GetNamespace(), Name: name}))
	}
	return requests
}

// findImports returns the names of a namespace's imports that match. It computes the derived name
// of each and is used only for objects without label and owner.
func (m mapper) findImports(ctx context.Context, namespace string, matches func(name string) bool) (names []string) {
	var imports mcsv1beta1.ServiceImportList
	if err := m.client.List(ctx, &imports, client.InNamespace(namespace), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		log.FromContext(ctx).Error(err, "Failed to find the import of an object", "namespace", namespace)
	}
	for i := range imports.Items {
		if matches(imports.Items[i].Name) {
			names = append(names, imports.Items[i].Name)
		}
	}
	return names
}

// findReported returns the names of a namespace's imports that match and that an object prevents,
// which may belong to another import.
func (m mapper) findReported(namespace string, matches func(name string) bool) (names []string) {
	m.reported.Range(func(key, _ any) bool {
		if k := key.(mcs.Key); k.Namespace == namespace && matches(k.Name) {
			names = append(names, k.Name)
		}
		return true
	})
	return names
}
