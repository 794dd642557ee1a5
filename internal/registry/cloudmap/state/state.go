package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// A State has the records that this cluster has read, and the desired state of its own records. It
// makes all decisions and does no I/O. The reader records its reads in Reads. The writer takes its
// work from Writes and records the results there.
type State struct {
	*shared
	Reads  *Reads
	Writes *Writes

	// catalogID is the service that the own pages were written to.
	catalogID string
	// isReadWanted is set by a lookup that waits for pages, until TakeReadWanted.
	isReadWanted bool
}

// New returns the state of a cluster that has read and written nothing.
func New(cfg Config) *State {
	s := newShared(cfg)
	return &State{
		shared: s,
		Reads:  &Reads{shared: s, decoding: make(chan struct{}, decoders), members: registry.NewMemberLog(cfg.Logger, cfg.Identity.ClusterID), askedBy: map[string]time.Time{}},
		Writes: &Writes{shared: s, eager: engine.NewPace[struct{}](eagerWrites, eagerBurst)},
	}
}

// SetView sets the instance view that is notified of changes. It must be called before the state is
// used.
func (s *State) SetView(view *instances.View) { s.view = view }

// Claim returns the state of the claim of the own cluster ID.
func (s *State) Claim() ClaimState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.state
}

// IsMember reports whether the ID is this cluster's, even if another user replaces its record.
func (s *State) IsMember() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.joined
}

// WasMember reports whether other clusters may know exports of this cluster, by this process or a
// previous one.
func (s *State) WasMember() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.joined || s.claim.hasHeld
}

// SetContact sets the address for peer notifications in the own record.
func (s *State) SetContact(contact peernotify.Contact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact = contact
	if !contact.Address.IsValid() {
		return // the record keeps it until the next one is written
	}
	s.ours.Contact = contact
	if s.claim.state != Observing {
		s.announce = true
		s.WriteSignal.Set()
	}
}

// SetProperties sets the ClusterProperties in the own record, and has it announced like a change of
// pages.
func (s *State) SetProperties(properties mcs.Properties) {
	published, _ := properties.Publishable()
	encoded := published.Encode()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.properties == encoded {
		return
	}
	s.properties, s.outbox.news.isForAll = encoded, true
	if s.ours.Properties == encoded || s.claim.state == Observing {
		return // prepareRecord sets it
	}
	s.ours.Properties = encoded
	s.announce = true
	if s.Writes.unannounced.IsZero() {
		// the record gets a new generation, which peer notifications announce
		s.Writes.unannounced = time.Now()
	}
	s.WriteSignal.Set()
}

// SetImports sets the report of imports that the next write of the own record has.
func (s *State) SetImports(report mcs.ImportReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imports = report
}

// AddResolved adds the keys of pending lookups that have another answer now.
func (s *State) AddResolved(changed engine.Keys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addResolved(changed)
}

// Forget drops everything that was read of another cluster, and returns its keys.
func (s *State) Forget(clusterID string) engine.Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := engine.Keys{}
	if clusterID != s.cfg.Identity.ClusterID {
		s.catalogs.forget(time.Now(), clusterID, changed)
	}
	return changed
}

// SetLocation records where the clusterset's records are. If the catalog is another one than
// before, because the namespace or the catalog was deleted, everything is written again.
func (s *State) SetLocation(location Location) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ours.Heartbeat = max(s.ours.Heartbeat, location.Heartbeat)
	if location.IsNew && !s.claim.joined {
		s.claim.settle, s.claim.isFirst = 0, true // there was no previous process
	}
	if moved := s.catalogID != "" && s.catalogID != location.CatalogID; moved {
		s.log.Info("Writing this cluster's records again: they were deleted from AWS Cloud Map", "namespace", location.Namespace)
		s.outbox.state.Reset()
		s.announce, s.copyRecord = s.claim.state != Observing, true
		s.WriteSignal.Set()
		if s.view != nil {
			s.view.EnqueueAll()
		}
	}
	s.catalogID = location.CatalogID
}

// Receivers returns the other live clusters that own sends peer notifications to, with the
// generation of the last change for each; none before this cluster holds its ID.
func (s *State) Receivers(own peernotify.Contact) (receivers []peernotify.Receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.state != Held {
		return nil
	}
	for id, cluster := range s.catalogs.clusters {
		if s.isContact(id, cluster, own) {
			receivers = append(receivers, peernotify.Receiver{Contact: cluster.record.Contact, Generation: cluster.news})
		}
	}
	return receivers
}

// A Contacted is another cluster that this process can ask for its last record.
type Contacted struct {
	peernotify.Contact
	ClusterID string
	// Key has signed the record of which the contact is.
	Key trust.Key
	// IsFirst is set while this process has read one record of the cluster, which may be old.
	IsFirst bool
}

// Contacted returns the other live clusters that own may ask.
func (s *State) Contacted(own peernotify.Contact) (all []Contacted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, cluster := range s.catalogs.clusters {
		if s.isContact(id, cluster, own) {
			isFirst := s.catalogs.belief.StateOf(id) == belief.First
			all = append(all, Contacted{Contact: cluster.record.Contact, ClusterID: id, Key: cluster.record.Key, IsFirst: isFirst})
		}
	}
	return all
}

// isContact reports whether datagrams may be sent to a cluster. The caller holds s.mu.
func (s *State) isContact(id string, cluster *catalog, own peernotify.Contact) bool {
	return s.catalogs.live(id) && own.Reaches(cluster.record.Contact) && s.cfg.AllowsContact(cluster.record.Contact.Address.Addr())
}

