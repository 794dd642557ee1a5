package belief

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

var unitStates = []UnitState{Absent, Unread, Shown, Behind, Ahead, Skipped}

func (s UnitState) String() string {
	return [...]string{"Absent", "Unread", "Shown", "Behind", "Ahead", "Skipped"}[s]
}

// reachedUnit returns a unit in a state, whose record decides up to generation 20. Shown and Behind
// have read generation 20, Ahead 25.
func reachedUnit(state UnitState) *unit {
	u := &unit{state: state}
	switch state {
	case Absent, Unread, Skipped:
	case Shown, Behind:
		read := testUnit(key1, 20)
		u.version, u.author, u.content = read.Version, read.Author, read.Content
	case Ahead:
		read := testUnit(key1, 25)
		u.version, u.author, u.content = read.Version, read.Author, read.Content
	}
	return u
}

// TestUnitTable has a case for each cell of table (b) of docs/proposals/031-engine.md.
func TestUnitTable(t *testing.T) {
	named := func(generation int64) Answer {
		return Answer{Kind: Named, Version: testUnit(key1, generation).Version}
	}
	decide := func(a Answer, settled int64, isUsed bool) func(u *unit, changed keys) {
		return func(u *unit, changed keys) {
			f := facts{answer: a, author: author1, settled: settled}
			if !isUsed {
				f.codes, f.manifest = map[string]bool{}, ByUnit{Codes: map[UnitName][]string{"": nil}}
			}
			u.decide(&f, changed)
		}
	}
	observe := func(a Answer, settled int64, read Unit) func(u *unit, changed keys) {
		return func(u *unit, changed keys) {
			u.observe(&facts{now: began, cfg: &testCfg, answer: a, author: author1, settled: settled}, &read, changed)
		}
	}
	overtaken := func(do func(u *unit, changed keys)) func(u *unit, changed keys) {
		return func(u *unit, changed keys) {
			if u.state == Behind {
				u.overtaken = named(19).Version
			}
			do(u, changed)
		}
	}
	other, part := testUnit(key3, 40), testUnit(key1, 30)
	part.Version = Version{}
	rows := []struct {
		event string
		do    func(u *unit, changed keys)
		want  [6]string // Absent, Unread, Shown, Behind, Ahead, Skipped
	}{
		{"manifest names the version that was read: 20", decide(named(20), 20, true),
			[6]string{"Behind read", "– read", "–", "Shown", "–", "Unread read"}},
		{"manifest names the version that was read: 25", decide(named(25), 25, true),
			[6]string{"Behind read", "– read", "Behind read", "– read", "Shown", "Unread read"}},
		{"manifest names another version", decide(named(30), 30, true),
			[6]string{"Behind read", "– read", "Behind read", "– read", "Behind read", "Unread read"}},
		{"manifest names another version, nothing of which is imported", decide(named(30), 30, false),
			[6]string{"Skipped", "Skipped", "Behind read", "– read", "Behind read", "–"}},
		{"manifest answers none", decide(Answer{Kind: None}, 30, true),
			[6]string{"–", "Absent", "Absent end", "Absent end", "Absent end", "Absent"}},
		{"manifest answers none, earlier than the unit", decide(Answer{Kind: None}, 22, true),
			[6]string{"–", "Absent", "Absent end", "Absent end", "–", "Absent"}},
		{"manifest is undecided", decide(Answer{Kind: Undecided}, 20, true),
			[6]string{"–", "– read", "–", "– read", "–", "–"}},
		{"read shows the named version", observe(named(30), 30, testUnit(key1, 30)),
			[6]string{"Shown notify", "Shown notify", "– notify", "Shown notify", "Shown notify", "Shown notify"}},
		{"read shows a later version", observe(named(20), 20, testUnit(key1, 40)),
			[6]string{"Ahead notify", "Ahead notify", "Ahead notify", "Ahead notify", "– notify", "Ahead notify"}},
		{"read shows a later version, undecided", observe(Answer{Kind: Undecided}, 20, testUnit(key1, 40)),
			[6]string{"Ahead notify", "Ahead notify", "Ahead notify", "Ahead notify", "– notify", "Ahead notify"}},
		{"read shows the named version, earlier than the unit", observe(named(19), 20, testUnit(key1, 19)),
			[6]string{"Shown notify", "Shown notify", "– notify", "Shown notify", "–", "Shown notify"}},
		{"read shows the named version, which the unit has overtaken", overtaken(observe(named(19), 20, testUnit(key1, 19))),
			[6]string{"Shown notify", "Shown notify", "– notify", "– later", "–", "Shown notify"}},
		{"read shows an older version", observe(named(20), 20, testUnit(key1, 5)),
			[6]string{"–", "– later", "–", "– later", "–", "–"}},
		{"read shows none, or a part", observe(named(30), 30, part),
			[6]string{"–", "– later", "–", "– later", "–", "–"}},
		{"read shows another signature", observe(named(40), 30, other),
			[6]string{"–", "– later", "–", "– later", "–", "–"}},
		{"end all", func(u *unit, changed keys) { u.end(changed) },
			[6]string{"–", "Absent", "Absent end", "Absent end", "Absent end", "Absent"}},
	}
	for _, row := range rows {
		for i, state := range unitStates {
			t.Run(row.event+"/"+state.String(), func(t *testing.T) {
				u, changed := reachedUnit(state), keys{}
				had := u.content.Exports[web] != nil
				row.do(u, changed)
				if got := unitCell(u, state, had, changed); got != row.want[i] {
					t.Errorf("got %q, want %q", got, row.want[i])
				}
			})
		}
	}
}

