package cloudmap

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// savedIDs stores ResourceIDs in memory.
type savedIDs struct{ ids ResourceIDs }

func (s *savedIDs) LoadResourceIDs(context.Context) (ResourceIDs, error) { return s.ids, nil }

func (s *savedIDs) SaveResourceIDs(_ context.Context, ids ResourceIDs) error {
	s.ids = ids
	return nil
}

// TestSaveIDs_RestartsKeepHeartbeatsAtTheClock has a process restart again and again within
// seconds, with a clock that is right: its heartbeats are never ahead of the clock.
func TestSaveIDs_RestartsKeepHeartbeatsAtTheClock(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	store := &savedIDs{}
	for i := range 10 {
		c := &control{store: store, log: logr.Discard(), wall: func() time.Time { return now }}
		c.saved = store.ids
		heartbeat := max(store.ids.Heartbeat.Next(now)+1, now.UnixMilli())
		if ahead := time.Duration(heartbeat-now.UnixMilli()) * time.Millisecond; ahead > time.Second {
			t.Fatalf("restart %d: the heartbeat is %v ahead of the clock", i, ahead)
		}
		c.saveIDs(t.Context(), controlPlace{}, heartbeat)
		now = now.Add(10 * time.Second)
	}
}

// TestSaveIDs_BeforeFirstRecord: a process whose clock is 40 minutes ahead is killed when Cloud Map
// has its first record, which another user deletes. The records of the next process, whose clock is
// right, must be later nevertheless: the other clusters have read that one.
func TestSaveIDs_BeforeFirstRecord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		earlier, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp, changed := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
		publish(t, earlier.Registry, exp)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, exp))
		earlier.kill()

		ahead := w.create("cls1", cls1, func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(40 * time.Minute) } })
		w.setWrote(func(r request) {
			// it is killed before anything else happens
			if r.cluster == "cls1" && r.names(format.AttrHeartbeat) {
				ahead.wire.cut.Store(true)
				w.ids.of("cls1").setError(errCut)
			}
		})
		ahead.run(nil)
		w.until(time.Minute, "the other cluster has read its record", func() bool {
			members, err := importer.Members(t.Context())
			return err == nil && slices.ContainsFunc(members, func(m registry.Member) bool { return m.ClusterID == "cls1" && time.Until(m.Heartbeat) > 30*time.Minute })
		})
		ahead.kill()
		w.ids.of("cls1").setError(nil)
		v.drop(format.MembersService, "cls1")

		next := w.begin(cls1, nil)
		publish(t, next.Registry, changed)
		w.until(time.Minute, "the next export is known", sees(t, importer.Registry, changed))
	})
}
