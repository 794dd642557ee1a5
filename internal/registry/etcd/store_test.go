package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// etcd answers a new watch with its current revision before it sends the changes up to there. A
// revision ahead of its changes would show a cluster ID that this process has just acquired as
// lost.
func TestWatch_RevisionIsNotAheadOfChanges(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	_, before, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const changes = 3
	for i := range changes {
		s.putKey(t, fmt.Sprintf("%sother/%d", st.layout.root, i), "x")
	}
	errDone := errors.New("all changes were read")
	seen := 0
	err = st.watch(t.Context(), watch{revision: before, interval: time.Second, silence: 10 * time.Second, check: func(context.Context) error { return nil }, apply: func(pairs []pair, revision int64) error {
		seen += len(pairs)
		if len(pairs) == 0 && seen < changes && revision > before {
			t.Errorf("revision %d after %d of %d changes since %d", revision, seen, changes, before)
		}
		if seen == changes {
			return errDone
		}
		return nil
	}})
	if !errors.Is(err, errDone) {
		t.Errorf("watching: %v", err)
	}
}

// etcd ends a watch from a revision that it has compacted just after it has begun, while the check
// waits for its answer. The end of the watch ends the check, and its reason is that of the watch:
// a reader that took it for an interruption would begin the same watch again and again.
func TestWatch_EndsWhileItIsChecked(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	_, before, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.putKey(t, st.layout.root+"other/1", "x")
	s.putKey(t, st.layout.root+"other/1", "y")
	_, after, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root().Compact(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = st.watch(ctx, watch{
		revision: before, interval: time.Second, silence: time.Hour,
		check: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		apply: func([]pair, int64) error { return nil },
	})
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("the watch ends with: %v, want: %v", err, rpctypes.ErrCompacted)
	}
}

// A list pauses while etcd is busy, up to 10 s, and the watch, which ends after a time without an
// answer, waits for a read. With the pauses of lists, each read of a cluster would end its watch,
// and nothing would be read any more.
func TestReadExports_MakesNoPauses(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	_, revision, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	st.lister.pace.pause = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := st.readExports(ctx, cls2.ClusterID, revision); err != nil {
		t.Error(err)
	}
}
