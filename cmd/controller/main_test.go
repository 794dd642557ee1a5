package main

import "testing"

func TestExitCodes(t *testing.T) {
	tests := []struct {
		arg  string
		want int
	}{
		{"--version", 0},
		{"--help", 0},
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
