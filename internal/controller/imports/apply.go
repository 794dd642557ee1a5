package imports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// applyImport writes the derived Service, the ServiceImport with its IPs and the EndpointSlices, in that order. The status
// comes last so that it never reports objects that do not exist yet. It returns when it has to be called again, 0 if never.
func (r *Controller) applyImport(ctx context.Context, session *membership.Session, f importFacts, d importDecision) (time.Duration, error) {
	o, err := r.applyObjects(ctx, f, d)
	if err != nil {
		return 0, kube.IgnoreTerminatingNamespace(err)
	}
	before := plan.StaleClusters(f.imp)
	r.reportStale(o.imp, d, before)
	changes := plan.Slices(plan.SliceInput{
		Key:          f.key,
		Merged:       o.usable,
		Exports:      d.endpoints,
		Unknown:      d.untouched,
		LocalCluster: f.cluster,
		Derived:      nameOrDefault(o.derived, f.derivedName),
		Families:     familiesOf(o.derived),
		Owner:        r.ownerOf(o.imp),
		Existing:     f.slices,
	})
	began := r.now()
	if err := r.applySlices(ctx, f.key, changes); err != nil {
		return 0, kube.IgnoreTerminatingNamespace(err)
	}
	arrived := arrivedExports(session, propagatedExports(d, before), changes)
	r.metrics.observePropagation(arrived, r.now())
	r.trace(session.Identity, arrived, f.now, began)
	// Of many new imports, all get endpoints before the first statuses are written.
	if isNew(o.imp) && r.requeuer.Defer(f.key) {
		return 0, nil
	}
	if o.unowned {
		if _, err := r.applyDerivedService(ctx, f, o, true); err != nil {
			return 0, kube.IgnoreTerminatingNamespace(err)
		}
	}
	ready := mcs.ImportReady(d.merged, o.supported, o.imp.Spec.IPs)
	status := plan.ServiceImportStatus(o.imp, d.merged, d.unknown, ready, metav1.NewTime(r.now()), d.staleness, &d.refused, &d.selection, &d.drained, &d.unreachability)
	if err := r.updateStatus(ctx, o.imp, status); err != nil {
		return 0, err
	}
	r.reportRefused(o.imp, d.refused)
	r.reportSelection(o.imp, d.selection)
	r.reportDrained(o.imp, d.drained)
	r.reportUnreachable(o.imp, d.unreachability)
	var requeueAfter time.Duration
	if !containsAll(o.supported, d.merged.IPFamilies) {
		requeueAfter = familiesMaxAge // the cluster may get the missing family
	}
	if r.takeover == nil || len(d.unknown) > 0 {
		return requeueAfter, nil
	}
	retireAfter, err := r.takeover.RetireObjects(ctx, f.takeover)
	return sooner(requeueAfter, retireAfter), err
}

// trace records that the slices of exports were written since wrote, in a reconcile that began then.
func (r *Controller) trace(identity mcs.Identity, exports []mcs.Export, began, wrote time.Time) {
	if r.tracer == nil {
		return
	}
	now, cluster := r.now(), r.tracer.Of(identity)
	for _, exp := range exports {
		cluster.Record(tracing.Import, exp, began, now)
		cluster.Record(tracing.WriteSlices, exp, wrote, now)
	}
}

// sooner returns the smaller of two delays; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// importObjects are the current ServiceImport and derived Service, nil if there is none.
type importObjects struct {
	imp     *mcsv1beta1.ServiceImport
	derived *corev1.Service
	// unowned reports whether the Service has no owner yet.
	unowned bool
	// usable is the part of the merged exports that this cluster supports; supported are its IP families.
	usable    mcs.Merged
	supported []corev1.IPFamily
}

// applyObjects writes ServiceImport and derived Service if they differ.
func (r *Controller) applyObjects(ctx context.Context, f importFacts, d importDecision) (o importObjects, err error) {
	o = importObjects{usable: d.merged, derived: f.derived, imp: f.imp}
	if o.supported, err = r.families.supported(ctx, f.key.Namespace, d.merged.IPFamilies); err != nil {
		return o, err
	}
	if o.usable.TrafficDistribution, err = r.distributions.usable(ctx, f.key.Namespace, d.merged.TrafficDistribution); err != nil {
		return o, err
	}
	before := r.previousIPs(f)
	switch {
	case f.imp == nil && f.derived == nil:
		o.imp, o.derived, err = r.createObjects(ctx, f, d, o)
	case f.derived != nil:
		o.imp, err = r.applyServiceImport(ctx, f, f.imp, d, f.derived)
	default: // the ServiceImport has the IPs that the derived Service had, until that exists again
	}
	if err != nil {
		return o, err
	}
	// A held Service gets its owner with the loss of its mark. Without both it would be taken for one that was left behind.
	o.unowned = isNew(o.imp) && o.derived != nil && len(o.derived.OwnerReferences) == 0 && !plan.IsHeld(o.derived)
	if o.derived, err = r.applyDerivedService(ctx, f, o, !o.unowned); err != nil {
		return o, err
	}
	if o.imp, err = r.applyServiceImport(ctx, f, o.imp, d, o.derived); err != nil {
		return o, err
	}
	r.recordIPs(f.key, o, before)
	return o, nil
}

