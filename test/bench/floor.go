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

// made is what is made of one export until it is imported: its ServiceExport in the exporting cluster, and in the other the Service that
// gives it its IPs, the ServiceImport and an EndpointSlice.
type made struct {
	export  mcsv1beta1.ServiceExport
	imp     mcsv1beta1.ServiceImport
	derived corev1.Service
	slice   discoveryv1.EndpointSlice
}

// floor measures how long the API servers of both clusters take for no more than the objects that converge waits for: on fresh clusters
// like those, but without controllers, this program writes them itself.
func floor(ctx context.Context, registry string, all []*made) (took time.Duration, err error) {
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
	err = inParallel(ctx, len(all), func(ctx context.Context, i int) error { return all[i].afresh().make(ctx, c.exporter, c.importer) })
	return time.Since(began), err
}

// whatWasMade reads what the controllers have made of every export.
func (c *clusters) whatWasMade(ctx context.Context) ([]*made, error) {
	var (
		exports  mcsv1beta1.ServiceExportList
		imports  mcsv1beta1.ServiceImportList
		services corev1.ServiceList
		slices   discoveryv1.EndpointSliceList
	)
	in := client.InNamespace(namespace)
	if err := errors.Join(c.exporter.List(ctx, &exports, in), c.importer.List(ctx, &imports, in),
		c.importer.List(ctx, &services, in), c.importer.List(ctx, &slices, in)); err != nil {
		return nil, err
	}
	derived, sliceOf := map[string]corev1.Service{}, map[string]discoveryv1.EndpointSlice{}
	for _, svc := range services.Items {
		derived[svc.Labels[mcsv1beta1.LabelServiceName]] = svc
	}
	for _, s := range slices.Items {
		sliceOf[s.Labels[mcsv1beta1.LabelServiceName]] = s
	}
	importOf := map[string]mcsv1beta1.ServiceImport{}
	for _, imp := range imports.Items {
		importOf[imp.Name] = imp
	}
	var all []*made
	for _, e := range exports.Items {
		m := &made{export: e, imp: importOf[e.Name], derived: derived[e.Name], slice: sliceOf[e.Name]}
		if m.imp.Name == "" || m.derived.Name == "" || m.slice.Name == "" {
			return nil, fmt.Errorf("ServiceExport %s: import %q, Service %q, EndpointSlice %q: one is missing", e.Name, m.imp.Name, m.derived.Name, m.slice.Name)
		}
		all = append(all, m)
	}
	return all, nil
}

// afresh is the same as it can be created.
func (m *made) afresh() *made {
	return &made{export: *afresh(&m.export), imp: *afresh(&m.imp), derived: *afresh(&m.derived), slice: *afresh(&m.slice)}
}

// make writes one export's objects as user and controllers do, in their order.
func (m *made) make(ctx context.Context, exporter, importer client.Client) error {
	if err := exporter.Create(ctx, &m.export); err != nil {
		return err
	}
	m.derived.Spec.ClusterIP, m.derived.Spec.ClusterIPs, m.derived.OwnerReferences = "", nil, nil
	if err := importer.Create(ctx, &m.derived); err != nil {
		return err
	}
	m.imp.Spec.IPs = m.derived.Spec.ClusterIPs
	if err := importer.Create(ctx, &m.imp); err != nil {
		return err
	}
	for i := range m.slice.OwnerReferences {
		m.slice.OwnerReferences[i].UID = m.imp.UID // without which the garbage collector would remove it
	}
	return importer.Create(ctx, &m.slice)
}

// afresh is a copy of an object that was read, as it can be created.
func afresh[T client.Object](obj T) T {
	obj = obj.DeepCopyObject().(T)
	obj.SetUID("")
	obj.SetResourceVersion("")
	obj.SetManagedFields(nil)
	return obj
}
