package testbed_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/host"
)

// These tests bring real clusters up. They need root, the only testbed of the machine, and a minute
// or two:
//
//	TESTBED_E2E=1 go test -C testbed -v .
func newTestbed(t *testing.T) *bed {
	t.Helper()
	if os.Getenv("TESTBED_E2E") == "" {
		t.Skip("set TESTBED_E2E=1 to bring real clusters up")
	}
	cache, err := testbed.DefaultCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{&testbed.Testbed{StateDir: filepath.Join(t.TempDir(), "state"), CacheDir: cache, Source: source, Out: t.Output()}}
	if err := b.removeCrashed(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Down(); err != nil {
			t.Errorf("taking the testbed down at the end: %v", err)
		}
	})
	return b
}

type bed struct{ *testbed.Testbed }

// removeCrashed removes the resources of a testbed that has no process any more, as after a stop of
// the machine or of a test run. It returns an error for a testbed with processes, which is in use.
func (b *bed) removeCrashed() error {
	left, err := host.Leftovers(b.StateDir)
	if err != nil || len(left) == 0 {
		return err
	}
	if slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, "process ") }) {
		return errors.New("a testbed is up on this machine and there can be only one: run testbed down first")
	}
	switches, err := host.SwitchFiles()
	if err != nil {
		return err
	}
	for _, file := range switches {
		crashed := *b.Testbed
		crashed.StateDir = filepath.Dir(file)
		if err := crashed.Down(); err != nil {
			return err
		}
	}
	return b.Down() // also if it has no switch any more
}

func (b *bed) mustUp(t *testing.T, cfg cluster.Config) testbed.Status {
	t.Helper()
	if err := b.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return b.mustStatus(t)
}

func (b *bed) mustStatus(t *testing.T) testbed.Status {
	t.Helper()
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kubectl runs kubectl on a cluster and fails the test if it fails.
func (b *bed) kubectl(t *testing.T, clusterName string, args ...string) string {
	t.Helper()
	program, err := b.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--kubeconfig", b.Kubeconfig(), "--context", clusterName}, args...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args[4:], " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// runPod starts a Pod and returns its addresses, IPv4 first.
func (b *bed) runPod(t *testing.T, clusterName, name, image string, args ...string) []string {
	t.Helper()
	b.kubectl(t, clusterName, append([]string{"run", name, "--image", image}, args...)...)
	b.kubectl(t, clusterName, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	return strings.Fields(b.kubectl(t, clusterName, "get", "pod", name, "-o", "jsonpath={.status.podIPs[*].ip}"))
}

// pinnedTo makes kubectl run put a Pod on a node.
func pinnedTo(node string) string { return `--overrides={"spec":{"nodeName":"` + node + `"}}` }

func (b *bed) curl(t *testing.T, clusterName, pod, host string) string {
	t.Helper()
	return b.kubectl(t, clusterName, "exec", pod, "--", "curl", "--silent", "--show-error", "--max-time", "5",
		// kube-proxy needs a moment after a change
		"--retry", "10", "--retry-delay", "1", "--retry-connrefused",
		"http://"+host)
}

func TestLifecycle(t *testing.T) {
	b := newTestbed(t)
	before := inventory(t)
	cfg := cluster.Config{Clusters: 1, Nodes: 1}

	first := b.mustUp(t, cfg)
	if !first.Up || !first.Clusters[0].Ready {
		t.Fatalf("status after up: %+v", first)
	}
	t.Run("a pod reaches services, names and the host", func(t *testing.T) { b.checkReach(t, first.HostIP) })
	t.Run("readiness can be flipped", b.checkReadinessFlip)
	t.Run("up changes nothing when it is up", func(t *testing.T) {
		if diff := cmp.Diff(first, b.mustUp(t, cfg)); diff != "" {
			t.Errorf("status (-before +after):\n%s", diff)
		}
	})
	t.Run("up refuses another configuration", func(t *testing.T) {
		err := b.Up(t.Context(), cluster.Config{Clusters: 2, Nodes: 1})
		if err == nil || !strings.Contains(err.Error(), "testbed down") {
			t.Errorf("error is %v, want one that says what to do", err)
		}
	})
	t.Run("up does not take the machine from another testbed", func(t *testing.T) {
		other := &testbed.Testbed{StateDir: filepath.Join(t.TempDir(), "state"), CacheDir: b.CacheDir, Source: b.Source, Out: t.Output()}
		err := other.Up(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), b.StateDir) {
			t.Errorf("error is %v, want one that names %s", err, b.StateDir)
		}
	})
	t.Run("a killed kubelet comes back", func(t *testing.T) { b.checkKubeletRestarts(t, first.Clusters[0].Nodes[0]) })
	t.Run("up repairs a crashed testbed", func(t *testing.T) {
		killNode(t, first.Clusters[0].Nodes[0])
		if s := b.mustStatus(t); s.Up {
			t.Errorf("status of a dead testbed is %+v", s)
		}
		again := b.mustUp(t, cfg)
		if !again.Up || again.Clusters[0].Nodes[0].PID == first.Clusters[0].Nodes[0].PID {
			t.Errorf("status after the second up is %+v", again)
		}
		b.runPod(t, "cls1", "client", "testbed/client:1")
	})
	t.Run("tests remove a crashed testbed", func(t *testing.T) {
		other := &bed{&testbed.Testbed{StateDir: filepath.Join(t.TempDir(), "state"), CacheDir: b.CacheDir, Source: b.Source, Out: t.Output()}}
		if err := other.removeCrashed(); err == nil || !strings.Contains(err.Error(), "testbed down") {
			t.Errorf("error with a running testbed is %v, want one with the command to run", err)
		}
		killNode(t, b.mustStatus(t).Clusters[0].Nodes[0])
		waitUntil(t, "the removal of the crashed testbed", func() bool { return other.removeCrashed() == nil })
		if diff := cmp.Diff(before, inventory(t)); diff != "" {
			t.Errorf("the machine (-before +after):\n%s", diff)
		}
		b.mustUp(t, cfg)
	})
	t.Run("down leaves nothing", func(t *testing.T) {
		added := exec.Command("sleep", "600")
		if err := added.Start(); err != nil {
			t.Fatal(err)
		}
		if err := b.AddProcess(added.Process.Pid); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time there is nothing to do
			if err := b.Down(); err != nil {
				t.Fatal(err)
			}
		}
		if err := added.Wait(); err == nil || added.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the process on the host ended with %v, want SIGKILL", err)
		}
		if diff := cmp.Diff(before, inventory(t)); diff != "" {
			t.Errorf("the machine (-before +after):\n%s", diff)
		}
	})
}

