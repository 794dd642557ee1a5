package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// errDisplaced means that a process that began later writes for this cluster.
var errDisplaced = errors.New("another controller writes to etcd under this cluster's ID and with the same UID of namespace kube-system: " +
	"a replica that was elected since, or a clone of the cluster")

// writer holds the cluster's ID and writes the desired exports to etcd.
type writer struct {
	cfg      Config
	timings  timings
	store    *store
	mirror   *mirror
	notifier *engine.Notifier

	// wake is set when there may be something to write.
	wake engine.Signal
	// keepAlives are the goroutines that renew leases.
	keepAlives sync.WaitGroup

	mu     sync.Mutex
	outbox *outbox
	claim  claim
	// claimProblem is why this cluster does not hold its ID, writeProblem why writing does not work.
	claimProblem, writeProblem *engine.Problem
	// record is the member record as last written or about to be written, at recordRevision; heartbeatAt is the time of the
	// next heartbeat.
	record         memberRecord
	recordRevision int64
	heartbeatAt    time.Time
	// lease is the lease that is renewed, 0 while there is none.
	lease int64
	// batchLimit is how many operations a transaction may have.
	batchLimit int
}

func newWriter(cfg Config, timings timings, store *store, mirror *mirror, notifier *engine.Notifier) *writer {
	return &writer{
		cfg: cfg, timings: timings, store: store, mirror: mirror, notifier: notifier,
		wake:         engine.NewSignal(),
		outbox:       newOutbox(mirror.ownExport),
		claim:        newClaim(cfg.Identity.UID),
		claimProblem: engine.NewProblem(cfg.Logger, "Failed to claim the cluster ID, nothing is exported", "Cluster ID is free", nil),
		writeProblem: engine.NewProblem(cfg.Logger, "Failed to write to etcd, retrying", "Writing to etcd works again", nil),
		record:       newMemberRecord(cfg.Identity, cfg.Version),
		batchLimit:   maxOperations,
	}
}

// setDesired sets the desired export of key, nil to withdraw it.
func (w *writer) setDesired(key mcs.Key, exp *mcs.Export) error {
	var d desiredExport
	if exp != nil {
		var err error
		if d, err = newDesiredExport(*exp); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outbox.setDesired(key, d) {
		w.wake.Set()
	}
	return nil
}

// publishStatus returns the status of this cluster's export of key.
func (w *writer) publishStatus(key mcs.Key) registry.PublishStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	var duplicate *registry.DuplicateIDError
	if errors.As(w.claimProblem.Err(), &duplicate) {
		// The keys in etcd are the other cluster's.
		if w.outbox.desired[key].export == nil {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: duplicate}
	}
	return w.outbox.status(key, cmp.Or(w.claimProblem.Err(), w.writeProblem.Err(), w.mirror.readProblem()))
}

// report adds the keys that are desired, and returns the reason why writing does not work, or nil.
func (w *writer) report(keys engine.Keys) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox.addDesired(keys)
	return cmp.Or(w.claimProblem.Err(), w.writeProblem.Err())
}

// observe takes over what follows for writing from an update of the mirror, and adds the keys whose status may have changed.
func (w *writer) observe(u update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.rewound {
		w.claim.dropFence()
	}
	if u.listed {
		w.outbox.observeList(u.revision, u.rewound)
		w.outbox.addPending(u.changed)
	}
	for key, revision := range u.own {
		w.outbox.observeChange(key, revision)
	}
	if w.claim.observe(u.alive, u.revision) {
		w.cfg.Logger.Info("Key alive was removed or written by another process", "key", w.store.layout.alive(w.store.id))
	}
	w.countPending()
	w.wake.Set()
}

// notifyPending notifies of the keys that are not published as desired yet: the reason may have changed.
func (w *writer) notifyPending() {
	pending := engine.Keys{}
	w.mu.Lock()
	w.outbox.addPending(pending)
	w.mu.Unlock()
	w.notifier.Notify(pending)
}

// setProblem sets the error of one of the problems, or nil.
func (w *writer) setProblem(problem *engine.Problem, err error) {
	w.mu.Lock()
	changed := problem.Set(err)
	w.mu.Unlock()
	if changed {
		w.notifyPending()
	}
}

