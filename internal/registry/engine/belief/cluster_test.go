package belief

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	testStaleAfter = 2 * time.Minute
	testPoll       = 2 * time.Second
)

var (
	clusterStates = []ClusterState{NotRead, Saving, First, Current, Left}
	began         = time.Unix(1e9, 0)
	key1          = trust.Key{1}
	key2          = trust.Key{2} // key1 has signed it
	key3          = trust.Key{3} // no key has signed it
	author1       = Author{Key: key1}
	author2       = Author{Key: key2}
	web           = mcs.Key{Namespace: "demo", Name: "web"}
)

func (s ClusterState) String() string {
	return [...]string{"NotRead", "Saving", "First", "Current", "Left"}[s]
}

// clock is that of the keyrings.
var clock = began

// savedLater is a store of pins that has a pin once the event pinSaved says so.
type savedLater struct{ trust.Store }

type pinSaved struct{}

func (pinSaved) event() {}

// started returns the State of a process that starts with the pin of a cluster, nil without one.
func started(pin *trust.Pin) *State {
	clock = began
	pins := map[string]trust.Pin{}
	if pin != nil {
		pins["cls"] = *pin
	}
	return New(Config{
		Own: "own", Poll: testPoll, Eager: testPoll, StaleAfter: testStaleAfter, Registry: "store",
		UnitOf: func(key mcs.Key) UnitName { return UnitName(key.Name) },
		Keyring: trust.New(trust.Config{
			StaleAfter: testStaleAfter, Store: savedLater{}, Now: func() time.Time { return clock },
			Succeeds: func(previous, next trust.Key, _, _ string) bool { return previous == key1 && next == key2 },
		}, pins),
	})
}

// pinOf returns the pin of key1 after a record at a time.
func pinOf(t int64) *trust.Pin {
	return &trust.Pin{Key: key1, Last: map[string]trust.Time{"store": at(t)}}
}

// left returns the pin of key1 after a farewell at a time.
func left(t int64) *trust.Pin {
	pin := pinOf(t)
	pin.Left = true
	return pin
}

// apply applies an event of a test.
func apply(s *State, e Event, now time.Time) Actions {
	if _, isSaved := e.(pinSaved); isSaved {
		pin, _ := s.cfg.Keyring.Pin("cls")
		s.cfg.Keyring.MarkSaved("cls", pin)
		e = Tick{}
	}
	return s.Step(e, now)
}

// at is the time of a record whose exports changed with it.
func at(t int64) trust.Time { return trust.Time{Generation: t, Heartbeat: t} }

// testRecord returns a record that names unit "web" of a generation, none for 0.
func testRecord(key trust.Key, t, named int64) Record {
	m := ByUnit{Digests: map[UnitName]string{}}
	if named != 0 {
		m.Digests["web"] = fmt.Sprint(named)
	}
	return Record{Cluster: "cls", Key: key, Succession: "signed", At: at(t), Manifest: m}
}

func farewell(key trust.Key, t int64) Record {
	return Record{Cluster: "cls", Key: key, At: at(t), Farewell: true}
}

// testUnit returns unit "web" of a generation with an export.
func testUnit(key trust.Key, generation int64) Unit {
	exp := &mcs.Export{Key: web, Cluster: "cls", Created: time.Unix(generation, 0)}
	return Unit{
		Name: "web", Author: Author{Key: key}, Version: Version{Generation: generation, Digest: fmt.Sprint(generation)},
		Content: Content{Exports: map[mcs.Key]*mcs.Export{web: exp}},
	}
}

// sent returns a record as the cluster sends it.
func sent(r Record) Record {
	r.Place = Sent
	return r
}

// inPlace returns a record as it is read from the own place of the cluster.
func inPlace(r Record, seal Seal) *Record {
	r.Place, r.Seal = Own, seal
	return &r
}

// reached returns a State with the cluster in a state. In First and Current its export is imported,
// and its pin is of key1.
func reached(t *testing.T, state ClusterState) (*State, time.Time) {
	t.Helper()
	pin := pinOf(10)
	var events []Event
	switch state {
	case NotRead:
	case Saving:
		pin = left(10)
		events = []Event{RecordRead{*inPlace(testRecord(key1, 20, 20), SealUnknown)}}
	case First, Current:
		events = []Event{RecordRead{testRecord(key1, 20, 20)}, UnitsRead{Cluster: "cls", Units: []Unit{testUnit(key1, 20)}}, Tick{Heartbeat: true}}
		if state == Current {
			events = append(events, RecordRead{testRecord(key1, 30, 20)}, Tick{Heartbeat: true})
		}
	case Left:
		pin = left(30)
		events = []Event{RecordRead{farewell(key1, 30)}}
	}
	s := started(pin)
	for _, e := range events {
		s.Step(e, began)
	}
	if got := s.StateOf("cls"); got != state {
		t.Fatalf("the state is %v, want %v", got, state)
	}
	return s, began.Add(time.Hour)
}

