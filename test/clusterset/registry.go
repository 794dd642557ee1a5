package clusterset

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

// The registries that a clusterset can be brought up on.
const (
	CloudMap = "cloudmap"
	Etcd     = "etcd"
)

const (
	// Endpoint of cloudmap-local: on the testbed's host, as seen from every node and pod.
	Endpoint = "http://172.30.0.1:8080"
	// DNSAddress is the address at which cloudmap-local answers for the private DNS namespaces, as
	// the resolver of a VPC would.
	DNSAddress = "172.30.0.1:8053"
	// EtcdEndpoint is the endpoint of etcd.
	EtcdEndpoint = "https://172.30.0.1:2379"

	cloudMapAddress = "172.30.0.1:8080"
	etcdAddress     = "172.30.0.1:2379"

	etcdRootPassword = "root"
)

// RegistryName returns the environment variable REGISTRY, or CloudMap.
func RegistryName() string { return cmp.Or(os.Getenv("REGISTRY"), CloudMap) }

// checkAddresses returns an error if another process listens where a registry of this clusterset
// will.
func checkAddresses() error {
	return errors.Join(checkUnused(cloudMapAddress), checkUnused(etcdAddress))
}

// startRegistry starts the registry that the clusters share.
func (s *Set) startRegistry(ctx context.Context, cloudMapArgs []string) error {
	switch s.Registry {
	case CloudMap:
		return s.startCloudMap(ctx, cloudMapArgs)
	case Etcd:
		if err := s.startEtcd(ctx); err != nil {
			return err
		}
		return s.enableEtcdUsers(ctx)
	}
	return fmt.Errorf("REGISTRY=%s: must be %s or %s", s.Registry, CloudMap, Etcd)
}

func (s *Set) startCloudMap(ctx context.Context, args []string) error {
	config, err := s.writeCredentials(s.clusters)
	if err != nil {
		return fmt.Errorf("creating the clusters' credentials: %w", err)
	}
	d := s.daemon(CloudMap)
	line := []string{filepath.Join(s.Root, "bin/cloudmap-local"), "--listen", cloudMapAddress, "--dns-listen", DNSAddress, "--config", config}
	if err := d.start(append(line, args...)); err != nil {
		return err
	}
	return Eventually(ctx, 10*time.Second, func() error {
		if _, err := d.pid(); err != nil {
			return fmt.Errorf("waiting for cloudmap-local (its log is %s): %w", d.log(), err)
		}
		resp, err := http.Get(Endpoint + "/healthz")
		if err != nil {
			return fmt.Errorf("waiting for cloudmap-local (its log is %s): %w", d.log(), err)
		}
		return resp.Body.Close()
	})
}

// Seal creates the resources of the clusterset and of these clusters in Cloud Map that the stacks
// of deploy/iam create, as an administrator. None of them may exist.
func (s *Set) Seal(ctx context.Context, clusters ...string) error {
	resources, err := cloudmaptest.Stacks(os.DirFS(filepath.Join(s.Root, "deploy/iam")), ClusterSetID, clusters...)
	if err != nil {
		return err
	}
	admin := servicediscovery.New(servicediscovery.Options{
		BaseEndpoint: aws.String(Endpoint), Region: region, Credentials: credentials.NewStaticCredentialsProvider(adminKey, adminSecret, ""),
	})
	if err := cloudmaptest.Create(ctx, admin, resources); err != nil {
		return fmt.Errorf("creating the resources of the clusterset in Cloud Map: %w", err)
	}
	return nil
}

// startEtcd starts etcd. The arguments are those of hack/etcd-local.
func (s *Set) startEtcd(ctx context.Context, args ...string) error {
	d := s.daemon(Etcd)
	address := strings.TrimSuffix(etcdAddress, ":2379")
	line := []string{filepath.Join(s.Root, "hack/etcd-local"), filepath.Join(s.Root, "bin/etcd"), address}
	if err := d.start(append(line, args...)); err != nil {
		return err
	}
	return Eventually(ctx, 20*time.Second, func() error {
		if _, err := d.pid(); err != nil {
			return fmt.Errorf("waiting for etcd (its log is %s): %w", d.log(), err)
		}
		// with users, then without
		out, err := s.Output(ctx, "etcdctl endpoint health || ETCDCTL_USER= etcdctl endpoint health")
		if err != nil {
			return fmt.Errorf("waiting for etcd (its log is %s): %w: %s", d.log(), err, out)
		}
		return nil
	})
}

// enableEtcdUsers enables authentication, with the commands of docs/etcd.md.
func (s *Set) enableEtcdUsers(ctx context.Context) error {
	out, err := s.Output(ctx, "ETCDCTL_USER=; etcdctl user add root --interactive=false <<<"+etcdRootPassword+" && etcdctl user grant-role root root && etcdctl auth enable")
	if err != nil {
		return fmt.Errorf("enabling etcd's users: %w: %s", err, out)
	}
	return nil
}

