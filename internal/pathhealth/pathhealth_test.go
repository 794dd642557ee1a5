package pathhealth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

func at(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }

// roundInterval is the interval of the simulated rounds in seconds. A decision follows every
// second.
const roundInterval = 5

// phase has the results of the probes of a cluster from a second on.
type phase struct {
	from int
	// controller and endpoints are "ok", "fail", "idle" (targets that are not probed) or "" (no
	// targets). endpoints can have a number of targets: "fail 1".
	controller, endpoints string
	// others are "notified" and "alive", if peer notifications and heartbeats arrive.
	others string
}

func outcome(text string) Outcome {
	o := Outcome{Targets: 2}
	word, _ := text, 0
	if n, err := fmt.Sscanf(text, "%s %d", &word, &o.Targets); n == 0 && err != nil {
		return Outcome{}
	}
	switch word {
	case "ok":
		o.Probed, o.Reached = o.Targets, 1
	case "fail":
		o.Probed = o.Targets
	}
	return o
}

func resultAt(phases []phase, second int) Result {
	var r Result
	for _, p := range phases {
		if p.from <= second {
			r.Outcomes = [kinds]Outcome{Controller: outcome(p.controller), Endpoints: outcome(p.endpoints)}
		}
	}
	for i, p := range phases {
		until := second
		if i+1 < len(phases) {
			until = min(until, phases[i+1].from)
		}
		if p.from <= second && strings.Contains(p.others, "notified") {
			r.Notified = at(until)
		}
		if p.from <= second && strings.Contains(p.others, "alive") {
			r.Heartbeat = at(until - until%12)
		}
	}
	return r
}

// simulate returns the states of cls2 as "second state", one for each change. Rounds in pauses are
// left out.
func simulate(tracker *Tracker, phases []phase, until int, pauses ...[2]int) (changes []string) {
	before := Undecided
	for second := range until + 1 {
		paused := slices.ContainsFunc(pauses, func(p [2]int) bool { return p[0] <= second && second < p[1] })
		if second%roundInterval == 0 && !paused {
			tracker.Observe(at(second), at(second), map[string]Result{"cls2": resultAt(phases, second)})
		}
		if paused {
			continue
		}
		if state := tracker.Decide(at(second)).State("cls2"); state != before {
			before = state
			name := string(state)
			if state == Undecided {
				name = "Undecided"
			}
			changes = append(changes, fmt.Sprintf("%d %s", second, name))
		}
	}
	return changes
}

