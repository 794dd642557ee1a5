package cloudmap

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
)

// writer writes the own pages and the own record. The record has a loop of its own, and each page a
// goroutine while it is written: a slow or failing request delays only its page, and no heartbeat.
//
// Readers find what is announced, or wait for it: a page is written first, then the record that
// announces it, and then the parts that the page no longer needs are removed.
type writer struct{ *components }

// partsAtOnce is the number of requests at once for one page, so that a page of 256 parts takes 3 s
// at 50 ms a request. The bound is not of all pages, because requests without an answer would hold
// up the others; the rate limit bounds these, to a burst of 100.
const partsAtOnce = 4

// run writes what is due until ctx ends. A page that is being written when the controller stops is
// completed and announced, because half of its parts are no page.
func (w *writer) run(ctx context.Context) {
	graceful, cancel := withGracePeriod(ctx, shutdownGrace)
	defer cancel()
	recordCtx, stopRecord := context.WithCancel(graceful)
	defer stopRecord()
	var record sync.WaitGroup
	record.Go(func() { w.runRecord(recordCtx, graceful) })
	w.runPages(ctx, graceful)
	stopRecord()
	record.Wait()
	_ = w.writeRecord(graceful) // the next process writes it if this one cannot
}

// loop calls step whenever something is due, and again after a pause if it fails.
type loop struct {
	next func(now time.Time) (at time.Time, ok bool)
	wake <-chan struct{}
	step func() error
}

// run runs the loop until ctx ends.
func (l loop) run(ctx context.Context, pause func(failures int) time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	failures, retryAt := 0, time.Time{}
	for ctx.Err() == nil {
		at, ok := l.next(time.Now())
		if at.Before(retryAt) {
			at = retryAt
		}
		wait := time.Until(at)
		if ok && wait <= 0 {
			if err := l.step(); err != nil {
				failures++
				retryAt = time.Now().Add(pause(failures))
			} else {
				failures, retryAt = 0, time.Time{}
			}
			continue
		}
		if ok {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-l.wake:
		}
	}
}

// runRecord writes the own record when it is due, until ctx ends. A write has until graceful ends:
// AWS Cloud Map may carry out a request that is canceled, after the next ones.
func (w *writer) runRecord(ctx, graceful context.Context) {
	loop{w.state.Writes.NextRecord, w.state.WriteSignal.Record, func() error {
		err := w.writeRecord(graceful)
		if ctx.Err() == nil {
			w.notifier.NotifyKeys(w.state.Writes.SetError(err))
		}
		return err
	}}.run(ctx, w.state.Writes.Backoff().Pause)
}

// writeRecord writes the own record if that is due, to the service that is known: a heartbeat does
// not wait until a place that is in doubt is verified or found again.
func (w *writer) writeRecord(ctx context.Context) error {
	place, ok := w.control.lastKnown()
	if !ok {
		var err error
		if place, err = w.place(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	ours, copyDue, due := w.state.Writes.RecordToWrite(now)
	if !due {
		return nil
	}
	// this process may be killed as soon as the record is written
	w.saveIDs(ctx, place, ours.Heartbeat)
	instance := ours.Instance(w.cfg.Signer)
	_, err := w.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.members.ID, instance)
	w.state.Writes.ObserveRecordWrite(now, err)
	if err != nil {
		w.control.doubtAfter(err)
		w.control.moveRecord(place, err)
		return fmt.Errorf("writing this cluster's record in service %s: %w", place.members.Name, err)
	}
	w.peers.recordWritten(ours, instance)
	w.traces.recordWritten(now)
	if copyDue {
		// after the record: a heartbeat must not wait for it
		return w.writeCopy(ctx, place, now, instance)
	}
	return nil
}

// saveIDs stores the resource IDs with a heartbeat, if that is due.
func (w *writer) saveIDs(ctx context.Context, place controlPlace, heartbeat int64) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	w.control.saveIDs(ctx, place, heartbeat)
}

