package belief

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"math/bits"
	"slices"
)

// Manifest says which units a record names.
type Manifest interface {
	// Names answers for a unit, if the store shows these units.
	Names(unit UnitName, shown *ShownUnits) Answer
	// Compare compares the units that the store shows with those that are named.
	Compare(shown *ShownUnits) Comparison
	// Units returns the units that may exist, if the record lists them.
	Units() []UnitName
	// Namespaces returns the codes (Config.CodeOf) of the namespaces of which a unit may have
	// exports. ok is false if it may have those of any.
	Namespaces(unit UnitName) (codes []string, ok bool)
}

// Comparison is the result of Manifest.Compare.
type Comparison int

const (
	// Differs means that the store does not show what is named: no unit is decided.
	Differs Comparison = iota
	// Unknown means that the record does not say what it names: no unit is decided.
	Unknown
	// Matches means that the record decides each unit, but those that it leaves Undecided.
	Matches
)

// AnswerKind is the kind of an Answer.
type AnswerKind int

const (
	// Undecided means that the record does not decide about the unit.
	Undecided AnswerKind = iota
	// None means that the unit does not exist. It ends the exports of the unit.
	None
	// Named means that the record names a version of the unit.
	Named
)

// Answer is the answer of a Manifest for a unit. Version is that of Named.
type Answer struct {
	Kind    AnswerKind
	Version Version
}

// ByUnit is the Manifest of records that name each unit by its digest (Cloud Map).
type ByUnit struct {
	// Digests are those of the units that exist. Unwritten are units that the record does not
	// decide: they are being written.
	Digests   map[UnitName]string
	Unwritten map[UnitName]bool
	// Codes are those of Namespaces. A unit that is not among them may have exports of any.
	Codes map[UnitName][]string
}

// Names implements Manifest.
func (m ByUnit) Names(unit UnitName, _ *ShownUnits) Answer {
	digest, isNamed := m.Digests[unit]
	switch {
	case m.Unwritten[unit]:
		return Answer{Kind: Undecided}
	case !isNamed:
		return Answer{Kind: None}
	}
	return Answer{Kind: Named, Version: Version{Digest: digest}}
}

// Compare implements Manifest.
func (ByUnit) Compare(*ShownUnits) Comparison { return Matches }

// Units implements Manifest. Those that are being written may exist.
func (m ByUnit) Units() []UnitName {
	names := slices.AppendSeq(slices.Collect(maps.Keys(m.Digests)), maps.Keys(m.Unwritten))
	slices.Sort(names)
	return names
}

// Namespaces implements Manifest.
func (m ByUnit) Namespaces(unit UnitName) (codes []string, ok bool) {
	codes, ok = m.Codes[unit]
	return codes, ok
}

// AsSet is the Manifest of records that have one digest of all units and their generations (etcd).
// It decides nothing while the store shows other units.
type AsSet struct {
	Digest SetDigest
	// IsUnknown is set while a new process does not know its exports. Then there is no Digest.
	IsUnknown bool
}

// Names implements Manifest.
func (m AsSet) Names(unit UnitName, shown *ShownUnits) Answer {
	generation, isShown := shown.generations[unit]
	switch {
	case m.Compare(shown) != Matches:
		return Answer{Kind: Undecided}
	case !isShown:
		return Answer{Kind: None}
	}
	return Answer{Kind: Named, Version: Version{Generation: generation}}
}

// Compare implements Manifest.
func (m AsSet) Compare(shown *ShownUnits) Comparison {
	switch {
	case m.IsUnknown:
		return Unknown
	case shown.digest == m.Digest:
		return Matches
	}
	return Differs
}

// Units implements Manifest.
func (AsSet) Units() []UnitName { return nil }

// Namespaces implements Manifest.
func (AsSet) Namespaces(UnitName) (codes []string, ok bool) { return nil, false }

// ShownUnits are the units that the store shows and the cluster has signed, with their generations.
type ShownUnits struct {
	generations map[UnitName]int64
	digest      SetDigest
}

// set sets the generation of a unit, 0 if the store does not show it.
func (s *ShownUnits) set(unit UnitName, generation int64) {
	if before, isShown := s.generations[unit]; isShown {
		s.digest = s.digest.Without(unit, before)
		delete(s.generations, unit)
	}
	if generation != 0 {
		s.digest = s.digest.With(unit, generation)
		s.generations[unit] = generation
	}
}

// SetDigest identifies a set of units with their generations: the sum of the digests of each,
// modulo 2^256. So a change of one unit costs the same whatever the size of the set.
type SetDigest [4]uint64

// With returns d with a unit added.
func (d SetDigest) With(unit UnitName, generation int64) SetDigest {
	var carry uint64
	other := digestOf(unit, generation)
	for i := len(d) - 1; i >= 0; i-- {
		d[i], carry = bits.Add64(d[i], other[i], carry)
	}
	return d
}

// Without returns d with a unit removed.
func (d SetDigest) Without(unit UnitName, generation int64) SetDigest {
	var borrow uint64
	other := digestOf(unit, generation)
	for i := len(d) - 1; i >= 0; i-- {
		d[i], borrow = bits.Sub64(d[i], other[i], borrow)
	}
	return d
}

// MarshalText implements encoding.TextMarshaler.
func (d SetDigest) MarshalText() ([]byte, error) {
	var data []byte
	for _, part := range d {
		data = binary.BigEndian.AppendUint64(data, part)
	}
	return base64.RawURLEncoding.AppendEncode(nil, data), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *SetDigest) UnmarshalText(text []byte) error {
	data, err := base64.RawURLEncoding.Strict().DecodeString(string(text))
	if err != nil || len(data) != 8*len(d) {
		return errors.New("the digest of the units is not valid")
	}
	for i := range d {
		d[i] = binary.BigEndian.Uint64(data[8*i:])
	}
	return nil
}

// digestOf returns the digest of one unit.
func digestOf(unit UnitName, generation int64) (d SetDigest) {
	text := binary.BigEndian.AppendUint64([]byte(unit+"\x00"), uint64(generation)) //nolint:gosec // the same bits
	sum := sha256.Sum256(text)
	for i := range d {
		d[i] = binary.BigEndian.Uint64(sum[8*i:])
	}
	return d
}