// countPending sets the metric of exports and withdrawals that may have to be written. The caller holds w.mu.
func (w *writer) countPending() {
	w.cfg.Metrics.SetPending(w.store.client.cfg.Name, "exports", len(w.outbox.queued))
}

// run holds the cluster's ID and writes the desired exports until ctx ends. It makes one request at a time: changes in the
// meantime go into the next request, so that bursts are batched without waiting for them.
func (w *writer) run(ctx context.Context) {
	defer w.keepAlives.Wait()
	heartbeat := time.NewTimer(w.cfg.HeartbeatInterval)
	defer heartbeat.Stop()
	for failures := 0; ctx.Err() == nil; {
		result, err := w.performNext(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil || result == wrote {
			w.setProblem(w.writeProblem, err)
		}
		switch {
		case err != nil:
			failures++
			engine.Sleep(ctx, w.timings.retry.Pause(failures))
			continue
		case result != idle:
			failures = 0
			continue
		}
		heartbeat.Reset(w.untilHeartbeat(time.Now()))
		select {
		case <-w.wake:
		case <-heartbeat.C:
		case <-ctx.Done():
		}
	}
}

// untilHeartbeat returns the time until the next heartbeat.
func (w *writer) untilHeartbeat(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claim.fence == 0 {
		return w.cfg.HeartbeatInterval
	}
	return w.heartbeatAt.Sub(now)
}

// task is the next request.
type task struct {
	// join writes alive and member, if alive still has revision seen.
	join bool
	seen int64
	// heartbeat writes member, batch exports; both demand the fence.
	heartbeat bool
	batch     []operation
	fence     int64
}

// result is what a request achieved.
type result int

const (
	// idle means that there is nothing to do at the moment.
	idle result = iota
	// progressed means that there may be more to do.
	progressed
	// wrote means in addition that etcd accepts writes: it accepts withdrawals even when its quota is used up.
	wrote
)

// performNext makes the next request, if there is something to do.
func (w *writer) performNext(ctx context.Context) (result, error) {
	w.mu.Lock()
	next, obstacle := w.nextTask(time.Now())
	w.countPending()
	w.mu.Unlock()
	w.setProblem(w.claimProblem, obstacle)
	switch {
	case next.join:
		return w.join(ctx, next.seen)
	case next.heartbeat:
		return w.writeHeartbeat(ctx, next.fence)
	case len(next.batch) > 0:
		return w.writeBatch(ctx, next.fence, next.batch)
	}
	return idle, nil
}

// nextTask returns what to do next, or why nothing may be written. The caller holds w.mu.
func (w *writer) nextTask(now time.Time) (next task, obstacle error) {
	own := w.mirror.ownKeys()
	switch {
	case !own.synced:
		return task{}, nil
	case w.claim.fence != 0:
		return w.nextFencedTask(now, own), nil
	}
	switch w.claim.evaluate(own.alive) {
	case heldByOther:
		return task{}, &registry.DuplicateIDError{ClusterID: w.cfg.Identity.ClusterID, OtherUID: own.alive.uid}
	case displaced:
		return task{}, errDisplaced
	}
	return task{join: true, seen: own.alive.revision}, nil
}

// nextFencedTask returns what to do next while this process holds the ID. The caller holds w.mu.
func (w *writer) nextFencedTask(now time.Time, own ownKeys) task {
	if own.revision >= w.recordRevision && own.member.UID != w.cfg.Identity.UID {
		w.heartbeatAt = now // the record was removed or changed
	}
	next := task{fence: w.claim.fence, heartbeat: !now.Before(w.heartbeatAt)}
	// Everything written before the fence is known only when the fence itself has been read.
	if next.heartbeat || own.revision < w.claim.fence {
		return next
	}
	if next.batch = w.outbox.nextBatch(w.batchLimit); len(next.batch) == 0 {
		w.batchLimit = maxOperations
	}
	return next
}

// join writes the keys alive and member.
func (w *writer) join(ctx context.Context, seen int64) (result, error) {
	lease, err := w.ensureLease(ctx)
	if err != nil {
		return idle, err
	}
	member, err := w.nextRecord()
	if err != nil {
		return idle, err
	}
	revision, err := w.store.claim(ctx, seen, lease, w.cfg.Identity.UID, member)
	switch {
	case errors.Is(err, errFenceLost):
		return idle, nil // the watch will show the change
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		w.loseLease(lease)
		return progressed, nil
	case err != nil:
		return idle, fmt.Errorf("joining the clusterset: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claim.acquire(revision)
	w.recordRevision = revision
	return wrote, nil
}

// nextRecord returns the encoded member record with a new heartbeat. A cluster that was a member before keeps its join time.
func (w *writer) nextRecord() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if shown := w.mirror.ownKeys().member; shown.UID == w.cfg.Identity.UID && w.record.Joined.IsZero() {
		w.record.Joined, w.record.Heartbeat = shown.Joined, shown.Heartbeat
	}
	now := time.Now()
	w.record = w.record.withHeartbeat(now)
	w.heartbeatAt = now.Add(w.cfg.HeartbeatInterval)
	return w.record.encode()
}

// writeHeartbeat writes the member record. It does not repeat a failed write at once, so that exports are still written and
// withdrawn where that works.
func (w *writer) writeHeartbeat(ctx context.Context, fence int64) (result, error) {
	member, err := w.nextRecord()
	if err != nil {
		return idle, err
	}
	revision, err := w.store.heartbeat(ctx, fence, member)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.recordRevision = revision
		return wrote, nil
	}
	w.heartbeatAt = time.Now().Add(w.cfg.HeartbeatInterval / 4)
	if err = w.handleFailedWrite(err); err != nil {
		return idle, fmt.Errorf("writing a heartbeat: %w", err)
	}
	return progressed, nil
}

// handleFailedWrite returns the error to report for a failed write, or nil. If it is not known whether etcd carried out the
// write, alive is written anew before anything else: after that the write has been carried out or never will be, and the watch
// shows which. The caller holds w.mu.
func (w *writer) handleFailedWrite(err error) error {
	if !isRefusal(err) {
		w.claim.dropFence()
	}
	if errors.Is(err, errFenceLost) {
		return nil
	}
	return err
}

// ensureLease returns the lease of this process, a new one if there is none.
func (w *writer) ensureLease(ctx context.Context) (int64, error) {
	w.mu.Lock()
	lease := w.lease
	w.mu.Unlock()
	if lease != 0 {
		return lease, nil
	}
	lease, err := w.store.grant(ctx, w.timings.lease)
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lease = lease
	w.claim.leases[lease] = true
	w.keepAlives.Go(func() { w.renewLease(ctx, lease) })
	return lease, nil
}

// renewLease renews the lease until ctx ends or the lease has expired.
func (w *writer) renewLease(ctx context.Context, lease int64) {
	for ctx.Err() == nil {
		_ = w.store.keepAlive(ctx, lease) // it always ends with an error, which does not show whether the lease still exists
		if ctx.Err() != nil {
			return
		}
		if ttl, err := w.store.leaseTTL(ctx, lease); err == nil && ttl == 0 {
			w.cfg.Logger.Info("Lease expired while etcd was unreachable, joining again", "lease", lease)
			w.loseLease(lease)
			return
		}
		engine.Sleep(ctx, w.timings.retry.Initial)
	}
}

// loseLease has a new lease requested if lease is the current one.
func (w *writer) loseLease(lease int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lease == lease {
		w.lease = 0
		w.claim.dropFence()
	}
	w.wake.Set()
}

// writeBatch writes and withdraws exports.
func (w *writer) writeBatch(ctx context.Context, fence int64, batch []operation) (result, error) {
	revision, effective, err := w.store.write(ctx, fence, batch)
	achieved, changed := progressed, engine.Keys{}
	w.mu.Lock()
	switch {
	case err == nil:
		w.outbox.recordAccepted(batch, effective, revision, w.mirror.ownKeys().revision)
		if !batch[0].withdraw {
			achieved = wrote
		}
	case errors.Is(err, errTooLarge) && len(batch) == 1:
		w.outbox.recordRefused(batch[0].key, err)
		changed.Add(batch[0].key)
		err = nil
	case errors.Is(err, errTooLarge):
		w.batchLimit = 1
		w.outbox.requeue(batch)
		err = nil
	default:
		w.outbox.requeue(batch)
		err = w.handleFailedWrite(err)
	}
	w.mu.Unlock()
	w.notifier.Notify(changed)
	if err != nil {
		return idle, fmt.Errorf("writing %d exports: %w", len(batch), err)
	}
	return achieved, nil
}
