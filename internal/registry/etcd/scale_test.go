package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestMirror_ReviewsAtIntervals: an answer with the heartbeat of one cluster costs nothing for the
// others, and at intervals all of them are reviewed.
func TestMirror_ReviewsAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStateTest(t)
		m := newMirror(s.state, "cls1", time.Second, logr.Discard())
		first := s.member(0, nil)
		first.revision = 1
		if u := relist(m, 1, first); !u.reviewed || len(u.members) != 1 {
			t.Errorf("after a list: reviewed %v, members %v", u.reviewed, u.members)
		}
		if s.belief.LivenessOf("cls2") != registry.Undecided {
			t.Error("a cluster is known to be alive before its first heartbeat")
		}
		revision := int64(1)
		beat := func() update {
			revision++
			p := s.member(int(revision), nil)
			p.revision = revision
			u, _ := m.apply([]pair{p}, revision)
			return u
		}
		if u := beat(); u.reviewed || u.revision != 2 {
			t.Errorf("after a heartbeat: reviewed %v, revision %d", u.reviewed, u.revision)
		}
		if u, _ := m.apply(nil, 2); !u.reviewed || s.belief.LivenessOf("cls2") != registry.Live {
			t.Errorf("after an answer without changes: reviewed %v, %v", u.reviewed, s.belief.LivenessOf("cls2"))
		}
		beat()
		time.Sleep(time.Second)
		if u := beat(); !u.reviewed {
			t.Error("a review is due, although no answer is without changes")
		}
	})
}

