package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Parallel calls do for each number below n, on as many goroutines as Go uses CPUs, and returns
// when all calls have returned. It is for work that takes CPU, such as the verification of
// signatures.
func Parallel(n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	workers.Wait()
}
