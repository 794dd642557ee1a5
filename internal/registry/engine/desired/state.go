package desired

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// Config is the configuration of a State.
type Config struct {
	// ClusterID is the ID of this cluster.
	ClusterID string
	// Units are all units, if the store has a fixed number of them. UnitOf returns that of a key.
	Units  []belief.UnitName
	UnitOf func(mcs.Key) belief.UnitName
	// Pace limits the writes that the changes of each namespace cause. The driver charges it.
	Pace *engine.Pace[string]
	// Pause returns the pause after a number of failures in a row.
	Pause func(failures int) time.Duration
	// Patience is the time after which a unit is written again if reads do not show it.
	Patience time.Duration
}

// State is the exports of this cluster. All of them are published before a process holds the ID:
// others that it finds were withdrawn while no process ran. It is not safe for concurrent use.
type State struct {
	cfg   Config
	units map[belief.UnitName]*unit
	// waiting are the units that have to be written, or compared with what the store has, and
	// writing those that are being written.
	waiting, writing map[belief.UnitName]*unit
	turns            uint64
	// isAdopted is set once all units that the store has were adopted: others are none.
	isAdopted bool
	// hasPredecessor is set if the store may have earlier versions of the units, or may lack some:
	// another process has written under this ID, or other clusters know exports of this process.
	hasPredecessor bool
	// keepsWithdrawn is set for a while after the process has got the ID: no export is withdrawn,
	// because another process may hold the ID.
	keepsWithdrawn bool
	// newest is the latest generation of the units that this process has written.
	newest int64
	// nextTurnAt is the time from which the next unit that has failed several times may be written.
	nextTurnAt time.Time
	// named are the units that the store has, as a set.
	named set
}

// set is a set of units with their generations.
type set struct {
	count  int
	digest belief.SetDigest
}

// New returns the State of a process that starts.
func New(cfg Config) *State {
	s := &State{cfg: cfg, units: map[belief.UnitName]*unit{}, waiting: map[belief.UnitName]*unit{}, writing: map[belief.UnitName]*unit{}}
	for _, name := range cfg.Units {
		s.unit(name)
	}
	return s
}

// Set sets the desired export of a key, nil to withdraw it, and reports whether it has changed.
func (s *State) Set(key mcs.Key, exp *mcs.Export) (changed bool) {
	u := s.unit(s.cfg.UnitOf(key))
	before, isAsked := u.want[key]
	if isAsked && (before == nil) == (exp == nil) && (exp == nil || before.Equal(*exp)) {
		return false
	}
	if u.want == nil {
		u.want = map[mcs.Key]*mcs.Export{}
	}
	u.want[key] = exp
	if u.changed == nil {
		u.changed = map[string]struct{}{}
	}
	u.changed[key.Namespace] = struct{}{}
	u.change()
	s.update(u)
	return true
}

// Adopt records that the process holds the ID, and that the store has this of a unit. isTorn is set
// if it must be written again.
func (s *State) Adopt(name belief.UnitName, found Stored, isTorn bool) {
	if u := s.unit(name); u.state == Found {
		s.transition(u, func() { u.adopt(found, isTorn, s.newest) })
	}
}

// AdoptRest records that the store has no other units than those that were adopted.
func (s *State) AdoptRest() {
	s.isAdopted = true
	for _, u := range s.sorted() {
		if u.state == Found {
			s.Adopt(u.name, Stored{}, false)
		}
	}
}

// sorted returns all units by name: those that wait have turns in the order in which they began.
func (s *State) sorted() []*unit {
	return slices.SortedFunc(maps.Values(s.units), func(a, b *unit) int { return cmp.Compare(a.name, b.name) })
}

// Lose records that the process does not hold the ID any more. isAlone is set if no other process
// can have got it.
func (s *State) Lose(isAlone bool) {
	s.isAdopted = false
	for _, u := range s.units {
		s.transition(u, func() { u.lose(isAlone) })
	}
}

// Reset records that the store has lost everything.
func (s *State) Reset() {
	for _, u := range s.sorted() {
		s.transition(u, u.reset)
	}
}

