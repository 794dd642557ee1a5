package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectInterval is the time between two connections, connectTimeout the time that one may
	// take.
	connectInterval = 100 * time.Millisecond
	connectTimeout  = time.Second
	// dnsAddress is the address of the DNS server in every cluster of the testbed.
	dnsAddress = "172.20.0.10:53"
)

// traffic connects to clusterset IPs from a node of a cluster: ten times a second to the first
// address, and ten times a second to the others in turn. It records the connections that fail.
//
// For comparison it connects as often to pods directly, on the same way but for the clusterset IP.
// On a machine with too little CPU some of these fail as well.
type traffic struct {
	node    nodeNetwork
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	count    int
	failures []failure
	// row is the number of connections to clusterset IPs that succeeded since the last one that
	// failed.
	row int
	// direct are the direct connections that failed.
	direct []failure
}

// loadWindow is the time around a failed direct connection in which others are likely to fail for
// the same reason.
const loadWindow = 5 * time.Second

// failure is a failed connection.
type failure struct {
	at      time.Time
	address string
	err     error
}

// startTraffic starts the connections to the addresses (IP:port), and to pods.
func startTraffic(t *testing.T, node nodeNetwork, addresses, pods []string) *traffic {
	t.Helper()
	return startTrafficEvery(t, connectInterval, node, addresses, pods)
}

// startTrafficEvery is startTraffic with another time between two connections.
func startTrafficEvery(t *testing.T, interval time.Duration, node nodeNetwork, addresses, pods []string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{node: node, cancel: cancel}
	t.Cleanup(func() { tr.stop() })
	tr.running.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			tr.running.Go(func() { tr.connect(ctx, addresses[0], false) })
			if others := addresses[1:]; len(others) > 0 {
				tr.running.Go(func() { tr.connect(ctx, others[n%len(others)], false) })
			}
			for _, pod := range pods {
				tr.running.Go(func() { tr.connect(ctx, pod, true) })
			}
		}
	})
	return tr
}

// connect makes one connection and records it.
func (tr *traffic) connect(ctx context.Context, address string, isDirect bool) {
	at := time.Now()
	conn, err := tr.node.dial(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	if ctx.Err() != nil {
		return // it was not given its time
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case isDirect && err != nil:
		tr.direct = append(tr.direct, failure{at, address, err})
	case isDirect:
	case err != nil:
		tr.failures, tr.row = append(tr.failures, failure{at, address, err}), 0
	default:
		tr.row++
	}
	if !isDirect {
		tr.count++
	}
}

// inARow returns an error unless at least the last n connections to clusterset IPs succeeded.
func (tr *traffic) inARow(n int) error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.row < n {
		return fmt.Errorf("%d connections in a row succeeded, want %d", tr.row, n)
	}
	return nil
}

// stop ends the connections. It returns the number of connections to clusterset IPs, and those that
// failed, by time. For each direct connection that failed, it leaves out one failure at about the
// same time: the machine was overloaded. load is the number of failures that it left out.
func (tr *traffic) stop() (count int, failures []failure, load int) {
	tr.cancel()
	tr.running.Wait()
	slices.SortFunc(tr.failures, func(a, b failure) int { return a.at.Compare(b.at) })
	direct := slices.Clone(tr.direct)
	for _, f := range tr.failures {
		i := slices.IndexFunc(direct, func(d failure) bool { return d.at.Sub(f.at).Abs() <= loadWindow })
		if i < 0 {
			failures = append(failures, f)
			continue
		}
		direct = slices.Delete(direct, i, i+1)
	}
	return tr.count, failures, len(tr.failures) - len(failures)
}

// duration returns the time from the first to the last failure.
func duration(failures []failure) time.Duration {
	if len(failures) == 0 {
		return 0
	}
	return failures[len(failures)-1].at.Sub(failures[0].at) + connectInterval
}

// nodeNetwork is the network of a node of the testbed.
type nodeNetwork struct{ namespace *os.File }

// networkOf returns the network of a node until the test ends.
func networkOf(t *testing.T, node string) nodeNetwork {
	t.Helper()
	pid, err := nodePID(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return nodeNetwork{f}
}

// nodePID returns the ID of the first process of a node.
func nodePID(ctx context.Context, node string) (int, error) {
	out, err := suite.Stdout(ctx, "", "testbed", "status", "-o", "json")
	if err != nil {
		return 0, err
	}
	var status struct {
		Clusters []struct {
			Nodes []struct {
				Name string `json:"name"`
				PID  int    `json:"pid"`
			} `json:"nodes"`
		} `json:"clusters"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return 0, fmt.Errorf("reading the state of the testbed: %w", err)
	}
	for _, c := range status.Clusters {
		for _, n := range c.Nodes {
			if n.Name == node {
				return n.PID, nil
			}
		}
	}
	return 0, fmt.Errorf("the testbed has no node %s", node)
}

// dial connects from the node to an IP and port. kube-proxy handles the connection as one of a pod.
func (n nodeNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// A socket belongs to the network namespace of the thread that creates it. Without an
		// unlock the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("entering the network of the node: %w", err)}
			return
		}
		conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// resolve returns the IPv4 address of a name, asked once in the node's cluster.
func (n nodeNetwork) resolve(ctx context.Context, name string) (string, error) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.dial(ctx, network, dnsAddress)
	}}
	ips, err := resolver.LookupIP(ctx, "ip4", name)
	if err != nil {
		return "", err
	}
	if len(ips) != 1 {
		return "", fmt.Errorf("%s has the addresses %v, want one", name, ips)
	}
	return ips[0].String(), nil
}
