package state

import (
	"fmt"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// Writes records what this cluster wants in the registry, decides what to write and when, and records the results.
type Writes struct {
	*shared
	// requested are the keys that this process ever published or withdrew.
	requested engine.Keys
	// firstAsk and lastAsk are the times of the first and the last change that is not written yet; zero if there is none.
	firstAsk, lastAsk time.Time
	// pagesWritten is when pages were last written.
	pagesWritten time.Time
}

// PageResult is the result of writing the parts of a page. Several requests may add to it at once.
type PageResult struct {
	mu         sync.Mutex
	operations []string
	err        error
}

// Add adds the result of a request: the ID of its operation, or the error with which AWS refused it.
func (p *PageResult) Add(operation string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.err = err
		return
	}
	p.operations = append(p.operations, operation)
}

// IsRefused reports whether AWS refused a part of the page.
func (p *PageResult) IsRefused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

// SetDesired sets the desired export of key, nil to withdraw it.
func (s *Writes) SetDesired(key mcs.Key, exp *mcs.Export) error {
	if exp == nil {
		s.setDesired(key, nil)
		return nil
	}
	if err := record.Check(*exp); err != nil {
		return &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	canonical := exp.Canonical()
	s.setDesired(exp.Key, &canonical)
	return nil
}

// setDesired sets the desired export of key and wakes the writer.
func (s *Writes) setDesired(key mcs.Key, exp *mcs.Export) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requested[key] = struct{}{}
	if !s.outbox.ask(key, exp) {
		return
	}
	s.lastAsk = time.Now()
	if s.firstAsk.IsZero() {
		s.firstAsk = s.lastAsk
	}
	s.WriteSignal.Set()
	if s.view != nil {
		s.view.Enqueue(key)
	}
}

// DesiredInstances returns the export of key that the instance view mirrors, nil for none. It is not known for exports of the previous
// process that were neither published nor withdrawn since.
func (s *Writes) DesiredInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.outbox.pages[format.PageOf(key)]
	if exp, asked := p.want[key]; asked {
		return exp, true
	}
	_, left := p.exports[key]
	_, requested := s.requested[key]
	return nil, p.adopted && !left && (requested || time.Since(s.heldSince) >= s.cfg.Intervals.AdoptionGracePeriod)
}

// HiddenInstances is desiredInstances without an instance view: none, once the pages contain what the instances contain.
func (s *Writes) HiddenInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	exp, known = s.DesiredInstances(key)
	if exp == nil {
		return nil, known
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil, s.publication(key).State == registry.Exported
}

// Backoff returns the pauses after failed writes.
func (s *Writes) Backoff() engine.Backoff {
	return engine.Backoff{Initial: s.cfg.Intervals.Retry, Max: s.cfg.Intervals.MaxRetry, Jitter: 1}
}

// SetError records the result of a write and returns the keys with another status now.
func (s *Writes) SetError(err error) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	changed := engine.Keys{}
	if s.writeProblem.Set(err) {
		s.addPending(changed)
	}
	return changed
}

// UntilHeartbeat returns the time until the next heartbeat.
func (s *Writes) UntilHeartbeat() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.recorded.Add(s.cfg.HeartbeatInterval))
}

// RecordToWrite returns the own record if it has to be written: pages changed, the ID is claimed, or a heartbeat is due. Unless pagesDone,
// the generation of the pages that are being written is not announced.
func (s *Writes) RecordToWrite(now time.Time, pagesDone bool) (ours format.Member, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.claim.state != Observing && (s.announce || now.Sub(s.recorded) >= s.cfg.HeartbeatInterval)
	if !due {
		return ours, false
	}
	s.announce = false
	s.ours.Heartbeat = s.ours.NextHeartbeat(now)
	if pagesDone || s.claim.state != Held {
		s.ours.Generation = max(s.outbox.generation, s.ours.Generation)
	}
	s.ours.Pages = s.announced()
	return s.ours, true
}

// ObserveRecordWrite records the result of writing the own record, at the time when the write began.
func (s *Writes) ObserveRecordWrite(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.announce = true
		return
	}
	s.recorded = began
}

// Excess returns the parts to remove.
func (s *Writes) Excess() []ExcessParts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil
	}
	return s.outbox.excess()
}

// ObserveRemovedParts records that parts were removed.
func (s *Writes) ObserveRemovedParts(removed ExcessParts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox.trimmed(removed)
	s.WriteSignal.Set()
}

