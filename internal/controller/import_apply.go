package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

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

// keep makes the import what d says: ServiceImport, derived Service, its IPs in the ServiceImport, EndpointSlices, and
// at last the status, which then tells no lie. A new import gets its status at the next look, which is due after the time that is
// returned: of many new ones at once, all carry traffic before any tells of it.
func (r *importReconciler) keep(ctx context.Context, session *session, f importFacts, d importDecision) (again time.Duration, err error) {
	supported, err := r.families.supported(ctx, f.key.Namespace)
	if err != nil {
		return 0, err
	}
	before := plan.StaleClusters(f.imp)
	imp, err := r.keepServiceImport(ctx, f, f.imp, d, f.derived)
	if err != nil {
		return 0, ignoreTerminating(err)
	}
	r.reportStale(imp, d, before)
	owner := metav1.OwnerReference{
		APIVersion: r.mcsVersion.String(), Kind: mcsv1beta1.ServiceImportKindName, Name: imp.Name, UID: imp.UID,
	}
	usable := d.merged
	if usable.TrafficDistribution, err = r.distributions.usable(ctx, f.key.Namespace, d.merged.TrafficDistribution); err != nil {
		return 0, err
	}
	derived, err := r.keepDerivedService(ctx, f.derived, plan.DerivedService(usable, owner, f.derived, supported))
	if err != nil {
		return 0, ignoreTerminating(err)
	}
	if imp, err = r.keepServiceImport(ctx, f, imp, d, derived); err != nil {
		return 0, err
	}
	changes := plan.Slices(plan.SliceInput{
		Key:          f.key,
		Merged:       usable,
		Exports:      d.endpoints,
		Unknown:      d.untouched,
		LocalCluster: f.cluster,
		Derived:      nameOf(derived, f.derivedName),
		Families:     familiesOf(derived),
		Owner:        owner,
		Existing:     f.slices,
	})
	if err := r.applySlices(ctx, changes); err != nil {
		return 0, ignoreTerminating(err)
	}
	r.metrics.observePropagation(session, travelled(d, before), changes, r.now())
	if wait := r.statusIn(f); wait > 0 {
		return wait, nil
	}
	ready := mcs.ImportReady(d.merged, supported, imp.Spec.IPs)
	status := plan.ServiceImportStatus(imp, d.merged, d.unknown, ready, d.staleness, metav1.NewTime(r.now()))
	return 0, r.updateStatus(ctx, imp, status)
}

// firstStatus is how long a new import's status waits for what carries traffic of the imports that come with it: the status
// is one of the five writes that make an import, and the only one that no pod needs. Where so many come that others still wait
// for their turn then, it waits again, for lastStatus at most.
const (
	firstStatus = time.Second
	lastStatus  = time.Minute
)

// statusIn says how long the import's status is put off yet. Only a new import's is.
func (r *importReconciler) statusIn(f importFacts) time.Duration {
	if f.imp == nil {
		r.created.Store(f.key, r.now())
		return firstStatus
	}
	at, ok := r.created.Load(f.key)
	if !ok {
		return 0
	}
	age := r.now().Sub(at.(time.Time))
	switch {
	case age < firstStatus:
		return firstStatus - age
	case age < lastStatus && r.look.busy():
		return firstStatus
	}
	r.created.Delete(f.key)
	return 0
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
	if err := r.delete(ctx, f.imp); err != nil {
		return err
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
