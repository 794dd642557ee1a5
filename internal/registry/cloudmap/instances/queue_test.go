package instances

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// testQueue returns an active queue with services that were reconciled one minute apart, the first
// one five minutes ago.
func testQueue(names ...string) (q queue, now time.Time) {
	q, now = newQueue(time.Minute), start
	q.active = true
	for i, name := range names {
		q.services[mcs.Key{Namespace: "demo", Name: name}] = &service{reconciledAt: now.Add(time.Duration(i-5) * time.Minute)}
	}
	return q, now
}

func TestQueue_ResyncsOldestServiceOncePerInterval(t *testing.T) {
	q, now := testQueue("b", "a", "c")
	for _, want := range []string{"b", "a"} {
		key, state, _ := q.next(now)
		if state == nil || key.Name != want {
			t.Fatalf("next service %q, want %q", key.Name, want)
		}
		if key, state, pause := q.next(now); state != nil || pause != time.Minute {
			t.Errorf("service %q after %v within the interval, want none for a minute", key.Name, pause)
		}
		q.finish(key, now, outcome{}, nil, false)
		now = now.Add(time.Minute)
	}
}

func TestQueue_ReconcilesQueuedServiceFirst(t *testing.T) {
	q, now := testQueue("a", "b")
	q.enqueue(mcs.Key{Namespace: "demo", Name: "b"})
	if key, state, _ := q.next(now); state == nil || key.Name != "b" {
		t.Errorf("next service %q, want the queued one", key.Name)
	}
}

// A removal may be lost, and one read may be late: a service without an export is read again before
// it is forgotten.
func TestQueue_ForgetsServiceAfterAbsentReads(t *testing.T) {
	q, now := testQueue("a")
	key := mcs.Key{Namespace: "demo", Name: "a"}
	for _, step := range []struct {
		result outcome
		want   bool
	}{
		{outcome{writes: 1}, true},
		{outcome{isAbsent: true}, true},
		{outcome{writes: 1}, true},
		{outcome{isAbsent: true}, true},
		{outcome{isAbsent: true}, false},
	} {
		q.finish(key, now, step.result, nil, false)
		if _, ok := q.services[key]; ok != step.want {
			t.Fatalf("after %+v the service is known: %v, want %v", step.result, ok, step.want)
		}
	}
}

func TestQueue_KeepsServiceChangedMeanwhile(t *testing.T) {
	q, now := testQueue("a")
	key := mcs.Key{Namespace: "demo", Name: "a"}
	q.enqueue(key)
	q.next(now)
	q.enqueue(key)
	if s := q.finish(key, now, outcome{}, nil, false); !s.isQueued || q.pending() != 1 {
		t.Error("a change during the work is lost")
	}
	q.active = false
	exp := webExport("cls1")
	q.next(now)
	if s := q.finish(key, now, outcome{applied: &exp}, nil, false); s.applied != nil || !s.isQueued {
		t.Error("a service that was written while another cluster got the cluster ID counts as in sync")
	}
}

func TestQueue_ErrorsKeepStateOnlyUnlessFailed(t *testing.T) {
	q, now := testQueue("a")
	key, exp := mcs.Key{Namespace: "demo", Name: "a"}, webExport("cls1")
	q.services[key].applied = &exp
	if s := q.finish(key, now, outcome{}, errUndecided, false); s.applied == nil || !s.isQueued {
		t.Error("an unknown export changes the state")
	}
	if s := q.finish(key, now, outcome{writes: 1}, errors.New("broken"), true); s.applied != nil || !s.isTorn || s.writtenAt != now || !s.isQueued {
		t.Error("the instances count as written after a failure")
	}
	if s := q.finish(key, now, outcome{}, nil, false); s.isTorn {
		t.Error("the service counts as torn after a success")
	}
}

func TestBackoff(t *testing.T) {
	denied := &smithy.GenericAPIError{Code: "AccessDeniedException"}
	throttled := &smithy.GenericAPIError{Code: "ThrottlingException"}
	for name, tc := range map[string]struct {
		failures int
		err      error
		max      time.Duration
	}{
		"first failure":         {0, throttled, minRetry},
		"many failures":         {20, throttled, maxRetry},
		"denied at first":       {0, denied, minRetry},
		"denied several times":  {3, denied, 8 * minRetry},
		"denied for minutes":    {20, denied, maxRetry},
		"unknown desired state": {20, errUndecided, maxUndecidedRetry},
	} {
		t.Run(name, func(t *testing.T) {
			longest := time.Duration(0)
			for range 200 {
				b := backoff{failures: tc.failures}
				b.fail(start, tc.err)
				longest = max(longest, b.retryAt.Sub(start))
			}
			if longest > tc.max || longest < tc.max*9/10 {
				t.Errorf("longest pause %v, want about %v", longest, tc.max)
			}
		})
	}
}

