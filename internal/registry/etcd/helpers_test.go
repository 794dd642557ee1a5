package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// server is the etcd that most tests share, each with its own prefix.
var server struct {
	once sync.Once
	dir  string
	*etcdtest.Cluster
	err error
	// stores counts the prefixes.
	stores atomic.Int64
	// users serializes the creation of users.
	users sync.Mutex
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.Cluster != nil {
		server.Stop()
	}
	if server.dir != "" {
		_ = os.RemoveAll(server.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// quick are arguments of a single member for fast tests: leases of one second, cheap passwords, and
// tokens that expire during a test.
var quick = []string{"--heartbeat-interval=20", "--election-timeout=200", "--bcrypt-cost=4", "--auth-token-ttl=3", "--unsafe-no-fsync"}

// program returns the etcd binary; without it a test is skipped, unless REQUIRE_ENVTEST is set.
func program(t testing.TB) string {
	t.Helper()
	file, err := etcdtest.Program()
	if err == nil {
		return file
	}
	if os.Getenv("REQUIRE_ENVTEST") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
	return ""
}

func shared(t testing.TB) *etcdtest.Cluster {
	t.Helper()
	binary := program(t)
	server.once.Do(func() {
		//nolint:usetesting // it is used by later tests too
		if server.dir, server.err = os.MkdirTemp("", "etcd-test-"); server.err == nil {
			server.Cluster, server.err = etcdtest.Start(context.Background(), etcdtest.Options{Program: binary, Dir: server.dir, Args: quick})
		}
	})
	if server.err != nil {
		t.Fatal(server.err)
	}
	return server.Cluster
}

// testStore is one prefix of an etcd cluster, with hooks to inject faults.
type testStore struct {
	*etcdtest.Cluster
	prefix string
	// proxy is between the registries under test and etcd.
	proxy *etcdtest.Proxy
	// direct makes registries use the cluster's own endpoints instead.
	direct bool
	// dropHeartbeats makes the writes of member records fail.
	dropHeartbeats atomic.Bool
	// keyrings are those of the clusters.
	keyrings *registrytest.Keyrings
	// heartbeats are those that the clusters have saved.
	heartbeats savedHeartbeats
	// writes counts the written and withdrawn exports.
	writes atomic.Int64
	// lists counts the requests that list keys and were answered in time.
	lists atomic.Int64
	// claims counts the attempts to acquire a cluster ID.
	claims atomic.Int64
	// leaseChecks counts the successful requests for the time that a lease has left.
	leaseChecks atomic.Int64
	// slow, if it is set, delays transactions of a cluster, and lateLists its lists. wrote is
	// called for each member record that was written.
	slow, lateLists atomic.Pointer[slowness]
	wrote           func(clusterID string)
	// history keeps what happened last, for the analysis of a failure; nil keeps nothing.
	history *registrytest.Trace
}

func newTestStore(t testing.TB, c *etcdtest.Cluster) *testStore {
	t.Helper()
	proxy, err := etcdtest.ProxyTo(c.Members[0].Endpoint[strings.LastIndex(c.Members[0].Endpoint, "/")+1:])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return &testStore{
		Cluster: c, prefix: fmt.Sprintf("/test%d", server.stores.Add(1)), proxy: proxy, keyrings: registrytest.NewKeyrings(time.Minute),
	}
}

// client returns a client with the user of one cluster.
func (s *testStore) client(t testing.TB, identity mcs.Identity) *Client {
	t.Helper()
	server.users.Lock()
	user, passwordFile, err := s.AddCluster(t.Context(), s.prefix, identity.ClusterSetID, identity.ClusterID)
	server.users.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	endpoints := []string{"https://" + s.proxy.Address()}
	if s.direct {
		endpoints = s.Endpoints()
	}
	client, err := NewClient(ClientConfig{
		Endpoints: endpoints, CAFile: s.CAFile, Username: user, PasswordFile: passwordFile,
		options: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.intercept, s.delayLists(identity.ClusterID))},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeClient(t, client) })
	return client
}

// closeClient closes a client, which may be closed already.
func closeClient(t testing.TB, client *Client) {
	t.Helper()
	if err := client.Close(); err != nil {
		t.Errorf("closing the client: %v", err)
	}
}

// intercept counts requests and drops heartbeats.
func (s *testStore) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		err := invoke(ctx, method, req, reply, conn, opts...)
		// The lister sends a request again that a busy machine does not answer in time.
		if list, ok := req.(*pb.RangeRequest); ok && len(list.RangeEnd) > 0 && !isUnanswered(err) {
			s.lists.Add(1)
		}
		if _, ok := req.(*pb.LeaseTimeToLiveRequest); ok && err == nil {
			s.leaseChecks.Add(1)
		}
		return err
	}
	exports := 0
	for _, op := range txn.Success {
		key := string(op.GetRequestPut().GetKey()) + string(op.GetRequestDeleteRange().GetKey())
		switch {
		case strings.Contains(key, "/"+exportsSuffix):
			exports++
		case strings.HasSuffix(key, "/"+aliveSuffix) && op.GetRequestPut() != nil:
			s.claims.Add(1)
		case strings.HasSuffix(key, "/"+memberSuffix) && s.dropHeartbeats.Load():
			return status.Error(codes.Unavailable, "heartbeat dropped")
		}
	}
	s.writes.Add(int64(exports)) // before the request: a watch may show it first
	id := s.writerOf(txn)
	err := s.slow.Load().delay(ctx, id, func() error { return invoke(ctx, method, req, reply, conn, opts...) })
	s.trace(txn, reply.(*pb.TxnResponse), err)
	if err != nil || !reply.(*pb.TxnResponse).Succeeded {
		s.writes.Add(int64(-exports))
	} else if s.wrote != nil && id != "" {
		s.wrote(id)
	}
	return err
}

