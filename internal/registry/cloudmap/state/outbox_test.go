package state

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// sharingPage are n exports of one page.
func sharingPage(n int) []mcs.Export {
	var exports []mcs.Export
	for i := 0; len(exports) < n; i++ {
		if exp := webExport("cls1", i, 1); len(exports) == 0 || format.PageOf(exp.Key) == format.PageOf(exports[0].Key) {
			exports = append(exports, exp)
		}
	}
	return exports
}

// holding are exports as a page has them.
func holding(exports ...mcs.Export) map[mcs.Key]mcs.Export {
	found := map[mcs.Key]mcs.Export{}
	for _, exp := range exports {
		found[exp.Key] = registry.Published(exp)
	}
	return found
}

// shownPage is a page of one part as the registry shows it.
func shownPage(exports ...mcs.Export) *storedPage {
	return &storedPage{read: true, generation: 100, digest: format.Digest([]byte("shown")), author: testOutbox().author(), parts: 1, stored: 1, exports: holding(exports...)}
}

func keysOf(exports map[mcs.Key]mcs.Export) map[mcs.Key]bool {
	keys := map[mcs.Key]bool{}
	for key := range maps.Keys(exports) {
		keys[key] = true
	}
	return keys
}

func sameExports(a, b map[mcs.Key]mcs.Export) bool {
	return maps.EqualFunc(a, b, mcs.Export.Equal)
}

func TestBatch(t *testing.T) {
	exports := sharingPage(3)
	page := format.PageOf(exports[0].Key)
	now := time.UnixMilli(5000)
	ask := func(exp mcs.Export) func(*outbox) { return func(o *outbox) { o.state.Set(exp.Key, &exp) } }
	withdraw := func(exp mcs.Export) func(*outbox) { return func(o *outbox) { o.state.Set(exp.Key, nil) } }
	adopt := func(left ...mcs.Export) func(*outbox) {
		return func(o *outbox) { o.adopt(page, shownPage(left...)) }
	}
	var announcing format.Member
	announcing.Pages[page] = "announced"
	tests := map[string]struct {
		steps []func(*outbox)
		// want are the exports of the page that is written, nil when none is.
		want map[mcs.Key]bool
	}{
		"nothing asked":                           {steps: []func(*outbox){adopt()}},
		"a first export":                          {steps: []func(*outbox){adopt(), ask(exports[0])}, want: keysOf(holding(exports[0]))},
		"before the page is known":                {steps: []func(*outbox){ask(exports[0])}},
		"the page becomes known":                  {steps: []func(*outbox){ask(exports[0]), adopt(exports[1])}, want: keysOf(holding(exports[0]))},
		"what is there already":                   {steps: []func(*outbox){ask(exports[0]), adopt(exports[0])}},
		"what is left of the previous process":    {steps: []func(*outbox){adopt(exports[0], exports[1]), ask(exports[2])}, want: keysOf(holding(exports[2]))},
		"the previous process's export withdrawn": {steps: []func(*outbox){ask(exports[1]), adopt(exports[0], exports[1]), withdraw(exports[0])}, want: keysOf(holding(exports[1]))},
		"withdrawn before it is known":            {steps: []func(*outbox){ask(exports[1]), withdraw(exports[0]), adopt(exports[0], exports[1])}, want: keysOf(holding(exports[1]))},
		"the last one withdrawn":                  {steps: []func(*outbox){adopt(exports[0]), withdraw(exports[0])}, want: map[mcs.Key]bool{}},
		"what is not there withdrawn":             {steps: []func(*outbox){ask(exports[0]), adopt(exports[0]), withdraw(exports[1])}},
		"there and back":                          {steps: []func(*outbox){adopt(exports[0]), withdraw(exports[0]), ask(exports[0])}},
		"an unreadable page given up":             {steps: []func(*outbox){ask(exports[0]), func(o *outbox) { o.abandon(page, &storedPage{stored: 3}, announcing) }}, want: keysOf(holding(exports[0]))},
		"lost to another cluster":                 {steps: []func(*outbox){adopt(), ask(exports[0]), (*outbox).disown}},
		"lost and won again":                      {steps: []func(*outbox){adopt(), ask(exports[0]), (*outbox).disown, adopt(exports[1])}, want: keysOf(holding(exports[0]))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := testOutbox()
			for _, step := range tc.steps {
				step(o)
			}
			writes, refused := o.batch(now, now)
			if len(refused) != 0 {
				t.Errorf("pages %v were refused", refused)
			}
			var got map[mcs.Key]bool
			if len(writes) == 1 && writes[0].page == page {
				got = keysOf(writes[0].exports)
			} else if len(writes) != 0 {
				t.Fatalf("%d pages are to be written, want one at most", len(writes))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("written exports differ (-want +got):\n%s", diff)
			}
			if again, _ := o.batch(now, now); len(tc.want) == 0 && len(again) > 0 {
				t.Error("a second batch writes what the first did not")
			}
		})
	}
}