// unitCell returns the state, "–" for the same one, with what follows.
func unitCell(u *unit, before UnitState, had bool, changed keys) string {
	text := "–"
	if u.state != before {
		text = u.state.String()
	}
	switch has := u.content.Exports[web] != nil; {
	case had && !has:
		text += " end"
	case len(changed) > 0:
		text += " notify"
	}
	switch {
	case !u.isToRead():
	case u.isDue(began):
		text += " read"
	default:
		text += " later"
	}
	return text
}

// TestUnitOfNamespaces: a unit is read once a namespace of it is imported.
func TestUnitOfNamespaces(t *testing.T) {
	isRead := [6]bool{Unread: true, Shown: true, Behind: true, Ahead: true}
	for i, state := range unitStates {
		u := reachedUnit(state)
		if state == Shown || state == Behind || state == Ahead {
			u.content = Content{Ignored: map[mcs.Key]bool{web: true}}
		}
		u.use(func(namespace string) bool { return namespace == web.Namespace })
		u.skip(&facts{})
		want := isRead[i] || state == Skipped
		if got := u.isToRead(); got != want {
			t.Errorf("%v: to be read %t, want %t", state, got, want)
		}
	}
	u := reachedUnit(Shown)
	u.content, u.again = Content{Ignored: map[mcs.Key]bool{web: true}}, true
	read, changed := testUnit(key1, 20), keys{}
	u.observe(&facts{author: author1, settled: 20, answer: Answer{Kind: Named, Version: read.Version}}, &read, changed)
	if _, isNotified := changed[web]; !isNotified || u.isToRead() || u.state != Shown {
		t.Errorf("the unit is %v, to be read %t, notified %t; want Shown, false, true", u.state, u.isToRead(), isNotified)
	}
}

// TestUnusableExports: an export that is there and cannot be used stays as it was.
func TestUnusableExports(t *testing.T) {
	u := reachedUnit(Shown)
	before := u.content.Exports[web]
	read := Unit{Name: "web", Author: author1, Version: testUnit(key1, 30).Version, Content: Content{Unusable: map[mcs.Key]bool{web: true}}}
	f := facts{author: author1, settled: 30, answer: Answer{Kind: Named, Version: read.Version}}
	u.observe(&f, &read, keys{})
	if state, exp := u.answer(web, always); state != registry.Exports || exp != before {
		t.Errorf("the export is %v, want the previous version", state)
	}
	if state, _ := u.answer(mcs.Key{Name: "other"}, always); state != registry.None {
		t.Errorf("another export is %v, want none", state)
	}
	read.Content, read.Version.Generation = Content{Unnamed: true}, 31
	f.settled = 30
	u.observe(&f, &read, keys{})
	for _, key := range []mcs.Key{web, {Name: "other"}} {
		state, exp := u.answer(key, always)
		if want := key == web; (state == registry.Exports && exp == before) != want || !want && state != registry.Unknown {
			t.Errorf("export %s is %v", key, state)
		}
	}
}

