package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// failureGrace is the time for which writes may fail before condition Ready of the import reports
// it. A shorter failure, as when an API server restarts, needs no action.
const failureGrace = 5 * time.Second

// reportNotOwned reports that an object of another owner, or of another import, prevents the
// import: an event once, and condition Ready of a ServiceImport that is ours.
func (r *Controller) reportNotOwned(ctx context.Context, f importFacts) error {
	message := f.notOwnedMessage()
	if _, reported := r.reported.LoadOrStore(f.key, struct{}{}); !reported {
		log.FromContext(ctx).Info("Service not imported", "reason", message)
		switch {
		case f.isForeign():
			r.events.Publish(kube.NotManaged(f.imp, message))
		case plan.ImportWithSameName(f.key, f.derived) != "":
			r.events.Publish(kube.ImportFailed(f.key, message))
		default:
			r.events.Publish(kube.NotManaged(f.derived, message))
		}
	}
	if !f.isOwn() {
		return nil
	}
	return r.updateNotReady(ctx, f.key, message, false)
}

// notOwnedMessage returns why the import is prevented by an object of another owner, or of another
// import, and how to allow it.
func (f importFacts) notOwnedMessage() string {
	switch {
	case f.isForeign() && f.takeover.NotOwnedMessage != "":
		return f.takeover.NotOwnedMessage
	case f.isForeign():
		return "the clusterset exports this service, but its ServiceImport was not created by this controller, which leaves it alone: " +
			"delete it to have it imported"
	}
	if other := plan.ImportWithSameName(f.key, f.derived); other != "" {
		return fmt.Sprintf("Service %s, which the import needs, is the derived Service of ServiceImport %s, because the hashes of both names "+
			"are the same: export the service under another name", f.derived.Name, other)
	}
	return "Service " + f.derived.Name + " has the name that the import needs, but was not created by this controller: delete it"
}

// conditionBefore returns the condition of a type that imp has, nil if it has none.
func conditionBefore(imp *mcsv1beta1.ServiceImport, kind string) *metav1.Condition {
	return meta.FindStatusCondition(mcs.RenameConditions(imp.Status.Conditions), kind)
}

// reportImported records an event when imp, whose status is now, becomes Ready, and logs that its
// type, its ports or the clusters that export it have changed.
func (r *Controller) reportImported(ctx context.Context, f importFacts, imp *mcsv1beta1.ServiceImport, now mcsv1beta1.ServiceImportStatus, ready metav1.Condition) {
	var clusters []string
	for _, c := range now.Clusters {
		clusters = append(clusters, c.Cluster)
	}
	if ready.Status == metav1.ConditionTrue && !meta.IsStatusConditionTrue(imp.Status.Conditions, ready.Type) {
		r.events.Publish(kube.Imported(imp, ready.Message+"; exported by "+strings.Join(clusters, ", ")))
	}
	before := f.imp
	if before == nil || isNew(before) || before.Spec.Type == imp.Spec.Type && apiequality.Semantic.DeepEqual(before.Spec.Ports, imp.Spec.Ports) &&
		slices.Equal(before.Status.Clusters, now.Clusters) {
		return
	}
	log.FromContext(ctx).Info("Changed import", "clusters", clusters, "type", imp.Spec.Type, "ports", imp.Spec.Ports)
}

// reportRefused records an event if imp did not have the reasons of c, the condition Refused,
// before.
func (r *Controller) reportRefused(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := conditionBefore(imp, c.Type)
	if c.Status == metav1.ConditionTrue && (before == nil || before.Reason != c.Reason) {
		r.events.Publish(kube.ExportRefused(imp, c.Message))
	}
}

// reportUnreachable records an event if the unreachable clusters, or the decisions about their
// endpoints, have changed.
func (r *Controller) reportUnreachable(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := conditionBefore(imp, c.Type)
	switch {
	case c.Status == metav1.ConditionTrue && (before == nil || before.Message != c.Message):
		r.events.Publish(kube.ClusterBecameUnreachable(imp, c.Message))
	case c.Status == metav1.ConditionFalse && before != nil && before.Status == metav1.ConditionTrue:
		r.events.Publish(kube.ClusterBecameReachable(imp, c.Message))
	}
}

// reportSelection records an event, and counts it, if the clusters that serve a service have
// changed because of its cluster selectors.
func (r *Controller) reportSelection(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := conditionBefore(imp, c.Type)
	if before == nil || before.Status != metav1.ConditionTrue || c.Status != metav1.ConditionTrue || before.Message == c.Message {
		return
	}
	r.metrics.countSelectionChange(c.Reason)
	r.events.Publish(kube.ClusterSelectionChanged(imp, c.Message))
}

// reportDrained records an event if the drained clusters of a service, or the decisions about their
// endpoints, have changed.
func (r *Controller) reportDrained(imp *mcsv1beta1.ServiceImport, c metav1.Condition) {
	before := conditionBefore(imp, c.Type)
	if before == nil && c.Status != metav1.ConditionTrue || before != nil && before.Message == c.Message {
		return
	}
	r.events.Publish(kube.ClusterDrained(imp, c.Message))
}

