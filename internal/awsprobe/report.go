package awsprobe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// Row is one answer.
type Row struct {
	Probe                   int
	Question, Expected, Got string
	// Latency is p50/max of the operation that was asked, RequestID that of its last request. Both
	// can be empty.
	Latency, RequestID string
}

// Report has the answers of a run. It is safe for concurrent use while the run lasts.
type Report struct {
	Date            time.Time
	Region, Account string
	Version         string
	// Endpoint is the address of cloudmap-local, "" for AWS.
	Endpoint string
	// Left are the resources that could not be deleted.
	Left []string

	mu       sync.Mutex
	rows     []Row
	behavior map[string]any
}

// add adds a row.
func (r *Report) add(row Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, row)
}

// found sets the value of a switch of cloudmap-local.
func (r *Report) found(name string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.behavior == nil {
		r.behavior = map[string]any{}
	}
	r.behavior[name] = value
}

// Rows returns the answers by probe.
func (r *Report) Rows() []Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := slices.Clone(r.rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return a.Probe - b.Probe })
	return rows
}

// Behaviors returns the content of behaviors.json: the switches that were seen. What was not seen
// is left out.
func (r *Report) Behaviors() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, s := range cloudmaplocal.Switches() {
		if value, seen := r.behavior[s.Name]; seen {
			raw, _ := json.Marshal(value) // plain data
			lines = append(lines, fmt.Sprintf("  %q: %s", s.Name, raw))
		}
	}
	return []byte("{\n" + strings.Join(lines, ",\n") + "\n}\n")
}

// Markdown returns the report to paste into an issue. The numbers of accounts are masked.
func (r *Report) Markdown() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# AWS Cloud Map in %s, %s\n\ncloudmap-probe %s.\n", r.Region, r.Date.UTC().Format(time.DateOnly), r.Version)
	if r.Endpoint != "" {
		fmt.Fprintf(&b, "\nThis is cloudmap-local at %s, not AWS.\n", r.Endpoint)
	}
	if len(r.Left) > 0 {
		fmt.Fprintf(&b, "\n**Not deleted: %s.** Run it again with --sweep.\n", strings.Join(r.Left, ", "))
	}
	b.WriteString("\n| probe | question | expected | got | p50/max | request ID |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, row := range r.Rows() {
		cells := []string{fmt.Sprint(row.Probe), row.Question, row.Expected, row.Got, row.Latency, row.RequestID}
		for i, cell := range cells {
			cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintf(&b, "\nbehaviors.json:\n\n```json\n%s```\n", r.Behaviors())
	return mask(b.String())
}

var accountNumber = regexp.MustCompile(`\b[0-9]{12}\b`)

// mask hides the numbers of accounts.
func mask(text string) string { return accountNumber.ReplaceAllString(text, "************") }

// roundDelay returns a delay as behaviors.json has it. Less than a request takes is none.
func roundDelay(d time.Duration) cloudmaplocal.Duration {
	if d < shortestDelay {
		return 0
	}
	return cloudmaplocal.Duration(d.Round(10 * time.Millisecond))
}

// shortestDelay is the shortest delay that differs from the duration of the requests: a request to
// AWS in the same Region takes some 20 ms, and the measurement two of them and a pause.
const shortestDelay = 100 * time.Millisecond