// TestStore_ListsInFewRequests: pages of small values grow, and one of large values after them is
// read with fewer keys.
func TestStore_ListsInFewRequests(t *testing.T) {
	const small, large = 800, 72 // pages of 32, 64, 128, 256 and 256 keys
	s := newTestStore(t, shared(t))
	l := s.layout("set1")
	reader := &store{client: s.client(t, cls1), id: "cls1", layout: l}
	var ops []clientv3.Op
	for i := range small {
		ops = append(ops, clientv3.OpPut(l.export("cls1", webKey(i)), "small"))
	}
	value := strings.Repeat("x", 1<<20)
	for i := range large {
		ops = append(ops, clientv3.OpPut(l.export("cls2", webKey(i)), value))
	}
	for _, op := range ops {
		if _, err := s.Root().Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if _, err := s.Root().Delete(context.WithoutCancel(t.Context()), s.prefix, clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	}()
	list, _, err := reader.list(t.Context())
	if err != nil || len(list) != small+large {
		t.Fatalf("%d keys are listed, want %d; error %v", len(list), small+large, err)
	}
	if n := s.lists.Load(); n > 14 {
		t.Errorf("%d requests, want 5 for the small values, one that is refused, and 3 for the others", n)
	}
}

// TestRegistry_CompactedBetweenPages: etcd is compacted while a controller that starts reads the
// pages of its first list, which is of one revision. It lists again.
func TestRegistry_CompactedBetweenPages(t *testing.T) {
	const exports = 3 * pageKeys
	s := newTestStore(t, shared(t))
	exporter := s.registry(t, fast(cls1))
	start(t, exporter)
	for i := range exports {
		publish(t, exporter, i, 1)
	}
	for i := range exports {
		awaitState(t, exporter, i, registry.Exported)
	}
	var compacted atomic.Bool
	pages := 0
	compact := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if list, isRange := req.(*pb.RangeRequest); isRange && list.Limit >= pageKeys {
			if pages++; pages == 2 {
				written, err := s.Root().Put(ctx, "/other", "x")
				if err != nil {
					return err
				}
				if _, err := s.Root().Compact(ctx, written.Header.Revision); err != nil {
					return err
				}
				compacted.Store(true)
			}
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	cfg := fast(cls2)
	cfg.ReadOnly = true
	client := s.client(t, cls2)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(compact))
	importer := s.registryOf(t, client, cfg, fastTimings())
	start(t, importer)
	for i := range exports {
		awaitVersion(t, importer, "cls1", i, 1)
	}
	if !compacted.Load() {
		t.Error("etcd was not compacted")
	}
}

// TestRegistry_RejoinTogether: the leases of all clusters expire while none of them reaches etcd.
// After that each claims its ID again, and no import of them ends.
func TestRegistry_RejoinTogether(t *testing.T) {
	const clusters = 12
	s := newTestStore(t, shared(t))
	watcher := s.registry(t, fast(benchMember(clusters)))
	start(t, watcher)
	members := make([]*Registry, clusters)
	leaseOf := func(i int) clientv3.LeaseID { return clientv3.LeaseID(members[i].writer.session.currentLease()) }
	leases := make([]clientv3.LeaseID, clusters)
	for i := range members {
		members[i] = s.registry(t, fast(benchMember(i)))
		start(t, members[i])
		publish(t, members[i], i, 1)
	}
	for i := range members {
		awaitVersion(t, watcher, benchMember(i).ClusterID, i, 1)
		leases[i] = leaseOf(i)
	}
	s.proxy.Cut()
	for _, lease := range leases {
		if _, err := s.Root().Revoke(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	s.proxy.Restore()
	for i := range members {
		within(t, "the cluster has another lease", func() bool {
			if n := version(t, watcher, benchMember(i).ClusterID, i); n != 1 {
				t.Fatalf("the export of cluster %d is at version %d", i, n)
			}
			return leaseOf(i) != 0 && leaseOf(i) != leases[i] && members[i].writer.session.currentFence() != 0
		})
	}
	for i := range members {
		publish(t, members[i], i, 2)
		awaitVersion(t, watcher, benchMember(i).ClusterID, i, 2)
	}
}

// BenchmarkHeartbeat measures an answer of the watch with the heartbeat of one of many clusters,
// with the reviews that are due at that rate: each cluster writes one in 12 s.
func BenchmarkHeartbeat(b *testing.B) {
	for _, size := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", size), func(b *testing.B) {
			s := newStateTest(b)
			m := newMirror(s.state, "cls1", time.Hour, logr.Discard())
			log := registry.NewMemberLog(logr.Discard(), "cls1")
			var list []pair
			for n := range size {
				list = append(list, pair{key: s.layout.member(benchMember(n).ClusterID), value: memberValue(b, benchMember(n), s.now, setOf(nil)), revision: 1})
			}
			relist(m, 1, list...)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				member, revision := benchMember(n%size), int64(n+2)
				p := pair{key: s.layout.member(member.ClusterID), value: memberValue(b, member, s.now.Add(time.Duration(n+1)*time.Second), setOf(nil)), revision: revision}
				b.StartTimer()
				u, _ := m.apply([]pair{p}, revision)
				if n%max(1, size/12) == 0 {
					u, _ = m.apply(nil, revision)
					log.Update(u.members)
				}
			}
		})
	}
}

// TestStore_ReadsPageAgain: a page that etcd does not answer in time is read again, unless it is
// the first one, after which the caller connects again.
func TestStore_ReadsPageAgain(t *testing.T) {
	const exports = 3 * pageKeys
	s := newTestStore(t, shared(t))
	l := s.layout("set1")
	for i := range exports {
		if _, err := s.Root().Put(t.Context(), l.export("cls1", webKey(i)), "small"); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		// The requests from first on, so many, are not answered.
		first, unanswered int
		wantErr           bool
	}{
		"all are answered":                     {0, 0, false},
		"the first page is not answered":       {1, 1, true},
		"a later one is not answered twice":    {2, pageAttempts - 1, false},
		"a later one is not answered any more": {2, pageAttempts, true},
	} {
		t.Run(name, func(t *testing.T) {
			client, requests := s.client(t, cls1), 0
			client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if list, isRange := req.(*pb.RangeRequest); isRange && list.Limit >= pageKeys {
						if requests++; requests >= tt.first && requests < tt.first+tt.unanswered {
							return context.DeadlineExceeded
						}
					}
					return invoke(ctx, method, req, reply, conn, opts...)
				}))
			list, _, err := (&store{client: client, id: "cls1", layout: l}).list(t.Context())
			if (err != nil) != tt.wantErr || err == nil && len(list) != exports {
				t.Errorf("%d keys are listed with %d requests, error %v; want all %d: %t", len(list), requests, err, exports, !tt.wantErr)
			}
		})
	}
}
