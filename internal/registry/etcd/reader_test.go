package etcd

import (
	"testing"
	"time"
)

// TestHistoryCheck: a check that takes longer than the usual time between two answers is not repeated for each of the answers that came meanwhile.
func TestHistoryCheck(t *testing.T) {
	h := historyCheck{usual: 75 * time.Millisecond}
	now := time.Now()
	steps := []struct {
		what  string
		after time.Duration
		// took is the time that the check takes if one is due.
		took time.Duration
		due  bool
	}{
		{"the first answer of a watch", 0, 300 * time.Millisecond, true},
		{"an answer that has waited for the check", 0, 0, false},
		{"another one", time.Millisecond, 0, false},
		{"an answer after the usual time", 50 * time.Millisecond, 0, false},
		{"an answer after a longer time", 75 * time.Millisecond, 300 * time.Millisecond, true},
		{"an answer that has waited for that check", 0, 0, false},
	}
	for _, step := range steps {
		now = now.Add(step.after)
		if due := h.isDue(now); due != step.due {
			t.Errorf("%s: a check is due: %t, want %t", step.what, due, step.due)
		}
		if now = now.Add(step.took); step.took > 0 {
			h.passed(now)
		}
	}
}
