package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// errDisplaced means that a process that began later writes for this cluster.
var errDisplaced = errors.New("another controller writes to etcd under this cluster's ID and with the same UID of namespace kube-system: " +
	"a replica that was elected since, or a clone of the cluster")

// writeLoop holds the cluster's ID and brings what was asked for to etcd until ctx ends. There is one request at a time: what
// is asked for meanwhile goes into the next, so that bursts are gathered without waiting for them.
func (r *Registry) writeLoop(ctx context.Context, notify func(mcs.Key)) {
	defer r.keepers.Wait()
	for failures := 0; ctx.Err() == nil; {
		more, err := r.step(ctx, notify)
		if ctx.Err() != nil {
			return
		}
		r.problem(&r.writeProblem, err, notify, "Cannot write to etcd; trying again", "Writing to etcd again")
		switch {
		case err != nil:
			failures++
			pause(ctx, r.cfg.times.backoff(failures))
			continue
		case more:
			failures = 0
			continue
		}
		select {
		case <-r.writable:
		case <-ctx.Done():
		}
	}
}

// step makes the next request, if there is anything to do; more says that there may be more.
func (r *Registry) step(ctx context.Context, notify func(mcs.Key)) (more bool, err error) {
	r.mu.Lock()
	join, seen, obstacle := r.joinable()
	var batch []operation
	// Only when the fence itself has been read is everything that was written before it known.
	if r.claim.fence != 0 && r.state.revision >= r.claim.fence {
		if batch = r.outbox.next(r.most); len(batch) == 0 {
			r.most = maxOperations
		}
	}
	fence := r.claim.fence
	r.mu.Unlock()
	r.problem(&r.claimProblem, obstacle, notify, "Nothing is exported", "This cluster's ID is free")
	switch {
	case join:
		return r.join(ctx, seen)
	case len(batch) > 0:
		return true, r.write(ctx, fence, batch, notify)
	}
	return false, nil
}

// joinable says whether the key alive is to be written now, if it still has the revision seen, and otherwise what forbids
// it. The caller holds r.mu.
func (r *Registry) joinable() (join bool, seen int64, obstacle error) {
	id := r.cfg.Identity.ClusterID
	if r.claim.fence != 0 && r.state.revision >= r.claim.fence && r.state.memberOf(id) != r.record {
		r.claim.drop() // the record was removed or changed: both keys are written together
	}
	if !r.state.synced || r.claim.fence != 0 {
		return false, 0, nil
	}
	alive := r.state.aliveOf(id)
	switch r.claim.judge(alive) {
	case taken:
		return false, 0, &registry.DuplicateIDError{ClusterID: id, OtherUID: alive.uid}
	case displaced:
		return false, 0, errDisplaced
	}
	return true, alive.revision, nil
}

