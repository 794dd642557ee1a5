package desired

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

func TestStatusOf(t *testing.T) {
	shownAs := func(n int) ShownExport {
		exp := storedExport(n).Exports[web]
		return ShownExport{Presence: Present, Export: &exp}
	}
	hidden, absent, unseen := ShownExport{Presence: Present}, ShownExport{Presence: Absent}, ShownExport{}
	for name, tt := range map[string]struct {
		want    *mcs.Export
		isAsked bool
		shown   ShownExport
		status  registry.PublishState
	}{
		"desired, shown":                 {export(1), true, shownAs(1), registry.Exported},
		"desired, another one is shown":  {export(1), true, shownAs(2), registry.Pending},
		"desired, written and not shown": {export(1), true, hidden, registry.Pending},
		"desired, absent":                {export(1), true, absent, registry.Pending},
		"desired, not read":              {export(1), true, unseen, registry.Pending},
		"withdrawn, shown":               {nil, true, shownAs(1), registry.Pending},
		"withdrawn, removal not shown":   {nil, true, hidden, registry.Pending},
		"withdrawn, absent":              {nil, true, absent, registry.Absent},
		"withdrawn, not read":            {nil, true, unseen, registry.Pending},
		"not asked, shown":               {nil, false, shownAs(1), registry.Exported},
		"not asked, removal not shown":   {nil, false, hidden, registry.Pending},
		"not asked, absent":              {nil, false, absent, registry.Absent},
		"not asked, not read":            {nil, false, unseen, registry.Absent},
	} {
		if got := StatusOf(tt.want, tt.isAsked, tt.shown); got != tt.status {
			t.Errorf("%s: %v, want %v", name, got, tt.status)
		}
	}
}

// TestState_StatusOfReason: a pending export has the reason that is closest to it.
func TestState_StatusOfReason(t *testing.T) {
	omitted, undone := errors.New("omitted"), errors.New("undone")
	for name, tt := range map[string]struct {
		set  func(*State)
		want error
	}{
		"nothing fails":      {func(*State) {}, nil},
		"it is refused":      {func(s *State) { s.End(began, webUnit, Unfit, errTest) }, errTest},
		"it has no answer":   {func(s *State) { s.End(began, webUnit, Unanswered, errTest) }, errTest},
		"tried again":        {func(s *State) { s.End(began, webUnit, Unanswered, errTest); begin(s, began.Add(time.Minute), 3) }, errTest},
		"accepted and void":  {func(s *State) { s.End(began, webUnit, Accepted, nil); s.RecordUndone(webUnit, undone) }, undone},
		"then it is written": {func(s *State) { s.End(began, webUnit, Accepted, nil) }, nil},
		"it is left out": {func(s *State) {
			s.End(began, webUnit, Unanswered, errTest)
			for d := range s.Drafts(began.Add(time.Minute)) {
				s.Refuse(began, d, map[mcs.Key]error{web: omitted}, errTest)
			}
		}, omitted},
	} {
		s := reached(Writing)
		tt.set(s)
		if got := s.StatusOf(web, ShownExport{}); got.State != registry.Pending || !errors.Is(got.Err, tt.want) || (got.Err == nil) != (tt.want == nil) {
			t.Errorf("%s: %+v, want %v", name, got, tt.want)
		}
	}
}

// TestNameOf has the name of a unit in the record, for each state.
func TestNameOf(t *testing.T) {
	const undecided, none = "undecided", "none"
	first := map[UnitState]string{Found: undecided, Wanted: none, Writing: undecided, Written: "2", Shown: "2", Refused: none}
	for _, state := range unitStates {
		name := func(s *State) string {
			switch version, isDecided := s.NameOf(began, webUnit); {
			case !isDecided:
				return undecided
			case version.Generation == 0:
				return none
			default:
				return fmt.Sprint(version.Generation)
			}
		}
		s := reached(state)
		if got := name(s); got != first[state] {
			t.Errorf("%v, of the first process: %s, want %s", state, got, first[state])
		}
		s.SetPredecessor(true)
		want := first[state]
		if state == Wanted {
			want = undecided
		}
		if got := name(s); got != want {
			t.Errorf("%v, of a later process: %s, want %s", state, got, want)
		}
	}
	s := reached(Writing)
	s.End(began, webUnit, Unanswered, errTest)
	if _, isDecided := s.NameOf(began, webUnit); isDecided {
		t.Error("a unit that a write without an answer may have written is decided")
	}
	s.Set(web, nil)
	begin(s, began.Add(time.Minute), 3)
	if _, isDecided := s.NameOf(began, webUnit); isDecided {
		t.Error("it is decided while its removal is in progress")
	}
	s.End(began, webUnit, Accepted, nil)
	if version, isDecided := s.NameOf(began, webUnit); !isDecided || version.Generation != 0 {
		t.Errorf("after its removal: %v, decided: %t", version, isDecided)
	}
	if version, isDecided := s.NameOf(began, "unknown"); isDecided {
		t.Errorf("a unit that was not found yet is %v", version)
	}
}

// TestNameOf_SlowWrite: while a write is slow, or has no answer, the version before is not named.
func TestNameOf_SlowWrite(t *testing.T) {
	s := reached(Shown)
	want := func(when string, after time.Duration, want int64) {
		t.Helper()
		version, isDecided := s.NameOf(began.Add(after), webUnit)
		if isDecided != (want != 0) || isDecided && version.Generation != want || s.IsSlow(began.Add(after), webUnit) == isDecided {
			t.Errorf("%s: named is %v, decided: %t, want %d (0 for undecided)", when, version, isDecided, want)
		}
	}
	s.Set(web, export(3))
	begin(s, began, 3)
	want("begun", slowWrite-1, 2)
	want("slow", slowWrite, 0)
	s.End(began, webUnit, Unanswered, errTest)
	want("no answer", slowWrite-1, 2)
	want("no answer for long", slowWrite, 0)
	begin(s, began.Add(time.Minute), 4)
	want("written again", time.Minute, 0)
	s.End(began.Add(time.Minute), webUnit, Unfit, errTest)
	want("the second write refused", 2*time.Minute, 0)
	s.Set(web, export(5))
	begin(s, began.Add(time.Hour), 5)
	s.End(began.Add(time.Hour), webUnit, Accepted, nil)
	want("accepted", time.Hour, 5)
	s.Set(web, export(6))
	begin(s, began.Add(2*time.Hour), 6)
	want("the next write", 2*time.Hour, 5)
}

// TestNamedSet has the set of the units as they change.
func TestNamedSet(t *testing.T) {
	digestOf := func(generation int64) (d belief.SetDigest) {
		if generation != 0 {
			d = d.With(webUnit, generation)
		}
		return d
	}
	s := reached(Writing)
	check := func(when string, want int64, written ...belief.UnitName) {
		t.Helper()
		count, digest := s.NamedSet(written...)
		if digest != digestOf(want) || (count != 0) != (want != 0) {
			t.Errorf("%s: %d units, not generation %d", when, count, want)
		}
	}
	check("before the write", 0)
	check("after the write", 2, webUnit)
	s.End(began, webUnit, Accepted, nil)
	check("written", 2)
	s.Set(web, nil)
	begin(s, began, 3)
	check("while it is removed", 2)
	check("after the removal", 0, webUnit)
	s.Lose(true)
	s.End(began, webUnit, Accepted, nil)
	s.Adopt(webUnit, storedExport(9), false)
	check("adopted", 9)
}
