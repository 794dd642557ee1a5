// Package clusterset brings up the clusterset of the demo and the scenarios: real Kubernetes
// clusters (the testbed), cloudmap-local or an etcd beside them, and the product's images in them.
// It runs the commands that a user would run.
package clusterset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Set is a running clusterset of real clusters, named cls1, cls2, …
type Set struct {
	// Root is the repository's folder; commands run there.
	Root string
	// Out receives progress, one line at a time.
	Out io.Writer
	// Registry is the registry of the clusterset: CloudMap or Etcd.
	Registry string

	env          []string
	clusters     int
	policies     []string
	sealed       bool
	cloudMapArgs []string
}

// Options of Up.
type Options struct {
	Clusters int
	// TestbedArgs are further arguments of `testbed up`, for example --dual-stack.
	TestbedArgs []string
	// CloudMapArgs are further arguments of cloudmap-local.
	CloudMapArgs []string
	// Policies are those of deploy/iam, without .json, that the clusters' users have beside the
	// ones that every cluster needs.
	Policies []string
	// Sealed creates the resources in Cloud Map that the stacks of deploy/iam create, and gives the
	// clusters no create.json, as docs/eks.md does. Without it the controllers create the
	// resources: scenarios rename clusters, and take and give them away.
	Sealed bool
	// KeepState makes cloudmap-local keep its content when StopRegistry stops it. etcd always does.
	KeepState bool
	// NoImage leaves the product's image away: the test pulls it from a registry.
	NoImage bool
	// Registry is CloudMap or Etcd.
	Registry string
	Out      io.Writer
}

// Up brings the clusters and their registry up and loads the image of the product. It needs the
// results of `make image` and `make build`. It takes a previous clusterset down first.
func Up(ctx context.Context, o Options) (*Set, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	s := &Set{Root: root, Out: o.Out, Registry: o.Registry, clusters: o.Clusters, policies: o.Policies, sealed: o.Sealed}
	s.env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	s.Down(ctx)
	if err := checkAddresses(); err != nil {
		return nil, err
	}
	up := append([]string{"testbed", "up", "--clusters", fmt.Sprint(o.Clusters)}, o.TestbedArgs...)
	if err := s.stream(ctx, up...); err != nil {
		return nil, fmt.Errorf("bringing the clusters up: %w", err)
	}
	if err := s.useTestbed(ctx); err != nil {
		return nil, err
	}
	s.cloudMapArgs = o.CloudMapArgs
	if err := os.RemoveAll(s.cloudMapState()); err != nil {
		return nil, err
	}
	if o.KeepState {
		s.cloudMapArgs = append(slices.Clip(s.cloudMapArgs), "--state", s.cloudMapState())
	}
	if err := s.startRegistry(ctx, s.cloudMapArgs); err != nil {
		return nil, err
	}
	if s.sealed {
		if err := s.Seal(ctx, clusterNames(s.clusters)...); err != nil {
			return nil, err
		}
	}
	if o.NoImage {
		return s, nil
	}
	return s, s.loadImage(ctx)
}

func (s *Set) loadImage(ctx context.Context) error {
	if err := s.stream(ctx, "testbed", "load-image", "dist/controller.tar"); err != nil {
		return fmt.Errorf("loading the product's image: %w", err)
	}
	return nil
}

// clusterName returns the name of the cluster with an index.
func clusterName(i int) string { return fmt.Sprintf("cls%d", i+1) }

// clusterNames returns the names of all clusters.
func clusterNames(clusters int) (names []string) {
	for i := range clusters {
		names = append(names, clusterName(i))
	}
	return names
}

// Down takes the registry and the clusters down, if there are any.
func (s *Set) Down(ctx context.Context) {
	for _, name := range []string{CloudMap, Etcd} {
		s.daemon(name).stop()
	}
	if out, err := s.Output(ctx, "testbed down"); err != nil {
		fmt.Fprintf(s.Out, "testbed down: %v\n%s", err, out)
	}
}

// useTestbed sets the environment of kubectl, as `export KUBECONFIG=…` does for a user.
func (s *Set) useTestbed(ctx context.Context) error {
	kubeconfig, err := s.Stdout(ctx, "", "testbed", "kubeconfig")
	if err != nil {
		return fmt.Errorf("finding the kubeconfig: %w", err)
	}
	assets, err := s.Stdout(ctx, "", "testbed", "assets")
	if err != nil {
		return fmt.Errorf("finding kubectl: %w", err)
	}
	s.env = append(os.Environ(),
		"KUBECONFIG="+strings.TrimSpace(kubeconfig),
		"PATH="+strings.Join([]string{filepath.Join(s.Root, "bin"), strings.TrimSpace(assets), os.Getenv("PATH")}, ":"),
		// As from `aws configure`. Through the proxy the CLI reaches cloudmap-local in spite of the
		// data- prefix of the host name (docs/cloudmap-local.md).
		"AWS_REGION="+region, "AWS_DEFAULT_REGION="+region, "AWS_ACCESS_KEY_ID="+adminKey, "AWS_SECRET_ACCESS_KEY="+adminSecret,
		"AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true", "HTTP_PROXY="+Endpoint,
		// The environment of etcdctl in docs/etcd.md.
		"ETCDCTL_API=3", "ETCDCTL_ENDPOINTS="+EtcdEndpoint, "ETCDCTL_CACERT="+filepath.Join(s.Root, "bin/etcd/ca.crt"), "ETCDCTL_USER=root:"+etcdRootPassword,
	)
	return nil
}

// Env returns the environment of the commands: KUBECONFIG, PATH, AWS_*.
func (s *Set) Env() []string { return s.env }

// waitDelay limits the time for reading the output after a command has ended: processes that it
// started may keep it open.
const waitDelay = 15 * time.Second

// Output runs a shell command line in the repository and returns its output, standard error
// included.
func (s *Set) Output(ctx context.Context, line string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line)
	cmd.Dir, cmd.Env = s.Root, s.env
	cmd.WaitDelay = waitDelay
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Stdout is Output without standard error, for output that is parsed.
func (s *Set) Stdout(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = s.Root, s.env, strings.NewReader(stdin)
	cmd.WaitDelay = waitDelay
	if path, err := lookPath(args[0], s.env); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("running %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Kubectl runs kubectl against one cluster.
func (s *Set) Kubectl(ctx context.Context, cluster string, args ...string) (string, error) {
	return s.Stdout(ctx, "", append([]string{"kubectl", "--context", cluster}, args...)...)
}

// Apply applies a manifest to one cluster.
func (s *Set) Apply(ctx context.Context, cluster, manifest string) error {
	_, err := s.Stdout(ctx, manifest, "kubectl", "--context", cluster, "apply", "-f", "-")
	return err
}

func (s *Set) stream(ctx context.Context, args ...string) error {
	path, err := lookPath(args[0], s.env)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.Root, s.env, s.Out, s.Out
	return cmd.Run()
}

// Eventually calls check until it returns nil, for at most timeout, and returns its last error. It
// pauses as long as a check takes, from 50 ms to a second: a check that starts processes would
// otherwise take the processor from those that it waits for.
func Eventually(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return nil
		}
		pause := min(max(time.Since(began), 50*time.Millisecond), time.Second)
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", time.Since(start).Round(time.Millisecond), err)
		case <-time.After(pause):
		}
	}
}

func lookPath(name string, env []string) (string, error) {
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s: run make build", name, path)
}

func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "testbed/go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("run this inside the repository")
}
