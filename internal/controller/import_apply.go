package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// keep makes the import what d says: derived Service, ServiceImport with its IPs, EndpointSlices, and at last the status, which then
// tells no lie.
func (r *importReconciler) keep(ctx context.Context, session *session, f importFacts, d importDecision) error {
	o, err := r.keepObjects(ctx, f, d)
	if err != nil {
		return ignoreTerminating(err)
	}
	before := plan.StaleClusters(f.imp)
	r.reportStale(o.imp, d, before)
	changes := plan.Slices(plan.SliceInput{
		Key:          f.key,
		Merged:       o.usable,
		Exports:      d.endpoints,
		Unknown:      d.untouched,
		LocalCluster: f.cluster,
		Derived:      nameOf(o.derived, f.derivedName),
		Families:     familiesOf(o.derived),
		Owner:        r.ownerOf(o.imp),
		Existing:     f.slices,
	})
	if err := r.applySlices(ctx, changes); err != nil {
		return ignoreTerminating(err)
	}
	r.metrics.observePropagation(session, travelled(d, before), changes, r.now())
	if o.unowned {
		if _, err := r.keepDerivedService(ctx, o.derived, r.derivedService(o, o.derived, true)); err != nil {
			return ignoreTerminating(err)
		}
	}
	ready := mcs.ImportReady(d.merged, o.supported, o.imp.Spec.IPs)
	status := plan.ServiceImportStatus(o.imp, d.merged, d.unknown, ready, d.staleness, metav1.NewTime(r.now()))
	return r.updateStatus(ctx, o.imp, status)
}

// importObjects are the ServiceImport and the derived Service, nil if there is none, as they now are.
type importObjects struct {
	imp     *mcsv1beta1.ServiceImport
	derived *corev1.Service
	// unowned says that the Service has no owner yet.
	unowned bool
	// usable is what of the merged exports can be had here, with IPs of the families supported.
	usable    mcs.Merged
	supported []corev1.IPFamily
}

// keepObjects writes ServiceImport and derived Service where they differ.
func (r *importReconciler) keepObjects(ctx context.Context, f importFacts, d importDecision) (o importObjects, err error) {
	o = importObjects{usable: d.merged, derived: f.derived}
	if o.supported, err = r.families.supported(ctx, f.key.Namespace); err != nil {
		return o, err
	}
	if o.usable.TrafficDistribution, err = r.distributions.usable(ctx, f.key.Namespace, d.merged.TrafficDistribution); err != nil {
		return o, err
	}
	if f.imp == nil && f.derived == nil {
		o.imp, o.derived, err = r.makeObjects(ctx, f, d, o)
	} else {
		o.imp, err = r.keepServiceImport(ctx, f, f.imp, d, o.derived)
	}
	if err != nil {
		return o, err
	}
	o.unowned = isNew(o.imp) && o.derived != nil && len(o.derived.OwnerReferences) == 0
	if o.derived, err = r.keepDerivedService(ctx, o.derived, r.derivedService(o, o.derived, !o.unowned)); err != nil {
		return o, err
	}
	o.imp, err = r.keepServiceImport(ctx, f, o.imp, d, o.derived)
	return o, err
}

// makeObjects makes those of a new import, the Service first and without an owner: so the ServiceImport, which is the owner, is written
// once, and nobody ever sees it without its IPs. The owner, who is there for the garbage collector, comes with the status. Where
// there is no Service to have, the ServiceImport is made all the same.
func (r *importReconciler) makeObjects(ctx context.Context, f importFacts, d importDecision, o importObjects) (*mcsv1beta1.ServiceImport, *corev1.Service, error) {
	derived, unmade := r.keepDerivedService(ctx, nil, r.derivedService(o, nil, false))
	imp, err := r.keepServiceImport(ctx, f, nil, d, derived)
	if apierrors.IsAlreadyExists(err) && derived != nil {
		unmade = r.delete(ctx, derived) // somebody else was faster, and nothing will be made of the Service
	}
	return imp, derived, errors.Join(unmade, err)
}

// isNew says whether imp has no status yet.
func isNew(imp *mcsv1beta1.ServiceImport) bool { return len(imp.Status.Conditions) == 0 }

// ownerOf refers to imp as the owner of what is made for it.
func (r *importReconciler) ownerOf(imp *mcsv1beta1.ServiceImport) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: r.mcsVersion.String(), Kind: mcsv1beta1.ServiceImportKindName, Name: imp.Name, UID: imp.UID,
	}
}

// derivedService is what the derived Service should be.
func (r *importReconciler) derivedService(o importObjects, have *corev1.Service, owned bool) *corev1.Service {
	var owner *metav1.OwnerReference
	if owned {
		owner = new(r.ownerOf(o.imp))
	}
	return plan.DerivedService(o.usable, owner, have, o.supported)
}

// travelled are the exports whose changes are what the slices are written for, and not a cluster's becoming stale or its return.
func travelled(d importDecision, staleBefore []string) []mcs.Export {
	return slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool {
		return slices.Contains(d.stale, e.Cluster) || slices.Contains(staleBefore, e.Cluster)
	})
}