// TestUnitRetries: a store that shows no whole unit is read at each poll at first, then with
// growing pauses.
func TestUnitRetries(t *testing.T) {
	u := reachedUnit(Unread)
	read := Unit{Name: "web"}
	var pauses []time.Duration
	for range 10 {
		u.observe(&facts{now: began, cfg: &testCfg, author: author1}, &read, keys{})
		pauses = append(pauses, u.at.Sub(began))
	}
	if pauses[0] != testPoll || pauses[eagerReads-1] != testPoll || pauses[9] != maxRetry {
		t.Errorf("pauses %v, want %v at first and %v at the end", pauses, testPoll, maxRetry)
	}
	for i, isDue := range []bool{true, false} {
		u.decide(&facts{author: author1, answer: Answer{Kind: Named, Version: Version{Digest: "31"}}}, keys{})
		if u.isDue(began) != isDue {
			t.Errorf("a record that names the version for the time %d: the unit is due: %v", i+1, !isDue)
		}
		u.observe(&facts{now: began, cfg: &testCfg, author: author1}, &read, keys{})
	}
}

// TestSet: records that name all units as a set decide nothing while the store shows others.
func TestSet(t *testing.T) {
	api := mcs.Key{Namespace: "demo", Name: "api"}
	unitAt := func(name mcs.Key, generation int64) Unit {
		return Unit{
			Name: UnitName(name.Name), Author: author1, Version: Version{Generation: generation},
			Content: Content{Exports: map[mcs.Key]*mcs.Export{name: {Key: name, Created: time.Unix(generation, 0)}}},
		}
	}
	setOf := func(t int64, generations map[mcs.Key]int64) Event {
		var d SetDigest
		for key, generation := range generations {
			d = d.With(UnitName(key.Name), generation)
		}
		return RecordRead{Record{Cluster: "cls", Place: Own, Key: key1, At: at(t), Manifest: AsSet{Digest: d}}}
	}
	all := func(units ...Unit) Event { return UnitsRead{Cluster: "cls", Units: units, All: true} }
	gone := func(key mcs.Key) Event {
		return UnitsRead{Cluster: "cls", Units: []Unit{{Name: UnitName(key.Name)}}}
	}
	first := []Event{setOf(20, map[mcs.Key]int64{web: 15, api: 20}), all(unitAt(web, 15), unitAt(api, 20))}
	again := setOf(25, map[mcs.Key]int64{web: 15, api: 20})
	for _, tt := range []struct {
		name   string
		events []Event
		want   [2]string // web, api
	}{
		{"the set of the first record", first, [2]string{"unknown", "unknown"}},
		{"the set of the second record", append(first, again), [2]string{"15", "20"}},
		{"an older unit before the first set was shown", []Event{first[0], all(unitAt(web, 12), unitAt(api, 20))}, [2]string{"unknown", "unknown"}},
		{"a later unit before the first set was shown", []Event{first[0], all(unitAt(web, 30), unitAt(api, 20))}, [2]string{"unknown", "unknown"}},
		{"a unit is deleted", append(first, again, gone(web)), [2]string{"15", "20"}},
		{"an older unit is written again", append(first, again, all(unitAt(web, 12), unitAt(api, 20))), [2]string{"15", "20"}},
		{"a later unit, while another one is missing", append(first, again, all(unitAt(api, 30))), [2]string{"15", "30"}},
		{"a unit is withdrawn", append(first, again, setOf(30, map[mcs.Key]int64{api: 20}), gone(web)), [2]string{"none", "20"}},
		{"a unit is withdrawn, before its record", append(first, again, gone(web), setOf(30, map[mcs.Key]int64{api: 20})), [2]string{"none", "20"}},
		{"a withdrawn unit is written again", append(first, again, setOf(30, map[mcs.Key]int64{api: 20}), gone(web),
			all(unitAt(web, 15), unitAt(api, 20))), [2]string{"none", "20"}},
		{"all is deleted", append(first, again, all()), [2]string{"15", "20"}},
		{"all is withdrawn", append(first, again, setOf(30, nil), all()), [2]string{"none", "none"}},
	} {
		s := started(pinOf(10))
		for _, e := range tt.events {
			s.Step(e, began)
		}
		for i, key := range []mcs.Key{web, api} {
			got := "none"
			switch v := s.View(key, "cls").Clusters["cls"]; v.State {
			case registry.Exports:
				got = fmt.Sprint(v.Export.Created.Unix())
			case registry.Unknown:
				got = "unknown"
			case registry.None, registry.Ignored, registry.Unseen:
			}
			if got != tt.want[i] {
				t.Errorf("%s: %s is %s, want %s", tt.name, key, got, tt.want[i])
			}
		}
	}
}