// previousIPs returns the IPs that clients may know of an import whose derived Service does not exist: those of the ServiceImport, or if
// that was deleted as well, those that this process saw last.
func (r *Controller) previousIPs(f importFacts) []string {
	if f.isOwn() && len(f.imp.Spec.IPs) > 0 {
		return f.imp.Spec.IPs
	}
	if ips, ok := r.lastIPs.Load(f.key); ok {
		return ips.([]string)
	}
	return nil
}

// recordIPs remembers the IPs of an import, and reports that it has others than before.
func (r *Controller) recordIPs(key mcs.Key, o importObjects, before []string) {
	ips := ipsOf(o.derived)
	if len(ips) == 0 {
		return
	}
	r.lastIPs.Store(key, ips)
	if len(before) > 0 && !slices.Contains(before, ips[0]) {
		r.events.Publish(kube.ClusterSetIPChanged(o.imp, fmt.Sprintf("the clusterset IP was %s and is %s now, because the derived Service had to be created again "+
			"and could not get its IP back: clients that keep the old address must resolve the name again", strings.Join(before, ","), strings.Join(ips, ","))))
	}
}

// createObjects creates the objects of a new import: first the derived Service, without an owner, so that the ServiceImport
// has its IPs from the beginning and is written once. The owner reference, which is for the garbage collector, is added with
// the status. If the Service cannot be created, the ServiceImport is created nevertheless.
func (r *Controller) createObjects(ctx context.Context, f importFacts, d importDecision, o importObjects) (*mcsv1beta1.ServiceImport, *corev1.Service, error) {
	derived, serviceErr := r.applyDerivedService(ctx, f, o, false)
	imp, err := r.applyServiceImport(ctx, f, nil, d, derived)
	if apierrors.IsAlreadyExists(err) && derived != nil {
		serviceErr = kube.Delete(ctx, r.client, derived) // the ServiceImport of another owner prevents the import
	}
	return imp, derived, errors.Join(serviceErr, err)
}

// isNew reports whether imp has no status yet.
func isNew(imp *mcsv1beta1.ServiceImport) bool { return len(imp.Status.Conditions) == 0 }

// ownerOf returns the owner reference of the objects of imp.
func (r *Controller) ownerOf(imp *mcsv1beta1.ServiceImport) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: r.mcsVersion.String(), Kind: mcsv1beta1.ServiceImportKindName, Name: imp.Name, UID: imp.UID,
	}
}

// derivedService returns the wanted derived Service, nil if there should be none.
func (r *Controller) derivedService(o importObjects, existing *corev1.Service, owned bool) *corev1.Service {
	var owner *metav1.OwnerReference
	if owned {
		owner = new(r.ownerOf(o.imp))
	}
	return plan.DerivedService(o.usable, owner, existing, o.supported)
}

// propagatedExports returns the exports whose changes caused the writes of slices, without clusters that became stale or
// recovered.
func propagatedExports(d importDecision, staleBefore []string) []mcs.Export {
	return slices.DeleteFunc(slices.Clone(d.exports), func(e mcs.Export) bool {
		return slices.Contains(d.stale, e.Cluster) || slices.Contains(staleBefore, e.Cluster)
	})
}

// reportStale records an event for clusters that have become stale or have recovered.
func (r *Controller) reportStale(imp *mcsv1beta1.ServiceImport, d importDecision, before []string) {
	if d.staleness == nil || slices.Equal(d.stale, before) {
		return
	}
	if slices.ContainsFunc(d.stale, func(c string) bool { return !slices.Contains(before, c) }) {
		r.events.Publish(kube.ClusterBecameStale(imp, d.staleness.Message))
		return
	}
	r.events.Publish(kube.ClusterRecovered(imp, d.staleness.Message))
}

