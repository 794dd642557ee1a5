package record

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record/recordpb"
)

// TestOpenCountsExports: the cost of an encoded export is that of the decoded one.
func TestOpenCountsExports(t *testing.T) {
	exports := []mcs.Export{full(), web("a"), web("b", scattered(100)...), web("c", endpoint("10.0.0.1"), endpoint("fd00::5"))}
	contents, err := Open(encode(t, exports...))
	if err != nil {
		t.Fatal(err)
	}
	entries := contents.Entries()
	if len(entries) != len(exports) {
		t.Fatalf("%d entries, want %d", len(entries), len(exports))
	}
	for i, exp := range byKey(exports) {
		e, size := entries[i], len(plain(t, fromExport(exp)))
		if e.Key != exp.Key || e.Created != exp.Created.Unix() || e.Cost != budget.Of(exp, size) {
			t.Errorf("entry %v created %d costs %v, want %v of %d with %v", e.Key, e.Created, e.Cost, exp.Key, exp.Created.Unix(), budget.Of(exp, size))
		}
	}
}

// TestDecodeOnlyWanted: exports that are not wanted are not decoded, and not mentioned.
func TestDecodeOnlyWanted(t *testing.T) {
	contents, err := Open(encode(t, web("a"), web("b")))
	if err != nil {
		t.Fatal(err)
	}
	page := contents.Decode("cls1", func(key mcs.Key) bool { return key.Name == "b" })
	if len(page.Exports) != 1 || page.Exports[0].Key.Name != "b" || page.Unnamed || len(page.Unreadable)+len(page.Problems) > 0 {
		t.Errorf("got %+v, want b alone", page)
	}
}

// TestTooManyItems: empty messages would take a hundred times their length in memory.
func TestTooManyItems(t *testing.T) {
	m := fromExport(web("bomb"))
	for range maxItems {
		m.Labels = append(m.Labels, &recordpb.Pair{})
	}
	page, err := Decode(compress(pageOf(t, m)), "cls1")
	if err != nil || !page.Unnamed || !strings.Contains(strings.Join(page.Problems, ""), "more than the 120000") {
		t.Errorf("got %d exports, unnamed %v, problems %q, error %v", len(page.Exports), page.Unnamed, page.Problems, err)
	}
}

// TestProblemsAreBounded: a page may have 10,000 exports with 20 problems each.
func TestProblemsAreBounded(t *testing.T) {
	bad := plain(t, fromExport(mcs.Export{Key: mcs.Key{Namespace: "demo", Name: "a"}}))
	var page []byte
	for range 1000 {
		page = append(page, pagePart(bad)...)
	}
	got, err := Decode(compress(page), "cls1")
	if err != nil || len(got.Problems) != maxProblems+1 {
		t.Errorf("%d problems, error %v, want %d", len(got.Problems), err, maxProblems+1)
	}
}

// pagePart returns the field of a page that has an encoded export.
func pagePart(export []byte) []byte {
	return append([]byte{0x0a, byte(len(export))}, export...)
}
