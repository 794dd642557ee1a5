package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	statefulPage = "docs/stateful-services.md"
	// statefulNamespace is the namespace of samples/stateful.
	statefulNamespace = "demo"
	// writeTimeout is the time that one write may take, and writePrefix the prefix of the keys.
	writeTimeout = time.Second
	writePrefix  = "/count/"
)

// etcdMembers are the members of samples/stateful: pod and cluster.
var etcdMembers = []string{"etcd-0.cls1", "etcd-1.cls1", lostMember}

// lostMember is the member in the cluster that is lost.
const lostMember = "etcd-0.cls2"

// memberName returns the name of a member in the clusterset.
func memberName(member string) string {
	return strings.TrimSuffix(fqdn(statefulNamespace, "etcd", member), ".")
}

// TestStatefulServices follows docs/stateful-services.md: three members of etcd in two clusters
// find each other by the names of a headless service. Then every process of cls2, which has the
// leader, is killed. Writes go on, the name of the lost member is withdrawn when cls2 is stale, and
// the member catches up when cls2 has started again, with another address. A client writes and
// counts all the time: no write that was acknowledged is lost. At last the member returns without
// its data.
func TestStatefulServices(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes two minutes: NIGHTLY=1 runs it")
	}
	cls1, cls2 := installed(t)
	for _, c := range []cluster{cls1, cls2} {
		addArgs(t, c, "--heartbeat-interval=2s", "--stale-after=10s")
	}
	if out, err := suite.Output(t.Context(), "testbed load-image dist/etcd.tar"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	createVolume(t, cls1, "cls1-node1")
	createVolume(t, cls1, "cls1-node2")
	createVolume(t, cls2, "cls2-node1")
	t.Cleanup(func() {
		for _, c := range []cluster{cls1, cls2} {
			if t.Failed() {
				out, err := suite.Kubectl(context.Background(), c.name, "-n", statefulNamespace, "logs", "statefulset/etcd", "--all-pods", "--tail=30")
				t.Logf("%s: %v\n%s", c.name, err, out)
			}
			_ = c.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: statefulNamespace}})
		}
	})
	runSection(t, statefulPage, "Three members of etcd in two clusters")

	startClient(t, cls1, statefulNamespace)
	node := networkOf(t, "cls1-node1")
	w := startWrites(t, newMemberClient(t, node, etcdMembers...))
	moveLeader(t, node, lostMember)
	eventually(t, started, w.acknowledges(100))

	starts := []func(){killNode(t, "cls2-node1"), killNode(t, "cls2-node2")}
	lost := time.Now()
	eventually(t, started, w.acknowledges(100))
	eventually(t, started, func() error { return unknown(t.Context(), cls1, statefulNamespace, memberName(lostMember)+".") })
	t.Logf("the name of the lost member was withdrawn after %s; %s", round(time.Since(lost)), w)
	if err := exporters(t.Context(), cls1, statefulNamespace, "etcd", "cls1", "cls2"); err != nil {
		t.Error(err)
	}

	for _, start := range starts {
		start()
	}
	back := time.Now()
	lostClient := newMemberClient(t, node, lostMember)
	eventually(t, 2*started, func() error { return w.hasReached(t.Context(), lostClient) })
	t.Logf("the member had caught up %s after the start of its cluster; %s", round(time.Since(back)), w)
	runSection(t, statefulPage, "When the cluster is back")
	eventually(t, started, w.acknowledges(100))

	t.Log("the member returns without its data")
	createVolume(t, cls2, "cls2-node2")
	runSection(t, statefulPage, "A member without its data")
	eventually(t, 2*started, func() error { return w.hasReached(t.Context(), lostClient) })

	w.stop()
	eventually(t, soon, func() error { return w.hasReached(t.Context(), lostClient) })
	t.Log(w)
}

// createVolume creates a PersistentVolume on a node for one member: the testbed has no storage.
func createVolume(t *testing.T, c cluster, node string) {
	t.Helper()
	const path = "/var/lib/etcd-volume"
	if out, err := suite.Output(t.Context(), "testbed exec "+node+" -- mkdir -p "+path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	apply(t, c, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: %[2]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[1]s]}]}]}}
