package engine_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

func TestParallel(t *testing.T) {
	for _, n := range []int{0, 1, 1000} {
		calls := make([]atomic.Int64, n)
		var running, most atomic.Int64
		engine.Parallel(n, func(i int) {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			calls[i].Add(1)
			running.Add(-1)
		})
		for i := range calls {
			if got := calls[i].Load(); got != 1 {
				t.Errorf("%d of %d: %d calls, want 1", i, n, got)
			}
		}
		if limit := int64(runtime.GOMAXPROCS(0)); most.Load() > limit {
			t.Errorf("%d calls at once, want at most %d", most.Load(), limit)
		}
	}
}
