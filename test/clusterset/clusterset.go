// Package clusterset brings up what the demo and the scenarios run on: real Kubernetes clusters (the testbed),
// cloudmap-local beside them, and the product's images inside. Everything is done by running the commands a user would run.
package clusterset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Endpoint is where cloudmap-local listens: the testbed's host, as seen from every node and pod.
const Endpoint = "http://172.30.0.1:8080"

// Set is a running clusterset of real clusters, named cls1, cls2, …
type Set struct {
	// Root is the repository's folder; commands run there.
	Root string
	// Out gets progress, one line at a time.
	Out io.Writer

	env []string
}

// Options say what to bring up.
type Options struct {
	Clusters int
	// TestbedArgs are further arguments of `testbed up`, for example --dual-stack.
	TestbedArgs []string
	// CloudMapArgs are further arguments of cloudmap-local.
	CloudMapArgs []string
	Out          io.Writer
}

// Up brings the clusters and cloudmap-local up and loads the product's image. What `make image` and `make build` make
// must be there. An earlier clusterset is taken down first.
func Up(ctx context.Context, o Options) (*Set, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	s := &Set{Root: root, Out: o.Out}
	s.env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	s.Down(ctx)
	up := append([]string{"testbed", "up", "--clusters", fmt.Sprint(o.Clusters)}, o.TestbedArgs...)
	if err := s.stream(ctx, up...); err != nil {
		return nil, fmt.Errorf("bringing the clusters up: %w", err)
	}
	if err := s.useTestbed(ctx); err != nil {
		return nil, err
	}
	if err := s.startCloudMap(ctx, o.CloudMapArgs); err != nil {
		return nil, err
	}
	if err := s.stream(ctx, "testbed", "load-image", "dist/controller.tar"); err != nil {
		return nil, fmt.Errorf("loading the product's image: %w", err)
	}
	return s, nil
}

// Down takes cloudmap-local and the clusters down. Nothing being there is not an error.
func (s *Set) Down(ctx context.Context) {
	s.stopCloudMap()
	if out, err := s.Output(ctx, "testbed down"); err != nil {
		fmt.Fprintf(s.Out, "testbed down: %v\n%s", err, out)
	}
}

// useTestbed points kubectl at the clusters, as `export KUBECONFIG=…` does for a user.
func (s *Set) useTestbed(ctx context.Context) error {
	kubeconfig, err := s.Stdout(ctx, "", "testbed", "kubeconfig")
	if err != nil {
		return fmt.Errorf("asking for the kubeconfig: %w", err)
	}
	assets, err := s.Stdout(ctx, "", "testbed", "assets")
	if err != nil {
		return fmt.Errorf("asking for kubectl: %w", err)
	}
	s.env = append(os.Environ(),
		"KUBECONFIG="+strings.TrimSpace(kubeconfig),
		"PATH="+strings.Join([]string{filepath.Join(s.Root, "bin"), strings.TrimSpace(assets), os.Getenv("PATH")}, ":"),
		// What `aws configure` would set. The proxy is how the CLI finds cloudmap-local under the data- host
		// name that it insists on (docs/cloudmap-local.md).
		"AWS_REGION=ap-southeast-2", "AWS_DEFAULT_REGION=ap-southeast-2", "AWS_ACCESS_KEY_ID=AKIDLOCAL", "AWS_SECRET_ACCESS_KEY=local",
		"AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true", "HTTP_PROXY="+Endpoint,
	)
	return nil
}

// Env is what the commands run with: KUBECONFIG, PATH, AWS_*.
func (s *Set) Env() []string { return s.env }

// Output runs a shell command line in the repository and returns what it printed, standard error included.
func (s *Set) Output(ctx context.Context, line string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line)
	cmd.Dir, cmd.Env = s.Root, s.env
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Stdout is Output without standard error, for what is parsed.
func (s *Set) Stdout(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = s.Root, s.env, strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
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

// startCloudMap leaves cloudmap-local running in a session of its own, so that KEEP=1 can keep it.
func (s *Set) startCloudMap(ctx context.Context, args []string) error {
	log, err := os.Create(s.CloudMapLog())
	if err != nil {
		return fmt.Errorf("creating cloudmap-local's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.Root, "bin/cloudmap-local"), append([]string{"--listen", strings.TrimPrefix(Endpoint, "http://")}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting cloudmap-local: %w", err)
	}
	if err := os.WriteFile(s.pidFile(), []byte(fmt.Sprint(cmd.Process.Pid)), 0o600); err != nil {
		return err
	}
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	return Eventually(ctx, 10*time.Second, func() error {
		resp, err := http.Get(Endpoint + "/healthz")
		if err != nil {
			return fmt.Errorf("waiting for cloudmap-local (its log is %s): %w", s.CloudMapLog(), err)
		}
		return resp.Body.Close()
	})
}

func (s *Set) stopCloudMap() {
	if pid, err := s.cloudMapPID(); err == nil {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	_ = os.Remove(s.pidFile())
}

// RestartCloudMap ends cloudmap-local and starts it anew, empty unless args name a state file.
func (s *Set) RestartCloudMap(ctx context.Context, args ...string) error {
	s.stopCloudMap()
	if err := Eventually(ctx, 10*time.Second, func() error {
		if resp, err := http.Get(Endpoint + "/healthz"); err == nil {
			_ = resp.Body.Close()
			return errors.New("cloudmap-local still answers")
		}
		return nil
	}); err != nil {
		return err
	}
	return s.startCloudMap(ctx, args)
}

// PauseCloudMap makes Cloud Map unreachable in the worst way: connections are accepted and nothing ever answers.
func (s *Set) PauseCloudMap() error { return s.signalCloudMap(syscall.SIGSTOP) }

// ResumeCloudMap undoes PauseCloudMap.
func (s *Set) ResumeCloudMap() error { return s.signalCloudMap(syscall.SIGCONT) }

func (s *Set) signalCloudMap(sig syscall.Signal) error {
	pid, err := s.cloudMapPID()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// CloudMapLog is cloudmap-local's log file.
func (s *Set) CloudMapLog() string { return filepath.Join(s.Root, "bin/cloudmap-local.log") }
func (s *Set) pidFile() string     { return filepath.Join(s.Root, "bin/cloudmap-local.pid") }

// cloudMapPID is the process that startCloudMap left running.
func (s *Set) cloudMapPID() (int, error) {
	text, err := os.ReadFile(s.pidFile())
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return 0, fmt.Errorf("reading %s: %w", s.pidFile(), err)
	}
	// The number may have been used again by another process.
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(name, []byte("cloudmap-local")) {
		return 0, fmt.Errorf("process %d is not cloudmap-local", pid)
	}
	return pid, nil
}

// Eventually calls check until it returns nil, for at most timeout, and returns its last error.
func Eventually(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", time.Since(start).Round(time.Millisecond), err)
		case <-time.After(50 * time.Millisecond):
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
