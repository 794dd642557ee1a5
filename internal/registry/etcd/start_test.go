package etcd

import (
	"context"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
)

// startWithoutLists starts a process of cls1 for which etcd answers no list until release is called.
func (s *testStore) startWithoutLists(t *testing.T) (reg *Registry, release func()) {
	t.Helper()
	released := make(chan struct{})
	client := s.client(t, cls1)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if list, isRange := req.(*pb.RangeRequest); isRange && len(list.RangeEnd) > 0 {
				select {
				case <-released:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}))
	reg = s.registryOf(t, client, fast(cls1), fastTimings())
	return reg, sync.OnceFunc(func() { close(released) })
}

// awaitRecords waits until a cluster has two records more, as reg sees it, and fails if it becomes stale meanwhile.
func awaitRecords(t *testing.T, reg *Registry, clusterID string) {
	t.Helper()
	var last time.Time
	seen := 0
	within(t, clusterID+" has two records more", func() bool {
		members, _ := reg.Members(t.Context())
		for _, m := range members {
			if m.ClusterID != clusterID {
				continue
			}
			if m.Stale {
				t.Fatalf("%s is stale", clusterID)
			}
			if !m.Heartbeat.Equal(last) {
				last = m.Heartbeat
				seen++
			}
		}
		return seen > 2
	})
}

// TestRegistry_HeartbeatsBeforeFirstList: a controller that starts needs minutes for its first list where 1,000 start at once. Until then it has the cluster ID and
// writes heartbeats: the others would take the cluster for stale. It neither writes nor withdraws exports, and states none, because it does not know those that etcd has.
func TestRegistry_HeartbeatsBeforeFirstList(t *testing.T) {
	for name, tt := range map[string]struct {
		// isRunning is set if the previous process goes on: it has lost its leader election.
		isRunning bool
		// meanwhile happens while nothing is listed.
		meanwhile func(*testing.T, *testStore, *Registry)
	}{
		"the previous process has ended": {},
		"the previous process goes on":   {isRunning: true},
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
			cfg := fast(cls2)
			cfg.StaleAfter = 5 * time.Second
			watcher, before := s.registry(t, cfg), s.registry(t, fast(cls1))
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
			next, release := s.startWithoutLists(t)
			defer release()
			publish(t, next, 0, 2)
			start(t, next)
			within(t, "the next process has the ID", func() bool { return next.writer.session.currentFence() != 0 })
			writes := s.writes.Load()
			awaitRecords(t, watcher, "cls1")
			if tt.meanwhile != nil {
				tt.meanwhile(t, s, next)
				awaitRecords(t, watcher, "cls1")
			}
			if _, err := next.Lookup(t.Context(), webKey(0)); err == nil {
				t.Error("a service is looked up before the first list")
			}
			if n := s.writes.Load() - writes; n != 0 {
				t.Errorf("%d exports are written before the first list", n)
			}
			for i := range 2 {
				if n := version(t, watcher, "cls1", i); n != 1 {
					t.Errorf("export %d is at version %d before the first list, want 1", i, n)
				}
			}

			release()
			awaitVersion(t, watcher, "cls1", 0, 2)
			awaitState(t, next, 0, registry.Exported)
			withdraw(t, next, 1)
			awaitVersion(t, watcher, "cls1", 1, 0)
		})
	}
}

// TestRegistry_SetBackBeforeFirstList: etcd is set back after a controller has claimed its ID and before its first list. The controller claims the ID again, although etcd
// has an earlier revision than that of the claim.
func TestRegistry_SetBackBeforeFirstList(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	watcher := s.registry(t, fast(cls2))
	start(t, watcher)
	next, release := s.startWithoutLists(t) // its user is part of the backup
	defer release()
	restore, err := s.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s.putKey(t, "/other", "x")
	}
	publish(t, next, 0, 1)
	start(t, next)
	within(t, "the process has the ID", func() bool { return next.writer.session.currentFence() != 0 })
	fence := next.writer.session.currentFence()
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	release()
	awaitVersion(t, watcher, "cls1", 0, 1)
	awaitState(t, next, 0, registry.Exported)
	if now := next.writer.session.currentFence(); now >= fence {
		t.Errorf("the ID was claimed at revision %d, and at %d before etcd was set back", now, fence)
	}
}
