package belief

import (
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestUnitsBeingWritten: a process that starts meets a record that does not decide a unit yet,
// because the process of that cluster starts too. What is imported from the unit stays unknown
// until a record decides it.
func TestUnitsBeingWritten(t *testing.T) {
	for name, starts := range map[string][]Event{
		"the first record":  nil,
		"the second record": {RecordRead{testRecord(key1, 20, 20)}},
		"the second record, after what the first one names, of a store that was set back": {
			RecordRead{testRecord(key1, 20, 20)}, UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 20)}},
		},
	} {
		s := started(pinOf(10))
		for _, e := range starts {
			s.Step(e, began)
		}
		for at := range int64(3) {
			r := testRecord(key1, 30+at, 0)
			r.Manifest = ByUnit{Unwritten: map[UnitName]bool{"web": true}}
			if a := s.Step(RecordRead{r}, began); len(a.ReadUnits) > 0 {
				t.Errorf("%s: reads %v, which is being written", name, a.ReadUnits)
			}
			if got := s.View(web, "cls").Clusters["cls"].State; got != registry.Unknown {
				t.Errorf("%s, record %d: the export is %v, want unknown", name, at, got)
			}
		}
		s.Step(RecordRead{testRecord(key1, 40, 0)}, began)
		if v := s.View(web, "cls"); len(v.Clusters) > 0 {
			t.Errorf("%s: the export is %+v after a record that does not have it", name, v)
		}
	}
}

// TestFirstFarewellIsProven: a process that starts meets a farewell that another member has written
// again. The own place of the cluster, which has returned, shows a later record.
func TestFirstFarewellIsProven(t *testing.T) {
	s := started(pinOf(10))
	if a := s.Step(RecordRead{farewell(key1, 20)}, began); !slices.Equal(a.ReadProofs, []string{"cls"}) {
		t.Errorf("reads %v, want the proof", a.ReadProofs)
	}
	s.Step(ProofRead{Cluster: "cls", Record: inPlace(testRecord(key1, 30, 30), SealUnknown)}, began)
	s.Step(UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 30)}}, began)
	now := silence(s, began)
	if got := s.View(web, "cls").Clusters["cls"].State; got != registry.Exports || s.StateOf("cls") != Current {
		t.Errorf("the export is %v, and the state %v", got, s.StateOf("cls"))
	}
	s.Step(RecordRead{farewell(key1, 20)}, now)
	if p := s.ProblemOf("cls"); p.Kind != Earlier {
		t.Errorf("the farewell has problem %v", p)
	}
}

