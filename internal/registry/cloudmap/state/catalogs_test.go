package state

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// story simulates in virtual time that cluster cls2 writes and cls1 reads.
type story struct {
	t        *testing.T
	now      time.Time
	catalogs *catalogs
	// record and pages are those of cls2 in Cloud Map.
	record format.Member
	pages  map[int][]api.Instance
}

func newStory(t *testing.T) *story {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	s := &story{
		t: t, now: now, catalogs: newCatalogs(testConfig()), pages: map[int][]api.Instance{},
		record: format.Member{
			ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signerOf("uid-2").Key(), Joined: now, Generation: 100, Heartbeat: 1000, Process: "1-cls2",
		},
	}
	s.catalogs.keyring.Observe(trust.Record{Registry: "", ClusterID: "cls2", UID: "uid-2", Key: s.record.Key})
	return s
}

var cls2 = mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}

// anyRecord lets every record with the own ID count.
func anyRecord(format.Member) bool { return true }

// trusts makes cls1 start anew with a keyring.
func (s *story) trusts(keyring *trust.Keyring) {
	cfg := testConfig()
	cfg.Keyring = keyring
	s.catalogs = newCatalogs(cfg)
}

// unread returns the pages of cls2 that have to be read now.
func (s *story) unread() []int {
	_, units, _ := s.catalogs.belief.DueOf("cls2", s.now)
	return pagesOf(units)
}

// write writes a page without announcing it.
func (s *story) write(generation int64, page int, exports ...mcs.Export) string {
	s.t.Helper()
	data, err := record.Encode(exports)
	if err != nil {
		s.t.Fatal(err)
	}
	parts, err := format.SplitPage(cls2, signerOf("uid-2"), page, generation, data)
	if err != nil {
		s.t.Fatal(err)
	}
	s.pages[page] = parts
	return format.Digest(data)
}

// publish writes a page and announces it.
func (s *story) publish(generation int64, page int, exports ...mcs.Export) {
	s.t.Helper()
	s.record.Pages[page] = s.write(generation, page, exports...)
	s.record.Generation = generation
}

// members makes cls1 read the members' records and returns the keys that it notifies of.
func (s *story) members(records ...format.Member) []string {
	var instances []api.Instance
	for _, r := range records {
		instances = append(instances, r.Instance(signerOf(r.UID)))
	}
	changed := engine.Keys{}
	s.catalogs.members(s.now, instances, anyRecord, changed)
	return names(changed)
}

// read makes cls1 read the pages of cls2 that it wants, and returns the keys that it notifies of.
func (s *story) read() []string {
	changed := engine.Keys{}
	for _, page := range s.unread() {
		s.readPage(page, s.pages[page], changed)
	}
	return names(changed)
}

// readPage makes cls1 read the instances of a page of cls2.
func (s *story) readPage(page int, instances []api.Instance, changed engine.Keys) {
	reader := s.catalogs.readerOf("cls2")
	reader.read([]int{page}, map[int][]api.Instance{page: instances}, func(read pageRead) { s.catalogs.observePage(s.now, "cls2", read, changed) })
}

func names(keys engine.Keys) []string {
	var list []string
	for key := range keys {
		list = append(list, key.Name)
	}
	slices.Sort(list)
	return list
}

// state is "2 endpoints", "none" or "unknown".
func (s *story) state(key mcs.Key) string {
	view := s.catalogs.viewOf(key, []string{"cls2"})
	switch {
	case len(view.In(registry.Unknown)) > 0:
		return "unknown"
	case len(view.In(registry.Unseen)) > 0:
		return "unseen"
	case len(view.Exports()) == 0:
		return "none"
	}
	return strings.Repeat("•", view.Exports()[0].EndpointCount())
}

func (s *story) expect(what string, key mcs.Key, want string) {
	s.t.Helper()
	if got := s.state(key); got != want {
		s.t.Errorf("%s: the export is %s, want %s", what, got, want)
	}
}

func (s *story) wanted(what string, want ...int) {
	s.t.Helper()
	if got := s.unread(); !slices.Equal(got, want) {
		s.t.Errorf("%s: pages %v have to be read, want %v", what, got, want)
	}
}

func (s *story) notified(what string, got []string, want ...string) {
	s.t.Helper()
	if !slices.Equal(got, want) {
		s.t.Errorf("%s: notified of %v, want %v", what, got, want)
	}
}

var (
	theKey  = webKey(0)
	thePage = format.PageOf(theKey)
)

func web(endpoints int) mcs.Export { return registry.Published(webExport("cls2", 0, endpoints)) }

func TestReadFollowsAnnouncement(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.notified("a record alone", s.members(s.record))
	s.expect("announced and not read", theKey, "unknown")
	s.notified("the page", s.read(), "web-0")
	s.expect("read", theKey, "•")
	s.wanted("read")

	s.record.Heartbeat++
	s.notified("a first heartbeat", s.members(s.record), "web-0")
	s.record.Heartbeat++
	s.notified("a heartbeat", s.members(s.record))
	s.wanted("a heartbeat")

	s.publish(101, thePage, web(2))
	s.members(s.record)
	s.expect("a change announced", theKey, "•")
	s.wanted("a change announced", thePage)
	s.notified("a change read", s.read(), "web-0")
	s.expect("a change read", theKey, "••")

	s.publish(102, thePage, web(0))
	s.members(s.record)
	s.read()
	s.expect("zero endpoints", theKey, "")

	s.record.Pages[thePage], s.record.Generation = "", 103
	s.notified("the page's end", s.members(s.record), "web-0")
	s.expect("the page's end", theKey, "none")
	s.wanted("the page's end")
}

// TestCatalogs_LateReads reads from replicas of Cloud Map that are behind one another.
func TestCatalogs_LateReads(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	before, pagesBefore := s.record, maps.Clone(s.pages)

	// The record is ahead of the page.
	s.publish(101, thePage, web(2))
	after := s.record
	s.members(after)
	pagesAfter := s.pages
	s.pages = pagesBefore
	s.read()
	s.expect("the page is late", theKey, "•")
	s.pages = pagesAfter
	s.read()
	s.expect("the page is there", theKey, "••")

	// The record of before comes once more.
	s.members(before)
	s.wanted("a late record")
	s.expect("a late record", theKey, "••")

	// The page is ahead of the record.
	digest := s.write(102, thePage, web(3))
	s.record.Heartbeat++
	s.members(s.record)
	s.wanted("a page that is ahead")
	s.expect("a page that is ahead", theKey, "••")
	s.record.Pages[thePage], s.record.Generation = digest, 102
	s.members(s.record)
	s.read()
	s.expect("its record", theKey, "•••")
}

