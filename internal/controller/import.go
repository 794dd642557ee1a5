package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// importReconciler makes the services of the clusterset usable in this cluster.
type importReconciler struct {
	client     client.Client
	membership *membership
	scope      *scope
	events     recorder
	metrics    *metrics
	families   *families
	// distributions says what of a merged trafficDistribution can be had in this cluster.
	distributions *distributions
	waiting       *waitingRoom
	// mcsVersion is the version of the MCS API that is served; ServiceImports are owners under it.
	mcsVersion schema.GroupVersion
	now        func() time.Time
	staleRule  mcs.StaleRule
	// takeOver lets the imports of the AWS Cloud Map MCS Controller for K8s be taken over.
	takeOver bool

	// look makes it look at services.
	look *trigger
	// reported are the keys of which the user has been told that somebody else's object is in the way.
	reported sync.Map // mcs.Key -> struct{}
}

// Reconcile implements reconcile.Reconciler.
func (r *importReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	session := r.membership.standing().session
	if session == nil {
		return reconcile.Result{}, nil // what is there stays; a new session looks at everything again
	}
	facts, err := r.gather(ctx, session, keyOf(req.NamespacedName))
	if err != nil {
		return reconcile.Result{}, err
	}
	decision := decideImport(facts)
	if decision.verdict != verdictForeign {
		r.reported.Delete(facts.key)
	}
	var again time.Duration
	switch decision.verdict {
	case verdictForeign:
		r.reportForeign(ctx, facts)
	case verdictRemove:
		err = r.remove(ctx, facts)
	case verdictKeep:
		if err = r.keep(ctx, session, facts, decision); err == nil {
			again, err = r.retire(ctx, facts, decision)
		}
	}
	result, err := retryOnRace(err)
	result.RequeueAfter = max(result.RequeueAfter, again)
	return result, err
}

// gather reads all that decides the import of key.
func (r *importReconciler) gather(ctx context.Context, session *session, key mcs.Key) (importFacts, error) {
	f := importFacts{key: key, cluster: session.identity.ClusterID, staleRule: r.staleRule}
	var err error
	if f.namespace, f.forbidden, err = r.awaitNamespace(ctx, key); err != nil || !f.namespace {
		return f, err
	}
	if f.view, err = session.registry.Lookup(ctx, key); err != nil && !errors.Is(err, registry.ErrNotSynced) {
		return f, fmt.Errorf("looking up the exports of %s: %w", key, err)
	}
	f.synced = err == nil
	if f.local, err = r.localExport(ctx, session.identity, key); err != nil {
		return f, err
	}
	return f, r.gatherObjects(ctx, &f)
}

// gatherObjects reads what is already there of the import.
func (r *importReconciler) gatherObjects(ctx context.Context, f *importFacts) error {
	name := types.NamespacedName{Namespace: f.key.Namespace, Name: f.key.Name}
	var imp mcsv1beta1.ServiceImport
	found, err := find(ctx, r.client, name, &imp, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	if found {
		f.imp = &imp
	}
	if err := r.gatherDerived(ctx, f); err != nil {
		return err
	}
	list, err := listSlices(ctx, r.client, f.key.Namespace, indexImport, f.key.Name)
	f.slices = make([]*discoveryv1.EndpointSlice, 0, len(list))
	for i := range list {
		f.slices = append(f.slices, &list[i])
	}
	return err
}

// gatherDerived reads the derived Service, and what the AWS Cloud Map MCS Controller for K8s left of it.
func (r *importReconciler) gatherDerived(ctx context.Context, f *importFacts) error {
	name := types.NamespacedName{Namespace: f.key.Namespace, Name: mcs.DerivedName(f.key)}
	var svc corev1.Service
	found, err := find(ctx, r.client, name, &svc, client.UnsafeDisableDeepCopy)
	if err != nil {
		return err
	}
	var standard *corev1.Service
	if found {
		standard = &svc
	}
	candidates, err := listDerived(ctx, r.client, f.key)
	if err != nil {
		return err
	}
	d := plan.ChooseDerived(f.key, f.imp, standard, candidates, r.takeOver)
	f.derived, f.derivedName = d.Service, d.Name
	f.old = oldObjects{
		imp: r.takeOver && plan.MadeByOldController(f.imp), derived: d.Service != nil && !plan.IsManaged(d.Service) && !d.Foreign, superfluous: d.Superfluous,
	}
	if d.Name == mcs.DerivedName(f.key) && len(d.Superfluous) == 0 {
		return nil
	}
	return r.gatherOldSlices(ctx, f)
}

// gatherOldSlices reads the EndpointSlices that the AWS Cloud Map MCS Controller for K8s made for its derived Services.
func (r *importReconciler) gatherOldSlices(ctx context.Context, f *importFacts) error {
	f.old.slices = map[string][]*discoveryv1.EndpointSlice{}
	for _, svc := range append(slices.Clone(f.old.superfluous), f.derived) {
		if svc == nil {
			continue
		}
		list, err := listSlices(ctx, r.client, f.key.Namespace, indexService, svc.Name)
		if err != nil {
			return err
		}
		for i := range list {
			if plan.OldSlice(&list[i]) {
				f.old.slices[svc.Name] = append(f.old.slices[svc.Name], &list[i])
			}
		}
	}
	return nil
}

// localExport is this cluster's own export of key, nil if it has none.
func (r *importReconciler) localExport(ctx context.Context, identity mcs.Identity, key mcs.Key) (*mcs.Export, error) {
	src, err := gatherSource(ctx, r.client, r.scope, identity, key)
	if err != nil || !exported(src) {
		return nil, err
	}
	exp, _, err := mcs.NewExport(src.Source, nil, time.Time{})
	if err != nil {
		return nil, nil //nolint:nilerr // it cannot be exported at all, as the ServiceExport's status says
	}
	return &exp, nil
}

// awaitNamespace says whether key's namespace is there and stays, and whether nothing may be imported into it. Then the key
// waits for that to change.
func (r *importReconciler) awaitNamespace(ctx context.Context, key mcs.Key) (stays, forbidden bool, err error) {
	r.waiting.enter(key) // before looking, or a namespace created in between would be missed
	ns, found, err := readNamespace(ctx, r.client, key.Namespace)
	stays = found && ns.DeletionTimestamp == nil
	forbidden = !r.scope.mayImport(ns)
	if stays && !forbidden {
		r.waiting.leave(key)
	}
	return stays, forbidden, err
}

// reportForeign tells the user, once, that an object of somebody else is in the way of the import.
func (r *importReconciler) reportForeign(ctx context.Context, f importFacts) {
	if _, told := r.reported.LoadOrStore(f.key, struct{}{}); told {
		return
	}
	var obj client.Object = f.derived
	message := "Service " + mcs.DerivedName(f.key) + " has the name that the import needs, but was not created by this controller: delete it"
	if f.imp != nil && !plan.IsManaged(f.imp) {
		obj = f.imp
		message = "the clusterset exports this service, but its ServiceImport was not created by this controller, which leaves it alone: " +
			"delete it to have it imported"
		if plan.MadeByOldController(f.imp) {
			message = "the clusterset exports this service, but its ServiceImport was created by the AWS Cloud Map MCS Controller for K8s: " +
				"run this controller with --import-from-aws-controller to have it taken over with its IP"
		}
	}
	log.FromContext(ctx).Info("Not imported", "reason", message)
	r.events.warn(obj, reasonNotManaged, message)
}