// SetPredecessor sets whether the store may have earlier versions of the units, or may lack some.
// Then the record names no unit before it has all desired exports, and the other clusters keep the
// version that they know.
func (s *State) SetPredecessor(has bool) { s.hasPredecessor = has }

// HasPredecessor returns what SetPredecessor has set.
func (s *State) HasPredecessor() bool { return s.hasPredecessor }

// KeepWithdrawn sets whether withdrawn exports are kept. When they no longer are, their units have
// to be written.
func (s *State) KeepWithdrawn(keep bool) {
	if s.keepsWithdrawn && !keep {
		for _, u := range s.sorted() {
			for key := range u.stored.Exports {
				if u.isWithdrawn(key) {
					s.transition(u, u.change)
					break
				}
			}
		}
	}
	s.keepsWithdrawn = keep
}

// KeepsWithdrawn returns what KeepWithdrawn has set.
func (s *State) KeepsWithdrawn() bool { return s.keepsWithdrawn }

// Reconsider has units compared again of which an export was left out, because there may be room
// now. isAffected reports whether that concerns an export.
func (s *State) Reconsider(isAffected func(mcs.Key) bool) {
	for _, u := range s.sorted() {
		for key := range u.omitted {
			if isAffected(key) {
				s.transition(u, u.change)
				break
			}
		}
	}
}

// Draft is a unit that is due.
type Draft struct {
	Unit belief.UnitName
	// Exports are the desired exports as the other clusters see them. The driver may change it.
	Exports map[mcs.Key]mcs.Export
	// Stored is what was written last. IsTorn is set if the store may have something else.
	Stored Stored
	IsTorn bool
	// Changed are the namespaces whose desired exports have changed.
	Changed map[string]struct{}
}

// Drafts returns the units that are due: first those of which nothing is left, because a store
// accepts their removal even if a quota is used up, then those that wait for the longest time. Each
// that the driver takes is ended by Keep, Refuse, Postpone or Begin; the others are due again.
func (s *State) Drafts(now time.Time) iter.Seq[*Draft] {
	return func(yield func(*Draft) bool) {
		for _, u := range s.inTurn() {
			if now.Before(s.dueAt(u)) {
				continue
			}
			if u.failures > eagerWrites {
				s.nextTurnAt = now.Add(turnSpacing)
			}
			if !yield(&Draft{Unit: u.name, Exports: s.content(u), Stored: u.stored, IsTorn: u.isTorn, Changed: u.changed}) {
				return
			}
		}
	}
}

// content returns the desired content of a unit.
func (s *State) content(u *unit) map[mcs.Key]mcs.Export {
	exports := make(map[mcs.Key]mcs.Export, len(u.want))
	for key, exp := range u.want {
		if exp != nil {
			exports[key] = registry.Published(*exp)
		}
	}
	if !s.keepsWithdrawn {
		return exports
	}
	for key := range u.stored.Exports {
		if u.isWithdrawn(key) {
			// what was found may be an earlier version
			exports[key] = record.Undecided(key, s.cfg.ClusterID)
		}
	}
	return exports
}

// Has reports whether the store has the exports of a draft, so that no write is necessary.
func (d *Draft) Has() bool {
	return !d.IsTorn && maps.EqualFunc(d.Exports, d.Stored.Exports, mcs.Export.Equal)
}

// Keep ends a draft that was not necessary. omitted are the exports that it has left out, with the
// errors for their users.
func (s *State) Keep(d *Draft, omitted map[mcs.Key]error) {
	u := s.take(d)
	u.omitted = omitted
	s.transition(u, u.keep)
}

// Refuse ends a draft that cannot be written for its content. What the store has stays.
func (s *State) Refuse(now time.Time, d *Draft, omitted map[mcs.Key]error, reason error) {
	u := s.take(d)
	u.omitted = omitted
	// what cannot be written is not waited for
	u.state, u.problem, u.isDecided, u.retryAt = Refused, reason, true, now.Add(refusedPause)
	s.update(u)
}

// Postpone ends the draft of a unit that has to wait for something else until a time.
func (s *State) Postpone(name belief.UnitName, until time.Time) { s.units[name].retryAt = until }

