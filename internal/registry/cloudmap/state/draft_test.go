package state

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestFullCatalogRefusesLargestExport drafts more than a catalog has room for: the largest exports are left out, all others are written.
func TestFullCatalogRefusesLargestExport(t *testing.T) {
	o, now := testOutbox(), time.UnixMilli(1000)
	for i := range o.pages {
		o.adopt(i, &pageState{read: true})
	}
	refused := func() (keys []mcs.Key) {
		for i := range o.pages {
			keys = slices.AppendSeq(keys, maps.Keys(o.pages[i].tooLarge))
		}
		return keys
	}
	write := func() {
		t.Helper()
		writes, _ := o.batch(now, now)
		total := 0
		for _, w := range writes {
			o.succeed(now, w, nil)
		}
		for i := range o.pages {
			total += o.pages[i].stored
		}
		if total > catalogRoom {
			t.Errorf("the catalog has %d instances, want %d at most", total, catalogRoom)
		}
	}
	// 64 of some 13.6 instances take 870 of 960.
	for i := range 64 {
		exp := bulky(i, 1)
		o.ask(exp.Key, &exp)
	}
	write()
	if got := refused(); len(got) != 0 {
		t.Fatalf("exports %v are refused, and there is room", got)
	}
	largest := bulky(100, 1)
	largest.Annotations["example.com/more"] = base64.StdEncoding.EncodeToString(noise(480_000))
	small := webExport("cls1", 101, 3)
	o.ask(largest.Key, &largest)
	o.ask(small.Key, &small)
	write()
	if got := refused(); !slices.Equal(got, []mcs.Key{largest.Key}) {
		t.Fatalf("exports %v are refused, want the largest", got)
	}
	err := o.publication(largest.Key, &catalog{}).Err
	if err == nil || !strings.Contains(err.Error(), "catalog is full") {
		t.Errorf("its users get error %v, want that the catalog is full", err)
	}
	if err := o.publication(small.Key, &catalog{}).Err; err != nil {
		t.Errorf("the users of another export get error %v", err)
	}
	if _, written := o.pages[format.PageOf(small.Key)].exports[small.Key]; !written {
		t.Error("a small export is not written")
	}

	// A change of a published export that does not fit leaves the published version in the store.
	grown := bulky(0, 1)
	grown.Annotations["example.com/more"] = largest.Annotations["example.com/more"]
	o.ask(grown.Key, &grown)
	write()
	before := bulky(0, 1)
	if have, ok := o.pages[format.PageOf(grown.Key)].exports[grown.Key]; !ok || !have.Equal(registry.Published(before)) {
		t.Error("the published version of an export that does not fit any more is lost")
	}
	o.ask(grown.Key, &before)

	// Room that others give back is used without being asked again.
	for i := range 50 {
		o.ask(webKey(i), nil)
	}
	write()
	for _, left := range o.excess() {
		o.trimmed(left, true)
	}
	write()
	if got := refused(); len(got) != 0 {
		t.Errorf("exports %v are still refused", got)
	}
	if _, written := o.pages[format.PageOf(largest.Key)].exports[largest.Key]; !written {
		t.Error("the large export is not written though there is room")
	}
}

// TestFullPageRefusesLargestExport drafts a page of more than 256 instances: the largest export is left out.
func TestFullPageRefusesLargestExport(t *testing.T) {
	exports := sharingPage(3)
	page, now := format.PageOf(exports[0].Key), time.UnixMilli(1000)
	o := testOutbox()
	o.adopt(page, &pageState{read: true})
	for i, size := range []int{300_000, 500_000, 200_000} {
		exports[i].Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(size))}
		o.ask(exports[i].Key, &exports[i])
	}
	writes, problems := o.batch(now, now)
	if len(writes) != 1 || len(writes[0].exports) != 2 || !slices.Equal(problems, []int{page}) {
		t.Fatalf("%d writes, problems with pages %v; want one write of two exports, and a problem", len(writes), problems)
	}
	if err := o.publication(exports[1].Key, &catalog{}).Err; err == nil || !strings.Contains(err.Error(), "more than the 256 that a page may have") {
		t.Errorf("the users of the largest export get error %v", err)
	}
	if err := o.publication(exports[0].Key, &catalog{}).Err; err != nil {
		t.Errorf("the users of another export get error %v", err)
	}
}

// TestFullPageKeepsShrinkingExport drafts a page that is full with a large export that shrinks and a new one that needs more room than that: the
// new one is left out, although the other is larger.
func TestFullPageKeepsShrinkingExport(t *testing.T) {
	exports := sharingPage(2)
	page, now := format.PageOf(exports[0].Key), time.UnixMilli(1000)
	sized := func(i, size int) *mcs.Export {
		exp := exports[i]
		exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(size))}
		return &exp
	}
	o := testOutbox()
	o.adopt(page, &pageState{read: true})
	o.ask(exports[0].Key, sized(0, 700_000))
	writes, _ := o.batch(now, now)
	o.succeed(now, writes[0], nil)
	shrunk := sized(0, 600_000)
	o.ask(exports[0].Key, shrunk)
	o.ask(exports[1].Key, sized(1, 500_000))
	writes, problems := o.batch(now, now)
	if len(writes) != 1 || !slices.Equal(problems, []int{page}) {
		t.Fatalf("%d writes, problems with pages %v; want one write and a problem", len(writes), problems)
	}
	if got := writes[0].exports[exports[0].Key]; !got.Equal(registry.Published(*shrunk)) {
		t.Error("the export that shrinks is left out")
	}
	if err := o.publication(exports[1].Key, &catalog{}).Err; err == nil {
		t.Error("the new export has no problem")
	}
	if err := o.publication(exports[0].Key, &catalog{}).Err; err != nil {
		t.Errorf("the users of the export that shrinks get error %v", err)
	}
}
