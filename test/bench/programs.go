package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
)

// programs are the CPU seconds that each program of this machine has used so far, all its processes
// together.
type programs map[string]float64

// runningPrograms reads the current processes. Processes that have ended are not included.
func runningPrograms() (programs, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	used := programs{}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil { // or it has just ended
			used[stat.Comm] += stat.CPUTime()
		}
	}
	return used, nil
}

// since lists the programs that used at least a hundredth of all CPU time since before, most first,
// in seconds.
func (p programs) since(before programs) string {
	used, total := maps.Clone(p), 0.0
	for name := range used {
		used[name] -= before[name]
		total += max(0, used[name])
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return cmp.Compare(used[b], used[a]) })
	var text []string
	for _, name := range names {
		if used[name] >= total/100 {
			text = append(text, fmt.Sprintf("%s %.1f", name, used[name]))
		}
	}
	return strings.Join(text, ", ")
}
