// Package etcdtest runs real etcd clusters for tests and benchmarks, with TLS and etcd's own users
// as in docs/etcd.md, and injects faults into them.
package etcdtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// Options are the options of Start.
type Options struct {
	// Program is the etcd binary.
	Program string
	// Dir is the directory for data, certificates and logs; it must exist.
	Dir string
	// Members is the number of members; 0 is one.
	Members int
	// Address is the address of a single member for clients, as host:port; "" is a free port of
	// 127.0.0.1.
	Address string
	// Args are further arguments of each member, Env further environment variables as NAME=value.
	Args, Env []string
	// Plain makes the members serve clients without TLS.
	Plain bool
	// ClientCertificates requires a certificate of each client and uses its common name as the
	// user.
	ClientCertificates bool
}

// Cluster is a running etcd cluster. Clients reach each member through a Proxy of its own, and so
// do the other members.
type Cluster struct {
	Members []*Member
	// CAFile is the CA of the members' certificates.
	CAFile string

	dir  string
	ca   *authority
	root *clientv3.Client
}

// Member is one etcd process.
type Member struct {
	// Clients and Peers are the proxies in front of it, nil for a single member with
	// Options.Address.
	Clients, Peers *Proxy

	// Endpoint is its URL for clients.
	Endpoint string

	name, program, logFile string
	// direct is its URL without the proxy.
	direct    string
	args, env []string
	mu        sync.Mutex
	cmd       *exec.Cmd
	done      chan struct{}
}

const rootPassword = "root-password"

// Start starts a cluster, waits until it serves, and enables authentication.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{dir: o.Dir}
	if err := c.prepare(o); err != nil {
		c.Stop()
		return nil, fmt.Errorf("preparing etcd: %w", err)
	}
	for _, m := range c.Members {
		if err := m.Start(); err != nil {
			c.Stop()
			return nil, err
		}
	}
	if err := c.enableAuth(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("switching the users of etcd on (its logs are in %s): %w", o.Dir, err)
	}
	return c, nil
}

func (c *Cluster) prepare(o Options) error {
	host := "127.0.0.1"
	if o.Address != "" {
		host, _, _ = net.SplitHostPort(o.Address)
	}
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	c.CAFile = filepath.Join(o.Dir, "ca.crt")
	if err := os.WriteFile(c.CAFile, c.ca.pem, 0o644); err != nil {
		return err
	}
	if err := c.ca.issue(filepath.Join(o.Dir, "server"), "etcd", host); err != nil {
		return err
	}
	var peers []string
	for i := range max(1, o.Members) {
		m, peer, err := newMember(fmt.Sprintf("m%d", i), o)
		if err != nil {
			return err
		}
		c.Members = append(c.Members, m)
		peers = append(peers, peer)
	}
	for _, m := range c.Members {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		if o.ClientCertificates {
			m.args = append(m.args, "--client-cert-auth", "--trusted-ca-file", c.CAFile)
		}
		m.args = append(m.args, o.Args...)
	}
	return nil
}

// newMember creates a member with its proxies and chooses its ports.
func newMember(name string, o Options) (m *Member, peer string, err error) {
	m = &Member{name: name, program: o.Program, logFile: filepath.Join(o.Dir, name+".log")}
	scheme := "https://"
	if o.Plain {
		scheme = "http://"
	}
	client, listen := scheme+o.Address, scheme+o.Address
	if o.Address == "" {
		if m.Clients, err = NewProxy(); err != nil {
			return nil, "", err
		}
		client, listen = scheme+m.Clients.Address(), scheme+m.Clients.target
	}
	if m.Peers, err = NewProxy(); err != nil {
		return nil, "", err
	}
	m.Endpoint, m.direct, m.env = client, listen, o.Env
	m.args = []string{
		"--name", name, "--data-dir", filepath.Join(o.Dir, name), "--log-level", "warn",
		"--listen-client-urls", listen, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + m.Peers.target, "--initial-advertise-peer-urls", "http://" + m.Peers.Address(),
		"--initial-cluster-token", filepath.Base(o.Dir),
	}
	if !o.Plain {
		m.args = append(m.args, "--cert-file", filepath.Join(o.Dir, "server.crt"), "--key-file", filepath.Join(o.Dir, "server.key"))
	}
	return m, name + "=http://" + m.Peers.Address(), nil
}

