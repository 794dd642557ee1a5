package belief

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// State is what this cluster knows of the other clusters of a clusterset in one store. It is not
// safe for concurrent use.
type State struct {
	cfg      Config
	clusters map[string]*cluster
	liveness *registry.Liveness
	// index finds the clusters that a View looks at.
	index index
	// returning are the clusters that return.
	returning map[string]*cluster
	// beats are the clusters that had a heartbeat since the last Tick.
	beats map[string]bool
	// used are the namespaces whose exports are imported, nil for all, and codes their codes.
	used, codes map[string]bool
}

// New returns the State of a process that starts.
func New(cfg Config) *State {
	if cfg.CodeOf == nil {
		cfg.CodeOf = func(namespace string) string { return namespace }
	}
	return &State{
		cfg: cfg, clusters: map[string]*cluster{}, beats: map[string]bool{}, index: newIndex(), returning: map[string]*cluster{},
		liveness: registry.NewLiveness(cfg.Own, cfg.StaleAfter),
	}
}

// step collects the results of a Step.
type step struct {
	now     time.Time
	changed keys
	of      map[string]bool
	reports []Report
}

// decided records that a cluster may have another answer for keys that it does not export.
func (st *step) decided(c *cluster) { st.of[c.id] = true }

// report sets the problem of a cluster.
func (st *step) report(c *cluster, p Problem) {
	before := c.problem
	c.problem = p
	if before.Place = p.Place; before != p {
		st.reports = append(st.reports, Report{Cluster: c.id, Problem: p})
	}
}

// Step applies an event at a time, and returns the actions. The same events give the same actions.
// now must have a monotonic reading, as time.Now has.
func (s *State) Step(event Event, now time.Time) Actions {
	st := &step{now: now, changed: keys{}, of: map[string]bool{}}
	var id string
	switch e := event.(type) {
	case RecordRead, RecordRefused, RecordMissing, ProofRead:
		id = s.observe(st, e)
	case UnitsRead:
		id = e.Cluster
		if c := s.clusters[id]; c != nil {
			s.observeUnits(st, c, &e)
		}
	case ReadAgain:
		id = e.Cluster
		if c := s.clusters[id]; c != nil && c.takesUnits() {
			c.readAgain(e.Units)
		}
	case Answered:
		id = e.Cluster
		if c := s.clusters[id]; c != nil {
			s.answered(st, c, &e)
		}
	case Forget:
		id = e.Cluster
		s.forget(st, s.cluster(id))
	default:
		s.stepAll(st, event)
		return s.actions(st, slices.Sorted(maps.Keys(s.clusters)))
	}
	return s.actions(st, []string{id})
}

// stepAll applies an event about no single cluster.
func (s *State) stepAll(st *step, event Event) {
	switch e := event.(type) {
	case Imported:
		for _, id := range e.Clusters {
			if id != s.cfg.Own {
				s.cluster(id).proof.isSought = true
			}
		}
	case Namespaces:
		s.use(st, e.Used)
	case Tick:
		s.tick(st, e)
	case Failed:
		s.liveness.ObserveFailure()
		for _, c := range s.clusters {
			c.heardAt = st.now
		}
	default:
		panic(fmt.Sprintf("belief: event %T", event))
	}
}

// observe applies an event about the record of a cluster, and returns its ID.
func (s *State) observe(st *step, event Event) (id string) {
	switch e := event.(type) {
	case RecordRead:
		if e.Record.Place == Sent && !s.TakesSent(&e.Record) {
			return e.Record.Cluster
		}
		c := s.cluster(e.Record.Cluster)
		s.present(st, c, &e.Record, e.Record.Place != Sent)
		return c.id
	case RecordRefused:
		c := s.cluster(e.Cluster)
		c.waiting = nil
		if e.IsHeartbeat && c.signed != nil {
			s.beats[c.id] = true
		}
		st.report(c, Problem{Kind: Unreadable, Reason: e.Reason})
		return c.id
	case RecordMissing:
		s.missing(st, s.cluster(e.Cluster))
		return e.Cluster
	case ProofRead:
		s.observeProof(st, s.cluster(e.Cluster), &e)
		return e.Cluster
	}
	return ""
}

