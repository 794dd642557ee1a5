package rules_test

import (
	"slices"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
)

func TestVoid(t *testing.T) {
	good := func() []rules.Run {
		var runs []rules.Run
		for i := range 3 {
			runs = append(runs, rules.Run{Took: 1300, Floor: 1000 + 125*float64(i), Clock: [2]float64{80, 100}, Others: 10})
		}
		return runs
	}
	for name, tt := range map[string]struct {
		change  func([]rules.Run) []rules.Run
		noFloor bool
		want    []string
	}{
		"good runs":          {change: func(r []rules.Run) []rules.Run { return r }},
		"no runs":            {change: func([]rules.Run) []rules.Run { return nil }, want: []string{"0 of 3 runs"}},
		"two runs":           {change: func(r []rules.Run) []rules.Run { return r[:2] }, want: []string{"2 of 3 runs"}},
		"four runs":          {change: func(r []rules.Run) []rules.Run { return append(r, r[0]) }},
		"as fast as a floor": {change: func(r []rules.Run) []rules.Run { r[1].Took = 1125; return r }},
		"faster than a floor": {
			change: func(r []rules.Run) []rules.Run { r[1].Took = 1124; return r },
			want:   []string{"run 2 took 1124 ms, less than its floor of 1125 ms"},
		},
		"no floor of a run": {
			change: func(r []rules.Run) []rules.Run { r[2].Floor = 0; return r },
			want:   []string{"run 3 has no floor", "the floor was between 0 and 1125 ms"},
		},
		"floors that differ": {
			change: func(r []rules.Run) []rules.Run { r[0].Floor = 990; return r },
			want:   []string{"the floor was between 990 and 1250 ms"},
		},
		"a count has no floor": {change: func(r []rules.Run) []rules.Run { r[0].Floor, r[1].Took = 0, 1; return r }, noFloor: true},
		"a slower machine": {
			change: func(r []rules.Run) []rules.Run { r[2].Clock[1] = 101; return r }, noFloor: true,
			want: []string{"the same computation took between 80 and 101 ms"},
		},
		"other programs": {
			change: func(r []rules.Run) []rules.Run { r[0].Others = 35; return r }, noFloor: true,
			want: []string{"other programs used 35 % of the processors at run 1"},
		},
	} {
		if got := rules.Void(tt.change(good()), !tt.noFloor); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
