package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Reads records the results of reads of the registry, and decides about the next reads.
type Reads struct {
	*shared
	members *registry.MemberLog
	// audited is the time at which all own pages were read last, auditAt when they are read next.
	audited, auditAt time.Time
	// leftovers is set if the last audit found pages.
	leftovers bool
	// answered is the time at which the own record was written last because another cluster has a
	// new process.
	answered time.Time
	// askedBy are the times at which clusters have got an answer to their question last.
	askedBy map[string]time.Time
	// refusalLogged is the time at which a refused record under the own ID was logged last.
	refusalLogged time.Time
	// proofAt is the time at which the own catalog may be read next while another cluster has this
	// ID.
	proofAt time.Time
	// decoding has an element for each catalog that is being decoded.
	decoding chan struct{}
	// polledAt is the time at which the last poll succeeded, absent whether a poll since then has
	// not found the clusterset.
	polledAt  time.Time
	absent    absence
	newcomers newcomers
	// ownCopy is the copy of the own record that the last audit found, nil if there was none.
	ownCopy *format.Member
	// isDisplaced is set if a read of the members since the last audit did not show the own record.
	isDisplaced bool
}

// CatalogRead is a request to read pages of a cluster, and with Record the copy of its record.
type CatalogRead struct {
	ClusterID string
	Pages     []int
	Record    bool
}

// isEmpty reports whether there is nothing to read.
func (r CatalogRead) isEmpty() bool { return len(r.Pages) == 0 && !r.Record }

// SetError records the result of a poll and returns the keys with another status now.
func (s *Reads) SetError(err error) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	if s.readProblem.Set(err) {
		s.addPending(changed)
	}
	s.catalogs.observeRead()
	hasEnded := s.absent.observe(err)
	if err != nil {
		return changed
	}
	if s.view != nil && s.claim.state == Held && hasEnded {
		s.view.ListAgain(s.polledAt)
	}
	s.polledAt = time.Now()
	return changed
}

// absence is set while the clusterset is not found, or this cluster may not read it, as without the
// share of the namespace: lists of services and namespaces are empty then.
type absence bool

// observe observes the result of a poll, and reports whether the clusterset is shown again. Polls
// that fail for another reason show nothing.
func (a *absence) observe(err error) (hasEnded bool) {
	if err != nil {
		*a = *a || absence(api.IsNotFound(err) || api.IsDenied(err))
		return false
	}
	hasEnded, *a = bool(*a), false
	return hasEnded
}

// ObserveFailure records that the members could not be read.
func (s *Reads) ObserveFailure() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.step(time.Now(), nil, belief.Failed{}, engine.Keys{})
}

// IsAuditDue reports whether all own pages have to be read: before the ID is claimed, because
// another cluster may have written them, and at intervals.
func (s *Reads) IsAuditDue(now time.Time, shown *format.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.free(now, shown) || s.claim.state != Observing && !now.Before(s.auditAt)
}

// IsProofDue reports whether the own catalog has to be read to find out whether another cluster
// with this ID has written into it.
func (s *Reads) IsProofDue(now time.Time, shown *format.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.state == Observing && shown != nil && !shown.Farewell && !s.claim.isOurs(*shown) && !now.Before(s.proofAt)
}

// ObserveProof records a read of the own catalog while another cluster has this ID.
func (s *Reads) ObserveProof(now time.Time, stored []api.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proofAt = now.Add(s.cfg.StaleAfter / CopyReads)
	if found, err := format.FindCopy(stored, s.cfg.Identity.ClusterID, s.cfg.Identity.ClusterSetID); err == nil {
		s.claim.observeProof(now, found)
	}
}

// ObserveAudit records a read of all own pages.
func (s *Reads) ObserveAudit(now time.Time, shown *format.Member, stored []api.Instance, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audited, s.auditAt = now, now.Add(s.cfg.Intervals.Audit)
	s.leftovers = len(format.GroupByPage(stored)) > 0
	s.observePredecessor(s.leftovers)
	s.observeOwnCopy(stored)
	isOurs := s.claim.joined || s.ownCopy != nil && s.claim.isOurs(*s.ownCopy)
	if shown == nil && s.leftovers && !isOurs {
		// Another cluster may have written them, and write its record again.
		s.claim.settle = max(s.claim.settle, s.claim.rivalSilence)
	}
	s.shown().audit(now, stored, s.claim.state != Observing && !s.claim.isYoung(), changed)
	if s.claim.state == Held {
		// those of another process of this cluster, too
		s.outbox.after(s.shown())
	}
}