// TestFarewellReadByAnother: a cluster that is renamed reads under two IDs with one keyring. The
// reader that is second to read a farewell finds it in the pin, and ends the exports too.
func TestFarewellReadByAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		shown Record
		want  registry.ClusterState
	}{
		"the same farewell":  {farewell(key1, 40), registry.None},
		"an earlier one":     {farewell(key1, 35), registry.Exports},
		"a record of before": {testRecord(key1, 30, 20), registry.Exports},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := reached(t, Current)
			s.cfg.Keyring.Observe(trust.Record{Registry: "store", ClusterID: "cls", Key: key1, At: at(40), Farewell: true})
			apply(s, RecordRead{tt.shown}, now)
			apply(s, pinSaved{}, now)
			if got := s.View(web, "cls").Clusters["cls"].State; got != tt.want {
				t.Errorf("the export is %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRecordsOfTwoPlaces: the record in the own place and that in the shared one are written at
// different times. The later one of the first two says nothing about the present: it ends no
// imports, and is no heartbeat.
func TestRecordsOfTwoPlaces(t *testing.T) {
	s := started(pinOf(5))
	s.Step(RecordRead{*inPlace(testRecord(key1, 10, 0), SealUnknown)}, began)
	s.Step(Tick{Heartbeat: true}, began)
	s.Step(RecordRead{testRecord(key1, 20, 0)}, began)
	s.Step(Tick{Heartbeat: true}, began)
	if got := s.View(web, "cls").Clusters["cls"]; got.State != registry.Unknown || got.Liveness != registry.Undecided {
		t.Errorf("after the first record of each place the export is %+v", got)
	}
	s.Step(RecordRead{testRecord(key1, 30, 0)}, began)
	s.Step(Tick{Heartbeat: true}, began)
	if v := s.View(web, "cls"); len(v.Clusters) > 0 || s.LivenessOf("cls") != registry.Live {
		t.Errorf("after a second record in one place the export is %+v, the liveness %v", v, s.LivenessOf("cls"))
	}
}

// TestWaitingRecordIsProven: the own place shows an earlier record with the key of the one that
// waits. Both count.
func TestWaitingRecordIsProven(t *testing.T) {
	s := started(nil)
	s.Step(RecordRead{testRecord(key1, 30, 30)}, began)
	if !s.IsUnproven("cls") || !s.IsProving("cls") || !s.NeedsProof("cls") {
		t.Error("its record does not wait for the proof")
	}
	s.Step(ProofRead{Cluster: "cls", Record: inPlace(testRecord(key1, 20, 0), SealUnknown)}, began)
	if r := s.RecordOf("cls"); r == nil || r.At != at(30) {
		t.Errorf("the record is %+v, want the one that has waited", r)
	}
	if isDue, units, _ := s.DueOf("cls", began); isDue || !slices.Equal(units, []UnitName{"web"}) || !s.IsBehind("cls") {
		t.Errorf("proof due %t, units %v, behind %t; want its unit to be read", isDue, units, s.IsBehind("cls"))
	}
}

// TestTwoProcessesAlternate: two processes with one key and different clocks write by turns. The
// record that is later by its heartbeat decides, although its generation is an earlier one.
func TestTwoProcessesAlternate(t *testing.T) {
	s := started(pinOf(5))
	late := testRecord(key1, 20, 100) // its clock is ahead
	late.At.Generation = 100
	s.Step(RecordRead{late}, began)
	s.Step(UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 100)}}, began)
	next := testRecord(key1, 30, 50)
	next.At.Generation = 50
	s.Step(RecordRead{next}, began)
	s.Step(UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 50)}}, began)
	if got := s.Versions("cls")["web"]; got.Generation != 50 {
		t.Errorf("generation %d is imported, want the one that the later record names", got.Generation)
	}
}

// TestUnusableRecordIsHeartbeat: a cluster of a later version writes records that cannot be used.
// It is alive.
func TestUnusableRecordIsHeartbeat(t *testing.T) {
	for isHeartbeat, want := range map[bool]registry.LivenessState{true: registry.Live, false: registry.Stale} {
		s, now := reached(t, Current)
		for range 4 * testStaleAfter / (10 * time.Second) {
			now = now.Add(10 * time.Second)
			s.Step(RecordRefused{Cluster: "cls", Reason: "a later version", IsHeartbeat: isHeartbeat}, now)
			s.Step(Tick{Heartbeat: true}, now)
		}
		if got := s.LivenessOf("cls"); got != want {
			t.Errorf("heartbeats %t: the cluster is %v, want %v", isHeartbeat, got, want)
		}
	}
}

// TestReadAgain: a unit that was read is read again because more of it can be used now, also one of
// which a later version is skipped.
func TestReadAgain(t *testing.T) {
	ignored := testUnit(key1, 20)
	ignored.Content = Content{Ignored: map[mcs.Key]bool{web: true}}
	for name, skipped := range map[string]bool{"shown": false, "skipped": true} {
		s := started(pinOf(10))
		s.Step(Namespaces{Used: []string{}}, began)
		s.Step(RecordRead{testRecord(key1, 20, 20)}, began)
		s.Step(UnitsRead{Cluster: "cls", Units: []Unit{ignored}}, began)
		if skipped {
			r := testRecord(key1, 30, 30)
			m, _ := r.Manifest.(ByUnit)
			m.Codes = map[UnitName][]string{"web": {"other"}}
			r.Manifest = m
			s.Step(RecordRead{r}, began)
		}
		if _, state := s.UnitOf("cls", "web"); (state == Skipped) != skipped {
			t.Fatalf("%s: the unit is %v", name, state)
		}
		a := s.Step(ReadAgain{Cluster: "cls", Units: []UnitName{"web", "unknown"}}, began)
		if len(a.ReadUnits) != 1 || !slices.Equal(a.ReadUnits[0].Units, []UnitName{"web"}) {
			t.Errorf("%s: reads %v, want the unit", name, a.ReadUnits)
		}
	}
}

