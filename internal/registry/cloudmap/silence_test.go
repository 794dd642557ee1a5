package cloudmap

import (
	"testing"
	"time"
)

// TestSilence_OutlastsYoungHeartbeats: a cluster that leaves must not take a live clone for dead,
// which writes few heartbeats after it has claimed the ID.
func TestSilence_OutlastsYoungHeartbeats(t *testing.T) {
	for _, poll := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute} {
		cfg := defaultConfig(cls1)
		cfg.PollInterval, cfg.PollIntervalWithNotifications = poll, poll
		if young := cfg.state("").YoungHeartbeatInterval(); cfg.silence() < young+cfg.HeartbeatInterval/2 {
			t.Errorf("with polls every %v a cluster counts as dead after %v, want more than its %v between two heartbeats", poll, cfg.silence(), young)
		}
	}
}