// LeavingRecord returns the last record of a cluster that leaves: without pages and later than all of them. The last pages may have been written
// and not announced, and the next process must not adopt them.
func (s *Writes) LeavingRecord() format.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours.Pages = format.Digests{}
	s.outbox.generation = max(s.outbox.generation, s.ours.Generation)
	s.ours.Generation = s.outbox.nextGeneration(s.cfg.WallClock())
	return s.ours
}

// AdoptRecord makes a record of the previous process the own one.
func (s *Writes) AdoptRecord(record format.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours = record
	s.ours.Heartbeat = s.ours.NextHeartbeat(time.Now())
}

// PartIDs returns the IDs of all parts that the store may have.
func (s *Writes) PartIDs() map[string]bool {
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

// ForgetPages records that all pages were removed.
func (s *Writes) ForgetPages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox.disown()
}

// NextWrite returns when to write next; ok is false if there is nothing to write.
func (s *Writes) NextWrite(now time.Time) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state == Observing {
		return time.Time{}, false
	}
	at = s.recorded.Add(s.cfg.HeartbeatInterval)
	if s.announce {
		at = now
	}
	if s.claim.state == Held {
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

// pagesDue returns when pages have to be written: torn pages now, the first change after a pause after a short delay, and a series of changes when it
// pauses or has lasted too long. The caller holds s.mu.
func (s *Writes) pagesDue(now time.Time, dirty, torn int) time.Time {
	if torn > 0 {
		return now
	}
	if s.firstAsk.Sub(s.pagesWritten) >= s.cfg.Intervals.AtMost {
		return s.firstAsk.Add(s.cfg.Intervals.Gather)
	}
	atMost := max(s.cfg.Intervals.AtMost, time.Duration(dirty)*perDirtyPage)
	return earlier(s.lastAsk.Add(s.cfg.Intervals.Quiet), s.firstAsk.Add(atMost))
}

// ObserveWrites records the results of writing pages. err is the failure that ended all writes, if any. A page that AWS refused has its own
// backoff. It returns the keys of the pages with another problem now.
func (s *Writes) ObserveWrites(writes []PageWrite, results []PageResult, err error) (changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	changed = engine.Keys{}
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
			p.retryAt = now.Add(s.Backoff().Pause(p.failures))
		case err != nil:
			s.outbox.failed(w, err)
		default:
			s.outbox.written(now, w, results[i].operations)
			s.announce, s.pagesWritten = true, now
		}
	}
	return changed
}

// TakeBatch returns the pages to write now, the operations by page that were accepted and whose result is not shown, and the keys with another
// problem now.
func (s *Writes) TakeBatch() (writes []PageWrite, suspects map[int][]string, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil, nil, engine.Keys{} // Notify adds to it
	}
	suspects = s.suspects()
	s.announce = s.announce || s.outbox.orphanedPages // the pages found may be as desired
	writes, refused := s.outbox.batch(time.Now(), s.cfg.WallClock())
	s.firstAsk = time.Time{}
	changed = engine.Keys{}
	for _, page := range refused {
		s.logRefused(page)
		for key := range s.outbox.pages[page].want {
			changed[key] = struct{}{}
		}
	}
	return writes, suspects, changed
}

// logRefused logs why a page is not written as wanted. The caller holds s.mu.
func (s *Writes) logRefused(page int) {
	p := &s.outbox.pages[page]
	if p.problem != nil {
		s.log.Error(p.problem, "Failed to encode a page; it stays as it was", "page", format.PageName(page))
	}
	for key, err := range p.tooLarge {
		s.log.Error(err, "Failed to publish an export; others are not affected", "service", key.String())
	}
}

// suspects returns the operations by page that were accepted and whose result was never shown. The caller holds s.mu.
func (s *Writes) suspects() map[int][]string {
	operations := map[int][]string{}
	for i := range s.outbox.pages {
		if p := &s.outbox.pages[i]; p.torn && p.problem == nil && len(p.operations) > 0 {
			operations[i] = p.operations
		}
	}
	return operations
}

// ObserveFailedOperations records why pages that AWS accepted were never shown. Such a page is written again; the others are not affected. It
// returns the keys of the pages with another problem now.
func (s *Writes) ObserveFailedOperations(reasons map[int]error) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
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
func (s *Writes) announced() (pages format.Digests) {
	shown := s.shown()
	if s.claim.state == Held && time.Since(s.heldSince) >= s.cfg.Intervals.AdoptionGracePeriod {
		s.outbox.orphanedPages = false // exports that were neither published nor withdrawn stay as found
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