// failure describes an import of which objects cannot be written.
type failure struct {
	since   time.Time
	message string
	// messageAt is the time of the message.
	messageAt time.Time
	// reported reports whether the failure is one that a user should see: the API server refuses a
	// write, or the failure lasts.
	reported bool
}

// Failure is an import of which objects cannot be written, as the status endpoint shows it.
type Failure struct {
	Key     mcs.Key
	Message string
	Since   time.Time
}

// Failures returns the imports of which objects cannot be written, sorted by key. Failures that a
// retry resolves are not among them.
func (r *Controller) Failures() (out []Failure) {
	r.failing.Range(func(key, value any) bool {
		if f := value.(failure); f.reported {
			out = append(out, Failure{Key: key.(mcs.Key), Message: f.message, Since: f.since})
		}
		return true
	})
	slices.SortFunc(out, func(a, b Failure) int {
		return cmp.Or(strings.Compare(a.Key.Namespace, b.Key.Namespace), strings.Compare(a.Key.Name, b.Key.Name))
	})
	return out
}

// isFailing reports whether the last reconcile of an import failed.
func (r *Controller) isFailing(key mcs.Key) bool { return r.isFailingFor(key, 0) }

// isFailingFor reports whether all reconciles of an import have failed for some time.
func (r *Controller) isFailingFor(key mcs.Key, d time.Duration) bool {
	value, ok := r.failing.Load(key)
	return ok && r.now().Sub(value.(failure).since) >= d
}

// recordFailure records the errors of an import and returns the failure. It records an event for
// each new message that is reported, whether or not there is a ServiceImport.
func (r *Controller) recordFailure(key mcs.Key, out *outcome) failure {
	var before failure
	if value, ok := r.failing.Load(key); ok {
		before = value.(failure)
	}
	switch {
	case out.isCancelled(), out.err() == nil && out.conflict != nil:
		return before
	case out.err() == nil:
		r.failing.Delete(key)
		return failure{}
	}
	now := before.next(failurePrefix+out.message(), out.isRefused(), r.now())
	r.failing.Store(key, now)
	if now.reported && (!before.reported || before.message != now.message) {
		r.events.Publish(kube.ImportFailed(key, now.message))
	}
	return now
}

// next returns the failure after another attempt, which failed with a message.
func (f failure) next(message string, isRefused bool, now time.Time) failure {
	if !f.reported || now.Sub(f.messageAt) >= messagePause {
		f.message, f.messageAt = message, now
	}
	if f.since.IsZero() {
		f.since = now
	}
	f.reported = f.reported || isRefused || now.Sub(f.since) >= failureGrace
	return f
}

// messagePause is the shortest time between two messages about one import. Those of a webhook may
// contain a request ID: each would change the status, whose watch would start the next attempt at
// once.
const messagePause = 5 * time.Second

// failurePrefix begins the messages of failures.
const failurePrefix = "Failed to write the import: "

// readyWhileFailing returns condition Ready of an import with errors: False if they are reported,
// else as it was. known is false if it had none.
func (r *Controller) readyWhileFailing(key mcs.Key, imp *mcsv1beta1.ServiceImport, out *outcome) (ready metav1.Condition, known bool) {
	if now := r.recordFailure(key, out); now.reported {
		return mcs.ImportNotReady(now.message), true
	}
	before := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
	if before == nil {
		return metav1.Condition{}, false
	}
	return *before, true
}

// reportFailure reports the errors of an import, if they last or the API server refuses a write,
// with condition Ready of our ServiceImport. The condition becomes True again when the import has
// been written. If the import has ended, no cluster is listed any more.
func (r *Controller) reportFailure(ctx context.Context, f importFacts, ended bool, out *outcome) {
	now := r.recordFailure(f.key, out)
	if !now.reported || out.err() == nil {
		return
	}
	// ctx may have ended, by the time limit of a reconcile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureGrace)
	defer cancel()
	if err := r.updateNotReady(ctx, f.key, now.message, ended); err != nil && !apierrors.IsConflict(err) && !kube.IsRefused(err) {
		log.FromContext(ctx).Error(err, "Failed to report an import that cannot be written")
	}
}

// updateNotReady sets condition Ready of our ServiceImport, if there is one, to False, and removes
// the clusters if the import has ended.
func (r *Controller) updateNotReady(ctx context.Context, key mcs.Key, message string, ended bool) error {
	var imp mcsv1beta1.ServiceImport
	found, err := kube.Find(ctx, r.client, kube.NameOf(key), &imp)
	if err != nil || !found || !plan.IsOwnImport(&imp, nil) {
		return err
	}
	ready := mcs.ImportNotReady(message)
	ready.LastTransitionTime = metav1.NewTime(r.now())
	status := *imp.Status.DeepCopy()
	conditions, changed := mcs.SetCondition(status.Conditions, ready, imp.Generation)
	if changed {
		status.Conditions = conditions
	}
	if ended {
		status.Clusters = nil
	}
	return r.updateStatus(ctx, &imp, status)
}
