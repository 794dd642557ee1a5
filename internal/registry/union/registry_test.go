package union

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance: beside a further registry that is empty, the first one is what it is alone.
func TestConformance(t *testing.T) {
	conforms(t, func(identity mcs.Identity) registry.Registry { return memory.NewHub().Reader(identity) })
}

// TestConformanceWhenAFurtherRegistryIsDown: one that cannot be read holds up nothing but the removal of imports, which is the
// reader's business.
func TestConformanceWhenAFurtherRegistryIsDown(t *testing.T) {
	conforms(t, func(identity mcs.Identity) registry.Registry {
		hub := memory.NewHub()
		hub.SetError(errors.New("the other hub is down"))
		return hub.Reader(identity)
	})
}

func conforms(t *testing.T, further func(mcs.Identity) registry.Registry) {
	registrytest.Run(t, func(*testing.T) registrytest.Backend {
		hub := memory.NewHub()
		return registrytest.Backend{
			New: func(_ *testing.T, identity mcs.Identity) registry.Registry {
				cfg := Config{Identity: identity, Logger: logr.Discard(), Patience: 50 * time.Millisecond, look: 5 * time.Millisecond}
				return New(cfg, Source{"first", hub.Registry(identity)}, Source{"further", further(identity)})
			},
			Fail: func(*testing.T) func() {
				hub.SetError(errors.New("the hub is broken"))
				return func() { hub.SetError(nil) }
			},
			Writes: hub.Writes,
		}
	})
}

// fake is a registry that shows what it is told to.
type fake struct {
	registry.Registry // nil: nothing else is called

	mu      sync.Mutex
	synced  bool
	members []registry.Member
	views   map[mcs.Key]registry.View
	asked   map[mcs.Key]bool
	notify  func(mcs.Key)
	cause   error
	result  error
}

func (f *fake) Lookup(_ context.Context, key mcs.Key) (registry.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		f.asked[key] = true
		return registry.View{}, registry.ErrNotSynced
	}
	return f.views[key], nil
}

func (f *fake) Members(context.Context) ([]registry.Member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return nil, registry.ErrNotSynced
	}
	return slices.Clone(f.members), nil
}

func (f *fake) Run(ctx context.Context, notify func(mcs.Key)) error {
	f.mu.Lock()
	f.notify = notify
	f.mu.Unlock()
	f.tell(true)
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cause = context.Cause(ctx)
	return f.result
}

// show makes it a registry that has been read, without telling anybody who has not asked.
func (f *fake) show(members []registry.Member, views map[mcs.Key]registry.View) {
	f.mu.Lock()
	f.synced, f.members = true, members
	maps.Copy(f.views, views)
	f.mu.Unlock()
	f.tell(false)
}

// tell notifies who has asked, and of all that is there if it is to, once it has been read and runs.
func (f *fake) tell(all bool) {
	f.mu.Lock()
	notify, keys := f.notify, f.asked
	if notify == nil || !f.synced {
		f.mu.Unlock()
		return
	}
	f.asked = map[mcs.Key]bool{}
	for key := range f.views {
		keys[key] = keys[key] || all
	}
	f.mu.Unlock()
	for key, told := range keys {
		if told {
			notify(key)
		}
	}
}

func newFake() *fake {
	return &fake{views: map[mcs.Key]registry.View{}, asked: map[mcs.Key]bool{}}
}

// listener waits for notifications.
type listener struct {
	t    *testing.T
	reg  registry.Registry
	keys chan mcs.Key
}

