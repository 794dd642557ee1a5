package clusterset_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestTestbedDownEndsRegistry brings a clusterset up as `make clusters` does and takes the testbed down as `make clean` does, without
// the file with the registry's process ID, which `rm -rf bin` would remove.
func TestTestbedDownEndsRegistry(t *testing.T) {
	if os.Getenv("E2E") == "" {
		t.Skip("set E2E=1 to bring real clusters up")
	}
	set, err := clusterset.Up(t.Context(), clusterset.Options{Clusters: 1, Registry: clusterset.CloudMap, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(set.Root, "bin/cloudmap-local.pid")
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(pidFile); err != nil {
		t.Fatal(err)
	}
	if out, err := set.Output(t.Context(), "testbed down"); err != nil {
		t.Fatalf("testbed down: %v: %s", err, out)
	}
	command, err := os.ReadFile(filepath.Join("/proc", string(pid), "cmdline"))
	if err == nil && strings.Contains(string(command), "cloudmap-local") {
		t.Errorf("process %s runs after testbed down: %q", pid, command)
	}
}
