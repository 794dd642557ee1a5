package main

import (
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

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

func TestEveryRegistryHasABackend(t *testing.T) {
	for _, name := range []string{config.Default().Registry.Name, config.RegistryCloudMap} {
		if registries[name] == nil {
			t.Errorf("--registry=%s has no backend", name)
		}
	}
}
