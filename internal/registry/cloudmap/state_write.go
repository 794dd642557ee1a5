package cloudmap

import (
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// writeBackoff returns the pauses after failed writes.
func (s *state) writeBackoff() engine.Backoff {
	return engine.Backoff{Initial: s.cfg.times.retry, Max: s.cfg.times.maxRetry, Jitter: 1}
}

// setWriteError records the result of a write and returns the keys with another status now.
func (s *state) setWriteError(err error) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	changed := keySet{}
	if s.writeProblem.Set(err) {
		s.addPending(changed)
	}
	return changed
}

// nextHeartbeat returns the time until the next heartbeat.
func (s *state) nextHeartbeat() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.recorded.Add(s.cfg.HeartbeatInterval))
}

// recordToWrite returns the own record if it has to be written: pages changed, the ID is claimed, or a heartbeat is due. Unless pagesDone,
// the generation of the pages that are being written is not announced.
func (s *state) recordToWrite(now time.Time, pagesDone bool) (ours format.Member, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.claim.state != watching && (s.announce || now.Sub(s.recorded) >= s.cfg.HeartbeatInterval)
	if !due {
		return ours, false
	}
	s.announce = false
	s.ours.Heartbeat = s.ours.NextHeartbeat(now)
	if pagesDone || s.claim.state != held {
		s.ours.Generation = max(s.outbox.generation, s.ours.Generation)
	}
	s.ours.Pages = s.announced()
	return s.ours, true
}

// observeRecordWrite records the result of writing the own record, at the time when the write began.
func (s *state) observeRecordWrite(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.announce = true
		return
	}
	s.recorded = began
}

// excess returns the parts to remove.
func (s *state) excess() []excessParts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != held {
		return nil
	}
	return s.outbox.excess()
}

// observeRemovedParts records that parts were removed.
func (s *state) observeRemovedParts(removed excessParts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox.trimmed(removed)
	s.writeSignal.Set()
}

// leavingRecord returns the last record of a cluster that leaves: without pages and later than all of them. The last pages may have been written
// and not announced, and the next process must not adopt them.
func (s *state) leavingRecord() format.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours.Pages = format.Digests{}
	s.outbox.generation = max(s.outbox.generation, s.ours.Generation)
	s.ours.Generation = s.outbox.nextGeneration(s.cfg.wall())
	return s.ours
}

// adoptRecord makes a record of the previous process the own one.
func (s *state) adoptRecord(record format.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours = record
	s.ours.Heartbeat = s.ours.NextHeartbeat(time.Now())
}

// partIDs returns the IDs of all parts that the store may have.
func (s *state) partIDs() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for i := range s.outbox.pages {
		for part := range s.outbox.pages[i].stored {
			ids[format.PartID(i, part)] = true
		}
	}
	return ids
}

// forgetPages records that all pages were removed.
func (s *state) forgetPages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox.disown()
}

// nextWrite returns when to write next; ok is false if there is nothing to write.
func (s *state) nextWrite(now time.Time) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state == watching {
		return time.Time{}, false
	}
	at = s.recorded.Add(s.cfg.HeartbeatInterval)
	if s.announce {
		at = now
	}
	if s.claim.state == held {
		dirty, torn, again := s.outbox.pending(now)
		if dirty+torn > 0 {
			at = earlier(at, s.pagesDue(now, dirty, torn))
		}
		if !again.IsZero() {
			at = earlier(at, again)
		}
	}
	return at, true
}

// pagesDue is when pages are to be written: what is torn now; a change after a pause almost at once; changes that follow one
// another when they pause, or have gone on for long. The caller holds s.mu.
func (s *state) pagesDue(now time.Time, dirty, torn int) time.Time {
	if torn > 0 {
		return now
	}
	if s.firstAsk.Sub(s.pagesWritten) >= s.cfg.times.atMost {
		return s.firstAsk.Add(s.cfg.times.gather)
	}
	atMost := max(s.cfg.times.atMost, time.Duration(dirty)*perDirtyPage)
	return earlier(s.lastAsk.Add(s.cfg.times.quiet), s.firstAsk.Add(atMost))
}

