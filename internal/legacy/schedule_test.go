package legacy

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/smithy-go"
)

func TestScheduleFinish(t *testing.T) {
	throttled := &smithy.GenericAPIError{Code: "ThrottlingException"}
	now := time.Unix(1_790_000_000, 0)
	tests := map[string]struct {
		every     time.Duration
		throttled bool
		err       error
		wait      time.Duration
		next      time.Duration // the next interval
	}{
		"the first":                 {0, false, nil, time.Minute, time.Minute},
		"success":                   {time.Minute, false, nil, time.Minute, time.Minute},
		"throttled, and successful": {time.Minute, true, nil, 2 * time.Minute, 2 * time.Minute},
		"throttled, and given up":   {4 * time.Minute, true, throttled, 8 * time.Minute, 8 * time.Minute},
		"the first is throttled":    {0, true, throttled, time.Minute, time.Minute},
		"the longest interval":      {45 * time.Minute, true, nil, time.Hour, time.Hour},
		"no longer throttled":       {8 * time.Minute, false, nil, 7 * time.Minute, 7 * time.Minute},
		"the shortest interval":     {65 * time.Second, false, nil, time.Minute, time.Minute},
		"a failure is retried soon": {8 * time.Minute, false, errors.New("broken"), 30 * time.Second, 8 * time.Minute},
		"the first fails":           {0, false, errors.New("broken"), 30 * time.Second, time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			earliest, latest := 1000*time.Hour, time.Duration(0)
			for range 1000 {
				l := schedule{interval: tc.every, wasThrottled: tc.throttled, isComplete: tc.every > 0}
				l.finish(now, time.Minute, tc.err)
				if l.interval != tc.next || l.wasThrottled {
					t.Fatalf("interval %v, throttled %v; want %v and false", l.interval, l.wasThrottled, tc.next)
				}
				wait := l.at.Sub(now)
				earliest, latest = min(earliest, wait), max(latest, wait)
			}
			if earliest < tc.wait/2 || earliest > tc.wait*3/4 || latest < tc.wait*5/4 || latest > tc.wait*3/2 {
				t.Errorf("next list after %v to %v, want %v to %v", earliest, latest, tc.wait/2, tc.wait*3/2)
			}
		})
	}
}