// StaleReads returns the pages and the copies of records that have to be read: changed are those of
// the clusters whose pages have changed since they were read, also by the previous process, and of
// unknown clusters. After a restart most have not changed, and what is imported from these others
// stays. If 1,000 clusters of an account restart at once, each may make one read a second.
func (s *Reads) StaleReads(now time.Time) (changed, others []CatalogRead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := CatalogRead{ClusterID: s.cfg.Identity.ClusterID, Pages: s.shown().unreadPages(now)}
	if !s.cfg.ReadOnly && !own.isEmpty() { // otherwise what this cluster may have left is not used
		changed = append(changed, own)
	}
	for id, cluster := range s.catalogs.clusters { // in random order
		if s.catalogs.isUnknown(id) {
			continue
		}
		switch read := s.readOf(now, cluster); {
		case read.isEmpty():
		case s.catalogs.hasChanged(cluster):
			changed = append(changed, read)
		default:
			others = append(others, read)
		}
	}
	return append(changed, s.newcomerReads(now)...), others
}

// MoreNewcomers returns further reads of the same poll, after those of StaleReads: of clusters that
// are still unknown, if each of those that were read has proved its key. Other reads that have
// failed wait for the next poll.
func (s *Reads) MoreNewcomers(now time.Time) []CatalogRead {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.newcomers.asked) == 0 || slices.ContainsFunc(s.newcomers.asked, s.catalogs.isUnknown) {
		return nil
	}
	return s.newcomerReads(now)
}

// newcomerReads returns the reads of the next round of unknown clusters, those first that wait for
// the longest time: the record of a cluster that does not exist is not read again before the first
// record of another one. The caller holds s.mu.
func (s *Reads) newcomerReads(now time.Time) (wanted []CatalogRead) {
	s.newcomers.begin(s.catalogs.isUnknown)
	var waiting []*catalog
	for id, cluster := range s.catalogs.clusters {
		if s.catalogs.isUnknown(id) {
			waiting = append(waiting, cluster)
		}
	}
	slices.SortFunc(waiting, func(a, b *catalog) int { return cmp.Or(a.turn.Compare(b.turn), cmp.Compare(a.id, b.id)) })
	for _, cluster := range waiting {
		if s.newcomers.isFull() {
			break
		}
		if read := s.readOf(now, cluster); !read.isEmpty() {
			wanted = append(wanted, read)
			s.newcomers.add(cluster.id)
		}
	}
	return wanted
}

// readOf returns the read of a cluster's catalog that is due. The caller holds s.mu.
func (s *Reads) readOf(now time.Time, cluster *catalog) CatalogRead {
	s.catalogs.findRoom(now, cluster)
	isProofDue, units, _ := s.catalogs.belief.DueOf(cluster.id, now)
	return CatalogRead{ClusterID: cluster.id, Pages: pagesOf(units), Record: isProofDue}
}

// ObserveCatalog records a read of a catalog: the copy of the record, and the pages that have to be
// read. It returns the changed keys, with those of pending lookups.
func (s *Reads) ObserveCatalog(now time.Time, id string, found []api.Instance) engine.Keys {
	s.mu.Lock()
	changed := engine.Keys{}
	record, err := format.FindCopy(found, id, s.cfg.Identity.ClusterSetID)
	if s.catalogs.belief.NeedsProof(id) {
		s.catalogs.copyRead(now, id, record, err, changed)
		for page := range s.asked {
			s.addResolvedBy(id, page, changed)
		}
		s.logMembers()
	}
	byPage := format.GroupByPage(found)
	var wanted []int
	if id == s.cfg.Identity.ClusterID {
		wanted = s.shown().unreadPages(now)
	} else {
		_, units, _ := s.catalogs.belief.DueOf(id, now)
		wanted = pagesOf(units)
		if s.catalogs.belief.HasProofAlone(id) {
			wanted = slices.Sorted(maps.Keys(byPage))
		}
	}
	s.mu.Unlock()
	maps.Copy(changed, s.observePages(now, id, wanted, byPage))
	return changed
}

