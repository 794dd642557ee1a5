package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// Writes has the desired state of this cluster's records, decides about the writes and their times,
// and records the results.
type Writes struct {
	*shared
	// firstChange and lastChange are the times of the first and the last change that is not written
	// yet; zero if there is none.
	firstChange, lastChange time.Time
	// isUpdate is set if all of these changes are of exports that the pages have.
	isUpdate bool
	rhythm   rhythm
	// eager has the writes that count until updates wait for further changes.
	eager *engine.Pace[struct{}]
	// beat is the last heartbeat of RecordToWrite, and beatAt its time, zero if there is none.
	beat   int64
	beatAt time.Time
	// isQuiet is set by SetQuiet.
	isQuiet bool
	// writtenAt is the time of the last successful write of the own record by this process, zero if
	// there is none.
	writtenAt time.Time
	// pagesWritten is the time of the last write of a page. unannounced is the time of the first
	// write of a page that no record announces, zero if there is none. pagesTaken is the time at
	// which pages were taken to be written last.
	pagesWritten, unannounced, pagesTaken time.Time
	// unsent are the pages that were written since the last record that was sent to other clusters.
	unsent map[int]PageWrite
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
	isKnown := s.outbox.has(key)
	if !s.outbox.state.Set(key, exp) {
		return
	}
	s.lastChange = time.Now()
	isUpdate := isKnown && exp != nil
	s.rhythm.observe(s.lastChange, format.PageOf(key), isUpdate, s.cfg.Intervals.Quiet)
	if s.firstChange.IsZero() {
		s.firstChange, s.isUpdate = s.lastChange, true
	}
	s.isUpdate = s.isUpdate && isUpdate
	s.WriteSignal.Set()
	if s.view != nil {
		s.view.Enqueue(key)
	}
}

// DesiredInstances returns the export of key that the instance view mirrors, nil for none. It is
// not known for exports that are not published while another process with this ID may have them,
// and until the pages lack them.
func (s *Writes) DesiredInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exp, asked := s.outbox.state.WantOf(key); asked {
		return exp, true
	}
	return nil, s.outbox.isAdopted(format.PageOf(key)) && !s.outbox.has(key) && !s.claim.isYoung()
}

// HiddenInstances is DesiredInstances if the instance view is off: instances of a previous process
// are removed when the pages have the export.
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
func (s *Writes) Backoff() engine.Backoff { return s.cfg.backoff() }

// SetQuiet sets whether nothing changes and peer notifications from every other cluster arrive:
// then heartbeats are rarer.
func (s *Writes) SetQuiet(isQuiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isQuiet != isQuiet {
		s.isQuiet = isQuiet
		s.WriteSignal.Record.Set()
	}
}

// SetError records the result of writing the own record and returns the keys with another status
// now.
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

// SetPagesError records the error that prevents writes of all pages, nil if there is none.
func (s *Writes) SetPagesError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pagesErr = err
	s.updatePageProblem()
}

// updatePageProblem updates the problem of writing pages: it is the error of the first page that
// AWS did not refuse for its content. The caller holds s.mu.
func (s *Writes) updatePageProblem() {
	s.pageProblem.Set(cmp.Or(s.pagesErr, s.outbox.state.Problem()))
}

// announceWithin is the longest time for which a written page waits for writes of other pages that
// are in progress, so that one record announces them together. A page of ten parts takes that long
// at 20 to 50 ms a request. 64 slow pages cost two records a second, of 50 writes.
const announceWithin = 500 * time.Millisecond

// NextRecord returns when to write the own record next; ok is false if this cluster does not claim
// its ID.
func (s *Writes) NextRecord(now time.Time) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state == Observing {
		return time.Time{}, false
	}
	at = s.recorded.Add(s.heartbeatInterval())
	if s.announce {
		at = now
	}
	if !s.answerAt.IsZero() {
		at = earlier(at, s.answerAt)
	}
	if !s.unannounced.IsZero() {
		announceAt := now
		if began, writing := s.outbox.state.Writing(); writing {
			announceAt = earlier(began, s.unannounced).Add(announceWithin)
		}
		at = earlier(at, announceAt)
	}
	return at, true
}

