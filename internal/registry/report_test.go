package registry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRecent(t *testing.T) {
	discover := RequestCount{Registry: "cloudmap", Operation: "DiscoverInstances", Result: "ok"}
	register := RequestCount{Registry: "cloudmap", Operation: "RegisterInstance", Result: "throttled"}
	var r recent
	start := time.Unix(1_700_000_000, 0) // at the start of a slot
	if got := r.within(start); got != nil {
		t.Errorf("before the first request: %v, want none", got)
	}
	for i := range 120 { // one a second for two minutes
		r.add(discover, start.Add(time.Duration(i)*time.Second))
	}
	r.add(register, start.Add(119*time.Second))
	counted := func(kind RequestCount, n int) RequestCount { kind.Count = n; return kind }
	if diff := cmp.Diff([]RequestCount{counted(discover, 60), counted(register, 1)}, r.within(start.Add(119*time.Second))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]RequestCount{counted(discover, 5), counted(register, 1)}, r.within(start.Add(174*time.Second))); diff != "" {
		t.Error(diff)
	}
	if got := r.within(start.Add(time.Hour)); got != nil {
		t.Errorf("an hour later: %v, want none", got)
	}
}
