package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
)

// slowStart is a process that gets no answer to a list until release is called.
type slowStart struct {
	*Registry
	release func()
	// answers counts the lists that have their first answer, however late it arrives.
	answers atomic.Int64
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
	root := s.layout(cfg.Identity.ClusterSetID).root
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			first, isRange := req.(*pb.RangeRequest)
			if !isRange || string(first.Key) != root {
				return invoke(ctx, method, req, reply, conn, opts...)
			}
			if lateAnswers {
				err := invoke(ctx, method, req, reply, conn, opts...)
				if err == nil {
					p.answers.Add(1)
				}
				return errors.Join(err, wait(ctx))
			}
			if err := wait(ctx); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}))
	p.Registry = s.registryOf(t, client, cfg, fastTimings())
	return p
}

// isListed reports whether a list of all keys was applied after the head.
func isListed(reg *Registry) bool {
	reg.mirror.mu.Lock()
	defer reg.mirror.mu.Unlock()
	return reg.mirror.state.touched == nil
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

// TestRegistry_ExportsBeforeList: a list takes minutes where 1,000 controllers start at once. Until
// it has ended, a controller that starts has the cluster ID, writes heartbeats, and publishes and
// withdraws exports: it has read those that etcd has of its cluster.
func TestRegistry_ExportsBeforeList(t *testing.T) {
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
			next, want := s.slowStart(t, fast(cls1), tt.lateAnswers), 0
			if !tt.isEmpty {
				publish(t, next.Registry, 0, 2)
				want = 2
			}
			start(t, next.Registry)
			next.awaitID(t)
			const toSettle = 3 // a process states its exports after 1.25 heartbeat intervals
			awaitRecords(t, watcher, "cls1", toSettle)
			if tt.meanwhile != nil {
				tt.meanwhile(t, s, next.Registry)
				awaitRecords(t, watcher, "cls1", toSettle)
			}
			awaitVersion(t, watcher, "cls1", 0, want)
			awaitVersion(t, watcher, "cls1", 1, 0)
			publish(t, next.Registry, 0, 3)
			awaitVersion(t, watcher, "cls1", 0, 3)

			next.release()
			publish(t, next.Registry, 0, 4)
			awaitVersion(t, watcher, "cls1", 0, 4)
			awaitState(t, next.Registry, 0, registry.Exported)
			withdraw(t, next.Registry, 0)
			awaitVersion(t, watcher, "cls1", 0, 0)
		})
	}
}

// TestRegistry_ImportsBeforeList: a controller that starts again imports what has changed while
// there was none, and what changes while its list takes long. What has not changed stays unknown
// until the list has it, as does a cluster that has joined meanwhile; and nothing ends before the
// list, because such a cluster may export the same service.
func TestRegistry_ImportsBeforeList(t *testing.T) {
	const isChanged, isSame, changes, isWithdrawn, ends = 0, 1, 2, 3, 4
	s := newTestStore(t, shared(t))
	exporter, other, before := s.registry(t, fast(cls2)), s.registry(t, fast(benchMember(1))), s.registry(t, fast(cls1))
	start(t, exporter)
	start(t, other)
	stop := start(t, before)
	for i := range ends + 1 {
		publish(t, exporter, i, 1)
		awaitVersion(t, before, "cls2", i, 1)
	}
	publish(t, other, isSame, 1)
	awaitVersion(t, before, benchMember(1).ClusterID, isSame, 1)
	within(t, "both clusters state their exports", func() bool {
		return exporter.writer.session.isSettled() && other.writer.session.isSettled()
	})
	awaitRecords(t, before, "cls2", 2)
	stop(nil)

	publish(t, exporter, isChanged, 2)
	awaitState(t, exporter, isChanged, registry.Exported)
	withdraw(t, exporter, isWithdrawn)
	joiner := s.registry(t, fast(benchMember(2)))
	publish(t, joiner, isSame, 1)
	start(t, joiner)
	awaitState(t, joiner, isSame, registry.Exported)

	next := s.slowStart(t, fast(cls1), false)
	start(t, next.Registry)
	awaitVersion(t, next.Registry, "cls2", isChanged, 2)
	publish(t, exporter, changes, 2)
	awaitVersion(t, next.Registry, "cls2", changes, 2)
	withdraw(t, exporter, ends)
	for _, i := range []int{isWithdrawn, ends} {
		within(t, "the end of the export waits for the list", func() bool {
			view, err := next.Lookup(t.Context(), webKey(i), "cls2")
			return err == nil && view.Clusters["cls2"].State == registry.Unknown
		})
	}
	awaitVersion(t, next.Registry, "cls2", isSame, 1) // the cluster was read as a whole
	view, err := next.Lookup(t.Context(), webKey(isSame), benchMember(1).ClusterID)
	if got := view.Clusters[benchMember(1).ClusterID].State; err != nil || got != registry.Unknown {
		t.Errorf("before the list the export of another cluster is %v with error %v, want %v", got, err, registry.Unknown)
	}
	if isListed(next.Registry) {
		t.Error("the list has ended without an answer")
	}
	next.release()
	awaitVersion(t, next.Registry, benchMember(1).ClusterID, isSame, 1)
	awaitVersion(t, next.Registry, benchMember(2).ClusterID, isSame, 1)
	awaitVersion(t, next.Registry, "cls2", changes, 2)
	for _, i := range []int{isWithdrawn, ends} {
		view, err := next.Lookup(t.Context(), webKey(i), "cls2")
		if got := view.Clusters["cls2"].State; err != nil || got != registry.None {
			t.Errorf("after the list the export that was withdrawn is %v with error %v", got, err)
		}
	}
}