// Start starts the process, also after Kill.
func (m *Member) Start() error {
	if err := testprocess.EndChildren(); err != nil {
		return err
	}
	log, err := os.OpenFile(m.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(m.program, m.args...)
	cmd.Args[0] = "etcd" // the testbed's binary is many programs
	cmd.Env = append(os.Environ(), m.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.done = cmd, make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(m.done)
	return nil
}

// Kill kills the process and waits until it has ended.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.done
	m.cmd = nil
}

// Pause suspends the process: connections stay open, but it does not answer.
func (m *Member) Pause() { m.signal(syscall.SIGSTOP) }

// Resume resumes a paused process.
func (m *Member) Resume() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s os.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(s)
	}
}

// Backup copies the data of all members into a directory that exists, and returns a function that
// sets them back to it.
func (c *Cluster) Backup(dir string) (restore func() error, err error) {
	copyData := func(from, to string) error {
		for _, m := range c.Members {
			m.Kill()
		}
		for _, m := range c.Members {
			target := filepath.Join(to, m.name)
			if err := os.RemoveAll(target); err != nil {
				return err
			}
			if err := copyFolder(filepath.Join(from, m.name), target); err != nil {
				return err
			}
		}
		for _, m := range c.Members {
			if err := m.Start(); err != nil {
				return err
			}
		}
		return nil
	}
	return func() error {
		if err := copyData(dir, c.dir); err != nil {
			return err
		}
		// etcd lets requests with a token that it gave out after the backup wait until it has
		// written as much again. The registry's watch logs in again.
		_ = c.root.Close()
		// while the members elect a leader, a login may fail
		for deadline := time.Now().Add(time.Minute); ; {
			if c.root, err = c.client("root", rootPassword, c.direct()); err == nil || time.Now().After(deadline) {
				return err
			}
		}
	}, copyData(c.dir, dir)
}

// copyFolder copies a folder. It leaves out blocks of zeros, which most of etcd's log is: it
// allocates 64 MB of it at once.
func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o700) // etcd refuses a directory that others can read
		}
		return copySparse(path, target)
	})
}

func copySparse(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer target.Close()
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	var offset int64
	for {
		n, err := io.ReadFull(source, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := target.WriteAt(block[:n], offset); err != nil {
				return err
			}
		}
		offset += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return target.Truncate(offset)
		}
		if err != nil {
			return err
		}
	}
}

// Stop ends all members.
func (c *Cluster) Stop() {
	if c.root != nil {
		_ = c.root.Close()
	}
	for _, m := range c.Members {
		m.Kill()
		for _, p := range []*Proxy{m.Clients, m.Peers} {
			if p != nil {
				p.Close()
			}
		}
	}
}

// Endpoints returns the members' URLs for clients.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.Endpoint)
	}
	return urls
}

// direct returns the members' URLs without the proxies.
func (c *Cluster) direct() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.direct)
	}
	return urls
}