func TestTracker(t *testing.T) {
	tests := map[string]struct {
		phases   []phase
		restored bool
		pauses   [][2]int
		want     string
	}{
		"all probes succeed":                         {phases: []phase{{0, "ok", "ok", ""}}, want: "10 Reachable"},
		"a path that was never reached":              {phases: []phase{{0, "fail", "fail", ""}}, want: "60 Unknown"},
		"both kinds fail for 30 s":                   {phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}}, want: "10 Reachable, 85 Unreachable"},
		"both kinds fail for 25 s":                   {phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}, {80, "ok", "ok", ""}}, want: "10 Reachable"},
		"the path is back":                           {phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}, {120, "ok", "ok", ""}}, want: "10 Reachable, 85 Unreachable, 130 Reachable"},
		"the path is back for 5 s":                   {phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}, {120, "ok", "fail", ""}, {130, "fail", "fail", ""}}, want: "10 Reachable, 85 Unreachable"},
		"the controller alone fails":                 {phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "ok", ""}}, want: "10 Reachable"},
		"the endpoints alone fail":                   {phases: []phase{{0, "ok", "ok", ""}, {60, "ok", "fail", ""}}, want: "10 Reachable"},
		"endpoints refuse for another reason":        {phases: []phase{{0, "ok", "ok", ""}, {60, "ok", "fail", ""}, {120, "fail", "fail", ""}}, want: "10 Reachable"},
		"endpoints never answered":                   {phases: []phase{{0, "ok", "fail", ""}, {60, "fail", "fail", ""}}, want: "10 Reachable"},
		"the health port never answered":             {phases: []phase{{0, "fail", "ok", ""}, {60, "fail", "fail", ""}}, want: "10 Reachable, 85 Unreachable"},
		"the registry has no address of controllers": {phases: []phase{{0, "", "ok", ""}, {60, "", "fail", ""}}, want: "10 Reachable, 85 Unreachable"},
		"one endpoint alone fails":                   {phases: []phase{{0, "", "ok 1", ""}, {60, "", "fail 1", ""}}, want: "10 Reachable"},
		"one endpoint and the controller fail":       {phases: []phase{{0, "ok", "ok 1", ""}, {60, "fail", "fail 1", ""}}, want: "10 Reachable, 85 Unreachable"},
		"no endpoints: the controller may be down":   {phases: []phase{{0, "ok", "", ""}, {60, "fail", "", ""}}, want: "10 Reachable"},
		"endpoints are rarely probed":                {phases: []phase{{0, "ok", "ok", ""}, {5, "ok", "idle", ""}, {60, "fail", "idle", ""}, {65, "fail", "fail", ""}}, want: "10 Reachable, 85 Unreachable"},
		"a controller without endpoints stops":       {phases: []phase{{0, "ok", "", "notified alive"}, {60, "fail", "", ""}}, want: "10 Reachable"},
		"a controller without endpoints cannot be reached": {
			phases: []phase{{0, "ok", "", "notified alive"}, {60, "fail", "", "alive"}}, want: "10 Reachable, 90 Unreachable",
		},
		"blocked endpoints, and the controller cannot be reached": {
			phases: []phase{{0, "ok", "fail", "notified alive"}, {60, "fail", "fail", "alive"}}, want: "10 Reachable, 90 Unreachable",
		},
		"blocked endpoints, and peer notifications arrive": {
			phases: []phase{{0, "ok", "fail", "notified alive"}, {60, "fail", "fail", "notified alive"}}, want: "10 Reachable",
		},
		"no targets are left": {phases: []phase{{0, "ok", "ok", ""}, {60, "", "", ""}}, want: "10 Reachable, 60 Undecided, 120 Unknown"},
		"no targets for a moment": {
			phases: []phase{{0, "", "ok", ""}, {60, "", "", ""}, {65, "", "ok", ""}}, want: "10 Reachable, 60 Undecided, 75 Reachable",
		},
		"no targets for a moment, then the path fails": {
			phases: []phase{{0, "", "ok", ""}, {60, "", "", ""}, {65, "", "fail", ""}}, want: "10 Reachable, 60 Undecided, 90 Unreachable",
		},
		"no targets for 55 s, then the path fails": {
			phases: []phase{{0, "", "ok", ""}, {60, "", "", ""}, {115, "", "fail", ""}}, want: "10 Reachable, 60 Undecided, 140 Unreachable",
		},
		"no targets for a long time, then the path fails": {
			phases: []phase{{0, "", "ok", ""}, {60, "", "", ""}, {130, "", "fail", ""}}, want: "10 Reachable, 60 Undecided, 120 Unknown, 130 Undecided, 155 Unreachable",
		},
		"no targets for a moment while the path fails": {
			phases: []phase{{0, "", "ok", ""}, {60, "", "fail", ""}, {100, "", "", ""}, {105, "", "fail", ""}}, want: "10 Reachable, 85 Unreachable, 100 Undecided, 130 Unreachable",
		},
		"no targets for a moment, never reached":       {phases: []phase{{0, "", "fail", ""}, {70, "", "", ""}, {75, "", "fail", ""}}, want: "60 Unknown"},
		"a process starts while the path fails":        {phases: []phase{{0, "fail", "fail", ""}}, restored: true, want: "30 Unreachable"},
		"a process starts after the path was restored": {phases: []phase{{0, "ok", "ok", ""}}, restored: true, want: "10 Reachable"},
		"a process starts, and its targets are known later": {
			phases: []phase{{0, "", "", ""}, {10, "", "fail", ""}}, restored: true, want: "35 Unreachable",
		},
		"a process starts without targets": {phases: []phase{{0, "", "", ""}}, restored: true, want: "60 Unknown"},
		"the process was suspended": {
			phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}, {100, "ok", "ok", ""}}, pauses: [][2]int{{65, 95}}, want: "10 Reachable",
		},
		"the process was suspended, and the path fails": {
			phases: []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}}, pauses: [][2]int{{65, 95}}, want: "10 Reachable, 125 Unreachable",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var restored []string
			if tt.restored {
				restored = []string{"cls2"}
			}
			got := strings.Join(simulate(NewTracker(DefaultRules, restored), tt.phases, 200, tt.pauses...), ", ")
			if got != tt.want {
				t.Errorf("states %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTracker_RemovesMembersThatLeft(t *testing.T) {
	tracker := NewTracker(DefaultRules, nil)
	ok := Result{Outcomes: [kinds]Outcome{outcome("ok"), outcome("ok")}}
	tracker.Observe(at(0), at(0), map[string]Result{"cls2": ok, "cls3": ok})
	tracker.Observe(at(5), at(5), map[string]Result{"cls3": ok})
	if v := tracker.Decide(at(20)); len(v.Paths) != 1 || v.State("cls3") != Reachable || v.State("cls2") != Undecided {
		t.Errorf("verdict %+v, want cls3 alone", v)
	}
}

func TestVerdict_FaultHere(t *testing.T) {
	good, bad := []phase{{0, "ok", "ok", ""}}, []phase{{0, "ok", "ok", ""}, {60, "fail", "fail", ""}}
	never := []phase{{0, "fail", "fail", ""}}
	tests := map[string]struct {
		clusters [][]phase
		stale    int // the number of clusters, from the last, that are stale
		want     bool
	}{
		"the only other cluster":                      {clusters: [][]phase{bad}},
		"one of two others":                           {clusters: [][]phase{good, bad}},
		"both others":                                 {clusters: [][]phase{bad, bad}, want: true},
		"two of three others":                         {clusters: [][]phase{good, bad, bad}},
		"three of four others":                        {clusters: [][]phase{good, bad, bad, bad}, want: true},
		"clusters that were never reached":            {clusters: [][]phase{bad, bad, never, never, never}, want: true},
		"two others, of which one is down":            {clusters: [][]phase{bad, bad}, stale: 1},
		"three of four others, of which two are down": {clusters: [][]phase{good, bad, bad, bad}, stale: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(DefaultRules, nil)
			for second := 0; second <= 120; second += roundInterval {
				results := map[string]Result{}
				for i, phases := range tt.clusters {
					r := resultAt(phases, second)
					r.Stale = second > 60 && i >= len(tt.clusters)-tt.stale
					results[fmt.Sprint("cls", i+2)] = r
				}
				tracker.Observe(at(second), at(second), results)
				tracker.Decide(at(second))
			}
			if v := tracker.Decide(at(121)); v.FaultHere != tt.want {
				t.Errorf("FaultHere is %v with %v unreachable, want %v", v.FaultHere, v.Unreachable(), tt.want)
			}
		})
	}
}

