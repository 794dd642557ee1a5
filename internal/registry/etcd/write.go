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
	beat := time.NewTimer(r.cfg.HeartbeatInterval)
	defer beat.Stop()
	for failures := 0; ctx.Err() == nil; {
		did, err := r.step(ctx, notify)
		if ctx.Err() != nil {
			return
		}
		if err != nil || did == wrote {
			r.problem(&r.writeProblem, err, notify, "Cannot write to etcd; trying again", "Writing to etcd again")
		}
		switch {
		case err != nil:
			failures++
			pause(ctx, r.cfg.times.backoff(failures))
			continue
		case did != nothing:
			failures = 0
			continue
		}
		beat.Reset(r.untilBeat(time.Now()))
		select {
		case <-r.writable:
		case <-beat.C:
		case <-ctx.Done():
		}
	}
}

// untilBeat is how long it is until the next heartbeat.
func (r *Registry) untilBeat(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claim.fence == 0 {
		return r.cfg.HeartbeatInterval
	}
	return r.beatAt.Sub(now)
}

// task is the next request.
type task struct {
	// join writes alive and member, if alive still has the revision seen.
	join bool
	seen int64
	// beat writes member, batch exports; both behind the fence.
	beat  bool
	batch []operation
	fence int64
}

// progress is what a step has done.
type progress int

const (
	// nothing says that there is nothing to do for now.
	nothing progress = iota
	// something says to go on, and wrote that etcd accepts what we write: withdrawals it accepts even when its quota is used up.
	something
	wrote
)

// step makes the next request, if there is anything to do.
func (r *Registry) step(ctx context.Context, notify func(mcs.Key)) (progress, error) {
	r.mu.Lock()
	next, obstacle := r.next(time.Now())
	r.countPending()
	r.mu.Unlock()
	r.problem(&r.claimProblem, obstacle, notify, "Nothing is exported", "This cluster's ID is free")
	switch {
	case next.join:
		return r.join(ctx, next.seen)
	case next.beat:
		return r.beat(ctx, next.fence)
	case len(next.batch) > 0:
		return r.write(ctx, next.fence, next.batch, notify)
	}
	return nothing, nil
}

// next is what to do next, and what forbids to do anything. The caller holds r.mu.
func (r *Registry) next(now time.Time) (next task, obstacle error) {
	id := r.cfg.Identity.ClusterID
	alive := r.state.aliveOf(id)
	switch {
	case !r.state.synced:
		return task{}, nil
	case r.claim.fence != 0:
		return r.nextBehindFence(now), nil
	}
	switch r.claim.judge(alive) {
	case taken:
		return task{}, &registry.DuplicateIDError{ClusterID: id, OtherUID: alive.uid}
	case displaced:
		return task{}, errDisplaced
	}
	return task{join: true, seen: alive.revision}, nil
}

// nextBehindFence is what to do next when the ID is ours. The caller holds r.mu.
func (r *Registry) nextBehindFence(now time.Time) task {
	if r.state.revision >= r.recorded && r.state.memberOf(r.cfg.Identity.ClusterID).UID != r.cfg.Identity.UID {
		r.beatAt = now // somebody removed or changed the record
	}
	next := task{fence: r.claim.fence, beat: !now.Before(r.beatAt)}
	// Only when the fence itself has been read is everything known that was written before it.
	if next.beat || r.state.revision < r.claim.fence {
		return next
	}
	if next.batch = r.outbox.next(r.most); len(next.batch) == 0 {
		r.most = maxOperations
	}
	return next
}

