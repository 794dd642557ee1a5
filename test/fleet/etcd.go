package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// store is an etcd with TLS and users, with the members of a clusterset.
type store struct {
	options Options
	folder  string
	cluster *etcdtest.Cluster
	// user and passwordFile are the importer's, and meter is its way to etcd.
	user, passwordFile string
	meter              *etcdtest.Proxy
	down               atomic.Bool
	// writes are those of the members that are not whole.
	writes atomic.Int64
	whole  []*wholeEtcdMember
	light  []*lightEtcdMember
}

// openStore starts etcd. It does not wait for the disk, as that of the API server.
func openStore(ctx context.Context, options Options) (*store, error) {
	program, err := etcdtest.Program()
	if err != nil {
		return nil, err
	}
	s := &store{options: options}
	if s.folder, err = os.MkdirTemp("", "fleet-etcd-"); err != nil {
		return nil, err
	}
	s.cluster, err = etcdtest.Start(ctx, etcdtest.Options{Program: program, Dir: s.folder, Args: []string{"--bcrypt-cost=4", "--unsafe-no-fsync"}})
	if err != nil {
		return nil, err
	}
	if s.user, s.passwordFile, err = s.cluster.AddCluster(ctx, names.EtcdPrefix, clusterSet, importerID); err != nil {
		return s, err
	}
	if s.meter, err = etcdtest.ProxyTo(strings.TrimPrefix(s.cluster.Endpoints()[0], "https://")); err != nil {
		return s, err
	}
	return s, nil
}

