package state

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// written returns the state of a cluster in a state of its claim that has written this record at a
// time.
func written(claim ClaimState, record format.Member, at time.Time) *State {
	s := New(testConfig())
	s.claim.state, s.claim.isFirst, s.ours = claim, true, record
	s.Writes.ObserveRecordWrite(at, nil)
	return s
}

// Changed properties and contacts are written at once, equal ones with the next heartbeat. A
// cluster that does not claim its ID writes no record.
func TestRecordToWrite_AfterChange(t *testing.T) {
	region, none := mcs.Properties{"region.example.com": "eu-central-1"}, mcs.Properties{}.Encode()
	contact := peernotify.Contact{Address: netip.MustParseAddrPort("10.0.0.1:8479"), Key: strings.Repeat("A", 43)}
	for name, tt := range map[string]struct {
		claim   ClaimState
		written format.Member
		change  func(*State)
		want    format.Member
		isDue   bool
	}{
		"properties":                      {claim: Held, change: func(s *State) { s.SetProperties(region) }, want: format.Member{Properties: region.Encode()}, isDue: true},
		"properties while it acquires":    {claim: Acquiring, change: func(s *State) { s.SetProperties(region) }, want: format.Member{Properties: region.Encode()}, isDue: true},
		"properties while it observes":    {claim: Observing, change: func(s *State) { s.SetProperties(region) }},
		"properties of the last process":  {claim: Held, written: format.Member{Properties: region.Encode()}, change: func(s *State) { s.SetProperties(region) }, want: format.Member{Properties: region.Encode()}},
		"no properties any more":          {claim: Held, written: format.Member{Properties: region.Encode()}, change: func(s *State) { s.SetProperties(region); s.SetProperties(nil) }, want: format.Member{Properties: none}, isDue: true},
		"no properties as before":         {claim: Held, written: format.Member{Properties: none}, change: func(s *State) { s.SetProperties(nil) }, want: format.Member{Properties: none}},
		"a contact":                       {claim: Held, change: func(s *State) { s.SetContact(contact) }, want: format.Member{Contact: contact}, isDue: true},
		"a contact while it observes":     {claim: Observing, change: func(s *State) { s.SetContact(contact) }, want: format.Member{Contact: contact}},
		"no contact any more":             {claim: Held, written: format.Member{Contact: contact}, change: func(s *State) { s.SetContact(peernotify.Contact{}) }, want: format.Member{Contact: contact}},
		"the last write of it failed":     {claim: Held, change: func(s *State) { s.Writes.ObserveRecordWrite(time.Now(), errors.New("throttled")) }, isDue: true},
		"the last write of a copy failed": {claim: Held, change: func(s *State) { s.Writes.ObserveCopyWrite(time.Now(), errors.New("throttled")) }, isDue: true},
		"its copy was written":            {claim: Held, change: func(s *State) { s.Writes.ObserveCopyWrite(time.Now(), nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			s := written(tt.claim, tt.written, now)
			s.announce = false
			tt.change(s)
			if s.ours.Properties != tt.want.Properties || s.ours.Contact != tt.want.Contact {
				t.Errorf("the record has properties %q and contact %v", s.ours.Properties, s.ours.Contact)
			}
			at, claims := s.Writes.NextRecord(now)
			if claims != (tt.claim != Observing) || claims && at.Equal(now) != tt.isDue {
				t.Errorf("the next record is due in %v (%t), want at once: %t", at.Sub(now), claims, tt.isDue)
			}
			record, _, due := s.Writes.RecordToWrite(now)
			if due != tt.isDue || due && (record.Properties != tt.want.Properties || record.Contact != tt.want.Contact) {
				t.Errorf("due: %t, record %+v", due, record)
			}
			if due {
				s.Writes.ObserveRecordWrite(now, nil)
				if _, _, again := s.Writes.RecordToWrite(now); again {
					t.Error("it is due a second time")
				}
			}
		})
	}
}

// A new process keeps the properties and the report of the previous one until it has its own, and
// takes nothing from the record of another cluster.
func TestPrepareRecord_KeepsProperties(t *testing.T) {
	before := mcs.Properties{"region.example.com": "eu-central-1"}.Encode()
	own := mcs.Properties{"region.example.com": "eu-west-1"}
	report := mcs.NewImportReport(map[string][]mcs.Key{"cls2": {webKey(0)}}, nil)
	contact := peernotify.Contact{Address: netip.MustParseAddrPort("10.0.0.1:8479"), Key: strings.Repeat("A", 43)}
	for name, tt := range map[string]struct {
		uid            string
		set            bool
		wantProperties string
		wantImports    mcs.ImportReport
	}{
		"of the previous process": {"uid-1", false, before, "1AAAA"},
		"its own":                 {"uid-1", true, own.Encode(), report},
		"of another cluster":      {"uid-9", false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Version = "1.2.3"
			s := New(cfg)
			s.SetContact(contact)
			if tt.set {
				s.SetProperties(own)
				s.SetImports(report)
			}
			s.Reads.prepareRecord(&format.Member{
				ClusterID: "cls1", UID: tt.uid, Key: signerOf(tt.uid).Key(), Properties: before, Imports: "1AAAA", Generation: 7, Heartbeat: 8, Process: "0-before",
			})
			want := format.Member{
				ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Version: "1.2.3", Key: signerOf("uid-1").Key(), Process: "1-own", Contact: contact,
				Properties: tt.wantProperties, Imports: tt.wantImports, Heartbeat: 8, Joined: s.ours.Joined,
			}
			if s.ours != want {
				t.Errorf("record %+v, want %+v", s.ours, want)
			}
		})
	}
}