// cell applies events, and returns the next state, "–" for the same one, with the actions of the
// last one.
func cell(s *State, now time.Time, events ...Event) string {
	before := s.StateOf("cls")
	was := s.View(web, "cls")
	var a Actions
	for _, e := range events {
		a = apply(s, e, now)
	}
	words := []string{"–"}
	if after := s.StateOf("cls"); after != before {
		words[0] = after.String()
	}
	if !s.known("cls").IsSaved {
		words = append(words, "save")
	}
	if len(a.ReadUnits) > 0 {
		words = append(words, "units")
	}
	if len(a.ReadProofs) > 0 {
		words = append(words, "proof")
	}
	if len(a.Reports) > 0 {
		words = append(words, "report")
	}
	if now := s.View(web, "cls"); len(was.Clusters) > 0 && len(now.Clusters) == 0 {
		words = append(words, "end")
	}
	return strings.Join(words, " ")
}

// silence lets the cluster become stale.
func silence(s *State, from time.Time) (now time.Time) {
	for now = from; now.Before(from.Add(2 * testStaleAfter)); now = now.Add(10 * time.Second) {
		s.Step(Tick{Heartbeat: true}, now)
	}
	clock = now
	return now
}

// TestClusterTable has a case for each cell of table (a) of docs/proposals/031-engine.md.
func TestClusterTable(t *testing.T) {
	record := func(r Record) []Event { return []Event{RecordRead{r}} }
	unproven := RecordRead{testRecord(key3, 40, 40)}
	rows := []struct {
		event  string
		events []Event
		want   [5]string // NotRead, Saving, First, Current, Left
	}{
		{"record with the next key", record(testRecord(key2, 40, 40)),
			[5]string{"First units", "– save", "Current units", "– units", "– proof"}},
		{"record", record(testRecord(key1, 40, 40)),
			[5]string{"First units", "– save", "Current units", "– units", "Saving save"}},
		{"record without the export", record(testRecord(key1, 40, 0)),
			[5]string{"First", "– save", "Current end", "– end", "Saving save"}},
		{"the same record again", record(testRecord(key1, 20, 20)),
			[5]string{"First units", "– save", "–", "– proof report", "–"}},
		{"record, not later", record(testRecord(key1, 5, 5)),
			[5]string{"– report", "– save proof report", "– proof report", "– proof report", "–"}},
		{"record, key not proven or refused", []Event{unproven},
			[5]string{"– proof report", "– save proof report", "– proof report", "– proof report", "– proof"}},
		{"record, not signed", []Event{RecordRefused{Cluster: "cls"}},
			[5]string{"– proof report", "– save proof report", "– proof report", "– proof report", "– report"}},
		{"no record", []Event{RecordMissing{"cls"}},
			[5]string{"– report", "– save proof report", "– proof report", "– proof report", "–"}},
		{"no record, imported", []Event{RecordMissing{"cls"}, Imported{[]string{"cls"}}},
			[5]string{"– proof", "– save proof", "– proof", "– proof", "–"}},
		{"proof shows the key", []Event{unproven, ProofRead{Cluster: "cls", Record: inPlace(testRecord(key3, 40, 40), Sealed)}},
			[5]string{"–", "– save", "–", "–", "Saving save"}},
		{"own place shows another key", []Event{ProofRead{Cluster: "cls", Record: inPlace(testRecord(key3, 50, 50), Sealed)}},
			[5]string{"– report", "– save report", "– report", "– report", "Saving save"}},
		{"proof shows none", []Event{unproven, ProofRead{Cluster: "cls"}},
			[5]string{"–", "– save", "–", "–", "–"}},
		{"proof shows none twice", []Event{unproven, ProofRead{Cluster: "cls"}, ProofRead{Cluster: "cls"}},
			[5]string{"–", "– save", "–", "–", "– report"}},
		{"proof cannot be read", []Event{unproven, ProofRead{Cluster: "cls", Failed: true}},
			[5]string{"–", "– save", "–", "–", "–"}},
		{"pin saved", []Event{pinSaved{}},
			[5]string{"–", "First units", "–", "–", "–"}},
		{"farewell", record(farewell(key1, 40)),
			[5]string{"First proof", "Left end", "Saving save", "Saving save", "–"}},
		{"farewell, pin saved", []Event{RecordRead{farewell(key1, 40)}, pinSaved{}},
			[5]string{"First proof", "Left end", "Left end", "Left end", "–"}},
		{"farewell, key not proven", record(farewell(key3, 40)),
			[5]string{"– proof report", "– save proof report", "– proof report", "– proof report", "–"}},
		{"sent record", record(sent(testRecord(key1, 40, 40))),
			[5]string{"–", "– save", "–", "– units", "–"}},
		{"sent record without the export", record(sent(testRecord(key1, 40, 0))),
			[5]string{"–", "– save", "–", "– end", "–"}},
		{"sent record, not later", record(sent(testRecord(key1, 5, 5))),
			[5]string{"–", "– save", "–", "–", "–"}},
		{"sent record with the next key", record(sent(testRecord(key2, 40, 40))),
			[5]string{"–", "– save", "–", "–", "–"}},
		{"sent farewell", record(sent(farewell(key1, 40))),
			[5]string{"–", "– save", "–", "–", "–"}},
		{"sent record, and then the last one that was shown", []Event{RecordRead{sent(testRecord(key1, 40, 20))}, RecordRead{testRecord(key1, 30, 20)}},
			[5]string{"First units", "– save", "Current", "–", "–"}},
		{"sent record, and then one that is earlier than that", []Event{RecordRead{sent(testRecord(key1, 40, 20))}, RecordRead{testRecord(key1, 20, 20)}},
			[5]string{"First units", "– save", "–", "– proof report", "–"}},
		{"answer, no later record", []Event{Answered{"cls", key1, at(20)}},
			[5]string{"–", "– save", "Current", "–", "–"}},
		{"answer, a later record", []Event{Answered{"cls", key1, at(40)}},
			[5]string{"–", "– save", "–", "–", "–"}},
		{"answer with another key", []Event{Answered{"cls", key2, at(20)}},
			[5]string{"–", "– save", "–", "–", "–"}},
		{"first farewell, and an answer", []Event{RecordRead{farewell(key1, 40)}, Answered{"cls", key1, at(20)}},
			[5]string{"First proof", "Left end", "Saving save", "Saving save", "–"}},
		{"forget", []Event{Forget{"cls"}},
			[5]string{"Saving save", "– save", "Saving save", "Saving save", "– save"}},
		{"forget, pin saved", []Event{Forget{"cls"}, pinSaved{}},
			[5]string{"Left end", "Left end", "Left end", "Left end", "–"}},
	}
	for _, row := range rows {
		for i, state := range clusterStates {
			t.Run(row.event+"/"+state.String(), func(t *testing.T) {
				s, now := reached(t, state)
				if got := cell(s, now, row.events...); got != row.want[i] {
					t.Errorf("got %q, want %q", got, row.want[i])
				}
			})
		}
	}
}

