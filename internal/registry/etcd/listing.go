package etcd

import (
	"context"
	"math"
	"sync"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// listing is a list of all keys, which is read beside the watch.
type listing struct {
	isBegun bool
	cancel  context.CancelFunc
	ended   chan struct{}

	mu sync.Mutex
	// pairs and revision are the result, nil and 0 before the end and once it was taken.
	pairs    []pair
	revision int64
	// err is the reason why the list takes long, nil if it does not fail.
	err error
}

// newListing returns a listing that has ended without a result.
func newListing() *listing {
	l := &listing{cancel: func() {}, ended: make(chan struct{})}
	close(l.ended)
	return l
}

// beginListing begins to list all keys.
func beginListing(ctx context.Context, s *store, retry engine.Backoff, wake engine.Signal) *listing {
	ctx, cancel := context.WithCancel(ctx)
	l := &listing{isBegun: true, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		l.run(ctx, s, retry)
		wake.Set()
	}()
	return l
}

// run lists all keys, again and again until that succeeds or ctx ends.
func (l *listing) run(ctx context.Context, s *store, retry engine.Backoff) {
	for failures := 1; ctx.Err() == nil; failures++ {
		pairs, revision, err := s.list(ctx)
		l.set(pairs, revision, err, failures)
		if err == nil {
			return
		}
		engine.Sleep(ctx, retry.Pause(failures))
	}
}

func (l *listing) set(pairs []pair, revision int64, err error, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pairs, l.revision, l.err = pairs, revision, err; failures == 1 {
		l.err = nil // it may be the only failure
	}
}

// end ends the list. Its result does not count any more.
func (l *listing) end() {
	l.cancel()
	<-l.ended
	l.take(math.MaxInt64)
}

// problem returns the reason why the list takes long, nil if it does not fail.
func (l *listing) problem() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// take returns the result once, if all changes up to its revision were watched.
func (l *listing) take(watched int64) (pairs []pair, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revision == 0 || l.revision > watched {
		return nil, false
	}
	pairs, l.pairs, l.revision = l.pairs, nil, 0
	return pairs, true
}