// TestReadAheadOfRecord is a cluster that writes a page again between our reads of its record and
// of the page.
func TestReadAheadOfRecord(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	digest := s.write(101, thePage, web(2))
	s.read()
	s.expect("the newer page counts", theKey, "••")
	s.wanted("the newer page is not read again")
	s.record.Pages[thePage], s.record.Generation = digest, 101
	s.members(s.record)
	s.wanted("its announcement is not read again")
}

func TestUnreadablePages(t *testing.T) {
	good := func(s *story) { s.publish(101, thePage, web(2)) }
	tests := map[string]func(*story){
		"no instance":       func(s *story) { good(s); delete(s.pages, thePage) },
		"no such data":      func(s *story) { good(s); s.pages[thePage][0].Attributes["DATA0"] = "AAAA" },
		"another digest":    func(s *story) { good(s); s.record.Pages[thePage] = format.Digest([]byte("x")) },
		"garbage":           func(s *story) { s.garbage(101, []byte{1, 0, 'x'}) },
		"a later format":    func(s *story) { s.garbage(101, []byte{9, 0, 'x'}) },
		"an earlier page":   func(s *story) { s.record.Pages[thePage], s.record.Generation = format.Digest([]byte("x")), 102 },
		"no page, but more": func(s *story) { good(s); s.pages[thePage] = nil; s.publish(101, (thePage+1)%format.PageCount) },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			fresh := newStory(t)
			fresh.publish(100, thePage, web(1))
			spoil(fresh)
			fresh.members(fresh.record)
			fresh.read()
			fresh.expect("for who starts", theKey, "unknown")

			s := newStory(t)
			s.publish(100, thePage, web(1))
			s.members(s.record)
			s.read()
			spoil(s)
			s.members(s.record)
			s.notified("spoilt", s.read())
			s.expect("for who knew it before", theKey, "•")
			s.read()
			if problems := s.catalogs.problems(s.catalogs.clusters["cls2"]); len(problems) == 0 {
				t.Error("no problem is reported")
			}
			// It is tried less and less often, but tried, and at once when something new is
			// announced.
			reads := 0
			for range 600 {
				s.now = s.now.Add(time.Second)
				if len(s.unread()) > 0 {
					reads++
					s.read()
				}
			}
			if reads < 10 || reads > 40 {
				t.Errorf("the page was tried %d times in ten minutes, want about every 30 s", reads)
			}
			s.publish(200, thePage, web(3))
			s.members(s.record)
			s.read()
			s.expect("mended", theKey, "•••")
			if problems := s.catalogs.problems(s.catalogs.clusters["cls2"]); len(problems) != 0 {
				t.Errorf("problems are still reported: %q", problems)
			}
		})
	}
}

// garbage announces a page of these bytes.
func (s *story) garbage(generation int64, data []byte) {
	s.t.Helper()
	parts, err := format.SplitPage(cls2, signerOf("uid-2"), thePage, generation, data)
	if err != nil {
		s.t.Fatal(err)
	}
	s.pages[thePage] = parts
	s.record.Pages[thePage], s.record.Generation = format.Digest(data), generation
}

func TestPageOfAnother(t *testing.T) {
	s := newStory(t)
	wrong := (thePage + 1) % format.PageCount
	s.publish(100, wrong, web(1))
	s.members(s.record)
	s.read()
	s.record.Heartbeat++
	s.members(s.record)
	s.expect("in the wrong page", theKey, "none")
	if problems := s.catalogs.problems(s.catalogs.clusters["cls2"]); len(problems) != 1 || !strings.Contains(problems[0], "belongs to page") {
		t.Errorf("problems %q, want one that names the right page", problems)
	}
}

func TestVanishedRecord(t *testing.T) {
	begin := func(t *testing.T) *story {
		t.Helper()
		s := newStory(t)
		s.publish(100, thePage, web(1))
		s.members(s.record)
		s.read()
		return s
	}
	t.Run("stays, stale after a while", func(t *testing.T) {
		s := begin(t)
		s.notified("gone for 109 s", s.pass(109, false))
		s.notified("gone for 133 s", s.pass(24, false), "web-0")
		s.expect("gone for 133 s", theKey, "•")
		s.lives("gone for 133 s", "stale")
		s.record.Heartbeat++
		s.notified("back", s.pass(1, true), "web-0")
		s.lives("back", "live")
	})
	t.Run("is back in time", func(t *testing.T) {
		s := begin(t)
		s.members()
		s.now = s.now.Add(100 * time.Second)
		s.members(s.record)
		s.now = s.now.Add(100 * time.Second)
		s.members()
		s.expect("gone, back and gone", theKey, "•")
	})
	t.Run("stays after it had announced nothing", func(t *testing.T) {
		s := begin(t)
		s.record.Pages, s.record.Generation = format.Digests{}, 101
		s.notified("announcing nothing", s.members(s.record), "web-0")
		s.members()
		if len(s.catalogs.list()) != 1 {
			t.Error("it is no member any more, and signed no farewell")
		}
	})
	t.Run("stays however long its catalog is empty", func(t *testing.T) {
		s := begin(t)
		for range 100 {
			s.now = s.now.Add(10 * time.Second)
			s.notified("record and catalog gone", s.members())
			s.catalogs.copyRead(s.now, "cls2", nil, nil, engine.Keys{})
		}
		s.expect("record and catalog gone", theKey, "•")
	})
}

// farewell makes the record of cls2 its farewell.
func (s *story) farewell() {
	s.record.Pages, s.record.Farewell = format.Digests{}, true
	s.record.Generation++
	s.record.Heartbeat++
}

func TestFarewell(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	before := s.record
	s.farewell()
	s.notified("its farewell", s.members(s.record), "web-0")
	gone := func(what string) {
		t.Helper()
		s.expect(what, theKey, "none")
		if len(s.catalogs.list()) != 0 {
			t.Errorf("%s: the members are %v", what, s.catalogs.list())
		}
	}
	gone("its farewell")
	s.members()
	gone("its farewell removed")
	s.members(before)
	gone("a replay of the record before")
	if reads := s.reads(); len(reads) != 0 {
		t.Errorf("reads %v of a cluster that left", reads)
	}

	restarted := newStory(t)
	restarted.trusts(s.catalogs.keyring)
	restarted.members(s.record)
	restarted.expect("after a restart", theKey, "none")
	restarted.members(before)
	restarted.expect("after a restart, a replay", theKey, "none")

	again := before
	again.Heartbeat = s.record.Heartbeat + 1
	for _, reader := range []*story{restarted, s} {
		reader.pages = s.pages
		if reader == restarted {
			reader.members(again)
			reader.expect("back, before its page was read", theKey, "unknown")
		} else {
			reader.members(again)
		}
		reader.read()
		reader.expect("back", theKey, "•")
	}
}