// End is called when nothing is read any more.
func (s *Reads) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.observeRead()
	s.catalogs.belief.End()
}

// ObserveUnreadableCatalog records that the catalog of a cluster could not be read.
func (s *Reads) ObserveUnreadableCatalog(now time.Time, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.copyRead(now, id, nil, errUnread, engine.Keys{})
}

// ObserveRecordCopy records a read of the copy of a cluster's record alone, none if the catalog
// does not exist, and returns the changed keys.
func (s *Reads) ObserveRecordCopy(now time.Time, id string, found []api.Instance) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	record, err := format.FindCopy(found, id, s.cfg.Identity.ClusterSetID)
	s.catalogs.copyRead(now, id, record, err, changed)
	s.logMembers()
	return changed
}

// ExpiredFarewells returns the clusters whose farewell this cluster has to remove.
func (s *Reads) ExpiredFarewells() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil
	}
	return s.catalogs.expiredFarewells(s.cfg.WallClock())
}

// observeOwnCopy takes in the copy of the own record. The caller holds s.mu.
func (s *Reads) observeOwnCopy(stored []api.Instance) {
	found, err := format.FindCopy(stored, s.cfg.Identity.ClusterID, s.cfg.Identity.ClusterSetID)
	s.ownCopy = found
	if err == nil {
		s.claim.observeProof(time.Now(), found)
	}
	if found != nil && s.claim.isOurs(*found) {
		s.shown().addAuthor(found.Author())
		s.observeCopyOfClone(*found)
	}
	isDue := s.isDisplaced || err != nil || found == nil || !s.claim.isMine(*found)
	if s.claim.state != Observing && isDue && time.Since(s.copied) >= s.cfg.HeartbeatInterval {
		s.copyRecord, s.announce = true, true
		s.WriteSignal.Set()
	}
	s.isDisplaced = false
}

// observeCopyOfClone observes a copy of the own record that another process has written, while this
// one has the ID. The caller holds s.mu.
func (s *Reads) observeCopyOfClone(found format.Member) {
	if s.claim.state == Observing || s.claim.isMine(found) {
		return
	}
	s.follow(&found)
	if s.view != nil {
		// to find instances of exports that this cluster does not have
		s.view.ListAgain(time.Time{})
	}
}

// ObservePage records a read of a page and returns the changed keys, with those of pending lookups.
func (s *Reads) ObservePage(now time.Time, id string, page int, found []api.Instance) engine.Keys {
	return s.observePages(now, id, []int{page}, map[int][]api.Instance{page: found})
}

// observePages records a read of pages. It decodes them without the lock: heartbeats and lookups go
// on.
func (s *Reads) observePages(now time.Time, id string, pages []int, found map[int][]api.Instance) engine.Keys {
	changed := engine.Keys{}
	s.decoding <- struct{}{}
	defer func() { <-s.decoding }()
	s.mu.Lock()
	reader := s.catalogs.readerOf(id)
	s.mu.Unlock()
	if reader == nil {
		return changed // left meanwhile
	}
	reader.read(pages, found, func(read pageRead) { maps.Copy(changed, s.observePage(now, id, read)) })
	return changed
}

// observePage records a decoded read of a page.
func (s *Reads) observePage(now time.Time, id string, read pageRead) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	if id != s.cfg.Identity.ClusterID {
		s.catalogs.observePage(now, id, read, changed)
		s.addResolvedBy(id, read.number, changed)
		return changed
	}
	s.shown().observePage(now, read, changed)
	if s.claim.state == Held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
	return changed
}

// ObserveSent records what a cluster has sent beside the registry: its member record, and parts of
// pages that this announces. They count like those that were read, if the record has the
// generation and is the next one of a cluster that is followed (belief.State.TakesSent). It returns
// the changed keys, with those of pending lookups. isWhole reports whether all counts that the
// record announces: otherwise the registry has to be read.
func (s *Reads) ObserveSent(now time.Time, id string, generation int64, record api.Instance, parts []api.Instance) (changed engine.Keys, isWhole bool) {
	changed = engine.Keys{}
	pages := s.observeSentRecord(now, id, generation, record, changed)
	if pages == nil {
		return nil, false
	}
	found := format.GroupByPage(parts)
	pages = slices.DeleteFunc(pages, func(page int) bool { return len(found[page]) == 0 })
	maps.Copy(changed, s.observePages(now, id, pages, found))
	s.mu.Lock()
	defer s.mu.Unlock()
	return changed, !s.catalogs.belief.IsBehind(id)
}