func (b *bed) checkReach(t *testing.T, hostIP string) {
	zone := b.kubectl(t, "cls1", "get", "node", "cls1-node1", "-o", `jsonpath={.metadata.labels.topology\.kubernetes\.io/zone}`)
	if zone != "ap-southeast-2a" {
		t.Errorf("zone of the node is %q", zone)
	}
	b.runPod(t, "cls1", "client", "testbed/client:1")
	podIP := b.runPod(t, "cls1", "hello", "testbed/nginx-hello:1", "--port=80", "--expose")[0]
	want := "Server address: " + podIP + ":80\nServer name: hello\n"
	for _, host := range []string{podIP, "hello", "hello.default.svc.cluster.local"} {
		if got := b.curl(t, "cls1", "client", host); !strings.HasPrefix(got, want) {
			t.Errorf("%s answers %q, want %q", host, got, want)
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(hostIP, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "host here") })}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	defer server.Close()
	if got := b.curl(t, "cls1", "client", listener.Addr().String()); got != "host here" {
		t.Errorf("the host answers %q", got)
	}
	if out := b.kubectl(t, "cls1", "logs", "hello"); out != "" {
		t.Errorf("hello logs %q", out)
	}
}

func (b *bed) checkReadinessFlip(t *testing.T) {
	ip := b.runPod(t, "cls1", "flip", "testbed/nginx-hello:1", `--overrides={"spec":{"containers":[{"name":"flip","image":"testbed/nginx-hello:1",`+
		`"readinessProbe":{"httpGet":{"path":"/ready","port":80},"periodSeconds":1,"failureThreshold":1}}]}}`)[0]
	for _, step := range []struct{ set, condition string }{{"false", "Ready=false"}, {"true", "Ready=true"}} {
		resp, err := http.Post("http://"+ip+"/ready?ok="+step.set, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		b.kubectl(t, "cls1", "wait", "--for=condition="+step.condition, "pod/flip", "--timeout=30s")
	}
	b.kubectl(t, "cls1", "delete", "pod", "flip", "--now")
}

func (b *bed) checkKubeletRestarts(t *testing.T, node testbed.NodeStatus) {
	old := kubelets(t, node)
	if len(old) != 1 {
		t.Fatalf("kubelets of the node: %v", old)
	}
	if err := syscall.Kill(old[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "another kubelet", func() bool {
		now := kubelets(t, node)
		return len(now) == 1 && now[0] != old[0]
	})
}

// kubelets lists the kubelet processes of a node: children of its first process.
func kubelets(t *testing.T, node testbed.NodeStatus) []int {
	t.Helper()
	// each thread has its own
	lists, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(node.PID), "task/*/children"))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, list := range lists {
		for child := range strings.FieldsSeq(read(t, list)) {
			comm, err := os.ReadFile(filepath.Join("/proc", child, "comm"))
			if pid, convErr := strconv.Atoi(child); err == nil && convErr == nil && strings.TrimSpace(string(comm)) == "kubelet" {
				out = append(out, pid)
			}
		}
	}
	return out
}

