package registrytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// traceLines is the number of lines that a trace keeps.
const traceLines = 3_000

// Trace keeps the last lines of a random test. If the test fails, it writes them to a file of the
// folder that the environment variable FAULTS_TRACE names. A nil Trace keeps nothing.
type Trace struct {
	t    *testing.T
	file string

	mu sync.Mutex
	// lines is a ring: the next line replaces the one at index next.
	lines []string
	next  int
	// isWritten is set when the file has been written.
	isWritten bool
}

// NewTrace returns the trace of a test, nil without FAULTS_TRACE. name is the name of the file.
func NewTrace(t *testing.T, name string) *Trace {
	t.Helper()
	folder := os.Getenv("FAULTS_TRACE")
	if folder == "" {
		return nil
	}
	tr := &Trace{t: t, file: filepath.Join(folder, name)}
	t.Cleanup(tr.WriteIfFailed)
	return tr
}

// Logf adds a line.
func (tr *Trace) Logf(format string, args ...any) {
	if tr == nil {
		return
	}
	line := time.Now().UTC().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.lines) < traceLines {
		tr.lines = append(tr.lines, line)
		return
	}
	tr.lines[tr.next] = line
	tr.next = (tr.next + 1) % traceLines
}

// Logger returns a logger that adds its lines to the trace, and discards them without one.
func (tr *Trace) Logger(name string) logr.Logger {
	if tr == nil {
		return logr.Discard()
	}
	return funcr.New(func(prefix, args string) { tr.Logf("%s: %s", prefix, args) }, funcr.Options{}).WithName(name)
}

// WriteIfFailed writes the file if the test has failed, once.
func (tr *Trace) WriteIfFailed() {
	if tr == nil || !tr.t.Failed() {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.isWritten {
		return
	}
	tr.isWritten = true
	lines := append(tr.lines[tr.next:len(tr.lines):len(tr.lines)], tr.lines[:tr.next]...)
	if err := os.WriteFile(tr.file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		tr.t.Logf("Failed to write the trace: %v", err)
		return
	}
	tr.t.Logf("The last %d lines of the trace are in %s", len(lines), tr.file)
}
