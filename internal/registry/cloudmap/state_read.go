package cloudmap

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// setReadError records the result of a poll and returns the keys with another status now.
func (s *state) setReadError(err error) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := keySet{}
	if s.readProblem.Set(err) {
		s.addPending(changed)
	}
	return changed
}

// observeFailedRead records that the members could not be read.
func (s *state) observeFailedRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.liveness.ObserveFailure()
}

// isAuditDue reports whether all own pages have to be read: before the ID is claimed, because another cluster may have written them, and at
// intervals.
func (s *state) isAuditDue(now time.Time, shown *format.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.free(now, shown) || s.claim.state != watching && !now.Before(s.auditAt)
}

// observeAudit records a read of all own pages.
func (s *state) observeAudit(now time.Time, shown *format.Member, stored []api.Instance, changed keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auditAt = now.Add(s.cfg.times.audit)
	s.leftovers = len(format.GroupByPage(stored)) > 0
	if shown == nil && s.leftovers {
		// Pages are written under a record and removed before it: their writer may be alive and write the record again.
		s.claim.settle = max(s.claim.settle, s.claim.silence)
	}
	s.catalogs.audit(now, stored, changed)
}

// staleReads returns the pages that have to be read, and the clusters without a record whose catalog has to be read.
func (s *state) staleReads(now time.Time) (wanted []catalogRead, absent []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, cluster := range s.catalogs.clusters {
		if id == s.cfg.Identity.ClusterID && s.cfg.ReadOnly {
			continue // what this cluster may have left here is never imported
		}
		if pages := cluster.wanted(now); len(pages) > 0 {
			wanted = append(wanted, catalogRead{id, pages})
		}
	}
	return wanted, s.catalogs.absent(now)
}

// observePage records a read of a page and returns the changed keys.
func (s *state) observePage(now time.Time, id string, page int, found []api.Instance) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := keySet{}
	s.catalogs.page(now, id, page, found, changed)
	if id == s.cfg.Identity.ClusterID && s.claim.state == held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
	return changed
}

// observeUnreadablePages records that pages could not be read.
func (s *state) observeUnreadablePages(now time.Time, id string, pages []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cluster := s.catalogs.clusters[id]; cluster != nil {
		for _, page := range pages {
			p := &cluster.pages[page]
			p.trouble = err.Error()
			p.failed(now, s.cfg.PollInterval)
		}
	}
}

// observeCatalog records whether a cluster without a record has pages, and returns the changed keys.
func (s *state) observeCatalog(now time.Time, id string, hasPages bool) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := keySet{}
	s.catalogs.verified(now, id, hasPages, changed)
	return changed
}

// removeAll removes all clusters and returns their keys.
func (s *state) removeAll(now time.Time) keySet {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := keySet{}
	for id := range s.catalogs.clusters {
		s.catalogs.remove(now, id, changed)
	}
	return changed
}

// observeMembers records a read of the members, unless it cannot be right: our own record is there once we have joined.
func (s *state) observeMembers(place controlPlace, instances []api.Instance, changed keySet) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state == held && format.FindMember(instances, s.cfg.Identity) == nil {
		if time.Since(s.recorded) > s.cfg.times.settle {
			// Another writer removed it. The sooner it is back, the fewer take this cluster for gone, or its ID for free.
			s.announce = true
			s.writeSignal.Set()
		}
		return false
	}
	s.catalogs.suspect(place)
	if s.claim.state == watching && format.FindMember(instances, s.cfg.Identity) == nil {
		s.catalogs.unannounced()
	}
	s.catalogs.members(time.Now(), instances, changed)
	s.countShared(len(instances))
	s.logMembers()
	return true
}

// logMembers logs who came, who went, and who lives or not, since the last read. The caller holds s.mu.
func (s *state) logMembers() {
	var members []registry.Member
	for id, cluster := range s.catalogs.clusters {
		if cluster.hasRecord {
			members = append(members, registry.Member{ClusterID: id, Version: cluster.record.Version, LastSeen: cluster.lastSeen, Stale: s.catalogs.liveness.IsStale(id)})
		}
	}
	s.members.Update(members)
}

// observeClaim decides whose our ID is, and takes over what the previous process of this cluster left when it is ours.
func (s *state) observeClaim(shown *format.Member, changed keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	before, refusedBefore := s.claim.state, s.claim.refused()
	if before == watching {
		s.prepareRecord(shown)
	}
	if s.claim.observe(now, shown, s.ours) {
		s.announce = true
		s.writeSignal.Set()
		if s.claim.state == held {
			s.auditAt = now // the other cluster may have written our pages
		}
	}
	if s.claim.state == claiming && before == watching {
		s.outbox.orphanedPages = shown == nil && s.leftovers
		s.outbox.after(s.shown())
	}
	if s.claim.state != before || s.claim.refused() != refusedBefore {
		s.claimChanged(now, before, changed)
	}
	if s.claim.state == held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
}

