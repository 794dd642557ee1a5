package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
)

// section is a part of the results that can be measured by itself.
type section struct {
	name  string
	units func() []unit
	table interface {
		// fill sets the rows of a unit from its runs.
		fill(r *Results, unit string)
		// hasRunless reports whether there are rows without runs.
		hasRunless(r *Results) bool
		// void returns which rows do not count, with the reasons.
		void(r *Results) []string
		// missed returns which rows missed which targets.
		missed(r *Results, section string) []string
		targetNames() []string
	}
}

func sectionOf(name string) section {
	return sections[slices.IndexFunc(sections, func(s section) bool { return s.name == name })]
}

// unit is what one run measures: a section, or the part of it with clusters of its own.
type unit struct {
	name    string
	measure func(context.Context, *Rows) error
}

// measured is a row of a section.
type measured interface {
	// unit is the name of the unit that measures it, name that of the row, in each run.
	unit() string
	name() string
	// figure is the value by which the median is taken.
	figure() float64
	// floor is nil if the row is not a time of writes to API servers.
	floor() *floor
}

// floor has a time of a row, and that of the same writes without the product, in milliseconds.
type floor struct{ took, alone float64 }

// table is the rows of a section. compare is their order, without it that of the measurement.
type table[T measured] struct {
	of      func(*Rows) *[]T
	targets []target[T]
	compare func(a, b T) int
}

func (t table[T]) fill(r *Results, unit string) {
	rows := t.of(&r.Rows)
	isOf := func(row T) bool { return row.unit() == unit }
	at := slices.IndexFunc(*rows, isOf)
	if at < 0 {
		at = len(*rows)
	}
	*rows = slices.Insert(slices.DeleteFunc(slices.Clone(*rows), isOf), at, t.medians(r.Runs[unit])...)
	if t.compare != nil {
		slices.SortStableFunc(*rows, t.compare)
	}
}

func (t table[T]) hasRunless(r *Results) bool {
	return slices.ContainsFunc(*t.of(&r.Rows), func(row T) bool { return len(r.Runs[row.unit()]) == 0 })
}

// medians returns each row of the runs, from the run in which its figure is the median. It is never
// a mean of several runs, so that all values of a row belong together.
func (t table[T]) medians(runs []Run) (out []T) {
	byName := map[string][]T{}
	var names []string
	for _, run := range runs {
		for _, row := range *t.of(&run.Rows) {
			if byName[row.name()] == nil {
				names = append(names, row.name())
			}
			byName[row.name()] = append(byName[row.name()], row)
		}
	}
	for _, name := range names {
		rows := byName[name]
		slices.SortStableFunc(rows, func(a, b T) int { return cmp.Compare(a.figure(), b.figure()) })
		out = append(out, rows[len(rows)/2])
	}
	return out
}

// void groups the rows by their reasons.
func (t table[T]) void(r *Results) (out []string) {
	byReasons := map[string][]string{}
	counts := map[string]int{}
	var order []string
	for _, row := range *t.of(&r.Rows) {
		text := strings.Join(rules.Void(t.runsOf(r, row)), ", ")
		if text == "" {
			continue
		}
		if byReasons[text] == nil {
			order = append(order, text)
		}
		counts[text]++
		if line := lineOf(row); !slices.Contains(byReasons[text], line) {
			byReasons[text] = append(byReasons[text], line)
		}
	}
	for _, text := range order {
		names := strings.Join(byReasons[text], "; ")
		if counts[text] == len(*t.of(&r.Rows)) {
			names = "all rows"
		}
		out = append(out, names+": "+text)
	}
	return out
}

// lineOf returns the name of the line of the page that a row is part of.
func lineOf(row measured) string {
	if p, ok := row.(Propagation); ok {
		return p.line()
	}
	return row.name()
}

// check returns an error if rows of the sections do not count, or missed targets.
func (r *Results) check(chosen []string) error {
	var problems []error
	for _, s := range sections {
		if !slices.Contains(chosen, s.name) {
			continue
		}
		for _, rows := range s.table.void(r) {
			problems = append(problems, fmt.Errorf("%s: void: %s", s.name, rows))
		}
		for _, miss := range s.table.missed(r, s.name) {
			problems = append(problems, fmt.Errorf("%s: missed, with the target: %s", s.name, miss))
		}
	}
	return errors.Join(problems...)
}

// runsOf returns the runs of a row, and whether it has a floor.
func (t table[T]) runsOf(r *Results, row T) (runs []rules.Run, hasFloor bool) {
	for _, run := range r.Runs[row.unit()] {
		one := rules.Run{Clock: run.ClockMS, Others: run.Others}
		rows := *t.of(&run.Rows)
		i := slices.IndexFunc(rows, func(other T) bool { return other.name() == row.name() })
		if i < 0 {
			continue
		}
		if f := rows[i].floor(); f != nil {
			one.Took, one.Floor = f.took, f.alone
		}
		runs = append(runs, one)
	}
	return runs, row.floor() != nil
}

