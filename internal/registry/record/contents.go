package record

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
)

// Contents is a page that is decompressed but not decoded.
type Contents struct{ entries []Entry }

// Entry is an export of a page that is not decoded. It can be counted without the memory that its
// decoded form takes.
type Entry struct {
	// Key is the export's key, the zero value if it cannot be read.
	Key mcs.Key
	// Created is its creation time in seconds since 1970.
	Created int64
	// Cost is the cost of the export in the budgets.
	Cost budget.Amounts

	data []byte
	// err is the reason why it cannot be decoded.
	err error
}

// maxItems bounds the messages and texts of one export: the 100 groups of 1,000 ports that
// mcs.Sanitize accepts are 100,000, and 10,000 host names. Decoded they take 15 MiB.
const maxItems = 120_000

// Open decompresses a page and counts its exports. It returns an error if nothing of the page can
// be read: a *NewerError if a newer controller could.
func Open(data []byte) (Contents, error) {
	if len(data) < headerBytes || data[0] == 0 {
		return Contents{}, errors.New("it is no page of exports")
	}
	if data[0] > Major {
		return Contents{}, &NewerError{Major: int(data[0]), Minor: int(data[1])}
	}
	plain, err := decoder().DecodeAll(data[headerBytes:], nil)
	if err != nil {
		return Contents{}, fmt.Errorf("decompressing: %w", err)
	}
	raw, err := splitPage(plain)
	if err != nil {
		return Contents{}, err
	}
	c := Contents{entries: make([]Entry, len(raw))}
	for i, data := range raw {
		c.entries[i] = newEntry(data)
	}
	return c, nil
}

// Size returns the number of bytes of the exports.
func (c Contents) Size() (bytes int) {
	for _, e := range c.entries {
		bytes += len(e.data)
	}
	return bytes
}

// Entries returns the exports with a readable key, without duplicates.
func (c Contents) Entries() []Entry {
	seen := make(map[mcs.Key]bool, len(c.entries))
	out := make([]Entry, 0, len(c.entries))
	for _, e := range c.entries {
		if e.err == nil && !seen[e.Key] {
			seen[e.Key] = true
			out = append(out, e)
		}
	}
	return out
}

// Decode decodes the wanted exports of the page. It does not mention the others.
func (c Contents) Decode(clusterID string, isWanted func(mcs.Key) bool) Page {
	var page decoding
	seen := make(map[mcs.Key]bool, len(c.entries))
	for i, e := range c.entries {
		if e.err != nil || isWanted(e.Key) {
			page.add(i, e, clusterID, seen)
		}
	}
	if page.more > 0 {
		page.Problems = append(page.Problems, fmt.Sprintf("and %d more problems", page.more))
	}
	return page.Page
}

// newEntry counts an encoded export.
func newEntry(data []byte) Entry {
	e := Entry{data: data, Cost: budget.Amounts{budget.Exports: 1, budget.Bytes: len(data)}}
	if len(data) > MaxExportBytes {
		e.err = fmt.Errorf("it takes %d bytes, more than the %d that are allowed", len(data), MaxExportBytes)
		return e
	}
	items := 0
	e.err = fields(data, func(number protowire.Number, value []byte, varint uint64) error {
		switch number {
		case 1:
			e.Key.Namespace = string(value)
		case 2:
			e.Key.Name = string(value)
		case 3:
			e.Created = int64(varint) //nolint:gosec // as protobuf encodes it
		case 6:
			e.Cost[budget.Ports]++
			items++
		case 14:
			cost, n, err := countGroup(value)
			e.Cost = e.Cost.Plus(cost)
			items += n
			return err
		default:
			items++
		}
		return nil
	})
	if e.err == nil && items > maxItems {
		e.err = fmt.Errorf("it has %d ports, labels and host names, more than the %d that are allowed", items, maxItems)
	}
	return e
}

// countGroup returns the cost of an encoded group of endpoints, and the number of its messages and
// texts.
func countGroup(data []byte) (cost budget.Amounts, items int, err error) {
	ports, endpoints := 0, 0
	err = fields(data, func(number protowire.Number, value []byte, _ uint64) error {
		switch number {
		case 1:
			ports++
			items++
		case 2:
			endpoints += len(value) / 4
		case 3:
			endpoints += len(value) / 16
		case 5, 7:
			items++
		}
		return nil
	})
	return budget.OfGroup(ports, endpoints), items, err
}

// fields calls visit for each field of an encoded message: with its bytes, or with its number if it
// is a varint.
func fields(data []byte, visit func(number protowire.Number, value []byte, varint uint64) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("parsing: %w", protowire.ParseError(n))
		}
		data = data[n:]
		var value []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(data)
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return fmt.Errorf("parsing: %w", protowire.ParseError(n))
		}
		data = data[n:]
		if err := visit(number, value, varint); err != nil {
			return err
		}
	}
	return nil
}
