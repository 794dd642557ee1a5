package belief

import (
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// signed is what a cluster has signed: its latest record and its units.
type signed struct {
	record Record
	units  map[UnitName]*unit
	shown  ShownUnits
	// settled is the generation up to which the record decides: that of the latest one that has
	// decided all units, and that of the first one while none has, or 0 if no process of this
	// cluster has read one before.
	settled int64
	// isComplete is set once a record has decided all units: those that are not known are absent.
	isComplete bool
	// mayBeOld is set from the first record of a process, if an earlier one of this cluster has
	// read records of the key, until a later record has decided all units: what it exports is
	// unknown, so that what is imported stays as it is.
	mayBeOld bool
	// isUnread is set from the return of the cluster until a record has decided all units.
	isUnread bool
	// gap is the time from which all units have to be read, because the store does not show those
	// that the record names; zero if it does, or all were read for the record of generation listed.
	gap    time.Time
	listed int64
}

// take makes the record that was saved that of the cluster.
func (s *State) take(st *step, c *cluster, saved *saving) {
	before, r := c.signed, saved.record
	if before == nil {
		c.signed = &signed{units: map[UnitName]*unit{}}
	} else {
		before.succeed(r, st.changed)
	}
	if before == nil || before.record.Author() != r.Author() {
		c.signed.begin(st.now, saved, before != nil)
		s.listAll(c)
	}
	c.signed.record = *r
	if r.Farewell {
		return
	}
	for _, name := range r.Manifest.Units() {
		s.unit(c, name)
	}
	s.decideAll(st, c)
	if r.Manifest.Compare(&c.signed.shown) != Matches {
		s.listAll(c) // other namespaces may be named
	}
}

// succeed prepares b for the record that follows its own one.
func (b *signed) succeed(next *Record, changed keys) {
	if !maps.Equal(b.record.Properties, next.Properties) {
		b.addAll(changed)
	}
	if b.record.Process == next.Process {
		return
	}
	for _, u := range b.units {
		u.overtaken = Version{} // what the previous process was writing may be lost
	}
}

// begin lets b begin anew with the first record of an author. isNewKey is set if the cluster had
// another one.
func (b *signed) begin(now time.Time, first *saving, isNewKey bool) {
	b.shown = ShownUnits{generations: map[UnitName]int64{}}
	b.settled, b.listed, b.gap, b.isUnread = 0, 0, time.Time{}, false
	b.mayBeOld = b.mayBeOld || first.before == NotRead && first.wasRead && !first.isCertain
	if first.wasRead || isNewKey {
		b.settled = first.record.At.Generation // earlier units may have ended before
	}
	switch {
	case isNewKey:
		b.gap = now.Add(gapTime) // a cluster that rotates its key signs all units again
	case first.before == Left:
		b.gap, b.isUnread = now, true // what was read before the return was saved is not kept
	}
}

// unit returns a unit, a new one if it is not known: unread, if no record has said yet that it does
// not exist.
func (s *State) unit(c *cluster, name UnitName) *unit {
	u := c.signed.units[name]
	if u == nil {
		u = c.signed.newUnit()
		c.signed.units[name] = u
		s.list(c, name, u)
	}
	return u
}

// newUnit returns a unit that is not known.
func (b *signed) newUnit() *unit {
	if b.isComplete {
		return &unit{state: Absent}
	}
	return &unit{state: Unread}
}

// isNamed reports whether the record names a version of a unit.
func (b *signed) isNamed(name UnitName) bool {
	return b.record.Manifest.Names(name, &b.shown).Kind == Named
}

// list makes a View look at the cluster for all keys that a unit may have and does not name.
func (s *State) list(c *cluster, name UnitName, u *unit) {
	after := listing{isOpen: true}
	if !c.signed.mayBeOld {
		after = u.listingOf(name, c.signed.record.Manifest)
	}
	s.index.setListing(c, name, &u.listing, &after)
	u.listing = after
}

// listAll is list for all units.
func (s *State) listAll(c *cluster) {
	for name, u := range c.signed.units {
		s.list(c, name, u)
	}
}

// unlist makes no View look at the cluster because of a unit that had a content.
func (s *State) unlist(c *cluster, name UnitName, u *unit, before *Content) {
	s.index.setNamed(c, before, &Content{})
	s.index.setListing(c, name, &u.listing, &listing{})
	u.listing = listing{}
}

// decideAll applies the manifest to all units.
func (s *State) decideAll(st *step, c *cluster) {
	b := c.signed
	switch b.record.Manifest.Compare(&b.shown) {
	case Matches:
		if !b.isComplete || b.isUnread {
			st.decided(c)
		}
		// two processes with one key, and different clocks, may alternate
		b.settled = max(b.settled, b.record.At.Generation)
		b.isComplete, b.isUnread, b.gap, b.listed = true, false, time.Time{}, 0
	case Differs:
		if b.gap.IsZero() && b.listed != b.record.At.Generation {
			b.gap = st.now.Add(gapTime)
		}
		return
	case Unknown:
		return
	}
	for _, name := range slices.Sorted(maps.Keys(b.units)) {
		s.decide(st, c, name)
	}
	s.confirm(st, c)
}

// decide applies the manifest to a unit.
func (s *State) decide(st *step, c *cluster, name UnitName) {
	u := c.signed.units[name]
	f := s.facts(st, c, name)
	before, named := u.state, u.content
	u.decide(&f, st.changed)
	if u.state != before {
		st.decided(c)
	}
	if u.state != Absent {
		s.list(c, name, u)
		return
	}
	s.unlist(c, name, u, &named)
	delete(c.signed.units, name)
}

// confirm records that what was read of a cluster is not old, once more than one record was read.
// Versions that only the first record has named may be old: the store may have been set back.
func (s *State) confirm(st *step, c *cluster) {
	if c.state != Current || !c.signed.mayBeOld {
		return
	}
	c.signed.mayBeOld = false
	for name, u := range c.signed.units {
		if f := s.facts(st, c, name); u.state == Behind || f.answer.Kind == Undecided {
			st.changed.addContent(&u.content)
			s.index.setNamed(c, &u.content, &Content{})
			*u = unit{state: Unread, named: u.named, listing: u.listing}
		}
	}
	s.listAll(c)
	c.signed.addAll(st.changed)
	st.decided(c)
}

// facts returns the facts about a unit.
func (s *State) facts(st *step, c *cluster, name UnitName) facts {
	b := c.signed
	return facts{
		now: st.now, cfg: &s.cfg, author: b.record.Author(), settled: b.settled,
		answer: b.record.Manifest.Names(name, &b.shown), manifest: b.record.Manifest, name: name, codes: s.codes,
	}
}

// observeUnits applies a read of units.
func (s *State) observeUnits(st *step, c *cluster, e *UnitsRead) {
	if !c.takesUnits() {
		return
	}
	b, changed := c.signed, st.changed
	if b.mayBeOld {
		changed = keys{} // no View has them until confirm
	}
	isDecided := b.record.Manifest.Compare(&b.shown) == Matches
	b.show(e)
	for i := range e.Units {
		read := &e.Units[i]
		u := b.units[read.Name]
		if u == nil {
			if read.Version == (Version{}) {
				continue
			}
			u = s.unit(c, read.Name)
			st.decided(c)
		}
		f := s.facts(st, c, read.Name)
		before, named := u.state, u.content
		if u.observe(&f, read, changed) {
			s.index.setNamed(c, &named, &u.content)
			s.list(c, read.Name, u)
		}
		if u.state != before {
			st.decided(c)
		}
	}
	if !isDecided || b.record.Manifest.Compare(&b.shown) != Matches {
		s.decideAll(st, c)
		return
	}
	for i := range e.Units { // the others are decided
		if name := e.Units[i].Name; b.units[name] != nil {
			s.decide(st, c, name)
		}
	}
}

// takesUnits reports whether reads of units can count. After the end of a cluster they do with its
// next record.
func (c *cluster) takesUnits() bool {
	return c.signed != nil && !c.signed.record.Farewell && !c.isEnding()
}

// hasLater reports whether a unit was read that the cluster has signed after a record: a farewell
// is later than all units. b may be nil.
func (b *signed) hasLater(r *Record) bool {
	if b == nil {
		return false
	}
	for _, u := range b.units {
		if u.author.Key == r.Key && u.version.Generation > r.At.Heartbeat {
			return true
		}
	}
	return false
}

// show records which versions of units the store shows.
func (b *signed) show(e *UnitsRead) {
	isRead := map[UnitName]bool{}
	for i := range e.Units {
		u := &e.Units[i]
		isRead[u.Name] = true
		if u.Author == b.record.Author() {
			b.shown.set(u.Name, u.Version.Generation)
		} else {
			b.shown.set(u.Name, 0)
		}
	}
	if !e.All {
		return
	}
	for name := range b.shown.generations {
		if !isRead[name] {
			b.shown.set(name, 0)
		}
	}
	b.gap, b.listed = time.Time{}, b.record.At.Generation
}

// readAgain makes units be read that were read before.
func (c *cluster) readAgain(units []UnitName) {
	for _, name := range units {
		if u := c.signed.units[name]; u != nil {
			u.again, u.retry = true, retry{}
		}
	}
}

// skip decides whether a unit is skipped.
func (s *State) skip(st *step, c *cluster, name UnitName) {
	u, f := c.signed.units[name], s.facts(st, c, name)
	before := u.state
	if u.skip(&f); u.state != before {
		st.decided(c)
	}
	s.list(c, name, u)
}

// answer returns the state of a key, with its export.
func (b *signed) answer(at keyAt, isImported bool) (registry.ClusterState, *mcs.Export) {
	u := b.units[at.name]
	switch {
	case b.record.Farewell:
		return registry.None, nil
	case b.mayBeOld && (u != nil || isImported):
		return registry.Unknown, nil
	case u != nil:
		return u.answer(at.key, func() bool {
			codes, ok := b.record.Manifest.Namespaces(at.name)
			return !ok || slices.Contains(codes, at.code)
		})
	case b.isUnread, isImported && !b.isComplete:
		return registry.Unknown, nil
	}
	return registry.None, nil
}

// hasAhead reports whether a unit was read that the record does not name yet.
func (b *signed) hasAhead() bool {
	for _, u := range b.units {
		if u.state == Ahead {
			return true
		}
	}
	return false
}

// addAll adds the keys of all units.
func (b *signed) addAll(changed keys) {
	for _, u := range b.units {
		changed.addContent(&u.content)
	}
}

// toRead returns the units that have to be read now, sorted; all is set if these are all.
func (b *signed) toRead(now time.Time) (units []UnitName, all bool) {
	if b.record.Farewell {
		return nil, false
	}
	if !b.gap.IsZero() && !now.Before(b.gap) {
		return nil, true
	}
	for name, u := range b.units {
		if u.isToRead() && u.isDue(now) && b.isNamed(name) {
			units = append(units, name)
		}
	}
	slices.Sort(units)
	return units, false
}