// RecordToWrite returns the own record if it has to be written: pages changed, the ID is claimed,
// or a heartbeat is due. Pages that are being written are announced as they were before, and not
// announced if that takes long.
//
// copyDue is set if the own catalog needs a copy of the record.
func (s *Writes) RecordToWrite(now time.Time) (ours format.Member, copyDue, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.announce || !s.unannounced.IsZero() || !s.answerAt.IsZero() && !now.Before(s.answerAt)
	due = s.claim.state != Observing && (changed || now.Sub(s.recorded) >= s.heartbeatInterval())
	if !due {
		return ours, false, false
	}
	generation := s.outbox.generation
	if _, writing := s.outbox.state.Writing(); writing && s.claim.state == Held {
		generation = s.outbox.written
	}
	if generation <= s.ours.Generation && !s.unannounced.IsZero() {
		// a later record has announced a page that was written faster
		generation = s.outbox.nextGeneration(s.cfg.WallClock())
	}
	if before := s.ours.Generation; generation > before {
		s.ours.Generation = generation
		s.address(before, generation)
	}
	s.ours.Heartbeat = max(s.ours.NextHeartbeat(s.cfg.WallClock()), s.paced(now))
	s.beat, s.beatAt = s.ours.Heartbeat, now
	s.eager.Charge(now, struct{}{}, 1)
	s.announce, s.unannounced, s.answerAt = false, time.Time{}, time.Time{}
	s.ours.Pages = s.announced(now)
	s.ours.Namespaces = s.outbox.namespacesOf(s.ours.Pages)
	s.ours.Imports = cmp.Or(s.imports, s.ours.Imports)
	return s.ours, s.copyRecord, true
}

// heartbeatInterval returns the time between two heartbeats. The caller holds s.mu.
func (s *Writes) heartbeatInterval() time.Duration {
	switch {
	case s.claim.isYoung():
		return s.cfg.YoungHeartbeatInterval()
	case s.isQuiet:
		return max(s.cfg.HeartbeatInterval, s.cfg.LongestHeartbeatInterval)
	}
	return s.cfg.HeartbeatInterval
}

// paced returns the last heartbeat plus nine tenths of the time since then, or zero if there is
// none. Heartbeats of a cluster whose clock is behind advance at this pace until the clock has
// caught up. Those of a clone begin minutes later (engine.SavedHeartbeat): soon after the clone has
// ended, the cluster's heartbeats are later than the clone's. The caller holds s.mu.
func (s *Writes) paced(now time.Time) int64 {
	if s.beatAt.IsZero() {
		return 0
	}
	return s.beat + (now.Sub(s.beatAt) * 9 / 10).Milliseconds()
}

// ObserveCopyWrite records the result of writing the copy of the own record, at the time when the
// write began. After a failure both are written again.
func (s *Writes) ObserveCopyWrite(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.announce = true
		return
	}
	s.copyRecord, s.copied = false, began
}

// ObserveRecordWrite records the result of writing the own record, at the time when the write
// began.
func (s *Writes) ObserveRecordWrite(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.announce = true
		return
	}
	s.recorded = began
	if s.view != nil && s.wasAway(began) {
		s.view.CheckHealth(s.cfg.StaleAfter/4 + s.cfg.Intervals.HealthSettle)
	}
	s.writtenAt = began
}

// TakeUnsent returns the parts of the pages that a record announces, and that were written since
// the last one that announced others. The other clusters have the others.
func (s *Writes) TakeUnsent(record format.Member) (parts []api.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for page, w := range s.unsent {
		if w.digest != record.Pages[page] && w.generation > record.Generation {
			continue // the next record announces it
		}
		delete(s.unsent, page)
		if w.digest == record.Pages[page] {
			parts = append(parts, w.Instances...)
		}
	}
	return parts
}

// wasAway reports whether other clusters may have taken this one for stale before the write of its
// record at began: after a start, and after half of StaleAfter without a write, by either clock,
// because the monotonic one stops while a machine is suspended. A cluster with the same StaleAfter
// reads the record at least every quarter of it, so that it needs at least three quarters. The
// caller holds s.mu.
func (s *Writes) wasAway(began time.Time) bool {
	silence := max(began.Sub(s.writtenAt), began.Round(0).Sub(s.writtenAt.Round(0)))
	return s.writtenAt.IsZero() || silence >= s.cfg.StaleAfter/2
}

// Excess returns the parts that pages no longer have and that are not being removed.
func (s *Writes) Excess() []ExcessParts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil
	}
	return s.outbox.excess()
}

