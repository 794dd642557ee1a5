package state

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// story is what cluster cls2 writes and cls1 reads, in virtual time.
type story struct {
	t        *testing.T
	now      time.Time
	catalogs *catalogs
	// record and pages are what is in Cloud Map of cls2.
	record format.Member
	pages  map[int][]api.Instance
}

func newStory(t *testing.T) *story {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	return &story{
		t: t, now: now, catalogs: newCatalogs(cls1, 2*time.Minute, time.Second, 2*time.Second), pages: map[int][]api.Instance{},
		record: format.Member{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Joined: now, Generation: 100, Heartbeat: 1},
	}
}

// write writes a page without announcing it.
func (s *story) write(generation int64, page int, exports ...mcs.Export) string {
	s.t.Helper()
	data, err := record.Encode(exports)
	if err != nil {
		s.t.Fatal(err)
	}
	parts, err := format.SplitPage("cls2", page, generation, data)
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
		instances = append(instances, r.Instance())
	}
	changed := engine.Keys{}
	s.catalogs.members(s.now, instances, changed)
	return names(changed)
}

// read makes cls1 read the pages of cls2 that it wants, and returns the keys that it notifies of.
func (s *story) read() []string {
	changed := engine.Keys{}
	for _, page := range s.catalogs.clusters["cls2"].wanted(s.now) {
		s.catalogs.page(s.now, "cls2", page, s.pages[page], changed)
	}
	return names(changed)
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
	view := s.catalogs.look(key)
	switch {
	case len(view.Unknown) > 0:
		return "unknown"
	case len(view.Exports) == 0:
		return "none"
	}
	return strings.Repeat("•", view.Exports[0].EndpointCount())
}

func (s *story) expect(what string, key mcs.Key, want string) {
	s.t.Helper()
	if got := s.state(key); got != want {
		s.t.Errorf("%s: the export is %s, want %s", what, got, want)
	}
}

