package attack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// quickEtcd are arguments of a member for fast tests.
var quickEtcd = []string{"--heartbeat-interval=20", "--election-timeout=200", "--bcrypt-cost=4", "--unsafe-no-fsync"}

// store is an etcd with users. Time is real.
type store struct {
	t *testing.T
	*etcdtest.Cluster
	keyrings *registrytest.Keyrings
}

const etcdStaleAfter = 4 * time.Second

// startEtcd starts an etcd until the test ends.
func startEtcd(t *testing.T, args ...string) *store {
	t.Helper()
	program, err := etcdtest.Program()
	if err != nil {
		if os.Getenv("REQUIRE_ENVTEST") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cluster, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program, Dir: t.TempDir(), Args: append(slices.Clone(quickEtcd), args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	return &store{t: t, Cluster: cluster, keyrings: registrytest.NewKeyrings(etcdStaleAfter)}
}

func (s *store) user(identity mcs.Identity) (user, passwordFile string) {
	s.t.Helper()
	user, passwordFile, err := s.AddCluster(s.t.Context(), config.Default().Etcd.Prefix, identity.ClusterSetID, identity.ClusterID)
	if err != nil {
		s.t.Fatal(err)
	}
	return user, passwordFile
}

// attacker returns etcd's own client with the intruder's user.
func (s *store) attacker() *clientv3.Client {
	s.t.Helper()
	client, err := s.Client(s.user(identityOf(intruder)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// etcdMember is a running registry on etcd.
type etcdMember struct {
	*etcd.Registry
	t    *testing.T
	stop func(cause error)
}

// join starts a cluster.
func (s *store) join(identity mcs.Identity, change ...func(*etcd.Config)) *etcdMember {
	s.t.Helper()
	user, passwordFile := s.user(identity)
	client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: s.Endpoints(), CAFile: s.CAFile, Username: user, PasswordFile: passwordFile})
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := etcd.Config{
		Identity: identity, Version: "test", Logger: logr.Discard(), Signer: registrytest.Signer(s.t, identity), Keyring: s.keyrings.Of(s.t, identity),
		PollInterval: 50 * time.Millisecond, HeartbeatInterval: 400 * time.Millisecond, StaleAfter: etcdStaleAfter,
	}
	if testing.Verbose() {
		cfg.Logger = testr.New(s.t).WithName(identity.ClusterID)
	}
	for _, change := range change {
		change(&cfg)
	}
	reg, err := etcd.New(client, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}); close(done) }()
	var once sync.Once
	m := &etcdMember{Registry: reg, t: s.t, stop: func(cause error) {
		once.Do(func() {
			cancel(cause)
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				s.t.Errorf("Run: %v", err)
			}
			if err := client.Close(); err != nil {
				s.t.Errorf("closing the client: %v", err)
			}
		})
	}}
	s.t.Cleanup(func() { m.stop(nil) })
	return m
}

func (m *etcdMember) publish(exp mcs.Export) {
	m.t.Helper()
	if err := m.Publish(m.t.Context(), exp); err != nil {
		m.t.Fatal(err)
	}
}

func (m *etcdMember) view(key mcs.Key) registry.View {
	m.t.Helper()
	view, err := m.Lookup(context.Background(), key)
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		m.t.Fatal(err)
	}
	return view
}

func (m *etcdMember) sees(exp mcs.Export) func() bool {
	return func() bool {
		return slices.ContainsFunc(m.view(exp.Key).Exports(), func(got mcs.Export) bool { return got.Equal(registry.Published(exp)) })
	}
}

func (m *etcdMember) problemsOf(clusterID string) []string {
	members, _ := m.Members(context.Background())
	for _, other := range members {
		if other.ClusterID == clusterID {
			return other.Problems
		}
	}
	return nil
}

// etcdWait is the time limit of operations that take milliseconds.
const etcdWait = 30 * time.Second

