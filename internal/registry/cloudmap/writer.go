package cloudmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
)

// writer writes the own pages and the own record. It belongs to one goroutine, and the heartbeats during long writes to another.
type writer struct {
	*components
	// failures is the number of failed writes in a row, retryAt the time of the next attempt.
	failures int
	retryAt  time.Time
}

// run writes what is due until ctx ends.
func (w *writer) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		at, ok := w.state.Writes.NextWrite(time.Now())
		if at.Before(w.retryAt) {
			at = w.retryAt
		}
		pause := time.Until(at)
		if ok && pause <= 0 {
			w.observeResult(ctx, w.writeDue(ctx))
			continue
		}
		if ok {
			timer.Reset(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.state.WriteSignal:
		}
	}
}

// observeResult records the result of a write.
func (w *writer) observeResult(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.failures, w.retryAt = 0, time.Time{}
	} else {
		w.control.forgetIfGone(err)
		w.failures++
		w.retryAt = time.Now().Add(w.state.Writes.Backoff().Pause(w.failures))
	}
	w.notifier.Notify(w.state.Writes.SetError(err))
}

// writeDue writes the pages that changed, then the record that announces them, then removes what the pages no longer
// need: at every moment a reader finds what is announced, or waits for it.
func (w *writer) writeDue(ctx context.Context) error {
	place, err := w.place(ctx)
	if err != nil {
		return err
	}
	// What is begun is finished when the controller stops: half of a page's parts are no page.
	ctx, cancel := withGracePeriod(ctx, shutdownGrace)
	defer cancel()
	stop := w.heartbeatDuringWrites(ctx, place)
	pagesErr := w.writePages(ctx, place)
	stop()
	if err := w.writeRecord(ctx, place, true); err != nil {
		return cmp.Or(pagesErr, err)
	}
	w.control.saveIDs(ctx, place)
	return cmp.Or(pagesErr, w.trim(ctx, place))
}

// writePages writes each part of each page that changed.
func (w *writer) writePages(ctx context.Context, place controlPlace) error {
	writes, suspects, changed := w.state.Writes.TakeBatch()
	w.notifier.Notify(changed)
	w.notifier.Notify(w.state.Writes.ObserveFailedOperations(w.explain(ctx, suspects)))
	results := make([]state.PageResult, len(writes))
	// Parts that a page did not have go first: where there is no room for them, the page stays whole as it was.
	err := w.writeParts(ctx, place, writes, results, state.PageWrite.AddedParts)
	if err == nil {
		err = w.writeParts(ctx, place, writes, results, state.PageWrite.OverwrittenParts)
	}
	if err != nil {
		err = fmt.Errorf("writing this cluster's pages: %w", err)
	}
	w.notifier.Notify(w.state.Writes.ObserveWrites(writes, results, err))
	return err
}

// writeParts writes some of each page's parts. What AWS refuses of one page, for a quota, does not hold up the others; any
// other failure ends the rest, and is returned.
func (w *writer) writeParts(ctx context.Context, place controlPlace, writes []state.PageWrite, results []state.PageResult, parts func(state.PageWrite) []api.Instance) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, write := range writes {
		if results[i].IsRefused() {
			continue
		}
		// The last part first: as long as part 0 is of the earlier generation, that one may still be whole.
		for _, instance := range slices.Backward(parts(write)) {
			group.Go(func() error {
				operation, err := w.client.RegisterInstance(groupCtx, place.catalog.ID, instance)
				if err != nil && !api.IsInvalid(err) {
					return err
				}
				results[i].Add(operation, err)
				return nil
			})
		}
	}
	return group.Wait()
}

// explain asks how the operations of pages ended. Only a failed one is an answer.
func (w *writer) explain(ctx context.Context, suspects map[int][]string) map[int]error {
	reasons := map[int]error{}
	for page, operations := range suspects {
		for _, id := range operations {
			_, _, err := w.client.GetOperation(ctx, id)
			var failed *api.OperationError
			if errors.As(err, &failed) {
				reasons[page] = fmt.Errorf("writing this cluster's pages: %w", failed)
				break
			}
		}
	}
	return reasons
}

// heartbeatDuringWrites writes heartbeats while pages are written, which takes minutes when AWS throttles. The returned function stops it.
func (w *writer) heartbeatDuringWrites(ctx context.Context, place controlPlace) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var heartbeats sync.WaitGroup
	heartbeats.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(w.state.Writes.UntilHeartbeat(), w.cfg.times.Retry)):
			}
			// A persistent error is reported when the pages are done.
			_ = w.writeRecord(ctx, place, false)
		}
	})
	return func() { cancel(); heartbeats.Wait() }
}

// writeRecord writes the own record if that is due (recordToWrite).
func (w *writer) writeRecord(ctx context.Context, place controlPlace, pagesDone bool) error {
	now := time.Now()
	ours, due := w.state.Writes.RecordToWrite(now, pagesDone)
	if !due {
		return nil
	}
	_, err := w.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.members.ID, ours.Instance())
	w.state.Writes.ObserveRecordWrite(now, err)
	if err != nil {
		return fmt.Errorf("writing this cluster's record in service %s: %w", format.MembersService, err)
	}
	w.peers.recordWritten(ours.Generation)
	return nil
}

// trim removes the parts that pages no longer have.
func (w *writer) trim(ctx context.Context, place controlPlace) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, left := range w.state.Writes.Excess() {
		group.Go(func() error {
			for _, id := range left.IDs() {
				if err := w.client.DeregisterInstance(groupCtx, place.catalog.ID, id); err != nil {
					return fmt.Errorf("removing excess parts of page %s: %w", format.PageName(left.Page), err)
				}
			}
			w.state.Writes.ObserveRemovedParts(left)
			return nil
		})
	}
	return group.Wait()
}

// shutdownGrace is how long a write may go on when the controller stops: far longer than requests take, and shorter than the ten seconds that
// the controller allows for its shutdown.
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
