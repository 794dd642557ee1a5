package fleet

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// writers is the number of concurrent requests of the floor, as in the section convergence.
const writers = 16

// objects are what the controller has written, by name of the import.
type objects map[client.ObjectKey]*importObjects

type importObjects struct {
	service corev1.Service
	imp     mcsv1beta1.ServiceImport
	slices  []discoveryv1.EndpointSlice
}

// readObjects reads the imports of a cluster.
func (cl *cluster) readObjects(ctx context.Context) (objects, error) {
	var (
		imports  mcsv1beta1.ServiceImportList
		services corev1.ServiceList
		slices   discoveryv1.EndpointSliceList
	)
	derived := client.HasLabels{mcsv1beta1.LabelServiceName}
	if err := errors.Join(cl.client.List(ctx, &imports), cl.client.List(ctx, &services, derived), cl.client.List(ctx, &slices, derived)); err != nil {
		return nil, err
	}
	out := objects{}
	for _, imp := range imports.Items {
		out[client.ObjectKeyFromObject(&imp)] = &importObjects{imp: imp}
	}
	of := func(o client.Object) *importObjects {
		if found := out[client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[mcsv1beta1.LabelServiceName]}]; found != nil {
			return found
		}
		return &importObjects{} // an orphan
	}
	for _, svc := range services.Items {
		of(&svc).service = svc
	}
	for _, slice := range slices.Items {
		o := of(&slice)
		o.slices = append(o.slices, slice)
	}
	return out, nil
}

// writeAlone measures how long one client takes to write the objects, and the status of the
// imports, on a new API server.
func (o objects) writeAlone(ctx context.Context, namespaces []string) (time.Duration, error) {
	cl, err := startCluster(ctx, namespaces)
	if err != nil {
		return 0, err
	}
	defer cl.stop()
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, imp := range o {
		group.Go(func() error { return imp.write(ctx, cl.client) })
	}
	err = group.Wait()
	return time.Since(began), err
}

// write writes an import as the controller does, in its order.
func (o *importObjects) write(ctx context.Context, c client.Client) error {
	service := newCopy(&o.service)
	service.Spec.ClusterIP, service.Spec.ClusterIPs, service.OwnerReferences = "", nil, nil
	if err := c.Create(ctx, service); err != nil {
		return err
	}
	imp := newCopy(&o.imp)
	imp.Spec.IPs = service.Spec.ClusterIPs
	status := imp.Status.DeepCopy()
	if err := c.Create(ctx, imp); err != nil {
		return err
	}
	for i := range o.slices {
		if err := c.Create(ctx, newCopy(&o.slices[i])); err != nil {
			return err
		}
	}
	imp.Status = *status
	return c.Status().Update(ctx, imp)
}

// newCopy returns a copy of an object from an API server that can be created again.
func newCopy[T client.Object](obj T) T {
	obj = obj.DeepCopyObject().(T)
	obj.SetUID("")
	obj.SetResourceVersion("")
	obj.SetManagedFields(nil)
	return obj
}
