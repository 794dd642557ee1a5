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
	// Saving means that a farewell, forget or a return counts once the next process will know of
	// it. Until then what was known before stays, and is unknown if that is nothing.
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
	// shownAt is the time of the latest record that counted when the store showed it.
	shownAt trust.Time
	proof   proof
}

// saving is what counts once the pin is saved.
type saving struct {
	// before is the state before Saving.
	before ClusterState
	// record is nil if the cluster was forgotten.
	record *Record
	// ends is set if the cluster has left or was forgotten.
	ends bool
	// wasRead is set if a process of this cluster has read a record of this key, and isCertain if
	// none has read a later one than this first one.
	wasRead, isCertain bool
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

// isReturning reports whether a cluster that had ended returns, and no record has decided its units
// since: any key may be one of its exports. A cluster that is renamed returns under an ID that it
// had before, and its imports must not end in between, whatever another user deletes.
func (c *cluster) isReturning() bool {
	return c.viewed() == Saving || c.signed != nil && c.signed.isUnread
}

// hasRead reports whether this process has read a record that counts, or will: then a farewell is
// not the first one.
func (c *cluster) hasRead() bool {
	return c.signed != nil || c.state == Left || c.state == Saving && c.saving.record != nil
}

// isEnding reports whether the cluster ends once its key is saved. Units count again with its next
// record.
func (c *cluster) isEnding() bool {
	return c.state == Saving && c.saving.ends
}

// present decides about the key of a record, and applies the record if it is the cluster's. isShown
// is set for the record that the store shows, and not for the proof.
func (s *State) present(st *step, c *cluster, r *Record, isShown bool) {
	waited := c.waiting
	if isShown {
		c.waiting = nil
	}
	switch v, reason := s.verdictOf(c, r); v {
	case trust.Accepted:
		s.accept(st, c, r, isShown)
	case trust.Unknown:
		if r.Farewell {
			return // the own place of a cluster that has left is empty
		}
		if waited == nil || waited.Key != r.Key || waited.Process != r.Process {
			c.proof.reset(st.now, s.cfg.StaleAfter/proofReads)
			c.problem = Problem{}
		}
		c.waiting = r
	case trust.Refused:
		if r.Place == Own && r.Seal == Unsealed {
			s.cfg.Keyring.ObserveUnsealed(s.cfg.Registry, c.id)
		}
		st.report(c, Problem{Kind: KeyRefused, Key: r.Key, Place: r.Place, Reason: reason})
	}
}

// reset makes the next read due at once, at most once in a time.
func (p *proof) reset(now time.Time, within time.Duration) {
	if p.resetAt.IsZero() || now.Sub(p.resetAt) >= within {
		p.retry, p.resetAt = retry{}, now
	}
}

// accept applies a record with the key of the cluster; isShown is that of present.
func (s *State) accept(st *step, c *cluster, r *Record, isShown bool) {
	known := s.known(c.id)
	if known.Key != r.Key {
		known = trust.Known{} // the times of another key say nothing about this one
	}
	isFarewellBefore := r.Farewell && c.signed.hasLater(r)
	if !later(r.At, c.last(r.Key, known.Last), known.HasEnded) || isFarewellBefore {
		switch {
		case !isShown || c.state == Left:
		case c.isPinnedEnd(r, known):
			s.save(st, c, saving{record: r, ends: true})
		case c.isLate(r):
			c.problem = Problem{}
		default:
			st.report(c, Problem{Kind: Earlier, At: r.At})
		}
		return
	}
	if c.waiting != nil && c.waiting.Key == r.Key {
		c.waiting = nil
	}
	if isShown {
		c.problem, c.shownAt = Problem{}, r.At
	}
	s.believe(st, c, r, known)
}

// isPinnedEnd reports whether a record is the farewell that the pin has, and the cluster has not
// ended here: the reader under the other ID of this cluster, which is being renamed, read it first.
func (c *cluster) isPinnedEnd(r *Record, known trust.Known) bool {
	return c.signed != nil && r.Farewell && known.HasEnded && r.At == known.Last
}

// isLate reports whether the store shows a record that the cluster has written before the one that
// it has sent, and not before the one that the store has shown.
func (c *cluster) isLate(r *Record) bool {
	if c.signed == nil || c.shownAt == (trust.Time{}) {
		return false
	}
	last := &c.signed.record
	return last.Place == Sent && last.Key == r.Key && !c.shownAt.After(r.At)
}

// TakesSent reports whether a record that a cluster has sent would count: it is later than the one
// that counts, of the same author, and the store has shown records of this cluster since this
// process began. Other news, such as a new key, a return or a farewell, come by the store only: the
// rules for them compare what it shows at different times.
func (s *State) TakesSent(r *Record) bool {
	c := s.clusters[r.Cluster]
	if c == nil || r.Farewell {
		return false
	}
	switch c.state {
	case Current:
		last := &c.signed.record
		return !last.Farewell && last.Author() == r.Author() && r.At.After(last.At)
	case NotRead, Saving, First, Left:
	}
	return false
}

// last returns the time of the latest record of a key that was read, if last is that of the
// keyring: it may have dropped the pin for another one.
func (c *cluster) last(key trust.Key, last trust.Time) trust.Time {
	if c.signed != nil && c.signed.record.Key == key && c.signed.record.At.After(last) {
		return c.signed.record.At
	}
	return last
}

// believe applies a record that counts, unless it is the one that counts already. known is what was
// known of its key.
func (s *State) believe(st *step, c *cluster, r *Record, known trust.Known) {
	hasLeft := c.state == Left && r.Farewell && known.Key == r.Key
	ends := r.Farewell && c.hasRead()
	s.cfg.Keyring.Observe(trust.Record{Registry: s.cfg.Registry, ClusterID: c.id, UID: r.UID, Key: r.Key, At: r.At, Farewell: ends})
	if hasLeft || c.isSame(r) {
		return
	}
	s.countHeartbeat(c, r)
	wasRead := known.Last != trust.Time{}
	isCertain := wasRead && !known.HasEnded && s.cfg.Keyring.IsComplete()
	s.save(st, c, saving{record: r, ends: ends, wasRead: wasRead, isCertain: isCertain})
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

// countHeartbeat counts a record that follows another one as a heartbeat. The first one of this
// process may be old.
func (s *State) countHeartbeat(c *cluster, r *Record) {
	if c.follows(r) {
		s.beats[c.id] = true
	}
}

// follows reports whether the cluster has written a record since this process has read the previous
// one. Of the first records of the two places, which are written at different times, one is later,
// and both may be old.
func (c *cluster) follows(r *Record) bool {
	if c.signed == nil || c.state == First && r.Place != c.signed.record.Place {
		return false
	}
	return r.Key != c.signed.record.Key || r.At.After(c.signed.record.At)
}

// save lets a record count, or that the cluster is forgotten: at once if the next process will know
// whether the cluster has ended, in state Saving otherwise.
func (s *State) save(st *step, c *cluster, next saving) {
	switch c.state {
	case Saving:
		next.before = c.saving.before
	case NotRead, First, Current, Left:
		next.before = c.state
	}
	c.state, c.saving = Saving, next
	if s.known(c.id).IsSaved {
		s.count(st, c)
		return
	}
	st.decided(c)
}

// count ends Saving.
func (s *State) count(st *step, c *cluster) {
	if !s.isEndKnown(c) {
		return
	}
	next := c.saving
	c.saving = saving{}
	switch {
	case next.record != nil && next.record.Key != s.known(c.id).Key:
		// an administrator has trusted another one
		c.state = next.before
		st.decided(c)
		return
	case next.ends:
		s.leave(st, c)
		return
	}
	s.advance(st, c, &next)
	s.take(st, c, &next)
	if next.before != c.state {
		c.signed.addAll(st.changed)
		st.decided(c)
	}
}

// isEndKnown reports whether the next process will know of the farewell that counts now. If an
// administrator has trusted the key since it was read, the farewell is later, and is saved again.
func (s *State) isEndKnown(c *cluster) bool {
	if c.saving.ends && c.saving.record != nil && !s.known(c.id).HasEnded {
		s.cfg.Keyring.ObserveEnd(s.cfg.Registry, c.id)
		return s.known(c.id).IsSaved
	}
	return true
}

// advance sets the state in which a record counts.
func (s *State) advance(st *step, c *cluster, next *saving) {
	switch c.state = next.before; next.before {
	case NotRead, Left, Saving:
		c.state, c.heardAt = First, st.now
		if next.isCertain {
			c.state = Current
		}
		s.liveness.Remove(c.id) // the time without a record that counts says nothing about this one
	case First:
		c.signed.isComplete = false // the first one may have been an old one
		if c.follows(next.record) {
			c.state = Current
		}
	case Current:
	}
}

// leave ends all exports of a cluster that has signed a farewell, or was forgotten.
func (s *State) leave(st *step, c *cluster) {
	c.state, c.waiting, c.problem = Left, nil, Problem{}
	if c.signed != nil {
		c.signed.addAll(st.changed)
		for name, u := range c.signed.units {
			s.unlist(c, name, u, &u.content)
		}
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
			s.cfg.Keyring.ObserveEnd(s.cfg.Registry, c.id)
			s.save(st, c, saving{record: &c.signed.record, ends: true})
			return
		}
		s.settle(st, c)
	case NotRead, Saving, Current, Left:
	}
}

// answered lets the first record count like a second one if the cluster has written no later one:
// then a previous process has read none either. A cluster that has left does not answer.
func (s *State) answered(st *step, c *cluster, e *Answered) {
	switch c.state {
	case First:
		first := &c.signed.record
		if !first.Farewell && first.Key == e.Key && !e.At.After(first.At) {
			s.settle(st, c)
		}
	case NotRead, Saving, Current, Left:
	}
}

// settle lets the first record count like a second one.
func (s *State) settle(st *step, c *cluster) {
	c.state = Current
	c.signed.addAll(st.changed)
	st.decided(c)
	s.confirm(st, c)
}

// forget drops the cluster until its next record.
func (s *State) forget(st *step, c *cluster) {
	s.cfg.Keyring.Forget(c.id)
	if c.state == Left {
		return
	}
	c.waiting = nil
	s.save(st, c, saving{ends: true})
}

// observeProof applies a read of the own place.
func (s *State) observeProof(st *step, c *cluster, e *ProofRead) {
	s.pauseProof(st.now, c, e.Record == nil && !e.Failed && c.signed == nil)
	if e.Failed {
		return
	}
	r := c.waiting
	if e.Record != nil && !e.Record.Farewell {
		s.present(st, c, e.Record, false)
	}
	if r == nil {
		return
	}
	switch v, reason := s.verdictOf(c, r); v {
	case trust.Accepted:
		c.waiting = nil
		s.accept(st, c, r, true)
	case trust.Unknown:
		if c.proof.failures > 1 { // one read may be late
			st.report(c, Problem{Kind: KeyUnproven, Key: r.Key})
		}
	case trust.Refused:
		c.waiting = nil
		st.report(c, Problem{Kind: KeyRefused, Key: r.Key, Place: r.Place, Reason: reason})
	}
}

// pauseProof sets the time of the next read of the own place of a cluster. isAbsent is set if there
// was no record, and none of the cluster counts.
func (s *State) pauseProof(now time.Time, c *cluster, isAbsent bool) {
	pause := s.cfg.StaleAfter / proofReads
	most := pause
	if isAbsent {
		most *= maxAbsent
	}
	c.proof.failed(now, &s.cfg, most)
	switch {
	case c.waiting != nil:
	case isAbsent:
		c.proof.at = now.Add(pause * time.Duration(min(c.proof.failures, maxAbsent)))
	default:
		c.proof.at = now.Add(pause)
	}
}

// needsProof reports whether the own place of the cluster has to be read.
func (c *cluster) needsProof() bool {
	if c.waiting != nil {
		return true
	}
	switch c.problem.Kind {
	case NoProblem:
		// a cluster that has returned since its farewell has a later record in its own place
		return c.state == NotRead && c.proof.isSought || c.state == First && c.signed.record.Farewell
	case Missing, Earlier:
		return c.state != Left && (c.signed != nil || c.saving.record != nil || c.proof.isSought)
	case KeyRefused, Unreadable, KeyUnproven:
		return c.state != Left
	}
	return false
}
