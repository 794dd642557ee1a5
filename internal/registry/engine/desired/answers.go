package desired

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// Presence is whether the store shows an export of this cluster.
type Presence int

const (
	// Unseen means that it was not read.
	Unseen Presence = iota
	// Absent means that the store shows none.
	Absent
	// Present means that it shows one, or that a write is not shown.
	Present
)

// ShownExport is an export of this cluster as the store shows it to the other clusters. Export is
// nil if it is not Present, or not known.
type ShownExport struct {
	Presence Presence
	Export   *mcs.Export
}

// StatusOf returns the status of a desired export, given what the store shows of it.
func (s *State) StatusOf(key mcs.Key, shown ShownExport) registry.PublishStatus {
	want, isAsked := s.WantOf(key)
	if state := StatusOf(want, isAsked, shown); state != registry.Pending {
		return registry.PublishStatus{State: state}
	}
	status := registry.PublishStatus{State: registry.Pending}
	if u := s.units[s.cfg.UnitOf(key)]; u != nil {
		status.Err = cmp.Or(u.omitted[key], u.problem, u.undone)
	}
	return status
}

// StatusOf compares a desired export, nil for a withdrawal, with what the store shows. isAsked is
// false if neither was requested by this process.
func StatusOf(want *mcs.Export, isAsked bool, shown ShownExport) registry.PublishState {
	switch {
	case shown.Export != nil && (!isAsked || want != nil && shown.Export.Equal(registry.Published(*want))):
		return registry.Exported
	case want == nil && shown.Presence == Absent, !isAsked && shown.Presence == Unseen:
		return registry.Absent
	}
	return registry.Pending
}

// WantOf returns the desired export of a key, nil for a withdrawal. isAsked is false if neither was
// requested, or the withdrawal is complete.
func (s *State) WantOf(key mcs.Key) (want *mcs.Export, isAsked bool) {
	if u := s.units[s.cfg.UnitOf(key)]; u != nil {
		want, isAsked = u.want[key]
	}
	return want, isAsked
}

// Wanted yields the keys whose export or withdrawal was requested, with the desired export, nil for
// a withdrawal.
func (s *State) Wanted(yield func(mcs.Key, *mcs.Export) bool) {
	for _, u := range s.units {
		for key, exp := range u.want {
			if !yield(key, exp) {
				return
			}
		}
	}
}

// WantedIn returns the keys of a unit whose export or withdrawal was requested.
func (s *State) WantedIn(name belief.UnitName) []mcs.Key {
	if u := s.units[name]; u != nil {
		return slices.Collect(maps.Keys(u.want))
	}
	return nil
}

// StateOf returns the state of a unit.
func (s *State) StateOf(name belief.UnitName) UnitState {
	switch u := s.units[name]; {
	case u != nil:
		return u.state
	case s.isAdopted:
		return Shown
	}
	return Found
}

// StoredOf returns what the store has of a unit, by the last write that it accepted. It is not
// known of a unit that is Found.
func (s *State) StoredOf(name belief.UnitName) (stored Stored) {
	if u := s.units[name]; u != nil && u.state != Found {
		stored = u.stored
	}
	return stored
}

// IsWhole reports whether the store has a unit as it was written last, as far as is known, and no
// write of it is in progress.
func (s *State) IsWhole(name belief.UnitName) bool {
	u := s.units[name]
	return u != nil && u.state != Found && u.write == nil && !u.isTorn
}

// OmittedOf returns the exports that the last draft of a unit has left out, with the errors for
// their users.
func (s *State) OmittedOf(name belief.UnitName) map[mcs.Key]error {
	if u := s.units[name]; u != nil {
		return u.omitted
	}
	return nil
}

// ProblemOf returns why the last write of a unit did not succeed, nil if it did.
func (s *State) ProblemOf(name belief.UnitName) error {
	if u := s.units[name]; u != nil {
		return u.problem
	}
	return nil
}

// Problem returns why writing does not work: the problem of the first unit that the store does not
// refuse for its content, nil if there is none.
func (s *State) Problem() error {
	for _, u := range s.inTurn() {
		if u.state == Wanted && u.isTorn && u.problem != nil {
			return u.problem
		}
	}
	return nil
}

// NameOf returns the version of a unit that the record of the cluster names, zero for none. A unit
// that is not decided must not be named: other clusters keep what they know of it.
func (s *State) NameOf(now time.Time, name belief.UnitName) (version belief.Version, isDecided bool) {
	u := s.units[name]
	switch {
	case u == nil:
		return version, s.isAdopted
	case u.state == Found, s.hasPredecessor && !u.isDecided, u.isOpen(now):
		return version, false
	}
	return u.stored.Version, true
}

// IsSlow reports whether records leave a unit undecided because a write of it is slow. Other
// clusters that have the version before keep it.
func (s *State) IsSlow(now time.Time, name belief.UnitName) bool {
	u := s.units[name]
	return u != nil && (u.isDecided || !s.hasPredecessor) && !u.stored.IsNone() && u.isOpen(now)
}

// slowWrite is the time after which a write counts as slow. It is twice the time within which a
// record follows a write (announceWithin in package cloudmap/state): a unit that is written again
// and again is named between two writes.
const slowWrite = time.Second

// isOpen reports whether a record leaves the unit undecided, because other clusters may have read a
// version whose write has no answer. If nothing was stored before, a record without the unit would
// end its exports. If the write is slow, a record with the version before would make a cluster that
// starts go back to it.
func (u *unit) isOpen(now time.Time) bool {
	since := u.openSince
	if since.IsZero() && u.write != nil && !u.write.IsNone() {
		since = u.write.began
	}
	return !since.IsZero() && (u.stored.IsNone() || now.Sub(since) >= slowWrite)
}

// NamedSet returns the number and the digest of the units that the store has, and of those that are
// being written as they will be.
func (s *State) NamedSet(written ...belief.UnitName) (count int, digest belief.SetDigest) {
	named := s.named
	for _, name := range written {
		if u := s.units[name]; u.write != nil {
			named = named.with(name, u.stored.Version.Generation, u.write.Version.Generation)
		}
	}
	return named.count, named.digest
}

// IsDecided reports whether each unit was compared with the desired exports since the process holds
// the ID.
func (s *State) IsDecided() bool {
	for _, u := range s.units {
		if !u.isDecided {
			return false
		}
	}
	return true
}

// IsUnconfirmed reports whether the store does not show all that it has accepted.
func (s *State) IsUnconfirmed() bool {
	for _, u := range s.units {
		if u.state == Written {
			return true
		}
	}
	return false
}

// Size returns the numbers of exports and units that the store has.
func (s *State) Size() (exports, units int) {
	for name := range s.units {
		stored := s.StoredOf(name)
		exports += len(stored.Exports)
		if !stored.IsNone() {
			units++
		}
	}
	return exports, units
}