func listen(t *testing.T, reg registry.Registry) *listener {
	l := &listener{t: t, reg: reg, keys: make(chan mcs.Key, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(key mcs.Key) { l.keys <- key }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l
}

// await looks at each notification of key until the condition holds.
func (l *listener) await(key mcs.Key, what string, met func(registry.View, error) bool) {
	l.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		view, err := l.reg.Lookup(l.t.Context(), key)
		if met(view, err) {
			return
		}
		for notified := (mcs.Key{}); notified != key; {
			select {
			case notified = <-l.keys:
			case <-timeout:
				l.t.Fatalf("not within 20s: %s; it is %+v, %v", what, view, err)
			}
		}
	}
}

var web = mcs.Key{Namespace: "demo", Name: "web"}

func small(patience time.Duration) Config {
	return Config{Identity: self, Logger: logr.Discard(), Handover: handover, Patience: patience, look: time.Millisecond}
}

func from(port int32) func(registry.View, error) bool {
	return func(v registry.View, err error) bool {
		return err == nil && len(v.Exports) == 1 && v.Exports[0].Ports[0].Port == port
	}
}

// TestStartWaitsForAll: an import that is made from one registry alone could be another than the one made from all.
func TestStartWaitsForAll(t *testing.T) {
	first, further := newFake(), newFake()
	reg := New(small(time.Hour), Source{"first", first}, Source{"further", further})
	l := listen(t, reg)
	if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Look before anything was read: %v, want ErrNotSynced", err)
	}
	first.show(nil, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
	if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Look before all was read: %v, want ErrNotSynced", err)
	}
	if _, err := reg.Members(t.Context()); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Members before all was read: %v, want ErrNotSynced", err)
	}
	further.show(nil, nil)
	l.await(web, "the export, once all is read", from(1))
}

// TestStartGoesOn: after a while, what could be read counts, and nothing more is known to be absent.
func TestStartGoesOn(t *testing.T) {
	for _, down := range []int{0, 1} {
		sources := []*fake{newFake(), newFake()}
		reg := New(small(20*time.Millisecond), Source{"first", sources[0]}, Source{"further", sources[1]})
		if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
			t.Errorf("Look before Run: %v, want ErrNotSynced", err)
		}
		l := listen(t, reg)
		sources[1-down].show([]registry.Member{member("cls2", 0, 1)}, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
		l.await(web, "the export and no more", func(v registry.View, err error) bool { return from(1)(v, err) && v.Incomplete })
		if _, err := reg.Members(t.Context()); err != nil {
			t.Errorf("Members: %v", err)
		}
		sources[down].show(nil, nil)
		l.await(web, "all is known", func(v registry.View, err error) bool { return from(1)(v, err) && !v.Incomplete })
	}
}

// TestHandoverEndsByItself: when another registry's word begins to count, no export changes anywhere.
func TestHandoverEndsByItself(t *testing.T) {
	first, further := newFake(), newFake()
	first.show([]registry.Member{member("cls2", 0, 5)}, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
	further.show([]registry.Member{member("cls2", 5, 5.5)}, nil)
	l := listen(t, New(small(time.Hour), Source{"first", first}, Source{"further", further}))
	l.await(web, "what the cluster left counts for now", from(1))
	further.show([]registry.Member{member("cls2", 5, 7.5)}, nil)
	l.await(web, "what the cluster left does not count", func(v registry.View, err error) bool { return err == nil && len(v.Exports) == 0 })
}

// TestOnlyTheFirstIsLeft: further registries learn nothing of the cause, nor are they run to leave later.
func TestOnlyTheFirstIsLeft(t *testing.T) {
	first, further := newFake(), newFake()
	reg := New(small(time.Hour), Source{"first", first}, Source{"further", further})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	within(t, func() bool { further.mu.Lock(); defer further.mu.Unlock(); return further.notify != nil })
	cancel(registry.ErrLeave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !errors.Is(first.cause, registry.ErrLeave) || errors.Is(further.cause, registry.ErrLeave) || further.cause == nil {
		t.Errorf("the first registry ended with %v, the further one with %v; want ErrLeave for the first alone", first.cause, further.cause)
	}
	idle := newFake()
	if err := New(small(time.Hour), Source{"first", first}, Source{"further", idle}).Run(ctx, func(mcs.Key) {}); err != nil {
		t.Error(err)
	}
	if idle.notify != nil {
		t.Error("a further registry was run to leave it")
	}
}

// TestFirstError: Run ends as the first registry's does, and with it the others.
func TestFirstError(t *testing.T) {
	first, further := newFake(), newFake()
	further.result = errors.New("a further registry's error is not ours")
	first.result = errors.New("what waiting cannot mend")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := New(small(time.Hour), Source{"first", first}, Source{"further", further}).Run(ctx, func(mcs.Key) {})
	if !errors.Is(err, first.result) {
		t.Errorf("Run returned %v, want %v", err, first.result)
	}
}

func within(t *testing.T, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 20s")
		}
	}
}