// TestFarewellOfPreviousID: while a cluster is renamed it reads its own records under the previous
// ID, also if it had taken that ID from a silent cluster, whose key it keeps. Else its farewell
// would not count, and imports that name the previous ID would stay.
func TestFarewellOfPreviousID(t *testing.T) {
	s := newStory(t) // the key of the ID is that of another cluster
	s.catalogs.keyring.AddOwn("cls2", signerOf(cls1.UID).Key())
	s.record.UID, s.record.Key = cls1.UID, signerOf(cls1.UID).Key()
	s.members(s.record)
	if list := s.catalogs.list(); len(list) != 1 || list[0].UID != cls1.UID || len(list[0].Problems) > 0 {
		t.Errorf("the members are %+v, want the cluster under its previous ID", list)
	}
	s.farewell()
	s.members(s.record)
	s.expect("its farewell", theKey, "none")
	if list := s.catalogs.list(); len(list) != 0 {
		t.Errorf("after its farewell the members are %+v", list)
	}
}

// TestReturnIsSavedFirst kills the reader while a cluster returns that had left: the next process
// must not take the imports that were made since for those of before the farewell.
func TestReturnIsSavedFirst(t *testing.T) {
	for name, pin := range map[string]trust.Pin{"left": {Left: true}, "forgotten": {Forgotten: true}, "left, and another record once it is saved": {Left: true}} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			pin.Key, pin.UID, pin.Last = s.record.Key, s.record.UID, map[string]trust.Time{"": {Generation: 100, Heartbeat: 1}}
			store := registrytest.Pins{"cls2": pin}
			s.trusts(store.Load(t))
			s.record.Heartbeat++
			s.publish(101, thePage, web(1))
			s.members(s.record)
			s.read()
			s.members(s.record)
			s.record.Heartbeat++
			s.members(s.record)
			s.expect("not saved", theKey, "unknown")

			ended, end := context.WithCancel(t.Context())
			end()
			_ = s.catalogs.keyring.Run(ended, func() error { return nil }) // it saves once
			if strings.Contains(name, "another record") {
				s.record.Heartbeat++
			}
			s.members(s.record)
			s.expect("saved, and its page is not read yet", theKey, "unknown")
			s.notified("saved", s.read(), "web-0")
			s.expect("saved", theKey, "•")

			restarted := newStory(t)
			restarted.trusts(store.Load(t))
			restarted.members()
			restarted.expect("after a restart, without a record", theKey, "unseen")
		})
	}
}

// TestFarewellAsFirstRecord: a reader that starts meets a farewell. It counts when no later record
// has followed for the time until a cluster is stale: another writer may have put an earlier
// farewell back, or a late request wrote it after the cluster had returned.
func TestFarewellAsFirstRecord(t *testing.T) {
	begin := func(t *testing.T) (s *story, returned format.Member) {
		t.Helper()
		s = newStory(t)
		s.publish(100, thePage, web(1))
		returned = s.record
		s.farewell()
		returned.Heartbeat = s.record.Heartbeat + 1
		s.members(s.record)
		s.expect("the catalog is not read yet", theKey, "unknown")
		if got := s.reads(); !slices.Equal(got, []string{"cls2 record"}) {
			t.Fatalf("reads %v, want the copy of the record", got)
		}
		return s, returned
	}
	staleAfter := int(testConfig().StaleAfter / time.Second)
	t.Run("the cluster has returned", func(t *testing.T) {
		s, returned := begin(t)
		s.copyOf(returned)
		s.passWith(staleAfter, s.record)
		s.read()
		s.expect("its catalog has a later record", theKey, "•")
	})
	t.Run("the copy is hidden for a while", func(t *testing.T) {
		s, returned := begin(t)
		s.catalogs.copyRead(s.now, "cls2", nil, nil, engine.Keys{})
		s.passWith(staleAfter-1, s.record)
		s.expect("reads without a copy", theKey, "unknown")
		s.copyOf(returned)
		s.read()
		s.expect("its catalog has a later record", theKey, "•")
	})
	t.Run("a copy of the farewell", func(t *testing.T) {
		s, returned := begin(t)
		s.copyOf(s.record)
		s.expect("a farewell has no copy", theKey, "unknown")
		s.copyOf(returned)
		s.read()
		s.expect("its catalog has a later record", theKey, "•")
	})
	t.Run("the catalog is gone", func(t *testing.T) {
		s, _ := begin(t)
		for range staleAfter - 1 {
			s.passWith(1, s.record)
			s.catalogs.copyRead(s.now, "cls2", nil, nil, engine.Keys{})
		}
		s.expect("no other record", theKey, "unknown")
		s.passWith(1, s.record)
		s.expect("no other record until the cluster is stale", theKey, "none")
		if len(s.catalogs.list()) != 1 || len(s.reads()) != 0 {
			t.Errorf("the members are %v, the reads %v, want none", s.catalogs.list(), s.reads())
		}
	})
}

// reads returns the pages of cls2's catalog that cls1 would read.
func (s *story) reads() (reads []string) {
	for id, cluster := range s.catalogs.clusters {
		isProofDue, units, _ := s.catalogs.belief.DueOf(cluster.id, s.now)
		if isProofDue {
			reads = append(reads, id+" record")
		}
		for _, page := range units {
			reads = append(reads, id+" "+string(page))
		}
	}
	return reads
}

// copyOf makes cls1 read a copy of a record in the catalog of cls2, and returns the keys that it
// notifies of.
func (s *story) copyOf(r format.Member) []string {
	s.t.Helper()
	found, err := format.FindCopy([]api.Instance{format.CopyOf(r.Instance(signerOf(r.UID)))}, "cls2", "set1")
	if err != nil {
		s.t.Fatal(err)
	}
	changed := engine.Keys{}
	s.catalogs.copyRead(s.now, "cls2", found, nil, changed)
	return names(changed)
}

