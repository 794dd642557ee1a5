package exports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// exportFacts is the input of decideExportConditions.
type exportFacts struct {
	// valid is the condition Valid.
	valid metav1.Condition
	// selection replaces valid in the status if the service is exported without its cluster
	// selectors, which are not valid; nil otherwise.
	selection *metav1.Condition
	// denial is the reason why the administrator does not allow the export, "" if allowed.
	denial string
	// problem is the reason why nothing is exported although the export is valid.
	problem string
	// synced reports whether the registry has been read, and so whether the following fields are
	// known. readProblem is the reason why it has not.
	synced      bool
	readProblem error
	// unshown is the time for which the registry has not shown the export as it is now.
	unshown time.Duration
	// status is the export's status in the registry.
	status registry.PublishStatus
	// leftOut are the parts that are not exported.
	leftOut mcs.LeftOuts
	// terminating is the ServiceExport if it is being deleted, nil otherwise: no other field
	// matters then.
	terminating *mcsv1beta1.ServiceExport
	// unknown reports whether exports may exist besides those that conflicts was decided from.
	unknown   bool
	conflicts []mcs.Conflict
	// recipients is the condition about the clusters that the service is exported to, nil if it
	// stays as it is.
	recipients *metav1.Condition
	// importers are the members that the service is exported to, nil if they are not known.
	importers *mcs.Importers
	// recheck is the time until the facts are gathered again, 0 if that is not needed.
	recheck time.Duration
}

// needsUser reports whether the user has to act.
func (f exportFacts) needsUser() bool {
	return f.valid.Status != metav1.ConditionTrue || f.selection != nil || f.denial != "" || f.problem != "" || f.status.Err != nil
}

// decideExportConditions returns the conditions that follow from f; the others stay as they are in
// existing.
func decideExportConditions(f exportFacts, existing []metav1.Condition) []metav1.Condition {
	if f.terminating != nil {
		return withoutImporters([]metav1.Condition{mcs.ExportTerminating(f.terminating.Finalizers), mcs.ExportConflict(nil)}, existing)
	}
	if f.valid.Status != metav1.ConditionTrue {
		return withoutImporters([]metav1.Condition{f.valid, mcs.ExportNotReady(f.valid), mcs.ExportConflict(nil)}, existing)
	}
	if f.selection != nil {
		f.valid = *f.selection
	}
	switch {
	case f.denial != "":
		return withoutImporters([]metav1.Condition{f.valid, mcs.ExportReady(mcs.Progress{Problem: f.denial}), mcs.ExportConflict(nil)}, existing)
	case f.problem != "":
		return withoutImporters([]metav1.Condition{f.valid, mcs.ExportReady(mcs.Progress{Problem: f.problem})}, existing)
	case !f.synced && f.staysReady(existing):
		return []metav1.Condition{f.valid, f.exported()}
	case !f.synced:
		return []metav1.Condition{f.valid, mcs.ExportReady(f.unread())}
	}
	return decidePublished(f, existing)
}

// exported returns the condition Ready of an export that the registry shows.
func (f exportFacts) exported() metav1.Condition {
	return mcs.ExportReady(mcs.Progress{Exported: true, LeftOut: f.leftOut})
}

// decidePublished returns the conditions of an export that is published in a registry that has been
// read.
func decidePublished(f exportFacts, existing []metav1.Condition) []metav1.Condition {
	ready := mcs.ExportReady(mcs.Progress{Exported: f.status.State == registry.Exported, Problem: problemText(f.status.Err), LeftOut: f.leftOut})
	if f.status.State == registry.Pending && f.staysReady(existing) {
		ready = f.exported()
	}
	out := []metav1.Condition{f.valid, ready}
	if conflict := mcs.ExportConflict(f.conflicts); !f.unknown || conflict.Status == metav1.ConditionTrue {
		out = append(out, conflict)
	}
	if c := f.recipients; c != nil && (c.Status == metav1.ConditionTrue || meta.FindStatusCondition(existing, c.Type) != nil) {
		out = append(out, *c)
	}
	if f.importers == nil {
		return out
	}
	if c := mcs.ExportImported(*f.importers); len(f.importers.Recipients) > 0 || meta.FindStatusCondition(existing, c.Type) != nil {
		out = append(out, c)
	}
	return out
}

// withoutImporters returns the conditions of a service that is not exported: no cluster imports it.
func withoutImporters(conditions, existing []metav1.Condition) []metav1.Condition {
	if meta.FindStatusCondition(existing, mcs.ConditionImported) == nil {
		return conditions
	}
	return append(conditions, mcs.ExportImported(mcs.Importers{}))
}

const (
	// problemGrace is the time for which an export that was Ready stays Ready while it cannot be
	// written: a failure that a retry resolves needs no action.
	problemGrace = 5 * time.Second
	// pendingGrace is the time for which it stays Ready while the registry shows an older version,
	// or has not been read since this process started. The write of a page takes seconds, and a
	// minute when AWS throttles.
	pendingGrace = time.Minute
	// unreadRecheck is the time after which an export in a registry that has not been read shows
	// the reason: a registry that cannot be used has answered by then.
	unreadRecheck = 3 * time.Second
)

// grace returns how long the registry may not show an export that was Ready, as it is now.
func (f exportFacts) grace() time.Duration {
	if f.status.Err != nil {
		return problemGrace
	}
	return pendingGrace
}

