package model

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Form implements Position. It drops records and versions that are not in use.
func (s *state) Form() []byte {
	var forms [maxClusters][]byte
	for i := range s.world.Clusters {
		forms[i] = s.form(i)
	}
	list := forms[:s.world.Clusters]
	slices.SortFunc(list, bytes.Compare) // the clusters are alike
	return append(bytes.Join(list, nil), bits(s.isUsed))
}

// form returns the canonical form of a cluster: the least one of the permutations of its units.
func (s *state) form(i int) []byte {
	e := &encoder{member: &s.members[i], world: s.world, order: [maxUnits]int{0, 1}}
	s.append(nil, i, e) // collects the times
	s.members[i].drop(e.times)
	slices.Sort(e.times)
	e.times, e.isRanking = slices.Compact(e.times), true
	least := s.append(nil, i, e)
	if s.world.Units == maxUnits {
		e.order = [maxUnits]int{1, 0}
		if other := s.append(nil, i, e); bytes.Compare(other, least) < 0 {
			return other
		}
	}
	return least
}

// drop drops the records and versions that are not in use.
func (m *member) drop(times []int16) {
	m.records = slices.DeleteFunc(m.records, func(r record) bool { return !slices.Contains(times, r.beat) })
	m.versions = slices.DeleteFunc(m.versions, func(v version) bool { return !slices.Contains(times, v.generation) })
}

// append appends the form of a cluster with the units in the order of e.
func (s *state) append(out []byte, i int, e *encoder) []byte {
	m := &s.members[i]
	out = append(out, e.time(m.first), bits(m.hasMore))
	out = append(out, bits(m.isDown, m.hasLeft, m.succeeds, m.joined, m.isBacked, m.onDisk, m.wasKilled, m.isForgotten), byte(m.key), e.time(m.generation))
	for _, c := range []*content{&m.content, &m.backup} {
		out = e.record(e.record(out, &c.shared), &c.own)
	}
	out = e.record(out, &m.last)
	inMemory, _ := s.keyring.Pin(clusterID(i))
	known := s.known(i)
	for _, pin := range []*trust.Pin{&m.disk, &inMemory} {
		last := pin.Last[registryName]
		out = append(out, e.Key(pin.Key), e.Time(pin.From), e.Time(last.Generation), e.Time(last.Heartbeat), bits(pin.Left, pin.Forgotten, len(pin.Unsealed) > 0))
	}
	out = append(out, bits(known.IsSaved, known.IsSilent, s.keyring.IsComplete(), s.keyring.HasAll()))
	var names [maxUnits]belief.UnitName
	var exported [maxUnits][]mcs.Key
	for n, u := range e.order[:s.world.Units] {
		out = append(out, e.time(m.named[u]))
		for _, p := range []page{m.units[u], m.pages[u], m.backup.pages[u]} {
			out = append(out, byte(p.key), e.time(p.generation), p.keys)
		}
		names[n] = unitName(u)
		for k := range s.world.KeysPerUnit {
			exported[n] = append(exported[n], keyOf(u, k))
			out = append(out, e.time(m.imports[u][k].generation), e.time(m.imports[u][k].at), e.time(m.absent[u][k]))
		}
	}
	out = s.reader.AppendCluster(out, clusterID(i), e, names[:s.world.Units], exported[:s.world.Units])
	for _, u := range e.order[:s.world.Units] {
		for _, v := range m.versions {
			if int(v.unit) == u && e.isUsed(v.generation) {
				out = append(out, byte(v.key), e.time(v.generation), e.time(v.named), v.keys)
			}
		}
	}
	return out
}

// ranks collects the times of a state, and replaces them by their ranks after that.
type ranks struct {
	times     []int16
	isRanking bool
}

func (e *ranks) time(t int16) byte {
	if t == 0 {
		return 0
	}
	if !e.isRanking {
		e.times = append(e.times, t)
		return 0
	}
	at, _ := slices.BinarySearch(e.times, t)
	return byte(at + 1)
}

// Time implements belief.Encoder and desired.Encoder.
func (e *ranks) Time(t int64) byte { return e.time(int16(t)) } //nolint:gosec // clocks of a world are small

// encoder encodes a cluster.
type encoder struct {
	ranks
	member *member
	world  *World
	order  [maxUnits]int
}

// isUsed reports whether a version is in use.
func (e *encoder) isUsed(generation int16) bool {
	return slices.Contains(e.times, generation)
}

// record appends a record.
func (e *encoder) record(out []byte, r *record) []byte {
	out = append(out, byte(r.key), e.time(r.generation), e.time(r.beat), bits(r.farewell, r.succeeds))
	for _, u := range e.order[:e.world.Units] {
		out = append(out, e.time(r.names[u]), bits(r.leavesOpen(u), r.isSlow))
	}
	return out
}

// Key implements belief.Encoder.
func (e *encoder) Key(key trust.Key) byte { return key[1] }

// Version implements belief.Encoder. Its digest is its generation.
func (e *encoder) Version(v belief.Version) byte {
	if v.Generation == 0 && v.Digest != "" {
		v.Generation, _ = strconv.ParseInt(v.Digest, 10, 16)
	}
	return e.Time(v.Generation)
}

// AppendRecord implements belief.Encoder.
func (e *encoder) AppendRecord(out []byte, r *belief.Record) []byte {
	if r == nil {
		return append(out, 0xff)
	}
	for n := range e.member.records {
		if of := &e.member.records[n]; int64(of.beat) == r.At.Heartbeat {
			return e.record(append(out, byte(r.Place)), of)
		}
	}
	panic("the model has lost a record")
}

// Export implements belief.Encoder.
func (e *encoder) Export(exp *mcs.Export) byte {
	if exp == nil {
		return 0
	}
	return e.Time(exp.Created.Unix())
}

// bits returns a byte with a bit for each condition.
func bits(conditions ...bool) (b byte) {
	for i, is := range conditions {
		if is {
			b |= 1 << i
		}
	}
	return b
}
