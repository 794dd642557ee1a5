package model

import (
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// Kind is the kind of a move.
type Kind uint8

// The moves of an exporting cluster, of the reader, of administrators and of the third party.
const (
	// Publish writes a new version of an export. The record follows with Announce, or at once AsSet.
	Publish Kind = iota
	// Withdraw ends an export in the same way.
	Withdraw
	// Announce writes the record that names what was written.
	Announce
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

	// Backup copies what the store has of a cluster. RestoreAll, RestoreRecord and RestoreUnit write
	// it again.
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

var kindNames = [kinds]string{
	"publishes", "withdraws", "announces", "writes its record again", "crashes", "starts", "leaves", "joins again",
	"rotates its key", "is built anew with another key", "has a clone that writes a record without",
	"reads the record of", "reads the own place of", "reads a unit of", "reads all units of",
	"saves the pin of", "saves all times", "is killed and starts", "restarts", "reads while this cluster is silent:", "imports another namespace",
	"forgets", "trusts the key of",
	"copies", "restores all of", "restores the record of", "restores a unit of",
	"deletes the record of", "deletes a unit of", "deletes all of",
	"forges a record of", "forges a farewell of", "forges a unit of",
	"has a late read of the record of", "has a late read of a unit of",
}

// actor returns the actor of a move.
func (k Kind) actor() string {
	switch {
	case k <= Clone:
		return ""
	case k <= Use:
		return "the reader"
	case k <= Trusts:
		return "the administrator"
	case k < LateRecord:
		return "the third party"
	}
	return "the reader"
}

// Move is a move about a cluster, one of its units and one of its keys.
type Move struct {
	Kind               Kind
	Cluster, Unit, Key uint8
}

// String returns the move as a clause.
func (m Move) String() string {
	cluster, actor := clusterID(int(m.Cluster)), m.Kind.actor()
	text := fmt.Sprintf("%s %s", cluster, kindNames[m.Kind])
	if actor != "" {
		text = fmt.Sprintf("%s %s %s", actor, kindNames[m.Kind], cluster)
	}
	switch m.Kind {
	case Publish, Withdraw, Clone:
		return fmt.Sprintf("%s export %s", text, keyOf(int(m.Unit), int(m.Key)))
	case ReadUnit, RestoreUnit, DeleteUnit, ForgeUnit, LateUnit:
		return fmt.Sprintf("%s: unit %d", text, m.Unit)
	}
	return text
}

// moves calls visit for each move that may change something.
func (s *state) moves(visit func(Move)) {
	for _, kind := range s.world.Moves {
		for i := range s.world.Clusters {
			units, keys := 1, 1
			switch kind {
			case Publish, Withdraw, Clone:
				units, keys = s.world.Units, s.world.KeysPerUnit
			case ReadUnit, RestoreUnit, DeleteUnit, ForgeUnit, LateUnit:
				units = s.world.Units
			case SaveTimes, Kill, Restart, Silence, Use:
				if i > 0 {
					continue
				}
			}
			for u := range units {
				for k := range keys {
					visit(Move{Kind: kind, Cluster: uint8(i), Unit: uint8(u), Key: uint8(k)})
				}
			}
		}
	}
}

// do applies a move, and reports whether it is possible.
func (s *state) do(move Move) bool {
	i := int(move.Cluster)
	m := &s.members[i]
	switch k := move.Kind; {
	case k <= Clone:
		return m.write(s.world, move)
	case k <= Use:
		return s.read(i, move)
	case k <= Trusts:
		return s.administer(i, k)
	case k < LateRecord:
		return m.disturb(s.world, move)
	case !m.isBacked:
		return false
	case move.Kind == LateRecord:
		s.showRecord(i, m.backup.shared)
	default:
		return s.readUnits(i, int(move.Unit), &m.backup)
	}
	return true
}

// write applies a move of the exporting cluster.
func (m *member) write(w *World, move Move) bool {
	u, bit := move.Unit, uint8(1)<<move.Key
	isMember := m.joined && !m.hasLeft && !m.isDown
	switch move.Kind {
	case Publish:
		if m.isDown || m.hasLeft {
			return false
		}
		m.writeUnit(u, m.units[u].keys|bit)
	case Withdraw:
		if !isMember || m.units[u].keys&bit == 0 {
			return false
		}
		m.writeUnit(u, m.units[u].keys&^bit)
	case Announce:
		if m.isDown || m.hasLeft || m.isAnnounced() {
			return false
		}
		m.announce(w)
		return true
	case Beat:
		if m.isDown || m.hasLeft {
			return false
		}
		m.announce(w)
		return true
	default:
		return m.live(w, move, isMember)
	}
	if w.AsSet {
		m.announce(w)
	}
	return true
}

// live applies a move of a process of the exporting cluster, or of its key.
func (m *member) live(w *World, move Move, isMember bool) bool {
	switch move.Kind {
	case Crash:
		if m.isDown {
			return false
		}
		m.isDown = true
	case Start:
		if !m.isDown {
			return false
		}
		m.isDown = false
	case Leave:
		if !isMember {
			return false
		}
		m.leave(w)
	case Join:
		if !m.hasLeft {
			return false
		}
		m.hasLeft = false
		m.announce(w)
	case Rotate, Rebuild:
		if m.writer.key != ownKey || m.hasLeft {
			return false
		}
		m.writer.key, m.succeeds = nextKey, move.Kind == Rotate
		for u := range m.units {
			if m.units[u].keys != 0 {
				m.writeUnit(uint8(u), m.units[u].keys)
			}
		}
		m.announce(w)
	case Clone:
		if !m.joined || m.hasLeft || m.units[move.Unit].keys&(1<<move.Key) == 0 {
			return false
		}
		before := m.writer
		m.writeUnit(move.Unit, m.units[move.Unit].keys&^(1<<move.Key))
		m.announce(w)
		clock, generation := m.clock, m.generation
		m.writer = before
		m.clock, m.generation = clock, generation
	}
	return true
}

// writeUnit writes a new version of a unit. A unit without exports is removed with the record.
func (m *member) writeUnit(u, keys uint8) {
	m.clock++
	m.generation = m.clock
	m.units[u] = page{key: m.writer.key, generation: m.clock, keys: keys}
	if keys == 0 {
		m.units[u] = page{}
		return
	}
	for k := range maxKeys {
		if keys&(1<<k) == 0 {
			m.absent[u][k] = m.clock
		}
	}
	m.content.pages[u] = m.units[u]
	m.versions = append(m.versions, version{unit: u, page: m.units[u], named: m.clock})
}

// isAnnounced reports whether the record names what was written.
func (m *member) isAnnounced() bool {
	for u, p := range m.units {
		if m.named[u] != p.generation {
			return false
		}
	}
	return true
}

// announce writes the record, its copy, and all units that the store does not show.
func (m *member) announce(w *World) {
	m.clock++
	m.joined = true
	for u := range m.units {
		m.named[u] = m.units[u].generation
	}
	r := record{key: m.writer.key, succeeds: m.succeeds, generation: max(m.generation, 1), beat: m.clock, names: m.named}
	m.content = content{shared: r, own: r, pages: m.units}
	m.sign(w, r)
}

// leave writes a farewell, and removes the rest.
func (m *member) leave(w *World) {
	m.clock++
	r := record{key: m.writer.key, succeeds: m.succeeds, farewell: true, generation: m.generation, beat: m.clock}
	m.content = content{shared: r}
	m.units, m.named, m.hasLeft = [maxUnits]page{}, [maxUnits]int16{}, true
	m.sign(w, r)
}

// sign records what a record is evidence of.
func (m *member) sign(w *World, r record) {
	m.records = append(m.records, r)
	for u := range w.Units {
		var keys uint8
		for n := range m.versions {
			if v := &m.versions[n]; int(v.unit) == u && v.generation == r.names[u] {
				v.named, keys = r.beat, v.keys
			}
		}
		for k := range w.KeysPerUnit {
			if keys&(1<<k) == 0 {
				m.absent[u][k] = r.beat
			}
		}
	}
}

// read applies a move of the reader.
func (s *state) read(i int, move Move) bool {
	m, id := &s.members[i], clusterID(i)
	switch move.Kind {
	case ReadRecord:
		s.showRecord(i, m.shared)
	case ReadProof:
		for _, of := range s.due().ReadProofs {
			if of == id {
				s.showProof(i)
				return true
			}
		}
		return false
	case ReadUnit:
		return s.readUnits(i, int(move.Unit), &m.content)
	case ReadAll:
		if !s.world.AsSet {
			return false
		}
		s.showAll(i)
	case Save:
		for _, pin := range s.due().SavePins {
			if pin.Cluster == id {
				m.disk, m.onDisk = pin.Pin, true
				s.step(pin)
				return true
			}
		}
		return false
	case SaveTimes:
		s.saveAll()
	case Kill:
		for i := range s.members {
			s.members[i].wasKilled = true
		}
		s.restart()
	case Restart:
		s.saveAll()
		s.restart()
	case Silence:
		s.pass(staleAfter)
		for i := range s.members {
			s.members[i].hasMore = true
		}
	case Use:
		if !s.world.Skips {
			return false
		}
		s.isUsed = !s.isUsed
		s.use()
	}
	return true
}

// pass lets time pass in which the store answers, and shows no heartbeat but that of the reader.
func (s *state) pass(d time.Duration) {
	const pause = 15 * time.Second
	for end := s.now.Add(d + 2*pause); s.now.Before(end); s.now = s.now.Add(pause) {
		s.step(belief.Tick{Heartbeat: true})
	}
}

// showRecord shows the record of a cluster to the reader.
func (s *state) showRecord(i int, r record) {
	if r.key == noKey {
		s.step(belief.RecordMissing{Cluster: clusterID(i)})
	} else {
		place := belief.Shared
		if s.world.AsSet {
			place = belief.Own // as under the prefix of the cluster
		}
		s.step(belief.RecordRead{Record: s.readRecord(i, r, place)})
	}
	s.step(belief.Tick{})
}

// showProof shows the own place of a cluster to the reader.
func (s *state) showProof(i int) {
	read := belief.ProofRead{Cluster: clusterID(i)}
	r := s.members[i].own
	if s.world.AsSet {
		r = s.members[i].shared // there is one place
	}
	if r.key != noKey {
		shown := s.readRecord(i, r, belief.Own)
		read.Record = &shown
	}
	s.step(read)
}

// readUnits shows a unit to the reader if it wants it, or in any case AsSet.
func (s *state) readUnits(i, u int, from *content) bool {
	isWanted := s.world.AsSet
	for _, of := range s.due().ReadUnits {
		if of.Cluster == clusterID(i) {
			isWanted = isWanted || of.Units == nil
			for _, name := range of.Units {
				isWanted = isWanted || name == unitName(u)
			}
		}
	}
	if isWanted {
		s.step(belief.UnitsRead{Cluster: clusterID(i), Units: []belief.Unit{s.readUnit(i, u, from.pages[u])}})
	}
	return isWanted
}

// showAll shows all units of a cluster to the reader.
func (s *state) showAll(i int) {
	read := belief.UnitsRead{Cluster: clusterID(i), All: true}
	for u := range s.world.Units {
		if p := s.members[i].content.pages[u]; p.key != noKey {
			read.Units = append(read.Units, s.readUnit(i, u, p))
		}
	}
	s.step(read)
}

// saveAll saves all pins with their times.
func (s *state) saveAll() {
	pins := s.reader.Pins()
	for i := range s.world.Clusters {
		if pin, ok := pins[clusterID(i)]; ok {
			s.members[i].disk, s.members[i].onDisk = pin, true
			s.step(belief.PinSaved{Cluster: clusterID(i), Pin: pin})
		}
	}
}

// administer applies a request of an administrator.
func (s *state) administer(i int, kind Kind) bool {
	m := &s.members[i]
	if kind == Forgets {
		if m.isForgotten {
			return false
		}
		m.isForgotten = true
		s.step(belief.Forget{Cluster: clusterID(i)})
		return true
	}
	s.step(belief.Trust{Cluster: clusterID(i), Key: public(i, m.writer.key)})
	return true
}

// disturb applies a move of the third party.
func (m *member) disturb(w *World, move Move) bool {
	u := move.Unit
	switch move.Kind {
	case Backup:
		m.backup, m.isBacked = m.content, true
	case DeleteRecord:
		m.shared = record{}
	case DeleteUnit:
		m.content.pages[u] = page{}
	case DeleteAll:
		m.content = content{}
	case ForgeRecord, ForgeFarewell:
		m.clock++ // its time is later than all
		m.shared = record{key: otherKey, generation: m.clock, beat: m.clock, farewell: move.Kind == ForgeFarewell}
		m.records = append(m.records, m.shared)
	case ForgeUnit:
		m.clock++
		m.content.pages[u] = page{key: otherKey, generation: m.clock, keys: 1}
	default:
		if !m.isBacked {
			return false
		}
		m.restore(move)
	}
	return true
}

// restore writes what was copied again.
func (m *member) restore(move Move) {
	switch move.Kind {
	case RestoreAll:
		m.content = m.backup
	case RestoreRecord:
		m.shared = m.backup.shared
	case RestoreUnit:
		m.content.pages[move.Unit] = m.backup.pages[move.Unit]
	}
}
