package state

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestUnreadablePageIsAbandoned checks that a page of the previous process is given up only after
// reads that show no whole page, and not after requests that failed.
func TestUnreadablePageIsAbandoned(t *testing.T) {
	exp := webExport("cls1", 0, 1)
	page := format.PageOf(exp.Key)
	w, err := EncodePage(cls1, signerOf(cls1.UID), page, 100, holding(exp))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		read func(s *State, now time.Time)
		want bool
	}{
		"requests fail": {func(s *State, now time.Time) {
			s.Reads.ObserveUnreadablePages(now, "cls1", []int{page}, errors.New("throttled"))
		}, false},
		"reads show half of the page": {func(s *State, now time.Time) { s.Reads.ObservePage(now, "cls1", page, nil) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.claim.state = Held
			announced := format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Key: signerOf("uid-1").Key(), Generation: 100, Heartbeat: 1}
			announced.Pages[page] = w.digest
			now := time.Now()
			own := s.shown()
			own.record, own.hasRecord = announced, true
			s.claim.lastRead = now
			for range eagerRetries + 2 {
				now = now.Add(time.Minute)
				tt.read(s, now)
			}
			changed := engine.Keys{}
			s.Reads.adoptPages(now, changed)
			if got := s.outbox.isAdopted(page); got != tt.want {
				t.Errorf("abandoned: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestPageReadResolvesLookups checks that a read of a page resolves the pending lookups of the
// page's keys, and looks at no others.
func TestPageReadResolvesLookups(t *testing.T) {
	exp, other := webExport("cls2", 0, 1), webKey(8) // of different pages
	page := format.PageOf(exp.Key)
	w, err := EncodePage(cls2, signerOf(cls2.UID), page, 100, holding(exp))
	if err != nil {
		t.Fatal(err)
	}
	s := New(testConfig())
	announced := format.Member{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signerOf("uid-2").Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1}
	announced.Pages[page], announced.Pages[format.PageOf(other)] = w.digest, "AAAAAAAAAAB"
	show(s, announced)
	absent := webKey(0)
	for i := 1; format.PageOf(absent) != page || absent == exp.Key; i++ {
		absent = webKey(i)
	}
	for _, key := range []mcs.Key{absent, other} {
		if view, err := s.Lookup(key, nil); err != nil || len(view.In(registry.Unknown)) != 1 {
			t.Fatalf("lookup of %s: %v, %v; want one unknown cluster", key, view, err)
		}
	}
	changed := s.Reads.ObservePage(time.Now(), "cls2", page, w.Instances)
	if _, ok := changed[absent]; !ok || len(changed) != 2 {
		t.Errorf("changed are %v, want %s and %s", changed, exp.Key, absent)
	}
	if s.asked[format.PageOf(other)].Len() != 1 {
		t.Error("the lookup of a key of another page is not pending any more")
	}
}

// TestSetImports_WaitsForHeartbeat checks that a report of imports makes no write of the record
// due, and that the next write has it.
func TestSetImports_WaitsForHeartbeat(t *testing.T) {
	s := New(testConfig())
	now := time.Now()
	s.claim.state, s.claim.isFirst, s.ours = Held, true, format.Member{ClusterID: "cls1", Imports: "1AAAA"}
	s.Writes.ObserveRecordWrite(now, nil)
	heartbeat := now.Add(s.cfg.HeartbeatInterval)
	report := mcs.NewImportReport(map[string][]mcs.Key{"cls2": {webKey(0)}}, nil)
	s.SetImports(report)
	if at, ok := s.Writes.NextRecord(now); !ok || !at.Equal(heartbeat) {
		t.Errorf("the next record is due at %v (%t), want the heartbeat at %v", at, ok, heartbeat)
	}
	if _, _, due := s.Writes.RecordToWrite(heartbeat.Add(-time.Second)); due {
		t.Error("a record is due before the heartbeat")
	}
	if ours, _, due := s.Writes.RecordToWrite(heartbeat); !due || ours.Imports != report {
		t.Errorf("the heartbeat (due: %t) has report %q, want %q", due, ours.Imports, report)
	}
}

// TestHeartbeatInterval_OutlastsYoungClaim: a clone whose heartbeats always follow those of the
// original must read one of these before it overwrites it, however rarely the members are polled.
// Its heartbeats come often enough that no cluster takes it for stale.
func TestHeartbeatInterval_OutlastsYoungClaim(t *testing.T) {
	for _, tt := range []struct{ poll, longestHeartbeat, want time.Duration }{
		{time.Second, 0, 24 * time.Second}, {5 * time.Second, 0, 24 * time.Second}, {10 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 0, time.Minute}, {2 * time.Minute, 0, time.Minute},
		// a clone may write at the longest interval
		{time.Second, 24 * time.Second, 45 * time.Second},
	} {
		cfg := testConfig()
		cfg.PollInterval, cfg.LongestHeartbeatInterval = tt.poll, tt.longestHeartbeat
		s := New(cfg)
		now := time.Now()
		s.claim.state = Acquiring
		s.claim.acquire(now, format.Member{})
		s.Writes.ObserveRecordWrite(now, nil)
		if at, ok := s.Writes.NextRecord(now); !ok || at.Sub(now) != tt.want {
			t.Errorf("with polls every %v the next heartbeat is due after %v (%t), want %v", tt.poll, at.Sub(now), ok, tt.want)
		}
	}
}

// TestRecordToWrite_KeepsReport checks that a process keeps the report of the previous one until it
// has its own.
func TestRecordToWrite_KeepsReport(t *testing.T) {
	s := New(testConfig())
	now := time.Now()
	s.claim.state, s.ours = Held, format.Member{ClusterID: "cls1", Imports: "1AAAA"}
	if ours, _, due := s.Writes.RecordToWrite(now); !due || ours.Imports != "1AAAA" {
		t.Errorf("the record (due: %t) has report %q, want that of the previous process", due, ours.Imports)
	}
}

// TestLeavingRecordIsLaterThanPages checks that the last record is later than pages that were
// written and not announced, also if the clock was set back since.
func TestLeavingRecordIsLaterThanPages(t *testing.T) {
	s := New(testConfig())
	ahead := time.Now().Add(time.Hour).UnixMilli()
	s.outbox.generation = ahead
	if record := s.Writes.LeavingRecord(); record.Generation <= ahead {
		t.Errorf("the last record has generation %d, the pages have %d", record.Generation, ahead)
	}
}

// TestRecordToWrite_ClaimsAgain has a cluster claim its ID again after another process has had it
// for hours: its heartbeats continue after that process's and are not ahead of the clock.
func TestRecordToWrite_ClaimsAgain(t *testing.T) {
	cfg := testConfig()
	wall := time.Now()
	cfg.WallClock = func() time.Time { return wall }
	s := New(cfg)
	s.claim.state = Held
	if _, _, due := s.Writes.RecordToWrite(wall); !due {
		t.Fatal("no record is due")
	}
	s.Writes.recorded = wall
	wall = wall.Add(3 * time.Hour)
	other := s.ours
	other.Process, other.Heartbeat = "1-clone", wall.UnixMilli()
	s.Reads.prepareRecord(&other)
	record, _, _ := s.Writes.RecordToWrite(wall)
	if ahead := time.Duration(record.Heartbeat-wall.UnixMilli()) * time.Millisecond; ahead <= 0 || ahead > time.Second {
		t.Errorf("the heartbeat is %v ahead of the clock, want a millisecond", ahead)
	}
}

// TestRecordToWrite_ClaimsAgainAfterWipe has a cluster that gave way to another record claim its ID
// again after the namespace was wiped. Other clusters import its exports: it announces no page as
// empty before the page is written.
func TestRecordToWrite_ClaimsAgainAfterWipe(t *testing.T) {
	cfg := testConfig()
	cfg.Intervals = Intervals{}
	s := New(cfg)
	exp := webExport("cls1", 0, 1)
	s.Writes.setDesired(exp.Key, &exp)
	s.claim.hasHeld = true
	s.Reads.ObserveClaim(nil, engine.Keys{})
	s.Reads.ObserveClaim(&s.ours, engine.Keys{})
	if s.claim.state != Held {
		t.Fatalf("the claim is in state %v, want Held", s.claim.state)
	}
	record, _, due := s.Writes.RecordToWrite(time.Now())
	if !due {
		t.Fatal("no record is due")
	}
	if got := record.Pages[format.PageOf(exp.Key)]; got != format.UnwrittenDigest {
		t.Errorf("the page is announced as %q before it is written, want %q", got, format.UnwrittenDigest)
	}
}

// TestLookup_WaitsForProofOfKeys checks that lookups have no answer until the catalog of a cluster
// whose key is new was read: with several registries, what that cluster has left in another one
// would be imported meanwhile. A catalog that cannot be read delays them once.
func TestLookup_WaitsForProofOfKeys(t *testing.T) {
	exp := webExport("cls2", 0, 1)
	signer := signerOf(cls2.UID)
	record := format.Member{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signer.Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1, Process: "1-cls2"}
	page, err := EncodePage(cls2, signer, format.PageOf(exp.Key), 100, holding(exp))
	if err != nil {
		t.Fatal(err)
	}
	record.Pages[format.PageOf(exp.Key)] = page.digest
	for name, tt := range map[string]struct {
		read    func(s *State, now time.Time) engine.Keys
		members int
	}{
		"the catalog is read": {func(s *State, now time.Time) engine.Keys {
			return s.Reads.ObserveCatalog(now, "cls2", append(page.Instances, format.CopyOf(record.Instance(signer))))
		}, 1},
		"the catalog cannot be read": {func(s *State, now time.Time) engine.Keys {
			s.Reads.ObserveUnreadableCatalog(now, "cls2")
			return engine.Keys{}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.Reads.ObserveMembers([]api.Instance{record.Instance(signer)}, engine.Keys{})
			if _, err := s.Lookup(exp.Key, nil); !errors.Is(err, registry.ErrNotSynced) {
				t.Errorf("before the catalog is read: %v, want ErrNotSynced", err)
			}
			if _, err := s.ListMembers(); !errors.Is(err, registry.ErrNotSynced) {
				t.Errorf("members before the catalog is read: %v, want ErrNotSynced", err)
			}
			changed := tt.read(s, time.Now())
			s.AddResolved(changed)
			if _, ok := changed[exp.Key]; !ok {
				t.Error("the key is not notified")
			}
			view, err := s.Lookup(exp.Key, nil)
			if err != nil || len(view.Exports()) != tt.members {
				t.Errorf("view %+v, error %v; want %d exports", view, err, tt.members)
			}
			if members, err := s.ListMembers(); err != nil || len(members) != tt.members || tt.members == 1 && members[0].Key != signer.Key().String() {
				t.Errorf("members %+v, error %v; want %d", members, err, tt.members)
			}
		})
	}
}

// leaveOut leaves an export out of its page.
func leaveOut(s *State, key mcs.Key, reason error) {
	s.outbox.adopt(format.PageOf(key), &storedPage{read: true})
	for d := range s.outbox.state.Drafts(time.Now()) {
		s.outbox.state.Keep(d, map[mcs.Key]error{key: reason})
	}
}

// TestPublicationReason checks which reason a pending export has: its own before the one of all
// writes. An export that is shown as it is has none.
func TestPublicationReason(t *testing.T) {
	exp := webExport("cls1", 0, 1)
	page := format.PageOf(exp.Key)
	tooLarge, writing, reading := errors.New("too large"), errors.New("writing fails"), errors.New("reading fails")
	for name, tt := range map[string]struct {
		set  func(s *State)
		want registry.PublishState
		err  error
	}{
		"nothing fails":                     {func(*State) {}, registry.Pending, nil},
		"writing fails":                     {func(s *State) { s.writeProblem.Set(writing) }, registry.Pending, writing},
		"reading fails":                     {func(s *State) { s.readProblem.Set(reading) }, registry.Pending, reading},
		"both fail":                         {func(s *State) { s.readProblem.Set(reading); s.writeProblem.Set(writing) }, registry.Pending, writing},
		"it is too large and writing fails": {func(s *State) { leaveOut(s, exp.Key, tooLarge); s.writeProblem.Set(writing) }, registry.Pending, tooLarge},
		"it is shown and writing fails": {func(s *State) {
			s.writeProblem.Set(writing)
			own := s.shown()
			own.hasRecord, own.record.Pages[page] = true, "digest"
			own.pages[page] = storedPage{read: true, digest: "digest", exports: map[mcs.Key]mcs.Export{exp.Key: registry.Published(exp)}}
		}, registry.Exported, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.catalogs.synced = true
			s.Writes.setDesired(exp.Key, &exp)
			tt.set(s)
			view, err := s.Lookup(exp.Key, nil)
			if err != nil {
				t.Fatal(err)
			}
			if view.Local.State != tt.want || !errors.Is(view.Local.Err, tt.err) || (view.Local.Err == nil) != (tt.err == nil) {
				t.Errorf("state %v, %v; want %v, %v", view.Local.State, view.Local.Err, tt.want, tt.err)
			}
		})
	}
}

// TestLookup_ReadsIgnoredExportAtOnce checks that an export which was ignored is read at once when
// services are imported into its namespace, and not at the next poll.
func TestLookup_ReadsIgnoredExportAtOnce(t *testing.T) {
	key := webKey(0)
	isWanted := false
	cfg := testConfig()
	cfg.Wanted = func(string) bool { return isWanted }
	s := New(cfg)
	page := format.PageOf(key)
	w, err := EncodePage(cls2, signerOf(cls2.UID), page, 100, holding(webExport("cls2", 0, 1)))
	if err != nil {
		t.Fatal(err)
	}
	announced := format.Member{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signerOf("uid-2").Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1}
	announced.Pages[page] = w.digest
	show(s, announced)
	s.Reads.ObservePage(time.Now(), "cls2", page, w.Instances)
	isSet := func() bool {
		t.Helper()
		if view, err := s.Lookup(key, nil); err != nil || len(view.In(registry.Ignored)) != 1 {
			t.Fatalf("view %+v, %v; want an ignored export", view, err)
		}
		select {
		case <-s.ReadSignal:
			return true
		default:
			return false
		}
	}
	if isSet() {
		t.Error("the export is read although its namespace is not imported")
	}
	isWanted = true
	if !isSet() {
		t.Error("the export is not read at once")
	}
	if isSet() {
		t.Error("each lookup makes it be read")
	}
}

// TestPrepareRecord_KeepsJoined checks that a cluster joins again with the time when it joined
// first, by which the older one of two clusters with one ID wins.
func TestPrepareRecord_KeepsJoined(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	first, later := now.Add(-48*time.Hour), now.Add(-24*time.Hour)
	record := func(uid string, joined time.Time, farewell bool) *format.Member {
		return &format.Member{
			ClusterID: "cls1", ClusterSetID: "set1", UID: uid, Key: signerOf(uid).Key(), Joined: joined, Heartbeat: 1, Process: "0-before", Farewell: farewell,
		}
	}
	for name, tt := range map[string]struct {
		saved      time.Time
		copy, main *format.Member
		want       time.Time
	}{
		"it never joined":                       {want: now},
		"its record":                            {main: record("uid-1", first, false), want: first},
		"its record in the catalog":             {copy: record("uid-1", first, false), want: first},
		"saved":                                 {saved: first, want: first},
		"saved, and a record that began anew":   {saved: first, main: record("uid-1", later, false), want: first},
		"saved later than the record":           {saved: later, main: record("uid-1", first, false), want: first},
		"it has left":                           {main: record("uid-1", first, true), want: now},
		"the record is another cluster's":       {main: record("uid-9", first, false), want: now},
		"another cluster's, and its own before": {copy: record("uid-1", first, false), main: record("uid-9", later, false), want: first},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.WallClock, cfg.Joined = func() time.Time { return now }, tt.saved
			s := New(cfg)
			s.Reads.ownCopy = tt.copy
			s.Reads.prepareRecord(tt.main)
			if !s.ours.Joined.Equal(tt.want) {
				t.Errorf("joined %v, want %v", s.ours.Joined, tt.want)
			}
		})
	}
}

// TestNewClusterIsReadUntilProven checks that a cluster which is new stays known while service
// members shows it: its catalog has to prove its key.
func TestNewClusterIsReadUntilProven(t *testing.T) {
	s := New(testConfig())
	record := format.Member{
		ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signerOf("uid-2").Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1, Process: "1-cls2",
	}
	isRead := func() bool {
		for _, read := range staleReads(s) {
			if read.ClusterID == "cls2" && read.Record {
				return true
			}
		}
		return false
	}
	instances := []api.Instance{record.Instance(signerOf("uid-2"))}
	for range 2 {
		s.Reads.ObserveMembers(instances, engine.Keys{})
		if !isRead() {
			t.Error("its catalog is not read")
		}
	}
	s.Reads.ObserveMembers(nil, engine.Keys{})
	if s.catalogs.clusters["cls2"] != nil {
		t.Error("it is known although its record is gone, and no other one was believed")
	}
}

// TestNewClusterIsReadAfterOldRecord: service members shows an old record of a cluster whose
// catalog does not exist, so that its catalog is read every 8 minutes. When the cluster joins, its
// catalog is read at once, and not for each of its heartbeats. A member that writes records of
// other processes again and again causes a bounded number of reads.
func TestNewClusterIsReadAfterOldRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(testConfig())
		signer := signerOf("uid-2")
		old := format.Member{
			ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2", Key: signer.Key(), Joined: time.Now(), Generation: 100, Heartbeat: 1, Process: "1-cls2",
		}
		// reads returns the number of reads of the catalog within a minute, in which the records
		// are of so many processes.
		reads := func(record format.Member, processes int) (n int) {
			for second := range 60 {
				record.Heartbeat++
				record.Process = fmt.Sprint(second%processes, record.Process[1:])
				s.Reads.ObserveMembers([]api.Instance{record.Instance(signer)}, engine.Keys{})
				for _, read := range staleReads(s) {
					if read.ClusterID == "cls2" && read.Record {
						s.Reads.ObserveRecordCopy(time.Now(), "cls2", nil)
						n++
					}
				}
				time.Sleep(time.Second)
			}
			return n
		}
		for range 30 {
			reads(old, 1)
		}
		joined := old
		joined.Process, joined.Heartbeat = "1-joined", 10_000
		if n := reads(joined, 1); n < eagerRetries || n > 10 {
			t.Errorf("%d reads of the catalog in the minute after the cluster joined, want %d to 10", n, eagerRetries)
		}
		time.Sleep(time.Hour)
		joined.Heartbeat = 20_000
		if n := reads(joined, 2); n < eagerRetries || n > 20 {
			t.Errorf("%d reads of the catalog in a minute in which the processes alternate, want %d to 20", n, eagerRetries)
		}
	})
}

