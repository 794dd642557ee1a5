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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
)

// writer holds the cluster's ID and writes the desired exports to etcd.
type writer struct {
	cfg      Config
	timings  timings
	store    *store
	mirror   *mirror
	notifier *engine.Notifier

	session *session
	outbox  *outbox
	// claimProblem is the reason why this cluster does not hold its ID, writeProblem why writing
	// does not work.
	claimProblem, writeProblem *engine.Problem
	// wake is set when there may be something to write.
	wake engine.Signal
	// keepAlives are the goroutines that renew leases.
	keepAlives sync.WaitGroup

	// The rest is used by run alone.
	// batchLimit is how many operations a transaction may have.
	batchLimit int
}

func newWriter(cfg Config, timings timings, store *store, mirror *mirror, notifier *engine.Notifier) *writer {
	return &writer{
		cfg: cfg, timings: timings, store: store, mirror: mirror, notifier: notifier,
		session:      newSession(cfg),
		outbox:       newOutbox(store.id, mirror.ownExport),
		claimProblem: engine.NewProblem(cfg.Logger, "Failed to claim the cluster ID, nothing is exported", "Cluster ID is free", nil),
		writeProblem: engine.NewProblem(cfg.Logger, "Failed to write to etcd, retrying", "Writing to etcd works again", nil),
		wake:         engine.NewSignal(),
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
	if w.outbox.setDesired(key, d) {
		w.wake.Set()
	}
	return nil
}

// setProperties sets the properties of this cluster.
func (w *writer) setProperties(properties mcs.Properties) {
	w.session.setProperties(time.Now(), properties)
	w.wake.Set()
}

// publishStatus returns the status of this cluster's export of key.
func (w *writer) publishStatus(key mcs.Key) registry.PublishStatus {
	claimProblem := w.claimProblem.Err()
	var duplicate *registry.DuplicateIDError
	if errors.As(claimProblem, &duplicate) {
		// The keys in etcd are the other cluster's.
		if !w.outbox.isDesired(key) {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: duplicate}
	}
	return w.outbox.status(key, cmp.Or(claimProblem, w.writeProblem.Err(), w.mirror.problem.Err()))
}

// report adds the keys that are desired, and returns the reason why writing does not work, or nil.
func (w *writer) report(keys engine.Keys) error {
	w.outbox.addDesired(keys)
	return cmp.Or(w.claimProblem.Err(), w.writeProblem.Err())
}

// observe updates session and outbox after an update of the mirror, and adds the keys whose status
// may have changed.
func (w *writer) observe(u update) {
	if u.rewound {
		w.session.dropFence()
	}
	if u.hasOwn {
		w.outbox.observeHead(u.rewound)
		w.outbox.addPending(u.changed)
	}
	w.outbox.observe(time.Now(), u.own, u.revision)
	if w.session.observe(u.alive, u.revision) {
		w.cfg.Logger.Info("Key alive was removed or written by another process", "key", w.store.layout.alive(w.store.id))
	}
	if u.hasNewProcess {
		w.session.answer(time.Now(), u.clusters)
	}
	w.countPending()
	w.wake.Set()
}

// notifyPending notifies of the keys that are not published as desired yet: the reason may have
// changed.
func (w *writer) notifyPending() {
	pending := engine.Keys{}
	w.outbox.addPending(pending)
	w.notifier.Notify(pending)
}

// setProblem sets the error of one of the problems, or nil.
func (w *writer) setProblem(problem *engine.Problem, err error) {
	if problem.Set(err) {
		w.notifyPending()
	}
}

// countPending sets the metric of exports and withdrawals that may have to be written.
func (w *writer) countPending() {
	w.cfg.Metrics.SetPending(w.store.client.cfg.Name, "exports", w.outbox.countWaiting())
}

// run holds the cluster's ID and writes the desired exports until ctx ends. It makes one request at
// a time: changes in the meantime go into the next request, so that bursts are batched without
// waiting for them. At the end it gives the ID up.
func (w *writer) run(ctx context.Context) {
	w.saveHeartbeat(ctx)
	w.write(ctx)
	w.keepAlives.Wait()
	w.release(ctx)
}

// releaseTimeout bounds the revocation of the lease when the controller stops. It is shorter than
// the ten seconds that the controller allows for its shutdown.
const releaseTimeout = 3 * time.Second

// release revokes the lease of a process that ends, so that the next one has the ID at once, also
// if its clock is behind. The member record stays: the other clusters notice nothing. A cluster
// that leaves still needs the lease, to show that its keys are those of this process.
func (w *writer) release(ctx context.Context) {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.timings.release)
	defer cancel()
	w.revokeLease(ctx)
}

