package desired

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// TestDueAt: a unit that has failed often takes turns with the others that have, and one that has
// failed once does not wait for them. A change waits for the pace of its namespace.
func TestDueAt(t *testing.T) {
	early, late := began.Add(testPause), began.Add(time.Minute)
	for name, tt := range map[string]struct {
		u            unit
		turnAt, want time.Time
	}{
		"failed a few times":            {unit{isTorn: true, failures: eagerWrites, retryAt: early}, late, early},
		"failed often":                  {unit{isTorn: true, failures: eagerWrites + 1, retryAt: early}, late, late},
		"failed often, its own is late": {unit{isTorn: true, failures: eagerWrites + 1, retryAt: late}, early, late},
		"changed":                       {unit{changed: map[string]struct{}{"quiet": {}}}, late, time.Time{}},
		"changed by a busy namespace":   {unit{changed: map[string]struct{}{"busy": {}}}, late, began.Add(3 * time.Second)},
		"changed by a quiet one too":    {unit{changed: map[string]struct{}{"busy": {}, "quiet": {}}}, late, time.Time{}},
		"torn, of a busy namespace":     {unit{isTorn: true, changed: map[string]struct{}{"busy": {}}}, late, time.Time{}},
	} {
		s := newState()
		s.cfg.Pace.Charge(began, "busy", 5)
		s.nextTurnAt = tt.turnAt
		if got := s.dueAt(&tt.u); !got.Equal(tt.want) {
			t.Errorf("%s: due at %v, want %v", name, got, tt.want)
		}
	}
}

// adopted returns a State that holds the ID, with an export of each of these namespaces desired.
func adopted(namespaces ...string) *State {
	s := newState()
	s.AdoptRest()
	for _, namespace := range namespaces {
		exp := export(1)
		exp.Key.Namespace = namespace
		s.Set(exp.Key, exp)
	}
	return s
}

// TestPending: a unit that cannot be written waits for its retry; the others do not.
func TestPending(t *testing.T) {
	s := adopted("a")
	check := func(when string, now time.Time, want Pending) {
		t.Helper()
		if got := s.Pending(now); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	retry := began.Add(testPause)
	check("after a change", began, Pending{Changed: 1})
	begin(s, began, 2)
	check("while it is written", began, Pending{})
	s.End(began, "a", Unanswered, errTest)
	check("before the retry", began, Pending{Again: retry})
	other := export(1)
	other.Key.Namespace = "b"
	s.Set(other.Key, other)
	check("with another unit", began, Pending{Changed: 1, Again: retry})
	check("at the retry", retry, Pending{Changed: 1, Torn: 1})
	if n := s.CountWaiting(); n != 2 {
		t.Errorf("%d units wait, want 2", n)
	}
	if s.Problem() == nil {
		t.Error("writing has no problem")
	}
	begin(s, began, 2)
	s.End(began, "b", Accepted, nil)
	check("after another one was written", began, Pending{Again: retry})
}

// TestRecover: as soon as a unit that had failed is written, all others that have failed are due,
// but for those that the store refuses.
func TestRecover(t *testing.T) {
	s := adopted("a", "b", "c")
	begin(s, began, 2)
	s.End(began, "a", Unanswered, errTest)
	s.End(began, "b", Unanswered, errTest)
	s.End(began, "c", Unfit, errTest)
	now := began.Add(testPause)
	for d := range s.Drafts(now) {
		outcome := Unanswered
		if d.Unit == "c" {
			outcome = Unfit
		}
		s.Begin(now, d, belief.Version{Generation: 3}, nil)
		s.End(now, d.Unit, outcome, errTest)
	}
	for d := range s.Drafts(now.Add(2 * testPause)) {
		s.Begin(now, d, belief.Version{Generation: 4}, nil)
		s.End(now, d.Unit, Accepted, nil)
		break
	}
	if got := s.Pending(now); got.Torn != 1 || got.Again.IsZero() {
		t.Errorf("%+v: want that of the others one is due, and the refused one waits", got)
	}
}

// TestTurns: of many units that fail, one is written in each turn.
func TestTurns(t *testing.T) {
	var namespaces []string
	for i := range 20 {
		namespaces = append(namespaces, fmt.Sprint("ns-", i))
	}
	s := adopted(namespaces...)
	written := map[time.Duration]int{}
	for now := began; now.Sub(began) < 10*time.Minute; now = now.Add(time.Second) {
		for _, unit := range begin(s, now, now.Unix()) {
			s.End(now, unit, Unanswered, errTest)
			written[now.Sub(began).Truncate(time.Minute)]++
		}
	}
	if n := written[9*time.Minute]; n != int(time.Minute/turnSpacing) {
		t.Errorf("%d writes in the last minute, want one for each turn", n)
	}
}

// TestDrafts: withdrawals come first, then those that wait for the longest time.
func TestDrafts(t *testing.T) {
	s := adopted("c", "a", "b", "d")
	begin(s, began, 2)
	for _, unit := range []belief.UnitName{"a", "b", "c", "d"} {
		s.End(began, unit, Accepted, nil)
	}
	for _, namespace := range []string{"b", "d", "a", "c"} {
		key := mcs.Key{Namespace: namespace, Name: web.Name}
		var exp *mcs.Export
		if namespace == "b" || namespace == "d" {
			exp = export(2)
			exp.Key = key
		}
		s.Set(key, exp)
	}
	var order []belief.UnitName
	for d := range s.Drafts(began) {
		order = append(order, d.Unit)
	}
	if want := []belief.UnitName{"a", "c", "b", "d"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// TestPostpone: a draft that waits for something else is not due before.
func TestPostpone(t *testing.T) {
	s := adopted("a")
	s.Postpone("a", began.Add(time.Second))
	if got := s.Pending(began); got != (Pending{Again: began.Add(time.Second)}) {
		t.Errorf("postponed: %+v", got)
	}
	s.Postpone("a", time.Time{})
	if got := s.Pending(began); got != (Pending{Changed: 1}) {
		t.Errorf("not any more: %+v", got)
	}
}

// TestReconsider: an export that was left out is tried again once there may be room, and not
// before.
func TestReconsider(t *testing.T) {
	s := adopted("a")
	for d := range s.Drafts(began) {
		d.Exports = nil
		s.Keep(d, map[mcs.Key]error{{Namespace: "a", Name: web.Name}: errTest})
	}
	s.Reconsider(func(key mcs.Key) bool { return key.Namespace == "b" })
	if got := s.Pending(began); got != (Pending{}) {
		t.Errorf("room for others: %+v", got)
	}
	s.Reconsider(func(key mcs.Key) bool { return key.Namespace == "a" })
	if got := s.Pending(began); got.Changed != 1 {
		t.Errorf("room: %+v", got)
	}
}
