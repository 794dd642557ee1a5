package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// made is what is made of one export: its ServiceExport in the exporting cluster, and in each cluster the ServiceImport, the Service
// that gives it its IPs, and an EndpointSlice.
type made struct {
	export  mcsv1beta1.ServiceExport
	imp     mcsv1beta1.ServiceImport
	derived corev1.Service
	slice   discoveryv1.EndpointSlice
}

// floor measures how long the API servers of both clusters take for no more than the objects: the controllers are away, and this
// program writes all of them again in other namespaces, without statuses. First those that converge waits for, then those of both
// clusters, as the exporting cluster imports its own services too.
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
		for _, name := range []string{"again", "both"} {
			if err := cluster.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				return err
			}
		}
	}
	result.FloorMS, err = timed(ctx, func() error {
		return inParallel(ctx, len(all), func(ctx context.Context, i int) error { return all[i].in("again").make(ctx, c.exporter, c.importer) })
	})
	if err != nil {
		return err
	}
	result.BothMS, err = timed(ctx, func() error {
		return inParallel(ctx, len(all), func(ctx context.Context, i int) error {
			return all[i].in("both").make(ctx, c.exporter, c.exporter, c.importer)
		})
	})
	return err
}

// timed is how long do takes in milliseconds, after a pause in which what was before comes to an end.
func timed(ctx context.Context, do func() error) (float64, error) {
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	began := time.Now()
	err := do()
	return milliseconds(time.Since(began)), err
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

// in is the same in another namespace, as it can be created.
func (m *made) in(namespace string) *made {
	return &made{export: *afresh(&m.export, namespace), imp: *afresh(&m.imp, namespace), derived: *afresh(&m.derived, namespace), slice: *afresh(&m.slice, namespace)}
}

// make writes one export's objects in the order in which user and controllers do: one write, and four in each importing cluster.
func (m *made) make(ctx context.Context, exporter client.Client, importers ...client.Client) error {
	if err := exporter.Create(ctx, &m.export); err != nil {
		return err
	}
	for _, importer := range importers {
		if err := m.importInto(ctx, importer); err != nil {
			return err
		}
	}
	return nil
}

func (m *made) importInto(ctx context.Context, cluster client.Client) error {
	imp, derived, slice := m.imp.DeepCopy(), m.derived.DeepCopy(), m.slice.DeepCopy()
	imp.Spec.IPs = nil
	if err := cluster.Create(ctx, imp); err != nil {
		return err
	}
	derived.Spec.ClusterIP, derived.Spec.ClusterIPs = "", nil
	if err := cluster.Create(ctx, ownedBy(imp, derived)); err != nil {
		return err
	}
	imp.Spec.IPs = derived.Spec.ClusterIPs
	if err := cluster.Update(ctx, imp); err != nil {
		return err
	}
	return cluster.Create(ctx, ownedBy(imp, slice))
}

// afresh is a copy of an object that was read, as it can be created.
func afresh[T client.Object](obj T, namespace string) T {
	obj = obj.DeepCopyObject().(T)
	obj.SetNamespace(namespace)
	obj.SetUID("")
	obj.SetResourceVersion("")
	obj.SetManagedFields(nil)
	return obj
}

// ownedBy gives an object its new owner, without which the garbage collector would remove it.
func ownedBy[T client.Object](owner *mcsv1beta1.ServiceImport, obj T) T {
	refs := obj.GetOwnerReferences()
	for i := range refs {
		refs[i].UID = owner.UID
	}
	obj.SetOwnerReferences(refs)
	return obj
}
