package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

// limits are the limits of all targets. They change in commits of their own (TestTargetsOfHistory).
//
//go:embed targets.json
var limits []byte

// limit is what a value may be at most. Reason is why, for the page; a new limit needs a new one.
type limit struct {
	Section string  `json:"section"`
	Name    string  `json:"name"`
	Limit   float64 `json:"limit"`
	Reason  string  `json:"reason"`
}

func parseLimits(raw []byte) (list []limit, err error) {
	err = json.Unmarshal(raw, &list)
	return list, err
}

// limitsOf returns the limits of a section.
func limitsOf(section string) []limit {
	list, err := parseLimits(limits)
	if err != nil {
		panic(fmt.Sprintf("targets.json: %v", err)) // it is part of the program
	}
	return slices.DeleteFunc(list, func(l limit) bool { return l.Section != section })
}

func limitOf(section, name string) float64 {
	list := limitsOf(section)
	return list[slices.IndexFunc(list, func(l limit) bool { return l.Name == name })].Limit
}

// targetsText lists the targets of a section.
func targetsText(section string) string {
	var texts []string
	for _, l := range limitsOf(section) {
		text := fmt.Sprintf("%s: %g", l.Name, l.Limit)
		if l.Reason != "" {
			text += " (" + l.Reason + ")"
		}
		texts = append(texts, text)
	}
	return "Targets: " + strings.Join(texts, "; ") + "."
}

// targetProblems returns what is wrong with a commit that changes limits: it changes other code
// than that of the targets, or figures, or gives no reason.
func targetProblems(before, after []limit, files []string) (problems []string) {
	isChanged := len(after) < len(before)
	for _, l := range after {
		var old limit
		if i := slices.IndexFunc(before, func(b limit) bool { return b.Section == l.Section && b.Name == l.Name }); i >= 0 {
			old = before[i]
		}
		if l.Limit == old.Limit {
			continue
		}
		isChanged = true
		if l.Reason == "" || l.Reason == old.Reason {
			problems = append(problems, fmt.Sprintf("%s, %s: %g instead of %g needs a reason of its own", l.Section, l.Name, l.Limit, old.Limit))
		}
	}
	for _, file := range files {
		isAllowed := strings.HasPrefix(file, "test/bench/targets") || strings.HasPrefix(file, published+"/") && file != rules.Path
		if isChanged && !isAllowed {
			problems = append(problems, "it also changes "+file)
		}
	}
	return problems
}

// A target is a value of a row that has a limit.
type target[T any] struct {
	name string
	// get returns the measured value; ok is false if the target does not apply.
	get func(T) (value float64, ok bool)
}

func (t table[T]) targetNames() (names []string) {
	for _, target := range t.targets {
		names = append(names, target.name)
	}
	return names
}

// missed returns the targets that the rows of a section missed.
func (t table[T]) missed(r *Results, section string) (misses []string) {
	for _, row := range *t.of(&r.Rows) {
		for _, target := range t.targets {
			value, ok := target.get(row)
			if most := limitOf(section, target.name); ok && value > most {
				misses = append(misses, fmt.Sprintf("%s, %s: %.3g (%g)", row.name(), target.name, value, most))
			}
		}
	}
	return misses
}

var microTargets = []target[Micro]{
	{"poll of 1,000 clusters, ms", func(m Micro) (float64, bool) {
		return m.Nanoseconds / 1e6, m.Name == "registry/cloudmap/state Poll/clusters=1000"
	}},
}

var steadyTargets = []target[Steady]{
	{"with peer notifications", func(s Steady) (float64, bool) { return s.PerMinute, s.Notifications }},
	{"without", func(s Steady) (float64, bool) { return s.PerMinute, !s.Notifications }},
}

