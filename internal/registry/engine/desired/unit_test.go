package desired

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

const (
	testPatience = 15 * time.Second
	testPause    = time.Second
)

var (
	unitStates = []UnitState{Found, Wanted, Writing, Written, Shown, Refused}
	began      = time.Unix(1e9, 0)
	web        = mcs.Key{Namespace: "demo", Name: "web"}
	errTest    = errors.New("the store says no")
)

const webUnit belief.UnitName = "demo"

func (s UnitState) String() string {
	return [...]string{"Found", "Wanted", "Writing", "Written", "Shown", "Refused"}[s]
}

// newState returns a State whose units are namespaces, which may write once a second after a burst
// of two.
func newState() *State {
	return New(Config{
		ClusterID: "cls", UnitOf: func(key mcs.Key) belief.UnitName { return belief.UnitName(key.Namespace) },
		Pace: engine.NewPace[string](1, 2), Pause: func(failures int) time.Duration { return time.Duration(failures) * testPause }, Patience: testPatience,
	})
}

// export returns version n of an export.
func export(n int) *mcs.Export {
	return &mcs.Export{Key: web, Cluster: "cls", Ports: []mcs.Port{{Port: int32(n)}}}
}

// storedExport returns what the store has after version n of the export was written.
func storedExport(n int) Stored {
	return Stored{Version: belief.Version{Generation: int64(n)}, Exports: map[mcs.Key]mcs.Export{web: registry.Published(*export(n))}}
}

// begin begins to write the drafts that are due, as of a generation, and returns their units.
func begin(s *State, now time.Time, generation int64) (units []belief.UnitName) {
	for d := range s.Drafts(now) {
		if d.Has() {
			s.Keep(d, nil)
			continue
		}
		s.Begin(now, d, belief.Version{Generation: generation}, nil)
		units = append(units, d.Unit)
	}
	return units
}

// reached returns a State whose unit is in a state: version 1 of its export is desired, and written
// as generation 2 if it was written.
func reached(want UnitState) *State {
	s := newState()
	s.Set(web, export(1))
	steps := map[UnitState]func(){
		Wanted:  func() { s.Adopt(webUnit, Stored{}, false) },
		Writing: func() { begin(s, began, 2) },
		Written: func() { s.End(began, webUnit, Accepted, nil) },
		Shown:   func() { s.Observe(began, webUnit, true, began) },
		Refused: func() { s.End(began, webUnit, Unfit, errTest) },
	}
	path := map[UnitState][]UnitState{
		Wanted: {Wanted}, Writing: {Wanted, Writing}, Written: {Wanted, Writing, Written}, Shown: {Wanted, Writing, Written, Shown},
		Refused: {Wanted, Writing, Refused},
	}
	for _, step := range path[want] {
		steps[step]()
	}
	return s
}

// TestUnit has a case for each cell of table (c).
func TestUnit(t *testing.T) {
	all := func(to UnitState) map[UnitState]UnitState {
		cells := map[UnitState]UnitState{}
		for _, from := range unitStates {
			cells[from] = to
		}
		return cells
	}
	for name, tt := range map[string]struct {
		event func(*State)
		// want are the states that follow; a state that is missing stays.
		want map[UnitState]UnitState
	}{
		"Publish changes it":  {func(s *State) { s.Set(web, export(2)) }, map[UnitState]UnitState{Written: Wanted, Shown: Wanted, Refused: Wanted}},
		"Withdraw changes it": {func(s *State) { s.Set(web, nil) }, map[UnitState]UnitState{Written: Wanted, Shown: Wanted, Refused: Wanted}},
		"Publish repeats it":  {func(s *State) { s.Set(web, export(1)) }, nil},
		"the ID is held, and it is read": {
			func(s *State) { s.Adopt(webUnit, storedExport(1), false) }, map[UnitState]UnitState{Found: Wanted},
		},
		"due": {func(s *State) { begin(s, began.Add(testPause), 3) }, map[UnitState]UnitState{Wanted: Writing, Refused: Writing}},
		"the store shows it as it was written": {
			func(s *State) { s.Observe(began, webUnit, true, began) }, map[UnitState]UnitState{Written: Shown},
		},
		"a read shows another one": {func(s *State) { s.Observe(began, webUnit, false, began) }, map[UnitState]UnitState{Shown: Written}},
		"reads show another one for too long": {func(s *State) {
			s.Observe(began, webUnit, false, began)
			s.Observe(began.Add(testPatience), webUnit, false, began.Add(testPatience))
		}, map[UnitState]UnitState{Written: Wanted, Shown: Wanted, Refused: Wanted}},
		"the store has lost everything": {func(s *State) { s.Reset() }, map[UnitState]UnitState{Written: Wanted, Shown: Wanted}},
		"the ID is lost":                {func(s *State) { s.Lose(false) }, all(Found)},
	} {
		for _, from := range unitStates {
			t.Run(fmt.Sprintf("%s: %s", from, name), func(t *testing.T) {
				s := reached(from)
				if got := s.StateOf(webUnit); got != from {
					t.Fatalf("state %v before the event", got)
				}
				tt.event(s)
				want, changes := tt.want[from]
				if !changes {
					want = from
				}
				if got := s.StateOf(webUnit); got != want {
					t.Errorf("state %v, want %v", got, want)
				}
			})
		}
	}
}

