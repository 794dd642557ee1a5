package desired

import "time"

const (
	// eagerWrites is the number of failures after which a unit takes turns with other failing
	// units: one of them is written every turnSpacing, ten a minute.
	eagerWrites = 3
	turnSpacing = 6 * time.Second
	// refusedPause is the pause after which exports that cannot be written are tried again.
	refusedPause = 30 * time.Second
)

// dueAt returns when a unit that waits may be written. The zero time is now.
func (s *State) dueAt(u *unit) time.Time {
	at := u.retryAt
	if u.failures > eagerWrites {
		at = later(at, s.nextTurnAt)
	}
	if !u.isTorn {
		at = later(at, s.pacedAt(u))
	}
	return at
}

// pacedAt returns when one of the namespaces that have changed a unit may write. The changes of the
// others are written with it.
func (s *State) pacedAt(u *unit) (at time.Time) {
	isFirst := true
	for namespace := range u.changed {
		if due := s.cfg.Pace.DueAt(namespace); isFirst || due.Before(at) {
			at, isFirst = due, false
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// recover makes all failing units due now, because one of them was written. Units that the store
// refuses for their content keep their time.
func (s *State) recover() {
	s.nextTurnAt = time.Time{}
	for _, u := range s.waiting {
		if u.state == Wanted {
			u.retryAt = time.Time{}
		}
	}
}

// Pending is the result of State.Pending.
type Pending struct {
	// Changed is the number of units that are due because exports have changed, and Torn of those
	// that are due because the store may have something else than was written.
	Changed, Torn int
	// Again is the time at which the first of the other units is due, zero if none waits.
	Again time.Time
}

// Pending returns what is due.
func (s *State) Pending(now time.Time) (p Pending) {
	for _, u := range s.waiting {
		switch at := s.dueAt(u); {
		case now.Before(at):
			if p.Again.IsZero() || at.Before(p.Again) {
				p.Again = at
			}
		case u.isTorn:
			p.Torn++
		default:
			p.Changed++
		}
	}
	return p
}

// Writing reports whether units are being written, and returns when the last of these writes began.
func (s *State) Writing() (began time.Time, isWriting bool) {
	for _, u := range s.writing {
		began = later(began, u.write.began)
	}
	return began, len(s.writing) > 0
}

// CountWaiting returns the number of units that have to be written or are being written.
func (s *State) CountWaiting() int { return len(s.waiting) + len(s.writing) }
