package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// drainTime is how long the IPs of the old controller's derived Services go on working that the ServiceImport no longer shows.
// CoreDNS answers for clusterset.local with a TTL of 5 s and its cache keeps that for 30 s at most; two minutes are for
// clients that remember an address longer than they should.
const drainTime = 2 * time.Minute

// retire ends what the AWS Cloud Map MCS Controller for K8s made of the import, once ours is in its place, and says when to look
// again. The slices of the Service that is kept go first, for from now on nobody would bring them up to date; the other
// Services, whose IPs clients may still use, go with their slices when they are drained.
func (r *importReconciler) retire(ctx context.Context, f importFacts, d importDecision) (time.Duration, error) {
	if f.old.slices == nil || len(d.unknown) > 0 {
		return 0, nil
	}
	if f.old.imp {
		log.FromContext(ctx).Info("Took over the import of the AWS Cloud Map MCS Controller for K8s", "ips", ipsOf(f.derived), "superfluous", len(f.old.superfluous))
	}
	if err := r.deleteOldSlices(ctx, f, nameOf(f.derived, "")); err != nil {
		return 0, err
	}
	var again time.Duration
	for _, svc := range f.old.superfluous {
		wait, err := r.retireService(ctx, f, svc)
		if err != nil {
			return 0, err
		}
		if again == 0 || wait > 0 && wait < again {
			again = wait
		}
	}
	return again, nil
}

// retireService marks a superfluous derived Service, or deletes it when its time has come. wait is how long that is.
func (r *importReconciler) retireService(ctx context.Context, f importFacts, svc *corev1.Service) (wait time.Duration, err error) {
	now := r.now()
	updated, at, gone := plan.Retire(svc, now, drainTime)
	if gone {
		return 0, r.deleteOld(ctx, f, svc)
	}
	if updated.Annotations[plan.AnnotationRetires] != svc.Annotations[plan.AnnotationRetires] || !plan.IsManaged(svc) {
		if err := r.client.Update(ctx, updated); err != nil {
			return 0, fmt.Errorf("marking the superfluous derived Service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
	}
	return at.Sub(now), nil
}

// deleteOld deletes a superfluous derived Service and its slices.
func (r *importReconciler) deleteOld(ctx context.Context, f importFacts, svc *corev1.Service) error {
	if err := r.deleteOldSlices(ctx, f, svc.Name); err != nil {
		return err
	}
	return r.delete(ctx, svc)
}

func (r *importReconciler) deleteOldSlices(ctx context.Context, f importFacts, service string) error {
	for _, s := range f.old.slices[service] {
		if err := r.delete(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// releaseExport takes the old controller's finalizer from a ServiceExport: nobody else would, and neither the ServiceExport nor its
// namespace could ever be deleted.
func (r *exportReconciler) releaseExport(ctx context.Context, key mcs.Key) error {
	if !r.takeOver {
		return nil
	}
	var exp mcsv1beta1.ServiceExport
	found, err := find(ctx, r.client, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, &exp, client.UnsafeDisableDeepCopy)
	if err != nil || !found || !slices.Contains(exp.Finalizers, plan.OldFinalizer) {
		return err
	}
	released := exp.DeepCopy()
	controllerutil.RemoveFinalizer(released, plan.OldFinalizer)
	patch := client.MergeFromWithOptions(&exp, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.client.Patch(ctx, released, patch)); err != nil {
		return fmt.Errorf("taking the finalizer of the AWS Cloud Map MCS Controller for K8s from ServiceExport %s: %w", key, err)
	}
	log.FromContext(ctx).Info("Took the finalizer of the AWS Cloud Map MCS Controller for K8s away")
	return nil
}
