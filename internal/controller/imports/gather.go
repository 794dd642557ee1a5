package imports

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// gather reads everything that decides the import of key.
func (r *Controller) gather(ctx context.Context, session *membership.Session, key mcs.Key) (importFacts, error) {
	f := importFacts{key: key, cluster: session.Identity.ClusterID, staleRule: r.staleRule}
	var err error
	if f.namespace, f.excluded, err = r.checkNamespace(ctx, key); err != nil || !f.namespace {
		return f, err
	}
	if f.view, err = session.Registry.Lookup(ctx, key); err != nil && !errors.Is(err, registry.ErrNotSynced) {
		return f, fmt.Errorf("looking up the exports of %s: %w", key, err)
	}
	f.synced = err == nil
	if f.local, err = r.localExport(ctx, session.Identity, key); err != nil {
		return f, err
	}
	return f, r.gatherObjects(ctx, &f)
}

// checkNamespace reports whether key's namespace is active and whether imports into it are excluded. If nothing may be
// imported, key waits for the namespace to change.
func (r *Controller) checkNamespace(ctx context.Context, key mcs.Key) (active, excluded bool, err error) {
	r.waiters.add(key) // before the read, or the event of a namespace that is created in between would be missed
	ns, found, err := kube.ReadNamespace(ctx, r.client, key.Namespace)
	active = found && ns.DeletionTimestamp == nil
	excluded = !r.scope.AllowsImport(ns)
	if active && !excluded {
		r.waiters.remove(key)
	}
	return active, excluded, err
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
	list, err := kube.ListSlices(ctx, r.client, f.key.Namespace, kube.IndexImport, f.key.Name)
	f.slices = make([]*discoveryv1.EndpointSlice, 0, len(list))
	for i := range list {
		f.slices = append(f.slices, &list[i])
	}
	return err
}

// gatherDerived reads the derived Service and what another controller left of the import.
func (r *Controller) gatherDerived(ctx context.Context, f *importFacts) error {
	f.derivedName = mcs.DerivedName(f.key)
	var svc corev1.Service
	found, err := kube.Find(ctx, r.client, types.NamespacedName{Namespace: f.key.Namespace, Name: f.derivedName}, &svc, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	if found {
		f.derived = &svc
	}
	if r.takeover == nil {
		return nil
	}
	if f.takeover, err = r.takeover.GatherObjects(ctx, f.key, f.imp, f.derived); err != nil {
		return err
	}
	f.derived, f.derivedName = f.takeover.Derived, f.takeover.DerivedName
	return nil
}
