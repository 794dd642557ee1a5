package imports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// gather reads everything that decides the import of key.
func (r *Controller) gather(ctx context.Context, session *membership.Session, key mcs.Key) (importFacts, error) {
	f := importFacts{
		key: key, cluster: session.Identity.ClusterID, clusterSet: session.Identity.ClusterSetID, staleRule: r.staleRule, metadata: r.metadata, now: r.now(),
		paths: r.paths.Verdict(), pathMode: r.paths.Mode(),
	}
	// before the read, or the event of a namespace that is created in between would be missed
	r.waiters.add(key)
	ns, found, err := kube.ReadNamespace(ctx, r.client, key.Namespace)
	if err != nil {
		return f, err
	}
	f.namespace, f.denial = found && ns.DeletionTimestamp == nil, r.scope.ImportDenial(ns)
	f.excluded = f.denial != ""
	if f.namespace {
		if err := r.gatherObjects(ctx, &f); err != nil {
			return f, err
		}
	}
	// After the objects, which name the imported clusters.
	if f.view, err = session.Registry.Lookup(ctx, key, f.importedClusters()...); err != nil && !errors.Is(err, registry.ErrNotSynced) {
		return f, fmt.Errorf("looking up the exports of %s: %w", key, err)
	}
	f.synced = err == nil
	f.view, f.refusals = r.guard.Filter(key, f.view)
	age := r.now().Sub(session.Started)
	f.starting = f.view.Incomplete && age < newImportDelay
	if f.isComplete() && f.view.Has(registry.Unseen) {
		f.lost, f.lostIn = age >= r.staleRule.After, max(0, r.staleRule.After-age)
	}
	if !f.mayWait() {
		r.waiters.remove(key)
	}
	if !f.namespace {
		return f, nil
	}
	return f, r.gatherLocal(ctx, session, &f)
}

// gatherLocal reads this cluster's own export, and the ClusterProperties by which clusters are
// drained and cluster selectors select.
func (r *Controller) gatherLocal(ctx context.Context, session *membership.Session, f *importFacts) (err error) {
	if f.local, err = r.localExport(ctx, session.Identity, f.key); err != nil {
		return err
	}
	own, known := r.membership.Properties()
	properties := f.view.PropertiesWith(f.cluster, own)
	f.drains = mcs.Drains(f.view.Exports(), properties, f.cluster)
	if known && f.synced {
		f.properties = properties
	}
	return nil
}

// localExport returns this cluster's own export of key, nil if it has none.
func (r *Controller) localExport(ctx context.Context, identity mcs.Identity, key mcs.Key) (*mcs.Export, error) {
	src, err := kube.ReadLocalSource(ctx, r.client, r.scope, identity, key)
	if err != nil || !src.IsExported() {
		return nil, err
	}
	exp, _, err := mcs.NewExport(src.Source, nil, time.Time{})
	if err != nil {
		return nil, nil //nolint:nilerr // it cannot be exported at all, as the ServiceExport's status says
	}
	return &exp, nil
}

// gatherObjects reads the existing objects of the import.
func (r *Controller) gatherObjects(ctx context.Context, f *importFacts) error {
	var imp mcsv1beta1.ServiceImport
	found, err := kube.Find(ctx, r.client, kube.NameOf(f.key), &imp, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	if found {
		f.imp = &imp
	}
	if err := r.gatherDerived(ctx, f); err != nil {
		return err
	}
	return r.gatherSlices(ctx, f)
}

// gatherSlices reads the imported slices. The list does not wait for writes of other imports, which
// a slow admission webhook may delay, but for those that the last reconcile of this import made.
func (r *Controller) gatherSlices(ctx context.Context, f *importFacts) error {
	if written, ok := r.written.LoadAndDelete(f.key); ok {
		for _, name := range written.([]string) {
			var slice discoveryv1.EndpointSlice
			if _, err := kube.Find(ctx, r.client, types.NamespacedName{Namespace: f.key.Namespace, Name: name}, &slice, client.UnsafeDisableDeepCopy); err != nil {
				return err
			}
		}
	}
	list, err := kube.ListSlices(ctx, r.client, f.key.Namespace, kube.IndexImport, mcs.ShortDerivedName(f.key))
	f.slices = make([]*discoveryv1.EndpointSlice, 0, len(list))
	for i := range list {
		if plan.IsImportedSlice(f.key, &list[i]) {
			f.slices = append(f.slices, &list[i])
		}
	}
	return err
}

// gatherDerived reads the derived Service, held Services, and the objects that another controller
// created for the import.
func (r *Controller) gatherDerived(ctx context.Context, f *importFacts) error {
	unused, err := r.findDerived(ctx, f)
	if err != nil {
		return err
	}
	candidates, err := kube.ListDerivedServices(ctx, r.client, f.key)
	if err != nil {
		return err
	}
	f.held = heldServices(f.key, candidates)
	for _, svc := range []*corev1.Service{f.derived, unused} {
		if svc == nil || svc == f.derived && !plan.IsHeld(svc) || slices.ContainsFunc(f.held, func(h *corev1.Service) bool { return h.UID == svc.UID }) {
			continue
		}
		// another client removed the label of the index, or the Service is to be held
		f.held = append(f.held, svc)
	}
	if r.takeover != nil {
		if f.takeover, err = r.takeover.GatherObjects(ctx, f.key, f.imp, f.derived); err != nil {
			return err
		}
		f.derived, f.derivedName = f.takeover.Derived, f.takeover.DerivedName
	}
	if f.derived == nil && len(f.held) > 0 {
		f.derived, f.derivedName = f.held[0], f.held[0].Name
	}
	return nil
}

// findDerived sets the derived Service: the one with the present name, or one with the short name
// of an earlier version if it is ours. It returns the other one if both are ours, as after a
// downgrade: the import uses that which its ServiceImport names.
func (r *Controller) findDerived(ctx context.Context, f *importFacts) (unused *corev1.Service, err error) {
	find := func(name string) *corev1.Service {
		var svc corev1.Service
		found, findErr := kube.Find(ctx, r.client, types.NamespacedName{Namespace: f.key.Namespace, Name: name}, &svc, client.UnsafeDisableDeepCopy)
		err = errors.Join(err, findErr)
		if !found {
			return nil
		}
		return &svc
	}
	present, short := find(mcs.DerivedName(f.key)), find(mcs.ShortDerivedName(f.key))
	f.derived, f.derivedName = present, mcs.DerivedName(f.key)
	if short == nil || !plan.IsDerivedService(f.key, short) {
		return nil, err
	}
	isOwn := present != nil && plan.IsDerivedService(f.key, present)
	if isOwn && plan.DerivedName(f.key, f.imp) != short.Name {
		return short, err
	}
	f.derived, f.derivedName = short, short.Name
	if isOwn {
		unused = present
	}
	return unused, err
}

// heldServices returns those of services that hold the IPs of key. They have the name of a derived
// Service, this controller's or the legacy one's: a user's Service with the labels and annotations
// of one, copied with its manifest, is not deleted after the hold time.
func heldServices(key mcs.Key, services []*corev1.Service) []*corev1.Service {
	return slices.DeleteFunc(slices.Clone(services), func(svc *corev1.Service) bool {
		return !mcs.IsDerivedName(svc.Name) || !plan.IsDerivedService(key, svc) || !plan.IsHeld(svc)
	})
}
