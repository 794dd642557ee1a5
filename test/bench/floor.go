package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// again is the namespace in which floor makes everything once more.
const again = "again"

// made is what converge waits for of one export: its ServiceExport in the exporting cluster, and in the importing cluster the
// ServiceImport, the Service that gives it its IPs, and an EndpointSlice.
type made struct {
	export  mcsv1beta1.ServiceExport
	imp     mcsv1beta1.ServiceImport
	derived corev1.Service
	slice   discoveryv1.EndpointSlice
}

// floor measures how long the API servers of both clusters take for no more than the objects that converge waits for: the
// controllers are away, and this program writes all of them again, without statuses and without the exporting cluster's own imports.
func (c *clusters) floor(ctx context.Context, result *Convergence) error {
	all, err := c.whatWasMade(ctx)
	if err != nil {
		return err
	}
	for name, cluster := range map[string]client.Client{"cls1": c.exporter, "cls2": c.importer} {
		for _, line := range []string{"scale deployment/" + manager + " --replicas=0", "wait --for=delete pods --all --timeout=60s"} {
			if out, err := c.set.Output(ctx, "kubectl --context "+name+" -n "+system+" "+line); err != nil {
				return fmt.Errorf("%s: %s: %w: %s", name, line, err, out)
			}
		}
		if err := cluster.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: again}}); err != nil {
			return err
		}
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	began := time.Now()
	err = inParallel(ctx, len(all), func(ctx context.Context, i int) error { return c.make(ctx, all[i]) })
	result.FloorMS = milliseconds(time.Since(began))
	return err
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
		derived[ownerOf(&svc)] = svc
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

func ownerOf(obj client.Object) string {
	if refs := obj.GetOwnerReferences(); len(refs) > 0 {
		return refs[0].Name
	}
	return ""
}

// make writes one export's objects in the order in which user and controllers do: five writes.
func (c *clusters) make(ctx context.Context, m *made) error {
	if err := c.exporter.Create(ctx, afresh(&m.export)); err != nil {
		return err
	}
	ips := m.imp.Spec.IPs
	m.imp.Spec.IPs = nil
	if err := c.importer.Create(ctx, afresh(&m.imp)); err != nil {
		return err
	}
	m.derived.Spec.ClusterIP, m.derived.Spec.ClusterIPs = "", nil
	if err := c.importer.Create(ctx, owned(&m.derived, m.imp.UID)); err != nil {
		return err
	}
	m.imp.Spec.IPs = ips
	if err := c.importer.Update(ctx, &m.imp); err != nil {
		return err
	}
	return c.importer.Create(ctx, owned(&m.slice, m.imp.UID))
}

// afresh makes an object that was read one that can be created.
func afresh[T client.Object](obj T) T {
	obj.SetNamespace(again)
	obj.SetUID("")
	obj.SetResourceVersion("")
	obj.SetManagedFields(nil)
	return obj
}

// owned is afresh with the ServiceImport's new UID, without which the garbage collector would remove it.
func owned[T client.Object](obj T, owner types.UID) T {
	refs := obj.GetOwnerReferences()
	for i := range refs {
		refs[i].UID = owner
	}
	obj.SetOwnerReferences(refs)
	return afresh(obj)
}