// start starts the victim with the export of webKey, and the importer, which imports it.
func (s *store) start() (exporter, reader *etcdMember, web mcs.Export) {
	s.t.Helper()
	exporter, reader, web = s.join(identityOf(victim)), s.join(identityOf(importer)), webExport(victim, 2)
	exporter.publish(web)
	until(s.t, etcdWait, "the export is imported", reader.sees(web))
	return exporter, reader, web
}

// change checks that a change of the victim is imported.
func change(exporter, reader *etcdMember, n int) {
	exporter.t.Helper()
	changed := webExport(victim, n)
	exporter.publish(changed)
	until(exporter.t, etcdWait, "a change of the victim is imported", reader.sees(changed))
}

func setPrefix(set string) string { return config.Default().Etcd.Prefix + "/" + set + "/" }

func etcdPrefix(set, id string) string { return setPrefix(set) + id + "/" }

// wantRefused fails the test unless etcd refused a request for lack of a permission.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, rpctypes.ErrPermissionDenied) && (err == nil || !strings.Contains(err.Error(), "permission denied")) {
		t.Errorf("%s: error %v, want that permission is denied", what, err)
	}
}

func TestAttack_KeysOfOthersInEtcd(t *testing.T) {
	s := startEtcd(t)
	exporter, reader, _ := s.start()
	client, ctx := s.attacker(), t.Context()
	theirs, own := etcdPrefix(clusterSet, victim), etcdPrefix(clusterSet, intruder)
	for _, suffix := range []string{"member", "alive", "exports/" + webKey.String(), "exports/demo/new"} {
		_, err := client.Put(ctx, theirs+suffix, "x")
		wantRefused(t, "writing "+suffix, err)
		_, err = client.Delete(ctx, theirs+suffix)
		wantRefused(t, "deleting "+suffix, err)
		_, err = client.Txn(ctx).Then(clientv3.OpPut(own+"x", "x"), clientv3.OpPut(theirs+suffix, "x")).Commit()
		wantRefused(t, "writing in a transaction "+suffix, err)
		_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.Version(own+"absent"), "=", 1)).Then().Else(clientv3.OpDelete(theirs + suffix)).Commit()
		wantRefused(t, "deleting in the other branch "+suffix, err)
	}
	_, err := client.Delete(ctx, setPrefix(clusterSet), clientv3.WithPrefix())
	wantRefused(t, "deleting the clusterset", err)
	_, err = client.Delete(ctx, own, clientv3.WithRange(etcdPrefix(clusterSet, "clt")))
	wantRefused(t, "deleting from the own key on", err)
	_, err = client.Put(ctx, etcdPrefix(clusterSet, intruder+"0"), "x")
	wantRefused(t, "writing a cluster ID with the own one as prefix", err)
	change(exporter, reader, 3)

	// Control: the same requests for its own keys.
	if _, err := client.Txn(ctx).Then(clientv3.OpPut(own+"x", "x"), clientv3.OpDelete(own+"y")).Commit(); err != nil {
		t.Errorf("writing its own keys: %v", err)
	}
}

func TestAttack_NestedTransactions(t *testing.T) {
	s := startEtcd(t)
	exporter, reader, _ := s.start()
	client, ctx := s.attacker(), t.Context()
	theirs, own := etcdPrefix(clusterSet, victim)+"exports/"+webKey.String(), etcdPrefix(clusterSet, intruder)+"x"
	nested := func(op clientv3.Op) clientv3.Op {
		return clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{op}, nil)}, nil)
	}
	secret := etcdPrefix(otherSet, victim) + "member"
	if _, err := s.Root().Put(ctx, secret, "secret"); err != nil {
		t.Fatal(err)
	}
	for what, op := range map[string]clientv3.Op{
		"write": clientv3.OpPut(theirs, "x"), "delete": clientv3.OpDelete(theirs), "read": clientv3.OpGet(secret), "write, with its value": clientv3.OpPut(theirs, "x", clientv3.WithPrevKV()),
	} {
		_, err := client.Do(ctx, nested(op))
		wantRefused(t, "nested "+what, err)
	}
	_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Value(secret), "=", "secret")).Commit()
	wantRefused(t, "comparing a value that it may not read", err)
	change(exporter, reader, 3)
	if _, err := client.Do(ctx, nested(clientv3.OpPut(own, "x"))); err != nil { // control
		t.Errorf("a nested write of its own key: %v", err)
	}
}

