package belief

import "time"

// Counts reports whether a read of a unit counts: what was read of it before is replaced then.
func (s *State) Counts(id string, read *Unit) bool {
	c := s.clusters[id]
	if c == nil || !c.takesUnits() {
		return false
	}
	u := c.signed.units[read.Name]
	if u == nil {
		u = c.signed.newUnit()
	}
	f := s.facts(&step{}, c, read.Name)
	_, counts := u.judge(&f, read)
	return counts
}

// IsBehind reports whether the next read of the units of a cluster may show one that its record
// names. One that could not be read several times has pauses of its own.
func (s *State) IsBehind(id string) bool {
	return s.hasUnread(id, func(u *unit) bool { return u.failures <= eagerReads })
}

// HasUnread reports whether the record of a cluster names a unit that has to be read.
func (s *State) HasUnread(id string) bool {
	return s.hasUnread(id, func(*unit) bool { return true })
}

// IsShown reports whether the store shows exactly the units that the record of a cluster names.
func (s *State) IsShown(id string) bool {
	c := s.clusters[id]
	return c != nil && c.takesUnits() && c.signed.record.Manifest.Compare(&c.signed.shown) == Matches
}

// hasUnread reports whether the record of a cluster names a unit that has to be read, and for which
// counts reports true.
func (s *State) hasUnread(id string, counts func(*unit) bool) bool {
	c := s.clusters[id]
	if c == nil || !c.takesUnits() {
		return false
	}
	for name, u := range c.signed.units {
		if u.isToRead() && counts(u) && c.signed.isNamed(name) {
			return true
		}
	}
	return false
}

// IsProving reports whether a record of a cluster waits until its key is proven, which the next
// read of its own place may do.
func (s *State) IsProving(id string) bool {
	c := s.clusters[id]
	return c != nil && c.waiting != nil && c.proof.failures <= eagerReads
}

// IsUnproven reports whether a record of a cluster waits until its key is proven.
func (s *State) IsUnproven(id string) bool {
	c := s.clusters[id]
	return c != nil && c.waiting != nil
}

// NeedsProof reports whether the own place of a cluster has to be read, now or later.
func (s *State) NeedsProof(id string) bool {
	c := s.clusters[id]
	return c != nil && c.needsProof()
}

// HasProofAlone reports whether the record of a cluster that counts is the one in its own place,
// because the store shows none that does, and no other record has followed it. Units may be later
// than that record: those count too that no record names (the rule "early").
func (s *State) HasProofAlone(id string) bool {
	c := s.clusters[id]
	if c == nil || c.signed == nil || c.signed.record.Place != Own || c.problem.Kind == NoProblem {
		return false
	}
	return c.viewed() == First || s.liveness.IsStale(id)
}

// DueOf returns the reads of a cluster that are due: that of its own place, and those of units. all
// is set if all units have to be read.
func (s *State) DueOf(id string, now time.Time) (isProofDue bool, units []UnitName, all bool) {
	c := s.clusters[id]
	if c == nil {
		return false, nil, false
	}
	if c.takesUnits() {
		units, all = c.signed.toRead(now)
	}
	return c.needsProof() && c.proof.isDue(now), units, all
}