// A record of the previous process may arrive late. The next records of this process are later than
// it, and have its own key.
func TestAdoptRecord(t *testing.T) {
	early, late := time.UnixMilli(1000), time.UnixMilli(2000)
	for name, tt := range map[string]struct{ own, adopted, want format.Member }{
		"later":              {format.Member{Generation: 1, Heartbeat: 1, Joined: late}, format.Member{Generation: 2, Heartbeat: 2, Joined: early, UID: "uid-1"}, format.Member{Generation: 2, Heartbeat: 2, Joined: early, UID: "uid-1"}},
		"earlier":            {format.Member{Generation: 3, Heartbeat: 3, Joined: late}, format.Member{Generation: 2, Heartbeat: 2, Joined: early}, format.Member{Generation: 3, Heartbeat: 3, Joined: early}},
		"without a time":     {format.Member{Joined: late}, format.Member{}, format.Member{Joined: late}},
		"by another process": {format.Member{}, format.Member{Process: "0-before", Key: signerOf("uid-9").Key(), Version: "1"}, format.Member{Version: "1"}},
	} {
		s := New(testConfig())
		s.ours = tt.own
		s.Writes.AdoptRecord(tt.adopted)
		tt.want.Key, tt.want.Process = signerOf("uid-1").Key(), "1-own"
		if s.ours != tt.want {
			t.Errorf("%s: %+v, want %+v", name, s.ours, tt.want)
		}
	}
}