// A service that is being reconciled is not reconciled a second time beside it.
func TestQueue_ResyncsNoBusyService(t *testing.T) {
	q, now := testQueue("a")
	if key, state, _ := q.next(now); state == nil || key.Name != "a" {
		t.Fatalf("next service %q, want the one that is due", key.Name)
	}
	if key, state, _ := q.next(now.Add(time.Hour)); state != nil {
		t.Errorf("next service %q, want none while it is being reconciled", key.Name)
	}
}

// A service that was not known is reconciled when it is enqueued, and one whose instances may have
// changed after a reset.
func TestQueue_EnqueuesNewServiceAndAfterReset(t *testing.T) {
	q, now := testQueue()
	q.enqueue(key)
	found, state, _ := q.next(now)
	if state == nil || found != key {
		t.Fatalf("next service %q, want the new one", found.Name)
	}
	state.applied = &mcs.Export{}
	q.finish(key, now, outcome{writes: 1}, nil, false)
	q.services[key].applied = &mcs.Export{}
	if found, state, _ := q.next(now); state != nil {
		t.Errorf("next service %q, want none", found.Name)
	}
	q.reset()
	if s := q.services[key]; s.applied != nil || !s.writtenAt.IsZero() {
		t.Errorf("applied %v, written %v after a reset, want neither", s.applied, s.writtenAt)
	}
	if found, state, _ := q.next(now); state == nil || found != key {
		t.Errorf("next service %q after a reset, want the one that had instances", found.Name)
	}
}

// TestQueue_PacesRewrites: a namespace whose services are written again and again waits, the first
// writes of its services and other namespaces do not.
func TestQueue_PacesRewrites(t *testing.T) {
	q, now := newQueue(time.Hour), start
	q.active, q.resyncAt = true, start.Add(24*time.Hour)
	reconcile := func(key mcs.Key, writes int) (pause time.Duration) {
		q.enqueue(key)
		next, s, pause := q.next(now)
		if s == nil {
			return pause
		}
		q.finish(next, now, outcome{applied: &mcs.Export{}, writes: writes}, nil, false)
		return 0
	}
	flap := mcs.Key{Namespace: "tenant", Name: "flap"}
	for range rewriteBurst + 2 {
		if pause := reconcile(flap, 1); pause > 0 {
			t.Fatalf("it waits %v within the burst", pause)
		}
	}
	if pause := reconcile(flap, 1); pause <= 0 || pause > time.Second {
		t.Errorf("it waits %v after the burst", pause)
	}
	for _, key := range []mcs.Key{{Namespace: "tenant", Name: "new"}, {Namespace: "demo", Name: "web"}} {
		if pause := reconcile(key, 1000); pause > 0 {
			t.Errorf("%s waits %v", key, pause)
		}
	}
	now = now.Add(2 * time.Second)
	if _, s, pause := q.next(now); s == nil {
		t.Errorf("it still waits %v two seconds later", pause)
	}
}

// The operations of a service are looked at when that is due, unless the service has to be
// reconciled. A failure of theirs counts as one of the attempt.
func TestQueue_LooksAtOperations(t *testing.T) {
	q, now := newQueue(time.Hour), start
	q.active, q.resyncAt = true, start.Add(24*time.Hour)
	next := func(after time.Duration, want string) *service {
		t.Helper()
		now = start.Add(after)
		_, s, pause := q.next(now)
		got := "attempt"
		switch {
		case s == nil:
			got = "none"
		case s.isLook:
			got = "look"
		}
		if got != want {
			t.Fatalf("after %v next returns %s, and a pause of %v; want %s", after, got, pause, want)
		}
		return s
	}
	written := operations{}.add(start, []operation{{id: "a", instance: "a", at: start}})
	q.enqueue(key)
	next(0, "attempt")
	q.finish(key, now, outcome{applied: &mcs.Export{}, writes: 1, operations: written}, nil, false)
	next(time.Second, "none")
	q.enqueue(key)
	next(2*time.Second, "attempt") // rather than the look
	next(3*time.Second, "none")    // while it is busy
	last := q.services[key].outcome()
	q.finish(key, now, last, nil, false)
	failed := next(4*time.Second, "look").outcome()
	failed.operations = failed.operations.settle(now, []result{{isOver: true, reason: errRefused}})
	s := q.finish(key, now, failed, failed.operations.failure(), true)
	if s.isTorn || s.applied == nil || !s.isQueued || s.failures != 1 || len(s.operations.undone) != 1 {
		t.Errorf("after the failure of an operation the service is %+v", s)
	}
	next(20*time.Minute, "attempt")
	again := s.outcome()
	again.operations = again.operations.add(now, []operation{{id: "a", instance: "a", at: now}})
	if s = q.finish(key, now, again, nil, false); s.failures != 1 {
		t.Error("the attempt counts as a success before its operation is over")
	}
	if s = q.finish(key, now, outcome{}, errors.New("broken"), true); len(s.operations.accepted) != 1 || len(s.operations.undone) != 1 {
		t.Error("the operations are lost by an attempt that has not come to the writes")
	}
	again.operations = operations{}
	if s = q.finish(key, now, again, nil, false); s.failures != 2 {
		t.Error("a queued service has no failures any more")
	}
}
