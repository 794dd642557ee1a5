package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// exportObjects are all objects of one export: its ServiceExport, and its import in each of the two
// clusters.
type exportObjects struct {
	export               mcsv1beta1.ServiceExport
	atExporter, atOthers importObjects
}

// importObjects are the objects of one import: the derived Service that gives it its IPs, the
// ServiceImport and the EndpointSlices.
type importObjects struct {
	derived corev1.Service
	imp     mcsv1beta1.ServiceImport
	slices  []discoveryv1.EndpointSlice
}

// writeObjects measures how long the API servers of both clusters take to store the objects that
// converge waits for. On new clusters without controllers, this program writes the objects and
// their statuses itself.
func writeObjects(ctx context.Context, registry string, all []*exportObjects) (took time.Duration, err error) {
	c, err := bringUp(ctx, registry)
	defer c.down()
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"cls1", "cls2"} {
		for _, line := range []string{"scale deployment/" + manager + " --replicas=0", "wait --for=delete pods --all --timeout=60s"} {
			if out, err := c.set.Output(ctx, "kubectl --context "+name+" -n "+system+" "+line); err != nil {
				return 0, fmt.Errorf("%s: %s: %w: %s", name, line, err, out)
			}
		}
	}
	if err := c.makeServices(ctx, len(all)); err != nil {
		return 0, err
	}
	began := time.Now()
	err = inParallel(ctx, len(all), func(ctx context.Context, i int) error { return all[i].write(ctx, c.exporter, c.importer) })
	return time.Since(began), err
}

// readObjects reads the objects of every export that the controllers have created.
func (c *clusters) readObjects(ctx context.Context) ([]*exportObjects, error) {
	var exports mcsv1beta1.ServiceExportList
	if err := c.exporter.List(ctx, &exports, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	own, err := readImports(ctx, c.exporter)
	if err != nil {
		return nil, err
	}
	others, err := readImports(ctx, c.importer)
	if err != nil {
		return nil, err
	}
	var all []*exportObjects
	for _, e := range exports.Items {
		o := &exportObjects{export: e, atExporter: own[e.Name], atOthers: others[e.Name]}
		for cluster, i := range map[string]importObjects{"cls1": o.atExporter, "cls2": o.atOthers} {
			if i.imp.Name == "" || i.derived.Name == "" || len(i.slices) == 0 {
				return nil, fmt.Errorf("%s: service %s: import %q, derived Service %q, %d EndpointSlices: one is missing", cluster, e.Name, i.imp.Name, i.derived.Name, len(i.slices))
			}
		}
		all = append(all, o)
	}
	return all, nil
}

// readImports reads the imports of a cluster by name of the service.
func readImports(ctx context.Context, c client.Client) (map[string]importObjects, error) {
	var (
		imports  mcsv1beta1.ServiceImportList
		services corev1.ServiceList
		slices   discoveryv1.EndpointSliceList
	)
	in, imported := client.InNamespace(namespace), client.HasLabels{mcsv1beta1.LabelServiceName}
	if err := errors.Join(c.List(ctx, &imports, in), c.List(ctx, &services, in, imported), c.List(ctx, &slices, in, imported)); err != nil {
		return nil, err
	}
	out := map[string]importObjects{}
	for _, imp := range imports.Items {
		out[imp.Name] = importObjects{imp: imp}
	}
	for _, svc := range services.Items {
		name := svc.Labels[mcsv1beta1.LabelServiceName]
		objects := out[name]
		objects.derived = svc
		out[name] = objects
	}
	for _, s := range slices.Items {
		name := s.Labels[mcsv1beta1.LabelServiceName]
		objects := out[name]
		objects.slices = append(objects.slices, s)
		out[name] = objects
	}
	return out, nil
}

// write writes the objects of one export as user and controllers do, in their order.
func (o *exportObjects) write(ctx context.Context, exporter, importer client.Client) error {
	export := newCopy(&o.export)
	status := export.Status.DeepCopy()
	if err := exporter.Create(ctx, export); err != nil {
		return err
	}
	if err := errors.Join(o.atOthers.write(ctx, importer), o.atExporter.write(ctx, exporter)); err != nil {
		return err
	}
	export.Status = *status
	return exporter.Status().Update(ctx, export)
}

// write writes the objects of one import.
func (o *importObjects) write(ctx context.Context, c client.Client) error {
	derived := newCopy(&o.derived)
	derived.Spec.ClusterIP, derived.Spec.ClusterIPs, derived.OwnerReferences = "", nil, nil
	if err := c.Create(ctx, derived); err != nil {
		return err
	}
	imp := newCopy(&o.imp)
	imp.Spec.IPs = derived.Spec.ClusterIPs
	status := imp.Status.DeepCopy()
	if err := c.Create(ctx, imp); err != nil {
		return err
	}
	for i := range o.slices {
		slice := newCopy(&o.slices[i])
		for j := range slice.OwnerReferences {
			// the garbage collector would remove it otherwise
			slice.OwnerReferences[j].UID = imp.UID
		}
		if err := c.Create(ctx, slice); err != nil {
			return err
		}
	}
	imp.Status = *status
	return c.Status().Update(ctx, imp)
}

// newCopy returns a copy of an object from the API server that can be created again.
func newCopy[T client.Object](obj T) T {
	obj = obj.DeepCopyObject().(T)
	obj.SetUID("")
	obj.SetResourceVersion("")
	obj.SetManagedFields(nil)
	return obj
}
