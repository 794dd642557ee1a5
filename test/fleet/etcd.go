package fleet

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
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
	// lease outlives the measurement.
	lease clientv3.LeaseID
	down  atomic.Bool
	// writes are those of the members that are not whole.
	writes atomic.Int64
	whole  []*etcd.Registry
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
	const hour = 3600
	grant, err := s.cluster.Root().Grant(ctx, hour)
	if err == nil {
		s.lease = grant.ID
	}
	return s, err
}

func (s *store) start(ctx context.Context, running *errgroup.Group) error {
	for i := range s.options.whole() {
		if err := s.join(ctx, i, running); err != nil {
			return err
		}
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
		evenly(ctx, s.light, s.options.heartbeat(), func(m *lightEtcdMember) { _ = m.beat(ctx) }) // the next one follows
		return nil
	})
	return nil
}

// join starts a whole member.
func (s *store) join(ctx context.Context, number int, running *errgroup.Group) error {
	identity, defaults := identityOf(number), config.Default().Registry
	user, passwordFile, err := s.cluster.AddCluster(ctx, names.EtcdPrefix, clusterSet, identity.ClusterID)
	if err != nil {
		return err
	}
	client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: s.cluster.Endpoints(), CAFile: s.cluster.CAFile, Username: user, PasswordFile: passwordFile})
	if err != nil {
		return err
	}
	signer, err := signerOf(number)
	if err != nil {
		return err
	}
	keyring, err := trust.Load(ctx, trust.Config{ClusterSetID: clusterSet, StaleAfter: defaults.StaleAfter, Logger: logr.Discard()})
	if err != nil {
		return err
	}
	member, err := etcd.New(client, etcd.Config{
		Identity: identity, Version: "fleet", Signer: signer, Keyring: keyring, Logger: logr.Discard(),
		PollInterval: defaults.PollInterval, HeartbeatInterval: s.options.heartbeat(), StaleAfter: defaults.StaleAfter,
		Wanted: func(string) bool { return false }, // it imports nothing
	})
	if err != nil {
		return err
	}
	running.Go(func() error { return member.Run(ctx, func(mcs.Key) {}) })
	for i := range ServicesPerCluster {
		if err := member.Publish(ctx, export(number, i, 0)); err != nil {
			return err
		}
	}
	s.whole = append(s.whole, member)
	return nil
}

// lightEtcdMember writes what the controller of a cluster would write, by its encoders, and reads nothing.
type lightEtcdMember struct {
	store  *store
	number int
	mu     sync.Mutex
	values *etcd.Values
}

// publish writes all exports and the member record.
func (m *lightEtcdMember) publish(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	alive := m.values.Alive()
	if err := m.put(ctx, clientv3.OpPut(alive.Key, alive.Value, clientv3.WithLease(m.store.lease))); err != nil {
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
	if m.store.down.Load() {
		return nil
	}
	m.store.writes.Add(int64(len(ops)))
	_, err := m.store.cluster.Root().Txn(ctx).Then(ops...).Commit()
	return err
}

func (m *lightEtcdMember) beat(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.write(ctx)
}

func (s *store) change(ctx context.Context, member, i, version int) error {
	if member < len(s.whole) {
		return s.whole[member].Publish(ctx, export(member, i, version))
	}
	m := s.light[member-len(s.whole)]
	m.mu.Lock()
	defer m.mu.Unlock()
	op, err := m.export(i, version)
	if err != nil {
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

// traffic has the bytes of the importer's connections, which are encrypted. Its metrics have the requests.
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
