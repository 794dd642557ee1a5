package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestSession_ContinuesAfterEarlierRecords: whatever this cluster's processes have written and its
// clock shows, the next record is later than all before. Other clusters would take it for a replay
// otherwise.
func TestSession_ContinuesAfterEarlierRecords(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	ahead := now.Add(40 * time.Minute)
	shown := newMemberRecord(cls1, "v1").withHeartbeat(ahead)
	farewell := shown
	farewell.Farewell = true
	tests := map[string]struct {
		saved engine.SavedHeartbeat
		// running is set if this process has written records before it reads own.
		running bool
		own     ownKeys
	}{
		"the previous process has saved its heartbeat, and the record is gone": {saved: engine.SavedHeartbeat(ahead.UnixMilli())},
		"the record of the previous process":                                   {own: ownKeys{member: shown, latest: shown.latest()}},
		"the farewell of the previous process":                                 {own: ownKeys{member: farewell, latest: farewell.latest()}},
		"the record of a clone that has displaced this process":                {running: true, own: ownKeys{member: shown, latest: shown.latest()}},
		"a record of a clone that is gone":                                     {running: true, own: ownKeys{latest: shown.latest()}},
	}
	for name, tt := range tests {
		cfg := fast(cls1)
		cfg.Signer, cfg.SavedHeartbeat, cfg.wall = registrytest.Signer(t, cls1), tt.saved, func() time.Time { return now }
		write := map[string]func(*session, ownKeys) error{
			"record": func(s *session, own ownKeys) error {
				_, err := s.nextRecord(now, own, nil, s.nextGeneration(own))
				return err
			},
			"farewell": func(s *session, own ownKeys) error {
				_, err := s.farewell(own, own.member)
				return err
			},
		}
		for kind, write := range write {
			s := newSession(cfg)
			if tt.running {
				if _, err := s.nextRecord(now, ownKeys{}, nil, s.nextGeneration(ownKeys{})); err != nil {
					t.Fatal(err)
				}
			}
			if err := write(s, tt.own); err != nil {
				t.Fatal(err)
			}
			if !s.record.Heartbeat.After(ahead) || s.record.Generation <= ahead.UnixMilli() {
				t.Errorf("%s: the next %s is of %v with generation %d, want later than %v", name, kind, s.record.Heartbeat, s.record.Generation, ahead)
			}
			if next, due := s.unsaved(); !due || int64(next) < s.record.latest() {
				t.Errorf("%s: %d is saved: %t, want at least that of the %s, %d", name, next, due, kind, s.record.latest())
			}
		}
	}
}

// TestRegistry_SavesHeartbeatBeforeRecord: a process whose clock is 40 minutes ahead saves nothing
// after its first record, which another user deletes. The records of the next process, whose clock
// is right, must be later nevertheless: the other clusters have read that one.
func TestRegistry_SavesHeartbeatBeforeRecord(t *testing.T) {
	s := newTestStore(t, shared(t))
	importer := s.registry(t, fast(cls2))
	start(t, importer)
	cfg := fast(cls1)
	cfg.wall = func() time.Time { return time.Now().Add(40 * time.Minute) }
	s.heartbeats.load(&cfg)
	save, isSaved, member := cfg.SaveHeartbeat, false, s.layout("set1").member("cls1")
	cfg.SaveHeartbeat = func(ctx context.Context, heartbeat engine.SavedHeartbeat) error {
		if isSaved || len(s.keys(t, member)) > 0 {
			return errors.New("killed")
		}
		isSaved = true
		return save(ctx, heartbeat)
	}
	ahead := s.registry(t, cfg)
	stop := start(t, ahead)
	publish(t, ahead, 0, 1)
	awaitVersion(t, importer, "cls1", 0, 1)
	members, err := importer.Members(t.Context())
	if err != nil || len(members) == 0 || time.Until(members[0].Heartbeat) < 30*time.Minute {
		t.Fatalf("members %+v, %v; want one whose clock is ahead", members, err)
	}
	stop(nil)
	s.remove(t, member)

	next := s.registry(t, fast(cls1))
	start(t, next)
	publish(t, next, 0, 2)
	awaitVersion(t, importer, "cls1", 0, 2)
}

// hasBegun reports whether the next process will have a greater number.
func (s *session) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isBegun
}

// hasHeld reports whether this process has held the cluster ID, and no other cluster since.
func (s *session) hasHeld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim.held
}

// TestRegistry_LaterLeaderHasID: the process before, whose clock is ahead, lost its leader election
// before it could write, and still runs. It must not take the ID from the next leader, which wants
// later exports.
func TestRegistry_LaterLeaderHasID(t *testing.T) {
	s := newTestStore(t, shared(t))
	cfg := fast(cls1)
	cfg.wall = func() time.Time { return time.Now().Add(40 * time.Minute) }
	before := s.registry(t, cfg)
	s.proxy.Cut()
	start(t, before)
	publish(t, before, 0, 1)
	within(t, "the process before has begun", before.writer.session.hasBegun)
	next := s.registry(t, fast(cls1)) // its clock is right
	s.proxy.Restore()
	start(t, next)
	publish(t, next, 0, 2)
	awaitState(t, next, 0, registry.Exported)
	within(t, "the process before reads", func() bool { return before.mirror.revision() > 0 })
	awaitReason(t, before, 0, "another controller writes")
	awaitState(t, next, 0, registry.Exported)
}

// forgedFarewell returns a farewell of a cluster that another one has signed.
func forgedFarewell(t testing.TB, identity mcs.Identity, at time.Time) []byte {
	t.Helper()
	forged := newMemberRecord(identity, "forged").withHeartbeat(at)
	forged.Generation, forged.Farewell = forged.latest(), true
	value, err := signMember(registrytest.Signer(t, mcs.Identity{UID: "uid-of-the-forger"}), forged)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestLeave_ForgedFarewell: another user has written a farewell under this cluster's ID, with the
// cluster's UID. The cluster writes its own when it leaves: the others refuse the forged one.
func TestLeave_ForgedFarewell(t *testing.T) {
	s := newTestStore(t, shared(t))
	importer, leaving := s.registry(t, fast(cls2)), s.registry(t, fast(cls1))
	start(t, importer)
	stop := start(t, leaving)
	publish(t, leaving, 0, 1)
	awaitVersion(t, importer, "cls1", 0, 1)
	stop(nil)
	s.putKey(t, s.layout("set1").member("cls1"), string(forgedFarewell(t, cls1, time.Now().Add(time.Hour))))

	start(t, s.registry(t, fast(cls1)))(registry.ErrLeave)
	awaitVersion(t, importer, "cls1", 0, 0)
}
