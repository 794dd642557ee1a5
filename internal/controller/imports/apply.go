package imports

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// applyImport writes the objects of an import. A refused write affects only itself: each of the
// others is attempted. They come in the order of safety:
//
//  1. removals of endpoints that their clusters do not export any more;
//  2. the derived Service and the ServiceImport, which has its IPs;
//  3. additions of endpoints, and then the withdrawals of those that these replace;
//  4. the status, which never reports objects that do not exist yet, and events.
//
// It returns when it has to be called again, 0 if never.
func (r *Controller) applyImport(ctx context.Context, session *membership.Session, f importFacts, d importDecision, out *outcome) time.Duration {
	set, o := r.newSliceSet(f, d.exports, d.unknown, out), r.detectSupport(ctx, f, d, out)
	if o.imp != nil {
		set.write(ctx, r.planSlices(f, d, o, set).Removals)
	}
	o = r.applyObjects(ctx, f, d, o, out)
	if o.imp == nil {
		return 0
	}
	before := plan.StaleClusters(f.imp)
	began := r.now()
	d = r.applySlices(ctx, f, d, o, set)
	arrived := arrivedExports(session, propagatedExports(d, before), set.arrived)
	r.metrics.observePropagation(arrived, r.now())
	r.trace(session.Identity, arrived, f.now, began)
	// Of many new imports, all get endpoints before the first statuses are written.
	if isNew(o.imp) && !out.failed() && r.requeuer.Defer(f.key) {
		return 0
	}
	if o.unowned {
		_, err := r.applyDerivedService(ctx, f, o, true)
		out.add(err)
	}
	r.applyStatus(ctx, f, d, o, before, out)
	return r.completeImport(ctx, f, d, o, out)
}

// completeImport deletes the objects of another controller that the import replaces, and returns
// when the import has to be applied again.
func (r *Controller) completeImport(ctx context.Context, f importFacts, d importDecision, o importObjects, out *outcome) (requeueAfter time.Duration) {
	if !containsAll(o.supported, d.merged.IPFamilies) {
		requeueAfter = familiesMaxAge // the cluster may get the missing family
	}
	requeueAfter = sooner(requeueAfter, o.settleIn)
	if r.takeover == nil || len(d.unknown) > 0 || out.failed() {
		return requeueAfter
	}
	retireAfter, err := r.takeover.RetireObjects(ctx, f.takeover)
	out.add(err)
	return sooner(requeueAfter, retireAfter)
}

// applyStatus writes the status of the import and records events about what has changed in it.
// before are the clusters that were stale.
func (r *Controller) applyStatus(ctx context.Context, f importFacts, d importDecision, o importObjects, before []string, out *outcome) {
	names := mcs.ResolutionUnknown
	if r.resolution != nil {
		names = r.resolution()
	}
	ready := mcs.ImportReady(d.merged, o.supported, o.imp.Spec.IPs, d.reach(f, o.supported), mcs.ResolutionOf(names, o.imp.Status.Conditions))
	if out.err() != nil {
		var known bool
		if ready, known = r.readyWhileFailing(f.key, o.imp, out); !known {
			return // a retry comes soon
		}
	}
	status := plan.ServiceImportStatus(o.imp, d.merged, d.unknown, ready, metav1.NewTime(r.now()), d.staleness, d.refused, &d.selection, &d.drained, &d.unreachability, mcs.ImportNotResolvable(names))
	if !out.add(r.updateStatus(ctx, o.imp, status)) {
		return // the events would be repeated with each attempt
	}
	r.reportImported(ctx, f, o.imp, status, ready)
	r.reportStale(o.imp, d, before)
	if d.refused != nil {
		r.reportRefused(o.imp, *d.refused)
	}
	r.reportSelection(o.imp, d.selection)
	r.reportDrained(o.imp, d.drained)
	r.reportUnreachable(o.imp, d.unreachability)
}

// trace records that the slices of exports were written since wrote, in a reconcile that began
// then.
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
	// lacksService reports whether there is no derived Service because it could not be created.
	lacksService bool
	// usable is the part of the merged exports that this cluster supports; supported are its IP
	// families.
	usable    mcs.Merged
	supported []corev1.IPFamily
	// ports are those of derived Service and slices, and settleIn is the time after which they have
	// to be planned again, 0 if never.
	ports    plan.PortPlan
	settleIn time.Duration
}

