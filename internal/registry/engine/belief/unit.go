package belief

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// UnitState is the state of a unit of a cluster: table (b) of docs/proposals/031-engine.md.
type UnitState int

const (
	// Absent means that the manifest answers none, and nothing of the unit is imported.
	Absent UnitState = iota
	// Unread means that the unit may exist, and no version of it was read: its keys are unknown.
	Unread
	// Shown means that the version that was read is the one that the manifest names.
	Shown
	// Behind means that another version was read than the one that is named: its exports stay.
	Behind
	// Ahead means that a version was read which is later than what the record decides.
	Ahead
	// Skipped means that a version is named of which nothing is imported: it is not read.
	Skipped
)

// unit is a unit of a cluster. version, author and content are those of the version that was read,
// zero in Absent and Unread.
type unit struct {
	state   UnitState
	version Version
	author  Author
	content Content
	// order is that of the version that was read.
	order int64
	// named is the version that the manifest names, if another one was read.
	named Version
	// overtaken is the version that the manifest named when a later one was read, zero if that is
	// not known. A record may name it while the later one is being written.
	overtaken Version
	// again is set if the version that was read has to be read again, because more of it is
	// imported now.
	again bool
	// listing says where the index has the cluster because of the unit.
	listing
	retry
}

// facts are what the transitions of a unit depend on besides the unit.
type facts struct {
	now    time.Time
	cfg    *Config
	answer Answer
	// author signs the units of the cluster, settled is the generation up to which its record
	// decides.
	author   Author
	settled  int64
	manifest Manifest
	name     UnitName
	// codes are those of the namespaces whose exports are imported, nil for all.
	codes map[string]bool
}

// isUsed reports whether the named version may have exports that are imported.
func (f *facts) isUsed() bool {
	if f.codes == nil {
		return true
	}
	codes, ok := f.manifest.Namespaces(f.name)
	return !ok || slices.ContainsFunc(codes, func(code string) bool { return f.codes[code] })
}

// names reports whether the manifest names a version that an author has signed.
func (f *facts) names(v Version, author Author) bool {
	if f.answer.Kind != Named || author != f.author {
		return false
	}
	named := f.answer.Version
	return named.Digest == v.Digest && (named.Generation == 0 || named.Generation == v.Generation)
}

// decide applies the answer of the manifest, and adds the keys that have changed.
func (u *unit) decide(f *facts, changed keys) {
	switch f.answer.Kind {
	case Undecided:
	case None:
		u.decideNone(f, changed)
	case Named:
		if f.names(u.version, u.author) {
			u.state = Shown
		} else {
			u.decideOther(f)
		}
	}
}

// decideNone applies the answer that the unit does not exist.
func (u *unit) decideNone(f *facts, changed keys) {
	switch u.state {
	case Absent:
	case Ahead:
		if !u.isAhead(f) {
			u.end(changed)
		}
	case Unread, Shown, Behind, Skipped:
		u.end(changed)
	}
}

// decideOther applies the answer that another version exists than the one that was read.
func (u *unit) decideOther(f *facts) {
	switch u.state {
	case Absent, Shown:
		u.state = Behind
	case Ahead:
		if u.isAhead(f) {
			u.overtaken = f.answer.Version
		} else {
			u.state = Behind
		}
	case Unread, Behind, Skipped:
	}
	u.skip(f)
	if u.named != f.answer.Version {
		u.named, u.retry = f.answer.Version, retry{}
	}
}

// skip lets a unit be skipped while nothing of it is imported, neither of the version that was read
// nor of the named one.
func (u *unit) skip(f *facts) {
	isNeeded := func() bool { return !u.content.isEmpty() || f.isUsed() }
	switch u.state {
	case Unread, Behind:
		if !isNeeded() {
			u.state = Skipped
		}
	case Skipped:
		if isNeeded() {
			u.state = Unread
		}
	case Absent, Shown, Ahead:
	}
}

// isAhead reports whether the version that was read is later than what the record decides.
func (u *unit) isAhead(f *facts) bool {
	return u.author == f.author && u.version.Generation > f.settled
}

// isLaterThan reports whether the version that was read before is later than the one that the
// record names: the store, and the record with it, may have been set back, or the cluster is still
// writing the later one.
func (u *unit) isLaterThan(read *Unit, f *facts) bool {
	isOpen := u.isAhead(f) || u.author == f.author && u.overtaken == f.answer.Version
	return isOpen && read.Version.Generation < u.version.Generation
}

// judge returns the state of the unit after a read. counts is false if the read is older, not whole
// or not signed: it changes nothing.
func (u *unit) judge(f *facts, read *Unit) (after UnitState, counts bool) {
	isSame := read.Version != (Version{}) && read.Version == u.version && read.Author == u.author
	switch {
	case f.names(read.Version, read.Author) && !u.isLaterThan(read, f):
		return Shown, true
	case early(read, f.author, f.settled, u.version, u.author):
		return Ahead, true
	}
	return u.state, isSame
}