// write writes what is due until ctx ends.
func (w *writer) write(ctx context.Context) {
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
		heartbeat.Reset(w.untilNext(time.Now()))
		select {
		case <-w.wake:
		case <-heartbeat.C:
		case <-ctx.Done():
		}
	}
}

// untilNext returns the time until there is something to write if nothing changes: a heartbeat, or
// an export that waits for the pace of its namespace.
func (w *writer) untilNext(now time.Time) time.Duration {
	pause := w.session.untilHeartbeat(now)
	if due, waits := w.outbox.untilDue(now); waits {
		return min(pause, due)
	}
	return pause
}

// result is the result of a request.
type result int

const (
	// idle means that there is nothing to do at the moment.
	idle result = iota
	// progressed means that there may be more to do.
	progressed
	// wrote means in addition that etcd accepts writes: it accepts withdrawals even when its quota
	// is used up.
	wrote
)

// performNext makes the next request, if there is something to do.
func (w *writer) performNext(ctx context.Context) (result, error) {
	next, obstacle := w.nextTask(time.Now())
	w.countPending()
	w.setProblem(w.claimProblem, obstacle)
	switch {
	case next.join:
		return w.join(ctx, next.seen)
	case next.heartbeat:
		return w.writeHeartbeat(ctx, next.fence)
	case len(next.batch) > 0:
		return w.writeBatch(ctx, &next)
	}
	return idle, nil
}

// nextTask returns the next task, or the reason why nothing may be written.
func (w *writer) nextTask(now time.Time) (task, error) {
	isAdopted := w.adopt()
	w.settle(now)
	next, obstacle := w.session.nextTask(now, w.mirror.ownKeys())
	if !next.mayWrite || !isAdopted {
		return next, obstacle
	}
	next.generation = w.session.nextGeneration(w.mirror.ownKeys())
	if next.batch = w.outbox.nextBatch(now, w.batchLimit, next.generation); len(next.batch) > 0 {
		return next, nil
	}
	w.batchLimit = maxOperations
	w.settle(now) // a withdrawal may be complete without a write
	return w.session.nextTask(now, w.mirror.ownKeys())
}

// settle begins to state all exports of the cluster when it is time, and has the record written if
// it does not state them as they are.
func (w *writer) settle(now time.Time) {
	if w.session.trySettle(now, w.outbox.isDecided) && w.adopt() {
		w.session.requireHeartbeat(now, w.outbox.namedSet(nil))
	}
}

// adopt adopts the exports in etcd if that is due, and reports whether this process knows what was
// written before it claimed the ID. Before that, a request of unknown outcome may have been carried
// out: a record must not state the exports without it.
func (w *writer) adopt() bool {
	return w.outbox.adopt(w.session.currentFence(), w.mirror.revision(), w.mirror.ownShownKeys, w.session.isSettled())
}

// nextRecord returns the signed member record for a request that writes a batch as of a generation.
func (w *writer) nextRecord(ctx context.Context, now time.Time, batch []operation, generation int64) ([]byte, error) {
	var set *exportSet
	if w.session.isSettled() && w.adopt() {
		set = w.outbox.namedSet(batch)
	}
	member, err := w.session.nextRecord(now, w.mirror.ownKeys(), set, generation)
	w.saveHeartbeat(ctx)
	return member, err
}

// saveTimeout bounds the time that saving the heartbeat may delay a record.
const saveTimeout = 5 * time.Second

// saveHeartbeat saves the heartbeat of the record that is about to be written, if that is due: this
// process may be killed as soon as etcd has the record. A failure delays nothing but this.
func (w *writer) saveHeartbeat(ctx context.Context) {
	next, due := w.session.unsaved()
	if !due || w.cfg.SaveHeartbeat == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := w.cfg.SaveHeartbeat(ctx, next); err != nil {
		w.cfg.Logger.Info("Failed to save the heartbeat; retrying at the next one", "error", err.Error())
		return
	}
	w.session.recordSaved(next)
}