// TestClusterTable_Stale has the cells of the event stale, which takes time.
func TestClusterTable_Stale(t *testing.T) {
	for i, want := range []ClusterState{NotRead, Saving, Current, Current, Left} {
		s, now := reached(t, clusterStates[i])
		silence(s, now)
		if got := s.StateOf("cls"); got != want {
			t.Errorf("%v becomes %v, want %v", clusterStates[i], got, want)
		}
	}
	s, now := reached(t, NotRead)
	s.Step(RecordRead{farewell(key1, 40)}, now)
	silence(s, now)
	if got := s.StateOf("cls"); got != Saving {
		t.Errorf("a farewell that is the first record is %v, want Saving", got)
	}
	apply(s, pinSaved{}, now)
	if got := s.StateOf("cls"); got != Left {
		t.Errorf("after the save it is %v, want Left", got)
	}
}

// TestRebuiltCluster: a key that only the cluster can have written counts once the pinned one is
// silent, and not if the place was open to other members when it showed the key.
func TestRebuiltCluster(t *testing.T) {
	shown := func(seal Seal) Event {
		return ProofRead{Cluster: "cls", Record: inPlace(testRecord(key3, 50, 50), seal)}
	}
	for _, tt := range []struct {
		name   string
		events []Event
		want   trust.Key
	}{
		{"sealed", []Event{shown(Sealed)}, key3},
		{"seal unknown", []Event{shown(SealUnknown)}, key1},
		{"unsealed", []Event{shown(Unsealed)}, key1},
		{"sealed later", []Event{shown(Unsealed), shown(Sealed)}, key1},
		{"seal unknown at first", []Event{shown(SealUnknown), shown(Sealed)}, key3},
	} {
		s, now := reached(t, Current)
		now = silence(s, now)
		for _, e := range tt.events {
			s.Step(e, now)
		}
		if got := s.RecordOf("cls").Key; got != tt.want {
			t.Errorf("%s: the key is %v, want %v", tt.name, got, tt.want)
		}
		if in := s.View(web, "cls").Clusters["cls"]; in.State != registry.Exports {
			t.Errorf("%s: %v, want the export that was imported", tt.name, in.State)
		}
	}
}