// sliceFamilies returns the families of the slices: those of the derived Service, or of this
// cluster if the import is headless.
func (o importObjects) sliceFamilies() []corev1.IPFamily {
	if o.usable.Type == mcsv1beta1.Headless {
		return o.supported
	}
	return familiesOf(o.derived)
}

// applyObjects writes ServiceImport and derived Service if they differ. The ServiceImport is nil if
// it could not be created.
func (r *Controller) applyObjects(ctx context.Context, f importFacts, d importDecision, o importObjects, out *outcome) importObjects {
	before := r.previousIPs(f)
	switch {
	case f.imp == nil && f.derived == nil && !r.isFailing(f.key):
		o = r.createObjects(ctx, f, d, o, out)
		r.recordIPs(f.key, o, before)
		return o
	case f.imp == nil || f.derived != nil:
		o = r.applyServiceImport(ctx, f, d, o, out)
	default: // the ServiceImport has the IPs that the derived Service had, until that exists again
	}
	if o.imp == nil {
		return o
	}
	// A held Service gets its owner with the loss of its mark. Without both it would be taken for
	// one that was left behind.
	o.unowned = isNew(o.imp) && o.derived != nil && len(o.derived.OwnerReferences) == 0 && !plan.IsHeld(o.derived)
	var err error
	o.derived, err = r.applyDerivedService(ctx, f, o, !o.unowned)
	o.lacksService = !out.add(err) && o.derived == nil
	o = r.applyServiceImport(ctx, f, d, o, out)
	r.recordIPs(f.key, o, before)
	return o
}

// detectSupport returns the existing objects, and the parts of the merged exports that this cluster
// supports. While that cannot be detected, the derived Service stays as it is.
func (r *Controller) detectSupport(ctx context.Context, f importFacts, d importDecision, out *outcome) importObjects {
	o := importObjects{usable: d.merged, derived: f.derived, imp: f.imp}
	var err error
	if o.supported, err = r.families.supported(ctx, f.key.Namespace, d.merged.IPFamilies); !out.add(err) {
		o.supported = familiesOf(f.derived)
	}
	distribution, err := r.distributions.usable(ctx, f.key.Namespace, d.merged.TrafficDistribution)
	if out.add(err) {
		o.usable.TrafficDistribution = distribution
	} else if f.derived != nil {
		o.usable.TrafficDistribution = ptr.Deref(f.derived.Spec.TrafficDistribution, "")
	}
	o.ports, o.settleIn = r.planPorts(f, d, o.usable)
	return o
}

// previousIPs returns the IPs that clients may know of an import whose derived Service does not
// exist: those of the ServiceImport, or if that was deleted as well, those that this process saw
// last.
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
	if len(ips) == 0 || o.imp == nil {
		return
	}
	r.lastIPs.Store(key, ips)
	if len(before) > 0 && !slices.Contains(before, ips[0]) {
		r.events.Publish(kube.ClusterSetIPChanged(o.imp, fmt.Sprintf("the clusterset IP was %s and is %s now, because the derived Service had to be created again "+
			"and could not get its IP back: clients that keep the old address must resolve the name again", strings.Join(before, ","), strings.Join(ips, ","))))
	}
}

// createObjects creates the objects of a new import: first the derived Service, without an owner,
// so that the ServiceImport has its IPs from the beginning and is written once. The owner
// reference, which is for the garbage collector, is added with the status. If the Service cannot be
// created, the ServiceImport is created nevertheless. If the ServiceImport is refused, the Service
// is deleted, and the next attempts begin with the ServiceImport: an IP without one is of no use.
func (r *Controller) createObjects(ctx context.Context, f importFacts, d importDecision, o importObjects, out *outcome) importObjects {
	derived, err := r.applyDerivedService(ctx, f, o, false)
	o.derived, o.lacksService = derived, !out.add(err) && derived == nil
	failures := out.count()
	if o = r.applyServiceImport(ctx, f, d, o, out); o.imp != nil {
		o.unowned = o.derived != nil
		return o
	}
	if o.derived != nil && out.refusedSince(failures) {
		out.add(kube.Delete(ctx, r.client, o.derived))
		o.derived = nil
	}
	return o
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
	m := o.usable
	m.Ports = o.ports.Service
	return plan.DerivedService(m, owner, existing, o.supported)
}

