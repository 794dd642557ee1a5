// Package testbed runs real Kubernetes clusters side by side on one Linux machine, with no Docker,
// no virtual machine and no image registry. A node is a tree of processes in its own namespaces;
// Pod networks are routed between nodes and clusters as with VPC peering. Up brings them up, Down
// leaves nothing behind.
package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/build"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/host"
)

// Testbed is the one testbed of this machine: its addresses are fixed, so there cannot be two.
type Testbed struct {
	// StateDir is where the running testbed keeps its kubeconfigs and logs; it exists while the
	// testbed does.
	StateDir string
	// CacheDir is where built programs and images stay.
	CacheDir string
	// Source is the testbed's source directory, which programs are built from.
	Source string
	// Out receives progress messages.
	Out io.Writer
}

// ErrNotUp means that no testbed runs.
var ErrNotUp = errors.New("the testbed is not up: run testbed up")

// DefaultStateDir is on a file system that a reboot empties, as it empties the machine of clusters.
const DefaultStateDir = "/run/cloud-map-mcs-testbed"

// DefaultCacheDir is below the user's cache directory.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory (or name one with --cache-dir or TESTBED_CACHE): %w", err)
	}
	return filepath.Join(dir, "cloud-map-mcs-testbed"), nil
}

func (t *Testbed) logf(format string, args ...any) { fmt.Fprintf(t.Out, format+"\n", args...) }

func (t *Testbed) builder() *build.Builder {
	return &build.Builder{Source: t.Source, Cache: t.CacheDir, Out: t.Out}
}

// Build builds what Up needs and is not in the cache yet.
func (t *Testbed) Build(ctx context.Context, cfg cluster.Config) error {
	_, err := t.buildAll(ctx, cfg)
	return err
}

func (t *Testbed) buildAll(ctx context.Context, cfg cluster.Config) (build.Result, error) {
	if err := build.Packages(ctx, t.Out, cfg.ProxyModes); err != nil {
		return build.Result{}, err
	}
	versions := make([]cluster.Versions, cfg.Clusters)
	for i := range versions {
		versions[i] = cfg.Versions(i)
	}
	return t.builder().All(ctx, versions)
}

// Assets returns a directory with etcd, kube-apiserver and kubectl, for tests against an API server
// alone (KUBEBUILDER_ASSETS).
func (t *Testbed) Assets(ctx context.Context) (string, error) { return t.builder().Kubernetes(ctx) }

// Down removes the testbed from the machine, whatever state it is in, and checks that nothing is
// left.
func (t *Testbed) Down() error {
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := t.refuseSecond(); err != nil {
		return err
	}
	return t.clean()
}

func (t *Testbed) clean() error {
	if err := host.Clean(t.switchFile()); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	left, err := host.Leftovers(t.StateDir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("cleaning up: still there: %v", left)
	}
	if err := os.RemoveAll(t.StateDir); err != nil {
		return fmt.Errorf("removing the testbed's state: %w", err)
	}
	return nil
}

// lock keeps two commands from changing the testbed at once. It needs root, as everything that
// changes the testbed.
func (t *Testbed) lock() (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the testbed makes network namespaces and cgroups: run it as root (sudo)")
	}
	if err := os.MkdirAll(t.CacheDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the cache (choose another with --cache-dir or TESTBED_CACHE): %w", err)
	}
	f, err := os.OpenFile(filepath.Join(t.CacheDir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		t.logf("waiting for another testbed command to finish")
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("locking the testbed: %w", err), f.Close())
		}
	}
	return func() { f.Close() }, nil
}

// refuseSecond returns an error while a testbed with another state directory runs.
func (t *Testbed) refuseSecond() error {
	files, err := host.SwitchFiles()
	if err != nil {
		return err
	}
	for _, file := range files {
		other := *t
		other.StateDir = filepath.Dir(file)
		if s, err := other.loadState(); other.StateDir != t.StateDir && err == nil && len(s.dead()) == 0 {
			return fmt.Errorf("another testbed is up on this machine, and there can be only one: run testbed down --state-dir %s first", other.StateDir)
		}
	}
	return nil
}

// state is the stored state of a running testbed.
type state struct {
	Config     cluster.Config          `json:"config"`
	Processes  map[string]host.Process `json:"processes"` // by node
	Kubernetes string                  `json:"kubernetes"`
	Runtime    string                  `json:"runtime"`
}

func (t *Testbed) switchFile() string        { return filepath.Join(t.StateDir, host.SwitchName) }
func (t *Testbed) stateFile() string         { return filepath.Join(t.StateDir, "state.json") }
func (t *Testbed) logDir(node string) string { return filepath.Join(t.StateDir, "log", node) }
func (t *Testbed) kubeconfig(cluster string) string {
	return filepath.Join(t.StateDir, cluster+".kubeconfig")
}

// Kubeconfig returns the path of the kubeconfig with a context for each cluster (cls1, cls2, …).
func (t *Testbed) Kubeconfig() string { return filepath.Join(t.StateDir, "kubeconfig") }

func (t *Testbed) saveState(s state) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the testbed's state: %w", err)
	}
	if err := os.WriteFile(t.stateFile(), text, 0o644); err != nil {
		return fmt.Errorf("saving the testbed's state: %w", err)
	}
	return nil
}

// loadState returns ErrNotUp when there is none.
func (t *Testbed) loadState() (state, error) {
	text, err := os.ReadFile(t.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, ErrNotUp
	}
	if err != nil {
		return state{}, fmt.Errorf("reading the testbed's state: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, fmt.Errorf("reading the testbed's state in %s: %w", t.stateFile(), err)
	}
	return s, nil
}

// dead lists the nodes that should run and do not.
func (s state) dead() []string {
	var out []string
	for _, c := range cluster.NewPlan(s.Config).Clusters {
		for _, n := range c.Nodes {
			if !s.Processes[n.Name].Alive() {
				out = append(out, n.Name)
			}
		}
	}
	return out
}
