package clusterset_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestTestbedDownEndsRegistry brings a clusterset up as `make clusters` does and takes the testbed
// down as `make clean` does, without the file with the registry's process ID, which `rm -rf bin`
// would remove.
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

// TestRepair loses the credentials of a clusterset that is up and has no image of the product, and
// repairs it as `make clusters` does.
func TestRepair(t *testing.T) {
	if os.Getenv("E2E") == "" {
		t.Skip("set E2E=1 to bring real clusters up")
	}
	up, err := clusterset.Up(t.Context(), clusterset.Options{Clusters: 1, Registry: clusterset.CloudMap, NoImage: true, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { up.Down(context.Background()) })
	credentials := filepath.Join(up.Root, "bin/aws/cls1.env")
	before, err := os.ReadFile(credentials)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(credentials)); err != nil {
		t.Fatal(err)
	}
	startProduct(t, up, "before", "Pending ErrImageNeverPull")

	if clusterset.Running(t.Context(), 2, t.Output()) != nil {
		t.Error("one cluster counts as two")
	}
	running := clusterset.Running(t.Context(), 1, t.Output())
	if running == nil {
		t.Fatal("the clusterset does not count as running")
	}
	if err := running.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	// cloudmap-local has not been started again: it knows the earlier credentials.
	if after, err := os.ReadFile(credentials); string(after) != string(before) {
		t.Errorf("the credentials are %q (%v), want those that were lost, %q", after, err, before)
	}
	startProduct(t, running, "after", "Succeeded ")
}

// startProduct starts a pod of cls1 that prints the version of the product, from an image that must
// be on the node, and waits until its phase and the reason why it waits are these.
func startProduct(t *testing.T, set *clusterset.Set, pod, want string) {
	t.Helper()
	const image = `"$(kubectl kustomize deploy/base | sed -n 's/^ *image: //p')"`
	// the namespace gets its ServiceAccount a moment after it is created
	err := clusterset.Eventually(t.Context(), time.Minute, func() error {
		out, err := set.Output(t.Context(), "kubectl --context cls1 run "+pod+" --restart=Never --image-pull-policy=Never --image="+image+" -- --version")
		if err != nil {
			return fmt.Errorf("starting a pod: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = clusterset.Eventually(t.Context(), time.Minute, func() error {
		got, err := set.Kubectl(t.Context(), "cls1", "get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].state.waiting.reason}")
		if err == nil && got != want {
			err = fmt.Errorf("the pod %s is %q, want %q", pod, got, want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
