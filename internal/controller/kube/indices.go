package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// Indices of the cache. Without them each reconcile would read all EndpointSlices, or Services, of
// a namespace.
const (
	// IndexService finds the slices with the name of a Service: mcs.NewExport decides which are
	// exported, and reports the others. IndexImport finds the imported slices by
	// mcs.ShortDerivedName. Their names begin with it: a client can change a label, but not a name.
	IndexService = "service"
	IndexImport  = "import"
	// IndexDerived finds the derived Services of a ServiceImport, of any implementation.
	IndexDerived = "derived"
	// IndexExported finds the ServiceExports of a Service, by mcs.ExportedService.
	IndexExported = "exported"
)

// AddIndices adds the indices to the cache.
func AddIndices(ctx context.Context, indexer client.FieldIndexer) error {
	ofService := func(obj client.Object) []string { return nonEmpty(obj.GetLabels()[discoveryv1.LabelServiceName]) }
	if err := indexer.IndexField(ctx, &discoveryv1.EndpointSlice{}, IndexService, ofService); err != nil {
		return fmt.Errorf("indexing EndpointSlices: %w", err)
	}
	ofImport := func(obj client.Object) []string {
		return nonEmpty(mcs.ShortenDerivedName(plan.DerivedNameOfSlice(obj.(*discoveryv1.EndpointSlice))))
	}
	if err := indexer.IndexField(ctx, &discoveryv1.EndpointSlice{}, IndexImport, ofImport); err != nil {
		return fmt.Errorf("indexing EndpointSlices: %w", err)
	}
	derived := func(obj client.Object) []string {
		return nonEmpty(obj.GetLabels()[mcsv1beta1.LabelServiceName])
	}
	if err := indexer.IndexField(ctx, &corev1.Service{}, IndexDerived, derived); err != nil {
		return fmt.Errorf("indexing Services: %w", err)
	}
	if err := indexer.IndexField(ctx, &mcsv1beta1.ServiceExport{}, IndexExported, exportedService); err != nil {
		return fmt.Errorf("indexing ServiceExports: %w", err)
	}
	return nil
}

// exportedService returns the value of IndexExported, none if the annotation is not valid.
func exportedService(obj client.Object) []string {
	name, err := mcs.ExportedService(obj.(*mcsv1beta1.ServiceExport))
	if err != nil {
		return nil
	}
	return []string{name}
}

// nonEmpty returns the value of an index, none if it is "".
func nonEmpty(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// ListDerivedServices reads the Services that carry the label of a ServiceImport. They come from
// the cache and must not be changed.
func ListDerivedServices(ctx context.Context, c client.Reader, key mcs.Key) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	// The list does not wait for our own writes: it would wait for those of all Services, and every
	// write or deletion of one of them has the resource version or UID as a precondition.
	err := c.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{IndexDerived: key.Name},
		client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		return nil, fmt.Errorf("listing the derived Services of %s: %w", key, err)
	}
	var out []*corev1.Service
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// ListSlices reads the EndpointSlices of an index. They come from the cache and must not be
// changed. The list does not wait for our own writes: it would wait for those of all
// EndpointSlices, also for those that an admission webhook delays.
func ListSlices(ctx context.Context, c client.Reader, namespace, index, name string) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{index: name}, client.UnsafeDisableDeepCopy,
		client.DisableReadYourWritesConsistency)
	if err != nil {
		return nil, fmt.Errorf("listing EndpointSlices of %s/%s: %w", namespace, name, err)
	}
	return list.Items, nil
}
