package state

import (
	"cmp"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// shared is the part of the state that reads and writes have in common. mu guards it and the fields
// of State, Reads and Writes, because one read of the members may change the claim and the pages to
// write.
type shared struct {
	cfg Config
	log logr.Logger
	// view is nil if the registry is only read.
	view *instances.View
	// ReadSignal and WriteSignal wake the reader and the writer.
	ReadSignal  engine.Signal
	WriteSignal WriteSignal

	mu       sync.Mutex
	catalogs *catalogs
	// asked are the pending lookups by the page of their keys: a read of a page can resolve no
	// others.
	asked  [format.PageCount]*engine.PendingLookups
	outbox *outbox
	claim  claim
	// ours is the own record as last written, or about to be written at recorded.
	ours     format.Member
	recorded time.Time
	// announce requests a write of the record now, copyRecord one of its copy in the own catalog,
	// too. copied is the time at which that was last written.
	announce, copyRecord bool
	copied               time.Time
	// answerAt is the time at which the record is written for a new process of another cluster,
	// zero if there is none.
	answerAt time.Time
	// contact is the address for peer notifications, zero while there is no open socket.
	contact peernotify.Contact
	// properties are the encoded ClusterProperties of this cluster, "" while they are not known.
	properties string
	// imports is the report of this cluster's imports, "" while it is not known.
	imports mcs.ImportReport
	// readProblem, writeProblem and pageProblem are the reasons why reading, writing the own
	// record, and writing pages do not work.
	readProblem, writeProblem, pageProblem *engine.Problem
	// pagesErr is the reason why no page can be written.
	pagesErr error
}

// WriteSignal wakes the writer of the record and the writer of the pages.
type WriteSignal struct{ Record, Pages engine.Signal }

// Set wakes both. It never blocks.
func (s WriteSignal) Set() {
	s.Record.Set()
	s.Pages.Set()
}

func newShared(cfg Config) *shared {
	s := &shared{
		cfg: cfg, log: cfg.Logger,
		ReadSignal: engine.NewSignal(), WriteSignal: WriteSignal{Record: engine.NewSignal(), Pages: engine.NewSignal()},
		catalogs: newCatalogs(cfg),
		outbox:   newOutbox(cfg),
		claim:    newClaim(cfg),
		readProblem: engine.NewProblem(cfg.Logger, "Failed to read the clusterset from AWS Cloud Map; its last known state stays",
			"Reading the clusterset from AWS Cloud Map works again", api.IsExpected),
		writeProblem: engine.NewProblem(cfg.Logger, "Failed to write to AWS Cloud Map; retrying", "Writing to AWS Cloud Map works again", api.IsExpected),
		pageProblem: engine.NewProblem(cfg.Logger, "Failed to write pages to AWS Cloud Map; retrying", "Writing pages to AWS Cloud Map works again",
			api.IsExpected),
	}
	for page := range s.asked {
		s.asked[page] = engine.NewPendingLookups(engine.MaxPendingLookups / format.PageCount)
	}
	return s
}

// publication returns the status of the own export of key. The caller holds s.mu.
func (s *shared) publication(key mcs.Key) registry.PublishStatus {
	if uid := s.claim.refused(); uid != "" {
		// The registry shows the exports of the other cluster.
		if want, _ := s.outbox.state.WantOf(key); want == nil {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: &registry.DuplicateIDError{ClusterID: s.cfg.Identity.ClusterID, OtherUID: uid}}
	}
	result := s.outbox.publication(time.Now(), key, s.shown())
	if result.State == registry.Pending && result.Err == nil {
		result.Err = cmp.Or(s.writeProblem.Err(), s.readProblem.Err())
		if page := &s.shown().pages[format.PageOf(key)]; result.Err == nil && page.lost && page.has(key) {
			result.Err = errPageGone
		}
	}
	if s.view != nil && result.State == registry.Exported {
		result.Warnings = s.view.Warnings(key)
	}
	return result
}

// shown returns the own catalog as the registry shows it. The caller holds s.mu.
func (s *shared) shown() *ownCatalog { return s.catalogs.own }

// addResolved adds the keys of pending lookups that have another answer now. The caller holds s.mu.
func (s *shared) addResolved(changed engine.Keys) {
	if s.catalogs.isSynced() {
		for page := range s.asked {
			s.asked[page].AddChanged(changed, s.catalogs.belief.StatusOf)
		}
	}
}

// addResolvedBy is addResolved for the keys of a page after it was read of one cluster. The caller
// holds s.mu.
func (s *shared) addResolvedBy(clusterID string, page int, changed engine.Keys) {
	switch {
	case !s.catalogs.isSynced():
	case s.catalogs.belief.IsOpen(unitNames[page]):
		s.asked[page].AddChangedOf(clusterID, changed, s.catalogs.belief.StatusOf)
	default:
		s.asked[page].AddChanged(changed, s.catalogs.belief.StatusOf)
	}
}

// addPending adds the keys with a pending publication. The caller holds s.mu.
func (s *shared) addPending(keys engine.Keys) {
	for key := range s.outbox.state.Wanted {
		if s.publication(key).State == registry.Pending {
			keys[key] = struct{}{}
		}
	}
}

// addOwnKeys adds all keys of the own pages as shown. The caller holds s.mu.
func (s *shared) addOwnKeys(keys engine.Keys) {
	for key := range s.shown().exported {
		keys[key] = struct{}{}
	}
}

// count updates the metrics of the own catalog and of the pages to write. The caller holds s.mu.
func (s *shared) count() {
	exports, pages := s.outbox.state.Size()
	s.cfg.Metrics.SetObjects(s.cfg.ClientName, "exports", exports)
	s.cfg.Metrics.SetObjects(s.cfg.ClientName, "pages", pages)
	s.cfg.Metrics.SetPending(s.cfg.ClientName, "pages", s.outbox.state.CountWaiting())
	s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "page", s.outbox.largest(), format.MaxParts)
	s.cfg.Metrics.SetLimitUsed(s.cfg.ClientName, "catalog", s.outbox.instances(), catalogRoom)
}
