package model

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// writeUnit writes a new version of a unit. A unit without exports is removed with the record.
func (m *member) writeUnit(u, keys uint8) {
	m.clock++
	m.generation = m.clock
	m.units[u] = page{key: m.key, generation: m.clock, keys: keys}
	if keys == 0 {
		m.units[u] = page{}
		return
	}
	for k := range maxKeys {
		if keys&(1<<k) == 0 {
			m.absent[u][k] = m.clock
		}
	}
	m.pages[u] = m.units[u]
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

// announce writes the record, its copy, and all units that the store does not show: those that a
// clone has replaced with later generations.
func (m *member) announce(w *World) bool {
	for u := range w.Units {
		if p := m.pages[u]; p.key == m.key && p.generation > m.units[u].generation {
			m.writeUnit(uint8(u), m.units[u].keys) //nolint:gosec // a world is small
		}
	}
	m.clock++
	m.joined = true
	for u := range m.units {
		m.named[u] = m.units[u].generation
	}
	r := record{key: m.key, succeeds: m.succeeds, generation: max(m.generation, 1), beat: m.clock, names: m.named}
	own := r
	if w.HasOldCopies && m.own.key == m.key {
		own = m.own
	}
	m.content, m.last = content{shared: r, own: own, pages: m.units}, r
	m.sign(w, r)
	return true
}

// announceRest writes the record and its copy while the write of a unit is in progress that the
// store shows already.
func (m *member) announceRest(w *World, u int) bool {
	rest, before := 1-u, m.named[u]
	if before == m.units[u].generation || m.named[rest] == m.units[rest].generation {
		return false
	}
	m.clock++
	m.named[rest] = m.units[rest].generation
	generation := m.generation
	if generation == m.units[u].generation {
		generation-- // it is the later write
	}
	r := record{key: m.key, succeeds: m.succeeds, generation: max(m.last.generation, generation), beat: m.clock, names: m.named, isWriting: true, writing: uint8(u)} //nolint:gosec // a world is small
	m.shared, m.own, m.last = r, r, r
	m.sign(w, r)
	return true
}

// writeSlowly writes a unit with a further export, and meanwhile the record and its copy, which
// leave the unit undecided.
func (m *member) writeSlowly(w *World, move Move) bool {
	m.writeUnit(move.Unit, m.units[move.Unit].keys|1<<move.Key)
	m.clock++
	r := record{
		key: m.key, succeeds: m.succeeds, generation: m.last.generation, beat: m.clock, names: m.named,
		isWriting: true, isSlow: true, writing: move.Unit,
	}
	m.shared, m.own, m.last = r, r, r
	m.sign(w, r)
	return true
}

// leave writes a farewell, and removes the rest.
func (m *member) leave(w *World) bool {
	m.clock++
	r := record{key: m.key, succeeds: m.succeeds, farewell: true, generation: m.generation, beat: m.clock}
	m.content, m.last = content{shared: r}, r
	m.units, m.named, m.hasLeft = [maxUnits]page{}, [maxUnits]int16{}, true
	m.sign(w, r)
	return true
}

// sign records what a record is evidence of: of nothing about a unit that is being written.
func (m *member) sign(w *World, r record) {
	m.records = append(m.records, r)
	for u := range w.Units {
		if r.leavesOpen(u) {
			continue
		}
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

// pass lets time pass in which the store answers, and shows no heartbeat but that of the reader.
func (s *state) pass(d time.Duration) bool {
	const pause = 15 * time.Second
	for end := s.now.Add(d + 2*pause); s.now.Before(end); s.now = s.now.Add(pause) {
		s.step(belief.Tick{Heartbeat: true})
	}
	return true
}

// showRecord shows the record of a cluster to the reader.
func (s *state) showRecord(i int, r record) bool {
	if r.key == noKey {
		s.step(belief.RecordMissing{Cluster: clusterID(i)})
	} else {
		place := belief.Shared
		if s.world.AsSet {
			place = belief.Own // as under the prefix of the cluster
		}
		s.step(belief.RecordRead{Record: s.readRecord(i, r, place)})
	}
	return s.step(belief.Tick{})
}

// send lets records of a cluster arrive that it has sent to the reader, and the units that they
// name.
func (s *state) send(i int, r record, pages *[maxUnits]page) bool {
	if r.key == noKey {
		return false
	}
	sent := s.readRecord(i, r, belief.Sent)
	if !s.reader.TakesSent(&sent) {
		return false
	}
	s.step(belief.RecordRead{Record: sent})
	for u := range s.world.Units {
		if p := pages[u]; p.key != noKey && p.generation == r.names[u] {
			s.step(belief.UnitsRead{Cluster: clusterID(i), Units: []belief.Unit{s.readUnit(i, u, p)}})
		}
	}
	return s.step(belief.Tick{})
}

// showProof shows the own place of a cluster to the reader.
func (s *state) showProof(i int) bool {
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
	return s.step(belief.Tick{})
}

// readUnits shows a unit to the reader if it wants it, or in any case AsSet and beside a proof
// alone.
func (s *state) readUnits(i, u int, from *content) bool {
	isWanted := s.world.AsSet || s.reader.HasProofAlone(clusterID(i))
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
func (s *state) showAll(i int) bool {
	read := belief.UnitsRead{Cluster: clusterID(i), All: true}
	for u := range s.world.Units {
		if p := s.members[i].pages[u]; p.key != noKey {
			read.Units = append(read.Units, s.readUnit(i, u, p))
		}
	}
	return s.step(read)
}

// saveAll saves all pins with their times.
func (s *state) saveAll() bool {
	for i := range s.world.Clusters {
		if pin, ok := s.keyring.Pin(clusterID(i)); ok {
			s.writePin(&s.members[i], i, pin)
		}
	}
	return s.step(belief.Tick{})
}