// join writes the keys alive and member.
func (r *Registry) join(ctx context.Context, seen int64) (progress, error) {
	lease, err := r.leased(ctx)
	if err != nil {
		return nothing, err
	}
	member, err := r.nextRecord()
	if err != nil {
		return nothing, err
	}
	revision, err := r.store.claim(ctx, seen, lease, r.cfg.Identity.UID, member)
	switch {
	case errors.Is(err, errFallen):
		return nothing, nil // the watch will show what came between
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.leaseLost(lease)
		return something, nil
	case err != nil:
		return nothing, fmt.Errorf("joining the clusterset: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claim.won(revision)
	r.recorded = revision
	return wrote, nil
}

// nextRecord is our record with a new heartbeat, encoded. Who was a member before stays one since then.
func (r *Registry) nextRecord() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if shown := r.state.memberOf(r.cfg.Identity.ClusterID); shown.UID == r.cfg.Identity.UID && r.record.Joined.IsZero() {
		r.record.Joined, r.record.Beat = shown.Joined, shown.Beat
	}
	now := time.Now()
	r.record = r.record.beating(now)
	r.beatAt = now.Add(r.cfg.HeartbeatInterval)
	return r.record.encode()
}

// beat writes the member record. One that fails is not tried again at once, so that it does not keep exports from being
// written, or withdrawn, that can be.
func (r *Registry) beat(ctx context.Context, fence int64) (progress, error) {
	member, err := r.nextRecord()
	if err != nil {
		return nothing, err
	}
	revision, err := r.store.beat(ctx, fence, member)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.recorded = revision
		return wrote, nil
	}
	r.beatAt = time.Now().Add(r.cfg.HeartbeatInterval / 4)
	if err = r.outcome(err); err != nil {
		return nothing, fmt.Errorf("writing a heartbeat: %w", err)
	}
	return something, nil
}

// outcome draws the conclusion from a write that failed, and is what is wrong, if anything. When it is not known whether the
// write was carried out, alive is written anew before anything else: then it has been carried out or never will be, and the
// watch shows which. The caller holds r.mu.
func (r *Registry) outcome(err error) error {
	if !isRefusal(err) {
		r.claim.drop()
	}
	if errors.Is(err, errFallen) {
		return nil
	}
	return err
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

// write carries out a batch.
func (r *Registry) write(ctx context.Context, fence int64, batch []operation, notify func(mcs.Key)) (progress, error) {
	revision, effect, err := r.store.write(ctx, fence, batch)
	did, changed := something, keySet{}
	r.mu.Lock()
	switch {
	case err == nil:
		r.outbox.accepted(batch, effect, revision, r.state.revision)
		if !batch[0].withdraw {
			did = wrote
		}
	case errors.Is(err, errTooLarge) && len(batch) == 1:
		r.outbox.refuse(batch[0].key, err)
		changed[batch[0].key] = struct{}{}
		err = nil
	case errors.Is(err, errTooLarge):
		r.most = 1
		r.outbox.failed(batch)
		err = nil
	default:
		r.outbox.failed(batch)
		err = r.outcome(err)
	}
	r.mu.Unlock()
	r.tell(notify, changed)
	if err != nil {
		return nothing, fmt.Errorf("writing %d exports: %w", len(batch), err)
	}
	return did, nil
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
	switch r.whose(alive, data) {
	case somebodys:
		return true, nil
	case perhapsAClones:
		return r.watchLife(ctx, watched, alive)
	}
	err = r.store.remove(ctx, alive.revision)
	if errors.Is(err, errFallen) {
		return false, nil
	}
	return err == nil, err
}

// owner says whose the keys below our prefix are.
type owner int

const (
	ours owner = iota
	somebodys
	perhapsAClones
)

// whose judges by the keys alive and member.
func (r *Registry) whose(alive aliveState, data []byte) owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := r.cfg.Identity.UID
	switch {
	case alive.lives() && r.claim.leases[alive.lease]:
		return ours
	case alive.lives() && (alive.uid != uid || r.claim.held):
		return somebodys // another cluster's, or of who displaced us
	case alive.lives():
		return perhapsAClones
	case r.claim.held:
		return ours
	}
	// Nobody lives here: who did last says the record. Without one that can be read it is not known to be us.
	if member, err := decodeMember(data, r.cfg.Identity.ClusterSetID, r.cfg.Identity.ClusterID); err != nil || member.UID != uid {
		return somebodys
	}
	return ours
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
