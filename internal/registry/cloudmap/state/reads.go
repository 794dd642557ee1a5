package state

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// Reads records what was read from the registry and decides what to read next.
type Reads struct {
	*shared
	members *registry.MemberLog
	// auditAt is when all own pages are read next.
	auditAt time.Time
	// leftovers is set if the last audit found pages.
	leftovers bool
}

// CatalogRead is a request to read pages of a cluster.
type CatalogRead struct {
	ClusterID string
	Pages     []int
}

// SetError records the result of a poll and returns the keys with another status now.
func (s *Reads) SetError(err error) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	if s.readProblem.Set(err) {
		s.addPending(changed)
	}
	return changed
}

// ObserveFailure records that the members could not be read.
func (s *Reads) ObserveFailure() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalogs.liveness.ObserveFailure()
}

// IsAuditDue reports whether all own pages have to be read: before the ID is claimed, because another cluster may have written them, and at
// intervals.
func (s *Reads) IsAuditDue(now time.Time, shown *format.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.free(now, shown) || s.claim.state != Observing && !now.Before(s.auditAt)
}

// ObserveAudit records a read of all own pages.
func (s *Reads) ObserveAudit(now time.Time, shown *format.Member, stored []api.Instance, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auditAt = now.Add(s.cfg.Intervals.Audit)
	s.leftovers = len(format.GroupByPage(stored)) > 0
	if shown == nil && s.leftovers {
		// Pages are written under a record and removed before it: their writer may be alive and write the record again.
		s.claim.settle = max(s.claim.settle, s.claim.silence)
	}
	s.catalogs.audit(now, stored, changed)
}

// StaleReads returns the pages that have to be read, and the clusters without a record whose catalog has to be read.
func (s *Reads) StaleReads(now time.Time) (wanted []CatalogRead, absent []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, cluster := range s.catalogs.clusters {
		if id == s.cfg.Identity.ClusterID && s.cfg.ReadOnly {
			continue // what this cluster may have left here is never imported
		}
		if pages := cluster.wanted(now); len(pages) > 0 {
			wanted = append(wanted, CatalogRead{ClusterID: id, Pages: pages})
		}
	}
	return wanted, s.catalogs.absent(now)
}

// ObservePage records a read of a page and returns the changed keys, with those of pending lookups.
func (s *Reads) ObservePage(now time.Time, id string, page int, found []api.Instance) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	s.catalogs.page(now, id, page, found, changed)
	if s.catalogs.synced {
		s.asked[page].AddChanged(changed, s.catalogs.lookFor)
	}
	if id == s.cfg.Identity.ClusterID && s.claim.state == Held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
	return changed
}

// ObserveUnreadablePages records that pages could not be read.
func (s *Reads) ObserveUnreadablePages(now time.Time, id string, pages []int, err error) {
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

// ObserveCatalog records whether a cluster without a record has pages, and returns the changed keys.
func (s *Reads) ObserveCatalog(now time.Time, id string, hasPages bool) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	s.catalogs.verified(now, id, hasPages, changed)
	return changed
}

// RemoveAll removes all clusters and returns their keys.
func (s *Reads) RemoveAll(now time.Time) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	for id := range s.catalogs.clusters {
		s.catalogs.remove(now, id, changed)
	}
	return changed
}

// ObserveMembers records a read of the members, unless it cannot be right: our own record is there once we have joined.
func (s *Reads) ObserveMembers(location Location, instances []api.Instance, changed engine.Keys) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state == Held && format.FindMember(instances, s.cfg.Identity) == nil {
		if time.Since(s.recorded) > s.cfg.Intervals.Settle {
			// Another writer removed it. Until it is back, other clusters may take this cluster for gone, or its ID for free.
			s.announce = true
			s.WriteSignal.Set()
		}
		return false
	}
	s.catalogs.suspect(location)
	if s.claim.state == Observing && format.FindMember(instances, s.cfg.Identity) == nil {
		s.catalogs.unannounced()
	}
	s.catalogs.members(time.Now(), instances, changed)
	s.countClusterSet(len(instances))
	s.logMembers()
	return true
}

// logMembers logs which clusters joined, left, became stale or recovered since the last read. The caller holds s.mu.
func (s *Reads) logMembers() {
	var members []registry.Member
	for id, cluster := range s.catalogs.clusters {
		if cluster.hasRecord {
			members = append(members, registry.Member{ClusterID: id, Version: cluster.record.Version, LastSeen: cluster.lastSeen, Stale: s.catalogs.liveness.IsStale(id)})
		}
	}
	s.members.Update(members)
}

// ObserveClaim updates the claim of the own ID. If this cluster holds it, it adopts the pages of the previous process.
func (s *Reads) ObserveClaim(shown *format.Member, changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	before, refusedBefore := s.claim.state, s.claim.refused()
	if before == Observing {
		s.prepareRecord(shown)
	}
	if s.claim.observe(now, shown, s.ours) {
		s.announce = true
		s.WriteSignal.Set()
		if s.claim.state == Held {
			s.auditAt = now // the other cluster may have written our pages
		}
	}
	if s.claim.state == Acquiring && before == Observing {
		s.outbox.orphanedPages = shown == nil && s.leftovers
		s.outbox.after(s.shown())
	}
	if s.claim.state != before || s.claim.refused() != refusedBefore {
		s.handleClaimChange(now, before, changed)
	}
	if s.claim.state == Held {
		s.adoptPages(now, changed)
		s.confirmPages(now)
	}
}

// prepareRecord creates the record to claim the ID with. The caller holds s.mu.
func (s *Reads) prepareRecord(shown *format.Member) {
	joined := s.cfg.WallClock().UTC().Truncate(time.Millisecond)
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

// handleClaimChange handles a claim that was won or lost. The caller holds s.mu.
func (s *Reads) handleClaimChange(now time.Time, before ClaimState, changed engine.Keys) {
	switch {
	case s.claim.state == Held:
		s.heldSince = now
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

// adoptPages adopts the pages of the previous process, one by one as they are read. The caller holds s.mu.
func (s *Reads) adoptPages(now time.Time, changed engine.Keys) {
	shown := s.shown()
	for i := range s.outbox.pages {
		if s.outbox.pages[i].adopted {
			continue
		}
		switch page := &shown.pages[i]; {
		case page.read && !page.lost:
			s.outbox.adopt(i, page)
		case page.unjoined > eagerRetries && now.Sub(s.heldSince) >= s.cfg.Intervals.Adopt: // failed requests show nothing of it
			s.log.Info("Rebuilding a page of the previous process that cannot be read", "page", format.PageName(i), "error", page.trouble)
			s.outbox.abandon(i, page, shown.record)
		default:
			continue
		}
		for key := range s.outbox.pages[i].want {
			changed[key] = struct{}{}
		}
		s.WriteSignal.Set()
	}
}

// confirmPages compares what was written with what is shown. The caller holds s.mu.
func (s *Reads) confirmPages(now time.Time) {
	for _, page := range s.outbox.confirm(now, s.shown(), s.cfg.Intervals.Confirm) {
		s.outbox.pages[page].torn = true
		s.WriteSignal.Set()
	}
	if len(s.outbox.excess()) > 0 {
		s.WriteSignal.Set() // a read shows parts that were removed
	}
	s.count()
}

// countClusterSet updates the metrics of the whole clusterset, given the number of member records. The caller holds s.mu.
func (s *Reads) countClusterSet(members int) {
	s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "members", members, api.MaxDiscovered)
	if !s.cfg.ReadOnly { // the clusters that write report the quota
		s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "namespace", members+s.catalogs.parts(), s.cfg.InstancesPerNamespace)
	}
}