// enableAuth creates the user root and enables authentication.
func (c *Cluster) enableAuth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Certificate("root"); err != nil {
		return err
	}
	open, err := c.client("", "", c.direct())
	if err != nil {
		return err
	}
	defer open.Close()
	for {
		_, err := open.UserAdd(ctx, "root", rootPassword)
		if err == nil || strings.Contains(err.Error(), "already exists") {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, err := open.UserGrantRole(ctx, "root", "root"); err != nil {
		return err
	}
	if _, err := open.AuthEnable(ctx); err != nil {
		return err
	}
	c.root, err = c.client("root", rootPassword, c.direct())
	return err
}

func (c *Cluster) client(user, password string, endpoints []string) (*clientv3.Client, error) {
	files := transport.TLSInfo{
		TrustedCAFile: c.CAFile, CertFile: filepath.Join(c.dir, "root.crt"), KeyFile: filepath.Join(c.dir, "root.key"), Logger: zap.NewNop(),
	}
	cfg, err := files.ClientConfig()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: cfg, Username: user, Password: password, DialTimeout: 20 * time.Second, Logger: zap.NewNop(),
		// As the registry's client: gRPC's own pauses between attempts to connect grow to two
		// minutes.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}, MinConnectTimeout: 5 * time.Second,
		})},
	})
}

// Client returns a client with the user that AddCluster created for a cluster. The caller closes
// it.
func (c *Cluster) Client(user, passwordFile string) (*clientv3.Client, error) {
	password, err := os.ReadFile(passwordFile)
	if err != nil {
		return nil, err
	}
	return c.client(user, strings.TrimSpace(string(password)), c.Endpoints())
}

// Root returns a client with all permissions. It does not use the proxies, so that it reaches
// members that are cut off from clients.
func (c *Cluster) Root() *clientv3.Client { return c.root }

// Certificate issues a client certificate with the common name user, in CertificateFiles(user).
func (c *Cluster) Certificate(user string) error {
	return c.ca.issue(filepath.Join(c.dir, user), user, "")
}

// CertificateFiles returns the files that Certificate writes.
func (c *Cluster) CertificateFiles(user string) (certFile, keyFile string) {
	return filepath.Join(c.dir, user+".crt"), filepath.Join(c.dir, user+".key")
}

// AddCluster creates a user for a cluster with the permissions of docs/etcd.md, and returns its
// name and the file of its password. It may be called again.
func (c *Cluster) AddCluster(ctx context.Context, prefix, clusterSetID, clusterID string) (user, passwordFile string, err error) {
	user = strings.Trim(strings.ReplaceAll(prefix, "/", "-"), "-") + "." + clusterSetID + "." + clusterID
	passwordFile = filepath.Join(c.dir, user+".password")
	if _, err := os.Stat(passwordFile); err == nil {
		return user, passwordFile, nil
	}
	all := prefix + "/" + clusterSetID + "/"
	own := all + clusterID + "/"
	steps := []func() error{
		func() error { _, err := c.root.UserAdd(ctx, user, "password of "+user); return err },
		func() error { _, err := c.root.RoleAdd(ctx, user); return err },
		func() error {
			_, err := c.root.RoleGrantPermission(ctx, user, all, clientv3.GetPrefixRangeEnd(all), clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func() error {
			_, err := c.root.RoleGrantPermission(ctx, user, own, clientv3.GetPrefixRangeEnd(own), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.root.UserGrantRole(ctx, user, user); return err },
		func() error { return os.WriteFile(passwordFile, []byte("password of "+user+"\n"), 0o600) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return "", "", fmt.Errorf("adding user %s: %w", user, err)
		}
	}
	return user, passwordFile, nil
}

// Revoke removes a user's permissions; Restore restores them.
func (c *Cluster) Revoke(ctx context.Context, user string) error {
	_, err := c.root.UserRevokeRole(ctx, user, user)
	return err
}

// Restore restores the permissions that Revoke removed.
func (c *Cluster) Restore(ctx context.Context, user string) error {
	_, err := c.root.UserGrantRole(ctx, user, user)
	return err
}

// ErrNoProgram means that no etcd binary was found.
var ErrNoProgram = errors.New(`there is no etcd binary: run with KUBEBUILDER_ASSETS="$(bin/testbed assets)"`)

// Program returns the etcd binary among the assets of a Kubernetes test environment.
func Program() (string, error) {
	file := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "etcd")
	if _, err := os.Stat(file); os.Getenv("KUBEBUILDER_ASSETS") == "" || err != nil {
		return "", ErrNoProgram
	}
	return file, nil
}