// TestForgedRecords: whatever others write under the ID of cls2, its exports stay, and its copy in
// the catalog keeps it alive.
func TestForgedRecords(t *testing.T) {
	forged := func(change func(*format.Member)) func(*story) api.Instance {
		return func(s *story) api.Instance {
			r := s.record
			r.Pages, r.Generation, r.Heartbeat = format.Digests{}, r.Generation+1, r.Heartbeat+1
			change(&r)
			return r.Instance(signerOf("attacker"))
		}
	}
	changed := func(key, value string) func(*story) api.Instance {
		return func(s *story) api.Instance {
			instance := s.record.Instance(signerOf("uid-2"))
			instance.Attributes[key] = value
			return instance
		}
	}
	tests := map[string]func(*story) api.Instance{
		"no pages":               forged(func(*format.Member) {}),
		"a farewell":             forged(func(r *format.Member) { r.Farewell = true }),
		"another UID":            forged(func(r *format.Member) { r.UID = "attacker" }),
		"pages removed":          changed(format.AttrPages, ""),
		"a later generation":     changed(format.AttrGeneration, "500"),
		"a farewell added":       changed(format.AttrFarewell, "true"),
		"without a signature":    changed(format.AttrSignature, ""),
		"another key":            changed(format.AttrKey, signerOf("attacker").Key().String()),
		"nothing that it should": func(*story) api.Instance { return api.Instance{ID: "cls2", Attributes: map[string]string{"A": "b"}} },
		"a replay": func(s *story) api.Instance {
			r := s.record
			r.Pages, r.Generation, r.Heartbeat = format.Digests{}, 1, 0
			return r.Instance(signerOf("uid-2"))
		},
	}
	for name, forge := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.publish(100, thePage, web(1))
			s.pass(1, true)
			s.read()
			s.record.Heartbeat++
			s.pass(1, true)
			s.lives("before", "live")
			instance := forge(s)
			for i := range 300 {
				s.now = s.now.Add(time.Second)
				changed := engine.Keys{}
				s.catalogs.members(s.now, []api.Instance{s.ownRecord(), instance}, anyRecord, changed)
				s.notified("forged", names(changed))
				if i%12 == 0 {
					s.record.Heartbeat++
				}
				if slices.Contains(s.reads(), "cls2 record") {
					s.copyOf(s.record)
				}
			}
			s.expect("forged", theKey, "•")
			s.lives("forged", "live")
			if m := s.catalogs.list()[1]; len(m.Problems) == 0 {
				t.Error("no problem is reported")
			}
			s.publish(200, thePage, web(2))
			s.members(s.record)
			s.read()
			s.expect("its own record is back", theKey, "••")
			if m := s.catalogs.list()[1]; len(m.Problems) != 0 {
				t.Errorf("problems are still reported: %q", m.Problems)
			}
		})
	}
}

// TestForgedPages: a page that the cluster did not sign is not used.
func TestForgedPages(t *testing.T) {
	for name, forge := range map[string]func(s *story, data []byte) []api.Instance{
		"another key": func(_ *story, data []byte) []api.Instance { return mustSplit(cls2, "attacker", thePage, 200, data) },
		"another UID": func(_ *story, data []byte) []api.Instance {
			return mustSplit(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "x"}, "uid-2", thePage, 200, data)
		},
		"another cluster": func(_ *story, data []byte) []api.Instance {
			return mustSplit(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-2"}, "uid-2", thePage, 200, data)
		},
		"another page": func(_ *story, data []byte) []api.Instance { return mustSplit(cls2, "uid-2", thePage, 200, data) },
		"a later generation": func(_ *story, data []byte) []api.Instance {
			parts := mustSplit(cls2, "uid-2", thePage, 100, data)
			parts[0].Attributes[format.AttrGeneration] = "300"
			return parts
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.publish(100, thePage, web(1))
			s.members(s.record)
			s.read()
			data, err := record.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			parts := forge(s, data)
			if name == "another page" {
				parts = mustSplit(cls2, "uid-2", (thePage+1)%format.PageCount, 200, data)
				parts[0].ID, parts[0].Attributes[format.AttrPage] = format.PartID(thePage, 0), format.PageName(thePage)
			}
			changed := engine.Keys{}
			s.readPage(thePage, parts, changed)
			s.notified("forged", names(changed))
			s.expect("forged", theKey, "•")
		})
	}
}

func mustSplit(identity mcs.Identity, signer string, page int, generation int64, data []byte) []api.Instance {
	parts, err := format.SplitPage(identity, signerOf(signer), page, generation, data)
	if err != nil {
		panic(err)
	}
	return parts
}

// TestKeyOfNewCluster: a key counts when the catalog shows it.
func TestKeyOfNewCluster(t *testing.T) {
	s := newStory(t)
	s.trusts(newKeyring()) // has not seen cls2
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.wanted("its key is not proven")
	s.expect("its key is not proven", theKey, "unseen")
	if got := s.reads(); !slices.Equal(got, []string{"cls2 record"}) {
		t.Fatalf("reads %v, want the copy of the record", got)
	}
	copied := s.record
	copied.Pages, copied.Generation = format.Digests{}, 50
	copied.Heartbeat--
	s.copyOf(copied)
	s.wanted("its key is proven", thePage)
	s.read()
	s.expect("its key is proven", theKey, "•")
	if got := s.reads(); len(got) != 0 {
		t.Errorf("reads %v when all is read", got)
	}
	s.lives("at first sight", "unheard")
	s.record.Heartbeat++
	s.pass(1, true)
	s.record.Heartbeat++
	s.pass(1, true)
	s.lives("with heartbeats", "live")
}

// TestKeyNotInCatalog: another writer gives a cluster that is not known yet a false key.
func TestKeyNotInCatalog(t *testing.T) {
	s := newStory(t)
	s.trusts(newKeyring())
	s.publish(100, thePage, web(1))
	forged := s.record.Instance(signerOf("attacker"))
	reads := 0
	for range 300 {
		s.now = s.now.Add(time.Second)
		s.catalogs.members(s.now, []api.Instance{forged}, anyRecord, engine.Keys{})
		if slices.Contains(s.reads(), "cls2 record") {
			s.copyOf(s.record)
			reads++
		}
		s.read()
	}
	s.expect("its catalog has its own key", theKey, "•")
	if reads > 14 {
		t.Errorf("its catalog was read %d times in 300 s", reads)
	}
	if m := s.catalogs.list()[0]; len(m.Problems) != 1 || !registry.IsRefused(m.Problems[0]) {
		t.Errorf("problems %q, want a refused record", m.Problems)
	}
}

// tags makes cls1 read the tags of the catalog of cls2 if they are due: catalog-of=owner, or an
// error. It reports whether they were.
func (s *story) tags(owner string, err error) bool {
	isDue := s.catalogs.areTagsDue(s.now, "cls2")
	if isDue {
		s.catalogs.tagsRead(s.now, "cls2", owner, err)
	}
	return isDue
}

// rebuilt has cls2 built anew with another key under its ID, after cls1 has imported from it.
func (s *story) rebuilt() {
	s.now = time.Now()
	s.publish(100, thePage, web(1))
	s.pass(1, true)
	s.read()
	s.record.Heartbeat++
	s.pass(1, true)
	s.record.UID, s.record.Process, s.record.Pages, s.record.Generation = "uid-9", "2-cls2", format.Digests{}, 500
	s.record.Key = signerOf("uid-9").Key()
}

