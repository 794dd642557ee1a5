package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// exportReconciler publishes what this cluster exports and says on each ServiceExport how that stands.
type exportReconciler struct {
	client     client.Client
	membership *membership
	scope      *scope
	events     recorder
	now        func() time.Time
	// takeOver lets the finalizer of the AWS Cloud Map MCS Controller for K8s be removed.
	takeOver bool

	// published are the last exports by key, to tell when one changed.
	published sync.Map // mcs.Key -> publishedExport
	// warned are the registry's warnings of which the user has been told.
	warned sync.Map // mcs.Key -> string
}

// publishedExport is an export and what had to be left out of it.
type publishedExport struct {
	export  mcs.Export
	leftOut string
	// since is when it was published first.
	since time.Time
}

// Reconcile implements reconcile.Reconciler.
func (r *exportReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key := keyOf(req.NamespacedName)
	standing := r.membership.standing()
	if standing.undecided() {
		return reconcile.Result{}, nil
	}
	if err := r.releaseExport(ctx, key); err != nil {
		return retryOnRace(err)
	}
	src, err := gatherSource(ctx, r.client, r.scope, standing.identity(), key)
	if err != nil {
		return reconcile.Result{}, err
	}
	facts := exportFacts{valid: mcs.ExportValid(src.Service), forbidden: src.forbidden, problem: standing.problem}
	if standing.session != nil {
		if err := r.publish(ctx, standing.session.registry, src, key, &facts); err != nil {
			return reconcile.Result{}, err
		}
	}
	if src.ServiceExport == nil {
		return reconcile.Result{}, nil
	}
	if wait := r.statusIn(key, src.ServiceExport, facts); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return retryOnRace(r.updateStatus(ctx, src.ServiceExport, facts))
}

// speedy is how long the registry has to show a new export until its status says Pending. It mostly does sooner, also where
// AWS takes a second or two for an operation: then one write of the status tells all.
const speedy = 3 * time.Second

// statusIn says how long the first status of a new export is put off yet: while the registry may show it any moment.
func (r *exportReconciler) statusIn(key mcs.Key, exp *mcsv1beta1.ServiceExport, facts exportFacts) time.Duration {
	was, ok := r.published.Load(key)
	if !ok || len(exp.Status.Conditions) > 0 || facts.failed() || facts.own.State != registry.Pending {
		return 0
	}
	return max(0, speedy-r.now().Sub(was.(publishedExport).since))
}

// publish makes the registry's export of key what src says and adds to facts how that stands.
func (r *exportReconciler) publish(ctx context.Context, reg registry.Registry, src localSource, key mcs.Key, facts *exportFacts) error {
	view, err := reg.Lookup(ctx, key)
	facts.synced = err == nil
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		return fmt.Errorf("looking up the exports of %s: %w", key, err)
	}
	if !exported(src) {
		return r.withdraw(ctx, reg, key, facts.synced && view.Local.State == registry.Absent)
	}
	exp, err := r.newExport(ctx, src.Source)
	if err == nil {
		err = reg.Publish(ctx, exp)
	}
	if err != nil { // what can never be published, and no other try will mend
		facts.problem = err.Error()
		return r.withdraw(ctx, reg, key, false)
	}
	if view, err = reg.Lookup(ctx, key); err != nil {
		facts.synced = false
		return nil //nolint:nilerr // not read yet: the status keeps what it says until there is more to say
	}
	r.warn(ctx, src.ServiceExport, key, view.Local.Warnings)
	facts.own, facts.unknown = view.Local, len(view.Unknown) > 0 || view.Incomplete
	facts.conflicts = mcs.Merge(append(slices.Clone(view.Exports), exp)).Conflicts
	return nil
}

// warn tells the user what the registry warns of, when that changes.
func (r *exportReconciler) warn(ctx context.Context, exp *mcsv1beta1.ServiceExport, key mcs.Key, warnings []string) {
	text := strings.Join(warnings, "; ")
	if was, _ := r.warned.Swap(key, text); text == "" || was == text {
		return
	}
	log.FromContext(ctx).Info("Exported, but not shown to everybody", "reason", text)
	r.events.warn(exp, reasonPartlyShown, text)
}

func (r *exportReconciler) withdraw(ctx context.Context, reg registry.Registry, key mcs.Key, absent bool) error {
	r.published.Delete(key)
	r.warned.Delete(key)
	if absent {
		return nil
	}
	if err := reg.Withdraw(ctx, key); err != nil {
		return fmt.Errorf("withdrawing %s: %w", key, err)
	}
	return nil
}

// newExport makes the export of src and tells the user what had to be left out of it, when that changes.
func (r *exportReconciler) newExport(ctx context.Context, src mcs.Source) (mcs.Export, error) {
	key := mcs.Key{Namespace: src.ServiceExport.Namespace, Name: src.ServiceExport.Name}
	var previous *mcs.Export
	var was publishedExport
	if value, ok := r.published.Load(key); ok {
		was = value.(publishedExport)
		previous = &was.export
	}
	exp, left, err := mcs.NewExport(src, previous, r.now())
	if err != nil {
		return mcs.Export{}, err
	}
	now := publishedExport{export: exp, leftOut: strings.Join(left, "; "), since: was.since}
	if now.since.IsZero() {
		now.since = r.now()
	}
	r.published.Store(key, now)
	if now.leftOut != was.leftOut && now.leftOut != "" {
		log.FromContext(ctx).Info("Exported only in part", "reason", now.leftOut)
		r.events.warn(src.ServiceExport, reasonPartlyExported, now.leftOut)
	}
	return exp, nil
}

