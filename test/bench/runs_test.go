package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

func TestWithRange(t *testing.T) {
	for name, tt := range map[string]struct {
		line string
		runs []string
		want string
	}{
		"no runs":           {"| a | 1, 2 |", nil, "| a | 1, 2 |"},
		"equal runs":        {"| a | 1.0 |", []string{"| a | 1.0 |", "| a | 1.0 |"}, "| a | 1.0 |"},
		"one cell differs":  {"| 300 | 5.9 |", []string{"| 300 | 5.8 |", "| 300 | 5.9 |", "| 300 | 10.1 |"}, "| 300 | 5.9 (5.8-10.1) |"},
		"cells of several":  {"| 29, 30 |", []string{"| 29, 31 |", "| 28, 30 |"}, "| 29 (28-29), 30 (30-31) |"},
		"a cell is missing": {"| 1 | – |", []string{"| 1 | 2 |"}, "| 1 | – |"},
	} {
		if got := withRange(tt.line, tt.runs); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Each row is that of its own median run. Rows of units that are not measured stay.
func TestTable_Fill(t *testing.T) {
	of := func(registry string, clusters int, cold ...float64) (runs []Run) {
		for _, ms := range cold {
			runs = append(runs, Run{Rows: Rows{Fleet: []Fleet{{Result: fleet.Result{Registry: registry, Clusters: clusters, ColdMS: ms, RestartMS: 2 * ms}}}}})
		}
		return runs
	}
	fleets := table[Fleet]{of: func(r *Rows) *[]Fleet { return &r.Fleet }, compare: compareFleets}
	r := &Results{Runs: map[string][]Run{
		"fleet cloudmap 100": of(clusterset.CloudMap, 100, 3, 1, 2),
		"fleet etcd 10":      of(clusterset.Etcd, 10, 5, 4),
		"fleet cloudmap 10":  of(clusterset.CloudMap, 10, 9),
	}}
	for _, unit := range []string{"fleet etcd 10", "fleet cloudmap 100", "fleet cloudmap 10", "fleet cloudmap 10"} {
		fleets.fill(r, unit)
	}
	row := func(registry string, clusters int, ms float64) Fleet {
		return of(registry, clusters, ms)[0].Fleet[0]
	}
	want := []Fleet{row(clusterset.CloudMap, 10, 9), row(clusterset.CloudMap, 100, 2), row(clusterset.Etcd, 10, 5)}
	if d := cmp.Diff(want, r.Fleet); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A row keeps its place when it is measured again, and its rows are counted by their own figures.
func TestTable_FillOfSeveralRows(t *testing.T) {
	run := func(a, b float64) Run {
		return Run{Rows: Rows{Latency: []Latency{
			{Registry: clusterset.CloudMap, Step: "a", Spread: Spread{P50: a}}, {Registry: clusterset.CloudMap, Step: "b", Spread: Spread{P50: b}},
		}}}
	}
	other := Latency{Registry: clusterset.Etcd, Step: "a", Spread: Spread{P50: 7}}
	r := &Results{Rows: run(100, 100).Rows, Runs: map[string][]Run{"latency cloudmap": {run(1, 6), run(2, 4), run(3, 5)}}}
	r.Latency = append(r.Latency, other)
	table[Latency]{of: func(r *Rows) *[]Latency { return &r.Latency }}.fill(r, "latency cloudmap")
	if d := cmp.Diff(append(run(2, 5).Latency, other), r.Latency); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestMarkdown_HasRanges(t *testing.T) {
	r := &Results{Measured: map[string]Stamp{}, Runs: map[string][]Run{}}
	for _, calls := range []float64{5.1, 5, 5.2} {
		r.Runs["steady"] = append(r.Runs["steady"], Run{Rows: Rows{Steady: []Steady{{Exports: 300, Clusters: 2, Notifications: true, PerMinute: calls}}}})
	}
	sectionOf("steady").table.fill(r, "steady")
	if page, want := r.markdown(), "| 300 | 5.1 (5.0-5.2) |  | 3013 |"; !strings.Contains(page, want) {
		t.Errorf("the page has no %q:\n%s", want, page)
	}
}

// A row is void by its own runs, or by the machine in which all rows were measured.
func TestTable_Void(t *testing.T) {
	row := func(registry string, took, floor float64) Convergence {
		return Convergence{Registry: registry, Exports: 300, CompleteMS: took, ObjectsMS: floor}
	}
	run := func(rows ...Convergence) Run {
		return Run{ClockMS: [2]float64{100, 100}, Rows: Rows{Convergence: rows}}
	}
	steady := []Run{run(row("etcd", 9, 8)), run(row("etcd", 10, 8)), run(row("etcd", 11, 8))}
	fast := []Run{run(row("cloudmap", 9, 8)), run(row("cloudmap", 7, 8)), run(row("cloudmap", 9, 8))}
	busy := slices.Clone(steady)
	busy[1].Others = 50
	for name, tt := range map[string]struct {
		runs map[string][]Run
		want []string
	}{
		"steady runs": {map[string][]Run{"convergence etcd 300": steady}, nil},
		"one row is faster than its floor": {
			map[string][]Run{"convergence etcd 300": steady, "convergence cloudmap 300": fast},
			[]string{"cloudmap, 300 exports: run 2 took 7 ms, less than its floor of 8 ms"},
		},
		"all rows on a busy machine": {
			map[string][]Run{"convergence etcd 300": busy}, []string{"all rows: other programs used 50 % of the processors at run 2"},
		},
	} {
		r := &Results{Runs: tt.runs}
		for unit := range tt.runs {
			sectionOf("convergence").table.fill(r, unit)
		}
		if got := sectionOf("convergence").table.void(r); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The page shows the floor beside the figures, with its range. A row of before floors were measured
// has none.
func TestMarkdown_HasFloor(t *testing.T) {
	r := &Results{Measured: map[string]Stamp{}, Runs: map[string][]Run{}}
	earlier := Propagation{Registry: clusterset.CloudMap, AtOnce: 8, Change: "add", Spread: Spread{Samples: 200, P50: 29, P99: 83}}
	r.Propagation = []Propagation{earlier}
	for _, ms := range []float64{6, 5, 7} {
		one := Propagation{Registry: clusterset.Etcd, AtOnce: 8, Change: "add", FloorMS: ms, Spread: Spread{Samples: 200, P50: 15, P99: 30 + ms}}
		r.Runs["propagation etcd 0"] = append(r.Runs["propagation etcd 0"], Run{Rows: Rows{Propagation: []Propagation{one}}})
	}
	sectionOf("propagation").table.fill(r, "propagation etcd 0")
	page := r.markdown()
	for _, want := range []string{"| etcd | 0 |  | 8 | 15 | 36 (35-37) | 6 (5-7) |", "| 29 | 83 | – |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

// TestOrigins: units of a section may be measured one by one, at other commits than the rest. The
// rows that were not measured again keep their origin.
func TestOrigins(t *testing.T) {
	row := func(registry string) Rows {
		return Rows{Propagation: []Propagation{{Registry: registry, AtOnce: 8, Change: "add", Spread: Spread{Samples: 200, P50: 29, P99: 83}}}}
	}
	r := &Results{Measured: map[string]Stamp{"propagation": {Date: "2026-11-22", Commit: "c17eb03"}}, Runs: map[string][]Run{}}
	r.Propagation = append(row(clusterset.CloudMap).Propagation, row(clusterset.Etcd).Propagation...)
	for i, registry := range []string{clusterset.Etcd, clusterset.CloudMap} {
		run := Run{Stamp: Stamp{Date: "2026-11-29", Commit: "abcdef0"}, Rows: row(registry)}
		r.add(sectionOf("propagation"), "propagation "+registry+" 0", run)
		isPart := i == 0
		page := r.markdown()
		for text, want := range map[string]bool{
			"Rows without a range: 2026-11-22, commit c17eb03":   isPart,
			"propagation etcd 0: 2026-11-29, commit abcdef0":     isPart,
			"\n2026-11-29, commit abcdef0":                       !isPart,
			"**The rows are of 2 commits**; a release needs one": isPart,
		} {
			if has := strings.Contains(page, text); has != want {
				t.Errorf("after %s the page has %q: %t", registry, text, has)
			}
		}
	}
}