// Peers returns all live clusters as the registry shows them. urgent is set if a change is expected
// that no peer notification announces.
func (s *State) Peers(now time.Time) (peers []peernotify.Peer, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, own, isBehind := s.cfg.Identity.ClusterID, s.shown(), s.shown().behind(now)
	urgent = !s.contact.Address.IsValid() || s.claim.state != Held || s.claim.isYoung() || s.outbox.state.IsUnconfirmed() || isBehind
	if s.claim.state == Held && own.hasRecord {
		peers = append(peers, peerOf(id, &own.record, isBehind))
	}
	for id, cluster := range s.catalogs.clusters {
		isBehind := s.catalogs.belief.IsBehind(id)
		urgent = urgent || isBehind || s.catalogs.belief.IsProving(id) || s.catalogs.belief.StateOf(id) == belief.Saving
		if s.catalogs.live(id) {
			peers = append(peers, peerOf(id, cluster.record, isBehind))
		}
	}
	return peers, urgent
}

// peerOf returns a cluster as its record has it.
func peerOf(id string, r *format.Member, isBehind bool) peernotify.Peer {
	return peernotify.Peer{ClusterID: id, Key: r.Contact.Key, Process: r.Process, Generation: r.Generation, Behind: isBehind}
}

// Lookup returns the View of key.
func (s *State) Lookup(key mcs.Key, imported []string) (registry.View, error) {
	// without the lock: it may wait for a cache
	isWanted := s.cfg.Wanted == nil || s.cfg.Wanted(key.Namespace)
	return s.lookup(key, imported, isWanted)
}

// seekNamespace makes pages be read now whose namespace is imported since they were read or
// skipped: no cluster notifies of that. ignored are the clusters whose export of the key was
// ignored. The caller holds s.mu.
func (s *State) seekNamespace(key mcs.Key, ignored []string) {
	_, isUsed := slices.BinarySearch(s.catalogs.used, key.Namespace)
	isNew := s.catalogs.used != nil && !isUsed
	if s.catalogs.want(time.Now(), key, ignored) || isNew {
		s.isReadWanted = true
		s.ReadSignal.Set()
	}
}

// TakeReadWanted reports whether a lookup since the last call waits for pages that no cluster
// notifies of: their namespace is imported now.
func (s *State) TakeReadWanted() (isWanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isWanted, s.isReadWanted = s.isReadWanted, false
	return isWanted
}

// lookup returns the View of key. isWanted reports whether the exports of its namespace are used.
func (s *State) lookup(key mcs.Key, imported []string, isWanted bool) (registry.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.isSynced() {
		return registry.View{}, s.asked[format.PageOf(key)].NotSynced(key, s.readProblem.Err())
	}
	s.catalogs.seek(time.Now(), imported)
	viewOf := s.catalogs.viewOf
	if !isWanted && len(imported) == 0 {
		viewOf = func(key mcs.Key, _ []string) registry.View { return s.catalogs.belief.ViewOfUnused(key) }
	}
	view := s.asked[format.PageOf(key)].Lookup(key, imported, viewOf, s.catalogs.belief.StatusOf)
	if isWanted {
		s.seekNamespace(key, view.In(registry.Ignored))
	}
	if !s.cfg.ReadOnly {
		view.Local = s.publication(key)
	}
	return view, nil
}

// Exporters returns what is known of the clusters that export key to all clusters, this one
// included. ok is false while the registry does not answer.
func (s *State) Exporters(key mcs.Key) (e instances.Exporters, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.isSynced() || !s.catalogs.belief.IsCurrent() {
		return e, false
	}
	view := s.catalogs.belief.View(key)
	e.IsOpen = view.Has(registry.Unknown)
	maps.DeleteFunc(view.Clusters, func(_ string, in registry.ClusterView) bool { return in.State != registry.Exports })
	e.Stale, e.Unknown = view.WithLiveness(registry.Stale), view.WithLiveness(registry.Undecided)
	for _, exp := range view.Exports() {
		exp.Drain = exp.Drain.Max(view.Clusters[exp.Cluster].Properties.Drain())
		e.Exports = append(e.Exports, exp)
	}
	if own, _ := s.outbox.state.WantOf(key); own != nil {
		e.Exports = append(e.Exports, *own)
	}
	e.Exports = slices.DeleteFunc(e.Exports, func(exp mcs.Export) bool { return exp.Recipients != "" })
	return e, true
}

// IsStale reports whether a cluster has no heartbeat now, as far as the registry answers.
func (s *State) IsStale(clusterID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalogs.belief.IsCurrent() && s.catalogs.isStale(clusterID)
}

// ListMembers returns the members.
func (s *State) ListMembers() ([]registry.Member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.catalogs.isSynced() {
		return nil, fmt.Errorf("listing members: %w", registry.NotSynced(s.readProblem.Err()))
	}
	return s.catalogs.list(), nil
}

// memberRecords is the number of instances of a cluster beside its pages: the member record and its
// copy.
const memberRecords = 2

// Report returns the report for the status endpoint, without the instance view.
func (s *State) Report() registry.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := engine.Keys{}
	s.addOwnKeys(keys)
	for _, key := range s.catalogs.belief.Keys() {
		keys.Add(key)
	}
	for key, exp := range s.outbox.state.Wanted {
		if exp != nil {
			keys[key] = struct{}{}
		}
	}
	report := registry.Report{
		Keys: slices.Collect(maps.Keys(keys)), Reading: s.readProblem.Err(), Writing: cmp.Or(s.writeProblem.Err(), s.pageProblem.Err()), Audited: s.Reads.audited,
		Stored: &registry.Stored{Records: memberRecords + s.outbox.instances()},
	}
	if uid := s.claim.refused(); uid != "" {
		report.Writing = &registry.DuplicateIDError{ClusterID: s.cfg.Identity.ClusterID, OtherUID: uid}
	}
	return report
}