// exportFacts are what the conditions of a ServiceExport are decided from.
type exportFacts struct {
	// valid is the condition Valid.
	valid metav1.Condition
	// forbidden says why the administrator does not let it be exported, "" when it may be.
	forbidden string
	// problem says why nothing is exported although the export is valid.
	problem string
	// synced says whether the rest is known: whether the registry has been read.
	synced bool
	own    registry.PublishStatus
	// unknown says whether there may be exports besides those that conflicts was decided from.
	unknown   bool
	conflicts []mcs.Conflict
}

// failed says whether there is something for the user to mend.
func (f exportFacts) failed() bool {
	return f.valid.Status != metav1.ConditionTrue || f.forbidden != "" || f.problem != "" || f.own.Err != nil
}

// decideExportConditions are the conditions that f says something about; the others stay as they are.
func decideExportConditions(f exportFacts, have []metav1.Condition) []metav1.Condition {
	if f.valid.Status != metav1.ConditionTrue {
		return []metav1.Condition{f.valid, mcs.ExportNotReady(f.valid), mcs.ExportConflict(nil)}
	}
	switch {
	case f.forbidden != "":
		return []metav1.Condition{f.valid, mcs.ExportReady(mcs.Progress{Problem: f.forbidden}), mcs.ExportConflict(nil)}
	case f.problem != "":
		return []metav1.Condition{f.valid, mcs.ExportReady(mcs.Progress{Problem: f.problem})}
	case !f.synced:
		return []metav1.Condition{f.valid, readyOrPending(have)}
	}
	ready := mcs.ExportReady(mcs.Progress{Exported: f.own.State == registry.Exported, Problem: problemText(f.own.Err)})
	if f.own.Err == nil && f.own.State == registry.Pending {
		ready = readyOrPending(have)
	}
	out := []metav1.Condition{f.valid, ready}
	if conflict := mcs.ExportConflict(f.conflicts); !f.unknown || conflict.Status == metav1.ConditionTrue {
		out = append(out, conflict)
	}
	return out
}

// readyOrPending is condition Ready while the registry's word is awaited. What is exported already stays Ready: its
// latest change is on its way, and a condition that blinks at every change of an endpoint would tell nobody anything.
func readyOrPending(have []metav1.Condition) metav1.Condition {
	i := slices.IndexFunc(have, func(c metav1.Condition) bool { return c.Type == string(mcsv1beta1.ServiceExportConditionReady) })
	return mcs.ExportReady(mcs.Progress{Exported: i >= 0 && have[i].Status == metav1.ConditionTrue})
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// updateStatus writes the conditions that changed, at once, and tells of those that a user must act upon.
func (r *exportReconciler) updateStatus(ctx context.Context, exp *mcsv1beta1.ServiceExport, facts exportFacts) error {
	before := exp.DeepCopy()
	now := metav1.NewTime(r.now())
	var news []metav1.Condition
	for _, c := range decideExportConditions(facts, before.Status.Conditions) {
		c.LastTransitionTime = now
		var changed bool
		if exp.Status.Conditions, changed = mcs.SetCondition(exp.Status.Conditions, c, exp.Generation); changed {
			news = append(news, c)
		}
	}
	if len(news) == 0 {
		return nil
	}
	// A patch would cost the API server more than twice as much.
	if err := r.client.Status().Update(ctx, exp); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // it has just been deleted
		}
		return fmt.Errorf("updating the status of ServiceExport %s/%s: %w", exp.Namespace, exp.Name, err)
	}
	return r.tell(ctx, exp, facts.valid, before.Status.Conditions, news)
}

// tell records an event for each condition in news that the user must act upon and that was not so before. In a
// namespace that is being deleted things go in any order, a Service before its ServiceExport: that is nothing to act upon.
func (r *exportReconciler) tell(ctx context.Context, exp *mcsv1beta1.ServiceExport, valid metav1.Condition, before, news []metav1.Condition) error {
	news = slices.DeleteFunc(news, func(c metav1.Condition) bool { return !needsAction(c, valid) || sameReason(before, c) })
	if len(news) == 0 {
		return nil
	}
	stays, err := namespaceStays(ctx, r.client, exp.Namespace)
	if err != nil || !stays {
		return err
	}
	for _, c := range news {
		r.events.warn(exp, c.Reason, c.Message)
	}
	return nil
}

// needsAction says whether c, a condition of a ServiceExport beside valid, is something for the user to mend.
func needsAction(c, valid metav1.Condition) bool {
	switch mcsv1beta1.ServiceExportConditionType(c.Type) {
	case mcsv1beta1.ServiceExportConditionValid:
		return c.Status == metav1.ConditionFalse
	case mcsv1beta1.ServiceExportConditionReady:
		return c.Reason == string(mcsv1beta1.ServiceExportReasonFailed) && valid.Status == metav1.ConditionTrue
	}
	return c.Status == metav1.ConditionTrue // Conflict
}

// sameReason says whether the condition was there with the same status and reason before.
func sameReason(before []metav1.Condition, c metav1.Condition) bool {
	return slices.ContainsFunc(before, func(o metav1.Condition) bool {
		return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason
	})
}
