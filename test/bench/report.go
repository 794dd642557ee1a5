package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cost"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// legacy has the measurements of the legacy controller (the AWS Cloud Map MCS Controller for K8s)
// on the same testbed with an emulator without delays.
var legacy = struct {
	callsPerMinute map[int]float64 // by exports
	addP50, addP99 float64         // ms
	converge300    float64         // s, of 300 exports of 10 endpoints
}{map[int]float64{1: 20, 50: 509, 300: 3013}, 4200, 6000, 631}

// pages returns the files that show the results, by name.
func (r *Results) pages() map[string]string {
	return map[string]string{
		"README.md":       r.markdown(),
		"calls.svg":       r.callsPlot(),
		"propagation.svg": r.propagationPlot(),
		"fleet.svg":       r.fleetPlot(),
	}
}

type page struct{ strings.Builder }

func (p *page) linef(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// markdown returns the page, in whose tables the numbers that differ between runs have their range.
func (r *Results) markdown() string {
	isRow := func(line string) bool { return strings.HasPrefix(line, "|") }
	most := 0
	for _, runs := range r.Runs {
		most = max(most, len(runs))
	}
	var others [][]string // the rows of each run
	for n := range most {
		rows := slices.DeleteFunc(strings.Split(r.run(n).text(), "\n"), func(line string) bool { return !isRow(line) })
		others = append(others, rows)
	}
	lines, row := strings.Split(r.text(), "\n"), 0
	for i, line := range lines {
		if !isRow(line) {
			continue
		}
		var same []string
		for _, rows := range others {
			same = append(same, rows[row])
		}
		lines[i] = withRange(line, same)
		row++
	}
	return strings.Join(lines, "\n")
}

// text returns the page without ranges.
func (r *Results) text() string {
	p := &page{}
	p.linef("# Benchmarks\n")
	p.linef("`make bench` measures and writes this page; `make bench SECTIONS=steady` measures one section. [results.json](results.json) has all runs, also of the steps of a change (`latency`)")
	p.linef("and the hot code (`micro`). A row is the median run, with the range of three, and [void](../../test/bench/rules/void.go) unless machine and floor were steady.")
	p.linef("The legacy controller is the AWS Cloud Map MCS Controller for K8s on the same testbed.\n")
	for _, name := range []string{"micro", latencySection} {
		p.linef("`%s`: %s\n", name, targetsText(name))
	}
	if raw, err := r.json(); err == nil && len(rules.Commits(raw)) > 1 {
		p.linef("**The rows are of %d commits**; a release needs one.\n", len(rules.Commits(raw)))
	}
	if len(r.Steady) > 0 {
		r.steadyTable(p)
	}
	if len(r.Propagation) > 0 {
		r.propagationTable(p)
	}
	if len(r.Convergence) > 0 {
		r.convergenceTable(p)
	}
	if len(r.Fleet) > 0 {
		r.fleetTables(p)
	}
	return p.String()
}

// source prints the targets of a section and which rows missed them, when, where and from which
// commit it was measured, and which rows are void.
func (r *Results) source(p *page, name string) {
	p.linef("\n%s", targetsText(name))
	if misses := sectionOf(name).table.missed(r, name); len(misses) > 0 {
		p.linef("\nMissed, with the target: %s.", strings.Join(misses, "; "))
	}
	origins := r.origins(sectionOf(name))
	for _, o := range origins {
		rows := ""
		switch {
		case len(origins) == 1:
		case len(o.units) == 0:
			rows = "Rows without a range: "
		default:
			rows = strings.Join(o.units, ", ") + ": "
		}
		p.linef("\n%s%s, commit %s, %d cores of %s, Linux %s, %s, load average %s.\n", rows, o.Date, o.Commit, o.Cores, o.CPU, o.Kernel, o.Go, o.Load)
		if o.Note != "" {
			p.linef("%s\n", o.Note)
		}
	}
	if rows := sectionOf(name).table.void(r); len(rows) > 0 {
		p.linef("**Void**, %s.\n", strings.Join(rows, "; "))
	}
}

func (r *Results) steadyTable(p *page) {
	settings := config.Default().Registry
	with, without := cost.Models(settings.PollInterval, settings.PollIntervalWithNotifications, settings.HeartbeatInterval, settings.StaleAfter)
	p.linef("## Calls while nothing changes\n")
	p.linef("Cloud Map calls per minute and cluster, counted for %v, without the instance view ([cost](../cost.md#requests)): %g and %g by design, plus one search", window, with.TotalPerMinute(), without.TotalPerMinute())
	p.linef("for leftovers at the start.\n")
	p.linef("![calls per minute and cluster](calls.svg)\n")
	p.linef("| exports of %d endpoints | with peer notifications: %s | without: %[2]s | legacy controller |", endpointsPerExport, r.clusterCounts())
	p.linef("| ---: | ---: | ---: | ---: |")
	for _, exports := range r.exportCounts() {
		before := notMeasured
		if calls, ok := legacy.callsPerMinute[exports]; ok {
			before = fmt.Sprintf("%.0f", calls)
		}
		p.linef("| %d | %s | %s | %s |", exports, r.callsOf(exports, true), r.callsOf(exports, false), before)
	}
	r.source(p, "steady")
}

// clusterCounts returns the numbers of clusters of the section steady, as in "2, 10, 50 clusters".
func (r *Results) clusterCounts() string {
	var counts []string
	for _, s := range r.Steady {
		if count := fmt.Sprint(s.Clusters); !slices.Contains(counts, count) {
			counts = append(counts, count)
		}
	}
	return strings.Join(counts, ", ") + " clusters"
}

// exportCounts returns the numbers of exports of the section steady.
func (r *Results) exportCounts() (counts []int) {
	for _, s := range r.Steady {
		if !slices.Contains(counts, s.Exports) {
			counts = append(counts, s.Exports)
		}
	}
	return counts
}

// callsOf returns the calls with a number of exports, in the order of clusterCounts.
func (r *Results) callsOf(exports int, notifications bool) string {
	var calls []string
	for _, s := range r.Steady {
		if s.Exports == exports && s.Notifications == notifications {
			calls = append(calls, fmt.Sprintf("%.1f", s.PerMinute))
		}
	}
	return strings.Join(calls, ", ")
}

func (r *Results) propagationTable(p *page) {
	fewest := slices.MinFunc(r.Propagation, func(a, b Propagation) int { return a.Samples - b.Samples }).Samples
	p.linef("## From an endpoint to the other cluster\n")
	p.linef("Milliseconds from the write of an EndpointSlice until a watch in the other cluster shows the imported one, for endpoints that are added, removed, and change their readiness,")
	p.linef("at least %d of each. Blocked: the nodes drop the UDP port of peer notifications. etcd does not wait for the disk.\n", fewest)
	p.linef("![time to the imported EndpointSlice](propagation.svg)\n")
	hasFloor := slices.ContainsFunc(r.Propagation, func(s Propagation) bool { return s.FloorMS > 0 })
	floor := func(text string) string { // results of before the floor was measured have none
		if !hasFloor {
			return ""
		}
		return " " + text + " |"
	}
	p.linef("| registry | consistency delay | notifications | services at once | p50 | p99 |%s", floor("floor, p50"))
	p.linef("| --- | ---: | --- | ---: | ---: | ---: |%s", floor("---:"))
	for _, row := range r.propagationRows() {
		s := row[0]
		p.linef("| %s | %d | %s | %d | %s | %s |%s", s.Registry, s.DelayMS, s.notifications(), s.AtOnce, cells(row, func(s Propagation) float64 { return s.P50 }),
			cells(row, func(s Propagation) float64 { return s.P99 }), floor(floorText(s.FloorMS)))
	}
	p.linef("| legacy controller | 0 | | | %[1]d, %[1]d, never | %[2]d, %[2]d, never |%[3]s", int(legacy.addP50), int(legacy.addP99), floor(""))
	r.source(p, "propagation")
}

// propagationRows returns the results of each row: those that differ in the kind of change only.
func (r *Results) propagationRows() (rows [][]Propagation) {
	for _, s := range r.Propagation {
		if n := len(rows); n > 0 && rows[n-1][0].isLike(s) {
			rows[n-1] = append(rows[n-1], s)
		} else {
			rows = append(rows, []Propagation{s})
		}
	}
	return rows
}

func (s Propagation) isLike(other Propagation) bool {
	return s.Registry == other.Registry && s.DelayMS == other.DelayMS && s.Notifications == other.Notifications && s.AtOnce == other.AtOnce
}

// cells joins a value of the results of a row.
func cells(row []Propagation, value func(Propagation) float64) string {
	var values []string
	for _, s := range row {
		values = append(values, fmt.Sprintf("%.0f", value(s)))
	}
	return strings.Join(values, ", ")
}

func (s Propagation) notifications() string {
	switch {
	case s.Registry != clusterset.CloudMap:
		return ""
	case s.Notifications:
		return "on"
	}
	return "blocked"
}

func (r *Results) convergenceTable(p *page) {
	p.linef("## From nothing, and what it takes\n")
	p.linef("Seconds from the first ServiceExport on two clusters that share the machine, whose CPU is the limit, under AWS's quotas. The controller-managers may send 100 requests a second (20 by")
	p.linef("default), and etcd does not wait for the disk.\n")
	p.linef("- Imported: the other cluster has all imports with all endpoints. Complete: both clusters have all conditions, too.")
	p.linef("- Objects alone: one client writes the same objects without controllers. Ratio is complete to that.")
	p.linef("- Ready delay: p50 and p99 from when the registry shows an export to the Ready condition of its ServiceExport.")
	p.linef("- Memory and CPU are those of exporter and importer, per minute while only the instance view changes.\n")
	p.linef("| registry | exports of %d endpoints | created | imported (all runs) | complete (all runs) | objects alone | ratio | ready delay | legacy controller | RSS, MiB | CPU until imported, s | CPU per minute, s |", endpointsPerExport)
	p.linef("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, c := range r.Convergence {
		before := notMeasured
		if c.Exports == 300 && c.Registry == clusterset.CloudMap {
			before = fmt.Sprintf("%.0f", legacy.converge300)
		}
		objects, ratio := c.ratio()
		p.linef("| %s | %d | %.1f | %s | %s | %s | %s | %s | %s | %.0f, %.0f | %.1f, %.1f | %.2f, %.2f |", c.Registry, c.Exports,
			c.CreatedMS/1000, medianAndRange(c.ImportedMS, c.AllImportedMS), medianAndRange(c.CompleteMS, c.AllCompleteMS), objects, ratio, c.readyDelay(), before,
			c.Exporter.RSSMiB, c.Importer.RSSMiB, c.Exporter.CPUConverging, c.Importer.CPUConverging, c.Exporter.CPUPerMinute, c.Importer.CPUPerMinute)
	}
	r.source(p, "convergence")
}

const notMeasured = "–"

// floorText returns a floor in milliseconds. It is 0 in results of before floors were measured.
func floorText(ms float64) string {
	if ms == 0 {
		return notMeasured
	}
	return fmt.Sprintf("%.0f", ms)
}

// medianAndRange returns a median and the range of all runs, in seconds.
func medianAndRange(median float64, all []float64) string {
	if n := len(all); n > 1 {
		return fmt.Sprintf("%.1f (%.1f-%.1f)", median/1000, all[0]/1000, all[n-1]/1000)
	}
	return fmt.Sprintf("%.1f", median/1000)
}

// ratio returns the time of the objects alone in seconds, and the ratio of the controllers' time to
// it.
func (c Convergence) ratio() (objects, ratio string) {
	if c.ObjectsMS == 0 {
		return notMeasured, notMeasured
	}
	return fmt.Sprintf("%.1f", c.ObjectsMS/1000), fmt.Sprintf("%.2f", c.CompleteMS/c.ObjectsMS)
}

func (c Convergence) readyDelay() string {
	if c.ReadyDelay == nil {
		return notMeasured
	}
	return fmt.Sprintf("%.1f, %.1f", c.ReadyDelay.P50/1000, c.ReadyDelay.P99/1000)
}
