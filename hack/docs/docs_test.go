package main

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

func TestInsertFigures(t *testing.T) {
	f := figures{texts: map[string]string{"one": "1", "table": "| a |\n| b |"}, used: map[string]bool{}}
	tests := map[string]struct{ page, want, wantErr string }{
		"inline":         {"a <!-- generated:one -->0<!-- /generated --> b", "a <!-- generated:one -->1<!-- /generated --> b", ""},
		"twice a line":   {"<!-- generated:one --><!-- /generated --> <!-- generated:one -->2<!-- /generated -->", "<!-- generated:one -->1<!-- /generated --> <!-- generated:one -->1<!-- /generated -->", ""},
		"block":          {"<!-- generated:table -->\nold\n\nold\n<!-- /generated -->\n", "<!-- generated:table -->\n| a |\n| b |\n<!-- /generated -->\n", ""},
		"unknown figure": {"<!-- generated:two --><!-- /generated -->", "", `unknown figure "two"`},
		"no figure":      {"<!-- comment -->", "<!-- comment -->", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := f.insert(tt.page)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("%q, error %v; want %q", got, err, tt.want)
			}
		})
	}
	if err := f.checkUsed(); err != nil {
		t.Error(err)
	}
	f.texts["unused"] = ""
	if err := f.checkUsed(); err == nil {
		t.Error("no error for a figure that no page contains")
	}
}

// TestDescriptions checks that the descriptions of flags, chart values and metrics are one line,
// besides the name of a flag and the link to a page.
func TestDescriptions(t *testing.T) {
	const limit = 120
	t.Chdir("../..")
	row := regexp.MustCompile("(?m)^\\| (`[^`]+`) \\| .* \\| (.*) \\|$")
	aside := regexp.MustCompile(`\s*(\(--[a-z-]+\)|\[[^]]+\]\([^)]+\))`)
	for path, generate := range pages {
		page, err := generate()
		if err != nil {
			t.Fatal(err)
		}
		rows := row.FindAllStringSubmatch(page, -1)
		if len(rows) == 0 {
			t.Errorf("%s has no rows", path)
		}
		for _, m := range rows {
			if text := aside.ReplaceAllString(m[2], ""); utf8.RuneCountInString(text) > limit {
				t.Errorf("%s: the description of %s has %d characters, want at most %d: move details to a page of docs, and link it\n%s", path, m[1], utf8.RuneCountInString(text), limit, text)
			}
		}
	}
}

// TestCell checks that a cell shows the text: a bar ends no cell, and <name> is no element of HTML.
func TestCell(t *testing.T) {
	for text, want := range map[string]string{
		"a|b":                        `a\|b`,
		"namespace mcs.<clusterset>": `namespace mcs.\<clusterset>`,
		"see " + docs.URL("iam.md#hosted-zones") + ", " + docs.URL("runbooks/README.md"): "see [iam.md](../iam.md#hosted-zones), [runbooks](../runbooks/README.md)",
	} {
		if got := cell(text); got != want {
			t.Errorf("cell(%q) is %q, want %q", text, got, want)
		}
	}
}

// TestLegacyRequests compares the model of the legacy controller with the measurements on the
// testbed.
func TestLegacyRequests(t *testing.T) {
	for services, measured := range map[int]float64{1: 20, 50: 509, 300: 3013} {
		if got := legacyRequests(services); math.Abs(got-measured) > measured/100 {
			t.Errorf("%d services: the model has %.0f requests per minute, measured were %.0f", services, got, measured)
		}
	}
}
