package model

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
)

// PublisherWorld is the definition of a small world of a cluster that publishes: its process, the
// store, another process of the cluster, and a third party.
type PublisherWorld struct {
	Name string
	// AsSet makes a write be one transaction with the record, which the store shows at once (etcd).
	// Otherwise each unit is written by itself, and may be shown late (Cloud Map).
	AsSet bool
	// Units is the number of units, with one export each.
	Units int
	// Steps are the kinds of steps that may happen.
	Steps []StepKind
}

// holder is the process that has the ID.
type holder uint8

const (
	noProcess holder = iota
	thisProcess
	otherProcess
)

// written is a version of a unit in the store: the generation and the version of its export. The
// zero value is none.
type written struct {
	generation int16
	version    uint8
}

// undecidedVersion is the version of an export that is undecided.
const undecidedVersion = 9

// publisher is a state of the world of a publisher.
type publisher struct {
	world  *PublisherWorld
	now    time.Time
	state  *desired.State
	holder holder
	clock  int16
	// want are the desired versions, 0 for none.
	want [maxUnits]uint8
	// store are the units as they are, backup as they were.
	store, backup [maxUnits]written
	// flight are the writes in progress, and isApplied those that the store has carried out.
	flight    [maxUnits]written
	isFlying  [maxUnits]bool
	isApplied [maxUnits]bool
	// open are the generations that the store has carried out, and not answered.
	open [maxUnits]int16
	// named are the generations in the latest record, 0 for none; isOpen is set for those that it
	// leaves undecided.
	named  [maxUnits]int16
	isOpen [maxUnits]bool
	// isUnseen is set for units that the watch has not shown since they have changed.
	isUnseen [maxUnits]bool
	// latest are the latest generations that this process has named, or that others may have read
	// for long.
	latest [maxUnits]int16
	// isEarlier is set once it has named an earlier one again.
	isEarlier bool
	// isRecorded is set if the last step has written the record.
	isRecorded bool
	// isKnown is set for units that other clusters may import, mayEnd for those that were withdrawn
	// since a record has named them.
	isKnown, mayEnd [maxUnits]bool
	// isSettled is set once all units were decided since this process has the ID.
	isSettled bool
}

// pace lets all writes be made at once.
var pace = engine.NewPace[string](1000, 1000)

const patience = 15 * time.Second

func (w *PublisherWorld) start() *publisher {
	cfg := desired.Config{
		ClusterID: clusterID(0), UnitOf: unitOf, Pace: pace, Patience: patience, Pause: func(int) time.Duration { return time.Second },
	}
	if w.AsSet {
		cfg.Patience = 0
	} else {
		for u := range w.Units {
			cfg.Units = append(cfg.Units, unitName(u))
		}
	}
	s := &publisher{world: w, now: time.Unix(1e9, 0), state: desired.New(cfg), clock: 1}
	for u := range w.Units {
		s.mayEnd[u] = true
	}
	// a previous process has published the first unit, and this one does so too
	s.store[0], s.want[0], s.named[0], s.isKnown[0], s.mayEnd[0] = written{1, 1}, 1, 1, true, false
	s.publish(0)
	return s
}

// publish makes the desired version of a unit known.
func (s *publisher) publish(u int) {
	if s.want[u] == 0 {
		s.state.Set(keyOf(u, 0), nil)
		return
	}
	exp := publishedExport(u, s.want[u])
	s.state.Set(keyOf(u, 0), &exp)
}

// publishedExport returns a version of the export of a unit.
func publishedExport(u int, version uint8) mcs.Export {
	exp := mcs.Export{Key: keyOf(u, 0), Cluster: clusterID(0)}
	if version != undecidedVersion {
		exp.Ports = []mcs.Port{{Port: int32(version)}}
	}
	return exp
}

// versionOf returns the version of an export, 0 for none.
func versionOf(exports map[mcs.Key]mcs.Export, u int) uint8 {
	exp, has := exports[keyOf(u, 0)]
	switch {
	case !has:
		return 0
	case len(exp.Ports) == 0:
		return undecidedVersion
	}
	return uint8(exp.Ports[0].Port) //nolint:gosec // versions of a world are small
}

// Clone implements Position.
func (s *publisher) Clone() *publisher {
	out := *s
	out.state = s.state.Clone()
	return &out
}

// has reports whether this process has the ID.
func (s *publisher) has() bool { return s.holder == thisProcess }

// put puts a version into the store.
func (s *publisher) put(u int, v written) bool {
	if v.version == 0 {
		v = written{}
	}
	s.store[u], s.isUnseen[u] = v, true
	return true
}

// isWriting reports whether a write is in progress.
func (s *publisher) isWriting() bool { return slices.Contains(s.isFlying[:], true) }

