package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Results is results.json. Durations are in milliseconds.
type Results struct {
	// Measured says of each section when, where and of which commit it was measured.
	Measured    map[string]Stamp `json:"measured"`
	Micro       []Micro          `json:"micro"`
	Steady      []Steady         `json:"steady"`
	Propagation []Propagation    `json:"propagation"`
	Convergence []Convergence    `json:"convergence"`
}

// Stamp says where numbers come from.
type Stamp struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Load is the machine's load average of the last five minutes at the end, which includes what was measured.
	Load string `json:"load"`
	// Note is what whoever measured adds by hand, such as what the machine did in other hours.
	Note string `json:"note,omitempty"`
}

// Micro is a benchmark of the hot code.
type Micro struct {
	Name        string  `json:"name"`
	Nanoseconds float64 `json:"ns"`
	Bytes       uint64  `json:"bytes"`
	Allocations uint64  `json:"allocations"`
}

// Steady is what a clusterset asks of Cloud Map while nothing changes.
type Steady struct {
	Exports  int  `json:"exports"`
	Clusters int  `json:"clusters"`
	Hints    bool `json:"hints"`
	// PerMinute are the calls per minute and cluster, ByOperation what they are.
	PerMinute   float64            `json:"perMinute"`
	ByOperation map[string]float64 `json:"byOperation"`
}

// Propagation is the time from the write of an EndpointSlice in one cluster until the other shows the change.
type Propagation struct {
	Registry string `json:"registry"`
	// DelayMS is the registry's consistency delay.
	DelayMS int  `json:"delayMS"`
	Hints   bool `json:"hints"`
	// AtOnce is how many services changed at the same time, each again within a second.
	AtOnce int    `json:"atOnce"`
	Change string `json:"change"`
	Spread
}

// Spread is a distribution.
type Spread struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// Convergence is what becomes of many exports that are made at once.
type Convergence struct {
	Registry  string `json:"registry"`
	Exports   int    `json:"exports"`
	Endpoints int    `json:"endpoints"`
	// CreatedMS is how long the API server took to accept all ServiceExports, ImportedMS until the other cluster had
	// every import with its endpoints, both from the first ServiceExport on. ImportedMS is the median of AllImportedMS, of every
	// run, sorted; the rest is of the last run.
	CreatedMS     float64   `json:"createdMS"`
	ImportedMS    float64   `json:"importedMS"`
	AllImportedMS []float64 `json:"allImportedMS"`
	// ToldMS is how long it took until also every first status was written and the exporting cluster had its own imports.
	ToldMS float64 `json:"toldMS"`
	// FloorMS is how long the objects that ImportedMS waits for take when one client writes them and no controller runs.
	FloorMS float64 `json:"floorMS"`
	// CPUOfPrograms are the CPU seconds that the machine's programs used until everything was imported.
	CPUOfPrograms string `json:"cpuOfPrograms"`
	// Of the controllers after that, with nothing changing: resident memory, and CPU time per minute.
	Exporter Usage `json:"exporter"`
	Importer Usage `json:"importer"`
}

// Usage is what a controller takes.
type Usage struct {
	RSSMiB       float64 `json:"rssMiB"`
	CPUPerMinute float64 `json:"cpuSecondsPerMinute"`
	// CPUConverging is the CPU time from the first ServiceExport until all was imported, in seconds.
	CPUConverging float64 `json:"cpuSecondsConverging"`
}

// spread sorts samples.
func spread(samples []time.Duration) Spread {
	slices.Sort(samples)
	at := func(part float64) float64 {
		return milliseconds(samples[min(len(samples)-1, int(part*float64(len(samples))))])
	}
	return Spread{Samples: len(samples), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
}

// milliseconds rounds to a tenth.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}

const resultsFile = "results.json"

// load reads what was measured before.
func load(folder string) (*Results, error) {
	results := &Results{Measured: map[string]Stamp{}}
	raw, err := os.ReadFile(filepath.Join(folder, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return results, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, results); err != nil {
		return nil, fmt.Errorf("reading %s: %w", resultsFile, err)
	}
	return results, nil
}

// save writes results.json, README.md and the pictures.
func (r *Results) save(folder string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, content := range r.pages() {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, resultsFile), append(raw, '\n'), 0o644)
}

func (r *Results) stamp(section string) {
	r.Measured[section] = Stamp{
		Date:   time.Now().UTC().Format(time.DateOnly),
		Commit: commit(),
		CPU:    cpuName(),
		Cores:  runtime.NumCPU(),
		Kernel: firstLine("/proc/sys/kernel/osrelease"),
		Go:     runtime.Version(),
		Load:   strings.Fields(firstLine("/proc/loadavg") + " - -")[1],
	}
}

func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func firstLine(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	return line
}

func cpuName() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if name, value, ok := strings.Cut(scanner.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