// TestUnit_EndOfWrite has a case for each outcome of a write, and for each event while it was in
// progress.
func TestUnit_EndOfWrite(t *testing.T) {
	outcomes := []Outcome{Accepted, Unfit, Unanswered, Untried}
	for name, tt := range map[string]struct {
		meanwhile func(*State)
		want      [4]UnitState
		// counts is set if the result does.
		counts bool
	}{
		"nothing":                      {func(*State) {}, [4]UnitState{Written, Refused, Wanted, Wanted}, true},
		"its exports change":           {func(s *State) { s.Set(web, export(2)) }, [4]UnitState{Wanted, Wanted, Wanted, Wanted}, true},
		"the ID is lost":               {func(s *State) { s.Lose(false) }, [4]UnitState{Found, Found, Found, Found}, false},
		"the store is lost":            {func(s *State) { s.Reset() }, [4]UnitState{Wanted, Wanted, Wanted, Wanted}, false},
		"the ID is lost and held anew": {func(s *State) { s.Lose(false); s.Adopt(webUnit, Stored{}, false) }, [4]UnitState{Wanted, Wanted, Wanted, Wanted}, false},
	} {
		for i, outcome := range outcomes {
			t.Run(fmt.Sprintf("%s, outcome %d", name, outcome), func(t *testing.T) {
				s := reached(Writing)
				tt.meanwhile(s)
				if counts := s.End(began, webUnit, outcome, errTest); counts != tt.counts {
					t.Errorf("counts: %t, want %t", counts, tt.counts)
				}
				if got := s.StateOf(webUnit); got != tt.want[i] {
					t.Errorf("state %v, want %v", got, tt.want[i])
				}
				if _, isWriting := s.Writing(); isWriting {
					t.Error("it is still being written")
				}
				if !tt.counts && tt.want[i] == Wanted {
					// the store may have anything: it is written again as it is desired
					if again := begin(s, began.Add(time.Minute), 9); !slices.Equal(again, []belief.UnitName{webUnit}) {
						t.Errorf("written again: %v", again)
					}
				}
			})
		}
	}
}

// TestAdopt has a process take over what was found.
func TestAdopt(t *testing.T) {
	for name, tt := range map[string]struct {
		want   *mcs.Export
		found  Stored
		isTorn bool
		state  UnitState
		// writes are the exports that are written, none if it stays as it is.
		writes map[mcs.Key]mcs.Export
		isKept bool
	}{
		"nothing is found, nor desired":   {state: Shown, isKept: true},
		"as desired":                      {want: export(1), found: storedExport(1), state: Wanted, isKept: true},
		"another version":                 {want: export(2), found: storedExport(1), state: Wanted, writes: storedExport(2).Exports},
		"not desired any more":            {found: storedExport(1), state: Wanted, writes: map[mcs.Key]mcs.Export{}},
		"as desired, by a previous key":   {want: export(1), found: storedExport(1), isTorn: true, state: Wanted, writes: storedExport(1).Exports},
		"something that is not signed":    {isTorn: true, state: Wanted, writes: map[mcs.Key]mcs.Export{}},
		"only a withdrawal, nothing left": {state: Shown, isKept: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState()
			if tt.want != nil {
				s.Set(web, tt.want)
			}
			s.Adopt(webUnit, tt.found, tt.isTorn)
			if got := s.StateOf(webUnit); got != tt.state {
				t.Errorf("state %v, want %v", got, tt.state)
			}
			isKept := true
			for d := range s.Drafts(began) {
				if isKept = d.Has(); isKept {
					s.Keep(d, nil)
				} else if !equal(d.Exports, tt.writes) {
					t.Errorf("%v is written, want %v", d.Exports, tt.writes)
				}
			}
			if isKept != tt.isKept || isKept && !s.IsDecided() {
				t.Errorf("kept: %t, decided: %t, want %t and decided", isKept, s.IsDecided(), tt.isKept)
			}
		})
	}
}

