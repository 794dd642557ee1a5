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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// perDirtyPage is how much longer changes are gathered for each page that they touch, if they go on: what a write takes
// at 50 requests a second. A controller that starts with 1,000 exports writes its pages twice or so, not at every step.
const perDirtyPage = 20 * time.Millisecond

// writeLoop writes what is due until ctx ends.
func (r *Registry) writeLoop(ctx context.Context, notify func(mcs.Key)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, pause := r.nextWrite(time.Now())
		if due && pause <= 0 {
			err := r.writeDue(ctx, notify)
			r.writing(ctx, err, notify)
			continue
		}
		if due {
			timer.Reset(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.write:
		}
	}
}

// nextWrite says whether there is something to write, and in what time.
func (r *Registry) nextWrite(now time.Time) (due bool, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claim.state == watching {
		return false, 0
	}
	at := r.recorded.Add(r.cfg.HeartbeatInterval)
	if r.announce {
		at = now
	}
	if r.claim.state == held {
		dirty, torn, again := r.outbox.pending(now)
		if dirty+torn > 0 {
			at = earlier(at, r.pagesDue(now, dirty, torn))
		}
		if !again.IsZero() {
			at = earlier(at, again)
		}
	}
	if at.Before(r.writeRetryAt) {
		at = r.writeRetryAt
	}
	return true, at.Sub(now)
}

// pagesDue is when pages are to be written: what is torn now; a change after a pause almost at once; changes that follow one
// another when they pause, or have gone on for long. The caller holds r.mu.
func (r *Registry) pagesDue(now time.Time, dirty, torn int) time.Time {
	if torn > 0 {
		return now
	}
	if r.firstAsk.Sub(r.pagesWritten) >= r.cfg.times.atMost {
		return r.firstAsk.Add(r.cfg.times.gather)
	}
	atMost := max(r.cfg.times.atMost, time.Duration(dirty)*perDirtyPage)
	return earlier(r.lastAsk.Add(r.cfg.times.quiet), r.firstAsk.Add(atMost))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// writing notes how a write ended, and tells who waits for it when that changes.
func (r *Registry) writing(ctx context.Context, err error, notify func(mcs.Key)) {
	if ctx.Err() != nil {
		return
	}
	if err != nil && api.IsNotFound(err) {
		r.control.forget()
	}
	r.mu.Lock()
	r.count()
	changed := keySet{}
	if text(err) != text(r.writeProblem) {
		r.writeProblem = err
		r.unfinished(changed)
		logChange(r.log, err, "Cannot write to AWS Cloud Map; trying again", "Writing to AWS Cloud Map again")
	}
	if err == nil {
		r.writeFailures, r.writeRetryAt = 0, time.Time{}
	} else {
		r.writeFailures++
		r.writeRetryAt = time.Now().Add(r.retryPause(r.writeFailures))
	}
	r.mu.Unlock()
	r.tell(notify, changed)
}

// retryPause is how long what has failed so often is not tried again.
func (r *Registry) retryPause(failures int) time.Duration {
	return api.Jitter(min(r.cfg.times.maxRetry, r.cfg.times.retry<<min(failures-1, 10)))
}

// writeDue writes the pages that changed, then the record that announces them, then removes what the pages no longer
// need: at every moment a reader finds what is announced, or waits for it.
func (r *Registry) writeDue(ctx context.Context, notify func(mcs.Key)) error {
	place, err := r.place(ctx)
	if err != nil {
		return err
	}
	// What is begun is finished when the controller stops: half of a page's parts are no page.
	ctx, cancel := outlive(ctx, finish)
	defer cancel()
	stop := r.beatMeanwhile(ctx, place)
	pagesErr := r.writePages(ctx, place, notify)
	stop()
	if err := r.writeRecord(ctx, place, true); err != nil {
		return cmp.Or(pagesErr, err)
	}
	r.control.saveIDs(ctx, place)
	return cmp.Or(pagesErr, r.trim(ctx, place))
}

// finish is how long a write may go on when the controller stops: far longer than requests take, and shorter than the
// ten seconds that the controller gives itself to stop.
const finish = 3 * time.Second

// outlive is ctx, except that it ends some time after ctx has.
func outlive(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() { stop(); cancel() }
}

// writePages writes each part of each page that changed.
func (r *Registry) writePages(ctx context.Context, place controlPlace, notify func(mcs.Key)) error {
	writes, suspects := r.takeBatch(notify)
	r.tell(notify, r.noteUndone(r.explain(ctx, suspects)))
	results := make([]pageResult, len(writes))
	// Parts that a page did not have go first: where there is no room for them, the page stays whole as it was.
	err := r.writeParts(ctx, place, writes, results, func(w pageWrite) []api.Instance { return w.instances[w.before:] })
	if err == nil {
		err = r.writeParts(ctx, place, writes, results, func(w pageWrite) []api.Instance { return w.instances[:w.before] })
	}
	if err != nil {
		err = fmt.Errorf("writing this cluster's pages: %w", err)
	}
	r.tell(notify, r.noteWrites(writes, results, err))
	return err
}

// noteWrites notes how the writes of pages ended, with the failure that ended them all, if there was one. A page that was refused is
// tried again in its own time. It returns the keys of pages of which there is another problem now.
func (r *Registry) noteWrites(writes []pageWrite, results []pageResult, err error) (changed keySet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	changed = keySet{}
	for i, w := range writes {
		p, refusal := &r.outbox.pages[w.page], results[i].err
		switch {
		case refusal != nil:
			refusal = fmt.Errorf("writing this cluster's pages: %w", refusal)
			if p.refusal != refusal.Error() {
				r.log.Error(refusal, "A page is refused; trying again", "page", format.PageName(w.page))
				for key := range p.want {
					changed[key] = struct{}{}
				}
			}
			r.outbox.failed(w, refusal)
			p.refusal = refusal.Error()
			p.failures++
			p.retryAt = now.Add(r.retryPause(p.failures))
		case err != nil:
			r.outbox.failed(w, err)
		default:
			r.outbox.written(now, w, results[i].operations)
			r.announce, r.pagesWritten = true, now
		}
	}
	return changed
}

// writeParts writes some of each page's parts. What AWS refuses of one page, for a quota, does not hold up the others; any
// other failure ends the rest, and is returned.
func (r *Registry) writeParts(ctx context.Context, place controlPlace, writes []pageWrite, results []pageResult, parts func(pageWrite) []api.Instance) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, w := range writes {
		if results[i].err != nil {
			continue
		}
		// The last part first: as long as part 0 is of the earlier generation, that one may still be whole.
		for _, instance := range slices.Backward(parts(w)) {
			group.Go(func() error {
				operation, err := r.client.RegisterInstance(groupCtx, place.catalog.ID, instance)
				if err != nil && !api.IsInvalid(err) {
					return err
				}
				results[i].add(operation, err)
				return nil
			})
		}
	}
	return group.Wait()
}

