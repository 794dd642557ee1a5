package registrytest

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// HeapPeak runs do and returns the number of bytes by which the heap in use grew at most, observed
// every 5 ms.
func HeapPeak(do func()) (peak uint64) {
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // what is garbage does not count
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	done := make(chan struct{})
	var observer sync.WaitGroup
	observer.Go(func() {
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			if now.HeapAlloc > before.HeapAlloc {
				peak = max(peak, now.HeapAlloc-before.HeapAlloc)
			}
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	do()
	close(done)
	observer.Wait()
	return peak
}