// writeCopy writes the copy of the own record into the own catalog.
func (w *writer) writeCopy(ctx context.Context, place controlPlace, now time.Time, instance api.Instance) error {
	_, err := w.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.catalog.ID, format.CopyOf(instance))
	w.state.Writes.ObserveCopyWrite(now, err)
	if err != nil {
		w.control.doubtAfter(err)
		return fmt.Errorf("writing the copy of this cluster's record in its catalog: %w", err)
	}
	return nil
}

// saveTimeout bounds the time that storing the resource IDs may delay a heartbeat.
const saveTimeout = 5 * time.Second

// runPages begins to write the pages that are due until ctx ends, and returns when all writes have
// ended, which have until graceful ends.
func (w *writer) runPages(ctx, graceful context.Context) {
	var jobs sync.WaitGroup
	defer jobs.Wait()
	loop{w.state.Writes.NextPages, w.state.WriteSignal.Pages, func() error {
		place, err := w.place(ctx)
		if ctx.Err() == nil {
			w.state.Writes.SetPagesError(err)
		}
		if err != nil {
			return err
		}
		began := time.Now()
		writes, changed := w.state.Writes.TakeBatch()
		w.traces.encoded(writes, began)
		w.notifier.NotifyKeys(changed)
		for _, write := range writes {
			jobs.Go(func() { w.writePage(graceful, place, write) })
		}
		for _, excess := range w.state.Writes.TakeExcess() {
			jobs.Go(func() { w.removeParts(graceful, place, excess) })
		}
		return nil
	}}.run(ctx, w.state.Writes.Backoff().Pause)
}

// writePage writes each part of a page.
func (w *writer) writePage(ctx context.Context, place controlPlace, write state.PageWrite) {
	if reason := w.explain(ctx, write.Unconfirmed); reason != nil {
		w.notifier.NotifyKeys(w.state.Writes.ObserveFailedOperation(write, reason))
	}
	began := time.Now()
	// Parts that the page did not have go first: if there is no room for them, the page stays whole
	// as it was.
	operations, err := w.writeParts(ctx, place, write.AddedParts())
	if err == nil {
		var overwritten []string
		overwritten, err = w.writeParts(ctx, place, write.OverwrittenParts())
		operations = append(operations, overwritten...)
	}
	if err != nil && ctx.Err() != nil {
		return // the process ends
	}
	w.control.doubtAfter(err)
	w.traces.pageWritten(write, began, err)
	w.notifier.NotifyKeys(w.state.Writes.ObserveWrite(write, operations, err))
}

// writeParts writes parts of a page and returns the IDs of the operations.
func (w *writer) writeParts(ctx context.Context, place controlPlace, parts []api.Instance) (operations []string, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	var mu sync.Mutex
	// The last part first: as long as part 0 is of the earlier generation, that one may still be
	// whole.
	for _, part := range slices.Backward(parts) {
		group.Go(func() error {
			operation, err := w.client.RegisterInstance(groupCtx, place.catalog.ID, part)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			operations = append(operations, operation)
			return nil
		})
	}
	err = group.Wait()
	return operations, err
}

// explain returns the failure of the first operation that failed, nil if none is known to have
// failed.
func (w *writer) explain(ctx context.Context, operations []string) error {
	for _, id := range operations {
		if _, _, err := w.client.GetOperation(ctx, id); api.IsFailedOperation(err) {
			return err
		}
	}
	return nil
}

// removeParts removes parts that a page does not have any more.
func (w *writer) removeParts(ctx context.Context, place controlPlace, excess state.ExcessParts) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	for _, id := range excess.IDs() {
		group.Go(func() error { return w.client.DeregisterInstance(groupCtx, place.catalog.ID, id) })
	}
	err := group.Wait()
	if err != nil && ctx.Err() != nil {
		return // the process ends
	}
	w.control.doubtAfter(err)
	w.state.Writes.ObserveRemoval(excess, err)
}

// shutdownGrace is the time for which a write may go on when the controller stops: far longer than
// requests take, and shorter than the ten seconds that the controller allows for its shutdown.
const shutdownGrace = 3 * time.Second

// withGracePeriod returns a context that ends some time after ctx has ended.
func withGracePeriod(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}