// observeWrites notes how the writes of pages ended, with the failure that ended them all, if there was one. A page that was refused is
// tried again in its own time. It returns the keys of pages of which there is another problem now.
func (s *state) observeWrites(writes []pageWrite, results []pageResult, err error) (changed keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	changed = keySet{}
	for i, w := range writes {
		p, refusal := &s.outbox.pages[w.page], results[i].err
		switch {
		case refusal != nil:
			refusal = fmt.Errorf("writing this cluster's pages: %w", refusal)
			if p.refusal != refusal.Error() {
				s.log.Error(refusal, "A page is refused; trying again", "page", format.PageName(w.page))
				for key := range p.want {
					changed[key] = struct{}{}
				}
			}
			s.outbox.failed(w, refusal)
			p.refusal = refusal.Error()
			p.failures++
			p.retryAt = now.Add(s.writeBackoff().Pause(p.failures))
		case err != nil:
			s.outbox.failed(w, err)
		default:
			s.outbox.written(now, w, results[i].operations)
			s.announce, s.pagesWritten = true, now
		}
	}
	return changed
}

// takeBatch is what has to be written now, and by page the operations that did not do what they were to.
func (s *state) takeBatch() (writes []pageWrite, suspects map[int][]string, changed keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != held {
		return nil, nil, keySet{} // Notify adds to it
	}
	suspects = s.suspects()
	s.announce = s.announce || s.outbox.orphanedPages // what was found may be what is wanted
	writes, refused := s.outbox.batch(time.Now(), s.cfg.wall())
	s.firstAsk = time.Time{}
	changed = keySet{}
	for _, page := range refused {
		s.logRefused(page)
		for key := range s.outbox.pages[page].want {
			changed[key] = struct{}{}
		}
	}
	return writes, suspects, changed
}

// logRefused logs why a page is not written as wanted. The caller holds s.mu.
func (s *state) logRefused(page int) {
	p := &s.outbox.pages[page]
	if p.problem != nil {
		s.log.Error(p.problem, "Failed to encode a page; it stays as it was", "page", format.PageName(page))
	}
	for key, err := range p.tooLarge {
		s.log.Error(err, "Failed to publish an export; others are not affected", "service", key.String())
	}
}

// suspects are the operations of pages that were accepted and never shown, by page. The caller holds s.mu.
func (s *state) suspects() map[int][]string {
	operations := map[int][]string{}
	for i := range s.outbox.pages {
		if p := &s.outbox.pages[i]; p.torn && p.problem == nil && len(p.operations) > 0 {
			operations[i] = p.operations
		}
	}
	return operations
}

// observeFailedOperations notes why pages that were accepted were never shown. It is a matter of each page: it is written again, and the others go
// on. It returns the keys of the pages of which that is news.
func (s *state) observeFailedOperations(reasons map[int]error) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := keySet{}
	for page, reason := range reasons {
		p := &s.outbox.pages[page]
		if errorText(p.undone) == errorText(reason) {
			continue
		}
		p.undone = reason
		s.log.Error(reason, "A page was accepted and not written; trying again", "page", format.PageName(page))
		for key := range p.want {
			changed[key] = struct{}{}
		}
	}
	return changed
}

// announced returns the digests for our record: those of pages that this process has adopted, and of the others what the registry shows.
// The caller holds s.mu.
func (s *state) announced() (pages format.Digests) {
	shown := s.shown()
	if s.claim.state == held && time.Since(s.heldSince) >= s.cfg.times.adoptionGracePeriod {
		s.outbox.orphanedPages = false // what no cluster has spoken of stays as it was found
	}
	for i := range pages {
		pages[i] = s.outbox.announcement(i, shown)
	}
	return pages
}

// perDirtyPage is how much longer changes are gathered for each page that they touch, if they go on: the duration of a write at 50 requests per
// second. A controller that starts with 1,000 exports writes its pages about twice, not for every export.
const perDirtyPage = 20 * time.Millisecond

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// errorText returns the error's text, or "".
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
