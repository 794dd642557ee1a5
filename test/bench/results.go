package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

// Results is results.json. Durations are in milliseconds.
type Results struct {
	// Measured is the origin of the rows of each section that have no runs: results of before runs
	// were kept.
	Measured map[string]Stamp `json:"measured"`
	// Rows are the rows of the median runs.
	Rows
	// Runs are all runs of each unit, in their order. Results of before they were kept have none.
	Runs map[string][]Run `json:"runs,omitempty"`

	// folder is where they are saved, commit what is measured.
	folder, commit string
}

// Rows are the rows of the sections.
type Rows struct {
	Micro       []Micro       `json:"micro,omitempty"`
	Steady      []Steady      `json:"steady,omitempty"`
	Propagation []Propagation `json:"propagation,omitempty"`
	Convergence []Convergence `json:"convergence,omitempty"`
	Fleet       []Fleet       `json:"fleet,omitempty"`
	Latency     []Latency     `json:"latency,omitempty"`
}

// Run is one measurement of a unit.
type Run struct {
	Stamp Stamp `json:"stamp"`
	// ClockMS are the times of a fixed computation before and after it, Others is the percentage of
	// processor time that other programs used before or after it, whichever is more.
	ClockMS [2]float64 `json:"clockMS"`
	Others  float64    `json:"othersPercent"`
	Rows
}

// Stamp is the origin of the numbers of a section.
type Stamp struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Load is the machine's load average of the last five minutes at the end, including the
	// benchmark itself.
	Load string `json:"load"`
	// Note is added by hand after a measurement, such as other load of the machine.
	Note string `json:"note,omitempty"`
}

// Micro is a benchmark of the hot code.
type Micro struct {
	Name        string  `json:"name"`
	Nanoseconds float64 `json:"ns"`
	Bytes       uint64  `json:"bytes"`
	Allocations uint64  `json:"allocations"`
}

// Steady is the number of Cloud Map requests of a clusterset while nothing changes.
type Steady struct {
	Exports       int  `json:"exports"`
	Clusters      int  `json:"clusters"`
	Notifications bool `json:"notifications"`
	// PerMinute is the number of calls per minute and cluster, ByOperation by operation.
	PerMinute   float64            `json:"perMinute"`
	ByOperation map[string]float64 `json:"byOperation"`
}