// hold has the process get the ID, and adopt what it reads.
func (s *publisher) hold(isLate bool) bool {
	s.holder, s.open = thisProcess, [maxUnits]int16{}
	s.state.SetPredecessor(true)
	if !s.world.AsSet {
		s.state.KeepWithdrawn(true)
	}
	for u := range s.world.Units {
		found := s.store[u]
		if isLate {
			found = s.backup[u]
		}
		s.clock, s.isUnseen[u] = max(s.clock, found.generation), false
		if found == (written{}) {
			s.state.Adopt(unitName(u), desired.Stored{}, false)
			continue
		}
		s.state.Adopt(unitName(u), desired.Stored{
			Version: belief.Version{Generation: int64(found.generation)}, Exports: map[mcs.Key]mcs.Export{keyOf(u, 0): registry.Published(publishedExport(u, found.version))},
		}, false)
	}
	if s.world.AsSet {
		s.state.AdoptRest()
	}
	return true
}

// write begins to write what is due, long after the last failure, and reports whether anything is.
func (s *publisher) write() bool {
	if s.world.AsSet && s.isWriting() {
		return false
	}
	s.now = s.now.Add(time.Minute)
	s.clock++
	for u := range s.world.Units {
		s.latest[u] = max(s.latest[u], s.open[u]) // that is long ago now
	}
	isAny := false
	for d := range s.state.Drafts(s.now) {
		isAny = true
		if d.Has() {
			s.state.Keep(d, nil)
			continue
		}
		for u := range s.world.Units {
			if unitName(u) != d.Unit {
				continue
			}
			if s.flight[u] = (written{s.clock, versionOf(d.Exports, u)}); s.flight[u].version == 0 {
				s.flight[u] = written{}
			}
			s.isFlying[u], s.isApplied[u] = true, false
		}
		s.state.Begin(s.now, d, belief.Version{Generation: int64(s.clock)}, nil)
	}
	return isAny
}

// apply has the store carry out a write in progress.
func (s *publisher) apply(u int) bool {
	if s.isApplied[u] {
		return false
	}
	s.put(u, s.flight[u])
	s.isApplied[u] = true
	if version := s.flight[u].version; version != 0 && version != undecidedVersion && !s.world.AsSet {
		// others may read it before the record names it
		s.isKnown[u], s.mayEnd[u], s.open[u] = true, s.want[u] == 0, s.flight[u].generation
	}
	return true
}

// end ends a write in progress.
func (s *publisher) end(u int, outcome desired.Outcome) bool {
	if outcome == desired.Accepted {
		s.apply(u)
		s.open[u] = 0
	}
	s.isFlying[u], s.isApplied[u], s.flight[u] = false, false, written{}
	s.state.End(s.now, unitName(u), outcome, errors.New("no answer"))
	if outcome == desired.Accepted && s.world.AsSet && s.has() && !s.isWriting() {
		s.record() // it is part of the transaction
	}
	return true
}

// read reads a unit.
func (s *publisher) read(u int, isLate bool) bool {
	if s.isUnseen[u] = false; s.isFlying[u] && s.world.AsSet {
		s.isUnseen[u] = true // the answer comes first
	}
	if isLate {
		s.now = s.now.Add(time.Minute)
	}
	stored := s.state.StoredOf(unitName(u))
	is := int64(s.store[u].generation) == stored.Version.Generation
	if !s.world.AsSet { // a unit that is not announced is not shown
		is = is && s.named[u] == s.store[u].generation && !s.isOpen[u]
	}
	s.state.Observe(s.now, unitName(u), is, s.now)
	return true
}

// record writes the record, and reports whether it can. As a set it names all units or none.
func (s *publisher) record() bool {
	s.isSettled = s.isSettled || s.state.IsDecided()
	if s.world.AsSet && (!s.isSettled || s.isWriting()) {
		return false
	}
	s.isRecorded = true
	for u := range s.world.Units {
		version, isDecided := s.state.NameOf(s.now, unitName(u))
		if s.world.AsSet {
			version, isDecided = s.state.StoredOf(unitName(u)).Version, true
		}
		generation := int16(version.Generation) //nolint:gosec // clocks of a world are small
		if s.isEarlier = s.isEarlier || isDecided && generation != 0 && generation < s.latest[u]; isDecided {
			s.latest[u] = max(s.latest[u], generation)
		}
		s.name(u, generation, !isDecided)
	}
	return true
}

// name names a version of a unit in the record, 0 for none.
func (s *publisher) name(u int, generation int16, isOpen bool) {
	s.named[u], s.isOpen[u] = generation, isOpen
	if generation == 0 || isOpen {
		return
	}
	// a removal in progress was requested before the export was desired again
	isRemoved := s.isFlying[u] && s.flight[u] == written{}
	s.isKnown[u], s.mayEnd[u] = true, s.want[u] == 0 || isRemoved && s.mayEnd[u]
}

// Check checks that no record ends an export that is desired or names an earlier version, and that
// the set is that of the named units.
func (s *publisher) Check(*publisher, Step) string {
	if broken := s.checkSet(); broken != "" {
		return broken
	}
	if s.isEarlier {
		return "the record names an earlier version again (promise 1)"
	}
	for u := range s.world.Units {
		// as a set, a unit that the store shows is not ended by a record
		isEnded := s.isRecorded && s.named[u] == 0 && !s.isOpen[u] && (!s.world.AsSet || s.store[u] == written{})
		if isEnded && s.isKnown[u] && !s.mayEnd[u] {
			return fmt.Sprintf("the record ends the export of %d, which is desired (promise 1)", u+1)
		}
		s.isKnown[u] = s.isKnown[u] && !isEnded
	}
	return ""
}