var propagationTargets = []target[Propagation]{
	{"p50", func(p Propagation) (float64, bool) { return p.P50, p.onCloudMap() && p.DelayMS == 0 && p.Notifications }},
	{"p99", func(p Propagation) (float64, bool) { return p.P99, p.onCloudMap() && p.DelayMS == 0 && p.Notifications }},
	{"p99, blocked", func(p Propagation) (float64, bool) {
		return p.P99, p.onCloudMap() && p.DelayMS == 0 && !p.Notifications
	}},
	{"p50, delay", func(p Propagation) (float64, bool) { return p.P50, p.DelayMS > 0 && p.Notifications }},
	{"p99, delay", func(p Propagation) (float64, bool) { return p.P99, p.DelayMS > 0 && p.Notifications }},
	{"p99, delay, blocked", func(p Propagation) (float64, bool) { return p.P99, p.DelayMS > 0 && !p.Notifications }},
	{"p99, etcd", func(p Propagation) (float64, bool) { return p.P99, !p.onCloudMap() }},
}

func (p Propagation) onCloudMap() bool { return p.Registry == clusterset.CloudMap }

// convergenceTargets are those at the numbers of exports that the section measures by default.
var convergenceTargets = []target[Convergence]{
	{"300 imported, s", func(c Convergence) (float64, bool) { return c.ImportedMS / 1000, c.Exports == 300 }},
	{"3,000 imported, s", func(c Convergence) (float64, bool) { return c.ImportedMS / 1000, c.Exports == 3000 }},
	{"ratio", func(c Convergence) (float64, bool) { return c.CompleteMS / c.ObjectsMS, c.ObjectsMS > 0 }},
	{"ready delay of 300, p99, s", func(c Convergence) (float64, bool) {
		if c.ReadyDelay == nil {
			return 0, false
		}
		return c.ReadyDelay.P99 / 1000, c.Exports == 300
	}},
	{"memory at 3,000, MiB", func(c Convergence) (float64, bool) {
		return max(c.Exporter.RSSMiB, c.Importer.RSSMiB), c.Exports == 3000
	}},
}

// fleetTargets are the targets at 1,000 clusters, which smaller fleets have to meet, too.
var fleetTargets = []target[Fleet]{
	{"memory, MiB", func(f Fleet) (float64, bool) { return f.mostMemory(), true }},
	{"idle CPU, %", func(f Fleet) (float64, bool) { return f.Steady.CPUPercent(), true }},
	// A cold start of a minute is the target where the API server's writes allow that, else one and
	// a half times what they take.
	{"cold start, s", func(f Fleet) (float64, bool) { return f.ColdMS / 1000, f.isMinuteEnough() }},
	{"its ratio", func(f Fleet) (float64, bool) { return f.coldRatio(), !f.isMinuteEnough() }},
	{"idle reads a second", func(f Fleet) (float64, bool) { return f.readsOfAccount(f.Steady), f.onCloudMap() }},
	{"writes a second", func(f Fleet) (float64, bool) { return f.writesOfAccount(), f.onCloudMap() }},
	{"p99 on Cloud Map, ms", func(f Fleet) (float64, bool) { return f.Propagation.P99, f.onCloudMap() }},
	{"p99 on etcd, ms", func(f Fleet) (float64, bool) { return f.Propagation.P99, !f.onCloudMap() }},
}

// isMinuteEnough reports whether the API server writes the objects so fast that a cold start may
// take a minute.
func (f Fleet) isMinuteEnough() bool {
	return f.ObjectsMS < 1000*limitOf(fleetSection, "cold start, s")/limitOf(fleetSection, "its ratio")
}

var latencyTargets = []target[Latency]{
	{"p50 on Cloud Map, ms", func(l Latency) (float64, bool) {
		return l.P50, l.Registry == clusterset.CloudMap && l.Step == fleet.TotalStep
	}},
	{"p99 on etcd, ms", func(l Latency) (float64, bool) {
		return l.P99, l.Registry == clusterset.Etcd && l.Step == fleet.TotalStep
	}},
}