// takeBatch is what has to be written now, and by page the operations that did not do what they were to.
func (r *Registry) takeBatch(notify func(mcs.Key)) (writes []pageWrite, suspects map[int][]string) {
	r.mu.Lock()
	if r.claim.state != held {
		r.mu.Unlock()
		return nil, nil
	}
	suspects = r.suspects()
	r.announce = r.announce || r.outbox.unvouched // what was found may be what is wanted
	writes, refused := r.outbox.batch(time.Now(), r.cfg.wall())
	r.firstAsk = time.Time{}
	changed := keySet{}
	for _, page := range refused {
		r.logRefused(page)
		for key := range r.outbox.pages[page].want {
			changed[key] = struct{}{}
		}
	}
	r.mu.Unlock()
	r.tell(notify, changed)
	return writes, suspects
}

// logRefused logs why a page is not written as wanted. The caller holds r.mu.
func (r *Registry) logRefused(page int) {
	p := &r.outbox.pages[page]
	if p.problem != nil {
		r.log.Error(p.problem, "Failed to encode a page; it stays as it was", "page", format.PageName(page))
	}
	for key, err := range p.tooLarge {
		r.log.Error(err, "Failed to publish an export; others are not affected", "service", key.String())
	}
}

// pageResult is how the writes of a page's parts ended.
type pageResult struct {
	mu         sync.Mutex
	operations []string
	err        error
}

func (p *pageResult) add(operation string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.err = err
		return
	}
	p.operations = append(p.operations, operation)
}