// checkSet checks that the set is that of the named units.
func (s *publisher) checkSet() string {
	if !s.has() || s.isWriting() {
		return ""
	}
	count := 0
	var digest belief.SetDigest
	for u := range s.world.Units {
		if stored := s.state.StoredOf(unitName(u)); !stored.IsNone() {
			count, digest = count+1, digest.With(unitName(u), stored.Version.Generation)
		}
	}
	if n, d := s.state.NamedSet(); n != count || d != digest {
		return fmt.Sprintf("the set has %d units, and the store %d", n, count)
	}
	return ""
}

// Converge implements Position.
func (s *publisher) Converge() string {
	for u := range s.world.Units {
		if s.isFlying[u] {
			s.end(u, desired.Unanswered)
		}
	}
	if !s.has() {
		s.hold(false)
	}
	s.state.KeepWithdrawn(false)
	for range rounds {
		s.round()
	}
	for u := range s.world.Units {
		if differs := s.differs(u); differs != "" {
			return differs
		}
	}
	if s.state.CountWaiting() > 0 || s.state.IsUnconfirmed() || !s.state.IsDecided() || s.write() {
		return "it is not quiet"
	}
	return ""
}

// differs returns how a unit in the store, in the record or for users differs from what is desired,
// "" if it does not.
func (s *publisher) differs(u int) string {
	have, want := s.store[u], registry.Absent
	e := desired.ShownExport{Presence: desired.Absent}
	if have.version != 0 {
		exp := publishedExport(u, have.version)
		e = desired.ShownExport{Presence: desired.Present, Export: &exp}
	}
	if s.want[u] != 0 {
		want = registry.Exported
	}
	switch got := s.state.StatusOf(keyOf(u, 0), e).State; {
	case have.version != s.want[u]:
		return fmt.Sprintf("the store has version %d of %d, not %d", have.version, u+1, s.want[u])
	case s.isOpen[u], s.named[u] != have.generation:
		return fmt.Sprintf("the record names generation %d of %d, open: %t; the store has %d", s.named[u], u+1, s.isOpen[u], have.generation)
	case got != want:
		return fmt.Sprintf("the status of %d is %v, not %v", u+1, got, want)
	}
	return ""
}

// round writes all that is due, and the record, and reads.
func (s *publisher) round() {
	s.write()
	for u := range s.world.Units {
		if s.isFlying[u] {
			s.end(u, desired.Accepted)
		}
	}
	s.record()
	for u := range s.world.Units {
		if s.canRead(u) {
			s.read(u, true)
		}
	}
}

// Picture implements Position.
func (s *publisher) Picture() string {
	names := map[desired.UnitState]string{
		desired.Found: "Found", desired.Wanted: "Wanted", desired.Writing: "Writing", desired.Written: "Written", desired.Shown: "Shown", desired.Refused: "Refused",
	}
	var parts []string
	for u := range s.world.Units {
		parts = append(parts, fmt.Sprintf("%d: want %d, %s, store %v, named %d", u+1, s.want[u], names[s.state.StateOf(unitName(u))], s.store[u], s.named[u]))
	}
	return strings.Join(parts, "; ")
}

// Form returns the least form of the permutations of the units.
func (s *publisher) Form() []byte {
	e := &versions{}
	s.append(nil, []int{0, 1}[:s.world.Units], e)
	slices.Sort(e.times)
	e.times, e.isRanking = slices.Compact(e.times), true
	least := s.append(nil, []int{0, 1}[:s.world.Units], e)
	if s.world.Units == maxUnits {
		if other := s.append(nil, []int{1, 0}, e); bytes.Compare(other, least) < 0 {
			least = other
		}
	}
	return least
}

// append appends the form of s with the units in an order.
func (s *publisher) append(out []byte, order []int, e *versions) []byte {
	out = append(out, byte(s.holder), bits(s.isSettled))
	for _, u := range order {
		out = append(out, s.want[u], e.time(s.named[u]), e.time(s.latest[u]), e.time(s.open[u]))
		for _, w := range []written{s.store[u], s.backup[u], s.flight[u]} {
			out = append(out, e.time(w.generation), w.version)
		}
		out = append(out, bits(s.isFlying[u], s.isApplied[u], s.isOpen[u], s.isKnown[u], s.mayEnd[u], s.isUnseen[u]))
		out = s.state.AppendUnit(out, unitName(u), keyOf(u, 0), e)
	}
	return out
}

// versions encodes the versions of exports.
type versions struct{ ranks }

// Export implements desired.Encoder.
func (e *versions) Export(exp *mcs.Export) byte {
	if exp == nil {
		return 0
	}
	return versionOf(map[mcs.Key]mcs.Export{keyOf(0, 0): *exp}, 0)
}
