package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
)

// slowStart is a process of cls1 that gets no answer to a list until release is called.
type slowStart struct {
	*Registry
	release func()
	// ownReads counts the requests for the keys by which the cluster holds its ID.
	ownReads atomic.Int64
}

// slowStart returns a process. With lateAnswers etcd does what the lists ask for at once, and
// answers late: they are of a revision before the claim.
func (s *testStore) slowStart(t *testing.T, cfg Config, lateAnswers bool) *slowStart {
	t.Helper()
	released := make(chan struct{})
	p := &slowStart{release: sync.OnceFunc(func() { close(released) })}
	t.Cleanup(p.release)
	wait := func(ctx context.Context) error {
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	client := s.client(t, cfg.Identity)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if txn, isTxn := req.(*pb.TxnRequest); isTxn && len(txn.Compare) == 0 {
				p.ownReads.Add(1)
			}
			list, isRange := req.(*pb.RangeRequest)
			if !isRange || len(list.RangeEnd) == 0 {
				return invoke(ctx, method, req, reply, conn, opts...)
			}
			if lateAnswers {
				return errors.Join(invoke(ctx, method, req, reply, conn, opts...), wait(ctx))
			}
			if err := wait(ctx); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}))
	p.Registry = s.registryOf(t, client, cfg, fastTimings())
	return p
}

// awaitID waits until the process has the cluster ID.
func (p *slowStart) awaitID(t *testing.T) {
	t.Helper()
	within(t, "the process has the ID", func() bool { return p.writer.session.currentFence() != 0 })
}

// memberOf returns a cluster as reg sees it, the zero value if it is no member.
func memberOf(t *testing.T, reg *Registry, clusterID string) registry.Member {
	t.Helper()
	members, _ := reg.Members(t.Context())
	for _, m := range members {
		if m.ClusterID == clusterID {
			return m
		}
	}
	return registry.Member{}
}

// awaitRecords waits until a cluster has some records more, as reg sees it.
func awaitRecords(t *testing.T, reg *Registry, clusterID string, records int) {
	t.Helper()
	last := memberOf(t, reg, clusterID).Heartbeat
	within(t, clusterID+" has more records", func() bool {
		if m := memberOf(t, reg, clusterID); !m.Heartbeat.Equal(last) {
			last = m.Heartbeat
			records--
		}
		return records <= 0
	})
}

