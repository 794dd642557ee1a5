package imports

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// removeImport deletes the import but holds its IPs: the derived Service stays, without an owner
// and without endpoints. The slices come first: the garbage collector would delete them too, but
// later, and until then DNS and kube-proxy would send clients there. A refused write affects only
// itself.
func (r *Controller) removeImport(ctx context.Context, f importFacts, out *outcome) {
	r.lastIPs.Delete(f.key)
	set := r.newSliceSet(f, nil, nil, out)
	set.write(ctx, plan.RemovedSlices(f.slices).Steps(f.slices, nil).Removals)
	if !r.removeServices(ctx, f, out) {
		return
	}
	if f.imp != nil {
		out.add(kube.Delete(ctx, r.client, f.imp))
	}
	if r.takeover != nil {
		out.add(r.takeover.DeleteServices(ctx, f.takeover))
	}
	if out.failed() {
		return
	}
	reason := "no cluster exports the service"
	if f.excluded {
		reason = f.denial
	}
	log.FromContext(ctx).Info("Removed import", "reason", reason)
}

// removeServices holds or deletes the derived Service of an import that ends, and reports whether
// the ServiceImport may be deleted now. It comes before that: the garbage collector deletes the
// objects that the ServiceImport owns. The IP of a Service that never had a ServiceImport is not
// held: no client knows it. A Service that may not be held is deleted, since holding is a comfort
// that must not keep the import.
func (r *Controller) removeServices(ctx context.Context, f importFacts, out *outcome) (done bool) {
	switch {
	case f.derived == nil || f.hasForeignDerived():
		return true
	case f.isOrphaned() && len(f.derived.OwnerReferences) == 0:
		return out.add(kube.Delete(ctx, r.client, f.derived))
	}
	err := r.endService(ctx, f.key, f.derived, f.clusters())
	if out.add(err) {
		return true
	}
	if !kube.IsRefused(err) && !r.isFailingFor(f.key, failureGrace) {
		return false
	}
	out.add(kube.Delete(ctx, r.client, f.derived))
	return true
}

// endService holds the IPs of a derived Service that is not needed now, which may be nil, for the
// time that the administrator sets. Then it deletes the Service. exporters are the clusters that
// exported the service; they do not matter if it is held already.
func (r *Controller) endService(ctx context.Context, key mcs.Key, svc *corev1.Service, exporters []string) error {
	if svc == nil {
		return nil
	}
	if !plan.HasIP(svc) || r.hold == 0 || plan.IsHeld(svc) && plan.HoldRemaining(svc, r.hold, r.now()) == 0 {
		return kube.Delete(ctx, r.client, svc)
	}
	held := plan.HeldService(key, svc, r.now())
	if !plan.IsHeld(svc) {
		plan.SetHeldFor(held, exporters)
	}
	if apiequality.Semantic.DeepEqual(svc, held) {
		return nil
	}
	if err := r.client.Update(ctx, held); err != nil {
		return fmt.Errorf("holding the IPs of derived Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	if !plan.IsHeld(svc) {
		log.FromContext(ctx).Info("Holding clusterset IPs", "ips", ipsOf(svc), "for", r.hold.String())
	}
	return nil
}

// releaseHeld deletes the Services whose hold time is over, and returns the time until the next
// one, 0 if there is none. It does not matter why the import ended: the label of a namespace that
// is excluded may be back in a moment.
func (r *Controller) releaseHeld(ctx context.Context, key mcs.Key, held []*corev1.Service) (time.Duration, error) {
	var next time.Duration
	for _, svc := range held {
		if remaining := plan.HoldRemaining(svc, r.hold, r.now()); remaining > 0 {
			next = sooner(next, remaining)
			// another client may have changed it
			if err := r.endService(ctx, key, svc, nil); err != nil {
				return 0, err
			}
			continue
		}
		if err := kube.Delete(ctx, r.client, svc); err != nil {
			return 0, err
		}
		log.FromContext(ctx).Info("Released clusterset IPs", "ips", ipsOf(svc))
	}
	return next, nil
}