func TestAttack_OtherClustersetsInEtcd(t *testing.T) {
	s := startEtcd(t)
	s.start()
	client, ctx := s.attacker(), t.Context()
	secret := etcdPrefix(otherSet, victim) + "member"
	if _, err := s.Root().Put(ctx, secret, "secret"); err != nil {
		t.Fatal(err)
	}
	_, err := client.Get(ctx, secret)
	wantRefused(t, "reading", err)
	_, err = client.Get(ctx, "\x00", clientv3.WithFromKey())
	wantRefused(t, "reading everything", err)
	_, err = client.Get(ctx, setPrefix(clusterSet), clientv3.WithRange(setPrefix(otherSet)))
	wantRefused(t, "reading from the own clusterset on", err)
	for what, watch := range map[string]clientv3.WatchChan{
		"the key": client.Watch(ctx, secret, clientv3.WithRev(1)), "everything": client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(1)),
		"from the own clusterset on": client.Watch(ctx, setPrefix(clusterSet), clientv3.WithFromKey(), clientv3.WithRev(1)),
	} {
		answer := <-watch
		if wantRefused(t, "watching "+what, answer.Err()); len(answer.Events) > 0 {
			t.Errorf("watching %s shows %d events", what, len(answer.Events))
		}
	}
	// control
	if found, err := client.Get(ctx, setPrefix(clusterSet), clientv3.WithPrefix()); err != nil || len(found.Kvs) < 3 {
		t.Errorf("reading its own clusterset: %v", err)
	}
}

func TestAttack_LeaseOfOther(t *testing.T) {
	s := startEtcd(t)
	exporter, reader, _ := s.start()
	client, ctx := s.attacker(), t.Context()
	alive := etcdPrefix(clusterSet, victim) + "alive"
	found, err := client.Get(ctx, alive)
	if err != nil || len(found.Kvs) != 1 || found.Kvs[0].Lease == 0 {
		t.Fatalf("the lease of the victim: %v, %v", found, err)
	}
	lease := clientv3.LeaseID(found.Kvs[0].Lease)
	_, err = client.Revoke(ctx, lease)
	wantRefused(t, "revoking the lease of the victim", err)
	_, err = client.Put(ctx, alive, "x", clientv3.WithLease(lease))
	wantRefused(t, "writing the victim's key with its lease", err)
	_, err = client.Put(ctx, etcdPrefix(clusterSet, intruder)+"attached", "x", clientv3.WithLease(lease))
	wantRefused(t, "attaching its own key to the lease of the victim", err)
	_, err = client.KeepAliveOnce(ctx, lease)
	wantRefused(t, "renewing the lease of the victim", err)
	mine, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Put(ctx, alive, "x", clientv3.WithLease(mine.ID))
	wantRefused(t, "attaching its own lease to the key of the victim", err)
	_, err = client.Txn(ctx).Then(clientv3.OpPut(etcdPrefix(clusterSet, victim)+"exports/"+webKey.String(), "", clientv3.WithIgnoreValue(), clientv3.WithLease(mine.ID))).Commit()
	wantRefused(t, "attaching its own lease to an export of the victim", err)
	time.Sleep(3 * time.Second) // more than two leases
	change(exporter, reader, 3)
	exporter.stop(registry.ErrLeave)
	until(t, etcdWait, "the victim can leave", func() bool { return len(reader.view(webKey).Exports()) == 0 })
	// Control: the same requests for its own lease.
	if _, err := client.KeepAliveOnce(ctx, mine.ID); err != nil {
		t.Errorf("renewing its own lease: %v", err)
	}
	if _, err := client.Revoke(ctx, mine.ID); err != nil {
		t.Errorf("revoking its own lease: %v", err)
	}
}