// Begin ends a draft by a write of its exports as a version. Without exports the unit is removed as
// of the generation of the version.
func (s *State) Begin(now time.Time, d *Draft, version belief.Version, omitted map[mcs.Key]error) {
	u := s.take(d)
	u.omitted = omitted
	w := &write{generation: version.Generation, began: now}
	if len(d.Exports) > 0 {
		w.Stored = Stored{Version: version, Exports: d.Exports}
	}
	s.transition(u, func() { u.begin(w) })
}

// take returns the unit of a draft, of which the changes are taken.
func (s *State) take(d *Draft) *unit {
	u := s.units[d.Unit]
	u.changed = nil
	return u
}

// End records the result of the write that is in progress, with the reason if it did not succeed.
// It reports whether the result counts: otherwise the unit is written again.
func (s *State) End(now time.Time, name belief.UnitName, outcome Outcome, reason error) (counts bool) {
	u := s.units[name]
	counts = u.state == Writing && !u.write.isVoid
	if outcome == Accepted {
		s.newest = max(s.newest, u.write.generation)
		if counts && u.failures > 0 {
			s.recover()
		}
	}
	s.transition(u, func() { u.end(now, outcome, reason, s.cfg.Pause) })
	return counts
}

// Observe records a read of the store that has ended at readAt: it shows a unit as it was written
// last, or otherwise. A unit that this cluster does not have was written by another user, and is
// removed. It reports whether the unit has to be written again.
func (s *State) Observe(now time.Time, name belief.UnitName, isAsWritten bool, readAt time.Time) (isAgain bool) {
	if s.units[name] == nil && (isAsWritten || !s.isAdopted) {
		return false
	}
	u := s.unit(name)
	wasTorn := u.isTorn
	s.transition(u, func() { u.observe(now, isAsWritten, readAt, s.cfg.Patience) })
	return u.isTorn && !wasTorn
}

// RecordUndone records why the store did not carry out a write that it had accepted, and reports
// whether that is another reason than before.
func (s *State) RecordUndone(name belief.UnitName, reason error) (isNew bool) {
	u := s.units[name]
	isNew = u.undone == nil || u.undone.Error() != reason.Error()
	u.undone = reason
	return isNew
}

// unit returns a unit, and adds it if it is not known.
func (s *State) unit(name belief.UnitName) *unit {
	u := s.units[name]
	if u == nil {
		u = &unit{name: name}
		if s.isAdopted {
			u.state = Shown
		}
		s.units[name] = u
	}
	return u
}

// transition changes a unit, and keeps what follows from that.
func (s *State) transition(u *unit, change func()) {
	before := u.stored.Version.Generation
	change()
	if after := u.stored.Version.Generation; after != before {
		s.named = s.named.with(u.name, before, after)
	}
	s.update(u)
}

// with returns the set with another generation of a unit, 0 for none.
func (n set) with(name belief.UnitName, before, after int64) set {
	if before != 0 {
		n.count, n.digest = n.count-1, n.digest.Without(name, before)
	}
	if after != 0 {
		n.count, n.digest = n.count+1, n.digest.With(name, after)
	}
	return n
}

// update keeps the units that wait and those that are being written, and drops a unit of which
// there is nothing to know.
func (s *State) update(u *unit) {
	if u.write != nil {
		s.writing[u.name] = u
	} else {
		delete(s.writing, u.name)
	}
	switch u.state {
	case Wanted, Refused:
		if s.waiting[u.name] == nil {
			s.turns++
			u.turn, s.waiting[u.name] = s.turns, u
		}
		return
	case Found, Writing, Written, Shown:
		delete(s.waiting, u.name)
	}
	if s.isAdopted && u.state == Shown && len(u.want) == 0 && u.stored.IsNone() {
		delete(s.units, u.name)
	}
}

// inTurn returns the units that wait, in the order of Drafts.
func (s *State) inTurn() []*unit {
	return slices.SortedFunc(maps.Values(s.waiting), func(a, b *unit) int {
		if wants := a.wants(); wants != b.wants() {
			if wants {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.turn, b.turn)
	})
}
