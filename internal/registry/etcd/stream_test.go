package etcd

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Two watches of one client have a stream each, so that neither gets the answers about the progress
// of the other one, and each ends when its connection does.
func TestWatch_HasOwnStream(t *testing.T) {
	s := newTestStore(t, shared(t))
	st := s.registry(t, fast(cls1)).writer.store
	begun, errs := make(chan struct{}), make(chan error)
	for range 2 {
		go func() {
			errs <- st.watch(t.Context(), watch{
				revision: 1, interval: time.Second, silence: time.Minute,
				check: func(ctx context.Context) error { begun <- struct{}{}; <-ctx.Done(); return context.Cause(ctx) },
			})
		}()
		<-begun
	}
	if n := st.client.watches.Load(); n != 2 {
		t.Errorf("%d streams, want 2", n)
	}
	s.proxy.Cut()
	for range 2 {
		if err := <-errs; !errors.Is(err, errInterrupted) {
			t.Errorf("error %v, want one of an interrupted connection", err)
		}
	}
}