// TestRebuiltCluster: a cluster with another key under the same ID takes its place after the
// previous key has been silent for long enough, if its catalog is sealed.
func TestRebuiltCluster(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t)
		s.rebuilt()
		for range 119 {
			time.Sleep(time.Second)
			s.pass(1, true)
			s.copyOf(s.record)
			s.tags("cls2", nil)
			s.expect("the previous key is not silent for long", theKey, "•")
		}
		time.Sleep(20 * time.Second)
		s.pass(20, true)
		s.copyOf(s.record)
		s.pass(1, true)
		s.expect("the previous key is silent", theKey, "none")
		if got := s.catalogs.list()[1]; got.UID != "uid-9" || len(got.Problems) != 0 || got.RefusedKey != "" {
			t.Errorf("the member is %+v", got)
		}
	})
}

// TestRebuiltClusterUnproven: the catalog of a cluster with another key proves nothing while any
// member may have written the key, or once may have. The imports stay, the problem names the
// remedy, the tags are read once in a quarter of --stale-after, and the key counts when an
// administrator says so.
func TestRebuiltClusterUnproven(t *testing.T) {
	warmUp(t)
	tests := map[string]struct {
		owner string
		err   error
		want  string
		// isProven reports whether the key counts once the catalog is sealed.
		isProven bool
	}{
		"no tag":              {want: "lacks the tag catalog-of=cls2"},
		"of another cluster":  {owner: "cls3", want: "lacks the tag catalog-of=cls2"},
		"tags cannot be read": {err: errors.New("access denied"), want: "cannot be read (access denied)", isProven: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStory(t)
				s.rebuilt()
				reads := 0
				const seconds = 600
				live := func(seconds int, owner string, err error) {
					for range seconds {
						time.Sleep(time.Second)
						s.record.Heartbeat++
						s.pass(1, true)
						if slices.Contains(s.reads(), "cls2 record") {
							s.copyOf(s.record)
						}
						if s.tags(owner, err) {
							reads++
						}
					}
				}
				live(seconds, tc.owner, tc.err)
				s.expect("not proven", theKey, "•")
				if reads == 0 || reads > seconds/30+1 {
					t.Errorf("the tags were read %d times in %d s, want once in 30 s", reads, seconds)
				}
				m := s.catalogs.list()[1]
				if len(m.Problems) != 1 || !registry.IsRefused(m.Problems[0]) || !strings.Contains(m.Problems[0], tc.want) || !strings.Contains(m.Problems[0], "kubectl mcs trust cls2") {
					t.Errorf("problems %q, want a refused record with %q and the remedy", m.Problems, tc.want)
				}
				if m.Key != signerOf("uid-2").Key().String() || m.RefusedKey != signerOf("uid-9").Key().String() {
					t.Errorf("key %s, refused %s", m.Key, m.RefusedKey)
				}
				live(180, "cls2", nil)
				if tc.isProven {
					s.expect("sealed", theKey, "none")
					return
				}
				s.expect("sealed after any member may have written the key", theKey, "•")
				if err := s.catalogs.keyring.Trust("cls2", signerOf("uid-9").Key()); err != nil {
					t.Fatal(err)
				}
				live(1, "cls2", nil)
				s.expect("trusted", theKey, "none")
			})
		})
	}
}

// TestTrustedKeyReplacesLiveOne: an administrator names another key while the cluster's present one
// is in use, as by a thief. Records with the previous key change nothing from then on.
func TestTrustedKeyReplacesLiveOne(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.pass(1, true)
	s.read()
	if err := s.catalogs.keyring.Trust("cls2", signerOf("uid-9").Key()); err != nil {
		t.Fatal(err)
	}
	s.record.Heartbeat++
	s.record.Pages, s.record.Generation = format.Digests{}, 500
	s.pass(1, true)
	s.expect("a record with the previous key withdraws it", theKey, "•")
	if m := s.catalogs.list()[1]; len(m.Problems) != 1 || !registry.IsRefused(m.Problems[0]) || m.Key != signerOf("uid-9").Key().String() {
		t.Errorf("the member is %+v, want a refused record and the trusted key", m)
	}
	s.record.UID, s.record.Key, s.record.Process = "uid-9", signerOf("uid-9").Key(), "2-cls2"
	s.pass(1, true)
	s.expect("a record with the trusted key withdraws it", theKey, "none")
}

// TestRebuiltClusterAfterRestart has this cluster start after another one was rebuilt with another
// key: the refused records of the new key are no silence of it.
func TestRebuiltClusterAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t)
		s.now = time.Now()
		s.catalogs.keyring.Observe(trust.Record{ClusterID: "cls2", UID: "uid-2", Key: s.record.Key, At: s.record.Time()})
		s.record.UID, s.record.Key, s.record.Process = "uid-9", signerOf("uid-9").Key(), "2-cls2"
		for range 180 {
			time.Sleep(time.Second)
			s.record.Heartbeat++
			s.pass(1, true)
			s.copyOf(s.record)
			s.tags("cls2", nil)
			if cluster := s.catalogs.clusters["cls2"]; cluster.record != nil && s.catalogs.isStale("cls2") {
				t.Fatal("its key counts, and it is stale although its heartbeats go on")
			}
		}
		if got := s.catalogs.list()[1]; got.UID != "uid-9" || len(got.Problems) != 0 {
			t.Errorf("the member is %+v, want the rebuilt cluster", got)
		}
	})
}

// TestImportedClusterIsSought: a cluster that was imported from and has no record in service
// members is found by its catalog.
func TestImportedClusterIsSought(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members()
	s.expect("without its record", theKey, "unseen")
	if got := s.reads(); len(got) != 0 {
		t.Errorf("reads %v before a lookup names it", got)
	}
	s.catalogs.seek(s.now, []string{"cls2", "cls1", "Not_A_Cluster"})
	s.members()
	if got := s.reads(); !slices.Equal(got, []string{"cls2 record"}) {
		t.Fatalf("reads %v, want the copy of its record", got)
	}
	s.copyOf(s.record)
	s.read()
	s.expect("its catalog was read", theKey, "•")
	reads := 0
	for range 300 {
		s.pass(1, false)
		if got := s.reads(); len(got) > 0 {
			s.copyOf(s.record)
			reads++
		}
	}
	if reads > 10 {
		t.Errorf("its catalog was read %d times in 300 s, want once in 30 s", reads)
	}
	s.expect("after 300 s", theKey, "•")
	s.lives("after 300 s", "stale")
}

// TestAbsentCatalogIsReadSeldom: a cluster that was imported from and exists in another registry.
func TestAbsentCatalogIsReadSeldom(t *testing.T) {
	s := newStory(t)
	s.catalogs.seek(s.now, []string{"cls2"})
	reads := 0
	for range 3600 {
		s.pass(1, false)
		if len(s.reads()) > 0 {
			s.catalogs.copyRead(s.now, "cls2", nil, nil, engine.Keys{})
			reads++
		}
	}
	if reads < 5 || reads > 25 {
		t.Errorf("its catalog was read %d times in an hour, want about every 8 minutes", reads)
	}
	s.expect("for an hour", theKey, "unseen")
}

