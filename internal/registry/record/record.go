// Package record is the wire format of exports in a registry: protobuf in columns, compressed with
// zstd, after two bytes with the format's version. docs/proposals/001-cloud-map-record-format.md
// explains the layout.
//
// A user with write access to a registry can write anything, so decoding trusts nothing: sizes are
// bounded, every export passes mcs.Sanitize, and a bad export does not affect the others.
package record

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record/recordpb"
)

// The version of the format that this package writes. A reader accepts every minor version of its
// major version: minor versions only add fields that may be ignored.
const (
	Major = 1
	Minor = 1
)

const (
	// MaxExportBytes bounds one export before compression: mcs.Sanitize's 10,000 endpoints with
	// IPv6 addresses and host names of 63 bytes are 0.8 MiB, and decoded they take at most about 50
	// times as much memory.
	MaxExportBytes = 1 << 20
	// maxPageBytes bounds a page before compression: eight of the largest exports.
	maxPageBytes = 8 << 20
	// maxExports bounds the exports of a page: a clusterset of 64 pages has room for 640,000.
	maxExports = 10_000
	// headerBytes are the major and the minor version.
	headerBytes = 2
)

// Version returns the format's version as text.
func Version() string { return fmt.Sprintf("%d.%d", Major, Minor) }

// NewerError means that a page has a later major version, which this controller cannot read.
type NewerError struct{ Major, Minor int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("it is written in format %d.%d by a newer controller, and this one reads up to %d.x: upgrade this cluster's controller",
		e.Major, e.Minor, Major)
}

// Page is a decoded page.
type Page struct {
	// Exports are usable and canonical.
	Exports []mcs.Export
	// Unreadable are the keys of exports that cannot be used.
	Unreadable []mcs.Key
	// Unnamed is true if the page has exports whose key cannot be read.
	Unnamed bool
	// Problems are the problems of the page, one line each.
	Problems []string
}

// Encode encodes exports of different keys. The same exports give the same bytes in any order. It
// returns an error if Decode would refuse the size.
func Encode(exports []mcs.Export) ([]byte, error) {
	if len(exports) > maxExports {
		return nil, fmt.Errorf("%d exports are more than the %d that fit a page", len(exports), maxExports)
	}
	sorted := slices.Clone(exports)
	slices.SortFunc(sorted, func(a, b mcs.Export) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	page := &recordpb.Page{Exports: make([][]byte, 0, len(sorted))}
	for _, exp := range sorted {
		data, err := encodeExport(exp)
		if err != nil {
			return nil, err
		}
		page.Exports = append(page.Exports, data)
	}
	plain, err := marshal(page)
	if err != nil {
		return nil, err
	}
	if len(plain) > maxPageBytes {
		return nil, fmt.Errorf("a page of %d bytes is larger than the %d that are allowed", len(plain), maxPageBytes)
	}
	return encoder().EncodeAll(plain, []byte{Major, Minor}), nil
}

// Undecided returns an export that stands for one of which the cluster has not decided whether it
// still exports it. Readers keep what they know of it.
func Undecided(key mcs.Key, clusterID string) mcs.Export {
	return mcs.Export{Key: key, Cluster: clusterID}
}

// Check returns an error if exp cannot be encoded.
func Check(exp mcs.Export) error {
	_, err := encodeExport(exp)
	return err
}

// Size returns the number of bytes of exp before compression, or an error if it cannot be encoded.
func Size(exp mcs.Export) (int, error) {
	data, err := encodeExport(exp)
	return len(data), err
}

func encodeExport(exp mcs.Export) ([]byte, error) {
	data, err := marshal(fromExport(exp.Canonical()))
	if err != nil {
		return nil, fmt.Errorf("encoding export %s: %w", exp.Key, err)
	}
	if len(data) > MaxExportBytes {
		return nil, fmt.Errorf("export %s takes %d bytes, more than the %d that are allowed: export fewer endpoints or annotations", exp.Key, len(data), MaxExportBytes)
	}
	return data, nil
}

func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Decode decodes a page of clusterID. It returns an error if nothing of the page can be read: a
// *NewerError if a newer controller could.
func Decode(data []byte, clusterID string) (Page, error) {
	contents, err := Open(data)
	if err != nil {
		return Page{}, err
	}
	return contents.Decode(clusterID, func(mcs.Key) bool { return true }), nil
}

// splitPage returns the field exports of a recordpb.Page. It does not unmarshal the page, because
// every two bytes of a hostile page could take twenty bytes of memory.
func splitPage(plain []byte) ([][]byte, error) {
	var raw [][]byte
	for len(plain) > 0 {
		number, kind, n := protowire.ConsumeTag(plain)
		if n < 0 {
			return nil, fmt.Errorf("parsing: %w", protowire.ParseError(n))
		}
		plain = plain[n:]
		if number != 1 || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, plain); n < 0 {
				return nil, fmt.Errorf("parsing: %w", protowire.ParseError(n))
			}
			plain = plain[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(plain)
		if n < 0 {
			return nil, fmt.Errorf("parsing: %w", protowire.ParseError(n))
		}
		if len(raw) == maxExports {
			return nil, fmt.Errorf("it has more than %d exports", maxExports)
		}
		raw = append(raw, value)
		plain = plain[n:]
	}
	return raw, nil
}

// maxProblems bounds the lines about one page.
const maxProblems = 100

// decoding is a page that is being decoded.
type decoding struct {
	Page
	// more is the number of problems besides maxProblems.
	more int
}

// add decodes the export at position i, or adds its problem.
func (p *decoding) add(i int, e Entry, clusterID string, seen map[mcs.Key]bool) {
	var m recordpb.Export
	err := e.err
	if err == nil {
		err = proto.Unmarshal(e.data, &m)
	}
	if err != nil {
		p.Unnamed = true
		p.addProblem("export %d of the page cannot be read: %v", i, err)
		return
	}
	key := mcs.Key{Namespace: m.GetNamespace(), Name: m.GetName()}
	if seen[key] {
		p.addProblem("export %q is a duplicate: the second one is ignored", clip(key.String()))
		return
	}
	seen[key] = true
	if m.GetType() == "" && isKey(key) {
		p.Unreadable = append(p.Unreadable, key) // Undecided
		return
	}
	exp, err := toExport(&m, clusterID)
	var problems []string
	if err == nil {
		exp, problems, err = mcs.Sanitize(exp)
	}
	if err != nil {
		if isKey(key) {
			p.Unreadable = append(p.Unreadable, key)
		}
		p.addProblem("export %q cannot be used: %v", clip(key.String()), err)
		return
	}
	for _, problem := range problems {
		p.addProblem("export %q: %s", key, problem)
	}
	p.Exports = append(p.Exports, exp)
}

// isKey reports whether a service can have the key.
func isKey(key mcs.Key) bool {
	return key.Namespace != "" && len(key.Namespace) <= maxLabel && len(key.Name) <= maxLabel
}

// maxLabel is the length of a DNS label.
const maxLabel = 63

// addProblem adds a line, or counts it if there are many.
func (p *decoding) addProblem(format string, args ...any) {
	if len(p.Problems) >= maxProblems {
		p.more++
		return
	}
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// clip bounds the length of text from other clusters in logs.
func clip(s string) string {
	const most = 130 // two DNS labels and a slash
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// encoder and decoder are shared by all callers: EncodeAll and DecodeAll keep no state between
// calls, and each has megabytes of tables.

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(fmt.Sprintf("zstd refuses constant options: %v", err))
	}
	return e
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxPageBytes))
	if err != nil {
		panic(fmt.Sprintf("zstd refuses constant options: %v", err))
	}
	return d
})