// observeSentRecord records a member record that a cluster has sent, and returns the pages that it
// announces and that were not read, nil if the record does not count.
func (s *Reads) observeSentRecord(now time.Time, id string, generation int64, record api.Instance, changed engine.Keys) (pages []int) {
	r, err := format.ParseMember(record, s.cfg.Identity.ClusterSetID)
	if err != nil || r.ClusterID != id || r.Generation != generation || id == s.cfg.Identity.ClusterID {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.sent(now, id, &r, changed) {
		return nil
	}
	for page := range s.asked {
		s.addResolvedBy(id, page, changed)
	}
	s.logMembers()
	_, units, _ := s.catalogs.belief.DueOf(id, now)
	return append([]int{}, pagesOf(units)...)
}

// Answer answers the question of another cluster for the time of the last record that this one has
// written, or begun to write; ok is false if it does not hold its ID.
func (s *Reads) Answer(now time.Time, id string) (at trust.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held || s.catalogs.clusters[id] == nil {
		return at, false
	}
	s.askedBy[id] = now
	return s.ours.Time(), true
}

// ObserveAnswer records that a cluster with a key has written no record later than at. It returns
// the changed keys, with those of pending lookups, and whether pages of the cluster have to be
// read.
func (s *Reads) ObserveAnswer(now time.Time, id string, key trust.Key, at trust.Time) (changed engine.Keys, isBehind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = engine.Keys{}
	cluster := s.catalogs.clusters[id]
	if cluster == nil || s.catalogs.belief.StateOf(id) != belief.First {
		return changed, false
	}
	s.catalogs.step(now, cluster, belief.Answered{Cluster: id, Key: key, At: at}, changed)
	s.catalogs.finish(now, cluster)
	for page := range s.asked {
		s.addResolvedBy(id, page, changed)
	}
	s.logMembers()
	return changed, s.catalogs.belief.IsBehind(id)
}

// ObserveUnreadablePages records that pages could not be read, so that the next reads of them are
// delayed. If AWS throttles the account, the next poll is delayed instead.
func (s *Reads) ObserveUnreadablePages(now time.Time, id string, pages []int, err error) {
	if api.IsThrottled(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, page := range pages {
		if id == s.cfg.Identity.ClusterID {
			s.shown().failed(now, page, err)
		} else {
			s.catalogs.observePage(now, id, pageRead{number: page, err: err}, engine.Keys{})
		}
	}
}

// ObserveMembers records a read of the members. If the own record is not among them, another writer
// removed or replaced it: it is written again, and its copy at heartbeats, after the own catalog
// was read: a copy that a clone has written may be all that shows how late the records are that
// others have read.
func (s *Reads) ObserveMembers(instances []api.Instance, changed engine.Keys) {
	used := s.usedNamespaces()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.catalogs.setUsed(now, used, changed)
	shown := format.FindMember(instances, s.cfg.Identity)
	if s.claim.state == Held && (shown == nil || !s.claim.isMine(*shown)) {
		isCopyDue := now.Sub(s.copied) >= s.cfg.HeartbeatInterval
		if isCopyDue {
			s.isDisplaced = true
			s.auditSoon()
		}
		if isCopyDue || now.Sub(s.recorded) > s.cfg.Intervals.Settle {
			s.announce = true
			s.WriteSignal.Set()
		}
	}
	if s.claim.state == Observing && shown == nil {
		s.shown().unannounced()
	}
	s.observePredecessor(s.claim.isOfOtherProcess(shown))
	s.shown().isMember = s.claim.joined
	s.catalogs.members(now, instances, s.counts, changed)
	s.logRefusal(now)
	if len(s.catalogs.newProcesses) > 0 && s.claim.state == Held {
		// it reads the pages of this cluster now, and may be the first to notice that another
		// writer removed some
		s.auditSoon()
		s.answerProcesses(now)
	}
	s.catalogs.newProcesses = nil
	s.countClusterSet(len(instances))
	s.logMembers()
}

// OneRecordEach returns the records without further ones of the same cluster: another member may
// write one under its ID into another service. Of several, one that is signed with the key that the
// cluster has counts, and of these the latest one.
func (s *Reads) OneRecordEach(records []api.Instance) []api.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, one := make(map[string]int, len(records)), make([]api.Instance, 0, len(records))
	for _, record := range records {
		i, isKnown := at[record.ID]
		switch {
		case !isKnown:
			at[record.ID], one = len(one), append(one, record)
		case s.catalogs.outranks(record, one[i]):
			one[i] = record
		}
	}
	return one
}

// usedNamespaces returns the namespaces whose exports are used, nil for all.
func (s *Reads) usedNamespaces() []string {
	if s.cfg.UsedNamespaces == nil {
		return nil
	}
	namespaces, ok := s.cfg.UsedNamespaces()
	if !ok {
		return nil
	}
	return append([]string{}, namespaces...)
}

// answerProcesses has the own record written, at most once in a heartbeat interval: the new process
// of another cluster that has not asked cannot know before that it has read the latest one. The
// caller holds s.mu.
func (s *Reads) answerProcesses(now time.Time) {
	isAwaited := slices.ContainsFunc(s.catalogs.newProcesses, func(id string) bool {
		return now.Sub(s.askedBy[id]) >= s.cfg.HeartbeatInterval
	})
	if isAwaited && now.Sub(s.answered) >= s.cfg.HeartbeatInterval {
		s.answered = now
		s.answerAt = now.Add(engine.AnswerDelay(s.cfg.Identity.ClusterID, len(s.catalogs.clusters)+1, s.cfg.HeartbeatInterval))
		s.WriteSignal.Set()
	}
}

// logRefusal logs at intervals that another writer stores records under this cluster's ID. The
// caller holds s.mu.
func (s *Reads) logRefusal(now time.Time) {
	if own := s.shown(); own.refusal != nil && own.refusedAt.Equal(now) && now.Sub(s.refusalLogged) >= refusalLogInterval {
		s.refusalLogged = now
		s.log.Error(own.refusal, "Refused the member record under this cluster's ID; writing this cluster's again", "cluster", s.cfg.Identity.ClusterID)
	}
}

// refusalLogInterval is the shortest time between two log lines about refused records under the own
// ID.
const refusalLogInterval = time.Minute

// counts reports whether a record with this cluster's ID counts: once this cluster holds the ID,
// only those that this process wrote, and before that those of this cluster. This process adopts no
// pages of another cluster: it would sign what another member has forged. The caller holds s.mu.
func (s *Reads) counts(r format.Member) bool {
	return s.claim.isMine(r) || s.claim.state != Held && s.claim.isOurs(r)
}

// logMembers logs which clusters joined, left, became stale or recovered since the last read. The
// caller holds s.mu.
func (s *Reads) logMembers() {
	var members []registry.Member
	add := func(id string, r *format.Member, lastSeen time.Time) {
		members = append(members, registry.Member{ClusterID: id, Version: r.Version, LastSeen: lastSeen, Stale: s.catalogs.isStale(id)})
	}
	if own := s.shown(); own.hasRecord {
		add(s.cfg.Identity.ClusterID, &own.record, own.lastSeen)
	}
	for id, cluster := range s.catalogs.clusters {
		if cluster.record != nil {
			add(id, cluster.record, cluster.lastSeen)
		}
	}
	s.members.Update(members)
}

// ObserveClaim updates the claim of the own ID. If this cluster holds it, it adopts the pages of
// the previous process.
func (s *Reads) ObserveClaim(shown *format.Member, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	before, refusedBefore, resumedBefore := s.claim.state, s.claim.refused(), s.claim.resumed
	if before == Observing {
		s.prepareRecord(shown)
	}
	write := s.claim.observe(now, shown, s.ours)
	if before != Observing {
		s.observeOtherProcess(shown, s.claim.resumed != resumedBefore)
	}
	if write {
		s.answerRival(now)
	}
	if s.claim.state == Acquiring && before == Observing {
		s.prepareClaim(now, shown)
	}
	if s.claim.state != before || s.claim.refused() != refusedBefore {
		s.handleClaimChange(before, changed)
	}
	if s.claim.state == Held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
}

// observeOtherProcess observes what another process of this cluster has written, or may have
// written, while this one has the ID. shown is the record that was read, nil for none, and resumed
// is set after a pause in which none was read. The caller holds s.mu.
func (s *Reads) observeOtherProcess(shown *format.Member, resumed bool) {
	if resumed {
		s.auditSoon() // the own catalog shows whether another process has written meanwhile
	}
	if shown != nil && s.claim.isOurs(*shown) {
		s.follow(shown) // it may be a late write of the previous process
	}
}

// follow makes the next record of this process later than one that another process of this cluster
// has written, and than the pages that it names. The caller holds s.mu.
func (s *Reads) follow(record *format.Member) {
	s.ours.Heartbeat = max(s.ours.Heartbeat, record.Heartbeat)
	s.ours.Generation = max(s.ours.Generation, record.Generation)
	s.outbox.raise(record.Generation, record.Author())
}

// observePredecessor observes whether the registry has a record or pages of a previous process. If
// there were none when this process claimed the ID, and its own record has not been read yet, a
// late read lacked them, or another user has restored a backup: they may be earlier versions, and
// no page is announced as it was found. The caller holds s.mu.
func (s *Reads) observePredecessor(found bool) {
	if found && s.claim.state == Acquiring {
		s.outbox.state.SetPredecessor(true)
	}
}

// prepareClaim prepares the writes of a claim in place of the record that is shown, nil if there is
// none. The caller holds s.mu.
func (s *Reads) prepareClaim(now time.Time, shown *format.Member) {
	s.copyRecord = true
	isLive := shown != nil && !shown.Farewell
	s.outbox.state.SetPredecessor(s.claim.joined || s.claim.hasHeld || isLive || s.leftovers)
	s.outbox.after(s.shown())
	s.pinEarlierOwner(now)
	if r := s.claim.taken; r.UID != "" && !r.Farewell && !s.claim.isOurs(r) {
		s.shown().replaced, s.shown().replacedAt = r.Key, now
	}
}

// answerRival writes the own record, and reads the own pages, which the rival may have written. A
// writer that overwrites the record of a member again and again must not make it write all the
// time: ObserveMembers has the rate. The caller holds s.mu.
func (s *Reads) answerRival(now time.Time) {
	isMember := s.claim.joined && s.claim.state == Held
	if !isMember {
		s.announce = true
		s.WriteSignal.Set()
	}
	if s.claim.state == Held {
		s.auditSoon()
		if !isMember {
			s.auditAt = now
		}
	}
}

// auditSoon makes the own pages be read at the next poll, but at most once in a heartbeat interval.
// The caller holds s.mu.
func (s *Reads) auditSoon() {
	s.auditAt = earlier(s.auditAt, s.audited.Add(s.cfg.HeartbeatInterval))
}

// pinEarlierOwner keeps the key of the silent cluster whose ID this cluster claims: the ID is that
// cluster's if it returns. The caller holds s.mu.
func (s *Reads) pinEarlierOwner(now time.Time) {
	if r := s.claim.taken; r.UID != "" && !s.claim.isOurs(r) && !s.claim.joined && !s.claim.isUnproven(now) {
		s.cfg.Keyring.Observe(trust.Record{Registry: s.cfg.ClientName, ClusterID: r.ClusterID, UID: r.UID, Key: r.Key, At: r.Time()})
	}
}

// maxAhead is how far the clock of another cluster with this ID may be ahead. Any member can write
// such a record: a time at the end of the range would leave no room for the records of this
// cluster.
const maxAhead = 5 * time.Minute

// prepareRecord creates the record to claim the ID with: later than all records with this ID whose
// times are plausible. The caller holds s.mu.
func (s *Reads) prepareRecord(shown *format.Member) {
	wall := s.cfg.WallClock()
	joined := wall.UTC().Truncate(time.Millisecond)
	s.outbox.latest = wall.Add(maxAhead).UnixMilli()
	heartbeat := s.ours.Heartbeat
	for _, before := range []*format.Member{s.ownCopy, shown} {
		if before == nil {
			continue
		}
		beat := before.Heartbeat
		if !s.claim.isOurs(*before) {
			beat = min(beat, s.outbox.latest)
		}
		heartbeat = max(heartbeat, beat)
		s.outbox.raise(before.Generation, before.Author())
		if s.claim.isOurs(*before) && !before.Farewell {
			joined = before.Joined
		}
	}
	// the saved heartbeat is later than all pages of the previous process
	s.outbox.generation = max(s.outbox.generation, heartbeat)
	if !s.cfg.Joined.IsZero() && s.cfg.Joined.Before(joined) {
		joined = s.cfg.Joined.UTC().Truncate(time.Millisecond)
	}
	properties, imports := s.properties, s.imports
	// of the previous process, until SetProperties and SetImports
	if shown != nil && s.claim.isOurs(*shown) {
		properties, imports = cmp.Or(properties, shown.Properties), cmp.Or(imports, shown.Imports)
	}
	s.ours = format.Member{
		Properties: properties, Imports: imports,
		ClusterID: s.cfg.Identity.ClusterID, ClusterSetID: s.cfg.Identity.ClusterSetID, UID: s.cfg.Identity.UID, Key: s.claim.keys[0],
		Version: s.cfg.Version, Contact: s.contact, Joined: joined, Heartbeat: heartbeat, Process: s.cfg.Process,
	}
}

// handleClaimChange handles a claim that was won or lost. The caller holds s.mu.
func (s *Reads) handleClaimChange(before ClaimState, changed engine.Keys) {
	switch {
	case s.claim.state == Held:
		s.log.Info("Joined the clusterset", "cluster", s.cfg.Identity.ClusterID)
		s.WriteSignal.Set()
		if s.view != nil {
			s.view.Activate()
		}
	case s.claim.state == Acquiring:
		s.outbox.nextGeneration(s.cfg.WallClock())
	case s.claim.refused() != "":
		s.log.Info("Found a duplicate cluster ID: exporting nothing until the other cluster is gone",
			"cluster", s.cfg.Identity.ClusterID, "uid", s.cfg.Identity.UID, "otherUID", s.claim.refused())
	}
	if s.claim.state == Observing && before != Observing {
		s.outbox.disown()
		if s.view != nil {
			s.view.Deactivate()
		}
	}
	s.addPending(changed)
	s.addOwnKeys(changed)
}

// adoptPages adopts the pages of the previous process, one by one as they are read. The caller
// holds s.mu.
func (s *Reads) adoptPages(now time.Time, changed engine.Keys) {
	shown := s.shown()
	for i := range s.outbox.pages {
		if s.outbox.isAdopted(i) {
			continue
		}
		page := &shown.pages[i]
		switch {
		case page.read && !page.lost && !s.claim.isHeldBack(now, i, page):
			s.outbox.adopt(i, page)
		case s.claim.isYoung():
			continue // the page that is not found may be what another process exports
		case page.unjoined > 0: // nothing of it is needed
			s.log.Info("Rebuilding a page of the previous process that cannot be read", "page", format.PageName(i), "error", page.trouble)
			s.outbox.abandon(i, page, shown.record)
		default:
			continue
		}
		s.addWanted(i, changed)
		s.WriteSignal.Set()
	}
}

// confirmPages compares the written pages with those that the registry shows. The caller holds
// s.mu.
func (s *Reads) confirmPages(now time.Time) {
	if s.outbox.confirm(now, s.shown()) || len(s.outbox.excess()) > 0 {
		s.WriteSignal.Set() // a read shows parts that were removed
	}
	s.count()
}

// countClusterSet updates the metrics of the whole clusterset, given the number of member records.
// The caller holds s.mu.
func (s *Reads) countClusterSet(members int) {
	s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "members", members, api.MaxDiscovered)
	if s.cfg.ReadOnly { // the clusters that write report the quota
		return
	}
	instances := members + s.shown().instances()
	for _, cluster := range s.catalogs.clusters {
		instances += cluster.instances()
	}
	s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "namespace", instances, s.cfg.InstancesPerNamespace)
}
