package imports

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// failureGrace is the time for which writes may fail before condition Ready of the import reports it. A shorter failure, as when an API
// server restarts, needs no action.
const failureGrace = 5 * time.Second

// reportNotOwned reports that an object of another owner prevents the import: an event once, and condition Ready of a ServiceImport
// that is ours.
func (r *Controller) reportNotOwned(ctx context.Context, f importFacts) error {
	var obj client.Object = f.derived
	message := "Service " + mcs.DerivedName(f.key) + " has the name that the import needs, but was not created by this controller: delete it"
	if f.isForeign() {
		obj = f.imp
		message = "the clusterset exports this service, but its ServiceImport was not created by this controller, which leaves it alone: " +
			"delete it to have it imported"
		if f.takeover.NotOwnedMessage != "" {
			message = f.takeover.NotOwnedMessage
		}
	}
	if _, reported := r.reported.LoadOrStore(f.key, struct{}{}); !reported {
		log.FromContext(ctx).Info("Service not imported", "reason", message)
		r.events.Publish(kube.NotManaged(obj, message))
	}
	if !f.isOwn() {
		return nil
	}
	return r.updateNotReady(ctx, f.key, message)
}

// reportRefused records an event if imp did not have the reasons of c, the condition Refused, before.
func (r *Controller) reportRefused(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := meta.FindStatusCondition(imp.Status.Conditions, c.Type)
	if c.Status == metav1.ConditionTrue && (before == nil || before.Reason != c.Reason) {
		r.events.Publish(kube.ExportRefused(imp, c.Message))
	}
}

// reportUnreachable records an event if the unreachable clusters, or the decisions about their endpoints, have changed.
func (r *Controller) reportUnreachable(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := meta.FindStatusCondition(imp.Status.Conditions, c.Type)
	switch {
	case c.Status == metav1.ConditionTrue && (before == nil || before.Message != c.Message):
		r.events.Publish(kube.ClusterBecameUnreachable(imp, c.Message))
	case c.Status == metav1.ConditionFalse && before != nil && before.Status == metav1.ConditionTrue:
		r.events.Publish(kube.ClusterBecameReachable(imp, c.Message))
	}
}

// reportSelection records an event, and counts it, if the clusters that serve a service have changed because of its cluster selectors.
func (r *Controller) reportSelection(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := meta.FindStatusCondition(imp.Status.Conditions, c.Type)
	if before == nil || before.Status != metav1.ConditionTrue || c.Status != metav1.ConditionTrue || before.Message == c.Message {
		return
	}
	r.metrics.countSelectionChange(c.Reason)
	r.events.Publish(kube.ClusterSelectionChanged(imp, c.Message))
}

// reportDrained records an event if the drained clusters of a service, or the decisions about their endpoints, have changed.
func (r *Controller) reportDrained(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := meta.FindStatusCondition(imp.Status.Conditions, c.Type)
	if before == nil && c.Status != metav1.ConditionTrue || before != nil && before.Message == c.Message {
		return
	}
	r.events.Publish(kube.ClusterDrained(imp, c.Message))
}

// reportFailure returns err, the error of writing an import. If the error lasts, it sets condition Ready to False and records an event. The
// condition becomes True again when the import has been written.
func (r *Controller) reportFailure(ctx context.Context, f importFacts, err error) error {
	if err == nil {
		r.failing.Delete(f.key)
		return nil
	}
	if apierrors.IsConflict(err) || errors.Is(err, context.Canceled) {
		return err
	}
	since, _ := r.failing.LoadOrStore(f.key, r.now())
	if !isRejected(err) && r.now().Sub(since.(time.Time)) < failureGrace || !f.isOwn() {
		return err
	}
	// ctx may have ended, by the time limit of a reconcile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureGrace)
	defer cancel()
	if statusErr := r.updateNotReady(ctx, f.key, "Failed to write the import: "+err.Error()); statusErr != nil && !apierrors.IsConflict(statusErr) {
		log.FromContext(ctx).Error(statusErr, "Failed to report an import that cannot be written")
	}
	return err
}

// updateNotReady sets condition Ready of our ServiceImport to False, and records an event if it was not False before.
func (r *Controller) updateNotReady(ctx context.Context, key mcs.Key, message string) error {
	var imp mcsv1beta1.ServiceImport
	found, err := kube.Find(ctx, r.client, kube.NameOf(key), &imp)
	if err != nil || !found {
		return err
	}
	ready := mcs.ImportNotReady(message)
	ready.LastTransitionTime = metav1.NewTime(r.now())
	status := *imp.Status.DeepCopy()
	conditions, changed := mcs.SetCondition(status.Conditions, ready, imp.Generation)
	if !changed {
		return nil
	}
	status.Conditions = conditions
	if err := r.updateStatus(ctx, &imp, status); err != nil {
		return err
	}
	r.events.Publish(kube.ImportFailed(&imp, message))
	return nil
}