func (s *store) start(ctx context.Context, running *errgroup.Group) error {
	for i := range s.options.whole() {
		m, err := s.join(ctx, i, map[int]int{}, running)
		if err != nil {
			return err
		}
		s.whole = append(s.whole, m)
	}
	var group errgroup.Group
	group.SetLimit(4)
	for i := s.options.whole(); i < s.options.members(); i++ {
		signer, err := signerOf(i)
		if err != nil {
			return err
		}
		m := &lightEtcdMember{store: s, number: i, values: etcd.NewValues("", identityOf(i), "fleet", signer)}
		s.light = append(s.light, m)
		group.Go(func() error { return m.publish(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, m := range s.whole {
		if err := awaitExported(ctx, m, i); err != nil {
			return err
		}
	}
	running.Go(func() error {
		evenly(ctx, s.light, s.options.heartbeat(), func(m *lightEtcdMember) {
			// they do not wait for one another, and the next one follows
			running.Go(func() error { _ = m.beat(ctx); return nil })
		})
		return nil
	})
	return nil
}

// wholeEtcdMember is a registry as a controller has it.
type wholeEtcdMember struct {
	*etcd.Registry
	versions map[int]int // by number of the service
	stop     func()      // ends it without leaving
}

// join starts a whole member that exports versions of its services.
func (s *store) join(ctx context.Context, number int, versions map[int]int, running *errgroup.Group) (*wholeEtcdMember, error) {
	identity, defaults := identityOf(number), config.Default().Registry
	user, passwordFile, err := s.cluster.AddCluster(ctx, names.EtcdPrefix, clusterSet, identity.ClusterID)
	if err != nil {
		return nil, err
	}
	client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: s.cluster.Endpoints(), CAFile: s.cluster.CAFile, Username: user, PasswordFile: passwordFile})
	if err != nil {
		return nil, err
	}
	signer, err := signerOf(number)
	if err != nil {
		return nil, err
	}
	keyring, err := trust.Load(ctx, trust.Config{ClusterSetID: clusterSet, StaleAfter: defaults.StaleAfter, Logger: logr.Discard()})
	if err != nil {
		return nil, err
	}
	member, err := etcd.New(client, etcd.Config{
		Identity: identity, Version: "fleet", Signer: signer, Keyring: keyring, Logger: logr.Discard(),
		PollInterval: defaults.PollInterval, HeartbeatInterval: s.options.heartbeat(), StaleAfter: defaults.StaleAfter,
		Wanted: func(string) bool { return false }, // it imports nothing
	})
	if err != nil {
		return nil, err
	}
	m := &wholeEtcdMember{Registry: member, versions: versions, stop: runUntilStopped(ctx, running, member)}
	for i := range ServicesPerCluster {
		if err := member.Publish(ctx, export(number, i, versions[i])); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// lightEtcdMember writes what the controller of a cluster would write, by its encoders, renews its
// lease, and reads only when it restarts.
type lightEtcdMember struct {
	store  *store
	number int
	mu     sync.Mutex
	values *etcd.Values
	lease  clientv3.LeaseID
	// isStopped is set from the end of a process until the next one has claimed the ID.
	isStopped bool
}

// leaseHeartbeats are the heartbeats that a lease lasts (docs/etcd.md).
const leaseHeartbeats = 3

// join claims the cluster's ID. The caller holds m.mu.
func (m *lightEtcdMember) join(ctx context.Context) error {
	grant, err := m.store.cluster.Root().Grant(ctx, int64(leaseHeartbeats*m.store.options.heartbeat().Seconds()))
	if err != nil {
		return err
	}
	m.lease = grant.ID
	alive := m.values.Alive()
	return m.put(ctx, clientv3.OpPut(alive.Key, alive.Value, clientv3.WithLease(m.lease)))
}

// publish joins, and writes all exports and the member record.
func (m *lightEtcdMember) publish(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.join(ctx); err != nil {
		return err
	}
	var exports []clientv3.Op
	for i := range ServicesPerCluster {
		op, err := m.export(i, 0)
		if err != nil {
			return err
		}
		exports = append(exports, op)
	}
	return m.write(ctx, exports...) // etcd accepts 128 operations at once
}

func (m *lightEtcdMember) export(i, version int) (clientv3.Op, error) {
	kv, err := m.values.Export(time.Now(), export(m.number, i, version))
	return clientv3.OpPut(kv.Key, kv.Value), err
}

// write writes exports and the record that has them. The caller holds m.mu.
func (m *lightEtcdMember) write(ctx context.Context, exports ...clientv3.Op) error {
	record, err := m.values.Member(time.Now())
	if err != nil {
		return err
	}
	return m.put(ctx, append(exports, clientv3.OpPut(record.Key, record.Value))...)
}

func (m *lightEtcdMember) put(ctx context.Context, ops ...clientv3.Op) error {
	m.store.writes.Add(int64(len(ops)))
	_, err := m.store.cluster.Root().Txn(ctx).Then(ops...).Commit()
	return err
}

// beat renews the lease, or claims the ID again after it has expired, and writes a heartbeat. It
// does nothing while another request of the member is not answered.
func (m *lightEtcdMember) beat(ctx context.Context) error {
	if !m.mu.TryLock() {
		return nil
	}
	defer m.mu.Unlock()
	if m.isStopped || m.store.down.Load() {
		return nil
	}
	_, err := m.store.cluster.Root().KeepAliveOnce(ctx, m.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = m.join(ctx)
	}
	if err != nil {
		return err
	}
	return m.write(ctx)
}

// restart does as a controller that ends and starts again after changes of some members
// (docs/etcd.md).
func (m *lightEtcdMember) restart(ctx context.Context, changed []int) error {
	if err := m.stop(ctx); err != nil {
		return err
	}
	client, err := etcd.NewClient(etcd.ClientConfig{
		Endpoints: m.store.cluster.Endpoints(), CAFile: m.store.cluster.CAFile, Username: m.store.user, PasswordFile: m.store.passwordFile,
	})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	reads := etcd.NewReads(client, "", identityOf(m.number))
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error { return m.readChanged(ctx, reads, changed) }, m.resume, reads.List,
	} {
		for do(ctx) != nil { // etcd is busy
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// readChanged reads the head, and the exports of the members that have changed.
func (m *lightEtcdMember) readChanged(ctx context.Context, reads *etcd.Reads, changed []int) error {
	revision, err := reads.Head(ctx, m.store.ids(m.number))
	if err != nil {
		return err
	}
	for _, i := range changed {
		if err := reads.Exports(ctx, identityOf(i).ClusterID, revision); err != nil {
			return err
		}
	}
	return nil
}

// ids returns the IDs of all clusters but one.
func (s *store) ids(but int) (ids []string) {
	for i := range s.options.members() {
		if i != but {
			ids = append(ids, identityOf(i).ClusterID)
		}
	}
	return append(ids, importerID)
}

// stop gives the ID up.
func (m *lightEtcdMember) stop(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isStopped = true
	_, err := m.store.cluster.Root().Revoke(ctx, m.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil // it has expired
	}
	return err
}

// resume claims the ID and writes a record, if the member has not done so since it was stopped.
func (m *lightEtcdMember) resume(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isStopped {
		return nil
	}
	if err := m.join(ctx); err != nil {
		return err
	}
	m.isStopped = false
	return m.write(ctx)
}

// restart restarts all members at once.
func (s *store) restart(ctx context.Context, running *errgroup.Group, changed []int) error {
	group, ctx2 := errgroup.WithContext(ctx)
	for _, m := range s.light {
		group.Go(func() error { return m.restart(ctx2, changed) })
	}
	for i, m := range s.whole {
		group.Go(func() (err error) {
			m.stop()
			if s.whole[i], err = s.join(ctx, i, m.versions, running); err != nil {
				return err
			}
			return awaitExported(ctx2, s.whole[i], i)
		})
	}
	return group.Wait()
}

// shareReads does nothing: the members read as much as the importer when they restart.
func (s *store) shareReads(bool) {}

func (s *store) change(ctx context.Context, member, i, version int) error {
	if member < len(s.whole) {
		s.whole[member].versions[i] = version
		return s.whole[member].Publish(ctx, export(member, i, version))
	}
	m := s.light[member-len(s.whole)]
	m.mu.Lock()
	defer m.mu.Unlock()
	op, err := m.export(i, version)
	if err != nil || s.down.Load() {
		return err
	}
	return m.write(ctx, op)
}

func (s *store) arguments() []string {
	return []string{
		"--registry=etcd", "--etcd-endpoints=https://" + s.meter.Address(), "--etcd-ca=" + s.cluster.CAFile, "--etcd-username=" + s.user,
		"--etcd-password-file=" + s.passwordFile, fmt.Sprint("--heartbeat-interval=", s.options.heartbeat()),
	}
}

// heard returns at once: there are no peer notifications.
func (s *store) heard(context.Context, string) error { return nil }

// traffic has the bytes of the importer's connections, which are encrypted. Its metrics have the
// requests.
func (s *store) traffic() traffic { return traffic{bytes: s.meter.Answered()} }

func (s *store) written() int64 { return s.writes.Load() }

// outage cuts the controllers off from etcd.
func (s *store) outage(down bool) {
	s.down.Store(down)
	for _, m := range s.cluster.Members {
		if down {
			m.Clients.Cut()
		} else {
			m.Clients.Restore()
		}
	}
}

func (s *store) close() {
	if s.meter != nil {
		s.meter.Close()
	}
	if s.cluster != nil {
		s.cluster.Stop()
	}
	_ = os.RemoveAll(s.folder)
}