// TestRecordInOwnPlace: where a store shows the record in the place that only the cluster can
// write, as etcd does, a problem begins and ends as it does where all members can write.
func TestRecordInOwnPlace(t *testing.T) {
	for _, place := range []Place{Shared, Own} {
		read := func(at, named int64) Event {
			r := testRecord(key1, at, named)
			r.Place = place
			return RecordRead{r}
		}
		for _, tt := range []struct {
			name   string
			events []Event
			want   string
		}{
			{"later", []Event{read(40, 20)}, "–"},
			{"not later", []Event{read(5, 5)}, "– proof report"},
			{"shown again", []Event{RecordMissing{"cls"}, read(30, 20)}, "–"},
			{"missing for the second time", []Event{RecordMissing{"cls"}, read(40, 20), RecordMissing{"cls"}}, "– proof report"},
		} {
			s, now := reached(t, Current)
			if got := cell(s, now, tt.events...); got != tt.want {
				t.Errorf("place %v, %s: got %q, want %q", place, tt.name, got, tt.want)
			}
		}
	}
}

// TestUnknownClusterIsDropped: another member cannot fill the memory with records of clusters that
// do not exist.
func TestUnknownClusterIsDropped(t *testing.T) {
	s := started(nil)
	a := s.Step(RecordRead{testRecord(key1, 20, 20)}, began)
	if len(a.ReadProofs) != 1 {
		t.Errorf("reads %v, want the proof", a.ReadProofs)
	}
	s.Step(RecordMissing{"cls"}, began)
	if len(s.clusters) != 0 {
		t.Errorf("%d clusters are known, want none", len(s.clusters))
	}
}

// TestProofPauses: the proof of a key is read again soon, then with growing pauses, longer ones for
// a cluster of which no record counts. Records
// with ever new keys begin that anew once in a quarter of the time until a cluster is stale.
func TestProofPauses(t *testing.T) {
	for _, tt := range []struct {
		isNew       bool
		least, most int
	}{{false, 8, 16}, {true, 100, 130}} {
		s, reads, key := started(nil), 0, key1
		for now := began; now.Before(began.Add(10 * time.Minute)); now = now.Add(testPoll) {
			if a := s.Step(RecordRead{testRecord(key, 20, 20)}, now); len(a.ReadProofs) > 0 {
				reads++
				s.Step(ProofRead{Cluster: "cls"}, now)
			}
			if tt.isNew {
				key[1]++
			}
		}
		if reads < tt.least || reads > tt.most {
			t.Errorf("new keys %t: %d reads in 10 minutes, want %d to %d", tt.isNew, reads, tt.least, tt.most)
		}
	}
}

// TestFirstFarewell: the first record that a process reads is a farewell, which may be older than
// one that a previous process has read. It ends the imports that exist once no other record has
// followed it, also in a clusterset without any heartbeat.
func TestFirstFarewell(t *testing.T) {
	s := started(nil)
	s.Step(RecordRead{*inPlace(farewell(key1, 20), SealUnknown)}, began)
	tick := func(event Event, after time.Duration) (ended bool) {
		s.Step(event, began.Add(after))
		apply(s, pinSaved{}, began.Add(after))
		return s.StateOf("cls") == Left
	}
	if v := s.View(web); len(v.Clusters) > 0 {
		t.Errorf("a key that is not imported is %+v", v.Clusters)
	}
	if v := s.View(web, "cls"); v.Clusters["cls"].State != registry.Unknown {
		t.Errorf("a key that is imported is %+v, want unknown", v.Clusters)
	}
	for _, at := range []time.Duration{time.Minute, testStaleAfter - time.Second} {
		if tick(Tick{}, at) {
			t.Fatalf("it has left after %s", at)
		}
	}
	tick(Failed{}, testStaleAfter)
	if tick(Tick{}, 2*testStaleAfter-time.Second) {
		t.Error("a store that did not answer has shown no later record")
	}
	if !tick(Tick{}, 2*testStaleAfter) {
		t.Error("it has not left")
	}
	if v := s.View(web, "cls"); len(v.Clusters) > 0 {
		t.Errorf("the key is %+v after the end", v.Clusters)
	}
}