// staysReady reports whether an export that the registry does not show stays Ready: it was, and
// only its latest change is pending. Ready would otherwise change with every endpoint.
func (f exportFacts) staysReady(existing []metav1.Condition) bool {
	return meta.IsStatusConditionTrue(existing, string(mcsv1beta1.ServiceExportConditionReady)) && f.unshown < f.grace()
}

// unread returns the progress of an export in a registry that has not been read.
func (f exportFacts) unread() mcs.Progress {
	problem := registry.SyncProblem(f.readProblem)
	switch {
	case problem == nil && f.unshown < pendingGrace:
		return mcs.Progress{Unread: true}
	case problem == nil:
		problem = errors.New("it has not answered yet; see kubectl mcs check")
	}
	return mcs.Progress{Problem: "the registry has not been read since the controller started, so it is unknown whether it shows the export: " + problem.Error()}
}

// recheckAfter returns the time until an export that the registry does not show has another status
// although nothing changes. Nothing notifies of the problem that keeps a registry from being read:
// the pauses until it is looked at again double.
func (f exportFacts) recheckAfter() time.Duration {
	rest := f.grace() - f.unshown
	if f.synced {
		return rest
	}
	return min(rest, max(unreadRecheck, f.unshown))
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// updateStatus writes the conditions that changed, in one request, and records events for those
// that the user must act upon.
func (r *Controller) updateStatus(ctx context.Context, exp *mcsv1beta1.ServiceExport, facts exportFacts) error {
	before := mcs.RenameConditions(exp.Status.Conditions)
	renamed := !slices.Equal(before, exp.Status.Conditions)
	exp.Status.Conditions = before
	now := metav1.NewTime(r.now())
	var changes []metav1.Condition
	for _, c := range decideExportConditions(facts, before) {
		c.LastTransitionTime = now
		var changed bool
		if exp.Status.Conditions, changed = mcs.SetCondition(exp.Status.Conditions, c, exp.Generation); changed {
			changes = append(changes, c)
		}
	}
	if len(changes) == 0 && !renamed {
		return nil
	}
	// A patch would cost the API server more than twice as much.
	if err := r.client.Status().Update(ctx, exp); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // it has just been deleted
		}
		err = fmt.Errorf("updating the status of ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err)
		r.reportUnwritten(exp, err)
		return err
	}
	r.unwritten.Delete(kube.KeyOf(client.ObjectKeyFromObject(exp)))
	return r.recordConditions(ctx, exp, facts.valid, before, changes)
}

// reportUnwritten records an event if the API server refuses the conditions of exp, which then do
// not show the state of the export.
func (r *Controller) reportUnwritten(exp *mcsv1beta1.ServiceExport, err error) {
	if !kube.IsRefused(err) {
		return
	}
	if before, _ := r.unwritten.Swap(kube.KeyOf(client.ObjectKeyFromObject(exp)), err.Error()); before != err.Error() {
		r.events.Publish(kube.StatusRefused(exp, "the conditions are not up to date, the export itself is not affected: "+err.Error()))
	}
}

// recordConditions records an event for each changed condition that the user must act upon and that
// had another reason before, and one when the export becomes Ready. A namespace that is being
// deleted gets no events: its objects are deleted in any order, so that a Service may be deleted
// before its ServiceExport.
func (r *Controller) recordConditions(ctx context.Context, exp *mcsv1beta1.ServiceExport, valid metav1.Condition, before, changes []metav1.Condition) error {
	changes = slices.DeleteFunc(changes, func(c metav1.Condition) bool {
		return !isExported(c) && !needsAction(c, valid) || hasSameReason(before, c)
	})
	if len(changes) == 0 {
		return nil
	}
	active, err := kube.IsNamespaceActive(ctx, r.client, exp.Namespace)
	if err != nil || !active {
		return err
	}
	for _, c := range changes {
		if isExported(c) {
			log.FromContext(ctx).Info("Exported service")
			r.events.Publish(kube.Exported(exp, c.Message))
			continue
		}
		r.events.Publish(kube.ConditionNeedsAction(exp, c))
	}
	return nil
}

// isExported reports whether c is condition Ready of an export that the other clusters can see.
func isExported(c metav1.Condition) bool {
	return c.Type == string(mcsv1beta1.ServiceExportConditionReady) && c.Status == metav1.ConditionTrue
}

// needsAction reports whether the user must act upon c, a condition of a ServiceExport with
// condition valid.
func needsAction(c, valid metav1.Condition) bool {
	switch mcsv1beta1.ServiceExportConditionType(c.Type) {
	case mcsv1beta1.ServiceExportConditionValid:
		return c.Status == metav1.ConditionFalse
	case mcsv1beta1.ServiceExportConditionReady:
		return c.Reason == string(mcsv1beta1.ServiceExportReasonFailed) && valid.Status == metav1.ConditionTrue
	}
	return c.Type == string(mcsv1beta1.ServiceExportConditionConflict) && c.Status == metav1.ConditionTrue
}

// hasSameReason reports whether before contains the condition with the same status and reason.
func hasSameReason(before []metav1.Condition, c metav1.Condition) bool {
	return slices.ContainsFunc(before, func(o metav1.Condition) bool {
		return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason
	})
}
