package engine

import (
	"fmt"
	"testing"
	"time"
)

// TestAnswerDelay: a new process of one cluster makes the others write their records, at the rate
// that AWS is known to accept.
func TestAnswerDelay(t *testing.T) {
	const interval = 40 * time.Second
	for clusters, wantMost := range map[int]time.Duration{2: 0, 25: 0, 100: 3 * time.Second, 1000: 39 * time.Second, 3000: interval} {
		inSecond, most := map[time.Duration]int{}, time.Duration(0)
		for i := range clusters {
			delay := AnswerDelay(fmt.Sprint("cls-", i), clusters, interval)
			inSecond[delay.Truncate(time.Second)]++
			most = max(most, delay)
		}
		if most > wantMost || most < wantMost*9/10 {
			t.Errorf("%d clusters answer within %v, want %v", clusters, most, wantMost)
		}
		for second, answers := range inSecond {
			if limit := 2 * max(answersPerSecond, clusters/40); answers > limit {
				t.Errorf("%d of %d clusters answer in second %v, want at most %d", answers, clusters, second, limit)
			}
		}
	}
}