// TakeExcess returns the parts to remove now. Until ObserveRemoval gets the result, the pages of
// these parts are not written with more parts than they have.
func (s *Writes) TakeExcess() []ExcessParts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil
	}
	now := time.Now()
	found := slices.DeleteFunc(s.outbox.excess(), func(l ExcessParts) bool { return now.Before(s.outbox.pages[l.Page].trims.retryAt) })
	for _, excess := range found {
		s.outbox.trim(excess)
	}
	return found
}

// ObserveRemoval records the result of removing parts.
func (s *Writes) ObserveRemoval(removed ExcessParts, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outbox.trimmed(removed, err == nil)
	if err != nil {
		trims := &s.outbox.pages[removed.Page].trims
		trims.failures++
		trims.retryAt = time.Now().Add(s.Backoff().Pause(trims.failures))
		s.log.V(1).Info("Failed to remove parts that a page does not need; retrying", "page", format.PageName(removed.Page), "error", err.Error())
	}
	s.WriteSignal.Set()
}

// LeavingRecord returns the last record of a cluster that leaves: without pages and later than all
// of them. The last pages may have been written and not announced, and the next process must not
// adopt them.
func (s *Writes) LeavingRecord() format.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours.Pages, s.ours.Namespaces, s.ours.Farewell = format.Digests{}, format.PageNamespaces{}, true
	s.outbox.generation = max(s.outbox.generation, s.ours.Generation)
	s.ours.Generation = s.outbox.nextGeneration(s.cfg.WallClock())
	s.ours.Heartbeat = s.ours.NextHeartbeat(s.cfg.WallClock())
	return s.ours
}

// AdoptRecord makes a record of the previous process the own one. The next records of this process
// are later than its previous ones.
func (s *Writes) AdoptRecord(record format.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record.Heartbeat, record.Generation = max(record.Heartbeat, s.ours.Heartbeat), max(record.Generation, s.ours.Generation)
	if record.Joined.IsZero() {
		record.Joined = s.ours.Joined
	}
	s.ours = record
	s.ours.Key, s.ours.Process = s.cfg.Signer.Key(), s.cfg.Process
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

// NextPages returns when to write pages, or to remove parts, next; ok is false if there is nothing
// to write.
func (s *Writes) NextPages(now time.Time) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return time.Time{}, false
	}
	dirty, torn, again := s.outbox.pending(now)
	if s.outbox.state.KeepsWithdrawn() {
		over := s.claim.youngSince().Add(s.claim.young)
		if !over.After(now) && s.claim.isYoung() {
			over = now.Add(s.cfg.PollInterval) // after the next read
		}
		again = earliest(again, over)
	}
	if dirty+torn > 0 {
		return earliest(again, s.pagesDue(now, dirty, torn)), true
	}
	return again, !again.IsZero()
}

// Updates wait for the end of a series only as long as this cluster makes more than 25 writes a
// second, half of what AWS allows an account, after a burst of 50. Five changes a second at random
// then take 8 % more writes, thirteen 21 %, and fifty none (TestChangesTogether).
const (
	eagerWrites = 25
	eagerBurst  = 50
)

// pagesDue returns the time at which pages have to be written. Torn pages are due now, and so is a
// change of a page whose changes come alone. Other first changes after a quiet time are due after a
// short delay, so that further changes join them. A series of changes is due when it pauses or has
// lasted too long, and one of updates as soon as the writes before it are paid. The caller holds
// s.mu.
func (s *Writes) pagesDue(now time.Time, dirty, torn int) time.Time {
	if torn > 0 {
		return now
	}
	if s.rhythm.expectsAlone && s.firstChange.Equal(s.lastChange) && s.firstChange.Sub(s.pagesTaken) >= s.cfg.Intervals.Quiet {
		return s.firstChange
	}
	first := s.firstChange.Add(s.cfg.Intervals.Gather)
	if s.firstChange.Sub(s.pagesWritten) >= s.cfg.Intervals.AtMost {
		return first
	}
	atMost := max(s.cfg.Intervals.AtMost, time.Duration(dirty)*perDirtyPage)
	series := earlier(s.lastChange.Add(s.cfg.Intervals.Quiet), s.firstChange.Add(atMost))
	if paid := s.eager.DueAt(struct{}{}); s.isUpdate && paid.Before(series) {
		return earlier(series, later(first, paid))
	}
	return series
}