// suspects are the operations of pages that were accepted and never shown, by page. The caller holds r.mu.
func (r *Registry) suspects() map[int][]string {
	operations := map[int][]string{}
	for i := range r.outbox.pages {
		if p := &r.outbox.pages[i]; p.torn && p.problem == nil && len(p.operations) > 0 {
			operations[i] = p.operations
		}
	}
	return operations
}

// explain asks how the operations of pages ended. Only a failed one is an answer.
func (r *Registry) explain(ctx context.Context, suspects map[int][]string) map[int]error {
	reasons := map[int]error{}
	for page, operations := range suspects {
		for _, id := range operations {
			_, _, err := r.client.GetOperation(ctx, id)
			var failed *api.OperationError
			if errors.As(err, &failed) {
				reasons[page] = fmt.Errorf("writing this cluster's pages: %w", failed)
				break
			}
		}
	}
	return reasons
}

// noteUndone notes why pages that were accepted were never shown. It is a matter of each page: it is written again, and the others go
// on. It returns the keys of the pages of which that is news.
func (r *Registry) noteUndone(reasons map[int]error) keySet {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := keySet{}
	for page, reason := range reasons {
		p := &r.outbox.pages[page]
		if text(p.undone) == text(reason) {
			continue
		}
		p.undone = reason
		r.log.Error(reason, "A page was accepted and not written; trying again", "page", format.PageName(page))
		for key := range p.want {
			changed[key] = struct{}{}
		}
	}
	return changed
}

// beatMeanwhile sees to the heartbeats while pages are written, which takes minutes when AWS throttles. The returned function
// ends it and waits for it.
func (r *Registry) beatMeanwhile(ctx context.Context, place controlPlace) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beats sync.WaitGroup
	beats.Go(func() {
		for {
			r.mu.Lock()
			due := time.Until(r.recorded.Add(r.cfg.HeartbeatInterval))
			r.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(due, r.cfg.times.retry)):
			}
			// An error shows again, and is reported, when the pages are done.
			_ = r.writeRecord(ctx, place, false)
		}
	})
	return func() { cancel(); beats.Wait() }
}

// writeRecord writes our record if it is due: pages changed, the ID is claimed, or it is time for a heartbeat. Unless pages are
// done, those that are being written are of a generation that is not announced.
func (r *Registry) writeRecord(ctx context.Context, place controlPlace, pagesDone bool) error {
	r.mu.Lock()
	now := time.Now()
	due := r.claim.state != watching && (r.announce || now.Sub(r.recorded) >= r.cfg.HeartbeatInterval)
	if !due {
		r.mu.Unlock()
		return nil
	}
	r.announce = false
	r.ours.Heartbeat = r.ours.NextHeartbeat(now)
	if pagesDone || r.claim.state != held {
		r.ours.Generation = max(r.outbox.generation, r.ours.Generation)
	}
	r.ours.Pages = r.announced()
	ours := r.ours
	r.mu.Unlock()

	_, err := r.client.WithPriority(api.PriorityHigh).RegisterInstance(ctx, place.members.ID, ours.Instance())
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.announce = true
		return fmt.Errorf("writing this cluster's record in service %s: %w", format.MembersService, err)
	}
	r.recorded = now
	r.wrote(ours.Generation)
	return nil
}

// announced returns the digests for our record: those of pages that this process has adopted, and of the others what the registry shows.
// The caller holds r.mu.
func (r *Registry) announced() (pages format.Digests) {
	shown := r.shown()
	if r.claim.state == held && time.Since(r.heldSince) >= r.cfg.times.unspoken {
		r.outbox.unvouched = false // what nobody has spoken of stays as it was found
	}
	for i := range pages {
		pages[i] = r.outbox.announcement(i, shown)
	}
	return pages
}

// trim removes the parts that pages no longer have.
func (r *Registry) trim(ctx context.Context, place controlPlace) error {
	r.mu.Lock()
	var excess []excessParts
	if r.claim.state == held {
		excess = r.outbox.excess()
	}
	r.mu.Unlock()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, left := range excess {
		group.Go(func() error {
			for _, id := range left.ids() {
				if err := r.client.DeregisterInstance(groupCtx, place.catalog.ID, id); err != nil {
					return fmt.Errorf("removing what is left of page %s: %w", format.PageName(left.page), err)
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outbox.trimmed(left)
			wake(r.write)
			return nil
		})
	}
	return group.Wait()
}