// StopRegistry ends the registry's process and keeps its content: nothing listens any more.
func (s *Set) StopRegistry(ctx context.Context) error {
	d := s.daemon(s.Registry)
	pid, err := d.pid()
	if err != nil {
		return err
	}
	d.stop()
	return Eventually(ctx, 20*time.Second, func() error {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(name) > 0 {
			return fmt.Errorf("%s still runs", d.name)
		}
		return nil
	})
}

// StartRegistry starts the registry again with its content. After EmptyRegistry it has none, and
// etcd no users but root.
func (s *Set) StartRegistry(ctx context.Context) error {
	if s.Registry == CloudMap {
		return s.startCloudMap(ctx, s.cloudMapArgs)
	}
	_, statErr := os.Stat(s.etcdData())
	if err := s.startEtcd(ctx, "keep"); err != nil || !errors.Is(statErr, fs.ErrNotExist) {
		return err
	}
	return s.enableEtcdUsers(ctx)
}

// EmptyRegistry removes the content of a stopped registry.
func (s *Set) EmptyRegistry() error {
	if s.Registry == CloudMap {
		return os.RemoveAll(s.cloudMapState())
	}
	return os.RemoveAll(s.etcdData())
}

// SnapshotEtcd saves a snapshot of the running etcd.
func (s *Set) SnapshotEtcd(ctx context.Context) error {
	return s.script(ctx, "etcdctl snapshot save "+s.etcdSnapshot())
}

// RestoreEtcd makes the content of a stopped etcd that of the last snapshot, as an administrator
// does it. The flags are further flags of `etcdutl snapshot restore`.
func (s *Set) RestoreEtcd(ctx context.Context, flags string) error {
	// as hack/etcd-local starts it
	const member = "--name local --initial-cluster local=http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380"
	return s.script(ctx, fmt.Sprintf("rm -rf %[1]s && etcdutl snapshot restore %[2]s --data-dir %[1]s %[3]s %[4]s", s.etcdData(), s.etcdSnapshot(), member, flags))
}

// script runs a command line that must succeed.
func (s *Set) script(ctx context.Context, line string) error {
	if out, err := s.Output(ctx, line); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

func (s *Set) etcdSnapshot() string  { return filepath.Join(s.Root, "bin/etcd/snapshot.db") }
func (s *Set) etcdData() string      { return filepath.Join(s.Root, "bin/etcd/data") }
func (s *Set) cloudMapState() string { return filepath.Join(s.Root, "bin/cloudmap-local.state") }

// PauseRegistry makes the registry hang: connections are accepted and never answered.
func (s *Set) PauseRegistry() error { return s.daemon(s.Registry).signal(syscall.SIGSTOP) }

// ResumeRegistry resumes a paused registry.
func (s *Set) ResumeRegistry() error { return s.daemon(s.Registry).signal(syscall.SIGCONT) }

// RegistryLog returns the path of the registry's log.
func (s *Set) RegistryLog() string { return s.daemon(s.Registry).log() }

// daemon is a process that continues after this one, so that KEEP=1 can keep it. It is part of the
// testbed: testbed down ends it.
type daemon struct {
	set *Set
	// name is the name of its files in bin; program is part of its command line.
	name, program string
}

func (s *Set) daemon(registry string) daemon {
	if registry == Etcd {
		return daemon{s, "etcd-local", "etcd"}
	}
	return daemon{s, "cloudmap-local", "cloudmap-local"}
}

func (d daemon) log() string     { return filepath.Join(d.set.Root, "bin", d.name+".log") }
func (d daemon) pidFile() string { return filepath.Join(d.set.Root, "bin", d.name+".pid") }

func (d daemon) start(args []string) error {
	log, err := os.Create(d.log())
	if err != nil {
		return fmt.Errorf("creating the log of %s: %w", d.name, err)
	}
	defer log.Close()
	testbed := filepath.Join(d.set.Root, "bin/testbed")
	// it becomes the daemon: the process ID is the same
	cmd := exec.Command(testbed, append([]string{"run", "--"}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = d.set.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", d.name, err)
	}
	if err := os.WriteFile(d.pidFile(), []byte(fmt.Sprint(cmd.Process.Pid)), 0o600); err != nil {
		return err
	}
	// reaps a daemon that ends early: pid would take the zombie for a running process
	go func() { _ = cmd.Wait() }()
	return nil
}

func (d daemon) stop() {
	if pid, err := d.pid(); err == nil {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	_ = os.Remove(d.pidFile())
}

func (d daemon) signal(sig syscall.Signal) error {
	pid, err := d.pid()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// pid returns the ID of the running process.
func (d daemon) pid() (int, error) {
	text, err := os.ReadFile(d.pidFile())
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return 0, fmt.Errorf("reading %s: %w", d.pidFile(), err)
	}
	// The number may have been used again by another process.
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(name, []byte(d.program)) {
		return 0, fmt.Errorf("process %d is not %s", pid, d.name)
	}
	return pid, nil
}