// TestGap: all units are read once if the store does not show for a while those that a record
// names, and at once when the return of a cluster is saved.
func TestGap(t *testing.T) {
	s := started(pinOf(10))
	record := func(t int64) Event {
		return RecordRead{Record{Cluster: "cls", Key: key1, At: at(t), Manifest: AsSet{Digest: SetDigest{}.With("web", t)}}}
	}
	readAll := UnitsRead{Cluster: "cls", All: true}
	later := began.Add(gapTime)
	for _, tt := range []struct {
		name  string
		event Event
		now   time.Time
		want  bool
	}{
		{"the first record", record(20), began, false},
		{"after a while", Tick{}, later, true},
		{"all units were read", readAll, later, false},
		{"an hour later", Tick{}, later.Add(time.Hour), false},
	} {
		a := s.Step(tt.event, tt.now)
		if isRead := len(a.ReadUnits) == 1 && a.ReadUnits[0].Units == nil; isRead != tt.want {
			t.Errorf("%s: reads %v", tt.name, a.ReadUnits)
		}
	}
	s = started(left(10))
	s.Step(record(20), began)
	if a := apply(s, pinSaved{}, began); len(a.ReadUnits) != 1 {
		t.Errorf("after the return: reads %v, want all", a.ReadUnits)
	}
}

// TestRules has the rules that are functions of their own.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		at       int64
		hasEnded bool
		want     bool
	}{{19, false, false}, {20, false, true}, {21, false, true}, {20, true, false}, {21, true, true}} {
		if got := later(at(tt.at), at(20), tt.hasEnded); got != tt.want {
			t.Errorf("later: %+v is %t", tt, got)
		}
	}
	for answer, want := range map[registry.ClusterState]registry.ClusterState{registry.None: registry.Unknown, registry.Exports: registry.Exports, registry.Unknown: registry.Unknown, registry.Ignored: registry.Ignored, registry.Unseen: registry.Unseen} {
		if got := addFirst(answer); got != want {
			t.Errorf("add first: %v becomes %v, want %v", answer, got, want)
		}
	}
	read := testUnit(key1, 30)
	for _, tt := range []struct {
		author, readKey Author
		settled, readAt int64
		want            bool
	}{
		{author1, author1, 20, 25, true}, {author1, author1, 30, 25, false}, {author1, author1, 20, 30, false}, {author1, author2, 20, 40, true}, {author2, author2, 20, 25, false},
	} {
		if got := early(&read, tt.author, tt.settled, Version{Generation: tt.readAt}, tt.readKey); got != tt.want {
			t.Errorf("early: %+v is %t", tt, got)
		}
	}
}

func always() bool { return true }

var testCfg = Config{Poll: testPoll, Eager: testPoll}