`, node, path))
	t.Cleanup(func() {
		_ = c.Delete(context.Background(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: node}})
	})
}

// newMemberClient returns a client of members by their names in the clusterset, from a node of a
// cluster, with the certificate of the page.
func newMemberClient(t *testing.T, node nodeNetwork, members ...string) *clientv3.Client {
	t.Helper()
	dir := filepath.Join(suite.Root, "bin/stateful")
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatalf("%s/ca.crt has no certificate", dir)
	}
	config := clientv3.Config{
		TLS:    &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}},
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			ip, err := node.resolve(ctx, host+".")
			if err != nil {
				return nil, err
			}
			return node.dial(ctx, "tcp", net.JoinHostPort(ip, port))
		})},
	}
	for _, member := range members {
		config.Endpoints = append(config.Endpoints, "https://"+memberName(member)+":2379")
	}
	c, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// moveLeader makes a member the leader.
func moveLeader(t *testing.T, node nodeNetwork, member string) {
	t.Helper()
	clients, ids := map[uint64]*clientv3.Client{}, map[string]uint64{}
	eventually(t, soon, func() error {
		var leader uint64
		for _, m := range etcdMembers {
			c := newMemberClient(t, node, m)
			ctx, cancel := context.WithTimeout(t.Context(), writeTimeout)
			status, err := c.Status(ctx, c.Endpoints()[0])
			cancel()
			if err != nil {
				return err
			}
			leader, ids[m] = status.Leader, status.Header.MemberId
			clients[ids[m]] = c
		}
		switch {
		case leader == ids[member]:
			return nil
		case clients[leader] == nil:
			return errors.New("etcd has no leader")
		}
		ctx, cancel := context.WithTimeout(t.Context(), writeTimeout)
		defer cancel()
		if _, err := clients[leader].MoveLeader(ctx, ids[member]); err != nil {
			return err
		}
		return fmt.Errorf("%s is not yet the leader", member)
	})
}

// writes is a client that writes one key after the other, each until it is acknowledged, and
// counts.
type writes struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// acknowledged is the number of keys, failures the number of attempts that failed, and pause
	// the longest time between two acknowledgments.
	acknowledged, failures int
	pause                  time.Duration
}

// startWrites starts to write.
func startWrites(t *testing.T, c *clientv3.Client) *writes {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &writes{cancel: cancel}
	t.Cleanup(w.stop)
	w.running.Go(func() {
		last := time.Now()
		for n := 0; ctx.Err() == nil; {
			attempt, cancelAttempt := context.WithTimeout(ctx, writeTimeout)
			_, err := c.Put(attempt, fmt.Sprintf("%s%08d", writePrefix, n), "")
			cancelAttempt()
			w.mu.Lock()
			if err == nil {
				n++
				w.acknowledged, w.pause = n, max(w.pause, time.Since(last))
				last = time.Now()
			} else if ctx.Err() == nil {
				w.failures++
			}
			w.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return w
}

// stop ends the writes.
func (w *writes) stop() {
	w.cancel()
	w.running.Wait()
}

// count returns the number of acknowledged writes.
func (w *writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acknowledged
}

func (w *writes) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d writes acknowledged, %d attempts failed, the longest pause was %s", w.acknowledged, w.failures, w.pause.Round(10*time.Millisecond))
}

// acknowledges returns a check that n further writes are acknowledged.
func (w *writes) acknowledges(n int) func() error {
	from := w.count()
	return func() error {
		if now := w.count(); now < from+n {
			return fmt.Errorf("%d writes were acknowledged, want %d", now-from, n)
		}
		return nil
	}
}

// hasReached checks that the member itself has all writes that are acknowledged by now.
func (w *writes) hasReached(ctx context.Context, member *clientv3.Client) error {
	want := int64(w.count())
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := member.Get(ctx, writePrefix, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithSerializable())
	if err != nil {
		return err
	}
	if response.Count < want {
		return fmt.Errorf("the member has %d of %d acknowledged writes", response.Count, want)
	}
	return nil
}
