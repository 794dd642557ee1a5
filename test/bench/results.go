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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

// Results is results.json. Durations are in milliseconds.
type Results struct {
	// Measured is the origin of each section.
	Measured    map[string]Stamp `json:"measured"`
	Micro       []Micro          `json:"micro"`
	Steady      []Steady         `json:"steady"`
	Propagation []Propagation    `json:"propagation"`
	Convergence []Convergence    `json:"convergence"`
	Fleet       []Fleet          `json:"fleet,omitempty"`
	Latency     []Latency        `json:"latency,omitempty"`

	// folder is where they are saved.
	folder string
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
	// ServiceExport and ServiceImport. All begin with the first ServiceExport. ImportedMS and
	// CompleteMS are medians of all runs, which AllImportedMS and AllCompleteMS have sorted; the
	// other values are of the last run.
	CreatedMS     float64   `json:"createdMS"`
	ImportedMS    float64   `json:"importedMS"`
	AllImportedMS []float64 `json:"allImportedMS"`
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
	// Measured is the origin: sizes and registries are measured one by one.
	Measured Stamp `json:"measured"`
	// Propagation is the time from a change of an endpoint at a member to the imported
	// EndpointSlice.
	Propagation Spread `json:"propagation"`
}

// Latency is a step of a change.
type Latency struct {
	Registry string `json:"registry"`
	Step     string `json:"step"`
	Spread
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
	results := &Results{Measured: map[string]Stamp{}, folder: folder}
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
func (r *Results) save() error {
	raw, err := json.MarshalIndent(r, "", "  ")
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

func newStamp() Stamp {
	return Stamp{
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
