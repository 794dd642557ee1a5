package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// localSource is what this cluster has of a service that it exports, or not.
type localSource struct {
	mcs.Source
	// forbidden says why the namespace may not export, "" when it may.
	forbidden string
}

// gatherSource reads what this cluster exports as key. Its ServiceExport and Service are nil when they are not there. A
// ServiceExport that is being deleted counts as gone: a finalizer of somebody else's does not keep it exported.
//
// Objects come straight from the cache and must not be changed.
func gatherSource(ctx context.Context, c client.Reader, scope *scope, identity mcs.Identity, key mcs.Key) (localSource, error) {
	src := localSource{Source: mcs.Source{Identity: identity}}
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}

	var exp mcsv1beta1.ServiceExport
	if found, err := find(ctx, c, name, &exp); err != nil || !found || exp.DeletionTimestamp != nil {
		return src, err
	}
	src.ServiceExport = &exp

	ns, _, err := readNamespace(ctx, c, key.Namespace)
	if err != nil {
		return src, err
	}
	src.forbidden = scope.mayNotExport(ns)

	var svc corev1.Service
	if found, err := find(ctx, c, name, &svc, client.UnsafeDisableDeepCopy); err != nil || !found || svc.DeletionTimestamp != nil {
		return src, err
	}
	src.Service = &svc

	// Nothing that we write is among them, so there are no writes of our own to wait for.
	slices, err := listSlices(ctx, c, key.Namespace, indexService, key.Name, client.DisableReadYourWritesConsistency)
	src.Slices = slices
	return src, err
}

// namespaceStays says whether a namespace is there and is not being deleted.
func namespaceStays(ctx context.Context, c client.Reader, name string) (bool, error) {
	ns, found, err := readNamespace(ctx, c, name)
	return found && ns.DeletionTimestamp == nil, err
}

// namespaceMetadata is an object to read a namespace's metadata into, which is all of it that is cached.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// find reads obj and says whether it is there.
func find(ctx context.Context, c client.Reader, name types.NamespacedName, obj client.Object, opts ...client.GetOption) (bool, error) {
	err := c.Get(ctx, name, obj, opts...)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", obj, strings.TrimPrefix(name.String(), "/"), err)
	}
	return true, nil
}

// exported says whether src is exported.
func exported(src localSource) bool {
	return src.ServiceExport != nil && src.forbidden == "" && mcs.ExportValid(src.Service).Status == metav1.ConditionTrue
}

// Indices of the cache: without them each look at one service would read all EndpointSlices, or Services, of its namespace.
const (
	// indexService finds the slices of a Service of this cluster, indexImport those that we imported for a ServiceImport.
	indexService = "service"
	indexImport  = "import"
	// indexDerived finds the derived Services of a ServiceImport, by whichever controller.
	indexDerived = "derived"
)

// addIndices makes the cache keep the indices.
func addIndices(ctx context.Context, indexer client.FieldIndexer) error {
	byLabel := func(label string, ours bool) client.IndexerFunc {
		return func(obj client.Object) []string {
			if name := obj.GetLabels()[label]; name != "" && plan.IsManaged(obj) == ours {
				return []string{name}
			}
			return nil
		}
	}
	if err := indexer.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, byLabel(discoveryv1.LabelServiceName, false)); err != nil {
		return fmt.Errorf("indexing EndpointSlices: %w", err)
	}
	if err := indexer.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexImport, byLabel(mcsv1beta1.LabelServiceName, true)); err != nil {
		return fmt.Errorf("indexing EndpointSlices: %w", err)
	}
	derived := func(obj client.Object) []string {
		if name := obj.GetLabels()[mcsv1beta1.LabelServiceName]; name != "" {
			return []string{name}
		}
		return nil
	}
	if err := indexer.IndexField(ctx, &corev1.Service{}, indexDerived, derived); err != nil {
		return fmt.Errorf("indexing Services: %w", err)
	}
	return nil
}

// listDerived reads the Services that carry the label of a ServiceImport, straight from the cache: they must not be changed.
func listDerived(ctx context.Context, c client.Reader, key mcs.Key) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := c.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{indexDerived: key.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the derived Services of %s: %w", key, err)
	}
	var out []*corev1.Service
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// listSlices reads the EndpointSlices of an index, straight from the cache: they must not be changed.
func listSlices(ctx context.Context, c client.Reader, namespace, index, name string, opts ...client.ListOption) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	opts = append(opts, client.InNamespace(namespace), client.MatchingFields{index: name}, client.UnsafeDisableDeepCopy)
	if err := c.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("listing EndpointSlices of %s/%s: %w", namespace, name, err)
	}
	return list.Items, nil
}