func TestVerdict_Changed(t *testing.T) {
	verdict := func(here bool, text string) Verdict {
		v := Verdict{Paths: map[string]Path{}, FaultHere: here}
		for _, word := range strings.Fields(text) {
			id, state, _ := strings.Cut(word, "=")
			v.Paths[id] = Path{State: State(state)}
		}
		return v
	}
	tests := []struct {
		before, after Verdict
		want          string
	}{
		{verdict(false, ""), verdict(false, "cls2="), ""},
		{verdict(false, "cls2="), verdict(false, "cls2=Unknown"), "cls2"},
		{verdict(false, "cls2=Unknown"), verdict(false, "cls2=Reachable"), "cls2"},
		{verdict(false, "cls2=Reachable cls3=Reachable"), verdict(false, "cls2=Unreachable cls3=Reachable"), "cls2"},
		{verdict(false, "cls2=Unreachable cls3=Reachable"), verdict(true, "cls2=Unreachable cls3=Reachable"), "cls2"},
		{verdict(false, "cls2=Unreachable"), verdict(false, ""), "cls2"},
	}
	for _, tt := range tests {
		if got := strings.Join(tt.after.Changed(tt.before), " "); got != tt.want {
			t.Errorf("from %v to %v changed %q, want %q", tt.before, tt.after, got, tt.want)
		}
	}
}

// For all results of probes: a cluster becomes unreachable only if it was reached before, after the
// time without any success, and independently of other clusters.
func TestTrackerProperties(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		script := func() (phases []phase) {
			words := []string{"ok", "fail", "fail", "fail", "idle", ""}
			others := []string{"", "alive", "notified alive"}
			for second := 0; second < 600; second += 5 + random.IntN(90) {
				phases = append(phases, phase{second, words[random.IntN(len(words))], words[random.IntN(len(words))], others[random.IntN(len(others))]})
			}
			return phases
		}
		mine, theirs := script(), script()
		together, alone := NewTracker(DefaultRules, nil), NewTracker(DefaultRules, nil)
		lastSuccess := -1
		before := Undecided
		for second := range 600 {
			if second%roundInterval == 0 {
				r := resultAt(mine, second)
				together.Observe(at(second), at(second), map[string]Result{"cls2": r, "cls3": resultAt(theirs, second)})
				alone.Observe(at(second), at(second), map[string]Result{"cls2": r})
				if r.Outcomes[Controller].Reached+r.Outcomes[Endpoints].Reached > 0 {
					lastSuccess = second
				}
			}
			state := together.Decide(at(second)).State("cls2")
			if other := alone.Decide(at(second)).State("cls2"); other != state {
				t.Fatalf("seed %d, second %d: the state is %s with another cluster and %s without", seed, second, state, other)
			}
			if state == Unreachable && before != Unreachable && (lastSuccess < 0 || second-lastSuccess < 30) {
				t.Fatalf("seed %d, second %d: unreachable, last success at %d", seed, second, lastSuccess)
			}
			before = state
		}
	}
}
