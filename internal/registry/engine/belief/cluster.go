package belief

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// ClusterState is the state of another cluster: table (a) of docs/proposals/031-engine.md.
type ClusterState int

const (
	// NotRead means that no record that counts was read: exports that are imported are unseen.
	NotRead ClusterState = iota
	// Saving means that a record, a farewell or forget counts once the pin is saved. Until then
	// what was known before stays, and is unknown if that is nothing.
	Saving
	// First means that this process has read one record: it adds exports and ends none.
	First
	// Current means that the manifest of the latest record says which exports exist.
	Current
	// Left means that the cluster has signed a farewell, or was forgotten: it exports nothing.
	Left
)

// cluster is what is known of another cluster.
type cluster struct {
	id    string
	state ClusterState
	// pin is what the next process has to know, saved what it will know.
	pin, saved Pin
	// saving is valid in Saving.
	saving saving
	// signed is what the cluster has signed: valid in First and Current, and in Saving after them.
	signed *signed
	// waiting is a record whose key waits for the proof, nil if none does. It changes nothing yet,
	// in any state.
	waiting *Record
	// heardAt is valid in First: the time since which the store has answered and shown no other
	// record than the first one.
	heardAt time.Time
	// problem is the reason why the record that the store shows does not count.
	problem Problem
	proof   proof
}

// saving is what counts once the pin is saved.
type saving struct {
	// before is the state before Saving.
	before ClusterState
	// record is nil if the cluster was forgotten.
	record *Record
}

// proof has the reads of the own place of a cluster.
type proof struct {
	retry
	// isSought is set if imports from the cluster exist.
	isSought bool
	// resetAt is the time of the last record that made a read due at once: an endless row of
	// records with new keys does not.
	resetAt time.Time
}

// viewed returns the state that a View shows: in Saving, the one before if there was a record, or
// if none follows.
func (c *cluster) viewed() ClusterState {
	switch c.state {
	case Saving:
		if c.signed != nil || c.saving.record == nil {
			return c.saving.before
		}
		return Saving
	case NotRead, First, Current, Left:
	}
	return c.state
}

// hasRead reports whether this process has read a record that counts, or will: then a farewell is
// not the first one.
func (c *cluster) hasRead() bool {
	return c.signed != nil || c.state == Left || c.state == Saving && c.saving.record != nil
}

// present decides about the key of a record, and applies the record if it is the cluster's. isShown
// is set for the record that the store shows, and not for the proof.
func (s *State) present(st *step, c *cluster, r *Record, isShown bool) {
	waited := c.waiting
	if isShown {
		c.waiting = nil
	}
	switch s.verdictOf(c, r) {
	case isAccepted:
		s.accept(st, c, r, isShown)
	case isUnproven:
		if r.Farewell {
			return // the own place of a cluster that has left is empty
		}
		if waited == nil || waited.Key != r.Key {
			c.proof.reset(st.now, s.cfg.StaleAfter/proofReads)
			c.problem = Problem{}
		}
		c.waiting = r
	case isRefused:
		if r.Place == Own && r.Seal == Unsealed && c.pin.Key != (trust.Key{}) {
			c.pin.Unsealed = true
		}
		st.report(c, Problem{Kind: KeyRefused, Key: r.Key})
	case hasNoRoom:
		st.report(c, Problem{Kind: NoRoom, Key: r.Key})
	}
}

// verdictOf is the rule "accepted" for a record.
func (s *State) verdictOf(c *cluster, r *Record) verdict {
	if v, ok := s.cfg.listed(c.id, r.Key); ok {
		return v
	}
	p := presented{
		key: r.Key, place: r.Place, seal: r.Seal, isStale: s.liveness.IsStale(c.id),
		hasRoom: c.pin != Pin{} || s.cfg.MaxPins == 0 || s.pins() < s.cfg.MaxPins,
	}
	p.succeeds = c.pin.Key != (trust.Key{}) && c.pin.Key != r.Key && r.Succession != "" && s.cfg.Succeeds(c.pin.Key, r.Key, c.id, r.Succession)
	return accepted(c.pin, p)
}

// reset makes the next read due at once, at most once in a time.
func (p *proof) reset(now time.Time, within time.Duration) {
	if p.resetAt.IsZero() || now.Sub(p.resetAt) >= within {
		p.retry, p.resetAt = retry{}, now
	}
}

// accept applies a record with the key of the cluster; isShown is that of present.
func (s *State) accept(st *step, c *cluster, r *Record, isShown bool) {
	pin := c.pin
	if pin.Key != r.Key {
		pin = Pin{Key: r.Key} // the times of another key say nothing about this one
	}
	isFarewellBefore := r.Farewell && c.signed.hasLater(r)
	if !later(r.At, pin) || isFarewellBefore {
		if isShown && c.state != Left {
			st.report(c, Problem{Kind: Missing})
		}
		return
	}
	if c.waiting != nil && c.waiting.Key == r.Key {
		c.waiting = nil
	}
	if isShown {
		c.problem = Problem{}
	}
	s.believe(st, c, r, pin)
}

// believe applies a record that counts, unless it is the one that counts already. pin is that of
// its key.
func (s *State) believe(st *step, c *cluster, r *Record, pin Pin) {
	hasLeft := c.state == Left && r.Farewell && pin.Key == c.pin.Key
	if hasLeft || c.isSame(r) {
		c.pin.Last = r.At
		return
	}
	s.countHeartbeat(c, r)
	pin.Last, pin.Membership = r.At, Member
	if r.Farewell && c.hasRead() {
		pin.Membership = HasLeft
	}
	c.pin = pin
	s.save(st, c, r)
}

