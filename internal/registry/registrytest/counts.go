package registrytest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Counts counts what a random test does. When the test ends, it writes the numbers to a file of the
// folder that the environment variable FAULTS_TRACE names, one line each. A nil Counts counts
// nothing.
type Counts struct {
	mu      sync.Mutex
	numbers map[string]int
}

// NewCounts returns the counts of a test, nil without FAULTS_TRACE. name is the name of the file.
func NewCounts(t *testing.T, name string) *Counts {
	t.Helper()
	folder := os.Getenv("FAULTS_TRACE")
	if folder == "" {
		return nil
	}
	c := &Counts{numbers: map[string]int{}}
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(c.String()), 0o600); err != nil {
			t.Logf("Failed to write the counts: %v", err)
		}
	})
	return c
}

// Add adds n to the number of something.
func (c *Counts) Add(name string, n int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers[name] += n
}

// String returns the numbers and names, one line each.
func (c *Counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.numbers)) {
		fmt.Fprintf(&text, "%d\t%s\n", c.numbers[name], name)
	}
	return text.String()
}
