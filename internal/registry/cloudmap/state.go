package cloudmap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// state is what this cluster has read from the registry and wants to have there. Its methods make all decisions; they do no I/O. reader, writer
// and leaver carry the decisions out and record the results.
type state struct {
	cfg Config
	log logr.Logger
	// name is the client's name in metrics.
	name string
	// view is nil if the registry is only read.
	view *instances.View
	// readSignal and writeSignal wake the reader and the writer.
	readSignal, writeSignal engine.Signal

	mu       sync.Mutex
	catalogs *catalogs
	outbox   *outbox
	claim    claim
	members  *registry.MemberLog
	asked    engine.PendingLookups
	// ours is the own record as last written, or about to be written at recorded.
	ours     format.Member
	recorded time.Time
	// contact is the address for peer notifications, zero while there is no open socket.
	contact peernotify.Contact
	// requested are the keys that this process ever published or withdrew.
	requested keySet
	// leftovers is set if the last audit found pages.
	leftovers bool
	// announce requests a write of the record now.
	announce bool
	// catalogID is the service that the own pages were written to.
	catalogID string
	// heldSince is when the claim was last won.
	heldSince time.Time
	// auditAt is when all own pages are read next.
	auditAt time.Time
	// firstAsk and lastAsk are the times of the first and the last change that is not written yet; zero if there is none.
	firstAsk, lastAsk time.Time
	// pagesWritten is when pages were last written.
	pagesWritten time.Time
	// readProblem and writeProblem are the reasons why reading and writing do not work.
	readProblem, writeProblem *engine.Problem
}

func newState(cfg Config, name string) *state {
	return &state{
		cfg: cfg, log: cfg.Logger, name: name,
		readSignal: engine.NewSignal(), writeSignal: engine.NewSignal(),
		catalogs:  newCatalogs(cfg.Identity, cfg.StaleAfter, cfg.PollInterval, cfg.times.settle),
		outbox:    newOutbox(cfg.Identity.ClusterID),
		claim:     claim{identity: cfg.Identity, silence: cfg.silence(), settle: cfg.times.settle},
		members:   registry.NewMemberLog(cfg.Logger, cfg.Identity.ClusterID),
		asked:     engine.PendingLookups{},
		requested: keySet{},
		readProblem: engine.NewProblem(cfg.Logger, "Failed to read the clusterset from AWS Cloud Map; its last known state stays",
			"Reading the clusterset from AWS Cloud Map works again", isExpected),
		writeProblem: engine.NewProblem(cfg.Logger, "Failed to write to AWS Cloud Map; retrying", "Writing to AWS Cloud Map works again", isExpected),
	}
}

// isExpected reports whether an error is part of normal operation: throttling, and late reads of what was just created.
func isExpected(err error) bool { return api.IsThrottled(err) || api.IsNotFound(err) }

// isJoined reports whether this cluster holds or acquires its ID.
func (s *state) isJoined() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.state != watching
}

// setContact sets the address for peer notifications in the own record.
func (s *state) setContact(contact peernotify.Contact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact = contact
	if !contact.Address.IsValid() {
		return // the record keeps it until the next one is written
	}
	s.ours.Contact = contact
	if s.claim.state != watching {
		s.announce = true
		s.writeSignal.Set()
	}
}

// addResolved adds the keys of pending lookups that have another answer now.
func (s *state) addResolved(changed keySet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.catalogs.synced {
		s.asked.AddChanged(changed, s.catalogs.look)
	}
}

// setLocation records where the clusterset's records are. If the catalog is another one than before, because the namespace or the catalog was
// deleted, everything is written again.
func (s *state) setLocation(place controlPlace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if place.isNew {
		s.claim.settle = 0 // there was no previous process
	}
	if moved := s.catalogID != "" && s.catalogID != place.catalog.ID; moved {
		s.log.Info("Writing this cluster's records again: they were deleted from AWS Cloud Map", "namespace", place.namespace.Name)
		s.outbox.rewrite()
		s.announce = s.claim.state != watching
		s.writeSignal.Set()
		if s.view != nil {
			s.view.EnqueueAll()
		}
	}
	s.catalogID = place.catalog.ID
}

// contacts returns the addresses of the other live clusters that take peer notifications; none before this cluster holds its ID.
func (s *state) contacts() (contacts []peernotify.Contact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != held {
		return nil
	}
	for id, cluster := range s.catalogs.clusters {
		if id != s.cfg.Identity.ClusterID && s.catalogs.live(id) && s.cfg.PeerNotifications.Contact.Reaches(cluster.record.Contact) {
			contacts = append(contacts, cluster.record.Contact)
		}
	}
	return contacts
}