// join writes the keys alive and member.
func (w *writer) join(ctx context.Context, seen int64) (result, error) {
	lease, err := w.ensureLease(ctx)
	if err != nil {
		return idle, err
	}
	now := time.Now()
	member, err := w.nextRecord(ctx, now, nil, w.session.nextGeneration(w.mirror.ownKeys()))
	if err != nil {
		return idle, err
	}
	revision, err := w.store.claim(ctx, seen, lease, w.session.aliveValue(), member)
	switch {
	case errors.Is(err, errFenceLost):
		return idle, nil // the watch will show the change
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		w.loseLease(lease)
		return progressed, nil
	case err != nil:
		return idle, fmt.Errorf("joining the clusterset: %w", err)
	}
	w.session.acquire(revision)
	return wrote, nil
}

// writeHeartbeat writes the member record. It does not repeat a failed write at once, so that
// exports are still written and withdrawn where that works.
func (w *writer) writeHeartbeat(ctx context.Context, fence int64) (result, error) {
	now := time.Now()
	member, err := w.nextRecord(ctx, now, nil, w.session.nextGeneration(w.mirror.ownKeys()))
	if err != nil {
		return idle, err
	}
	revision, err := w.store.heartbeat(ctx, fence, member)
	if err == nil {
		w.session.recordWritten(time.Now(), revision)
		return wrote, nil
	}
	w.session.postponeHeartbeat(time.Now())
	if err = w.handleFailedWrite(err); err != nil {
		return idle, fmt.Errorf("writing a heartbeat: %w", err)
	}
	return progressed, nil
}

// handleFailedWrite returns the error to report for a failed write, or nil. If it is not known
// whether etcd carried out the write, alive is written anew before anything else: after that the
// write has been carried out or never will be, and the watch shows which.
func (w *writer) handleFailedWrite(err error) error {
	if !isRejected(err) {
		w.session.dropFence()
	}
	if errors.Is(err, errFenceLost) {
		return nil
	}
	return err
}

// ensureLease returns the lease of this process, a new one if there is none.
func (w *writer) ensureLease(ctx context.Context) (int64, error) {
	if lease := w.session.currentLease(); lease != 0 {
		return lease, nil
	}
	lease, err := w.store.grant(ctx, w.timings.lease)
	if err != nil {
		return 0, err
	}
	w.session.setLease(lease)
	w.keepAlives.Go(func() { w.renewLease(ctx, lease) })
	return lease, nil
}

// renewLease renews the lease until ctx ends or the lease has expired.
func (w *writer) renewLease(ctx context.Context, lease int64) {
	for ctx.Err() == nil {
		// it always ends with an error, which does not show whether the lease still exists
		_ = w.store.keepAlive(ctx, lease)
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
	w.session.loseLease(lease)
	w.wake.Set()
}

// writeBatch writes and withdraws exports, and the record that states them.
func (w *writer) writeBatch(ctx context.Context, t *task) (result, error) {
	now := time.Now()
	member, err := w.nextRecord(ctx, now, t.batch, t.generation)
	if err != nil {
		w.outbox.end(now, t.batch, desired.Untried, nil)
		return idle, err
	}
	for i, op := range t.batch {
		if op.export != nil {
			t.batch[i].value = signExport(w.cfg.Signer, selfOf(w.cfg), op.key, t.generation, op.data)
		}
	}
	revision, err := w.store.write(ctx, t.fence, t.batch, member)
	achieved, changed := progressed, engine.Keys{}
	switch {
	case err == nil:
		w.session.recordWritten(time.Now(), revision)
		w.outbox.accept(now, t.batch, revision, w.mirror.revision)
		w.traceBatch(t.batch, now)
		if t.batch[0].export != nil {
			achieved = wrote
		}
	case errors.Is(err, errTooLarge) && len(t.batch) == 1:
		w.outbox.end(now, t.batch, desired.Unfit, err)
		changed.Add(t.batch[0].key)
		err = nil
	case errors.Is(err, errTooLarge):
		w.batchLimit = 1
		w.outbox.end(now, t.batch, desired.Untried, nil)
		err = nil
	default:
		w.outbox.end(now, t.batch, desired.Untried, nil)
		err = w.handleFailedWrite(err)
	}
	w.notifier.Notify(changed)
	if err != nil {
		return idle, fmt.Errorf("writing %d exports: %w", len(t.batch), err)
	}
	return achieved, nil
}

// traceBatch records that a batch was written since began.
func (w *writer) traceBatch(batch []operation, began time.Time) {
	if w.cfg.Trace == nil {
		return
	}
	now := time.Now()
	for _, op := range batch {
		if op.export != nil {
			w.cfg.Trace.Record(tracing.WriteExport, *op.export, began, now)
		}
	}
}