// TestReadsOfAnEarlierVersionPause: a store shows the version that was read before, and not the one
// that is named. It is read again, with growing pauses.
func TestReadsOfAnEarlierVersionPause(t *testing.T) {
	s, now := reached(t, Current)
	s.Step(RecordRead{testRecord(key1, 40, 40)}, now)
	reads := 0
	for range 300 {
		now = now.Add(time.Second)
		if _, units, _ := s.DueOf("cls", now); len(units) > 0 {
			reads++
			s.Step(UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 20)}}, now)
		}
	}
	if reads < 10 || reads > 20 {
		t.Errorf("%d reads in five minutes, want 10 to 20", reads)
	}
}

// TestAbsentClusterIsReadSeldom: any member can write records of clusters that do not exist. Their
// own places are read seldom, and those of a cluster whose record is refused are not.
func TestAbsentClusterIsReadSeldom(t *testing.T) {
	reads := func(s *State, event Event) (n int) {
		for now := began; now.Before(began.Add(time.Hour)); now = now.Add(time.Second) {
			s.Step(event, now)
			if isDue, _, _ := s.DueOf("cls", now); isDue {
				s.Step(ProofRead{Cluster: "cls"}, now)
				n++
			}
		}
		return n
	}
	if n := reads(started(nil), RecordRead{testRecord(key1, 20, 20)}); n < 8 || n > 25 {
		t.Errorf("%d reads in an hour of a cluster that does not exist, want one in 8 minutes", n)
	}
	s, _ := reached(t, Current)
	if n := reads(s, RecordRefused{Cluster: "cls"}); n < 110 || n > 130 {
		t.Errorf("%d reads in an hour of a cluster whose record is refused, want one in 30 s", n)
	}
}

// TestSkipsUnusedNamespaces: a changed unit is read if it has or had exports of a namespace that is
// used, or may have, and not otherwise.
func TestSkipsUnusedNamespaces(t *testing.T) {
	exported := Content{Exports: map[mcs.Key]*mcs.Export{web: {Key: web}}}
	for name, tt := range map[string]struct {
		state     UnitState
		before    Content
		announced []string // nil if the record does not name them
		used      []string // nil is all
		again     bool
		want      bool
	}{
		"a namespace that is used":                {state: Shown, announced: []string{"shop"}, used: []string{"demo", "shop"}, want: true},
		"another namespace":                       {state: Shown, announced: []string{"team-1"}, used: []string{"demo", "shop"}},
		"all namespaces are used":                 {state: Shown, announced: []string{"team-1"}, want: true},
		"the record does not name them":           {state: Shown, used: []string{"demo"}, want: true},
		"no namespace is used":                    {state: Shown, announced: []string{"team-1"}, used: []string{}},
		"never read":                              {state: Unread, announced: []string{"team-1"}, used: []string{"demo"}},
		"it had an export that is used":           {state: Shown, before: exported, announced: []string{"team-1"}, used: []string{"demo"}, want: true},
		"it had an export that could not be used": {state: Shown, before: Content{Unusable: map[mcs.Key]bool{web: true}}, announced: []string{"team-1"}, used: []string{"demo"}, want: true},
		"it had exports without a name":           {state: Shown, before: Content{Unnamed: true}, announced: []string{"team-1"}, used: []string{"demo"}, want: true},
		"it had an export that was ignored":       {state: Shown, before: Content{Ignored: map[mcs.Key]bool{web: true}}, announced: []string{"team-1"}, used: []string{"demo"}},
		"an ignored export is used now":           {state: Shown, before: Content{Ignored: map[mcs.Key]bool{web: true}}, announced: []string{"team-1"}, used: []string{"demo"}, again: true, want: true},
	} {
		m := ByUnit{Digests: map[UnitName]string{"web": "30"}}
		if tt.announced != nil {
			m.Codes = map[UnitName][]string{"web": tt.announced}
		}
		f := facts{cfg: &testCfg, name: "web", manifest: m, author: author1, settled: 30, answer: m.Names("web", nil)}
		if tt.used != nil {
			f.codes = map[string]bool{}
			for _, namespace := range tt.used {
				f.codes[namespace] = true
			}
		}
		u := unit{state: tt.state, author: author1, version: Version{Generation: 20, Digest: "20"}, content: tt.before, again: tt.again}
		if u.decide(&f, keys{}); u.isToRead() != tt.want {
			t.Errorf("%s: the unit is %v, to be read: %t, want %t", name, u.state, u.isToRead(), tt.want)
		}
	}
}

