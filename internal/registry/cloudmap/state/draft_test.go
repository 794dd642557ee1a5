package state

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// TestFullCatalogRefusesLargestExport drafts more than a catalog has room for: the largest exports
// are left out, all others are written.
func TestFullCatalogRefusesLargestExport(t *testing.T) {
	o, now := testOutbox(), time.UnixMilli(1000)
	for i := range o.pages {
		o.adopt(i, &storedPage{read: true})
	}
	refused := func() (keys []mcs.Key) {
		for i := range o.pages {
			keys = slices.AppendSeq(keys, maps.Keys(o.state.OmittedOf(unitNames[i])))
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
	// 68 of some 13.6 instances take 925 of 960.
	for i := range 68 {
		exp := bulky(i, 1)
		o.state.Set(exp.Key, &exp)
	}
	write()
	if got := refused(); len(got) != 0 {
		t.Fatalf("exports %v are refused, and there is room", got)
	}
	largest := bulky(100, 1)
	largest.Annotations["example.com/more"] = base64.StdEncoding.EncodeToString(noise(140_000))
	small := webExport("cls1", 101, 3)
	o.state.Set(largest.Key, &largest)
	o.state.Set(small.Key, &small)
	write()
	if got := refused(); !slices.Equal(got, []mcs.Key{largest.Key}) {
		t.Fatalf("exports %v are refused, want the largest", got)
	}
	err := o.publication(time.Now(), largest.Key, &ownCatalog{}).Err
	if err == nil || !strings.Contains(err.Error(), "catalog is full") {
		t.Errorf("its users get error %v, want that the catalog is full", err)
	}
	if err := o.publication(time.Now(), small.Key, &ownCatalog{}).Err; err != nil {
		t.Errorf("the users of another export get error %v", err)
	}
	if _, written := o.stored(format.PageOf(small.Key)).Exports[small.Key]; !written {
		t.Error("a small export is not written")
	}

	// A change of a published export that does not fit leaves the published version in the store.
	grown := bulky(0, 1)
	grown.Annotations["example.com/more"] = largest.Annotations["example.com/more"]
	o.state.Set(grown.Key, &grown)
	write()
	before := bulky(0, 1)
	if have, ok := o.stored(format.PageOf(grown.Key)).Exports[grown.Key]; !ok || !have.Equal(registry.Published(before)) {
		t.Error("the published version of an export that does not fit any more is lost")
	}
	o.state.Set(grown.Key, &before)

	// Room that others give back is used without being asked again.
	for i := range 50 {
		o.state.Set(bulky(i, 1).Key, nil)
	}
	write()
	for _, left := range o.excess() {
		o.trimmed(left, true)
	}
	write()
	if got := refused(); len(got) != 0 {
		t.Errorf("exports %v are still refused", got)
	}
	if _, written := o.stored(format.PageOf(largest.Key)).Exports[largest.Key]; !written {
		t.Error("the large export is not written though there is room")
	}
}

// onPageOf returns exports of a namespace that belong to a page.
func onPageOf(page int, namespace string, n int) (exports []mcs.Export) {
	for i := 0; len(exports) < n; i++ {
		exp := webExport("cls1", i, 1)
		if exp.Key.Namespace = namespace; format.PageOf(exp.Key) == page {
			exports = append(exports, exp)
		}
	}
	return exports
}

// spreadOverNamespaces returns exports of different namespaces that belong to one page.
func spreadOverNamespaces(n int) (exports []mcs.Export) {
	for i := range n {
		exports = append(exports, onPageOf(7, fmt.Sprint("ns-", i), 1)...)
	}
	return exports
}

// withNoise returns an export with a number of bytes that do not compress.
func withNoise(exp mcs.Export, bytes int) *mcs.Export {
	exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(bytes))}
	return &exp
}