// delayLists delays the lists of a cluster if they are slow.
func (s *testStore) delayLists(id string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		do := func() error { return invoke(ctx, method, req, reply, conn, opts...) }
		if list, ok := req.(*pb.RangeRequest); ok && len(list.RangeEnd) > 0 {
			return s.lateLists.Load().delay(ctx, id, do)
		}
		return do()
	}
}

// writerOf returns the cluster whose member record a transaction writes, "" for none.
func (s *testStore) writerOf(txn *pb.TxnRequest) string {
	for _, op := range txn.Success {
		if key, isMember := strings.CutSuffix(string(op.GetRequestPut().GetKey()), "/"+memberSuffix); isMember {
			return key[strings.LastIndex(key, "/")+1:]
		}
	}
	return ""
}

// slowness delays the requests of a cluster before they reach etcd, and their answers.
type slowness struct {
	clusterID     string
	before, after time.Duration
}

// delay makes a request of a cluster. nil delays none.
func (s *slowness) delay(ctx context.Context, id string, do func() error) error {
	if s == nil || s.clusterID != id {
		return do()
	}
	engine.Sleep(ctx, s.before)
	err := do()
	engine.Sleep(ctx, s.after)
	if err == nil && ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// trace adds a transaction to the history.
func (s *testStore) trace(txn *pb.TxnRequest, reply *pb.TxnResponse, err error) {
	if s.history == nil {
		return
	}
	var ops []string
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil {
			ops = append(ops, fmt.Sprintf("put %s %.200q", put.Key, put.Value))
		} else if remove := op.GetRequestDeleteRange(); remove != nil {
			ops = append(ops, fmt.Sprintf("delete %s", remove.Key))
		}
	}
	s.history.Logf("txn %s: succeeded %v at %d, %v", strings.Join(ops, ", "), reply.Succeeded, reply.Header.GetRevision(), err)
}

// fast returns a configuration for tests that must not wait for seconds.
func fast(identity mcs.Identity) Config {
	return Config{
		Identity: identity, Version: "test",
		PollInterval: 50 * time.Millisecond, HeartbeatInterval: 200 * time.Millisecond, StaleAfter: time.Minute,
		Logger: logr.Discard(),
	}
}

func fastTimings() timings {
	return timings{
		silence: 3 * time.Second, leave: 20 * time.Second, farewell: time.Minute, lease: 2 * time.Second, release: releaseTimeout, status: time.Minute,
		retry: engine.Backoff{Initial: 20 * time.Millisecond, Max: 300 * time.Millisecond, Jitter: 0.5},
	}
}

func (s *testStore) registry(t testing.TB, cfg Config) *Registry {
	t.Helper()
	return s.registryWith(t, cfg, fastTimings())
}