func TestForget(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	changed := engine.Keys{}
	s.catalogs.forget(s.now, "cls2", changed)
	s.notified("forgotten", names(changed), "web-0")
	s.members(s.record)
	s.expect("forgotten, its last record is there", theKey, "none")
	if got := s.reads(); len(got) != 0 || len(s.catalogs.list()) != 0 {
		t.Errorf("forgotten: reads %v, members %v", got, s.catalogs.list())
	}
	s.record.Heartbeat++
	s.members(s.record)
	s.read()
	s.expect("it writes again", theKey, "•")
}

// TestOlderRecordsNeverCount: neither for long nor after a restart.
func TestOlderRecordsNeverCount(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.record.Heartbeat = 50
	older := s.record
	older.Pages, older.Heartbeat = format.Digests{}, 49
	s.members(s.record)
	s.read()
	for range 1000 {
		s.now = s.now.Add(time.Second)
		s.members(older)
	}
	s.expect("an older record for long", theKey, "•")
	restarted := newStory(t)
	restarted.trusts(s.catalogs.keyring)
	restarted.members(older)
	restarted.expect("an older record after a restart", theKey, "unseen")
}

// TestFirstRecordMayBeOld has a reader start while the registry has an earlier record than its
// previous process has read, though a later one than the pins have that it saved.
func TestFirstRecordMayBeOld(t *testing.T) {
	begin := func(t *testing.T) *story {
		t.Helper()
		s := newStory(t)
		s.catalogs.keyring.Observe(trust.Record{ClusterID: "cls2", UID: "uid-2", Key: s.record.Key, At: trust.Time{Generation: 90, Heartbeat: 40}})
		s.publish(100, thePage, web(1))
		s.record.Heartbeat = 50
		return s
	}
	t.Run("until there is a later one", func(t *testing.T) {
		s := begin(t)
		s.members(s.record)
		s.read()
		s.expect("the first record", theKey, "unknown")
		s.members(s.record)
		s.members()
		s.members(s.record)
		s.expect("the same one again", theKey, "unknown")
		s.record.Heartbeat++
		s.notified("a later one", s.members(s.record), "web-0")
		s.expect("a later one", theKey, "•")
	})
	t.Run("its pages too", func(t *testing.T) {
		s := begin(t)
		s.members(s.record)
		s.read()
		old := s.pages[thePage]
		s.publish(200, thePage, web(3))
		s.record.Heartbeat++
		later := s.pages[thePage]
		s.pages[thePage] = old // the cluster has not written it again
		s.members(s.record)
		s.read()
		s.expect("the page of the old record", theKey, "unknown")
		s.pages[thePage] = later
		s.now = s.now.Add(time.Minute)
		s.read()
		s.expect("the page of the later record", theKey, "•••")
	})
	t.Run("until the cluster is stale", func(t *testing.T) {
		s := begin(t)
		s.members(s.record)
		s.read()
		s.pass(60, true)
		s.expect("silent", theKey, "unknown")
		s.notified("stale", s.pass(int(testConfig().StaleAfter/time.Second), true), "web-0")
		s.expect("stale", theKey, "•")
		s.record.Pages[thePage] = format.UnwrittenDigest
		s.record.Heartbeat++
		s.members(s.record)
		s.expect("back, before it has published", theKey, "•")
	})
	t.Run("read from the copy when the cluster is stale", func(t *testing.T) {
		s := begin(t)
		foreign := s.record
		foreign.UID, foreign.Key = "uid-3", signerOf("uid-3").Key()
		// it is refused, and the catalog cannot be read
		s.passWith(60, foreign)
		s.copyOf(s.record)
		s.read()
		s.passWith(int(testConfig().StaleAfter/time.Second)-24, foreign)
		s.expect("silent", theKey, "unknown")
		s.passWith(48, foreign)
		s.expect("stale", theKey, "•")
		s.lives("stale", "stale")
	})
	t.Run("unless it is a farewell", func(t *testing.T) {
		s := begin(t)
		s.record.Farewell, s.record.Pages = true, format.Digests{}
		s.members(s.record)
		s.pass(int(testConfig().StaleAfter/time.Second), true)
		s.expect("a farewell that nothing has followed", theKey, "none")
	})
	t.Run("the copy is older", func(t *testing.T) {
		s := begin(t)
		s.members()
		s.catalogs.seek(s.now, []string{"cls2"})
		s.copyOf(s.record)
		s.record.Heartbeat++
		s.members(s.record)
		s.read()
		s.expect("the first record after the copy", theKey, "unknown")
		s.record.Heartbeat++
		s.members(s.record)
		s.expect("a later one", theKey, "•")
	})
}

// TestSoughtClusterJoins has a cluster join that this cluster has sought before, because an import
// names it.
func TestSoughtClusterJoins(t *testing.T) {
	s := newStory(t)
	joining := s.record
	joining.ClusterID, joining.UID, joining.Key = "cls3", "uid-3", signerOf("uid-3").Key()
	s.members()
	s.catalogs.seek(s.now, []string{"cls3"})
	for range 5 {
		s.catalogs.copyRead(s.now, "cls3", nil, nil, engine.Keys{})
	}
	if got := s.reads(); len(got) > 0 {
		t.Errorf("reads %v without a pause, while the catalog does not exist", got)
	}
	s.members(joining)
	if got := s.reads(); !slices.Equal(got, []string{"cls3 record"}) {
		t.Errorf("reads %v, want the copy of the record of the cluster that joins at once", got)
	}
}

// pass is how cls1 looks every second, with its own heartbeat going on, while the record of cls2 is
// there or not. It returns the keys that were notified of.
func (s *story) pass(seconds int, there bool) []string {
	if there {
		return s.passWith(seconds, s.record)
	}
	return s.passWith(seconds)
}

// passWith is pass with these records of other clusters.
func (s *story) passWith(seconds int, records ...format.Member) []string {
	changed := engine.Keys{}
	for range seconds {
		s.now = s.now.Add(time.Second)
		instances := []api.Instance{s.ownRecord()}
		for _, r := range records {
			instances = append(instances, r.Instance(signerOf(r.UID)))
		}
		s.catalogs.members(s.now, instances, anyRecord, changed)
	}
	return names(changed)
}

// ownRecord is cls1's, with a heartbeat every 12 s.
func (s *story) ownRecord() api.Instance {
	return format.Member{
		ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Joined: s.record.Joined, Heartbeat: s.now.Unix() / 12,
	}.Instance(signerOf("uid-1"))
}