// join writes the keys alive and member.
func (r *Registry) join(ctx context.Context, seen int64) (more bool, err error) {
	lease, err := r.leased(ctx)
	if err != nil {
		return false, err
	}
	revision, err := r.store.claim(ctx, seen, lease, r.cfg.Identity.UID, r.member)
	switch {
	case errors.Is(err, errFallen):
		return false, nil // the watch will show what came between
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.leaseLost(lease)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("joining the clusterset: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claim.won(revision)
	return true, nil
}

// leased is our lease, a new one when there is none.
func (r *Registry) leased(ctx context.Context) (int64, error) {
	r.mu.Lock()
	lease := r.lease
	r.mu.Unlock()
	if lease != 0 {
		return lease, nil
	}
	lease, err := r.store.grant(ctx, r.cfg.times.lease)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease = lease
	r.claim.leases[lease] = true
	r.keepers.Go(func() { r.keep(ctx, lease) })
	return lease, nil
}

// keep renews the lease until ctx ends or etcd says that it is no more.
func (r *Registry) keep(ctx context.Context, lease int64) {
	for ctx.Err() == nil {
		_ = r.store.keepAlive(ctx, lease) // it ends sooner or later, and the reason tells nothing of the lease
		if ctx.Err() != nil {
			return
		}
		if ttl, err := r.store.leaseTTL(ctx, lease); err == nil && ttl == 0 {
			r.log.Info("The lease ran out while etcd could not be reached: joining again", "lease", lease)
			r.leaseLost(lease)
			return
		}
		pause(ctx, r.cfg.times.retry)
	}
}

func (r *Registry) leaseLost(lease int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lease == lease {
		r.lease = 0
		r.claim.drop()
	}
	r.wake()
}

// write carries out a batch. When its outcome is not known, alive is written anew before anything else: then the batch has
// been carried out or never will be, and the watch shows which.
func (r *Registry) write(ctx context.Context, fence int64, batch []operation, notify func(mcs.Key)) error {
	revision, effect, err := r.store.write(ctx, fence, batch)
	changed := keySet{}
	r.mu.Lock()
	switch {
	case err == nil:
		r.outbox.accepted(batch, effect, revision, r.state.revision)
	case errors.Is(err, errTooLarge) && len(batch) == 1:
		r.outbox.refuse(batch[0].key, err)
		changed[batch[0].key] = struct{}{}
		err = nil
	case errors.Is(err, errTooLarge):
		r.most = 1
		r.outbox.failed(batch)
		err = nil
	default:
		if !isRefusal(err) {
			r.claim.drop()
		}
		r.outbox.failed(batch)
		if errors.Is(err, errFallen) {
			err = nil
		}
	}
	r.mu.Unlock()
	r.tell(notify, changed)
	if err != nil {
		return fmt.Errorf("writing %d exports: %w", len(batch), err)
	}
	return nil
}

// leave removes everything of this cluster, in bounded time, unless somebody else lives under its ID.
func (r *Registry) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cloneLeases*r.cfg.times.lease+r.cfg.times.leave)
	defer cancel()
	var watched watchedLife
	for failures := 1; ; {
		done, err := r.tryLeave(ctx, &watched)
		if done && err == nil {
			return r.endLease(ctx)
		}
		if err != nil {
			failures++
		}
		pause(ctx, r.cfg.times.backoff(failures))
		if ctx.Err() != nil {
			return fmt.Errorf("removing everything of this cluster from etcd on leaving the clusterset: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// cloneLeases is for how many times a lease's life alive must stay to be somebody's who lives: once is what an earlier life
// leaves, and an etcd that elects a new leader extends all leases by up to another.
const cloneLeases = 3

// watchedLife is a key alive that may be somebody's, and since when it is watched.
type watchedLife struct {
	alive aliveState
	since time.Time
	ttl   time.Duration
}

// tryLeave removes everything of this cluster if nobody else lives under its ID; done says that there is nothing left to do.
func (r *Registry) tryLeave(ctx context.Context, watched *watchedLife) (done bool, err error) {
	alive, data, err := r.store.read(ctx)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	ours, held := r.claim.leases[alive.lease], r.claim.held
	r.mu.Unlock()
	switch {
	case alive.lives() && ours:
	case alive.lives() && alive.uid != r.cfg.Identity.UID:
		return true, nil
	case alive.lives() && held:
		return true, nil // whoever displaced us
	case alive.lives():
		return r.watchLife(ctx, watched, alive)
	case !held:
		// Nobody lives here: who did last says the record.
		member, err := decodeMember(data, r.cfg.Identity.ClusterSetID, r.cfg.Identity.ClusterID)
		if err != nil || member.UID != r.cfg.Identity.UID {
			return true, nil
		}
	}
	err = r.store.remove(ctx, alive.revision)
	if errors.Is(err, errFallen) {
		return false, nil
	}
	return err == nil, err
}

// watchLife watches an alive that our UID wrote: when it stays for longer than its lease lasts, or is written, somebody
// lives; done says so.
func (r *Registry) watchLife(ctx context.Context, watched *watchedLife, alive aliveState) (done bool, err error) {
	if watched.alive != alive {
		ttl, err := r.store.leaseTTL(ctx, alive.lease)
		if err != nil || ttl == 0 {
			return false, err
		}
		done = watched.alive.revision != 0
		*watched = watchedLife{alive: alive, since: time.Now(), ttl: ttl}
	}
	if done || time.Since(watched.since) > (cloneLeases-1)*watched.ttl {
		r.log.Info("What is stored under an earlier identity of this cluster is left alone: a clone of the cluster, with the same "+
			"UID of namespace kube-system, uses it", "cluster", r.cfg.Identity.ClusterID, "clusterSet", r.cfg.Identity.ClusterSetID)
		return true, nil
	}
	return false, nil
}

// endLease ends our lease, which nothing depends on any more.
func (r *Registry) endLease(ctx context.Context) error {
	r.mu.Lock()
	lease := r.lease
	r.mu.Unlock()
	if lease == 0 {
		return nil
	}
	if err := r.store.revoke(ctx, lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.log.Info("The lease is left to run out by itself", "lease", lease, "reason", err.Error())
	}
	return nil
}