// propagatedExports returns the exports whose changes caused the writes of slices, without clusters
// that became stale or recovered.
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

// applyServiceImport writes the ServiceImport if it differs from o.imp, and returns o with it.
func (r *Controller) applyServiceImport(ctx context.Context, f importFacts, d importDecision, o importObjects, out *outcome) importObjects {
	m, existing := d.merged, o.imp
	ips, families := ipsOf(o.derived), familiesOf(o.derived)
	if o.lacksService && existing != nil {
		// the Service gets them back when it can be created
		ips, families = existing.Spec.IPs, existing.Spec.IPFamilies
	}
	want := plan.ServiceImport(m, existing, nameOrDefault(o.derived, f.derivedName), ips, families, d.stale)
	plan.SetExportTimes(want, d.times)
	if d.notImported != nil {
		plan.SetNotImported(want, d.notImported)
	}
	plan.SetTiers(want, d.tiers)
	plan.SetUnreachable(want, d.withdrawn(f))
	switch {
	case existing == nil:
		if err := r.client.Create(ctx, want); err != nil {
			out.add(fmt.Errorf("creating ServiceImport %s: %w", m.Key, err))
			return o
		}
		log.FromContext(ctx).Info("Imported service", "clusters", m.Clusters, "type", m.Type)
	case apiequality.Semantic.DeepEqual(existing, want):
		return o
	default:
		if err := r.client.Update(ctx, want); err != nil {
			out.add(fmt.Errorf("updating ServiceImport %s: %w", m.Key, err))
			return o
		}
	}
	o.imp = want
	return o
}

// applyDerivedService writes the derived Service if it differs from o.derived, and returns it as it
// is now, nil if there is none. If there should be none, it holds the IPs of the existing one.
func (r *Controller) applyDerivedService(ctx context.Context, f importFacts, o importObjects, owned bool) (*corev1.Service, error) {
	existing, want := o.derived, r.derivedService(o, o.derived, owned)
	switch {
	case want == nil:
		return nil, r.endService(ctx, f.key, existing, f.clusters())
	case existing == nil:
		before := r.previousIPs(f)
		if len(before) == 0 && f.local == nil {
			if err := r.serviceIPs.admit(ctx, types.NamespacedName{Namespace: want.Namespace, Name: want.Name}); err != nil {
				return nil, r.giveWay(ctx, f, err)
			}
		}
		created, err := r.createDerivedService(ctx, want, before)
		return created, r.giveWay(ctx, f, err)
	case plan.MustReplace(existing, want):
		if err := kube.Delete(ctx, r.client, existing); err != nil {
			return existing, err
		}
		created, err := r.createDerivedService(ctx, want, nil)
		return created, r.giveWay(ctx, f, err)
	case apiequality.Semantic.DeepEqual(existing, want):
		return existing, nil
	}
	// only one that another client turned into an ExternalName has none
	plan.RequestIPs(want, r.previousIPs(f))
	if err := r.client.Update(ctx, want); err != nil {
		return existing, fmt.Errorf("updating derived Service %s/%s: %w", want.Namespace, want.Name, err)
	}
	return want, nil
}

// ipRetries are the delays between the attempts to get back an IP. Kubernetes deletes a Service
// before it releases the IP, so that it may be taken for a moment.
var ipRetries = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}

// createDerivedService creates the derived Service, with the IPs that it had before if they are
// free.
func (r *Controller) createDerivedService(ctx context.Context, want *corev1.Service, before []string) (*corev1.Service, error) {
	dynamic := want.DeepCopy()
	requested := plan.RequestIPs(want, before)
	err := r.client.Create(ctx, want)
	for _, delay := range ipRetries {
		if !requested || !isIPRefused(err) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
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
		return nil, fmt.Errorf("creating derived Service %s/%s: %w", want.Namespace, want.Name, err)
	}
	return want, nil
}

// isIPRefused reports whether err is about the cluster IPs of a Service: they are taken or out of
// range.
func isIPRefused(err error) bool {
	return apierrors.IsInvalid(err) && isAboutField(err, "spec.clusterIP")
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
