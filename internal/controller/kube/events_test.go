package kube

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestNote: a message that is too long for an event ends after a word.
func TestNote(t *testing.T) {
	words := strings.Repeat("word ", 203) // 1015 bytes
	for message, want := range map[string]string{
		words:                                 words,
		words + "123456789":                   words + "123456789",
		words + "https://example.com/iam.md)": words + "...",
		strings.Repeat("ü", 600):              strings.Repeat("ü", 510) + " ...",
	} {
		if got := note(message); got != want || len(got) > noteMax {
			t.Errorf("the note of %d bytes has %d and ends with %q, want %q", len(message), len(got), got[len(got)-20:], want[len(want)-20:])
		}
	}
}

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