// TestNamespaceShareOfPage: a tenant publishes 19 exports that fill a page. Those that do not fit
// its share are refused, and exports of other namespaces are written, larger ones too.
func TestNamespaceShareOfPage(t *testing.T) {
	const page = 7
	o, now := testOutbox(), time.UnixMilli(1000)
	o.adopt(page, &storedPage{read: true})
	write := func() {
		t.Helper()
		writes, _ := o.batch(now, now)
		if len(writes) != 1 {
			t.Fatalf("%d writes, want one", len(writes))
		}
		o.succeed(now, writes[0], nil)
	}
	tenant := onPageOf(page, "tenant", 19)
	for i, exp := range tenant {
		o.state.Set(exp.Key, withNoise(exp, 48_000+i))
	}
	write()
	written := 0
	for _, exp := range tenant {
		err := o.publication(time.Now(), exp.Key, &ownCatalog{}).Err
		if _, ok := o.stored(page).Exports[exp.Key]; ok {
			written++
			if err != nil {
				t.Errorf("%s is written and has error %v", exp.Key, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "its namespace has a quarter of page 07, 64 instances") {
			t.Errorf("%s is not written and has error %v", exp.Key, err)
		}
	}
	if written != 4 || o.pages[page].parts > namespaceParts {
		t.Errorf("%d exports of the tenant are written in %d instances, want 4 in %d at most", written, o.pages[page].parts, namespaceParts)
	}
	neighbor := onPageOf(page, "neighbor", 1)[0]
	o.state.Set(neighbor.Key, withNoise(neighbor, 200_000))
	write()
	if err := o.publication(time.Now(), neighbor.Key, &ownCatalog{}).Err; err != nil {
		t.Errorf("the neighbor has error %v", err)
	}
	if _, ok := o.stored(page).Exports[neighbor.Key]; !ok {
		t.Error("the neighbor is not written")
	}
	// A published export of the tenant still changes within its share.
	kept := slices.IndexFunc(tenant, func(exp mcs.Export) bool { _, ok := o.stored(page).Exports[exp.Key]; return ok })
	changed := *withNoise(tenant[kept], 47_000)
	o.state.Set(changed.Key, &changed)
	write()
	if have := o.stored(page).Exports[changed.Key]; !have.Equal(registry.Published(changed)) {
		t.Error("a change of a published export within the share is refused")
	}
}

// TestNamespaceShareOfCatalog: a namespace with exports on all pages uses a quarter of the catalog
// at most.
func TestNamespaceShareOfCatalog(t *testing.T) {
	o, now := testOutbox(), time.UnixMilli(1000)
	for page := range o.pages {
		o.adopt(page, &storedPage{read: true})
		for _, exp := range onPageOf(page, "tenant", 1) {
			o.state.Set(exp.Key, withNoise(exp, 48_000+page))
		}
	}
	neighbor := onPageOf(7, "neighbor", 1)[0]
	o.state.Set(neighbor.Key, withNoise(neighbor, 200_000))
	writes, _ := o.batch(now, now)
	for _, w := range writes {
		o.succeed(now, w, nil)
	}
	refused := 0
	for i := range o.pages {
		for key, err := range o.state.OmittedOf(unitNames[i]) {
			refused++
			if key == neighbor.Key || !strings.Contains(err.Error(), "its namespace has a quarter of this cluster's catalog") {
				t.Errorf("%s has error %v", key, err)
			}
		}
	}
	if refused != 48 || o.instances() > namespaceInstances+60 {
		t.Errorf("%d exports are refused, %d instances; want 48 and 300 at most", refused, o.instances())
	}
}

// TestFullPageRefusesLargestExport drafts a page of more than 256 instances: the largest export is
// left out.
func TestFullPageRefusesLargestExport(t *testing.T) {
	exports := spreadOverNamespaces(6)
	page, now := format.PageOf(exports[0].Key), time.UnixMilli(1000)
	o := testOutbox()
	o.adopt(page, &storedPage{read: true})
	for i, size := range []int{150_000, 200_000, 150_001, 150_002, 150_003, 160_000} {
		exports[i].Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(size))}
		o.state.Set(exports[i].Key, &exports[i])
	}
	writes, problems := o.batch(now, now)
	if len(writes) != 1 || len(writes[0].exports) != 5 || !slices.Equal(problems, []int{page}) {
		t.Fatalf("%d writes, problems with pages %v; want one write of five exports, and a problem", len(writes), problems)
	}
	if err := o.publication(time.Now(), exports[1].Key, &ownCatalog{}).Err; err == nil || !strings.Contains(err.Error(), "more than the 256 that a page may have") {
		t.Errorf("the users of the largest export get error %v", err)
	}
	if err := o.publication(time.Now(), exports[0].Key, &ownCatalog{}).Err; err != nil {
		t.Errorf("the users of another export get error %v", err)
	}
}

// TestFullPageKeepsShrinkingExport drafts a page that is full with a large export that shrinks and
// a new one that needs more room than that: the new one is left out, although the other is larger.
func TestFullPageKeepsShrinkingExport(t *testing.T) {
	exports := spreadOverNamespaces(5)
	page, now := format.PageOf(exports[0].Key), time.UnixMilli(1000)
	sized := func(i, size int) *mcs.Export {
		exp := exports[i]
		exp.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(size))}
		return &exp
	}
	o := testOutbox()
	o.adopt(page, &storedPage{read: true})
	for i := range 4 {
		o.state.Set(exports[i].Key, sized(i, 200_000+i))
	}
	writes, _ := o.batch(now, now)
	o.succeed(now, writes[0], nil)
	shrunk := sized(0, 190_000)
	o.state.Set(exports[0].Key, shrunk)
	o.state.Set(exports[4].Key, sized(4, 150_000))
	writes, problems := o.batch(now, now)
	if len(writes) != 1 || !slices.Equal(problems, []int{page}) {
		t.Fatalf("%d writes, problems with pages %v; want one write and a problem", len(writes), problems)
	}
	if got := writes[0].exports[exports[0].Key]; !got.Equal(registry.Published(*shrunk)) {
		t.Error("the export that shrinks is left out")
	}
	if err := o.publication(time.Now(), exports[4].Key, &ownCatalog{}).Err; err == nil {
		t.Error("the new export has no problem")
	}
	if err := o.publication(time.Now(), exports[0].Key, &ownCatalog{}).Err; err != nil {
		t.Errorf("the users of the export that shrinks get error %v", err)
	}
}
