package kube

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEventsAreDocumented: the table of events in the reference lists every reason.
func TestEventsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, events, ok := strings.Cut(string(page), "\n## Events\n")
	if !ok {
		t.Fatal("docs/reference/conditions.md has no section Events")
	}
	reasons := regexp.MustCompile(`(?m)^\t(reason\w+) += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(reasons) == 0 {
		t.Fatal("events.go has no reasons")
	}
	for _, m := range reasons {
		if !strings.Contains(events, "| "+m[2]+" |") {
			t.Errorf("the table of events lacks %s", m[2])
		}
	}
}
