package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// TestRecordedPage checks that the page that `make demo` writes has the titles, notes and commands
// of its steps.
func TestRecordedPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/walk-through.md"))
	if err != nil {
		t.Fatal(err)
	}
	recorded, ok := strings.CutPrefix(string(text), tutorial.Introduction(clusterset.CloudMap))
	if !ok {
		t.Error("docs/walk-through.md has another introduction: make demo RECORD=docs/walk-through.md")
	}
	if err := tutorial.Differs(recorded, tutorial.Steps(clusterset.CloudMap, 2)); err != nil {
		t.Error("docs/walk-through.md:", err)
	}
}

func TestDiffers(t *testing.T) {
	steps := []tutorial.Step{{Number: 1, Title: "Look", Note: "A note.", Commands: []tutorial.Command{{Line: "first"}, {Line: "second"}}}}
	const page = "\n## 1. Look\n\nA note.\n\n```console\n$ first\n  output\n\n$ second\n  (1.2 s)\n   step 1 took 2.3 s\n```\n"
	tests := map[string]struct{ recorded, problem string }{
		"the same":        {page, ""},
		"another title":   {strings.Replace(page, "Look", "See", 1), `the page has "## 1. See", which is not in the steps: record it again`},
		"another note":    {strings.Replace(page, "A note", "The note", 1), `the page has "The note.", which is not in the steps: record it again`},
		"another command": {strings.Replace(page, "$ first", "$ another", 1), `the page has "$ another", which is not in the steps: record it again`},
		"a command more":  {strings.Replace(page, "$ second", "$ second\n$ third", 1), `the page has "$ third", which is not in the steps: record it again`},
		"nothing":         {"", `the page lacks "## 1. Look": record it again`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tutorial.Differs(tt.recorded, steps); err != nil {
				got = err.Error()
			}
			if got != tt.problem {
				t.Errorf("says %q, want %q", got, tt.problem)
			}
		})
	}
}