// applyServiceImport writes the ServiceImport if it differs from existing, and returns it.
func (r *Controller) applyServiceImport(ctx context.Context, f importFacts, existing *mcsv1beta1.ServiceImport, d importDecision, derived *corev1.Service) (*mcsv1beta1.ServiceImport, error) {
	m := d.merged
	want := plan.ServiceImport(m, existing, nameOrDefault(derived, f.derivedName), ipsOf(derived), familiesOf(derived), d.stale)
	plan.SetExportTimes(want, d.times)
	if d.notImported != nil {
		plan.SetNotImported(want, d.notImported)
	}
	plan.SetTiers(want, d.tiers)
	plan.SetUnreachable(want, d.withdrawn(f))
	switch {
	case existing == nil:
		if err := r.client.Create(ctx, want); err != nil {
			return nil, fmt.Errorf("creating ServiceImport %s: %w", m.Key, err)
		}
		log.FromContext(ctx).Info("Imported service", "clusters", m.Clusters, "type", m.Type)
	case apiequality.Semantic.DeepEqual(existing, want):
		return existing, nil
	default:
		if err := r.client.Update(ctx, want); err != nil {
			return nil, fmt.Errorf("updating ServiceImport %s: %w", m.Key, err)
		}
	}
	return want, nil
}

// applyDerivedService writes the derived Service if it differs from o.derived, and returns it. If there should be none, it holds the
// IPs of the existing one.
func (r *Controller) applyDerivedService(ctx context.Context, f importFacts, o importObjects, owned bool) (*corev1.Service, error) {
	existing, want := o.derived, r.derivedService(o, o.derived, owned)
	switch {
	case want == nil:
		return nil, r.endService(ctx, f.key, existing)
	case existing == nil:
		before := r.previousIPs(f)
		if len(before) == 0 && f.local == nil {
			if err := r.serviceIPs.admit(ctx, types.NamespacedName{Namespace: want.Namespace, Name: want.Name}); err != nil {
				return want, err
			}
		}
		return want, r.createDerivedService(ctx, want, before)
	case plan.MustReplace(existing, want):
		if err := kube.Delete(ctx, r.client, existing); err != nil {
			return nil, err
		}
		return want, r.createDerivedService(ctx, want, nil)
	case apiequality.Semantic.DeepEqual(existing, want):
		return existing, nil
	}
	plan.RequestIPs(want, r.previousIPs(f)) // only one that another client turned into an ExternalName has none
	if err := r.client.Update(ctx, want); err != nil {
		return nil, fmt.Errorf("updating derived Service %s/%s: %w", want.Namespace, want.Name, err)
	}
	return want, nil
}

// ipRetries are the delays between the attempts to get back an IP. Kubernetes deletes a Service before it releases the IP, so that it may
// be taken for a moment.
var ipRetries = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}

// createDerivedService creates the derived Service, with the IPs that it had before if they are free.
func (r *Controller) createDerivedService(ctx context.Context, want *corev1.Service, before []string) error {
	dynamic := want.DeepCopy()
	requested := plan.RequestIPs(want, before)
	err := r.client.Create(ctx, want)
	for _, delay := range ipRetries {
		if !requested || !isIPRefused(err) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
			err = r.client.Create(ctx, want)
		}
	}
	if requested && isIPRefused(err) {
		log.FromContext(ctx).Error(err, "Failed to get the IPs that the derived Service had before, allocating others", "ips", want.Spec.ClusterIPs)
		dynamic.DeepCopyInto(want)
		err = r.client.Create(ctx, want)
	}
	if err != nil {
		return fmt.Errorf("creating derived Service %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// isIPRefused reports whether err is about the cluster IPs of a Service: they are taken or out of range.
func isIPRefused(err error) bool {
	return apierrors.IsInvalid(err) && isAboutField(err, "spec.clusterIP")
}

// applySlices writes changes in an order in which no endpoint that stays is ever missing.
func (r *Controller) applySlices(ctx context.Context, key mcs.Key, changes plan.SliceChanges) error {
	if changes.IsEmpty() {
		return nil
	}
	var written []string
	for _, s := range slices.Concat(changes.Create, changes.Update, changes.Delete) {
		written = append(written, s.Name)
	}
	r.written.Store(key, written)
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
		if err := kube.Delete(ctx, r.client, s); err != nil {
			return err
		}
	}
	return nil
}

// updateStatus writes status if it differs.
func (r *Controller) updateStatus(ctx context.Context, imp *mcsv1beta1.ServiceImport, status mcsv1beta1.ServiceImportStatus) error {
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

// ipsOf returns svc's cluster IPs, none if there is no Service or no IP yet.
func ipsOf(svc *corev1.Service) []string {
	if svc == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(svc.Spec.ClusterIPs), func(ip string) bool { return ip == "" || ip == corev1.ClusterIPNone })
}

// nameOrDefault returns svc's name, or the name that it will have.
func nameOrDefault(svc *corev1.Service, name string) string {
	if svc == nil {
		return name
	}
	return svc.Name
}

func familiesOf(svc *corev1.Service) []corev1.IPFamily {
	if svc == nil {
		return nil
	}
	return svc.Spec.IPFamilies
}
