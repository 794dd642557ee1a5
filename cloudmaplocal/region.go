package cloudmaplocal

import (
	"sync"
	"time"
)

// region has the state of one account in one Region: the store has the resources, the operations
// change it, and the replica follows it.
//
// mu is the lock of this state as a whole: a request is atomic, and reads and changes the store,
// the operations and the replica together.
type region struct {
	key      regionKey
	opts     *Options
	shares   *shareList
	throttle throttle

	mu         sync.Mutex
	store      *store
	operations operationLog
	replica    replica
}

func newRegion(key regionKey, opts *Options, shares *shareList) *region {
	r := &region{
		key: key, opts: opts, shares: shares,
		store: newStore(key, opts.Behaviors), operations: newOperationLog(), replica: newReplica(opts.Behaviors),
	}
	if !opts.Unthrottled {
		r.throttle = newThrottle(opts.Limits)
	}
	return r
}

// withLock applies all effects that are due, runs f with the region locked, and applies the effects
// that f made due.
func (r *region) withLock(f func(now time.Time) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	r.applyDue(now)
	if err := f(now); err != nil {
		return err
	}
	r.applyDue(now)
	return nil
}

// withState runs f, which cannot fail, with the region locked.
func (r *region) withState(f func()) {
	_ = r.withLock(func(time.Time) error { f(); return nil })
}

// applyDue applies the effects that are due by now: first the operations, in the order of their due
// times, then the changes of the replica.
func (r *region) applyDue(now time.Time) {
	for op := r.operations.popDue(now); op != nil; op = r.operations.popDue(now) {
		r.finishOperation(op)
	}
	r.replica.applyDue(now)
}

// finishOperation completes an operation: it takes effect, unless a fault prevents that.
func (r *region) finishOperation(op *operation) {
	if op.Fails != nil || op.Lost {
		r.store.releaseReservation(op)
		op.Error, op.Fails = op.Fails, nil
	} else {
		r.applyOperation(op)
	}
	op.Done, op.Namespace, op.Instance, op.Change = true, nil, nil, nil
}

// applyOperation applies the effect of an operation.
func (r *region) applyOperation(op *operation) {
	namespaceID, serviceID, instanceID := op.Targets[targetNamespace], op.Targets[targetService], op.Targets[targetInstance]
	switch op.Type {
	case opCreateNamespace:
		r.replica.addChange(r.store.addNamespace(op.Namespace, op.ID, op.Due), op.Due)
	case opUpdateNamespace:
		r.store.namespaces[namespaceID].applyChange(op.Change.Namespace)
	case opDeleteNamespace:
		r.replica.addChange(r.store.removeNamespace(namespaceID), op.Due)
	case opUpdateService:
		r.store.services[serviceID].applyChange(op.Change.Service)
	case opRegisterInstance:
		r.replica.addChange(r.store.setInstance(serviceID, op.Instance, op.ID), op.Due)
	case opDeregisterInstance:
		r.replica.addChange(r.store.removeInstance(serviceID, instanceID, op.Due), op.Due)
	}
}

// accessOf returns the access of a caller to the region, by the current shares.
func (r *region) accessOf(caller principal) access {
	return access{owner: r.key, caller: caller, shares: r.shares.currentShares()}
}

// listVisibleTo returns the resources of the region that a caller can see.
func (r *region) listVisibleTo(caller principal) (all visibleResources) {
	r.withState(func() { all = r.accessOf(caller).listVisible(r.store) })
	return all
}

// resolveTargetNames returns the names of the resources of a request.
func (r *region) resolveTargetNames(body []byte) (about targetNames) {
	r.withState(func() { about = r.store.resolveTarget(body, &r.operations).targetNames })
	return about
}