// prepareRecord makes the record that we would claim the ID with. The caller holds s.mu.
func (s *state) prepareRecord(shown *format.Member) {
	joined := s.cfg.wall().UTC().Truncate(time.Millisecond)
	if shown != nil {
		s.outbox.generation = max(s.outbox.generation, shown.Generation)
		s.ours.Heartbeat = max(s.ours.Heartbeat, shown.Heartbeat)
		if shown.IsOf(s.cfg.Identity) {
			joined = shown.Joined
		}
	}
	s.ours = format.Member{
		ClusterID: s.cfg.Identity.ClusterID, ClusterSetID: s.cfg.Identity.ClusterSetID,
		UID: s.cfg.Identity.UID, Version: s.cfg.Version, Contact: s.contact, Joined: joined, Heartbeat: s.ours.Heartbeat,
	}
}

// claimChanged acts upon a claim that was won or lost. The caller holds s.mu.
func (s *state) claimChanged(now time.Time, before claimState, changed keySet) {
	switch {
	case s.claim.state == held:
		s.heldSince = now
		s.log.Info("Joined the clusterset", "cluster", s.cfg.Identity.ClusterID)
		s.writeSignal.Set()
		if s.view != nil {
			s.view.Activate()
		}
	case s.claim.state == claiming:
		s.outbox.nextGeneration(s.cfg.wall())
	case s.claim.refused() != "":
		s.log.Info("Found a duplicate cluster ID: exporting nothing until the other cluster is gone",
			"cluster", s.cfg.Identity.ClusterID, "uid", s.cfg.Identity.UID, "otherUID", s.claim.refused())
	}
	if s.claim.state == watching && before != watching {
		s.outbox.disown()
		if s.view != nil {
			s.view.Deactivate()
		}
	}
	s.addPending(changed)
	s.addOwnKeys(changed)
}

// adoptPages makes the pages as shown the base of what is written, one by one as they become known. The caller holds s.mu.
func (s *state) adoptPages(now time.Time, changed keySet) {
	shown := s.shown()
	for i := range s.outbox.pages {
		if s.outbox.pages[i].adopted {
			continue
		}
		switch page := &shown.pages[i]; {
		case page.read && !page.lost:
			s.outbox.adopt(i, page)
		case page.failures > eagerRetries && now.Sub(s.heldSince) >= s.cfg.times.adopt:
			s.log.Info("Rebuilding a page of the previous process that cannot be read", "page", format.PageName(i), "error", page.trouble)
			s.outbox.abandon(i, page, shown.record)
		default:
			continue
		}
		for key := range s.outbox.pages[i].want {
			changed[key] = struct{}{}
		}
		s.writeSignal.Set()
	}
}

// confirmPages compares what was written with what is shown. The caller holds s.mu.
func (s *state) confirmPages(now time.Time) {
	for _, page := range s.outbox.confirm(now, s.shown(), s.cfg.times.confirm) {
		s.outbox.pages[page].torn = true
		s.writeSignal.Set()
	}
	s.count()
}

// count tells the metrics what this cluster has in its catalog and what waits to get there. The caller holds s.mu.
func (s *state) count() {
	exports, pages := s.outbox.size()
	s.cfg.Metrics.SetObjects(s.name, "exports", exports)
	s.cfg.Metrics.SetObjects(s.name, "pages", pages)
	s.cfg.Metrics.SetPending(s.name, "pages", s.outbox.waiting())
	s.cfg.Metrics.SetLimitUsed(s.name, "page", s.outbox.largest(), format.MaxParts)
	s.cfg.Metrics.SetLimitUsed(s.name, "catalog", s.outbox.instances(), catalogRoom)
}

// countShared tells the metrics what all clusters of the clusterset have together, of which members records were read. The caller
// holds s.mu.
func (s *state) countShared(members int) {
	s.cfg.Metrics.SetLimitUsed(s.name, "members", members, api.MaxDiscovered)
	if !s.cfg.ReadOnly { // where it is only read, those who write see to the quota
		s.cfg.Metrics.SetLimitUsed(s.name, "namespace", members+s.catalogs.parts(), s.cfg.InstancesPerNamespace)
	}
}