// TestRegistry_JoinsBeforeList: a cluster that joins looks nothing up before its list: of two
// clusters with a service the older one decides, and it may not be read yet.
func TestRegistry_JoinsBeforeList(t *testing.T) {
	s := newTestStore(t, shared(t))
	exporter := s.registry(t, fast(cls2))
	start(t, exporter)
	publish(t, exporter, 0, 1)
	awaitState(t, exporter, 0, registry.Exported)
	next := s.slowStart(t, fast(cls1), false)
	publish(t, next.Registry, 1, 1)
	start(t, next.Registry)
	awaitVersion(t, exporter, "cls1", 1, 1)
	publish(t, exporter, 0, 2)
	awaitRecords(t, exporter, "cls1", 2)
	if _, err := next.Lookup(t.Context(), webKey(0)); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("a service is looked up before the list: %v", err)
	}
	next.release()
	awaitVersion(t, next.Registry, "cls2", 0, 2)
}

// TestRegistry_LosesIDBeforeList: a later process of the cluster takes the ID before the list
// of this one ends. This one gives way, as after the list.
func TestRegistry_LosesIDBeforeList(t *testing.T) {
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

// TestRegistry_LeavesBeforeList: a cluster leaves while its list takes long. Its exports end.
func TestRegistry_LeavesBeforeList(t *testing.T) {
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

// TestRegistry_SetBackBeforeList: etcd is set back after a controller has claimed its ID and before
// its list has ended. The controller claims the ID again, although etcd has an earlier revision
// than that of the claim.
func TestRegistry_SetBackBeforeList(t *testing.T) {
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

// TestRegistry_SetBackDuringList: etcd is set back while a list has its answer and was not applied.
// The watch goes on after a change that etcd has still, and the list is of a state that it has not
// any more.
func TestRegistry_SetBackDuringList(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	exporter, before := s.registry(t, fast(cls1)), s.registry(t, readOnly(cls2))
	stopExporter, stopBefore := start(t, exporter), start(t, before)
	publish(t, exporter, 0, 1)
	awaitVersion(t, before, "cls1", 0, 1)
	within(t, "the cluster states its exports", exporter.writer.session.isSettled)
	awaitRecords(t, before, "cls1", 2)
	stopExporter(nil)
	stopBefore(nil)
	restore, err := s.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.remove(t, s.layout("set1").export("cls1", webKey(0)))
	next := s.slowStart(t, readOnly(cls2), true)
	start(t, next.Registry)
	within(t, "the list has its answer", func() bool { return next.answers.Load() > 0 })
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	within(t, "the controller watches again", func() bool { return next.answers.Load() > 1 })
	next.release()
	within(t, "the list has ended", func() bool { return isListed(next.Registry) })
	if !next.mirror.shows("cls1", 0) {
		t.Error("an export is missing in the mirror that etcd has")
	}
}

// shows reports whether a mirror has the key of an export.
func (m *mirror) shows(clusterID string, i int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, isShown := m.state.clusters[clusterID].shown[webKey(i)]
	return isShown
}

// readOnly returns a configuration of a registry that is only imported from.
func readOnly(identity mcs.Identity) Config {
	cfg := fast(identity)
	cfg.ReadOnly = true
	return cfg
}