// peers returns all live clusters as the registry shows them. urgent is set if a change is expected that no peer notification announces.
func (s *state) peers(now time.Time) (peers []peernotify.Peer, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	urgent = !s.contact.Address.IsValid() || s.claim.state != held || s.outbox.unconfirmed() || s.catalogs.incomplete
	for id, cluster := range s.catalogs.clusters {
		urgent = urgent || !cluster.absentSince.IsZero() || cluster.behind(now)
		own := id == s.cfg.Identity.ClusterID
		if s.catalogs.live(id) && (!own || s.claim.state == held) {
			peers = append(peers, peernotify.Peer{
				ClusterID: id, Token: cluster.record.Contact.Token, Generation: cluster.record.Generation, Behind: cluster.behind(now),
			})
		}
	}
	return peers, urgent
}

// setDesired sets the desired export of key, nil to withdraw it.
func (s *state) setDesired(key mcs.Key, exp *mcs.Export) error {
	if exp == nil {
		s.request(key, nil)
		return nil
	}
	if err := record.Check(*exp); err != nil {
		return &registry.InvalidExportError{Key: exp.Key, Reason: err.Error()}
	}
	canonical := exp.Canonical()
	s.request(exp.Key, &canonical)
	return nil
}

// request sets the desired export of key and wakes the writer.
func (s *state) request(key mcs.Key, exp *mcs.Export) {
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
	s.writeSignal.Set()
	if s.view != nil {
		s.view.Enqueue(key)
	}
}

// lookup returns the View of key.
func (s *state) lookup(key mcs.Key) (registry.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.synced {
		return registry.View{}, s.asked.NotSynced(key, s.readProblem.Err())
	}
	view := s.asked.Lookup(key, s.catalogs.look)
	if !s.cfg.ReadOnly {
		view.Local = s.publication(key)
	}
	return view, nil
}

// publication returns the status of the own export of key. The caller holds s.mu.
func (s *state) publication(key mcs.Key) registry.PublishStatus {
	want, asked := s.outbox.pages[format.PageOf(key)].want[key]
	if uid := s.claim.refused(); uid != "" {
		// What the registry shows is the other cluster's.
		if !asked || want == nil {
			return registry.PublishStatus{State: registry.Absent}
		}
		return registry.PublishStatus{State: registry.Pending, Err: &registry.DuplicateIDError{ClusterID: s.cfg.Identity.ClusterID, OtherUID: uid}}
	}
	result := s.outbox.publication(key, s.shown())
	if result.State == registry.Pending && result.Err == nil {
		result.Err = cmp.Or(s.writeProblem.Err(), s.readProblem.Err())
	}
	if s.view != nil && result.State == registry.Exported {
		result.Warnings = s.view.Warnings(key)
	}
	return result
}

// shown returns the own catalog as the registry shows it. The caller holds s.mu.
func (s *state) shown() *catalog {
	if own := s.catalogs.own(); own != nil {
		return own
	}
	return &catalog{}
}

// listMembers returns the members.
func (s *state) listMembers() ([]registry.Member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.synced {
		return nil, fmt.Errorf("listing members: %w", registry.NotSynced(s.readProblem.Err()))
	}
	return s.catalogs.list(), nil
}

// addPending adds the keys with a pending publication. The caller holds s.mu.
func (s *state) addPending(keys keySet) {
	for i := range s.outbox.pages {
		for key := range s.outbox.pages[i].want {
			if s.publication(key).State == registry.Pending {
				keys[key] = struct{}{}
			}
		}
	}
}

// desiredInstances returns the export of key that the instance view mirrors, nil for none. It is not known for exports of the previous
// process that were neither published nor withdrawn since.
func (s *state) desiredInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.outbox.pages[format.PageOf(key)]
	if exp, asked := p.want[key]; asked {
		return exp, true
	}
	_, left := p.exports[key]
	_, requested := s.requested[key]
	return nil, p.adopted && !left && (requested || time.Since(s.heldSince) >= s.cfg.times.adoptionGracePeriod)
}

// hiddenInstances is desiredInstances without an instance view: none, once the pages contain what the instances contain.
func (s *state) hiddenInstances(key mcs.Key) (exp *mcs.Export, known bool) {
	exp, known = s.desiredInstances(key)
	if exp == nil {
		return nil, known
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil, s.publication(key).State == registry.Exported
}

// addOwnKeys adds all keys of the own pages as shown. The caller holds s.mu.
func (s *state) addOwnKeys(keys keySet) {
	for i := range s.shown().pages {
		for key := range s.shown().pages[i].exports {
			keys[key] = struct{}{}
		}
	}
}

// report returns what the status endpoint shows.
func (s *state) report() registry.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := keySet{}
	for _, cluster := range s.catalogs.clusters {
		for i := range cluster.pages {
			for key := range cluster.pages[i].exports {
				keys[key] = struct{}{}
			}
		}
	}
	for i := range s.outbox.pages {
		for key, exp := range s.outbox.pages[i].want {
			if exp != nil {
				keys[key] = struct{}{}
			}
		}
	}
	report := registry.Report{Keys: slices.Collect(maps.Keys(keys)), Reading: s.readProblem.Err(), Writing: s.writeProblem.Err()}
	if uid := s.claim.refused(); uid != "" {
		report.Writing = &registry.DuplicateIDError{ClusterID: s.cfg.Identity.ClusterID, OtherUID: uid}
	}
	return report
}
