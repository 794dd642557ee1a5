package model

import (
	"fmt"
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Kind is the kind of a move.
type Kind uint8

// The moves of an exporting cluster, of the reader, of administrators and of the third party.
const (
	// Publish writes a new version of an export. The record follows with Announce, or at once
	// AsSet.
	Publish Kind = iota
	// Withdraw ends an export in the same way.
	Withdraw
	// Announce writes the record that names what was written. AnnounceRest does so while the write
	// of a unit is in progress, which the record names as it was before. WriteSlowly is a write
	// that takes long, and a record during it.
	Announce
	AnnounceRest
	WriteSlowly
	// Beat writes the record again, and all that the store does not show.
	Beat
	// Crash ends the process of the cluster, and Start starts the next one.
	Crash
	Start
	// Leave writes a farewell, and Join joins again.
	Leave
	Join
	// Rotate replaces the key by one that it has signed, Rebuild by another one.
	Rotate
	Rebuild
	// Clone lets a second process with the key write the record without an export of the cluster.
	Clone

	// Send sends the record that was written last, and its units, to the reader. SendAgain lets
	// what was sent at the time of Backup arrive late, or again.
	Send
	SendAgain
	// Answer answers the process of the reader with the time of the record that was written last.
	Answer

	// ReadRecord, ReadProof and ReadUnit are reads by the reader. ReadAll reads all units.
	ReadRecord
	ReadProof
	ReadUnit
	ReadAll
	// Save saves the pins that exports wait for, SaveTimes all of them.
	Save
	SaveTimes
	// Kill starts the next process of the reader with the pins as saved. Restart saves all before.
	Kill
	Restart
	// Silence lets the time until a cluster is stale pass, while the store answers.
	Silence
	// Use lets the reader import a further namespace, or not any more.
	Use

	// Forgets and Trusts are requests of an administrator.
	Forgets
	Trusts

	// Backup copies what the store has of a cluster. RestoreAll, RestoreRecord and RestoreUnit
	// write it again.
	Backup
	RestoreAll
	RestoreRecord
	RestoreUnit
	// DeleteRecord, DeleteUnit and DeleteAll delete.
	DeleteRecord
	DeleteUnit
	DeleteAll
	// ForgeRecord, ForgeFarewell and ForgeUnit write with the key of another member.
	ForgeRecord
	ForgeFarewell
	ForgeUnit
	// LateRecord and LateUnit are reads that show the backup.
	LateRecord
	LateUnit

	kinds
)

// kind is what a move of a kind does. do reports whether the move is possible.
type kind struct {
	actor, text string
	do          func(s *state, m *member, move Move) bool
}

const (
	anExporter  = ""
	theReader   = "the reader"
	anAdmin     = "the administrator"
	aThirdParty = "the third party"
)

// allKinds has the actor, the text and the effect of each kind.
var allKinds = [kinds]kind{
	Publish: {anExporter, "publishes", func(s *state, m *member, move Move) bool {
		return m.canWrite() && m.export(s.world, move, true)
	}},
	Withdraw: {anExporter, "withdraws", func(s *state, m *member, move Move) bool {
		return m.isMember() && m.has(move) && m.export(s.world, move, false)
	}},
	Announce: {anExporter, "announces", func(s *state, m *member, _ Move) bool {
		return m.canWrite() && !m.isAnnounced() && m.announce(s.world)
	}},
	AnnounceRest: {anExporter, "announces all but what it is writing of", func(s *state, m *member, move Move) bool {
		return m.canWrite() && m.announceRest(s.world, int(move.Unit))
	}},
	WriteSlowly: {anExporter, "writes its record while it is writing", func(s *state, m *member, move Move) bool {
		return m.isMember() && m.writeSlowly(s.world, move)
	}},
	Beat: {anExporter, "writes its record again", func(s *state, m *member, _ Move) bool {
		return m.canWrite() && m.announce(s.world)
	}},
	Crash: {anExporter, "crashes", func(_ *state, m *member, _ Move) bool {
		return set(&m.isDown, true)
	}},
	Start: {anExporter, "starts", func(_ *state, m *member, _ Move) bool {
		return set(&m.isDown, false)
	}},
	Leave: {anExporter, "leaves", func(s *state, m *member, _ Move) bool {
		return m.isMember() && m.leave(s.world)
	}},
	Join: {anExporter, "joins again", func(s *state, m *member, _ Move) bool {
		return set(&m.hasLeft, false) && m.announce(s.world)
	}},
	Rotate: {anExporter, "rotates its key", func(s *state, m *member, _ Move) bool {
		return m.changeKey(s.world, true)
	}},
	Rebuild: {anExporter, "is built anew with another key", func(s *state, m *member, _ Move) bool {
		return m.changeKey(s.world, false)
	}},
	Clone: {anExporter, "has a clone that writes a record without", func(s *state, m *member, move Move) bool {
		return m.joined && !m.hasLeft && m.has(move) && m.clone(s.world, move)
	}},
	Send: {anExporter, "sends its records to the reader", func(s *state, m *member, move Move) bool {
		return m.isMember() && s.send(int(move.Cluster), m.last, &m.units)
	}},
	SendAgain: {aThirdParty, "lets the copied records arrive at the reader of", func(s *state, m *member, move Move) bool {
		return m.isBacked && s.send(int(move.Cluster), m.backup.shared, &m.backup.pages)
	}},
	Answer: {anExporter, "answers the reader", func(s *state, m *member, move Move) bool {
		if !m.isMember() {
			return false
		}
		m.hasMore = m.hasMore || m.first >= m.last.beat
		i := int(move.Cluster)
		return s.step(belief.Answered{Cluster: clusterID(i), Key: public(i, m.key), At: timeOf(m.last)})
	}},
	ReadRecord: {theReader, "reads the record of", func(s *state, m *member, move Move) bool {
		return s.showRecord(int(move.Cluster), m.shared)
	}},
	ReadProof: {theReader, "reads the own place of", func(s *state, _ *member, move Move) bool {
		i := int(move.Cluster)
		return slices.Contains(s.due().ReadProofs, clusterID(i)) && s.showProof(i)
	}},
	ReadUnit: {theReader, "reads a unit of", func(s *state, m *member, move Move) bool {
		return s.readUnits(int(move.Cluster), int(move.Unit), &m.content)
	}},
	ReadAll: {theReader, "reads all units of", func(s *state, _ *member, move Move) bool {
		return s.world.AsSet && s.showAll(int(move.Cluster))
	}},
	Save: {theReader, "saves the pin of", func(s *state, m *member, move Move) bool {
		return s.savePin(m, int(move.Cluster))
	}},
	SaveTimes: {theReader, "saves all times", func(s *state, _ *member, _ Move) bool {
		return s.saveAll()
	}},
	Kill: {theReader, "is killed and starts", func(s *state, _ *member, _ Move) bool {
		for i := range s.members {
			s.members[i].wasKilled = true
		}
		return s.restart(false)
	}},
	Restart: {theReader, "restarts", func(s *state, _ *member, _ Move) bool {
		s.reader.End()
		return s.saveAll() && s.restart(s.keyring.HasAll())
	}},
	Silence: {theReader, "reads for long no heartbeat of", func(s *state, _ *member, _ Move) bool {
		for i := range s.members {
			s.members[i].hasMore = s.members[i].hasMore || s.members[i].first != 0
		}
		return s.pass(staleAfter)
	}},
	Use: {theReader, "imports another namespace", func(s *state, _ *member, _ Move) bool {
		s.isUsed = !s.isUsed
		return s.use()
	}},
	Forgets: {anAdmin, "forgets", func(s *state, m *member, move Move) bool {
		return set(&m.isForgotten, true) && s.step(belief.Forget{Cluster: clusterID(int(move.Cluster))})
	}},
	Trusts: {anAdmin, "trusts the key of", func(s *state, m *member, move Move) bool {
		i := int(move.Cluster)
		return s.keyring.Trust(clusterID(i), public(i, m.key)) == nil
	}},
	Backup: {aThirdParty, "copies", func(_ *state, m *member, _ Move) bool {
		m.backup, m.isBacked = m.content, true
		return true
	}},
	RestoreAll: {aThirdParty, "restores all of", func(_ *state, m *member, _ Move) bool {
		return m.isBacked && set(&m.content, m.backup)
	}},
	RestoreRecord: {aThirdParty, "restores the record of", func(_ *state, m *member, _ Move) bool {
		return m.isBacked && set(&m.shared, m.backup.shared)
	}},
	RestoreUnit: {aThirdParty, "restores a unit of", func(_ *state, m *member, move Move) bool {
		return m.isBacked && set(&m.pages[move.Unit], m.backup.pages[move.Unit])
	}},
	DeleteRecord: {aThirdParty, "deletes the record of", func(_ *state, m *member, _ Move) bool {
		return set(&m.shared, record{})
	}},
	DeleteUnit: {aThirdParty, "deletes a unit of", func(_ *state, m *member, move Move) bool {
		return set(&m.pages[move.Unit], page{})
	}},
	DeleteAll: {aThirdParty, "deletes all of", func(_ *state, m *member, _ Move) bool {
		return set(&m.content, content{})
	}},
	ForgeRecord: {aThirdParty, "forges a record of", func(_ *state, m *member, _ Move) bool {
		return m.forge(false)
	}},
	ForgeFarewell: {aThirdParty, "forges a farewell of", func(_ *state, m *member, _ Move) bool {
		return m.forge(true)
	}},
	ForgeUnit: {aThirdParty, "forges a unit of", func(_ *state, m *member, move Move) bool {
		m.clock++ // it is later than all
		return set(&m.pages[move.Unit], page{key: otherKey, generation: m.clock, keys: 1})
	}},
	LateRecord: {theReader, "has a late read of the record of", func(s *state, m *member, move Move) bool {
		return m.isBacked && s.showRecord(int(move.Cluster), m.backup.shared)
	}},
	LateUnit: {theReader, "has a late read of a unit of", func(s *state, m *member, move Move) bool {
		return m.isBacked && s.readUnits(int(move.Cluster), int(move.Unit), &m.backup)
	}},
}

// set sets a value, and reports whether it was another one.
func set[T comparable](of *T, value T) bool {
	was := *of
	*of = value
	return was != value
}

// selects says for which units and keys a kind has moves.
type selects int

const (
	theCluster selects = iota
	eachUnit
	eachKey
	onlyOnce
)

// selected returns for which units and keys a kind has moves.
func (k Kind) selected() selects {
	switch k {
	case Publish, Withdraw, WriteSlowly, Clone:
		return eachKey
	case AnnounceRest, ReadUnit, RestoreUnit, DeleteUnit, ForgeUnit, LateUnit:
		return eachUnit
	case SaveTimes, Kill, Restart, Silence, Use:
		return onlyOnce
	default:
		return theCluster
	}
}

// Move is a move about a cluster, one of its units and one of its keys.
type Move struct {
	Kind               Kind
	Cluster, Unit, Key uint8
}

// String returns the move as a clause.
func (m Move) String() string {
	k, text := &allKinds[m.Kind], clusterID(int(m.Cluster))
	selected := m.Kind.selected()
	switch {
	case k.actor == anExporter:
		text = text + " " + k.text
	case selected == onlyOnce && m.Kind != Silence:
		text = k.actor + " " + k.text
	default:
		text = k.actor + " " + k.text + " " + text
	}
	switch selected {
	case eachKey:
		return fmt.Sprintf("%s export %s", text, keyOf(int(m.Unit), int(m.Key)))
	case eachUnit:
		return fmt.Sprintf("%s: unit %d", text, m.Unit)
	case theCluster, onlyOnce:
	}
	return text
}

// Moves implements Position.
func (s *state) Moves(visit func(Move)) {
	for _, kind := range s.world.Moves {
		clusters, units, keys := s.world.Clusters, 1, 1
		switch kind.selected() {
		case eachKey:
			units, keys = s.world.Units, s.world.KeysPerUnit
		case eachUnit:
			units = s.world.Units
		case onlyOnce:
			clusters = 1
		case theCluster:
		}
		for n := range clusters * units * keys {
			visit(Move{Kind: kind, Cluster: uint8(n / keys / units), Unit: uint8(n / keys % units), Key: uint8(n % keys)}) //nolint:gosec // a world is small
		}
	}
}

// Do implements Position.
func (s *state) Do(move Move) bool {
	return allKinds[move.Kind].do(s, &s.members[move.Cluster], move)
}

// canWrite reports whether a process of the cluster runs that writes.
func (m *member) canWrite() bool { return !m.isDown && !m.hasLeft }

// isMember reports whether such a process has written a record.
func (m *member) isMember() bool { return m.joined && m.canWrite() }

// has reports whether the cluster exports the key of a move.
func (m *member) has(move Move) bool { return m.units[move.Unit].keys&(1<<move.Key) != 0 }

// export writes a unit with or without a key, and the record with it AsSet.
func (m *member) export(w *World, move Move, with bool) bool {
	keys := m.units[move.Unit].keys &^ (1 << move.Key)
	if with {
		keys |= 1 << move.Key
	}
	m.writeUnit(move.Unit, keys)
	if w.AsSet {
		m.announce(w)
	}
	return true
}

// changeKey replaces the key by one that it has signed, or another one, and writes all with it.
func (m *member) changeKey(w *World, succeeds bool) bool {
	if m.key != ownKey || m.hasLeft {
		return false
	}
	m.key, m.succeeds = nextKey, succeeds
	for u := range w.Units {
		if m.units[u].keys != 0 {
			m.writeUnit(uint8(u), m.units[u].keys) //nolint:gosec // a world is small
		}
	}
	return m.announce(w)
}

// clone lets another process with the key write all without the key of a move.
func (m *member) clone(w *World, move Move) bool {
	before := m.writer
	m.writeUnit(move.Unit, m.units[move.Unit].keys&^(1<<move.Key))
	m.announce(w)
	before.clock, before.generation = m.clock, m.generation
	m.writer = before
	return true
}

// forge writes a record with the key of another member.
func (m *member) forge(isFarewell bool) bool {
	m.clock++ // it is later than all
	m.shared = record{key: otherKey, generation: m.clock, beat: m.clock, farewell: isFarewell}
	m.records = append(m.records, m.shared)
	return true
}

// savePin saves the pin of a cluster, and reports whether more of it than the times differs from
// what is on disk.
func (s *state) savePin(m *member, i int) bool {
	pin, ok := s.keyring.Pin(clusterID(i))
	isSame := pin.Key == m.disk.Key && pin.Left == m.disk.Left && pin.Forgotten == m.disk.Forgotten && len(pin.Unsealed) == len(m.disk.Unsealed)
	if !ok || isSame {
		return false
	}
	s.writePin(m, i, pin)
	return s.step(belief.Tick{})
}

// writePin writes the pin of a cluster to disk.
func (s *state) writePin(m *member, i int, pin trust.Pin) {
	m.disk, m.onDisk = pin, true
	s.keyring.MarkSaved(clusterID(i), pin)
}