// TestEndsAhead: a process ends while it imports from a unit that the record does not name yet. The
// pins lack that, and the next process, which reads the same record, ends nothing.
func TestEndsAhead(t *testing.T) {
	for name, tt := range map[string]struct {
		read  []Event
		lacks bool
		want  registry.ClusterState
	}{
		"the record names no unit": {nil, false, registry.None},
		"a unit is ahead of it":    {[]Event{UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 20)}}}, true, registry.Unknown},
		"the next record names it": {[]Event{
			UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 20)}}, RecordRead{testRecord(key1, 30, 20)},
		}, false, registry.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(pinOf(5))
			for _, e := range append([]Event{RecordRead{testRecord(key1, 10, 0)}, RecordRead{testRecord(key1, 11, 0)}}, tt.read...) {
				s.Step(e, began)
			}
			s.End()
			if hasAll := s.cfg.Keyring.HasAll(); hasAll == tt.lacks {
				t.Errorf("the pins have all: %t", hasAll)
			}
			last := s.RecordOf("cls")
			next := started(pinOf(last.At.Heartbeat))
			next.cfg.Keyring.SetComplete(s.cfg.Keyring.HasAll())
			next.Step(RecordRead{*last}, began)
			if got := next.View(web, "cls").Clusters["cls"].State; got != tt.want {
				t.Errorf("the next process shows %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRecordDuringWrite: a unit was read whose write is still in progress, and another one was
// written with a later generation. The record names the previous version of the first one, and a
// late read shows it: the later version stays. It does not if the cluster has written the content
// of before again, or if another process of it writes the record.
func TestRecordDuringWrite(t *testing.T) {
	again := testUnit(key1, 35)
	again.Version.Digest = testUnit(key1, 20).Version.Digest
	for name, tt := range map[string]struct {
		process string
		read    Unit
		want    int64
	}{
		"a late read":           {"first", testUnit(key1, 20), 25},
		"the write has ended":   {"first", testUnit(key1, 25), 25},
		"the content of before": {"first", again, 35},
		"another process":       {"next", testUnit(key1, 20), 20},
	} {
		s := started(pinOf(5))
		show := func(process string, t, named int64, read Unit) {
			r := testRecord(key1, t, named)
			r.Process = process
			s.Step(RecordRead{r}, began)
			s.Step(UnitsRead{Cluster: "cls", Units: []Unit{read}}, began)
		}
		show("first", 10, 10, testUnit(key1, 10))
		show("first", 20, 20, testUnit(key1, 20))
		show("first", 21, 20, testUnit(key1, 25))
		show(tt.process, 40, 20, tt.read)
		if got := s.Versions("cls")["web"].Generation; got != tt.want {
			t.Errorf("%s: generation %d is imported, want %d", name, got, tt.want)
		}
		show(tt.process, 50, 50, testUnit(key1, 50))
		if got := s.Versions("cls")["web"].Generation; got != 50 {
			t.Errorf("%s: generation %d is imported, want that of the next record", name, got)
		}
	}
}