func killNode(t *testing.T, node testbed.NodeStatus) {
	t.Helper()
	if err := syscall.Kill(node.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the end of "+node.Name, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(node.PID), "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 30 s in vain for %s", what)
		}
	}
}

func TestTwoClustersOfTwoNodesDualStack(t *testing.T) {
	b := newTestbed(t)
	before := inventory(t)
	b.mustUp(t, cluster.Config{Clusters: 2, Nodes: 2, DualStack: true})
	clients := []struct{ cluster, node string }{{"cls1", "cls1-node1"}, {"cls1", "cls1-node2"}, {"cls2", "cls2-node2"}}
	for _, c := range clients {
		b.runPod(t, c.cluster, "on-"+c.node, "testbed/client:1", pinnedTo(c.node))
	}
	ips := b.runPod(t, "cls1", "hello", "testbed/nginx-hello:1", pinnedTo("cls1-node2"))
	b.kubectl(t, "cls1", "create", "-f", writeFile(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"hello"},
		"spec":{"selector":{"run":"hello"},"ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]}}`))
	serviceIPs := strings.Fields(b.kubectl(t, "cls1", "get", "service", "hello", "-o", "jsonpath={.spec.clusterIPs[*]}"))
	if len(ips) != 2 || len(serviceIPs) != 2 {
		t.Fatalf("addresses of the Pod are %v, of its Service %v: want one of each family", ips, serviceIPs)
	}
	for _, c := range clients {
		targets := ips
		if c.cluster == "cls1" {
			targets = append(slices.Clone(ips), serviceIPs...)
		}
		for _, ip := range targets {
			// The Pod sees itself asked at its own address: there is no address translation but the
			// Service's.
			if got := b.curl(t, c.cluster, "on-"+c.node, net.JoinHostPort(ip, "80")); !strings.Contains(got, "Server name: hello\n") {
				t.Errorf("%s from %s answers %q", ip, c.node, got)
			}
		}
	}
	archives, err := filepath.Glob(filepath.Join(b.CacheDir, "images", "nginx-hello-*.tar"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("archives of the hello image: %v, %v", archives, err)
	}
	if err := b.LoadImage(t.Context(), "cls2", archives[0]); err != nil {
		t.Error(err)
	}
	if err := b.LoadImage(t.Context(), "cls3", archives[0]); err == nil {
		t.Error("an image was loaded into a cluster that does not exist")
	}
	if err := b.Down(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, inventory(t)); diff != "" {
		t.Errorf("the machine (-before +after):\n%s", diff)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "object.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// machine is the state of the machine that a testbed could change.
type machine struct {
	Mounts, Cgroups, Links, Routes, Namespaces, Processes []string
	Firewall, Forwarding                                  string
	HasUsrLibexecKubernetes                               bool
}

func inventory(t *testing.T) machine {
	t.Helper()
	var m machine
	mounts := read(t, "/proc/self/mountinfo")
	for line := range strings.Lines(mounts) {
		m.Mounts = append(m.Mounts, strings.Fields(line)[4])
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // a cgroup of another program may vanish meanwhile
		}
		if !entry.IsDir() {
			return nil
		}
		m.Cgroups = append(m.Cgroups, path)
		if strings.Count(path, "/") == strings.Count("/sys/fs/cgroup/memory/x", "/") {
			// deeper cgroups belong to other programs, or host.Leftovers checks them
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		m.Links = append(m.Links, l.Attrs().Name)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		m.Routes = append(m.Routes, r.String())
	}
	m.Namespaces, m.Processes = processInventory(t)
	rules, err := exec.Command("nft", "--json", "list", "ruleset").Output()
	if err != nil || !json.Valid(rules) {
		t.Fatalf("listing the firewall's rules: %v", err)
	}
	m.Firewall = string(rules)
	m.Forwarding = read(t, "/proc/sys/net/ipv4/ip_forward") + read(t, "/proc/sys/vm/overcommit_memory") + read(t, "/proc/sys/kernel/panic")
	_, err = os.Stat("/usr/libexec/kubernetes")
	m.HasUsrLibexecKubernetes = err == nil
	return m
}

// processInventory lists the network namespaces of all processes, and the processes in PID
// namespaces but this one.
func processInventory(t *testing.T) (namespaces, processes []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil {
			namespaces = append(namespaces, ns)
		}
		if ns, err := os.Readlink(filepath.Join(dir, "ns/pid")); err == nil && ns != own {
			// A process that has ended and is not reaped yet has none.
			if program, err := os.Readlink(filepath.Join(dir, "exe")); err == nil {
				processes = append(processes, dir+" "+program)
			}
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces), processes
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
