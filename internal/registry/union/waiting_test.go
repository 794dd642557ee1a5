package union

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestNotifyWaiting checks when keys with ErrNotSynced are notified, and that each is notified
// once.
func TestNotifyWaiting(t *testing.T) {
	unreachable := errors.New("unreachable")
	one, none := []snapshot{{synced: true}, {}}, []snapshot{{}, {}}
	for _, tt := range []struct {
		name      string
		snapshots []snapshot
		err       error
		remaining time.Duration // until the sync deadline
		notified  bool
		logged    int
	}{
		{"all registries are read", []snapshot{{synced: true}, {synced: true}}, nil, time.Hour, true, 0},
		{"one is missing before the deadline", one, unreachable, time.Hour, false, 0},
		{"one is missing after the deadline", one, unreachable, -time.Hour, true, 1},
		{"none is read after the deadline", none, unreachable, -time.Hour, false, 0},
		{"none is read, without an error", none, nil, -time.Hour, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			logged := 0
			key := mcs.Key{Namespace: "demo", Name: "web"}
			r := &Registry{waiting: map[mcs.Key]struct{}{key: {}}, syncDeadline: time.Now().Add(tt.remaining)}
			r.cfg.Logger = funcr.New(func(string, string) { logged++ }, funcr.Options{})
			var notified []mcs.Key
			for range 2 { // the second call finds nothing to notify
				r.notifyWaiting(tt.snapshots, tt.err, func(k mcs.Key) { notified = append(notified, k) })
			}
			if got := len(notified) == 1; got != tt.notified || len(notified) > 1 {
				t.Errorf("notified of %v, want a notification: %v", notified, tt.notified)
			}
			if logged != tt.logged {
				t.Errorf("%d log lines, want %d", logged, tt.logged)
			}
		})
	}
}