// End tells the keyring, when this process reads no more, if a unit was read that no record of its
// cluster names yet: a process that starts with the pins alone would take the exports for ended.
func (s *State) End() {
	for _, c := range s.clusters {
		if c.signed != nil && c.signed.hasAhead() {
			s.cfg.Keyring.SetLacking()
			return
		}
	}
}

// missing observes that the store shows no record. It is no evidence. A cluster of which nothing is
// known is dropped.
func (s *State) missing(st *step, c *cluster) {
	c.waiting = nil
	known := s.known(c.id)
	if c.state == NotRead && known.Key == (trust.Key{}) && !c.proof.isSought {
		delete(s.clusters, c.id)
		s.liveness.Remove(c.id)
		return
	}
	if c.state != Left {
		st.report(c, Problem{Kind: Missing})
	}
}

// use sets the namespaces whose exports are imported.
func (s *State) use(st *step, used []string) {
	s.used, s.codes = nil, nil
	if used != nil {
		s.used, s.codes = make(map[string]bool, len(used)), make(map[string]bool, len(used))
		for _, namespace := range used {
			s.used[namespace], s.codes[s.cfg.CodeOf(namespace)] = true, true
		}
	}
	for _, c := range s.clusters {
		if c.signed == nil || c.signed.record.Farewell {
			continue
		}
		for name, u := range c.signed.units {
			u.use(func(namespace string) bool { return s.used == nil || s.used[namespace] })
			s.skip(st, c, name)
		}
	}
}

// tick passes the heartbeats since the last one to the liveness, and reviews the clusters.
func (s *State) tick(st *step, e Tick) {
	beats := map[string]bool{s.cfg.Own: e.Heartbeat}
	for id, c := range s.clusters {
		if c.signed != nil || c.state == NotRead && c.problem.Kind == KeyRefused {
			beats[id] = s.beats[id]
			if s.beats[id] && !s.liveness.Has(id) {
				c.signed.addAll(st.changed) // it was Undecided
			}
		}
	}
	clear(s.beats)
	for _, id := range s.liveness.ObserveHeartbeats(st.now, beats) {
		if c := s.clusters[id]; c != nil && c.signed != nil {
			c.signed.addAll(st.changed)
		}
	}
	s.review(st)
}

// review lets count what was saved, and the first records of clusters that are stale.
func (s *State) review(st *step) {
	for id, c := range s.clusters {
		if c.state == Saving && s.known(id).IsSaved {
			s.count(st, c)
		}
		if s.liveness.IsStale(id) || c.isLastWord(st.now, s.cfg.StaleAfter) {
			s.outdated(st, c)
		}
	}
}

// Due returns the levels among the actions: all reads that have to be made now.
func (s *State) Due(now time.Time) Actions {
	return s.actions(&step{now: now}, slices.Sorted(maps.Keys(s.clusters)))
}

// actions returns the actions about clusters.
func (s *State) actions(st *step, ids []string) (a Actions) {
	for _, id := range ids {
		c := s.clusters[id]
		if c == nil {
			delete(s.returning, id)
			continue
		}
		if c.isReturning() {
			s.returning[id] = c
		} else {
			delete(s.returning, id)
		}
		isProofDue, units, all := s.DueOf(id, st.now)
		if isProofDue {
			a.ReadProofs = append(a.ReadProofs, id)
		}
		if all || len(units) > 0 {
			a.ReadUnits = append(a.ReadUnits, UnitsOf{Cluster: id, Units: units})
		}
	}
	a.Notify = st.changed.sorted()
	a.Decided = slices.Sorted(maps.Keys(st.of))
	a.Reports = st.reports
	return a
}

// cluster returns a cluster, and adds it if it is not known.
func (s *State) cluster(id string) *cluster {
	c := s.clusters[id]
	if c == nil {
		c = &cluster{id: id}
		if s.known(id).HasEnded {
			c.state = Left
		}
		s.clusters[id] = c
	}
	return c
}

// known returns what the keyring knows of a cluster.
func (s *State) known(id string) trust.Known { return s.cfg.Keyring.Of(s.cfg.Registry, id) }