func equal(a, b map[mcs.Key]mcs.Export) bool {
	return (&Draft{Exports: a, Stored: Stored{Exports: b}}).Has()
}

// TestAdopt_NoReplay: the store shows a version that this process has replaced.
func TestAdopt_NoReplay(t *testing.T) {
	s := reached(Shown)
	s.Set(web, export(5))
	begin(s, began, 5)
	s.End(began, webUnit, Accepted, nil)
	for _, found := range []Stored{storedExport(2), {}} {
		s.Lose(true)
		s.Adopt(webUnit, found, false)
		if version, isDecided := s.NameOf(began, webUnit); version.Generation != 5 || !isDecided {
			t.Errorf("found %v: the record names %v", found.Version, version)
		}
	}
	s.Lose(false)
	s.Adopt(webUnit, storedExport(2), false)
	if version, _ := s.NameOf(began, webUnit); version != (belief.Version{}) {
		t.Errorf("after another process: the record names %v", version)
	}
	if units := begin(s, began, 6); len(units) != 1 {
		t.Error("the desired version is not written")
	}
	s.Lose(true)
	s.End(began, webUnit, Unanswered, errTest)
	if s.Adopt(webUnit, storedExport(6), false); s.StoredOf(webUnit).IsNone() {
		t.Error("a version that a request without an answer has written is not adopted")
	}
}

// TestKeepWithdrawn: exports that were found stay as undecided ones, until they are withdrawn.
func TestKeepWithdrawn(t *testing.T) {
	s := newState()
	s.KeepWithdrawn(true)
	s.Adopt(webUnit, storedExport(1), false)
	for d := range s.Drafts(began) {
		if exp := d.Exports[web]; len(d.Exports) != 1 || len(exp.Ports) != 0 {
			t.Errorf("%v is written, want an undecided export", d.Exports)
		}
		s.Begin(began, d, belief.Version{Generation: 2}, nil)
	}
	s.End(began, webUnit, Accepted, nil)
	s.Observe(began, webUnit, true, began)
	if units := begin(s, began, 3); len(units) != 0 {
		t.Error("it is written again")
	}
	s.KeepWithdrawn(false)
	begin(s, began, 3)
	s.End(began, webUnit, Accepted, nil)
	if exports, units := s.Size(); exports != 0 || units != 0 {
		t.Errorf("%d exports in %d units are left", exports, units)
	}
}

// TestAdoptRest drops what there is nothing to know of.
func TestAdoptRest(t *testing.T) {
	s := newState()
	s.Set(web, nil)
	s.Adopt("other", Stored{Version: belief.Version{Generation: 1}, Exports: map[mcs.Key]mcs.Export{}}, false)
	s.AdoptRest()
	begin(s, began, 2)
	if _, isAsked := s.WantOf(web); isAsked || s.units[webUnit] != nil {
		t.Error("a withdrawal that is complete is remembered")
	}
	if got := s.StateOf(webUnit); got != Shown {
		t.Errorf("a unit that does not exist is %v, want Shown", got)
	}
	s.Observe(began, webUnit, false, began.Add(testPatience)) // another user writes it
	for d := range s.Drafts(began) {
		if d.Unit != webUnit || d.Has() || len(d.Exports) > 0 {
			t.Errorf("draft %+v, want the removal", d)
		}
		return
	}
	t.Error("it is not removed")
}