// Propagation is the time from the write of an EndpointSlice in one cluster until the other shows
// the change.
type Propagation struct {
	Registry string `json:"registry"`
	// DelayMS is the registry's consistency delay.
	DelayMS       int  `json:"delayMS"`
	Notifications bool `json:"notifications"`
	// AtOnce is the number of services that changed at the same time, each again within a second.
	AtOnce int    `json:"atOnce"`
	Change string `json:"change"`
	// FloorMS is the median of the same writes to both API servers without controllers.
	FloorMS float64 `json:"floorMS,omitempty"`
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

// Convergence is the measurement of many exports that are created at once.
type Convergence struct {
	Registry  string `json:"registry"`
	Exports   int    `json:"exports"`
	Endpoints int    `json:"endpoints"`
	// CreatedMS is the time in which the API server accepted all ServiceExports, ImportedMS the
	// time until the other cluster had every import with its endpoints, CompleteMS the time until
	// everything was there: also the exporter's own imports, and the conditions of every
	// ServiceExport and ServiceImport. All begin with the first ServiceExport. AllImportedMS and
	// AllCompleteMS are those of all runs, in results of before the runs were kept.
	CreatedMS     float64   `json:"createdMS"`
	ImportedMS    float64   `json:"importedMS"`
	AllImportedMS []float64 `json:"allImportedMS,omitempty"`
	CompleteMS    float64   `json:"completeMS"`
	AllCompleteMS []float64 `json:"allCompleteMS,omitempty"`
	// ObjectsMS is the time in which one client writes the objects that CompleteMS waits for, and
	// the derived Services, on new clusters without controllers; 0 if it was not measured.
	ObjectsMS float64 `json:"objectsMS,omitempty"`
	// ReadyDelay is the time from when the registry showed an export to the Ready condition of its
	// ServiceExport, if it was measured.
	ReadyDelay *Spread `json:"readyDelay,omitempty"`
	// CPUOfPrograms are the CPU seconds of the machine's programs until everything was imported.
	CPUOfPrograms string `json:"cpuOfPrograms"`
	// Of the controllers after that, with nothing changing: resident memory, and CPU time per
	// minute.
	Exporter Usage `json:"exporter"`
	Importer Usage `json:"importer"`
}

// Usage is the memory and CPU of a controller.
type Usage struct {
	RSSMiB       float64 `json:"rssMiB"`
	CPUPerMinute float64 `json:"cpuSecondsPerMinute"`
	// CPUConverging is the CPU time from the first ServiceExport until all was imported, in
	// seconds.
	CPUConverging float64 `json:"cpuSecondsConverging"`
}

// Fleet is the measurement of one controller in a fleet.
type Fleet struct {
	fleet.Result
	// Measured is the origin, in results of before the runs were kept.
	Measured Stamp `json:"measured,omitzero"`
	// Propagation is the time from a change of an endpoint at a member to the imported
	// EndpointSlice.
	Propagation Spread `json:"propagation"`
}

// Latency is a step of a change.
type Latency struct {
	Registry string `json:"registry"`
	Step     string `json:"step"`
	// FloorMS is the median of the same writes without controllers, beside all steps together.
	FloorMS float64 `json:"floorMS,omitempty"`
	Spread
}

func (m Micro) unit() string    { return "micro" }
func (m Micro) name() string    { return m.Name }
func (m Micro) figure() float64 { return m.Nanoseconds }
func (m Micro) floor() *floor   { return nil }

func (s Steady) unit() string { return "steady" }
func (s Steady) name() string {
	return fmt.Sprintf("%d exports, %d clusters, notifications %v", s.Exports, s.Clusters, s.Notifications)
}
func (s Steady) figure() float64 { return s.PerMinute }
func (s Steady) floor() *floor   { return nil }

func (p Propagation) unit() string { return fmt.Sprintf("propagation %s %d", p.Registry, p.DelayMS) }
func (p Propagation) name() string { return p.line() + ", " + p.Change }

// line is the name of the rows that differ in the kind of change only.
func (p Propagation) line() string {
	return fmt.Sprintf("%s, delay %d ms, notifications %v, %d at once", p.Registry, p.DelayMS, p.Notifications, p.AtOnce)
}
func (p Propagation) figure() float64 { return p.P99 }
func (p Propagation) floor() *floor   { return &floor{p.P50, p.FloorMS} }

func (c Convergence) unit() string    { return fmt.Sprintf("convergence %s %d", c.Registry, c.Exports) }
func (c Convergence) name() string    { return fmt.Sprintf("%s, %d exports", c.Registry, c.Exports) }
func (c Convergence) figure() float64 { return c.CompleteMS }
func (c Convergence) floor() *floor   { return &floor{c.CompleteMS, c.ObjectsMS} }

func (f Fleet) unit() string    { return fmt.Sprintf("fleet %s %d", f.Registry, f.Clusters) }
func (f Fleet) name() string    { return fmt.Sprintf("%s, %d clusters", f.Registry, f.Clusters) }
func (f Fleet) figure() float64 { return f.ColdMS }
func (f Fleet) floor() *floor   { return &floor{f.ColdMS, f.ObjectsMS} }

func (l Latency) unit() string    { return "latency " + l.Registry }
func (l Latency) name() string    { return l.Registry + ", " + l.Step }
func (l Latency) figure() float64 { return l.P50 }
func (l Latency) floor() *floor {
	if l.Step != fleet.TotalStep {
		return nil
	}
	return &floor{l.P50, l.FloorMS}
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

// load reads the previous results.
func load(folder string) (*Results, error) {
	results := &Results{Measured: map[string]Stamp{}, Runs: map[string][]Run{}, folder: folder}
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

func (r *Results) json() ([]byte, error) { return json.MarshalIndent(r, "", "  ") }

// save writes results.json, README.md and the pictures.
func (r *Results) save() error {
	raw, err := r.json()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	for name, content := range r.pages() {
		if err := os.WriteFile(filepath.Join(r.folder, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(r.folder, resultsFile), append(raw, '\n'), 0o644)
}

func newStamp(commit string) Stamp {
	return Stamp{
		Date:   time.Now().UTC().Format(time.DateOnly),
		Commit: commit,
		CPU:    cpuName(),
		Cores:  runtime.NumCPU(),
		Kernel: firstLine("/proc/sys/kernel/osrelease"),
		Go:     runtime.Version(),
		Load:   strings.Fields(firstLine("/proc/loadavg") + " - -")[1],
	}
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
