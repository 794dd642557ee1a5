package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// testWriter returns a writer that makes no requests.
func testWriter(t *testing.T) *writer {
	t.Helper()
	client, err := NewClient(ClientConfig{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	m := newMirror(testState(t), cls1.ClusterID, 0, logr.Discard())
	st := &store{client: client, layout: m.state.layout, id: cls1.ClusterID}
	cfg := fast(cls1)
	cfg.Signer = registrytest.Signer(t, cls1)
	return newWriter(cfg, fastTimings(), st, m, engine.NewNotifier(m.addResolvedLookups))
}

// A transaction of unknown outcome may still be carried out, so the key alive must be rewritten.
// etcd surely did not carry out what it refused: claiming the ID again after each refusal would
// write alive all the time.
func TestFailedWriteDropsFence(t *testing.T) {
	tests := map[string]struct {
		err       error
		wantFence bool
		wantErr   bool
	}{
		"permission denied":  {rpctypes.ErrPermissionDenied, true, true},
		"password refused":   {withAdvice(rpctypes.ErrAuthFailed), true, true},
		"throttled":          {rpctypes.ErrTooManyRequests, true, true},
		"quota used up":      {withAdvice(rpctypes.ErrNoSpace), true, true},
		"too large":          {withAdvice(rpctypes.ErrRequestTooLarge), true, true},
		"fence lost":         {errFenceLost, false, false},
		"timeout":            {rpctypes.ErrTimeout, false, true},
		"leader changed":     {rpctypes.ErrLeaderChanged, false, true},
		"connection is lost": {withAdvice(fmt.Errorf("reading: %w", errors.New("EOF"))), false, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := testWriter(t)
			w.session.claim.acquire(7)
			if err := w.handleFailedWrite(tt.err); (err != nil) != tt.wantErr {
				t.Errorf("error %v, want one: %t", err, tt.wantErr)
			}
			if kept := w.session.claim.fence == 7; kept != tt.wantFence {
				t.Errorf("fence kept: %t, want %t", kept, tt.wantFence)
			}
		})
	}
}

// The list that the mirror was made from may be older than the last write of a previous process.
// Everything written before the fence is known once the fence has been read.
func TestExportsWaitForFence(t *testing.T) {
	const fence = 10
	now := time.Now()
	w := testWriter(t)
	l := w.mirror.state.layout
	w.observe(w.mirror.begin(headOf(w.mirror.state, []pair{memberPair(t, l, cls1, 5, now)}, fence-1), false))
	w.session.claim.acquire(fence)
	w.session.recordRevision, w.session.heartbeatAt = fence, now.Add(time.Hour)
	w.session.written = w.mirror.ownKeys().member
	exp := webExport("cls1", 0, 1)
	if err := w.setDesired(exp.Key, &exp); err != nil {
		t.Fatal(err)
	}
	if next, err := w.nextTask(now); err != nil || len(next.batch) > 0 {
		t.Errorf("before the fence has been read: %d exports are written, error %v", len(next.batch), err)
	}
	u, behind := w.mirror.apply([]pair{{key: l.alive("cls1"), value: []byte(cls1.UID), revision: fence, lease: 1}, memberPair(t, l, cls1, fence, now)}, fence)
	if behind {
		t.Fatal("the fence is behind the mirror")
	}
	w.observe(u)
	if next, err := w.nextTask(now); err != nil || len(next.batch) != 1 || next.fence != fence {
		t.Errorf("after the fence has been read: task %+v, error %v, want one export with the fence", next, err)
	}
}

// TestRecordStatesNothingBeforeFence: a request of unknown outcome may have been carried out before
// the fence. Until the fence is read, the record must not state the exports without it: if etcd is
// set back to a state without it then, the others would take the earlier version for the one that
// the cluster wants.
func TestRecordStatesNothingBeforeFence(t *testing.T) {
	const fence = 10
	now := time.Now()
	w := testWriter(t)
	l := w.mirror.state.layout
	w.observe(w.mirror.begin(headOf(w.mirror.state, []pair{memberPair(t, l, cls1, 5, now)}, fence-1), false))
	w.session.settled = true
	states := func() bool {
		value, err := w.nextRecord(t.Context(), now, nil, w.session.nextGeneration(w.mirror.ownKeys()))
		if err != nil {
			t.Fatal(err)
		}
		return w.decodeOwn(value).Exports != nil
	}
	if states() {
		t.Error("the record that claims the ID states exports")
	}
	w.session.acquire(fence)
	if w.settle(now); states() || !w.session.heartbeatAt.After(now) {
		t.Errorf("before the fence is read, the record states exports, or is written all the time: the next one at %v", w.session.heartbeatAt)
	}
	u, _ := w.mirror.apply([]pair{{key: l.alive("cls1"), value: []byte(cls1.UID), revision: fence, lease: 1}, memberPair(t, l, cls1, fence, now)}, fence)
	w.observe(u)
	if w.settle(now); w.session.heartbeatAt.After(now) {
		t.Error("the record that states exports is not written as soon as the fence is read")
	}
	if !states() {
		t.Error("the record states no exports after the fence is read")
	}
}

func TestOwnerOnLeaving(t *testing.T) {
	const ownLease, otherLease = 7, 9
	record := func(uid string) []byte {
		identity := cls1
		identity.UID = uid
		return memberValue(t, identity, time.Now(), nil)
	}
	tests := map[string]struct {
		alive  aliveState
		member []byte
		held   bool
		want   owner
	}{
		"this process holds the ID":               {aliveState{revision: 5, lease: ownLease, uid: cls1.UID}, record(cls1.UID), true, ownerThis},
		"another process displaced this one":      {aliveState{revision: 5, lease: otherLease, uid: cls1.UID, number: 60}, record(cls1.UID), true, ownerOther},
		"a backup shows a previous process":       {aliveState{revision: 5, lease: otherLease, uid: cls1.UID, number: 40}, record(cls1.UID), true, ownerUnclear},
		"another cluster holds the ID":            {aliveState{revision: 5, lease: otherLease, uid: "uid-9"}, record("uid-9"), false, ownerOther},
		"one with a clock ahead holds it":         {aliveState{revision: 5, lease: otherLease, uid: cls1.UID, number: 60}, record(cls1.UID), false, ownerUnclear},
		"a previous process or a clone holds it":  {aliveState{revision: 5, lease: otherLease, uid: cls1.UID}, record(cls1.UID), false, ownerUnclear},
		"the lease of this process expired":       {aliveState{}, nil, true, ownerThis},
		"a previous process held it last":         {aliveState{}, record(cls1.UID), false, ownerThis},
		"another cluster held it last":            {aliveState{}, record("uid-9"), false, ownerOther},
		"the last holder is not known":            {aliveState{}, nil, false, ownerOther},
		"a key alive without a lease is not held": {aliveState{revision: 5, uid: "uid-9"}, record(cls1.UID), false, ownerThis},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := testWriter(t)
			w.session.claim.leases[ownLease] = true
			w.session.claim.number, w.session.claim.held = 50, tt.held
			if got := w.session.ownerOf(tt.alive, w.memberUID(tt.member)); got != tt.want {
				t.Errorf("owner %v, want %v", got, tt.want)
			}
		})
	}
}

// A renewal ends when the client disconnects, for example to read its password again. The lease
// lives on, so joining again would be needless.
func TestLeaseSurvivesReconnect(t *testing.T) {
	s := newTestStore(t, shared(t))
	w := s.registry(t, fast(cls1)).writer
	w.timings.lease = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lease, err := w.ensureLease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.session.claim.acquire(7)
	var last time.Time
	within(t, "the lease is checked after a renewal has ended", func() bool {
		if time.Since(last) > 500*time.Millisecond { // again, for the renewal may not have begun
			w.store.client.mu.Lock()
			defer w.store.client.mu.Unlock()
			if err := w.store.client.disconnect(); err != nil {
				t.Error(err)
			}
			last = time.Now()
		}
		return s.leaseChecks.Load() > 0
	})
	cancel()
	w.keepAlives.Wait()
	if w.session.lease != lease || w.session.claim.fence != 7 {
		t.Errorf("lease %d and fence %d after reconnecting, want %d and 7", w.session.lease, w.session.claim.fence, lease)
	}
}