// ObserveWrite records the result of writing a page by these operations. A page that could not be
// written has its own backoff. It returns the page's keys if they have another problem now.
func (s *Writes) ObserveWrite(w PageWrite, operations []string, err error) (changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	changed = engine.Keys{}
	unit := unitNames[w.page]
	before := s.outbox.state.ProblemOf(unit)
	if err == nil {
		s.outbox.succeed(now, w, operations)
		if s.unsent == nil {
			s.unsent = map[int]PageWrite{}
		}
		s.unsent[w.page] = w
		s.pagesWritten = now
		if s.unannounced.IsZero() {
			s.unannounced = now
		}
	} else {
		err = fmt.Errorf("writing this cluster's pages: %w", err)
		s.outbox.fail(now, w, err)
	}
	if problem := s.outbox.state.ProblemOf(unit); errorText(before) != errorText(problem) {
		if api.IsInvalid(problem) {
			s.log.Error(problem, "Failed to write a page, because AWS refuses it; retrying", "page", format.PageName(w.page))
		}
		s.addWanted(w.page, changed)
	}
	s.updatePageProblem()
	s.count()
	s.WriteSignal.Set()
	return changed
}

// TakeBatch returns the pages to write now, and the keys with another problem now. Until
// ObserveWrite gets its result, a page is not due again.
func (s *Writes) TakeBatch() (writes []PageWrite, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil, engine.Keys{} // Notify adds to it
	}
	s.outbox.state.KeepWithdrawn(s.claim.isYoung())
	// the pages found may be as desired
	s.announce = s.announce || s.outbox.state.HasPredecessor() && !s.outbox.state.IsDecided()
	writes, refused := s.outbox.batch(time.Now(), s.cfg.WallClock())
	s.firstChange = time.Time{}
	switch {
	case len(writes) > 0:
		s.pagesTaken = time.Now()
		s.eager.Charge(s.pagesTaken, struct{}{}, countInstances(writes))
	case s.announce:
		s.WriteSignal.Record.Set() // no page is written that would be announced with the others
	}
	changed = engine.Keys{}
	for _, page := range refused {
		s.logRefused(page)
		s.addWanted(page, changed)
	}
	return writes, changed
}

// countInstances returns the number of requests that writes take.
func countInstances(writes []PageWrite) (n int) {
	for _, w := range writes {
		n += len(w.Instances)
	}
	return n
}

// logRefused logs the errors because of which a page does not have all desired exports. The caller
// holds s.mu.
func (s *Writes) logRefused(page int) {
	unit := unitNames[page]
	if problem := s.outbox.state.ProblemOf(unit); problem != nil {
		s.log.Error(problem, "Failed to encode a page; it stays as it was", "page", format.PageName(page))
	}
	for key, err := range s.outbox.state.OmittedOf(unit) {
		s.log.Error(err, "Failed to publish an export; others are not affected", "service", key.String())
	}
}

// ObserveFailedOperation records the error of the operation for a page that AWS accepted and never
// wrote. It returns the page's keys if their problem has changed.
func (s *Writes) ObserveFailedOperation(w PageWrite, reason error) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	reason = fmt.Errorf("writing this cluster's pages: %w", reason)
	if !s.outbox.state.RecordUndone(unitNames[w.page], reason) {
		return changed
	}
	s.log.Error(reason, "Failed to write a page that AWS had accepted; retrying", "page", format.PageName(w.page))
	s.addWanted(w.page, changed)
	return changed
}

// addWanted adds the keys of a page whose export or withdrawal was requested. The caller holds
// s.mu.
func (s *shared) addWanted(page int, keys engine.Keys) {
	for _, key := range s.outbox.state.WantedIn(unitNames[page]) {
		keys.Add(key)
	}
}

// announced returns the digests for the own record: those of this process for adopted pages, and
// those that the registry shows for the others. The caller holds s.mu.
func (s *Writes) announced(now time.Time) (pages format.Digests) {
	shown := s.shown()
	for i := range pages {
		pages[i] = s.outbox.announcement(now, i, shown)
	}
	return pages
}

// perDirtyPage extends the time for which a series of changes is gathered, for each page that it
// changes: the duration of a write at 50 requests per second. A controller that starts with 1,000
// exports writes its pages about twice, not for every export.
const perDirtyPage = 20 * time.Millisecond

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

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
