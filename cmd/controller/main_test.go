package main

import (
	"testing"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
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

// TestSeveralRegistries: the flags make one registry of all that they name, and say which one cannot be made.
func TestSeveralRegistries(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	build := func(args ...string) (registry.Registry, error) {
		options, err := config.Parse(args)
		if err != nil {
			t.Fatal(err)
		}
		newRegistry, err := newRegistry(t.Context(), setup{options: options, log: logr.Discard()})
		if err != nil {
			return nil, err
		}
		return newRegistry(t.Context(), mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid"})
	}
	one, err := build("--aws-region=eu-west-1")
	if _, isSeveral := one.(*union.Registry); err != nil || isSeveral {
		t.Errorf("without --import-from: %T, %v, want a registry that is not several", one, err)
	}
	two, err := build("--aws-region=eu-west-1", "--import-from=cloudmap,region=eu-central-1", "--import-from=cloudmap,namespace-owner=111122223333",
		"--import-from=etcd,endpoints=https://localhost:2379")
	if _, isSeveral := two.(*union.Registry); err != nil || !isSeveral {
		t.Errorf("with --import-from: %T, %v, want several", two, err)
	}
	if _, err := build("--import-from=cloudmap,region=eu-central-1"); err == nil {
		t.Error("a registry without a Region was made")
	}
}

func TestEveryRegistryHasABackend(t *testing.T) {
	for _, name := range []string{config.Default().Registry.Name, config.RegistryCloudMap, config.RegistryEtcd} {
		if registries[name] == nil || sources[name] == nil {
			t.Errorf("--registry=%s has no backend", name)
		}
	}
}