func TestAttack_AdministrationOfEtcd(t *testing.T) {
	s := startEtcd(t)
	exporter, reader, _ := s.start()
	client, ctx := s.attacker(), t.Context()
	status, err := s.Root().Status(ctx, s.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]func(*clientv3.Client) error{
		"compacting":             func(c *clientv3.Client) error { _, err := c.Compact(ctx, status.Header.Revision); return err },
		"adding a user":          func(c *clientv3.Client) error { _, err := c.UserAdd(ctx, "mallory", "x"); return err },
		"granting root":          func(c *clientv3.Client) error { _, err := c.UserGrantRole(ctx, "set1.cls3", "root"); return err },
		"changing a password":    func(c *clientv3.Client) error { _, err := c.UserChangePassword(ctx, "root", "x"); return err },
		"switching auth off":     func(c *clientv3.Client) error { _, err := c.AuthDisable(ctx); return err },
		"adding a member":        func(c *clientv3.Client) error { _, err := c.MemberAdd(ctx, []string{"http://10.0.0.1:1"}); return err },
		"moving the leader":      func(c *clientv3.Client) error { _, err := c.MoveLeader(ctx, status.Leader); return err },
		"defragmenting":          func(c *clientv3.Client) error { _, err := c.Defragment(ctx, s.Endpoints()[0]); return err },
		"reading all of it":      func(c *clientv3.Client) error { _, err := c.SnapshotWithVersion(ctx); return err },
		"reading another's role": func(c *clientv3.Client) error { _, err := c.RoleGet(ctx, "mcs.set1.cls1"); return err },
	}
	for what, request := range requests {
		if what == "reading all of it" {
			snapshot, err := client.Snapshot(ctx)
			if err == nil {
				_, err = snapshot.Read(make([]byte, 1))
			}
			wantRefused(t, what, err)
			continue
		}
		wantRefused(t, what, request(client))
	}
	change(exporter, reader, 3)
	if err := requests["compacting"](s.Root()); err != nil { // control
		t.Errorf("compacting as root: %v", err)
	}
}