// TestIsUnknown: clusters that have proved no key, or none since they left, share the reads of
// catalogs that a poll makes.
func TestIsUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		isPinned, hasLeft, hasRecord, isGone bool
		want                                 bool
	}{
		"no proof":                {want: true},
		"no proof, record gone":   {isGone: true, want: true},
		"known":                   {isPinned: true},
		"known, record read":      {isPinned: true, hasRecord: true},
		"known, record gone":      {isPinned: true, isGone: true},
		"has left":                {isPinned: true, hasLeft: true, want: true},
		"has left, record read":   {isPinned: true, hasLeft: true, hasRecord: true},
		"has left, record gone":   {isPinned: true, hasLeft: true, isGone: true},
		"record read, no pin yet": {hasRecord: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			if tt.isPinned {
				s.cfg.Keyring.Observe(trust.Record{
					Registry: s.cfg.ClientName, ClusterID: "cls2", UID: "uid-2", Key: signerOf("uid-2").Key(), At: trust.Time{Generation: 1, Heartbeat: 1}, Farewell: tt.hasLeft,
				})
			}
			if !tt.isGone {
				cluster := s.catalogs.cluster(time.Now(), "cls2")
				if tt.hasRecord {
					cluster.record = &format.Member{}
				}
			}
			if got := s.catalogs.isUnknown("cls2"); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

// Without peer notifications, without the claim, or with something that the registry does not show
// yet, this cluster polls often: no notification announces it.
func TestPeers_IsUrgentWithoutNotifications(t *testing.T) {
	contact := peernotify.Contact{Address: netip.MustParseAddrPort("10.0.0.1:8479"), Key: strings.Repeat("A", 43)}
	for name, tt := range map[string]struct {
		change func(*State)
		want   bool
	}{
		"all is in sync": {func(*State) {}, false},
		"no contact":     {func(s *State) { s.SetContact(peernotify.Contact{}) }, true},
		"no claim":       {func(s *State) { s.claim.state = Acquiring }, true},
		"a young claim":  {func(s *State) { s.claim.isFirst, s.claim.claimed = false, time.Now() }, true},
		"an unconfirmed page": {func(s *State) {
			s.outbox.adopt(7, &storedPage{read: true})
			s.outbox.confirm(time.Now(), &ownCatalog{})
		}, true},
		"a key to prove": {showUnproven, true},
		"a key that its catalog does not prove": {func(s *State) {
			showUnproven(s)
			for range eagerRetries + 1 {
				s.Reads.ObserveRecordCopy(time.Now(), "cls3", nil)
			}
		}, false},
		"a page to read": {func(s *State) {
			r := memberOf("cls2")
			r.Pages[7], r.Heartbeat = "AAAAAAAAAAB", 2
			show(s, r)
		}, true},
	} {
		s := New(testConfig())
		s.claim.state, s.claim.isFirst = Held, true
		show(s, memberOf("cls2"))
		s.SetContact(contact)
		tt.change(s)
		if _, urgent := s.Peers(time.Now()); urgent != tt.want {
			t.Errorf("%s: urgent: %t, want %t", name, urgent, tt.want)
		}
	}
}

// showUnproven makes s read the record of a cluster whose key it does not know.
func showUnproven(s *State) {
	r := memberOf("cls3")
	s.Reads.ObserveMembers([]api.Instance{memberOf("cls2").Instance(signerOf("uid-cls2")), r.Instance(signerOf(r.UID))}, engine.Keys{})
}

// Only live clusters get peer notifications, and only at addresses that this cluster may use.
func TestContactsAndPeers(t *testing.T) {
	at := func(address string) peernotify.Contact {
		return peernotify.Contact{Address: netip.MustParseAddrPort(address), Key: strings.Repeat("A", 43)}
	}
	cfg := testConfig()
	cfg.AllowsContact = func(address netip.Addr) bool { return address != netip.MustParseAddr("10.0.0.9") }
	s := New(cfg)
	var records []format.Member
	for id, address := range map[string]string{
		"cls2": "10.0.0.2:8479", "cls3": "10.0.0.3:8479", "cls4": "10.0.0.4:8479", "cls6": "", "cls7": "127.0.0.1:8479", "cls9": "10.0.0.9:8479",
	} {
		r := memberOf(id)
		if address != "" {
			r.Contact = at(address)
		}
		records = append(records, r)
	}
	show(s, records...)
	// cls3 leaves, and another user deletes the record of cls4
	records = slices.DeleteFunc(records, func(r format.Member) bool { return r.ClusterID == "cls4" })
	for i := range records {
		records[i].Heartbeat, records[i].Farewell = 2, records[i].ClusterID == "cls3"
	}
	show(s, records...)
	s.shown().record.Contact, s.shown().hasRecord = at("10.0.0.1:8479"), true
	for claim, want := range map[ClaimState][]string{Acquiring: {"cls2", "cls6", "cls7", "cls9"}, Held: {"cls1", "cls2", "cls6", "cls7", "cls9"}} {
		s.claim.state = claim
		var found []string
		peers, _ := s.Peers(time.Now())
		for _, peer := range peers {
			found = append(found, peer.ClusterID)
		}
		if slices.Sort(found); !slices.Equal(found, want) {
			t.Errorf("claim %v: peers %q, want %q", claim, found, want)
		}
		receivers := s.Receivers(at("10.0.0.1:8479"))
		if claim == Held && (len(receivers) != 1 || receivers[0].Contact != at("10.0.0.2:8479")) || claim != Held && len(receivers) > 0 {
			t.Errorf("claim %v: receivers %v, want cls2 while the ID is held", claim, receivers)
		}
	}
}