// TestProblemLasts has a page that is refused, and tried again: until that has ended the user gets
// why it is not published.
func TestProblemLasts(t *testing.T) {
	o, exp, now := testOutbox(), webExport("cls1", 0, 1), time.UnixMilli(5000)
	page := format.PageOf(exp.Key)
	o.adopt(page, &storedPage{read: true})
	o.state.Set(exp.Key, &exp)
	reported := func() error { return o.publication(time.Now(), exp.Key, &ownCatalog{}).Err }
	refused := errors.New("there is no room")
	for range 2 {
		writes, _ := o.batch(now, now)
		if len(writes) != 1 {
			t.Fatalf("%d pages are written, want 1", len(writes))
		}
		o.fail(now, writes[0], refused)
		if !errors.Is(reported(), refused) {
			t.Fatalf("the user gets %v, want %v", reported(), refused)
		}
	}
	writes, _ := o.batch(now, now)
	if !errors.Is(reported(), refused) {
		t.Errorf("while it is tried again the user gets %v, want %v", reported(), refused)
	}
	o.succeed(now, writes[0], nil)
	if reported() != nil {
		t.Errorf("when it is written the user gets %v", reported())
	}
}

// TestAnnouncement_OfNewPage writes a page that does not exist. While the store may have it, it is
// not announced as none.
func TestAnnouncement_OfNewPage(t *testing.T) {
	exp, now := webExport("cls1", 0, 1), time.UnixMilli(5000)
	page := format.PageOf(exp.Key)
	noAnswer, refused := errors.New("no answer"), &types.InvalidInput{}
	for name, tt := range map[string]struct {
		end  func(*outbox, PageWrite)
		want string
	}{
		"in progress": {func(*outbox, PageWrite) {}, format.UnwrittenDigest},
		"no answer":   {func(o *outbox, w PageWrite) { o.fail(now, w, noAnswer) }, format.UnwrittenDigest},
		"refused":     {func(o *outbox, w PageWrite) { o.fail(now, w, refused) }, ""},
		"written":     {func(o *outbox, w PageWrite) { o.succeed(now, w, nil) }, "its digest"},
		"withdrawn after no answer": {func(o *outbox, w PageWrite) {
			o.fail(now, w, noAnswer)
			o.state.Set(exp.Key, nil)
			writes, _ := o.batch(now, now)
			o.succeed(now, writes[0], nil)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOutbox()
			o.adopt(page, &storedPage{read: true})
			if got := o.announcement(time.UnixMilli(5000), page, &ownCatalog{}); got != "" {
				t.Errorf("announced is %q before the write, want none", got)
			}
			o.state.Set(exp.Key, &exp)
			writes, _ := o.batch(now, now)
			tt.end(o, writes[0])
			got := o.announcement(time.UnixMilli(5000), page, &ownCatalog{})
			if got == writes[0].digest {
				got = "its digest"
			}
			if got != tt.want {
				t.Errorf("announced is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestGenerationsGrow(t *testing.T) {
	o := testOutbox()
	o.adopt(0, &storedPage{read: true, generation: 9000})
	last := o.generation
	// The clock is behind, stands still, and is ahead.
	for _, now := range []int64{10, 10, 20_000, 20_000, 5} {
		if got := o.nextGeneration(time.UnixMilli(now)); got <= last {
			t.Errorf("generation %d at %d, after %d", got, now, last)
		} else {
			last = got
		}
	}
}

func TestExcess(t *testing.T) {
	big := webExport("cls1", 0, 10)
	big.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(12_000))}
	small := webExport("cls1", 0, 10)
	page := format.PageOf(big.Key)
	now := time.UnixMilli(1000)
	o := testOutbox()
	o.adopt(page, &storedPage{read: true})
	write := func(exp *mcs.Export) PageWrite {
		t.Helper()
		o.state.Set(webKey(0), exp)
		writes, _ := o.batch(now, now)
		if len(writes) != 1 {
			t.Fatalf("%d pages to write, want 1", len(writes))
		}
		return writes[0]
	}
	w := write(&big)
	if len(w.Instances) < 3 {
		t.Fatalf("the large page has %d parts, want several", len(w.Instances))
	}
	o.fail(now, w, errors.New("half of it"))
	if got := o.excess(); len(got) != 0 {
		t.Errorf("excess %v of a page that is half written, want none", got)
	}
	if again, _ := o.batch(now, now); len(again) != 1 {
		t.Error("a page that is half written is not written again")
	}
	o.succeed(now, w, nil)
	if got := o.excess(); len(got) != 0 {
		t.Errorf("excess %v of a whole page, want none", got)
	}
	o.succeed(now, write(&small), nil)
	if got := o.excess(); len(got) != 1 || len(got[0].IDs()) != len(w.Instances)-1 {
		t.Errorf("excess parts %v, want all but one of %d", got, len(w.Instances))
	}
	for _, left := range o.excess() {
		o.trimmed(left, true)
	}
	if got := o.excess(); len(got) != 0 {
		t.Errorf("excess %v after it was removed", got)
	}
	o.succeed(now, write(nil), nil)
	if got := o.excess(); len(got) != 1 || !slices.Equal(got[0].IDs(), []string{format.PartID(page, 0)}) {
		t.Errorf("excess of a withdrawn page is %v, want its only part", got)
	}
}

func TestConfirm(t *testing.T) {
	exports := sharingPage(1)
	page, key := format.PageOf(exports[0].Key), exports[0].Key
	now := time.UnixMilli(1000)
	o := testOutbox()
	for i := range o.pages {
		o.adopt(i, &storedPage{read: true})
	}
	shown := &ownCatalog{hasRecord: true}
	for i := range shown.pages {
		shown.pages[i].read = true
	}
	state := func() registry.PublishState { return o.publication(time.Now(), key, shown).State }
	expect := func(what string, want registry.PublishState) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("nothing asked", registry.Absent)
	o.state.Set(key, &exports[0])
	expect("asked", registry.Pending)
	writes, _ := o.batch(now, now)
	o.succeed(now, writes[0], []string{"operation"})
	expect("written", registry.Pending)
	overdue := func(after time.Duration) bool { return o.confirm(now.Add(after), shown) }
	shown.record.Pages[page] = writes[0].digest
	if overdue(time.Minute) {
		t.Error("a page is overdue without a read of it")
	}
	shown.pages[page].checkedAt = now.Add(14 * time.Second)
	if overdue(14 * time.Second) {
		t.Error("a page is overdue after 14 s")
	}
	shown.pages[page].checkedAt = now.Add(15 * time.Second)
	if !overdue(15 * time.Second) {
		t.Error("no page is overdue after 15 s")
	}
	write := func() {
		t.Helper()
		writes, _ = o.batch(now, now)
		if len(writes) != 1 {
			t.Fatalf("%d pages are written, want 1", len(writes))
		}
		o.succeed(now, writes[0], nil)
	}
	write()
	shown.pages[page], shown.record.Pages[page] = storedPage{}, ""
	if !overdue(15 * time.Second) {
		t.Error("a page that the record does not announce is not overdue after 15 s")
	}
	write()
	shown.pages[page] = storedPage{read: true, digest: writes[0].digest, exports: writes[0].exports}
	expect("there, and not announced", registry.Pending)
	shown.record.Pages[page] = writes[0].digest
	expect("shown", registry.Exported)
	if overdue(0) || overdue(time.Hour) {
		t.Error("a page is overdue though shown")
	}
	other := exports[0]
	other.Ports = []mcs.Port{{Port: 7}}
	o.state.Set(key, &other)
	slow, _ := o.batch(now, now)
	o.state.Set(key, &exports[0])
	shown.record.Pages[page] = format.UnwrittenDigest
	expect("not announced because the write of another version is slow", registry.Exported)
	o.succeed(now, slow[0], nil)
	expect("there until it is written again", registry.Pending)
	o.state.Set(key, &exports[0])
	write()
	shown.pages[page] = storedPage{read: true, digest: writes[0].digest, exports: writes[0].exports}
	expect("written, and not announced yet", registry.Pending)
	shown.record.Pages[page] = writes[0].digest
	expect("announced", registry.Exported)
	o.state.Set(key, nil)
	expect("withdrawn", registry.Pending)
	write()
	expect("removed", registry.Pending)
	shown.pages[page] = storedPage{read: true}
	shown.record.Pages[page] = ""
	o.confirm(now, shown)
	expect("shown to be gone", registry.Absent)
	if _, isAsked := o.state.WantOf(key); isAsked {
		t.Error("a withdrawal that is carried out is still remembered")
	}
}

// TestAnnouncement tests the announcement of a page that this process has not written yet.
func TestAnnouncement(t *testing.T) {
	exp, other := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
	page := format.PageOf(exp.Key)
	found := shownPage(exp).digest
	besides := exp
	besides.Key.Name = "another"
	for name, tt := range map[string]struct {
		shown       storedPage
		announced   string
		wants       *mcs.Export
		isSuccessor bool
		// adopted pages are those of who holds the ID; batched says that what is wanted was looked
		// at.
		adopted, batched bool
		want             string
	}{
		"found, announced":                         {shown: *shownPage(exp), announced: found, want: found},
		"found otherwise, announced":               {shown: *shownPage(exp), announced: found, wants: &other, want: found},
		"found as wanted, not announced":           {shown: *shownPage(exp), wants: &exp, isSuccessor: true, adopted: true, batched: true, want: found},
		"found as wanted, not looked at":           {shown: *shownPage(exp), wants: &exp, isSuccessor: true, adopted: true, want: format.UnwrittenDigest},
		"found as wanted, the ID not held":         {shown: *shownPage(exp), wants: &exp, isSuccessor: true, want: format.UnwrittenDigest},
		"found, not wanted, not announced":         {shown: *shownPage(exp), isSuccessor: true, adopted: true, batched: true, want: format.UnwrittenDigest},
		"found more than is wanted":                {shown: *shownPage(exp, besides), wants: &exp, isSuccessor: true, adopted: true, batched: true, want: format.UnwrittenDigest},
		"found otherwise, not announced":           {shown: *shownPage(exp), wants: &other, isSuccessor: true, adopted: true, want: format.UnwrittenDigest},
		"not found but wanted, not announced":      {shown: storedPage{read: true}, wants: &exp, isSuccessor: true, adopted: true, want: format.UnwrittenDigest},
		"not found nor wanted, not announced":      {shown: storedPage{read: true}, isSuccessor: true, adopted: true, batched: true},
		"unreadable, not wanted":                   {shown: storedPage{trouble: "half of it"}, isSuccessor: true, want: format.UnwrittenDigest},
		"unreadable, announced":                    {shown: storedPage{trouble: "half of it"}, announced: found, want: found},
		"unreadable, announced by no cluster's ID": {shown: storedPage{trouble: "half of it"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, shown := testOutbox(), &ownCatalog{}
			o.state.SetPredecessor(tt.isSuccessor)
			shown.pages[page], shown.record.Pages[page] = tt.shown, tt.announced
			if tt.wants != nil {
				o.state.Set(exp.Key, tt.wants)
			}
			if tt.adopted {
				o.adopt(page, &shown.pages[page])
			}
			if tt.batched {
				o.batch(time.UnixMilli(1), time.UnixMilli(1))
			}
			if got := o.announcement(time.UnixMilli(5000), page, shown); got != tt.want {
				t.Errorf("announced is %q, want %q", got, tt.want)
			}
			o.after(shown)
			if got := o.nextGeneration(time.UnixMilli(1)); got <= tt.shown.generation {
				t.Errorf("the record's generation is %d, that of the page found %d", got, tt.shown.generation)
			}
		})
	}
}

// TestOutbox_AdoptsEarlierPage has a process adopt a page of a previous one, which may be an
// earlier one. It announces nothing before the page has all exports.
func TestOutbox_AdoptsEarlierPage(t *testing.T) {
	exp, found := webExport("cls1", 0, 2), webExport("cls1", 0, 1)
	page := format.PageOf(exp.Key)
	withdrawn := found
	for n := 0; withdrawn.Key == found.Key || format.PageOf(withdrawn.Key) != page; n++ {
		withdrawn.Key.Name = fmt.Sprint("withdrawn-", n)
	}
	o, shown := testOutbox(), &ownCatalog{}
	o.state.SetPredecessor(true)
	o.state.KeepWithdrawn(true)
	shown.pages[page] = *shownPage(found, withdrawn)
	shown.record.Pages[page] = shown.pages[page].digest
	write := func() {
		t.Helper()
		writes, _ := o.batch(time.UnixMilli(1), time.UnixMilli(1))
		for _, w := range writes {
			o.succeed(time.UnixMilli(1), w, nil)
		}
	}
	want := func(when, want string) {
		t.Helper()
		if got := o.announcement(time.UnixMilli(5000), page, shown); got != want {
			t.Errorf("%s: announced is %q, want %q", when, got, want)
		}
	}
	want("before the claim", format.UnwrittenDigest)
	o.adopt(page, &shown.pages[page])
	o.state.Set(exp.Key, &exp)
	want("before it is written", format.UnwrittenDigest)
	write()
	if announced := o.announcement(time.UnixMilli(5000), page, shown); announced == format.UnwrittenDigest {
		t.Error("nothing is withdrawn yet: the page is announced as not written")
	}
	undecided := map[mcs.Key]mcs.Export{exp.Key: registry.Published(exp), withdrawn.Key: record.Undecided(withdrawn.Key, "cls1")}
	if !sameExports(o.stored(page).Exports, undecided) {
		t.Errorf("the page has %v, want what was published and an undecided export", o.stored(page).Exports)
	}
	next := testOutbox()
	next.adopt(page, &storedPage{read: true, digest: "digest", generation: 1, exports: holding(registry.Published(exp)), unreadable: map[mcs.Key]bool{withdrawn.Key: true}})
	if !sameExports(next.stored(page).Exports, undecided) {
		t.Errorf("the next process adopts %v, want the undecided export as well", next.stored(page).Exports)
	}
	o.state.KeepWithdrawn(false)
	write()
	if !sameExports(o.stored(page).Exports, map[mcs.Key]mcs.Export{exp.Key: registry.Published(exp)}) {
		t.Errorf("the page has %v, want what was published", o.stored(page).Exports)
	}
	want("it is what was published", o.stored(page).Version.Digest)
}

func TestLargestPage(t *testing.T) {
	o := testOutbox()
	if got := o.largest(); got != 0 {
		t.Errorf("the largest page of an empty catalog is %d instances", got)
	}
	o.pages[3].parts, o.pages[7].parts, o.pages[9].parts = 2, 5, 1
	if got := o.largest(); got != 5 {
		t.Errorf("the largest page is %d instances, want 5", got)
	}
}

// TestOutbox_PacesNamespaces: the pages that a namespace changes again and again are written at the
// pace of a namespace, and another one is written at once.
func TestOutbox_PacesNamespaces(t *testing.T) {
	o, now := testOutbox(), time.UnixMilli(1_800_000_000_000)
	for page := range format.PageCount {
		o.adopt(page, &storedPage{read: true})
	}
	writes, lasted := 0, time.Duration(0)
	step := func() map[int]bool {
		pages := map[int]bool{}
		batch, _ := o.batch(now, now)
		for _, w := range batch {
			o.succeed(now, w, nil)
			writes += len(w.Instances)
			pages[w.page] = true
		}
		now, lasted = now.Add(250*time.Millisecond), lasted+250*time.Millisecond
		return pages
	}
	flap := func(n int) {
		for i := range 50 {
			exp := webExport("cls1", i, n)
			exp.Key.Namespace = "tenant"
			o.state.Set(exp.Key, &exp)
		}
	}
	for n := 1; lasted < time.Minute; n++ {
		flap(n)
		step()
	}
	if want := namespaceBurst + 60*namespaceWrites; writes < want-format.PageCount || writes > want+2*format.PageCount {
		t.Errorf("%d writes in a minute, want some %d", writes, want)
	}
	for i := range 20 {
		flap(1000 + i)
		neighbour := webExport("cls1", i, 1)
		o.state.Set(neighbour.Key, &neighbour)
		if pages := step(); !pages[format.PageOf(neighbour.Key)] {
			t.Fatalf("change %d of the neighbour waits", i)
		}
	}
	began, changed := lasted, webExport("cls1", 0, 5000)
	changed.Key.Namespace = "tenant"
	o.state.Set(changed.Key, &changed)
	for page := format.PageOf(changed.Key); !step()[page]; {
		if lasted-began > 30*time.Second {
			t.Fatal("the last change of the namespace is not written")
		}
	}
}
