package main

import (
	"log"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		arg  string
		want int
	}{
		{"--version", 0},
		{"--help", 0},
		{"--help-all", 0},
		{"--nonsense", 2},
		{"--stale-after=1s", 2},
		{"--kubeconfig=/nonexistent", 1},
	}
	for _, tt := range tests {
		if got := start([]string{tt.arg}); got != tt.want {
			t.Errorf("controller %s exits with %d, want %d", tt.arg, got, tt.want)
		}
	}
}

// TestSetLoggers_LimitsStandardLibrary: log lines of the standard library, such as failed TLS
// handshakes, are written only at level debug.
func TestSetLoggers_LimitsStandardLibrary(t *testing.T) {
	defer setLoggers(logr.Discard())
	for level, want := range map[string]int{"info": 0, "debug": 1} {
		var out strings.Builder
		setLoggers((&config.Log{Level: level, Format: "json"}).Logger(&out))
		log.Print("http: TLS handshake error")
		if got := strings.Count(out.String(), `"http: TLS handshake error"`); got != want {
			t.Errorf("at %s the line is written %d times, want %d:\n%s", level, got, want, &out)
		}
	}
}
