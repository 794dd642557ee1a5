package model

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/desired"
)

// StepKind is a kind of steps in a world of a publisher.
type StepKind int

const (
	// Change is another version of an export, as the controller publishes it.
	Change StepKind = iota
	// Cease is the withdrawal of an export.
	Cease
	// Write begins to write all that is due.
	Write
	// Apply has the store carry out a write, without an answer yet.
	Apply
	// Accept is the answer that a write was carried out.
	Accept
	// Lost is the end of a write without an answer.
	Lost
	// Refusal is the answer that the store refuses the content.
	Refusal
	// ReadSoon reads a unit before Patience has passed.
	ReadSoon
	// ReadLate reads it after that.
	ReadLate
	// Record writes the record.
	Record
	// Mature ends the time for which withdrawn exports are kept.
	Mature
	// Displace has another process of the cluster get the ID.
	Displace
	// OtherWrites has that process write a unit as it is desired.
	OtherWrites
	// OtherRecord has it write its record.
	OtherRecord
	// Doubt has the process lose the ID while no other process gets it.
	Doubt
	// Hold has the process get the ID, and read all units.
	Hold
	// HoldLate is Hold with a late read: it shows the units of the backup.
	HoldLate
	// Snapshot is a backup.
	Snapshot
	// Removal has a third party remove a unit.
	Removal
	// Replay has it write the version of the backup again.
	Replay
)

// Step is a step of a publisher's world.
type Step struct {
	Kind StepKind
	Unit int
}

// stepKind is what a kind of steps does, and how a story tells it: with the number of the unit if
// there is one. do reports whether the step is possible.
type stepKind struct {
	text string
	do   func(s *publisher, u int) bool
}

var stepKinds = map[StepKind]stepKind{
	Change: {"the export of %d changes", func(s *publisher, u int) bool {
		s.want[u] = s.want[u]%2 + 1
		s.publish(u)
		return true
	}},
	Cease: {"the export of %d is withdrawn", func(s *publisher, u int) bool {
		if s.want[u] == 0 {
			return false
		}
		s.want[u], s.mayEnd[u] = 0, true
		s.publish(u)
		return true
	}},
	Write: {"the process writes what is due", func(s *publisher, _ int) bool { return s.has() && s.write() }},
	Apply: {"the store carries out the write of %d", func(s *publisher, u int) bool { return s.isFlying[u] && s.apply(u) }},
	Accept: {"the write of %d is accepted", func(s *publisher, u int) bool {
		isFenced := s.world.AsSet && s.holder == otherProcess && !s.isApplied[u]
		return s.isFlying[u] && !isFenced && s.end(u, desired.Accepted)
	}},
	Lost: {"the write of %d has no answer", func(s *publisher, u int) bool { return s.isFlying[u] && s.end(u, desired.Unanswered) }},
	Refusal: {"the write of %d is refused", func(s *publisher, u int) bool {
		return s.isFlying[u] && !s.isApplied[u] && s.end(u, desired.Unfit)
	}},
	ReadSoon: {"%d is read", func(s *publisher, u int) bool { return s.canRead(u) && s.read(u, false) }},
	ReadLate: {"%d is read late", func(s *publisher, u int) bool { return s.canRead(u) && s.read(u, true) }},
	Record:   {"the process writes its record", func(s *publisher, _ int) bool { return s.has() && s.record() }},
	Mature: {"withdrawn exports are not kept any more", func(s *publisher, _ int) bool {
		isKeeping := s.state.KeepsWithdrawn()
		s.state.KeepWithdrawn(false)
		return isKeeping
	}},
	Displace: {"another process has the ID", func(s *publisher, _ int) bool {
		if s.holder == otherProcess {
			return false
		}
		s.holder, s.isSettled, s.latest = otherProcess, false, [maxUnits]int16{}
		s.state.Lose(false)
		return true
	}},
	OtherWrites: {"the other process writes %d", func(s *publisher, u int) bool {
		s.clock++
		return s.holder == otherProcess && s.put(u, written{s.clock, s.want[u]})
	}},
	OtherRecord: {"the other process writes its record", func(s *publisher, _ int) bool {
		for u := range s.world.Units {
			s.name(u, s.store[u].generation, false)
		}
		return s.holder == otherProcess
	}},
	Doubt: {"the process is not sure to have the ID", func(s *publisher, _ int) bool {
		if !s.has() {
			return false
		}
		s.holder = noProcess
		s.state.Lose(true)
		return true
	}},
	Hold:     {"the process has the ID", func(s *publisher, _ int) bool { return s.canHold() && s.hold(false) }},
	HoldLate: {"the process has the ID, and reads late", func(s *publisher, _ int) bool { return s.canHold() && s.hold(true) }},
	Snapshot: {"a backup is made", func(s *publisher, _ int) bool {
		isNew := s.backup != s.store
		s.backup = s.store
		return isNew
	}},
	Removal: {"a third party removes %d", func(s *publisher, u int) bool { return s.store[u] != written{} && s.put(u, written{}) }},
	Replay: {"a third party writes %d of the backup again", func(s *publisher, u int) bool {
		return s.store[u] != s.backup[u] && s.put(u, s.backup[u])
	}},
}

// isOfUnit reports whether steps of a kind are about one unit.
func (k StepKind) isOfUnit() bool { return strings.Contains(stepKinds[k].text, "%d") }

// String returns the step as a sentence of a story.
func (m Step) String() string {
	if m.Kind.isOfUnit() {
		return fmt.Sprintf(stepKinds[m.Kind].text, m.Unit+1)
	}
	return stepKinds[m.Kind].text
}

// Moves implements Position.
func (s *publisher) Moves(yield func(Step)) {
	for _, kind := range s.world.Steps {
		units := 1
		if kind.isOfUnit() {
			units = s.world.Units
		}
		for u := range units {
			yield(Step{kind, u})
		}
	}
}

// Do implements Position.
func (s *publisher) Do(m Step) bool {
	s.isRecorded = false
	return stepKinds[m.Kind].do(s, m.Unit)
}

// canRead reports whether a read of a unit means anything: as a set, the watch shows each change
// once.
func (s *publisher) canRead(u int) bool { return s.has() && (!s.world.AsSet || s.isUnseen[u]) }

// canHold reports whether the process may get the ID. As a set, the store has carried out each
// write before that, or never does.
func (s *publisher) canHold() bool { return !s.has() && (!s.isWriting() || !s.world.AsSet) }
