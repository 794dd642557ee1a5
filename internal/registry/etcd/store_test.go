package etcd

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// etcd answers a new watch with its current revision before it sends the changes up to there. A revision ahead of its changes would
// show a cluster ID that this process has just acquired as lost.
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
	err = st.watch(t.Context(), watch{revision: before, interval: time.Second, silence: 10 * time.Second, apply: func(pairs []pair, revision int64) error {
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

// A cluster that has left is no member any more. One that is down is, although it has nothing but its record: the last cluster leaves nothing behind, and
// that one would not learn that this one has left.
func TestHasOtherMembers(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	expect := func(what string, want bool) {
		t.Helper()
		if got, err := st.hasOtherMembers(t.Context()); err != nil || got != want {
			t.Errorf("%s: other members: %v (%v), want %v", what, got, err, want)
		}
	}
	expect("nothing is there", false)
	s.putKey(t, st.layout.member("cls1"), string(memberValue(t, cls1, time.Now(), nil)))
	expect("this cluster alone", false)
	s.putKey(t, st.layout.member("cls2"), string(memberValue(t, cls2, time.Now(), nil)))
	expect("a cluster that is down", true)
	farewell := newMemberRecord(cls2, "v1").withHeartbeat(time.Now())
	farewell.Farewell = true
	s.putKey(t, st.layout.member("cls2"), string(sign(t, cls2, farewell)))
	expect("a cluster that has left", false)
	s.putKey(t, st.layout.member("cls2"), "garbage")
	expect("a record that cannot be used", true)
	s.putKey(t, st.layout.member("cls2"), string(sign(t, cls2, farewell)))
	s.putKey(t, st.layout.export("cls3", webKey(0)), "garbage")
	expect("an export without a record", true)
}
