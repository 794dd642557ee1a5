package cloudmap

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// savedIDs stores ResourceIDs in memory.
type savedIDs struct{ ids ResourceIDs }

func (s *savedIDs) LoadResourceIDs(context.Context) (ResourceIDs, error) { return s.ids, nil }

func (s *savedIDs) SaveResourceIDs(_ context.Context, ids ResourceIDs) error {
	s.ids = ids
	return nil
}

// TestSaveIDs_RestartsKeepHeartbeatsAtTheClock has a process restart again and again within seconds, with a clock that is right: its heartbeats are never
// ahead of the clock.
func TestSaveIDs_RestartsKeepHeartbeatsAtTheClock(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	store := &savedIDs{}
	for i := range 10 {
		c := &control{store: store, log: logr.Discard(), wall: func() time.Time { return now }}
		c.saved = store.ids
		heartbeat := max(store.ids.nextHeartbeat(now)+1, now.UnixMilli())
		if ahead := time.Duration(heartbeat-now.UnixMilli()) * time.Millisecond; ahead > time.Second {
			t.Fatalf("restart %d: the heartbeat is %v ahead of the clock", i, ahead)
		}
		c.saveIDs(t.Context(), controlPlace{}, heartbeat)
		now = now.Add(10 * time.Second)
	}
}