// lives wants cls2 to be "live", "unheard" or "stale" in the View and among the members.
func (s *story) lives(what, want string) {
	s.t.Helper()
	got, view := "live", s.catalogs.viewOf(theKey, nil)
	if len(view.WithLiveness(registry.Stale)) > 0 {
		got = "stale"
	} else if len(view.WithLiveness(registry.Undecided)) > 0 {
		got = "unheard"
	}
	if got != want {
		s.t.Errorf("%s: cls2 is %s, want %s", what, got, want)
	}
	for _, m := range s.catalogs.list() {
		if m.Stale != (m.ClusterID == "cls2" && want == "stale") {
			s.t.Errorf("%s: member %s is stale: %v", what, m.ClusterID, m.Stale)
		}
	}
}

func TestSilentCluster(t *testing.T) {
	begin := func(t *testing.T) *story {
		t.Helper()
		s := newStory(t)
		s.publish(100, thePage, web(1))
		s.pass(1, true)
		s.read()
		s.lives("first seen", "unheard")
		return s
	}
	t.Run("whose heartbeat stops", func(t *testing.T) {
		s := begin(t)
		s.record.Heartbeat++
		s.notified("its first heartbeat", s.pass(1, true), "web-0")
		s.lives("its first heartbeat", "live")
		s.notified("108 s of silence", s.pass(108, true))
		s.notified("132 s of silence", s.pass(24, true), "web-0")
		s.lives("132 s of silence", "stale")
		s.expect("132 s of silence", theKey, "•")
		s.record.Heartbeat++
		s.notified("another heartbeat", s.pass(1, true), "web-0")
		s.lives("another heartbeat", "live")
	})
	t.Run("that was dead before we started", func(t *testing.T) {
		s := begin(t)
		s.notified("132 s of silence", s.pass(132, true), "web-0")
		s.lives("132 s of silence", "stale")
	})
	t.Run("whose old record comes late", func(t *testing.T) {
		s := begin(t)
		s.record.Heartbeat++
		s.pass(1, true)
		late := s.record
		late.Heartbeat--
		for range 132 {
			s.record, late = late, s.record
			s.pass(1, true)
		}
		s.lives("two replicas that disagree", "stale")
	})
	t.Run("of a later version", func(t *testing.T) {
		s := begin(t)
		changed := engine.Keys{}
		for i := range 200 {
			s.now = s.now.Add(time.Second)
			later := s.record.Instance(signerOf(s.record.UID))
			later.Attributes[format.AttrFormat], later.Attributes[format.AttrHeartbeat] = "9.0", strconv.Itoa(i/12)
			later = format.Sign(later, signerOf(s.record.UID))
			s.catalogs.members(s.now, []api.Instance{s.ownRecord(), later}, anyRecord, changed)
		}
		s.lives("it writes what we cannot read", "live")
		s.expect("it writes what we cannot read", theKey, "•")
	})
	t.Run("that leaves", func(t *testing.T) {
		s := begin(t)
		s.pass(132, true)
		s.farewell()
		s.pass(1, true)
		s.pass(1, false)
		if s.catalogs.isStale("cls2") || len(s.catalogs.list()) != 1 {
			t.Errorf("it left, and the members are %v", s.catalogs.list())
		}
	})
}

func TestBadRecords(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	s.record.Heartbeat++
	s.members(s.record)
	bad := s.record.Instance(signerOf(s.record.UID))
	bad.Attributes[format.AttrPages] = "garbage"
	outsider := api.Instance{ID: "Not_A_Cluster", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"}}
	unknown := api.Instance{ID: "cls3", Attributes: map[string]string{}}
	changed := engine.Keys{}
	s.catalogs.members(s.now, []api.Instance{bad, outsider, unknown}, anyRecord, changed)
	s.notified("bad records", names(changed))
	view := s.catalogs.viewOf(theKey, nil)
	if len(view.Exports()) != 1 || len(view.In(registry.Unknown)) != 0 {
		t.Errorf("%d exports and unknown clusters %v, want cls2's export as before: the bad record of cls3 concerns no other", len(view.Exports()), view.In(registry.Unknown))
	}
	for _, m := range s.catalogs.list() {
		if len(m.Problems) == 0 {
			t.Errorf("no problem is reported of %s", m.ClusterID)
		}
	}
}

func TestLastSeen(t *testing.T) {
	s := newStory(t)
	s.members(s.record)
	seen := func() time.Time { return s.catalogs.list()[0].LastSeen }
	first := s.now
	s.now = s.now.Add(time.Minute)
	s.members(s.record)
	if !seen().Equal(first) {
		t.Errorf("a record that did not change was seen at %v, want %v", seen(), first)
	}
	s.record.Heartbeat++
	s.members(s.record)
	if !seen().Equal(s.now) {
		t.Errorf("a heartbeat was seen at %v, want %v", seen(), s.now)
	}
}

// TestAudit has this cluster's own pages in every state that the previous process can leave them
// in.
func TestAudit(t *testing.T) {
	s := newStory(t)
	c := s.catalogs
	own := func(generation int64, page int, exports ...mcs.Export) (string, []api.Instance) {
		data, err := record.Encode(exports)
		if err != nil {
			t.Fatal(err)
		}
		return format.Digest(data), mustSplit(cls1, cls1.UID, page, generation, data)
	}
	other := webKey(1)
	for i := 1; format.PageOf(other) == thePage; i++ {
		other = webKey(i)
	}
	r := format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Joined: s.now, Generation: 100}
	changed := engine.Keys{}

	// An announced page; a page that is not announced; remaining parts of a withdrawn page.
	announced, first := own(100, thePage, webExport("cls1", 0, 1))
	r.Pages[thePage] = announced
	exp := webExport("cls1", 0, 1)
	exp.Key = other
	_, ahead := own(101, format.PageOf(other), exp)
	leftPage := (max(thePage, format.PageOf(other)) + 1) % format.PageCount
	for leftPage == thePage || leftPage == format.PageOf(other) {
		leftPage = (leftPage + 1) % format.PageCount
	}
	_, left := own(99, leftPage, exp)
	c.members(s.now, []api.Instance{r.Instance(signerOf("uid-1"))}, anyRecord, changed)
	c.own.audit(s.now, slices.Concat(first, ahead, left), true, changed)
	shown := c.own
	for page, want := range map[int]int{thePage: 1, format.PageOf(other): 1, leftPage: 0} {
		p := &shown.pages[page]
		if !p.read || len(p.exports) != want || p.stored != 1 {
			t.Errorf("page %d: read %v, %d exports, %d parts in the store; want read, %d and 1", page, p.read, len(p.exports), p.stored, want)
		}
	}
	// Another writer removes a page. The status of its exports changes, and again when it is back.
	clear(changed)
	c.own.audit(s.now, slices.Concat(ahead, left), true, changed)
	if _, isChanged := changed[webKey(0)]; !isChanged || len(changed) != 1 {
		t.Errorf("changed keys %v, want the one of the removed page", changed)
	}
	clear(changed)
	c.own.audit(s.now, slices.Concat(first, ahead, left), true, changed)
	if _, isChanged := changed[webKey(0)]; !isChanged || len(changed) != 1 || shown.pages[thePage].lost {
		t.Errorf("changed keys %v, want the one of the page that is back", changed)
	}
	c.own.audit(s.now, slices.Concat(ahead, left), true, changed)
	if got := shown.unreadPages(s.now); !slices.Equal(got, []int{thePage}) {
		t.Errorf("pages %v have to be read again, want %d", got, thePage)
	}
	if len(shown.pages[thePage].exports) != 1 {
		t.Error("what is known of the removed page is gone")
	}
}

