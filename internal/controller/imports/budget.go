package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// maxBudgetEvents is the number of imports of a namespace that wait and have an event.
const maxBudgetEvents = 5

// namespaceBudget bounds the imports of each namespace. Imports that exist stay; new ones wait for
// room, the oldest first.
type namespaceBudget struct {
	// limit is the number of imports of a namespace; 0 is no limit.
	limit int

	mu sync.Mutex
	// imports and waiting are by namespace. The imports of a namespace were listed when it is in
	// there.
	imports map[string]map[mcs.Key]struct{}
	waiting map[string]map[mcs.Key]time.Time
}

func newNamespaceBudget(limit int) *namespaceBudget {
	return &namespaceBudget{limit: limit, imports: map[string]map[mcs.Key]struct{}{}, waiting: map[string]map[mcs.Key]time.Time{}}
}

// ensureListed lists the imports of a namespace once.
func (b *namespaceBudget) ensureListed(ctx context.Context, reader client.Reader, namespace string) error {
	b.mu.Lock()
	_, isListed := b.imports[namespace]
	b.mu.Unlock()
	if isListed || b.limit == 0 {
		return nil
	}
	var list mcsv1beta1.ServiceImportList
	err := reader.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy, client.MatchingLabels{plan.LabelAppManagedBy: plan.ManagedBy})
	if err != nil {
		return fmt.Errorf("listing the imports of namespace %s: %w", namespace, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.imports[namespace] == nil {
		b.imports[namespace] = map[mcs.Key]struct{}{}
	}
	for i := range list.Items {
		b.imports[namespace][kube.KeyOf(client.ObjectKeyFromObject(&list.Items[i]))] = struct{}{}
	}
	return nil
}

// admit reports whether an import may exist: it does, or there is room besides those that wait and
// whose oldest export is older. If it has to wait and did not wait before, rank is the number of
// those that wait, else 0.
func (b *namespaceBudget) admit(key mcs.Key, exists bool, created time.Time) (admitted bool, rank int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	imports := b.imports[key.Namespace]
	if imports == nil {
		return true, 0 // without a limit none is listed
	}
	_, isCounted := imports[key]
	if exists || isCounted || b.isNext(key, created) {
		imports[key] = struct{}{}
		delete(b.waiting[key.Namespace], key)
		return true, 0
	}
	if b.waiting[key.Namespace] == nil {
		b.waiting[key.Namespace] = map[mcs.Key]time.Time{}
	}
	_, waited := b.waiting[key.Namespace][key]
	b.waiting[key.Namespace][key] = created
	if waited {
		return false, 0
	}
	return false, len(b.waiting[key.Namespace])
}

// isNext reports whether there is room for a new import. The caller holds b.mu.
func (b *namespaceBudget) isNext(key mcs.Key, created time.Time) bool {
	free := b.limit - len(b.imports[key.Namespace])
	if free <= 0 {
		return false
	}
	before := 0
	for other, since := range b.waiting[key.Namespace] {
		if compareWaiting(other, since, key, created) < 0 {
			before++
		}
	}
	return before < free
}

// compareWaiting sorts imports by the creation time of their oldest export; one without a time
// comes last.
func compareWaiting(a mcs.Key, since time.Time, b mcs.Key, created time.Time) int {
	if since.IsZero() != created.IsZero() {
		return -since.Compare(created)
	}
	return cmp.Or(since.Compare(created), strings.Compare(a.Name, b.Name))
}

// release records that an import does not exist and is not wanted, and returns those that have room
// now.
func (b *namespaceBudget) release(key mcs.Key) (next []mcs.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	imports, waiting := b.imports[key.Namespace], b.waiting[key.Namespace]
	before := len(imports) + len(waiting)
	delete(imports, key)
	delete(waiting, key)
	if len(imports)+len(waiting) == before {
		return nil
	}
	for other := range waiting {
		next = append(next, other)
	}
	slices.SortFunc(next, func(x, y mcs.Key) int { return compareWaiting(x, waiting[x], y, waiting[y]) })
	return next[:max(0, min(len(next), b.limit-len(imports)))]
}

// forget drops a namespace that does not exist.
func (b *namespaceBudget) forget(namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.imports, namespace)
	delete(b.waiting, namespace)
}

// usage returns the highest number of imports in a namespace, the limit, and the keys of the
// imports that wait, sorted.
func (b *namespaceBudget) usage() (used, limit int, waiting []mcs.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, imports := range b.imports {
		used = max(used, len(imports))
	}
	for _, keys := range b.waiting {
		for key := range keys {
			waiting = append(waiting, key)
		}
	}
	slices.SortFunc(waiting, func(x, y mcs.Key) int { return strings.Compare(x.String(), y.String()) })
	return used, b.limit, waiting
}

// Budget returns the highest number of imports in a namespace, the limit, and the keys of the
// imports that wait for room.
func (r *Controller) Budget() (used, limit int, waiting []mcs.Key) { return r.budget.usage() }

// limitImports returns the decision within the budget of the namespace: a new import that does not
// fit waits.
func (r *Controller) limitImports(ctx context.Context, f importFacts, d importDecision) (importDecision, error) {
	if r.budget.limit == 0 {
		return d, nil
	}
	if !f.namespace {
		r.budget.forget(f.key.Namespace)
		return d, nil
	}
	if err := r.budget.ensureListed(ctx, r.client, f.key.Namespace); err != nil {
		return d, err
	}
	if f.imp == nil && d.verdict != verdictApply {
		for _, key := range r.budget.release(f.key) {
			r.requeuer.Requeue(key)
		}
		return d, nil
	}
	if d.verdict != verdictApply {
		return d, nil
	}
	admitted, rank := r.budget.admit(f.key, f.isOwn(), oldest(d.exports))
	if admitted {
		return d, nil
	}
	if rank > 0 {
		reason := fmt.Sprintf("the namespace has %d imports, the maximum for a namespace (--budget-scale)", r.budget.limit)
		log.FromContext(ctx).Info("Service not imported", "reason", reason)
		if rank <= maxBudgetEvents {
			r.events.Publish(kube.ImportOverBudget(f.key, "service "+f.key.Name+" is not imported: "+reason+"; it is imported when another import ends"))
		}
	}
	d.verdict = verdictNone
	return d, nil
}

// oldest returns the creation time of the oldest export, zero if none has one.
func oldest(exports []mcs.Export) (created time.Time) {
	for _, exp := range exports {
		if !exp.Created.IsZero() && (created.IsZero() || exp.Created.Before(created)) {
			created = exp.Created
		}
	}
	return created
}
