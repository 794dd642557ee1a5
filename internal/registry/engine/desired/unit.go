package desired

import (
	"maps"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// UnitState is the state of a unit of this cluster.
type UnitState int

const (
	// Found means that a previous process may have written the unit, and that this process does not
	// know it, or does not hold the ID.
	Found UnitState = iota
	// Wanted means that the desired exports may differ from those that were written last.
	Wanted
	// Writing means that a write is in progress. Later changes wait for its end.
	Writing
	// Written means that the store has accepted the unit, and has not shown it.
	Written
	// Shown means that the store shows the unit as it was written last, with all desired exports.
	Shown
	// Refused means that the store refuses the desired exports for their content or a quota. What
	// it had before stays.
	Refused
)

// Stored is what the store has of a unit. The zero Stored is none.
type Stored struct {
	Version belief.Version
	Exports map[mcs.Key]mcs.Export
}

// IsNone reports whether the store has none.
func (s Stored) IsNone() bool { return s.Version == belief.Version{} }

// Outcome is the result of a write.
type Outcome int

const (
	// Accepted means that the store has all of it.
	Accepted Outcome = iota
	// Unfit means that the store refuses it for its content or a quota. It may have a part of it.
	Unfit
	// Unanswered means that the write has failed, or that there was no answer. The store may have
	// all of it, a part, or nothing.
	Unanswered
	// Untried means that nothing was written, for a reason that does not lie in the unit; or that
	// the driver adopts all units again before the next write, which shows what was.
	Untried
)

// unit is a unit of this cluster.
type unit struct {
	name  belief.UnitName
	state UnitState
	// want are the desired exports; nil is a withdrawal that the store has not shown.
	want map[mcs.Key]*mcs.Export
	// stored is what the last write that the store accepted has written, or what was found. last is
	// its version, also after the process has lost the ID.
	stored Stored
	last   belief.Version
	// isDecided is set once all desired exports were compared with stored, since the process holds
	// the ID. Those that cannot be written count as compared.
	isDecided bool
	// isTorn is set if the store may have something else than stored: it is written even if stored
	// has all desired exports.
	isTorn bool
	// openSince is the time at which the first write began that the store may have carried out
	// although it had no answer, zero if there is none. A later answer decides.
	openSince time.Time
	// changed are the namespaces whose desired exports have changed since the last draft.
	changed map[string]struct{}
	// omitted are the desired exports that a draft has left out, with the error for their users.
	// stored has their previous versions.
	omitted map[mcs.Key]error
	// turn orders the units that wait.
	turn uint64

	// write is the write in progress, nil without one. It may outlast the hold of the ID.
	write *write
	// problem is why the last write did not succeed, until one does. failures is the number of
	// failures in a row, and retryAt the time from which the next draft may be taken.
	problem  error
	failures int
	retryAt  time.Time
	// unshownSince is the time since which the store does not show the unit as it was written, zero
	// if it does.
	unshownSince time.Time
	// undone is why the store did not carry out a write that it had accepted.
	undone error
}

// write is a write in progress.
type write struct {
	Stored
	// generation is that of the write, which a removal has too.
	generation int64
	began      time.Time
	// isVoid is set if the store has lost the unit, or the process the ID, since the write began:
	// its result is not known.
	isVoid bool
	// isOutdated is set if the desired exports have changed since.
	isOutdated bool
}

// isWithdrawn reports whether an export is not desired.
func (u *unit) isWithdrawn(key mcs.Key) bool { return u.want[key] == nil }

// wants reports whether any export is desired.
func (u *unit) wants() bool {
	for _, exp := range u.want {
		if exp != nil {
			return true
		}
	}
	return false
}

// change is the event that the desired exports have changed, or have to be compared again.
func (u *unit) change() {
	switch u.state {
	case Found, Wanted:
	case Writing:
		u.write.isOutdated = true
	case Refused:
		u.state, u.retryAt = Wanted, time.Time{} // what was refused may have changed
	case Written, Shown:
		u.state = Wanted
	}
}

// adopt is the event that the process holds the ID and has read the unit. isTorn is set if what was
// found must be written again, and newest is the latest generation that this process has written.
// Another user may have written a version again that this process has replaced, or removed the
// unit: what it has written stays, and is written again.
func (u *unit) adopt(found Stored, isTorn bool, newest int64) {
	isReplay := !found.IsNone() && found.Version.Generation <= newest && found.Version != u.last
	isRemoved := found.IsNone() && !u.stored.IsNone()
	u.openSince = time.Time{}
	if u.isTorn = isTorn || isReplay || isRemoved; !isReplay && !isRemoved {
		u.stored, u.last = found, found.Version
	}
	switch {
	case u.write != nil:
		u.state, u.write.isOutdated = Writing, true
	case u.isTorn, !u.stored.IsNone(), len(u.want) > 0:
		u.state = Wanted
	default:
		u.state, u.isDecided = Shown, true
	}
}

// lose is the event that the process does not hold the ID any more. Another process may have
// written the unit since, unless isAlone is set.
func (u *unit) lose(isAlone bool) {
	if u.write != nil {
		u.write.isVoid = true
	}
	if u.state = Found; !isAlone {
		u.stored, u.isDecided = Stored{}, false
	}
	u.isTorn, u.problem, u.undone, u.omitted = false, nil, nil, nil
	u.failures, u.retryAt, u.unshownSince = 0, time.Time{}, time.Time{}
}

// reset is the event that the store has lost everything.
func (u *unit) reset() {
	if u.state == Found {
		return
	}
	if u.write != nil {
		u.write.isVoid = true
	}
	if !u.stored.IsNone() {
		u.isTorn = true
		u.change()
	}
}

// keep is the event that stored has all desired exports, but for those that the draft has left out.
func (u *unit) keep() {
	u.isDecided, u.problem = true, nil
	u.shown()
	if !u.unshownSince.IsZero() {
		u.state = Written
	}
}

// shown makes a unit Shown, unless it waits to be shown: withdrawals that it lacks are complete.
func (u *unit) shown() {
	u.state = Shown
	if u.unshownSince.IsZero() {
		maps.DeleteFunc(u.want, func(key mcs.Key, exp *mcs.Export) bool {
			_, isStored := u.stored.Exports[key]
			return exp == nil && !isStored
		})
	}
}

// begin is the event that a write begins.
func (u *unit) begin(w *write) { u.state, u.write = Writing, w }

// end is the event that the write in progress has ended.
func (u *unit) end(now time.Time, outcome Outcome, reason error, pause func(failures int) time.Duration) {
	w := u.write
	u.write = nil
	if u.state != Writing {
		return
	}
	if outcome == Unanswered || w.isVoid {
		u.leaveOpen(w)
	}
	if w.isVoid {
		u.state, u.isTorn = Wanted, true
		return
	}
	switch outcome {
	case Accepted:
		u.stored, u.last, u.isTorn, u.isDecided, u.openSince = w.Stored, w.Version, false, true, time.Time{}
		u.problem, u.failures, u.retryAt = nil, 0, time.Time{}
		u.state, u.unshownSince = Written, now
		if w.isOutdated {
			u.state = Wanted
		}
	case Unfit, Unanswered:
		u.state, u.isTorn, u.problem = Wanted, true, reason
		u.failures++
		u.retryAt = now.Add(pause(u.failures))
		if outcome == Unfit {
			u.isDecided = true // what cannot be written is not waited for
			if !w.isOutdated {
				u.state = Refused
			}
		}
	case Untried:
		u.state = Wanted
	}
}

// leaveOpen records that the store may have carried out a write that had no answer.
func (u *unit) leaveOpen(w *write) {
	if u.openSince.IsZero() && !w.IsNone() {
		u.openSince = w.began
	}
}

// observe is the event that a read of the store, which ended at readAt, shows the unit as it was
// written last or otherwise.
func (u *unit) observe(now time.Time, isAsWritten bool, readAt time.Time, patience time.Duration) {
	if u.state == Found || u.state == Writing {
		return
	}
	isSettled := u.state == Written || u.state == Shown
	switch {
	case isAsWritten:
		u.unshownSince, u.undone = time.Time{}, nil
		if isSettled {
			u.shown()
		}
		return
	case u.unshownSince.IsZero():
		u.unshownSince = now
	}
	if isSettled {
		u.state = Written
	}
	if readAt.Sub(u.unshownSince) >= patience {
		u.isTorn = true
		u.change()
	}
}