// isSame reports whether a record is the one that counts, or will once the pin is saved.
func (c *cluster) isSame(r *Record) bool {
	var last *Record
	switch c.state {
	case First, Current:
		last = &c.signed.record
	case Saving:
		last = c.saving.record
	case NotRead, Left:
	}
	return last != nil && last.Key == r.Key && last.At == r.At
}

// countHeartbeat counts a record that is later than the previous one as a heartbeat. The first one
// of this process may be old.
func (s *State) countHeartbeat(c *cluster, r *Record) {
	if c.signed != nil && (r.Key != c.signed.record.Key || r.At.After(c.signed.record.At)) {
		s.beats[c.id] = true
	}
}

// save lets a record count, or nil if the cluster is forgotten: at once if the pin is saved, in
// state Saving otherwise.
func (s *State) save(st *step, c *cluster, r *Record) {
	switch c.state {
	case Saving:
		c.saving.record = r
	case NotRead, First, Current, Left:
		c.saving = saving{before: c.state, record: r}
		c.state = Saving
	}
	if isSaved(c.pin, c.saved) {
		s.count(st, c)
		return
	}
	st.decided(c)
}

// count ends Saving.
func (s *State) count(st *step, c *cluster) {
	r, before := c.saving.record, c.saving.before
	c.saving = saving{}
	if r == nil || c.pin.Membership.hasEnded() {
		s.leave(st, c)
		return
	}
	switch before {
	case NotRead, Left, Saving:
		c.state, c.heardAt = First, st.now
		s.liveness.Remove(c.id) // the time without a record that counts says nothing about this one
	case First:
		c.state = First
		if r.Key != c.signed.record.Key || r.At.After(c.signed.record.At) {
			c.state = Current
		}
	case Current:
		c.state = Current
	}
	s.take(st, c, r)
	if before != c.state {
		c.signed.addAll(st.changed)
		st.decided(c)
	}
}

// leave ends all exports of a cluster that has signed a farewell, or was forgotten.
func (s *State) leave(st *step, c *cluster) {
	c.state, c.waiting, c.problem = Left, nil, Problem{}
	if c.signed != nil {
		c.signed.addAll(st.changed)
	}
	c.signed = nil
	s.liveness.Remove(c.id)
	delete(s.beats, c.id)
	st.decided(c)
}

// isLastWord reports whether a first record that is a farewell was followed by no other one for the
// time of the rule "stale". A farewell needs no heartbeats of others to compare with: in a
// clusterset whose last member has left there are none.
func (c *cluster) isLastWord(now time.Time, staleAfter time.Duration) bool {
	return c.state == First && c.signed.record.Farewell && now.Sub(c.heardAt) >= staleAfter
}

// outdated lets the first record count like a second one when the cluster is stale: a later record
// would have been read.
func (s *State) outdated(st *step, c *cluster) {
	switch c.state {
	case First:
		if c.signed.record.Farewell {
			c.pin.Membership = HasLeft
			s.save(st, c, &c.signed.record)
			return
		}
		c.state = Current
		c.signed.addAll(st.changed)
		st.decided(c)
	case NotRead, Saving, Current, Left:
	}
}

// forget drops the cluster until its next record.
func (s *State) forget(st *step, c *cluster) {
	if c.state == Left {
		return
	}
	c.pin.Membership, c.waiting = IsForgotten, nil
	s.save(st, c, nil)
}

// trust makes a key that of the cluster. All that was imported stays, until a record with the key
// is read.
func (s *State) trust(st *step, c *cluster, key trust.Key) {
	if c.pin.Key != key {
		c.pin = Pin{Key: key}
	}
	c.pin.Membership = Member
	switch c.state {
	case Saving:
		c.state, c.saving = c.saving.before, saving{}
	case NotRead, First, Current, Left:
	}
	if c.state == Left {
		c.state = NotRead
	}
	c.waiting = nil
	st.decided(c)
}

// observeProof applies a read of the own place.
func (s *State) observeProof(st *step, c *cluster, e *ProofRead) {
	most := s.cfg.StaleAfter / proofReads
	c.proof.failed(st.now, s.cfg.Poll, most)
	if c.waiting == nil {
		c.proof.at = st.now.Add(most)
	}
	if e.Failed {
		return
	}
	if e.Record != nil && !e.Record.Farewell {
		s.present(st, c, e.Record, false)
	}
	r := c.waiting
	if r == nil {
		return
	}
	switch s.verdictOf(c, r) {
	case isAccepted:
		c.waiting = nil
		s.accept(st, c, r, true)
	case isUnproven:
		if c.proof.failures > 1 { // one read may be late
			st.report(c, Problem{Kind: KeyUnproven, Key: r.Key})
		}
	case isRefused, hasNoRoom:
		c.waiting = nil
		st.report(c, Problem{Kind: KeyRefused, Key: r.Key})
	}
}

// needsProof reports whether the own place of the cluster has to be read.
func (c *cluster) needsProof() bool {
	if c.waiting != nil {
		return true
	}
	switch c.problem.Kind {
	case NoProblem, NoRoom:
		return c.state == NotRead && c.proof.isSought
	case Missing:
		return c.state != Left && (c.signed != nil || c.saving.record != nil || c.proof.isSought)
	case KeyRefused, Unreadable, KeyUnproven:
		return c.state != Left
	}
	return false
}
