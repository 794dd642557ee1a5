package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Backoff computes the pauses between attempts that fail: they double from Initial up to Max.
type Backoff struct {
	Initial, Max time.Duration
	// Jitter is the random share of a pause, from 0 to 1, so that clusters that failed together do
	// not retry together: with 0.5 a pause takes between half and all of its length.
	Jitter float64
}

// maxDoublings keeps the shift from overflowing.
const maxDoublings = 20

// Pause returns the pause after a number of failures in a row.
func (b Backoff) Pause(failures int) time.Duration {
	pause := min(b.Max, b.Initial<<min(max(failures-1, 0), maxDoublings))
	random := time.Duration(b.Jitter * float64(pause))
	return pause - random + rand.N(random+1)
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// RetryUntilDone calls step until it is done without an error or ctx ends. Then it returns the last
// error of step and that of ctx. The pauses grow with the failures, starting with the second
// shortest; an attempt that is not done but did not fail does not lengthen them.
func RetryUntilDone(ctx context.Context, backoff Backoff, step func() (done bool, err error)) error {
	for failures := 1; ; {
		done, err := step()
		if done && err == nil {
			return nil
		}
		if err != nil {
			failures++
		}
		Sleep(ctx, backoff.Pause(failures))
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}
