package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
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

// The end of a watch ends the requests beside it, and the reason is that of the watch. etcd ends a
// watch from a revision that it has compacted just after it has begun: a reader that took the end
// of the check for an interruption would begin the same watch again and again.
func TestWatch_EndsDuringARequest(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	_, compacted, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.putKey(t, st.layout.root+"other/1", "x")
	s.putKey(t, st.layout.root+"other/1", "y")
	_, latest, err := st.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root().Compact(t.Context(), latest); err != nil {
		t.Fatal(err)
	}
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	passes := func(context.Context) error { return nil }
	for name, tt := range map[string]struct {
		revision    int64
		silence     time.Duration
		check, read func(context.Context) error
		want        error
	}{
		"compacted, during the check":  {compacted, time.Hour, waits, passes, rpctypes.ErrCompacted},
		"no answer, during the check":  {latest, 100 * time.Millisecond, waits, passes, context.DeadlineExceeded},
		"no answer, during a read":     {latest, 100 * time.Millisecond, passes, waits, context.DeadlineExceeded},
		"a failure that is no ending":  {latest, time.Hour, func(context.Context) error { return errBehind }, passes, errBehind},
		"a failed read is no ending":   {latest, time.Hour, passes, func(context.Context) error { return errBehind }, errBehind},
		"compacted, the check is fast": {compacted, time.Hour, passes, passes, rpctypes.ErrCompacted},
	} {
		t.Run(name, func(t *testing.T) {
			signal := engine.NewSignal()
			signal.Set()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := st.watch(ctx, watch{
				revision: tt.revision, interval: time.Second, silence: tt.silence, check: tt.check, signal: signal, read: tt.read,
				apply: func([]pair, int64) error { return nil },
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("the watch ends with: %v, want: %v", err, tt.want)
			}
		})
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
