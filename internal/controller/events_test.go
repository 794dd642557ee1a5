package controller

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEventsAreDocumented: the table of events names every reason of events.go, and no event is of a reason that is written elsewhere.
func TestEventsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, events, ok := strings.Cut(string(page), "\n## Events\n")
	if !ok {
		t.Fatal("docs/reference/conditions.md has no section Events")
	}
	reasons := regexp.MustCompile(`(?m)^\t(reason\w+) = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	var constants []string
	for _, m := range reasons {
		constants = append(constants, m[1])
		if !strings.Contains(events, "| "+m[2]+" |") {
			t.Errorf("the table of events lacks %s", m[2])
		}
	}
	if len(constants) == 0 {
		t.Fatal("events.go has no reasons")
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	recorded := regexp.MustCompile(`events\.(?:warn|tell)\([^,]+, ([^,]+),`)
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range recorded.FindAllStringSubmatch(string(text), -1) {
			if reason := m[1]; reason != "c.Reason" && !slices.Contains(constants, reason) { // c is a condition, which has a table of its own
				t.Errorf("%s records an event of reason %s, which is not in events.go", file.Name(), reason)
			}
		}
	}
}