// A page that may be torn is written at once, and so is a change that will be alone. Others are
// gathered, updates until the writes before them are paid, and all not for longer than AtMost.
func TestPagesDue(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	s := New(testConfig())
	s.cfg.Intervals.Gather, s.cfg.Intervals.Quiet, s.cfg.Intervals.AtMost = 10*time.Millisecond, 100*time.Millisecond, time.Second
	for name, tt := range map[string]struct {
		firstChange, lastChange, written, taken time.Duration // before now
		isLone, isUpdate                        bool
		unpaid                                  int // writes
		dirty, torn                             int
		want                                    time.Duration
	}{
		"one torn page":              {torn: 1},
		"a torn and a dirty page":    {torn: 1, dirty: 1},
		"the first change":           {written: time.Hour, dirty: 1, want: 10 * time.Millisecond},
		"a change after another":     {written: 500 * time.Millisecond, dirty: 1, want: 100 * time.Millisecond},
		"an update after another":    {written: 500 * time.Millisecond, isUpdate: true, dirty: 1, want: 10 * time.Millisecond},
		"one of many updates":        {written: 500 * time.Millisecond, isUpdate: true, unpaid: eagerBurst + 1, dirty: 1, want: 40 * time.Millisecond},
		"one of very many updates":   {written: 500 * time.Millisecond, isUpdate: true, unpaid: eagerBurst + 100, dirty: 1, want: 100 * time.Millisecond},
		"a lone change":              {written: time.Hour, taken: time.Hour, isLone: true, dirty: 1},
		"a lone change after others": {written: 110 * time.Millisecond, taken: 120 * time.Millisecond, isLone: true, dirty: 1},
		"a lone change too early":    {written: 80 * time.Millisecond, taken: 90 * time.Millisecond, isLone: true, dirty: 1, want: 100 * time.Millisecond},
		"not the only change":        {firstChange: 5 * time.Millisecond, written: time.Hour, taken: time.Hour, isLone: true, dirty: 1, want: 5 * time.Millisecond},
		"changes for a long time":    {firstChange: 950 * time.Millisecond, written: 960 * time.Millisecond, dirty: 1, want: 50 * time.Millisecond},
		"the last change was early":  {firstChange: 90 * time.Millisecond, lastChange: 60 * time.Millisecond, written: 500 * time.Millisecond, dirty: 1, want: 40 * time.Millisecond},
	} {
		s.Writes.firstChange, s.Writes.lastChange, s.Writes.pagesWritten = now.Add(-tt.firstChange), now.Add(-tt.lastChange), now.Add(-tt.written)
		s.Writes.pagesTaken, s.Writes.rhythm.expectsAlone, s.Writes.isUpdate = now.Add(-tt.taken), tt.isLone, tt.isUpdate
		s.Writes.eager = engine.NewPace[struct{}](eagerWrites, eagerBurst)
		s.Writes.eager.Charge(now, struct{}{}, tt.unpaid)
		if got := s.Writes.pagesDue(now, tt.dirty, tt.torn).Sub(now); got != tt.want {
			t.Errorf("%s: due in %v, want %v", name, got, tt.want)
		}
	}
}

// A forged record under this cluster's ID is logged, once a minute.
func TestObserveMembers_LogsRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged int
		cfg := testConfig()
		cfg.Logger = funcr.New(func(_, args string) {
			if strings.Contains(args, "Refused the member record under this cluster's ID") {
				logged++
			}
		}, funcr.Options{})
		s := New(cfg)
		s.claim.state, s.claim.isFirst = Held, true
		forged := []api.Instance{{ID: "cls1", Attributes: map[string]string{format.AttrClusterID: "cls1"}}}
		for range 61 {
			s.Reads.ObserveMembers(forged, engine.Keys{})
			time.Sleep(time.Second)
		}
		if logged != 2 {
			t.Errorf("the refusal is logged %d times in a minute, want 2", logged)
		}
	})
}

// A clone wrote a later record and ended before this cluster read it. Its copy in the catalog is
// the only trace: this cluster reads it before it replaces it, and the other clusters take none of
// the next records for replays.
func TestObserveMembers_ReadsCopyBeforeItIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(testConfig())
		s.cfg.Intervals.Audit = 2 * time.Minute
		s.claim.state, s.claim.isFirst, s.ours = Held, true, format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1", Key: signerOf("uid-1").Key(), Process: "1-own"}
		s.Reads.ObserveAudit(time.Now(), nil, nil, engine.Keys{})
		s.Writes.ObserveRecordWrite(time.Now(), nil)
		s.Writes.ObserveCopyWrite(time.Now(), nil)
		s.announce = false
		time.Sleep(time.Minute)
		s.Reads.ObserveMembers(nil, engine.Keys{})
		if _, copyDue, due := s.Writes.RecordToWrite(time.Now()); !due || copyDue {
			t.Errorf("the record was displaced: it is due: %t, with its copy: %t", due, copyDue)
		}
		if !s.Reads.IsAuditDue(time.Now(), nil) {
			t.Error("the own catalog is not read")
		}
		clone := s.ours
		clone.Process, clone.Heartbeat = "2-clone", time.Now().Add(5*time.Minute).UnixMilli()
		s.Reads.ObserveAudit(time.Now(), nil, []api.Instance{format.CopyOf(clone.Instance(signerOf("uid-1")))}, engine.Keys{})
		if ours, copyDue, due := s.Writes.RecordToWrite(time.Now()); !due || !copyDue || !ours.IsLaterThan(clone) {
			t.Errorf("the copy was read: the record is due: %t, with its copy: %t, later than that of the clone: %t", due, copyDue, ours.IsLaterThan(clone))
		}
	})
}
