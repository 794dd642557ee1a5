package state

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// TestLeavingRecordIsLaterThanPages checks that the last record is later than pages that were written and not announced, also if the clock was set
// back since.
func TestLeavingRecordIsLaterThanPages(t *testing.T) {
	s := New(Config{Identity: cls1, StaleAfter: time.Minute, PollInterval: time.Second, WallClock: time.Now, Logger: logr.Discard()})
	ahead := time.Now().Add(time.Hour).UnixMilli()
	s.outbox.generation = ahead
	if record := s.Writes.LeavingRecord(); record.Generation <= ahead {
		t.Errorf("the last record has generation %d, the pages have %d", record.Generation, ahead)
	}
}