// reportStale tells the user, once, of clusters that have become stale or have come back.
func (r *importReconciler) reportStale(imp *mcsv1beta1.ServiceImport, d importDecision, before []string) {
	if d.staleness == nil || slices.Equal(d.stale, before) {
		return
	}
	if slices.ContainsFunc(d.stale, func(c string) bool { return !slices.Contains(before, c) }) {
		r.events.warn(imp, reasonStale, d.staleness.Message)
		return
	}
	r.events.tell(imp, reasonStale, d.staleness.Message)
}

// keepServiceImport writes the ServiceImport where it differs and returns it as it now is.
func (r *importReconciler) keepServiceImport(ctx context.Context, f importFacts, have *mcsv1beta1.ServiceImport, d importDecision, derived *corev1.Service) (*mcsv1beta1.ServiceImport, error) {
	m := d.merged
	want := plan.ServiceImport(m, have, nameOf(derived, f.derivedName), ipsOf(derived), familiesOf(derived), d.stale)
	switch {
	case have == nil:
		if err := r.client.Create(ctx, want); err != nil {
			return nil, fmt.Errorf("creating ServiceImport %s: %w", m.Key, err)
		}
		log.FromContext(ctx).Info("Imported", "clusters", m.Clusters, "type", m.Type)
	case apiequality.Semantic.DeepEqual(have, want):
		return have, nil
	default:
		if err := r.client.Update(ctx, want); err != nil {
			return nil, fmt.Errorf("updating ServiceImport %s: %w", m.Key, err)
		}
	}
	return want, nil
}

// keepDerivedService writes the derived Service where it differs, deletes it when want is nil, and returns it as it now is.
func (r *importReconciler) keepDerivedService(ctx context.Context, have, want *corev1.Service) (*corev1.Service, error) {
	switch {
	case have != nil && (want == nil || plan.MustReplace(have, want)):
		if err := r.delete(ctx, have); err != nil {
			return nil, err
		}
		have = nil
	case have != nil && apiequality.Semantic.DeepEqual(have, want):
		return have, nil
	}
	switch {
	case want == nil:
		return nil, nil
	case have == nil:
		if err := r.client.Create(ctx, want); err != nil {
			return nil, fmt.Errorf("creating derived Service %s/%s: %w", want.Namespace, want.Name, err)
		}
	default:
		if err := r.client.Update(ctx, want); err != nil {
			return nil, fmt.Errorf("updating derived Service %s/%s: %w", want.Namespace, want.Name, err)
		}
	}
	return want, nil
}

// applySlices writes changes in the order in which no endpoint that stays is ever missing.
func (r *importReconciler) applySlices(ctx context.Context, changes plan.SliceChanges) error {
	for _, s := range changes.Create {
		if err := r.client.Create(ctx, s); err != nil {
			return fmt.Errorf("creating EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	for _, s := range changes.Update {
		if err := r.client.Update(ctx, s); err != nil {
			return fmt.Errorf("updating EndpointSlice %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	for _, s := range changes.Delete {
		if err := r.delete(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// updateStatus writes status where it differs.
func (r *importReconciler) updateStatus(ctx context.Context, imp *mcsv1beta1.ServiceImport, status mcsv1beta1.ServiceImportStatus) error {
	if apiequality.Semantic.DeepEqual(imp.Status, status) {
		return nil
	}
	after := imp.DeepCopy()
	after.Status = status
	// A patch would cost the API server more than twice as much.
	if err := r.client.Status().Update(ctx, after); err != nil {
		return fmt.Errorf("updating the status of ServiceImport %s/%s: %w", imp.Namespace, imp.Name, err)
	}
	return nil
}

// remove deletes the import. Kubernetes would collect the derived Service and the slices by their owner, but only after a
// while, and until then DNS and kube-proxy would go on sending clients there.
func (r *importReconciler) remove(ctx context.Context, f importFacts) error {
	if f.imp != nil {
		if err := r.delete(ctx, f.imp); err != nil {
			return err
		}
	}
	if f.derived != nil && !derivedForeign(f) {
		if err := r.delete(ctx, f.derived); err != nil {
			return err
		}
	}
	for _, svc := range f.old.superfluous {
		if err := r.deleteOld(ctx, f, svc); err != nil {
			return err
		}
	}
	for _, s := range f.slices {
		if err := r.delete(ctx, s); err != nil {
			return err
		}
	}
	reason := "no cluster exports the service any more"
	if f.forbidden {
		reason = "the namespace is not among --import-namespaces"
	}
	log.FromContext(ctx).Info("Removed the import", "reason", reason)
	return nil
}

// delete deletes the very object that was read, not one that took its name since.
func (r *importReconciler) delete(ctx context.Context, obj client.Object) error {
	uid := obj.GetUID()
	err := r.client.Delete(ctx, obj, client.Preconditions{UID: &uid})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

// ignoreTerminating forgives that nothing can be created in a namespace that is being deleted: the import goes with it.
func ignoreTerminating(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// ipsOf are svc's cluster IPs, none if there is no Service or no IP yet.
func ipsOf(svc *corev1.Service) []string {
	if svc == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(svc.Spec.ClusterIPs), func(ip string) bool { return ip == "" || ip == corev1.ClusterIPNone })
}

// nameOf is svc's name, or what it will be called.
func nameOf(svc *corev1.Service, otherwise string) string {
	if svc == nil {
		return otherwise
	}
	return svc.Name
}

func familiesOf(svc *corev1.Service) []corev1.IPFamily {
	if svc == nil {
		return nil
	}
	return svc.Spec.IPFamilies
}