func TestAttack_JunkKeys(t *testing.T) {
	s := startEtcd(t)
	exporter, reader, _ := s.start()
	limited := identityOf(newcomer)
	ledger := budget.NewLedger(config.Default().Budgets.Limits)
	bounded := s.join(limited, func(cfg *etcd.Config) { cfg.Ledger = ledger })
	m := s.join(identityOf(intruder))
	own := webExport(intruder, 1)
	own.Key.Name = "own"
	m.publish(own)
	until(t, etcdWait, "the intruder is a member", reader.sees(own))
	m.stop(nil)
	client, prefix := s.attacker(), etcdPrefix(clusterSet, intruder)
	theirs, err := client.Get(t.Context(), etcdPrefix(clusterSet, victim)+"exports/"+webKey.String())
	if err != nil || len(theirs.Kvs) != 1 {
		t.Fatal(theirs, err)
	}
	for i := range 30 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%sexports/demo/junk-%d", prefix, 100*i+j), strings.Repeat("x", 1000)))
		}
		if _, err := client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"exports/x", "exports/UPPER/x", "exports/demo/" + strings.Repeat("y", 300), "unknown", "exports/demo/\x1b[2J"} {
		if _, err := client.Put(t.Context(), prefix+key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	// What the victim has signed is not the intruder's export.
	if _, err := client.Put(t.Context(), prefix+"exports/"+webKey.String(), string(theirs.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	until(t, etcdWait, "the intruder is reported", func() bool { return len(bounded.problemsOf(intruder)) > 0 && len(reader.problemsOf(intruder)) > 0 })
	for n := 3; n < 6; n++ {
		change(exporter, reader, n)
		change(exporter, bounded, n)
	}
	for _, exp := range reader.view(webKey).Exports() {
		if exp.Cluster == intruder {
			t.Error("a copy of the victim's export is imported as the intruder's")
		}
	}
	if used := ledger.Usage().Total[budget.Exports]; used > 2 {
		t.Errorf("%d exports are used, want those of the victim and the intruder", used)
	}
}

func TestAttack_StorageQuotaOfEtcd(t *testing.T) {
	s := startEtcd(t, "--quota-backend-bytes=8388608")
	exporter, reader, web := s.start()
	client := s.attacker()
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint(etcdPrefix(clusterSet, intruder), "exports/demo/big-", i), strings.Repeat("x", 1<<20))
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("the quota is not used up: %v", err)
	}
	for began := time.Now(); time.Since(began) < etcdStaleAfter+2*time.Second; time.Sleep(50 * time.Millisecond) {
		if view := reader.view(web.Key); !reader.sees(web)() || len(view.WithLiveness(registry.Stale)) > 0 {
			t.Fatalf("imported: %t, stale: %v", reader.sees(web)(), view.WithLiveness(registry.Stale))
		}
	}
	// The users keep their limits: older servers do not check them in this state.
	_, err = client.Put(t.Context(), etcdPrefix(clusterSet, victim)+"member", "x")
	if err == nil {
		t.Error("the intruder writes a key of the victim")
	}
	_, err = client.AuthDisable(t.Context())
	wantRefused(t, "switching auth off", err)
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	wantRefused(t, "disarming the alarm", err)
	// Control: nothing can be written, until an administrator frees space.
	changed := webExport(victim, 3)
	exporter.publish(changed)
	time.Sleep(time.Second)
	if reader.sees(changed)() {
		t.Error("the change is imported: the quota is not used up")
	}
	root, ctx := s.Root(), t.Context()
	if _, err := root.Delete(ctx, etcdPrefix(clusterSet, intruder), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	status, err := root.Status(ctx, s.Endpoints()[0])
	if err == nil {
		_, err = root.Compact(ctx, status.Header.Revision)
	}
	if err == nil {
		_, err = root.Defragment(ctx, s.Endpoints()[0])
	}
	if err == nil {
		_, err = root.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, etcdWait, "the change is imported when there is space", reader.sees(changed))
}

// tenantExport returns an export of some 400 KiB that does not compress, another one for each
// version.
func tenantExport(i, version int) mcs.Export {
	exp := webExport(victim, 9000)
	exp.Key = mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)}
	for j := range exp.Backends[0].Endpoints {
		exp.Backends[0].Endpoints[j].Hostname = noise(i+1000*version, j)
	}
	return exp
}

func TestAttack_StorageOfATenant(t *testing.T) {
	s := startEtcd(t, "--quota-backend-bytes=20971520")
	exporter, reader, _ := s.start()
	var last mcs.Key
	for i := range 60 { // some 24 MiB
		exp := tenantExport(i, 0)
		exporter.publish(exp)
		last = exp.Key
	}
	until(t, 3*etcdWait, "the tenant's first exports are imported", reader.sees(tenantExport(0, 0)))
	until(t, 3*etcdWait, "the condition of the tenant has the reason why its last ones are not", func() bool {
		err := exporter.view(last).Local.Err
		return err != nil && strings.Contains(err.Error(), "its namespace")
	})
	for n := 3; n < 8; n++ {
		change(exporter, reader, n)
	}
	// Exports that are withdrawn make room for others.
	for i := range 10 {
		if err := exporter.Withdraw(t.Context(), mcs.Key{Namespace: "tenant", Name: fmt.Sprint("large-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	small := webExport(victim, 1)
	small.Key.Namespace = "tenant"
	exporter.publish(small)
	until(t, etcdWait, "the tenant exports another service", reader.sees(small))
}

func TestAttack_FlappingLargeExports(t *testing.T) {
	s := startEtcd(t, "--quota-backend-bytes=33554432")
	exporter, reader, _ := s.start()
	for version := range 12 { // some 48 MiB in all versions
		for i := range 10 {
			exporter.publish(tenantExport(i, version))
		}
		time.Sleep(100 * time.Millisecond)
		change(exporter, reader, 3+version)
	}
	status, err := s.Root().Status(t.Context(), s.Endpoints()[0])
	// control: the tenant's exports were written, and not compacted
	if err != nil || status.DbSize < 4<<20 {
		t.Errorf("the database has %d bytes, %v", status.DbSize, err)
	}
}