func (s *story) wanted(what string, want ...int) {
	s.t.Helper()
	if got := s.catalogs.clusters["cls2"].wanted(s.now); !slices.Equal(got, want) {
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

// TestReadsLate has Cloud Map's replicas behind one another.
func TestReadsLate(t *testing.T) {
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

// TestReadAheadOfRecord is a cluster that writes a page again between our reads of its record and of the page.
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
			if problems := s.catalogs.clusters["cls2"].problems(); len(problems) == 0 {
				t.Error("no problem is reported")
			}
			// It is tried less and less often, but tried, and at once when something new is announced.
			reads := 0
			for range 600 {
				s.now = s.now.Add(time.Second)
				if len(s.catalogs.clusters["cls2"].wanted(s.now)) > 0 {
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
			if problems := s.catalogs.clusters["cls2"].problems(); len(problems) != 0 {
				t.Errorf("problems are still reported: %q", problems)
			}
		})
	}
}

// garbage announces a page of these bytes.
func (s *story) garbage(generation int64, data []byte) {
	s.t.Helper()
	parts, err := format.SplitPage("cls2", thePage, generation, data)
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
	s.expect("in the wrong page", theKey, "none")
	if problems := s.catalogs.clusters["cls2"].problems(); len(problems) != 1 || !strings.Contains(problems[0], "belongs to page") {
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
	t.Run("goes at once when it had announced nothing", func(t *testing.T) {
		s := begin(t)
		s.record.Pages, s.record.Generation = format.Digests{}, 101
		s.notified("announcing nothing", s.members(s.record), "web-0")
		s.members()
		if len(s.catalogs.list()) != 0 {
			t.Error("it is still a member")
		}
	})
	t.Run("does not come back with a late answer", func(t *testing.T) {
		s := begin(t)
		before := s.record
		s.record.Pages, s.record.Generation = format.Digests{}, 101
		s.members(s.record)
		s.members()
		for _, late := range []format.Member{before, s.record} {
			s.now = s.now.Add(time.Second)
			s.members(late)
			if len(s.catalogs.list()) != 0 {
				t.Errorf("generation %d is a member again", late.Generation)
			}
		}
		again := s.record
		again.Heartbeat++
		s.members(again)
		if len(s.catalogs.list()) != 1 {
			t.Error("back at once, and no member")
		}
		s.members()
		s.now = s.now.Add(reordered)
		s.members(before)
		if len(s.catalogs.list()) != 1 {
			t.Error("there for long, and no member")
		}
	})
	t.Run("goes when its catalog is empty too, time and again", func(t *testing.T) {
		s := begin(t)
		s.members()
		if got := s.catalogs.absent(s.now); !slices.Equal(got, []string{"cls2"}) {
			t.Fatalf("clusters %v have to be verified, want cls2", got)
		}
		changed := engine.Keys{}
		look := func(after time.Duration, hasPages bool) {
			s.now = s.now.Add(after)
			s.catalogs.verified(s.now, "cls2", hasPages, changed)
		}
		for range goneReads {
			look(600*time.Millisecond, false)
		}
		s.expect("empty for less long than reads may be late", theKey, "•")
		look(2*time.Second, true)
		for range goneReads - 1 {
			look(time.Second, false)
		}
		s.expect("empty less often than counts", theKey, "•")
		look(time.Second, false)
		s.notified("its catalog is empty", names(changed), "web-0")
		s.expect("its catalog is empty", theKey, "none")
	})
}

// pass is how cls1 looks every second, with its own heartbeat going on, while the record of cls2 is there or not. It
// returns the keys that were notified of.
func (s *story) pass(seconds int, there bool) []string {
	changed := engine.Keys{}
	for range seconds {
		s.now = s.now.Add(time.Second)
		instances := []api.Instance{s.ownRecord()}
		if there {
			instances = append(instances, s.record.Instance())
		}
		s.catalogs.members(s.now, instances, changed)
	}
	return names(changed)
}

// ownRecord is cls1's, with a heartbeat every 12 s.
func (s *story) ownRecord() api.Instance {
	return format.Member{
		ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Joined: s.record.Joined, Heartbeat: s.now.Unix() / 12,
	}.Instance()
}

// lives wants cls2 to be "live", "unheard" or "stale" in the View and among the members.
func (s *story) lives(what, want string) {
	s.t.Helper()
	got, view := "live", s.catalogs.look(theKey)
	if len(view.Stale) > 0 {
		got = "stale"
	} else if len(view.LivenessUnknown) > 0 {
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
			later := s.record.Instance()
			later.Attributes[format.AttrFormat], later.Attributes[format.AttrHeartbeat] = "9.0", strconv.Itoa(i/12)
			s.catalogs.members(s.now, []api.Instance{s.ownRecord(), later}, changed)
		}
		s.lives("it writes what we cannot read", "live")
		s.expect("it writes what we cannot read", theKey, "•")
	})
	t.Run("that leaves", func(t *testing.T) {
		s := begin(t)
		s.pass(132, true)
		s.record.Pages, s.record.Generation = format.Digests{}, 101
		s.pass(1, true)
		s.pass(1, false)
		if s.catalogs.liveness.IsStale("cls2") || len(s.catalogs.list()) != 1 {
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
	bad := s.record.Instance()
	bad.Attributes[format.AttrPages] = "garbage"
	outsider := api.Instance{ID: "Not_A_Cluster", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"}}
	unknown := api.Instance{ID: "cls3", Attributes: map[string]string{}}
	changed := engine.Keys{}
	s.catalogs.members(s.now, []api.Instance{bad, outsider, unknown}, changed)
	s.notified("bad records", names(changed))
	view := s.catalogs.look(theKey)
	if len(view.Exports) != 1 || !slices.Equal(view.Unknown, []string{"cls3"}) {
		t.Errorf("%d exports and unknown clusters %v, want cls2's export as before and cls3 unknown", len(view.Exports), view.Unknown)
	}
	for _, m := range s.catalogs.list() {
		if len(m.Problems) == 0 {
			t.Errorf("no problem is reported of %s", m.ClusterID)
		}
	}
}

// TestClockSetBack is a cluster whose records become older than they were, for good.
func TestClockSetBack(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	s.members(s.record)
	s.read()
	s.publish(50, thePage, web(2))
	for range 31 {
		s.record.Heartbeat++
		s.members(s.record)
		s.read()
		s.now = s.now.Add(time.Second)
	}
	s.expect("after half a minute", theKey, "••")
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

// TestAudit has this cluster's own pages in every state that the previous process can leave them in.
func TestAudit(t *testing.T) {
	s := newStory(t)
	c := s.catalogs
	own := func(generation int64, page int, exports ...mcs.Export) (string, []api.Instance) {
		digest := s.write(generation, page, exports...)
		return digest, s.pages[page]
	}
	other := webKey(1)
	for i := 1; format.PageOf(other) == thePage; i++ {
		other = webKey(i)
	}
	r := format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Joined: s.now, Generation: 100}
	changed := engine.Keys{}

	// Announced and there; written and not announced; left of what was withdrawn.
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
	c.members(s.now, []api.Instance{r.Instance()}, changed)
	c.audit(s.now, slices.Concat(first, ahead, left), changed)
	shown := c.own()
	for page, want := range map[int]int{thePage: 1, format.PageOf(other): 1, leftPage: 0} {
		p := &shown.pages[page]
		if !p.read || len(p.exports) != want || p.stored != 1 {
			t.Errorf("page %d: read %v, %d exports, %d parts in the store; want read, %d and 1", page, p.read, len(p.exports), p.stored, want)
		}
	}
	// Another writer removes a page.
	c.audit(s.now, slices.Concat(ahead, left), changed)
	if got := shown.wanted(s.now); !slices.Equal(got, []int{thePage}) {
		t.Errorf("pages %v have to be read again, want %d", got, thePage)
	}
	if len(shown.pages[thePage].exports) != 1 {
		t.Error("what is known of the removed page is gone")
	}
}

// TestUnheardWithKnownCatalog: that a cluster has a catalog is known before the members are read. Its record, at first sight, is
// no heartbeat all the same.
func TestUnheardWithKnownCatalog(t *testing.T) {
	s := newStory(t)
	s.catalogs.suspect(Location{Catalogs: map[string]api.Service{"cls2": {}}})
	s.publish(101, thePage, webExport("cls2", 0, 2))
	s.pass(1, true)
	s.read()
	s.lives("at first sight", "unheard")
	s.record.Heartbeat++
	s.pass(1, true)
	s.lives("with a heartbeat", "live")
}

// TestClockSetBackLowersPageGenerations: when the record of a cluster whose clock was set back counts, the generations of its pages no longer exceed it, so
// that its next changes are read.
func TestClockSetBackLowersPageGenerations(t *testing.T) {
	s := newStory(t)
	s.publish(1000, thePage, web(1))
	s.members(s.record)
	s.read()
	s.expect("before", theKey, "•")
	back := s.record
	back.Generation, back.Heartbeat = 500, 1
	s.members(back) // taken for a late read at first
	s.now = s.now.Add(reordered - time.Second)
	s.record.Generation = 1000
	s.write(1000, thePage, web(1))
	s.catalogs.page(s.now, "cls2", thePage, s.pages[thePage], engine.Keys{}) // read once more meanwhile
	s.now = s.now.Add(2 * time.Second)
	s.record = back
	s.publish(501, thePage, web(2))
	s.members(s.record)
	s.wanted("after the clock was set back", thePage)
	s.read()
	s.expect("after the clock was set back", theKey, "••")
}

// TestPageAheadForEver has a page that was read before it was announced, and never is: the next life's clock is behind.
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
			if tt.there {
				s.publish(101, thePage, tt.announced)
			}
			s.members(s.record)
			s.read()
			s.expect("a record that may be late", theKey, "••")
			s.now = s.now.Add(reordered)
			s.record.Heartbeat++
			s.members(s.record)
			s.read()
			s.expect("a record that goes on", theKey, tt.want)
			s.wanted("everything read")
		})
	}
}

// TestPageAheadIsReadSeldom has a page for ever ahead of the record: it is not read at each poll.
func TestPageAheadIsReadSeldom(t *testing.T) {
	s := newStory(t)
	s.publish(100, thePage, web(1))
	before := s.record
	s.write(500, thePage, web(2))
	s.members(before)
	s.read()
	reads := 0
	for range 90 {
		s.now = s.now.Add(time.Second)
		reads += len(s.catalogs.clusters["cls2"].wanted(s.now))
		s.read()
	}
	if reads != 3 {
		t.Errorf("the page was read %d times in 90 s, want 3", reads)
	}
	s.expect("the later page", theKey, "••")
}
