package state

import (
	"slices"
	"testing"
	"time"
)

func TestRhythm(t *testing.T) {
	const quiet = 50 * time.Millisecond
	type change struct {
		after time.Duration // since the change before
		page  int
	}
	alone, nearby := change{after: time.Second, page: 1}, change{after: quiet - 1, page: 1}
	other := change{after: time.Second, page: 2}
	before, learned := slices.Repeat([]change{other}, lonely-1), slices.Repeat([]change{alone}, lonely)
	for name, tt := range map[string]struct {
		changes []change
		isNew   bool
		want    bool
	}{
		"the first change":             {changes: []change{alone}},
		"after few changes":            {changes: learned},
		"after enough changes":         {changes: append(before, alone, alone), want: true},
		"as soon as it is not close":   {changes: append(before, alone, change{after: quiet, page: 1}), want: true},
		"of a page that had no change": {changes: append(learned, other)},
		"a new export":                 {changes: append(before, alone, alone), isNew: true},
		"close to another one":         {changes: append(learned, alone, nearby)},
		"close to one of another page": {changes: append(learned, alone, change{after: 1, page: 2})},
		"soon after two were close":    {changes: append(learned, alone, nearby, alone, alone)},
		"long after two were close":    {changes: slices.Concat(learned, []change{alone, nearby}, learned, []change{alone}), want: true},
		"of a page whose last change another was close to, long after": {changes: slices.Concat(learned, []change{alone, {after: 1, page: 2}},
			slices.Repeat([]change{{after: time.Second, page: 3}}, lonely+1), []change{alone})},
	} {
		var r rhythm
		now := time.UnixMilli(1_800_000_000_000)
		for i, c := range tt.changes {
			now = now.Add(c.after)
			r.observe(now, c.page, !tt.isNew || i < len(tt.changes)-1, quiet)
		}
		if r.expectsAlone != tt.want {
			t.Errorf("%s: expected alone: %t, want %t", name, r.expectsAlone, tt.want)
		}
	}
}
