package engine_test

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func TestSavedHeartbeat(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	// The previous process has saved a heartbeat, and a clock shows now.
	tests := map[string]struct {
		saved engine.SavedHeartbeat
		// next is the heartbeat after which the next process begins.
		next int64
		// heartbeat is that of the record which is about to be written, and save what is saved
		// before, 0 for nothing.
		heartbeat int64
		save      int64
	}{
		"nothing is saved":                         {0, 0, at(0), at(0)},
		"it is recent":                             {engine.SavedHeartbeat(at(-4 * time.Minute)), at(-4 * time.Minute), at(0), 0},
		"it is minutes old":                        {engine.SavedHeartbeat(at(-5 * time.Minute)), at(-5 * time.Minute), at(0), at(0)},
		"the clock of the previous one was ahead":  {engine.SavedHeartbeat(at(time.Hour)), at(66 * time.Minute), at(66 * time.Minute), at(67 * time.Minute)},
		"a heartbeat ahead of the clock is saved":  {engine.SavedHeartbeat(at(67 * time.Minute)), at(73 * time.Minute), at(66 * time.Minute), 0},
		"half of the time before it is used up":    {engine.SavedHeartbeat(at(67 * time.Minute)), at(73 * time.Minute), at(66*time.Minute + 30*time.Second), at(67*time.Minute + 30*time.Second)},
		"a heartbeat that is earlier than it":      {engine.SavedHeartbeat(at(time.Hour)), at(66 * time.Minute), at(0), 0},
		"the clock shows the time that it was at":  {engine.SavedHeartbeat(at(0)), at(6 * time.Minute), at(6 * time.Minute), at(7 * time.Minute)},
		"a heartbeat at a clock that is corrected": {engine.SavedHeartbeat(at(-time.Hour)), at(-time.Hour), at(0), at(0)},
	}
	for name, tt := range tests {
		if got := tt.saved.Next(now); got != tt.next {
			t.Errorf("%s: the next process begins after %v, want %v", name, time.UnixMilli(got), time.UnixMilli(tt.next))
		}
		got, due := tt.saved.Advance(tt.heartbeat, now)
		if want := tt.save != 0; due != want || due && int64(got) != tt.save || got < tt.saved {
			t.Errorf("%s: %v is saved: %t, want %v", name, time.UnixMilli(int64(got)), due, time.UnixMilli(tt.save))
		}
	}
}
