package desired

import (
	"maps"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// Clone returns a copy. The copies share exports, which are never changed, and the pace.
func (s *State) Clone() *State {
	out := *s
	out.units = make(map[belief.UnitName]*unit, len(s.units))
	out.waiting, out.writing = make(map[belief.UnitName]*unit, len(s.waiting)), make(map[belief.UnitName]*unit, len(s.writing))
	for name, u := range s.units {
		copied := *u
		copied.want, copied.changed = maps.Clone(u.want), maps.Clone(u.changed)
		if u.write != nil {
			w := *u.write
			copied.write = &w
		}
		out.units[name] = &copied
		if s.waiting[name] != nil {
			out.waiting[name] = &copied
		}
		if s.writing[name] != nil {
			out.writing[name] = &copied
		}
	}
	return &out
}

// Encoder encodes the values of a State for a comparison. Generations have ranks.
type Encoder interface {
	Time(generation int64) byte
	Export(exp *mcs.Export) byte
}

// AppendUnit appends the state of a unit, with this key of it, for a comparison: two states with
// equal bytes for all units give the same results, but for the pauses after failures.
func (s *State) AppendUnit(out []byte, name belief.UnitName, key mcs.Key, e Encoder) []byte {
	out = append(out, flags(s.isAdopted, s.hasPredecessor, s.keepsWithdrawn), e.Time(s.newest))
	u := s.units[name]
	if u == nil {
		return append(out, 0xff)
	}
	want, isAsked := u.want[key]
	out = append(out, byte(u.state), e.Export(want), e.Time(u.last.Generation),
		flags(isAsked, u.isDecided, u.isTorn, u.problem != nil, u.unshownSince.IsZero(), u.write != nil, !u.openSince.IsZero()))
	out = appendStored(out, &u.stored, key, e)
	if w := u.write; w != nil {
		out = appendStored(append(out, e.Time(w.generation), flags(w.isVoid, w.isOutdated)), &w.Stored, key, e)
	}
	return out
}

func appendStored(out []byte, stored *Stored, key mcs.Key, e Encoder) []byte {
	out = append(out, e.Time(stored.Version.Generation))
	if exp, has := stored.Exports[key]; has {
		return append(out, e.Export(&exp))
	}
	return append(out, 0xfe)
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