// TestRegistry_HeartbeatsBeforeFirstList: a controller that starts needs minutes for its first list
// where 1,000 start at once. Until then it has the cluster ID and writes heartbeats: the others
// would take the cluster for stale. It neither writes nor withdraws exports, and states none,
// because it does not know those that etcd has.
func TestRegistry_HeartbeatsBeforeFirstList(t *testing.T) {
	for name, tt := range map[string]struct {
		// isRunning is set if the previous process goes on: it has lost its leader election.
		isRunning bool
		// lateAnswers is set if the list is of before the claim, isEmpty if the process exports
		// nothing.
		lateAnswers, isEmpty bool
		// meanwhile happens while nothing is listed.
		meanwhile func(*testing.T, *testStore, *Registry)
	}{
		"the previous process has ended":                  {},
		"the same, and the list is of before the claim":   {lateAnswers: true},
		"the same, and this one exports nothing":          {isEmpty: true},
		"the previous process goes on":                    {isRunning: true},
		"it goes on, and the list is of before the claim": {isRunning: true, lateAnswers: true},
		"the lease expires": {meanwhile: func(t *testing.T, s *testStore, next *Registry) {
			lease := next.writer.session.currentLease()
			if _, err := s.Root().Revoke(t.Context(), clientv3.LeaseID(lease)); err != nil {
				t.Fatal(err)
			}
			within(t, "the cluster has another lease", func() bool { l := next.writer.session.currentLease(); return l != 0 && l != lease })
		}},
		"another user deletes the records": {meanwhile: func(t *testing.T, s *testStore, _ *Registry) {
			s.remove(t, s.layout("set1").member("cls1"))
			s.remove(t, s.layout("set1").alive("cls1"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, shared(t))
			watcher, before := s.registry(t, fast(cls2)), s.registry(t, fast(cls1))
			start(t, watcher)
			stop := start(t, before)
			for i := range 2 {
				publish(t, before, i, 1)
				awaitVersion(t, watcher, "cls1", i, 1)
			}
			within(t, "the previous process states its exports", before.writer.session.isSettled)
			if !tt.isRunning {
				stop(nil)
			}
			next, writes := s.slowStart(t, fast(cls1), tt.lateAnswers), s.writes.Load()
			if !tt.isEmpty {
				publish(t, next.Registry, 0, 2)
			}
			start(t, next.Registry)
			next.awaitID(t)
			const toSettle = 3 // a process states its exports after 1.25 heartbeat intervals
			awaitRecords(t, watcher, "cls1", toSettle)
			if tt.meanwhile != nil {
				tt.meanwhile(t, s, next.Registry)
				awaitRecords(t, watcher, "cls1", toSettle)
			}
			if _, err := next.Lookup(t.Context(), webKey(0)); err == nil {
				t.Error("a service is looked up before the first list")
			}
			if n := s.writes.Load() - writes; n != 0 {
				t.Errorf("%d exports are written before the first list", n)
			}
			l := s.layout("set1")
			if r := next.writer.decodeOwn([]byte(s.keys(t, l.member("cls1"))[l.member("cls1")])); r.Exports != nil {
				t.Errorf("the record states %d exports before the first list", r.Exports.Count)
			}
			for i := range 2 {
				if n := version(t, watcher, "cls1", i); n != 1 {
					t.Errorf("export %d is at version %d before the first list, want 1", i, n)
				}
			}

			next.release()
			publish(t, next.Registry, 0, 2)
			awaitVersion(t, watcher, "cls1", 0, 2)
			awaitState(t, next.Registry, 0, registry.Exported)
			withdraw(t, next.Registry, 1)
			awaitVersion(t, watcher, "cls1", 1, 0)
		})
	}
}

// TestRegistry_QuickListFirst: a list that is quick is complete before the process claims its ID.
// The others answer a new process, which should read the answer after its list.
func TestRegistry_QuickListFirst(t *testing.T) {
	s := newTestStore(t, shared(t))
	cfg := fast(cls1)
	cfg.HeartbeatInterval = time.Minute
	p := s.slowStart(t, cfg, false)
	p.release()
	start(t, p.Registry)
	publish(t, p.Registry, 0, 1)
	awaitState(t, p.Registry, 0, registry.Exported)
	if n := p.ownReads.Load(); n != 0 {
		t.Errorf("the own keys are read %d times alone", n)
	}
}

// TestRegistry_LosesIDBeforeFirstList: a later process of the cluster takes the ID before the list
// of this one ends. This one gives way, as after the list.
func TestRegistry_LosesIDBeforeFirstList(t *testing.T) {
	s := newTestStore(t, shared(t))
	first := s.slowStart(t, fast(cls1), false)
	publish(t, first.Registry, 0, 1)
	start(t, first.Registry)
	first.awaitID(t)
	later := s.registry(t, fast(cls1))
	publish(t, later, 0, 2)
	start(t, later)
	awaitState(t, later, 0, registry.Exported)
	within(t, "the first process has given way", func() bool { return errors.Is(first.writer.claimProblem.Err(), errDisplaced) })
	first.release()
	awaitReason(t, first.Registry, 0, "another controller writes")
	awaitState(t, later, 0, registry.Exported)
}

// TestRegistry_LeavesBeforeFirstList: a cluster leaves while its list takes long. Its exports end.
func TestRegistry_LeavesBeforeFirstList(t *testing.T) {
	s := newTestStore(t, shared(t))
	watcher, before := s.registry(t, fast(cls2)), s.registry(t, fast(cls1))
	start(t, watcher)
	stop := start(t, before)
	publish(t, before, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	stop(nil)
	next := s.slowStart(t, fast(cls1), false)
	stop = start(t, next.Registry)
	next.awaitID(t)
	stop(registry.ErrLeave)
	awaitVersion(t, watcher, "cls1", 0, 0)
}

// TestRegistry_StaleWithoutList: a cluster whose list never ends cannot change its exports. It does
// not look live for ever.
func TestRegistry_StaleWithoutList(t *testing.T) {
	s := newTestStore(t, shared(t))
	cfg := fast(cls2)
	cfg.StaleAfter = time.Second
	watcher := s.registry(t, cfg)
	start(t, watcher)
	p := s.slowStart(t, fast(cls1), false)
	p.writer.timings.alone = 2 * time.Second
	start(t, p.Registry)
	awaitRecords(t, watcher, "cls1", 3)
	within(t, "the cluster is stale", func() bool { return memberOf(t, watcher, "cls1").Stale })
	p.release()
	awaitRecords(t, watcher, "cls1", 1)
}

// TestRegistry_SetBackBeforeFirstList: etcd is set back after a controller has claimed its ID and
// before its first list. The controller claims the ID again, although etcd has an earlier revision
// than that of the claim.
func TestRegistry_SetBackBeforeFirstList(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	watcher := s.registry(t, fast(cls2))
	start(t, watcher)
	next := s.slowStart(t, fast(cls1), false) // its user is part of the backup
	restore, err := s.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const writes = 100
	for range writes {
		s.putKey(t, "/other", "x")
	}
	publish(t, next.Registry, 0, 1)
	start(t, next.Registry)
	next.awaitID(t)
	fence := next.writer.session.currentFence()
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	next.release()
	awaitVersion(t, watcher, "cls1", 0, 1)
	awaitState(t, next.Registry, 0, registry.Exported)
	if now := next.writer.session.currentFence(); now == 0 || now >= fence {
		t.Errorf("the ID was claimed at revision %d, and at %d before etcd was set back", now, fence)
	}
}
