package main

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// old is the AWS Cloud Map MCS Controller for K8s, version 0.3.1, measured on the
// same testbed with an emulator without delays.
var old = struct {
	callsPerMinute map[int]float64 // by exports
	addP50, addP99 float64         // ms
	converge300    float64         // s, of 300 exports of 10 endpoints
}{map[int]float64{1: 20, 50: 509, 300: 3013}, 4200, 6000, 631}

// target is what was set out to reach, by the lines of the table of propagation: p99 in ms.
func target(p Propagation) float64 {
	switch {
	case p.Registry != clusterset.CloudMap:
		return 250
	case p.Hints && p.DelayMS == 0:
		return 400
	case p.Hints:
		return 1200
	case p.DelayMS == 0:
		return 1500
	}
	return 2200
}

// pages are the files that show the results, by name.
func (r *Results) pages() map[string]string {
	return map[string]string{
		"README.md":       r.markdown(),
		"calls.svg":       r.callsPlot(),
		"propagation.svg": r.propagationPlot(),
	}
}

type page struct{ strings.Builder }

func (p *page) linef(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (r *Results) markdown() string {
	p := &page{}
	p.linef("# Benchmarks\n")
	p.linef("Made by `make bench` ([test/bench](../../test/bench)) from [results.json](results.json). One part alone: `make bench SECTIONS=steady`.")
	p.linef("The old controller is the AWS Cloud Map MCS Controller for K8s, measured on the same testbed with an emulator without delays.\n")
	if len(r.Steady) > 0 {
		r.steadyTable(p)
	}
	if len(r.Propagation) > 0 {
		r.propagationTable(p)
	}
	if len(r.Convergence) > 0 {
		r.convergenceTable(p)
	}
	if len(r.Micro) > 0 {
		r.microTable(p)
	}
	return p.String()
}

// source says where a section's numbers come from.
func (r *Results) source(p *page, section string) {
	if s, ok := r.Measured[section]; ok {
		p.linef("\n%s, commit %s, %d cores of %s, Linux %s, %s, load average %s.\n", s.Date, s.Commit, s.Cores, s.CPU, s.Kernel, s.Go, s.Load)
		if s.Note != "" {
			p.linef("%s\n", s.Note)
		}
	}
}

func (r *Results) steadyTable(p *page) {
	p.linef("## Calls while nothing changes\n")
	p.linef("Cloud Map calls per minute and cluster, counted at the server for %v, whole clustersets of real registries with the real AWS SDK in one", window)
	p.linef("process, without the instance view, which reads one service a minute more at most ([cost](../cost.md#requests)). What is above 17.5 and 65.5 is the")
	p.linef("one look for leftovers that each controller takes in its first minutes. Target: at most 20 with hints, 75 without, at any number of services.\n")
	p.linef("![calls per minute and cluster](calls.svg)\n")
	p.linef("| exports of %d endpoints | clusters | with hints | without hints | old controller |", endpointsPerExport)
	p.linef("| ---: | ---: | ---: | ---: | ---: |")
	for _, s := range r.Steady {
		if !s.Hints {
			continue
		}
		before := "not measured"
		if calls, ok := old.callsPerMinute[s.Exports]; ok {
			before = fmt.Sprintf("%.0f", calls)
		}
		p.linef("| %d | %d | %.1f | %.1f | %s |", s.Exports, s.Clusters, s.PerMinute, r.without(s).PerMinute, before)
	}
	r.source(p, "steady")
}

// without is the same clusterset without hints.
func (r *Results) without(s Steady) Steady {
	for _, other := range r.Steady {
		if !other.Hints && other.Exports == s.Exports && other.Clusters == s.Clusters {
			return other
		}
	}
	return Steady{}
}

func (r *Results) propagationTable(p *page) {
	p.linef("## From an endpoint to the other cluster\n")
	p.linef("Milliseconds from the write of an EndpointSlice in one real cluster until a watch in the other shows the imported EndpointSlice with the change.")
	p.linef("Each service changes again half a second after a change has arrived, on average; where several do at once, a change waits for what is under way of the others.")
	p.linef("Blocked means that the nodes drop the hints' UDP port.\n")
	p.linef("![time to the imported EndpointSlice](propagation.svg)\n")
	p.linef("| registry | consistency delay | hints | services at once | change | changes | p50 | p90 | p99 | max | target for p99 |")
	p.linef("| --- | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, s := range r.Propagation {
		p.linef("| %s | %d | %s | %d | %s | %d | %.0f | %.0f | %.0f | %.0f | %.0f |",
			s.Registry, s.DelayMS, s.hints(), s.AtOnce, s.Change, s.Samples, s.P50, s.P90, s.P99, s.Max, target(s))
	}
	p.linef("| old controller | 0 | | | add, remove | | %.0f | | %.0f | | |", old.addP50, old.addP99)
	p.linef("| old controller | 0 | | | ready flip | | never | | | | |")
	r.source(p, "propagation")
}

func (s Propagation) hints() string {
	switch {
	case s.Registry != clusterset.CloudMap:
		return ""
	case s.Hints:
		return "on"
	}
	return "blocked"
}

func (r *Results) convergenceTable(p *page) {
	p.linef("## From nothing, and what it takes\n")
	p.linef("ServiceExports made as fast as the API server takes them, on two real clusters that share the machine, under AWS's quotas: seconds from the")
	p.linef("first ServiceExport until the other cluster has all imports with all endpoints. All told is when every ServiceExport and ServiceImport has its first")
	p.linef("status, too, and the exporting cluster its own imports, which give way to what carries traffic. Memory and CPU are the controllers' after that,")
	p.linef("with nothing changing but the instance view, which goes on. \"All imported\" is the median of %d runs, of %d with more than %d exports, and the rest", runsOfFew, runsOfOther, few)
	p.linef("is of the last one. What bounds it is the CPU of the machine, most of which the API servers take. \"The objects alone\" is how long the four writes of")
	p.linef("each export take that all imported waits for, when one client makes them on clusters without controllers, right after the last run.\n")
	p.linef("| registry | exports | endpoints of each | all ServiceExports made | all imported (of all runs) | all told | the objects alone | old controller | RSS exporter, importer (MiB) | CPU until imported (s) | CPU per minute after (s) |")
	p.linef("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, c := range r.Convergence {
		before := "not measured"
		if c.Exports == 300 && c.Registry == clusterset.CloudMap {
			before = fmt.Sprintf("%.0f", old.converge300)
		}
		p.linef("| %s | %d | %d | %.1f | %s | %.1f | %.1f | %s | %.0f, %.0f | %.1f, %.1f | %.2f, %.2f |", c.Registry, c.Exports, c.Endpoints,
			c.CreatedMS/1000, c.imported(), c.ToldMS/1000, c.FloorMS/1000, before, c.Exporter.RSSMiB, c.Importer.RSSMiB,
			c.Exporter.CPUConverging, c.Importer.CPUConverging, c.Exporter.CPUPerMinute, c.Importer.CPUPerMinute)
	}
	for _, c := range r.Convergence {
		if c.CPUOfPrograms != "" {
			p.linef("\nCPU seconds of the machine's %d cores until %d exports were imported with %s (program is the controller): %s.", r.Measured["convergence"].Cores, c.Exports, c.Registry, c.CPUOfPrograms)
		}
	}
	p.linef("\nTargets: 300 within 6 s, 3,000 within 60 s, at most 150 MiB at 3,000 imports of 10 endpoints.")
	r.source(p, "convergence")
}

// imported is how long it took until all was imported, in seconds.
func (c Convergence) imported() string {
	median := fmt.Sprintf("%.1f", c.ImportedMS/1000)
	if n := len(c.AllImportedMS); n > 1 {
		return fmt.Sprintf("%s (%.1f-%.1f)", median, c.AllImportedMS[0]/1000, c.AllImportedMS[n-1]/1000)
	}
	return median
}

func (r *Results) microTable(p *page) {
	p.linef("## The hot code\n")
	p.linef("| benchmark | time | bytes | allocations |")
	p.linef("| --- | ---: | ---: | ---: |")
	for _, m := range r.Micro {
		p.linef("| %s | %s | %d | %d |", m.Name, duration(m.Nanoseconds), m.Bytes, m.Allocations)
	}
	r.source(p, "micro")
}

// duration is a time for people, in three digits.
func duration(ns float64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%.3g ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.3g µs", ns/1e3)
	}
	return fmt.Sprintf("%.3g ms", ns/1e6)
}