// measure measures all units of the sections, and saves the results after each run.
func (r *Results) measure(ctx context.Context, chosen []string, draft bool) error {
	for _, s := range sections {
		if !slices.Contains(chosen, s.name) {
			continue
		}
		for _, u := range s.units() {
			if err := r.measureUnit(ctx, s, u, draft); err != nil {
				return fmt.Errorf("measuring %s: %w", u.name, err)
			}
		}
	}
	return nil
}

func (r *Results) measureUnit(ctx context.Context, s section, u unit, draft bool) error {
	r.Runs[u.name] = nil
	for n := range runs {
		if err := r.checkTree(draft); err != nil {
			return err
		}
		fmt.Printf("== %s, run %d of %d\n", u.name, n+1, runs)
		run, err := u.run(ctx)
		if err != nil {
			return err
		}
		if err := r.checkTree(draft); err != nil {
			return err
		}
		run.Stamp = newStamp(r.commit)
		r.add(s, u.name, run)
		if err := r.save(); err != nil { // the next run may fail
			return err
		}
	}
	return nil
}

// add adds a run of a unit.
func (r *Results) add(s section, unit string, run Run) {
	r.Runs[unit] = append(r.Runs[unit], run)
	s.table.fill(r, unit)
	if !s.table.hasRunless(r) {
		delete(r.Measured, s.name)
	}
}

// run measures once, and the machine before and after it.
func (u unit) run(ctx context.Context) (run Run, err error) {
	before, err := measureMachine(ctx)
	if err != nil {
		return run, err
	}
	if err := u.measure(ctx, &run.Rows); err != nil {
		return run, err
	}
	after, err := measureMachine(ctx)
	run.Others, run.ClockMS = max(before.others, after.others), [2]float64{before.clock, after.clock}
	fmt.Printf("other programs used %.0f %% of the processors, and a fixed computation took %v ms\n", run.Others, run.ClockMS)
	return run, err
}

// stamped is where rows of a section come from. Units have their names, rows without runs none.
type stamped struct {
	Stamp
	units []string
}

// origins returns the origins of the rows of a section: units may be measured one by one.
func (r *Results) origins(s section) (out []stamped) {
	if stamp, ok := r.Measured[s.name]; ok {
		out = append(out, stamped{Stamp: stamp})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Runs)) {
		runs := r.Runs[name]
		if !s.has(name) || len(runs) == 0 {
			continue
		}
		stamp := runs[len(runs)-1].Stamp
		isSame := func(o stamped) bool { return len(o.units) > 0 && o.Date == stamp.Date && o.Commit == stamp.Commit }
		if i := slices.IndexFunc(out, isSame); i >= 0 {
			out[i].units = append(out[i].units, name)
		} else {
			out = append(out, stamped{Stamp: stamp, units: []string{name}})
		}
	}
	return out
}

// has reports whether a unit is of the section.
func (s section) has(unit string) bool { return unit == s.name || strings.HasPrefix(unit, s.name+" ") }

// run returns the results of run number n of each unit, and the rows of units without it.
func (r *Results) run(n int) *Results {
	one := &Results{Measured: r.Measured, Rows: r.Rows, Runs: map[string][]Run{}}
	for _, s := range sections {
		for name, runs := range r.Runs {
			if s.has(name) && n < len(runs) {
				one.Runs[name] = runs[n : n+1]
				s.table.fill(one, name)
			}
		}
	}
	return one
}

// number matches the numbers of a table.
var number = regexp.MustCompile(`\d+(?:\.\d+)?`)

// withRange adds to each number of a line its range in the lines of all runs, where it differs.
func withRange(line string, runs []string) string {
	var values [][]string
	count := len(number.FindAllString(line, -1))
	for _, other := range runs {
		found := number.FindAllString(other, -1)
		if len(found) != count {
			return line // the runs have other cells
		}
		values = append(values, found)
	}
	i := -1
	return number.ReplaceAllStringFunc(line, func(text string) string {
		i++
		low, high := text, text
		for _, run := range values {
			if value(run[i]) < value(low) {
				low = run[i]
			}
			if value(run[i]) > value(high) {
				high = run[i]
			}
		}
		if low == high {
			return text
		}
		return fmt.Sprintf("%s (%s-%s)", text, low, high)
	})
}

func value(text string) float64 {
	v, _ := strconv.ParseFloat(text, 64) // matched by number
	return v
}