func (s *testStore) registryWith(t testing.TB, cfg Config, timings timings) *Registry {
	t.Helper()
	return s.registryOf(t, s.client(t, cfg.Identity), cfg, timings)
}

func (s *testStore) registryOf(t testing.TB, client *Client, cfg Config, timings timings) *Registry {
	t.Helper()
	cfg.Prefix = s.prefix
	if cfg.Keyring == nil {
		cfg.Keyring = s.keyrings.Of(t, cfg.Identity)
	}
	if cfg.Signer == nil {
		cfg.Signer = registrytest.Signer(t, cfg.Identity)
	}
	if cfg.SaveHeartbeat == nil {
		s.heartbeats.load(&cfg)
	}
	if s.history != nil {
		cfg.Logger = s.history.Logger(cfg.Identity.ClusterID)
	} else if testing.Verbose() {
		if t, ok := t.(*testing.T); ok {
			cfg.Logger = testr.New(t).WithName(cfg.Identity.ClusterID)
		}
	}
	reg, err := newRegistry(client, cfg, timings)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// savedHeartbeats keeps the heartbeats of clusters across restarts.
type savedHeartbeats struct {
	mu         sync.Mutex
	byIdentity map[mcs.Identity]engine.SavedHeartbeat
}

// load sets what the previous process has saved, and where this one does.
func (s *savedHeartbeats) load(cfg *Config) {
	identity := cfg.Identity
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg.SavedHeartbeat = s.byIdentity[identity]
	cfg.SaveHeartbeat = func(_ context.Context, heartbeat engine.SavedHeartbeat) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byIdentity == nil {
			s.byIdentity = map[mcs.Identity]engine.SavedHeartbeat{}
		}
		s.byIdentity[identity] = heartbeat
		return nil
	}
}

// all returns what is saved.
func (s *savedHeartbeats) all() map[mcs.Identity]engine.SavedHeartbeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byIdentity)
}

func (s *testStore) layout(clusterSetID string) layout { return newLayout(s.prefix, clusterSetID) }

func (s *testStore) putKey(t testing.TB, key, value string) {
	t.Helper()
	if _, err := s.Root().Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

func (s *testStore) remove(t testing.TB, key string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := s.Root().Delete(t.Context(), key, opts...); err != nil {
		t.Fatal(err)
	}
}

// keys returns the keys with a prefix.
func (s *testStore) keys(t testing.TB, prefix string) map[string]string {
	t.Helper()
	answer, err := s.Root().Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, kv := range answer.Kvs {
		found[string(kv.Key)] = string(kv.Value)
	}
	return found
}

// start runs a registry until the returned function is called with a cause, or the test ends.
func start(t testing.TB, reg *Registry) (stop func(cause error)) {
	t.Helper()
	return startWith(t, reg, func(mcs.Key) {})
}

func startWith(t testing.TB, reg *Registry, notify func(mcs.Key)) (stop func(cause error)) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.cfg.Keyring.Run(ctx, func() error { return reg.Run(ctx, notify) }) }()
	var once sync.Once
	stop = func(cause error) {
		once.Do(func() {
			cancel(cause)
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(func() { stop(nil) })
	return stop
}

// patience is the time limit of within.
var patience = 30 * time.Second

// within waits for a condition.
func within(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// headOf returns the head that is read before a list.
func headOf(s *state, list []pair, revision int64) head {
	h := head{revision: revision}
	for id := range s.clusters {
		if id != s.own {
			h.others = append(h.others, id)
		}
	}
	for _, p := range list {
		id := s.layout.clusterOf(p.key)
		if _, isExport := s.layout.exportKey(id, p.key); id == s.own || slices.Contains(h.others, id) && !isExport {
			h.pairs = append(h.pairs, p)
		}
	}
	return h
}

// replaceAll makes a state read these keys as of a revision, and reports whether etcd was set back.
func replaceAll(s *state, now time.Time, list []pair, revision int64, changed engine.Keys) (rewound bool) {
	rewound = s.begin(now, headOf(s, list, revision), false, changed)
	s.applyList(now, slices.Clone(list), changed)
	return rewound
}

// relist makes a mirror read these keys as of a revision.
func relist(m *mirror, revision int64, list ...pair) update {
	m.begin(headOf(m.state, list, revision), false)
	return m.applyList(slices.Clone(list))
}