// observe applies a read of the unit, and adds the keys that have changed. It reports whether the
// read counts.
func (u *unit) observe(f *facts, read *Unit, changed keys) bool {
	after, counts := u.judge(f, read)
	before := u.retry
	if counts {
		switch {
		case after == Shown:
			u.overtaken = Version{}
		case read.Version != u.version:
			u.overtaken = f.answer.Version
		}
		u.take(read, changed)
		u.state = after
	}
	if !counts || u.isToRead() { // it is not the version that is named
		u.retry = before
		u.failed(f.now, f.cfg, maxRetry)
	}
	return counts
}

// take replaces what was read of the unit. Exports that cannot be used stay as they were.
func (u *unit) take(read *Unit, changed keys) {
	before := u.content
	content := read.Content
	content.Exports = maps.Clone(content.Exports)
	for key, exp := range before.Exports {
		_, isThere := content.Exports[key]
		if !isThere && !content.Ignored[key] && (content.Unnamed || content.Unusable[key]) {
			if content.Exports == nil {
				content.Exports = map[mcs.Key]*mcs.Export{}
			}
			content.Exports[key] = exp
		}
	}
	u.version, u.author, u.content, u.again, u.retry = read.Version, read.Author, content, false, retry{}
	u.order = read.Order
	changed.addDifferent(before.Exports, content.Exports)
	changed.addOther(before.Ignored, content.Ignored)
	changed.addOther(content.Ignored, before.Ignored)
}

// end ends the exports of the unit.
func (u *unit) end(changed keys) {
	changed.addContent(&u.content)
	*u = unit{state: Absent, listing: u.listing}
}

// isToRead reports whether the unit has to be read.
func (u *unit) isToRead() bool {
	switch u.state {
	case Unread, Behind:
		return true
	case Shown, Ahead, Skipped:
		return u.again
	case Absent:
	}
	return false
}

// use makes the unit be read again if more of it is imported now: exports of namespaces for which
// isUsed reports true were ignored.
func (u *unit) use(isUsed func(namespace string) bool) {
	for key := range u.content.Ignored {
		if isUsed(key.Namespace) {
			u.again, u.retry = true, retry{}
			return
		}
	}
}

// listingOf returns where the index has to have the cluster: if the unit may have keys that it does
// not name, of all namespaces or of some.
func (u *unit) listingOf(name UnitName, m Manifest) listing {
	switch u.state {
	case Unread:
		return listing{isOpen: true}
	case Skipped:
		codes, ok := m.Namespaces(name)
		return listing{isOpen: !ok, codes: codes}
	case Absent, Shown, Behind, Ahead:
	}
	return listing{isOpen: u.content.Unnamed}
}

// answer returns the state of a key of the unit, with its export. mayHave reports whether the named
// version may have exports of its namespace.
func (u *unit) answer(key mcs.Key, mayHave func() bool) (registry.ClusterState, *mcs.Export) {
	if exp := u.content.Exports[key]; exp != nil {
		return registry.Exports, exp
	}
	switch {
	case u.content.Ignored[key]:
		return registry.Ignored, nil
	case u.content.Unnamed, u.content.Unusable[key]:
		return registry.Unknown, nil
	}
	switch u.state {
	case Absent, Shown, Behind, Ahead:
	case Unread:
		return registry.Unknown, nil
	case Skipped:
		if mayHave() {
			return registry.Unknown, nil
		}
	}
	return registry.None, nil
}

// keys is a set of keys whose View may have changed.
type keys map[mcs.Key]struct{}

func (k keys) add(key mcs.Key) { k[key] = struct{}{} }

// sorted returns the keys, sorted.
func (k keys) sorted() []mcs.Key {
	return slices.SortedFunc(maps.Keys(k), func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) })
}

// addContent adds the keys of a content that are exported or ignored.
func (k keys) addContent(c *Content) {
	for key := range c.Exports {
		k.add(key)
	}
	for key := range c.Ignored {
		k.add(key)
	}
}

// addOther adds the keys of a that are not in b.
func (k keys) addOther(a, b map[mcs.Key]bool) {
	for key := range a {
		if !b[key] {
			k.add(key)
		}
	}
}

// addDifferent adds the keys whose exports differ.
func (k keys) addDifferent(before, after map[mcs.Key]*mcs.Export) {
	for key, exp := range after {
		if old := before[key]; old != exp && (old == nil || !old.Equal(*exp)) {
			k.add(key)
		}
	}
	for key := range before {
		if after[key] == nil {
			k.add(key)
		}
	}
}
