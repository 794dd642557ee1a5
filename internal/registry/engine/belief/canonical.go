package belief

import (
	"maps"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Clone returns a copy that uses keyring, a copy of the keyring of s. The copies share records and
// exports, which are never changed.
func (s *State) Clone(keyring *trust.Keyring) *State {
	out := *s
	out.cfg.Keyring = keyring
	out.liveness, out.beats = s.liveness.Clone(), maps.Clone(s.beats)
	out.clusters = make(map[string]*cluster, len(s.clusters))
	for id, c := range s.clusters {
		copied := *c
		copied.signed = c.signed.clone()
		out.clusters[id] = &copied
	}
	out.returning = make(map[string]*cluster, len(s.returning))
	for id := range s.returning {
		out.returning[id] = out.clusters[id]
	}
	out.index = s.index.clone(out.clusters)
	return &out
}

// clone returns a copy of b, which may be nil.
func (b *signed) clone() *signed {
	if b == nil {
		return nil
	}
	out := *b
	out.shown.generations = maps.Clone(b.shown.generations)
	out.units = make(map[UnitName]*unit, len(b.units))
	for name, u := range b.units {
		copied := *u
		out.units[name] = &copied
	}
	return &out
}

// Encoder encodes the values of a State for a comparison. Times have ranks, so that two states
// compare equal if they differ only in the length of the time between records.
type Encoder interface {
	Time(generation int64) byte
	Version(v Version) byte
	Key(key trust.Key) byte
	// AppendRecord appends a record, which may be nil.
	AppendRecord(out []byte, r *Record) []byte
	Export(exp *mcs.Export) byte
}

// AppendCluster appends the state of a cluster, with these of its units and keys, for a comparison:
// two states with equal bytes give the same actions for the same events, but for the pauses between
// reads that fail.
func (s *State) AppendCluster(out []byte, id string, e Encoder, units []UnitName, exported [][]mcs.Key) []byte {
	c := s.clusters[id]
	if c == nil {
		return append(out, 0xff)
	}
	out = append(out, byte(c.state), byte(c.saving.before), byte(c.problem.Kind), byte(s.LivenessOf(id)),
		flags(s.beats[id], c.proof.isSought, c.saving.ends, c.saving.isCertain))
	out = e.AppendRecord(e.AppendRecord(out, c.saving.record), c.waiting)
	b := c.signed
	if b == nil {
		return append(out, 0xfe)
	}
	out = append(e.AppendRecord(out, &b.record), e.Time(b.settled), flags(b.isComplete, b.isUnread, b.mayBeOld, b.gap.IsZero(), b.listed == b.record.At.Generation))
	if b.record.Place == Sent {
		out = append(out, e.Time(c.shownAt.Generation), e.Time(c.shownAt.Heartbeat))
	}
	for i, name := range units {
		out = append(out, e.Time(b.shown.generations[name]))
		u := b.units[name]
		if u == nil {
			out = append(out, 0xfd)
			continue
		}
		out = append(out, byte(u.state), e.Time(u.version.Generation), e.Key(u.author.Key), flags(u.again, u.content.Unnamed), e.Version(u.overtaken))
		for _, key := range exported[i] {
			out = append(out, e.Export(u.content.Exports[key]), flags(u.content.Ignored[key], u.content.Unusable[key]))
		}
	}
	return out
}

// flags returns a byte with a bit for each condition.
func flags(conditions ...bool) (b byte) {
	for i, is := range conditions {
		if is {
			b |= 1 << i
		}
	}
	return b
}

// StateOf returns the state of a cluster.
func (s *State) StateOf(id string) ClusterState {
	if c := s.clusters[id]; c != nil {
		return c.state
	}
	return NotRead
}

// RecordOf returns the record of a cluster that counts, nil without one. Its properties are those
// of the cluster, and its key verifies the units.
func (s *State) RecordOf(id string) *Record {
	if c := s.clusters[id]; c != nil && c.signed != nil {
		return &c.signed.record
	}
	return nil
}