// TestAudit_OfPageBeingWritten audits while the record announces a page that did not exist as not
// written yet: it still does not exist.
func TestAudit_OfPageBeingWritten(t *testing.T) {
	s := newStory(t)
	c, changed := s.catalogs, engine.Keys{}
	r := format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Joined: s.now, Generation: 100}
	c.members(s.now, []api.Instance{r.Instance(signerOf("uid-1"))}, anyRecord, changed)
	c.own.audit(s.now, nil, true, changed)
	r.Pages[thePage], r.Heartbeat = format.UnwrittenDigest, 1
	c.members(s.now, []api.Instance{r.Instance(signerOf("uid-1"))}, anyRecord, changed)
	c.own.audit(s.now, nil, false, changed)
	if p := &c.own.pages[thePage]; !p.read || p.lost || p.trouble != "" {
		t.Errorf("read %t, lost %t, trouble %q; want a page that is known not to exist", p.read, p.lost, p.trouble)
	}
}

// TestPageAheadForEver has a page that was read and is never announced: the process that wrote it
// ended before. The page counts until the record of the next process is later, whatever the clock
// of that says.
func TestPageAheadForEver(t *testing.T) {
	for name, tt := range map[string]struct {
		announced mcs.Export
		there     bool
		want      string
	}{
		"another page announced": {web(3), true, "•••"},
		"no page announced":      {web(3), false, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.publish(100, thePage, web(1))
			before := s.record
			s.record.Pages[thePage] = s.write(500, thePage, web(2))
			s.members(before)
			s.read()
			s.expect("a page that is not announced yet", theKey, "••")

			s.record = before
			s.record.Pages[thePage] = ""
			s.record.Generation = 101
			s.record.Heartbeat++
			s.members(s.record)
			s.read()
			s.expect("an earlier record", theKey, "••")
			s.record.Generation = 501
			if tt.there {
				s.publish(501, thePage, tt.announced)
			}
			s.record.Heartbeat++
			s.members(s.record)
			s.read()
			s.expect("a later record", theKey, tt.want)
			s.wanted("everything read")
		})
	}
}

// TestPageAheadOfSilentCluster has a page that was read and not announced, because its cluster
// cannot write any more. A backup that another user restores has the page as the last record
// announces it: that is older, and no evidence. The page is not read again meanwhile.
func TestPageAheadOfSilentCluster(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	before, backup := s.record, s.pages[thePage]
	s.write(500, thePage, web(2))
	s.members(before)
	s.read()
	s.pages[thePage] = backup
	for range 300 {
		s.now = s.now.Add(time.Second)
		s.members(before)
		s.wanted("a page that is ahead")
	}
	s.expect("the page that was read before", theKey, "••")
}

func TestExpiredFarewells(t *testing.T) {
	s := newStory(t)
	s.members(s.record)
	s.farewell()
	s.members(s.record)
	left := s.record.HeartbeatTime()
	if got := s.catalogs.expiredFarewells(left.Add(farewellLifetime - 1)); len(got) != 0 {
		t.Errorf("%v are removed before their time", got)
	}
	if got := s.catalogs.expiredFarewells(left.Add(farewellLifetime)); !slices.Equal(got, []string{"cls2"}) {
		t.Errorf("%v are removed, want cls2", got)
	}
	lower := format.Member{ClusterID: "cls0", ClusterSetID: "set1", UID: "uid-0", Heartbeat: 1}
	s.catalogs.keyring.Observe(trust.Record{ClusterID: "cls0", UID: "uid-0", Key: signerOf("uid-0").Key()})
	s.members(s.record, lower)
	if got := s.catalogs.expiredFarewells(left.Add(farewellLifetime)); len(got) != 0 {
		t.Errorf("%v are removed by another cluster than the one with the lowest ID", got)
	}
	s.members(lower)
	if got := s.catalogs.expiredFarewells(left.Add(farewellLifetime)); len(got) != 0 {
		t.Errorf("%v are removed, and nothing is there", got)
	}
}

// TestOneRecordEach has two records of one cluster, in different services: one counts, whichever
// was read first.
func TestOneRecordEach(t *testing.T) {
	now := time.Now()
	record := func(id, uid string, heartbeat int64) api.Instance {
		return format.Member{ClusterID: id, ClusterSetID: "set1", UID: uid, Joined: now, Heartbeat: heartbeat}.Instance(signerOf(uid))
	}
	unsigned := api.Instance{ID: "cls2", Attributes: map[string]string{format.AttrClusterID: "cls2"}}
	for name, tt := range map[string]struct{ want, other api.Instance }{
		"the later one of a cluster":                    {record("cls2", "uid-2", 2), record("cls2", "uid-2", 1)},
		"the signed one":                                {record("cls2", "uid-2", 1), unsigned},
		"that with the key of the cluster":              {record("cls2", "uid-2", 1), record("cls2", "uid-9", 9)},
		"the later one of a cluster that is not known":  {record("cls3", "uid-3", 2), record("cls3", "uid-4", 1)},
		"that with the key of this cluster":             {record("cls1", cls1.UID, 1), record("cls1", "uid-9", 9)},
		"that with the key of a previous process's pin": {record("cls4", "uid-4", 1), record("cls4", "uid-9", 9)},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.catalogs.clusters["cls2"] = &catalog{id: "cls2", record: &format.Member{Key: signerOf("uid-2").Key()}}
			s.cfg.Keyring.Observe(trust.Record{ClusterID: "cls4", Key: signerOf("uid-4").Key()})
			beside := record("cls5", "uid-5", 1)
			for _, records := range [][]api.Instance{{tt.want, beside, tt.other}, {tt.other, beside, tt.want}} {
				if got := s.Reads.OneRecordEach(records); len(got) != 2 || !maps.Equal(got[0].Attributes, tt.want.Attributes) || got[1].ID != "cls5" {
					t.Errorf("%d records: %v", len(got), got)
				}
			}
		})
	}
}
