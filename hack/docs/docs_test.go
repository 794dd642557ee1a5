package main

import (
	"math"
	"strings"
	"testing"
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

// TestLegacyRequests compares the model of the legacy controller with the measurements on the
// testbed.
func TestLegacyRequests(t *testing.T) {
	for services, measured := range map[int]float64{1: 20, 50: 509, 300: 3013} {
		if got := legacyRequests(services); math.Abs(got-measured) > measured/100 {
			t.Errorf("%d services: the model has %.0f requests per minute, measured were %.0f", services, got, measured)
		}
	}
}
