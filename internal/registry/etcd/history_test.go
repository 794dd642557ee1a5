package etcd

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
)

// historyTest is an etcd that is set back to a backup, with a reader that must notice it by its
// watch: it never lists because exports differ from their record.
type historyTest struct {
	*testStore
	t      *testing.T
	reader *Registry
	// generations are those of the exports of cls1 in etcd, and last is the latest one that it has
	// used.
	generations map[int]int64
	last        time.Time
	// created counts the watches that etcd has created, and changes the changes that they have
	// received.
	created, changes atomic.Int64
	// hold, if it is set, is called once before a request that checks the history.
	hold atomic.Pointer[func(context.Context)]
}

func newHistoryTest(t *testing.T) *historyTest {
	t.Helper()
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	h := &historyTest{t: t, testStore: newTestStore(t, c), generations: map[int]int64{}, last: time.Now()}
	cfg := fast(cls2)
	cfg.ReadOnly = true
	client := h.client(t, cls2)
	client.cfg.options = append(client.cfg.options, grpc.WithChainUnaryInterceptor(h.holdCheck), grpc.WithChainStreamInterceptor(h.countAnswers))
	h.reader = h.registryOf(t, client, cfg, fastTimings())
	start(t, h.reader)
	h.write(0, 1)
	h.awaitVersion(0, 1)
	return h
}

func (h *historyTest) holdCheck(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if check, ok := req.(*pb.RangeRequest); ok && check.Revision != 0 && len(check.RangeEnd) == 0 {
		if hold := h.hold.Swap(nil); hold != nil {
			(*hold)(ctx)
		}
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

func (h *historyTest) countAnswers(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, opts...)
	return countedStream{stream, h}, err
}

type countedStream struct {
	grpc.ClientStream
	test *historyTest
}

func (s countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if answer, ok := m.(*pb.WatchResponse); ok && err == nil {
		if answer.Created {
			s.test.created.Add(1)
		}
		s.test.changes.Add(int64(len(answer.Events)))
	}
	return err
}

// do repeats a request, which may fail while etcd starts, and returns the revision.
func (h *historyTest) do(ops ...clientv3.Op) (revision int64) {
	h.t.Helper()
	within(h.t, "etcd serves", func() bool {
		ctx, cancel := context.WithTimeout(h.t.Context(), attempt)
		defer cancel()
		answer, err := h.Root().Txn(ctx).Then(ops...).Commit()
		if err == nil {
			revision = answer.Header.Revision
		}
		return err == nil
	})
	return revision
}

// write writes version n of an export of cls1, with its member record.
func (h *historyTest) write(i, n int) (revision int64) {
	h.t.Helper()
	h.last = h.last.Add(time.Second)
	h.generations[i] = h.last.UnixMilli()
	l := h.layout("set1")
	return h.do(
		clientv3.OpPut(l.export("cls1", webKey(i)), string(exportValue(h.t, cls1, i, n, h.generations[i]))),
		clientv3.OpPut(l.member("cls1"), string(memberValue(h.t, cls1, h.last, setOf(h.generations)))))
}

// advance makes other users of etcd write until it has a revision.
func (h *historyTest) advance(revision int64) {
	h.t.Helper()
	for h.do(clientv3.OpPut("/other", "x")) < revision {
	}
}

// backUp makes a backup and returns a function that sets etcd back to it.
func (h *historyTest) backUp() (restore func()) {
	h.t.Helper()
	generations := maps.Clone(h.generations)
	set, err := h.Backup(h.t.TempDir())
	if err != nil {
		h.t.Fatal(err)
	}
	return func() {
		h.t.Helper()
		if err := set(); err != nil {
			h.t.Fatal(err)
		}
		h.generations = generations
	}
}

func (h *historyTest) awaitVersion(i, n int) {
	h.t.Helper()
	awaitVersion(h.t, h.reader, "cls1", i, n)
}

// readTo waits until the reader has read everything up to a revision.
func (h *historyTest) readTo(revision int64) {
	h.t.Helper()
	within(h.t, "everything is read", func() bool { return h.reader.mirror.revision() >= revision })
}

// The backup has the latest change that was read, but etcd had later revisions by other users.
func TestReader_BackupWithLatestChange(t *testing.T) {
	h := newHistoryTest(t)
	restore := h.backUp()
	read := h.do(clientv3.OpPut("/other", "x")) + 50
	h.advance(read)
	h.readTo(read)
	h.proxy.Cut()
	restore()
	if revision := h.write(0, 2); revision >= read {
		t.Fatalf("the change has revision %d, want one before %d", revision, read)
	}
	h.advance(read + 10)
	h.proxy.Restore()
	h.awaitVersion(0, 2)
}

// The backup is restored while the reader checks the history, and has not used yet what it has
// received before.
func TestReader_BackupWhileChecking(t *testing.T) {
	h := newHistoryTest(t)
	held, release := make(chan struct{}), make(chan struct{})
	hold := func(ctx context.Context) {
		close(held)
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	h.hold.Store(&hold)
	restore := h.backUp() // etcd restarts, so that the reader checks
	<-held
	h.advance(h.do(clientv3.OpPut("/other", "x")) + 50)
	changes := h.changes.Load()
	later := h.write(0, 2)
	within(t, "the change is received", func() bool { return h.changes.Load() > changes })
	created := h.created.Load()
	restore()
	if revision := h.write(1, 1); revision >= later {
		t.Fatalf("the change has revision %d, want one before %d", revision, later)
	}
	h.advance(later + 10)
	within(t, "a watch continues", func() bool { return h.created.Load() > created })
	close(release)
	h.awaitVersion(1, 1)
}

// After the backup, an export was written at the same revision as one that was read, and etcd was
// compacted.
func TestReader_BackupAndCompaction(t *testing.T) {
	h := newHistoryTest(t)
	restore := h.backUp()
	before := h.write(0, 2)
	h.awaitVersion(0, 2)
	h.proxy.Cut()
	restore()
	if revision := h.write(0, 3); revision != before {
		t.Fatalf("the change has revision %d, want %d as the one before", revision, before)
	}
	h.advance(before + 10)
	if _, err := h.Root().Compact(t.Context(), before+10); err != nil {
		t.Fatal(err)
	}
	h.proxy.Restore()
	h.awaitVersion(0, 3)
}

// The latest change that was read is compacted, and there is none since. The reader lists once and
// watches from there.
func TestReader_CompactedWithoutChange(t *testing.T) {
	h := newHistoryTest(t)
	h.proxy.Cut()
	compacted := h.do(clientv3.OpPut("/other", "x"))
	if _, err := h.Root().Compact(t.Context(), compacted); err != nil {
		t.Fatal(err)
	}
	h.proxy.Restore()
	h.readTo(compacted)
	within(t, "the list has ended", func() bool { return isListed(h.reader) })
	lists := h.lists.Load()
	for range 3 {
		h.readTo(h.do(clientv3.OpPut("/other", "x")))
	}
	if n := h.lists.Load() - lists; n > 0 {
		t.Errorf("%d more lists, want none: the watch shows the progress", n)
	}
	h.write(0, 2)
	h.awaitVersion(0, 2)
}
