package etcd

import (
	"errors"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestSession_LeavesIDToNextProcess: a process that a later one of its cluster has displaced, as a
// clone is, does not take the ID when that one ends in good order: the next process of the cluster
// is about to start.
func TestSession_LeavesIDToNextProcess(t *testing.T) {
	began := time.Now()
	s := newSession(fast(cls1))
	interval := s.interval
	later := aliveState{revision: 5, lease: 9, uid: cls1.UID, number: s.claim.number + 1}
	steps := []struct {
		what  string
		after time.Duration
		alive aliveState
		joins bool
	}{
		{"a later process holds it", 0, later, false},
		{"it has ended", time.Hour, aliveState{}, false},
		{"just before the end of the time", yieldHeartbeats*interval - 1, aliveState{}, false},
		{"another later process holds it", 0, aliveState{revision: 6, lease: 10, uid: cls1.UID, number: later.number + 1}, false},
		{"it has ended as well", time.Hour, aliveState{}, false},
		{"no process has taken it", yieldHeartbeats * interval, aliveState{}, true},
	}
	now := began
	for i, step := range steps {
		now = now.Add(step.after)
		s.observe(step.alive, int64(10+i))
		next, err := s.nextTask(now, ownKeys{revision: int64(10 + i), alive: step.alive})
		if next.join != step.joins || errors.Is(err, errDisplaced) == step.joins {
			t.Errorf("%s: joins %t with %v, want %t", step.what, next.join, err, step.joins)
		}
	}
}

// TestSession_LeavesIDToNextProcessAgain: a process that has left the ID to another one before, and
// has held it since, leaves it again, also if it was not asked for its next task while the later
// process held the ID: it pauses after failures.
func TestSession_LeavesIDToNextProcessAgain(t *testing.T) {
	for what, holds := range map[string]bool{"it has held the ID": true, "it has not": false} {
		s := newSession(fast(cls1))
		now, revision := time.Now(), int64(10)
		observe := func(alive aliveState) task {
			revision++
			now = now.Add(time.Hour)
			s.observe(alive, revision)
			next, _ := s.nextTask(now, ownKeys{revision: revision, alive: alive})
			return next
		}
		later := aliveState{revision: 5, lease: 9, uid: cls1.UID, number: s.claim.number + 1}
		observe(later)
		observe(aliveState{})
		if holds {
			s.acquire(revision)
		}
		s.observe(later, revision+1)
		if next := observe(aliveState{}); next.join {
			t.Errorf("%s: it takes the ID as soon as the later process has ended", what)
		}
		if next := observe(aliveState{}); !next.join {
			t.Errorf("%s: it does not take the ID when no process has taken it", what)
		}
	}
}

// TestSession_LeavesIDAfterUnseenProcess: a process that held the ID was cut off while another
// process of its cluster ran and ended. Only its records show that there was one.
func TestSession_LeavesIDAfterUnseenProcess(t *testing.T) {
	for what, wrote := range map[string]bool{"another process has written": true, "none has": false} {
		cfg := fast(cls1)
		cfg.Signer = registrytest.Signer(t, cls1)
		s := newSession(cfg)
		now := time.Now()
		own := ownKeys{revision: 10}
		if _, err := s.nextRecord(now, own, nil, s.nextGeneration(own)); err != nil {
			t.Fatal(err)
		}
		s.acquire(10)
		own.revision, own.latest = 20, s.record.latest()
		if wrote {
			own.latest++
		}
		s.observe(own.alive, own.revision)
		if next, _ := s.nextTask(now, own); next.join == wrote {
			t.Errorf("%s: it takes the ID: %t", what, next.join)
		}
		if next, _ := s.nextTask(now.Add(yieldHeartbeats*s.interval), own); !next.join {
			t.Errorf("%s: it does not take the ID when no process has taken it", what)
		}
	}
}

// TestSession_TakesFreeIDAtOnce: a process that starts after the previous one has ended takes the
// ID at once, also if its clock is behind.
func TestSession_TakesFreeIDAtOnce(t *testing.T) {
	s := newSession(fast(cls1))
	s.observe(aliveState{}, 10)
	if next, err := s.nextTask(time.Now(), ownKeys{revision: 10}); err != nil || !next.join {
		t.Errorf("joins %t, %v", next.join, err)
	}
}

// TestSession_WritesExportsBetweenSlowHeartbeats: etcd takes longer for a heartbeat than the time
// until the next one. Exports are written nevertheless.
func TestSession_WritesExportsBetweenSlowHeartbeats(t *testing.T) {
	cfg := fast(cls1)
	cfg.Signer = registrytest.Signer(t, cls1)
	s := newSession(cfg)
	now := time.Now()
	s.acquire(10)
	own := ownKeys{revision: 10, alive: aliveState{revision: 10}}
	write := func(revision int64) {
		if _, err := s.nextRecord(now, own, nil, s.nextGeneration(own)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(3 * s.interval)
		s.recordWritten(now, revision)
	}
	write(11)
	if next, err := s.nextTask(now, own); err != nil || next.heartbeat || !next.mayWrite {
		t.Errorf("after a slow heartbeat: %+v, %v, want that exports may be written", next, err)
	}
	if next, err := s.nextTask(now, own); err != nil || !next.heartbeat {
		t.Errorf("after the exports have had their turn: %+v, %v, want a heartbeat", next, err)
	}
}

// TestSession_AnswersNewProcess: a new process of another cluster gets a later record soon, by one
// heartbeat that comes early. Processes that restart all the time do not make more writes.
func TestSession_AnswersNewProcess(t *testing.T) {
	s := newSession(fast(cls1))
	now := time.Now()
	s.acquire(5)
	s.heartbeatAt = now.Add(s.interval)
	if s.answer(now, 3); s.untilHeartbeat(now) > 0 {
		t.Errorf("the answer comes after %v, want at once", s.untilHeartbeat(now))
	}
	now = now.Add(s.interval / 2)
	s.heartbeatAt = now.Add(s.interval)
	s.settled = true
	if s.answer(now, 3); s.untilHeartbeat(now) != s.interval {
		t.Errorf("another answer half an interval later comes after %v, want the next heartbeat", s.untilHeartbeat(now))
	}
	now = now.Add(s.interval / 2)
	if s.answer(now, 3); s.untilHeartbeat(now) > 0 {
		t.Errorf("the answer an interval later comes after %v, want at once", s.untilHeartbeat(now))
	}
}
