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

// TestContract: with a second registry that is empty, the first one behaves as it does alone.
func TestContract(t *testing.T) {
	testContract(t, func(identity mcs.Identity) registry.Registry { return memory.NewHub().Reader(identity) })
}

// TestContractWithUnreachableSource: a second registry that cannot be read delays only the
// removal of imports, which is decided elsewhere.
func TestContractWithUnreachableSource(t *testing.T) {
	testContract(t, func(identity mcs.Identity) registry.Registry {
		hub := memory.NewHub()
		hub.SetError(errors.New("the other hub is down"))
		return hub.Reader(identity)
	})
}

func testContract(t *testing.T, other func(mcs.Identity) registry.Registry) {
	registrytest.Run(t, func(*testing.T) registrytest.Backend {
		hub := memory.NewHub()
		hub.SetStaleAfter(time.Second) // a farewell that is the first record counts after that
		return registrytest.Backend{
			StaleAfter: time.Second,
			New: func(_ *testing.T, identity mcs.Identity, _ registrytest.Options) registry.Registry {
				cfg := Config{Identity: identity, Logger: logr.Discard(), SyncTimeout: 50 * time.Millisecond, interval: 5 * time.Millisecond}
				return New(cfg, Source{"first", hub.Registry(identity)}, Source{"other", other(identity)})
			},
			Fail: func(*testing.T) func() {
				hub.SetError(errors.New("the hub is broken"))
				return func() { hub.SetError(nil) }
			},
			DeleteMember: func(_ *testing.T, clusterSetID, clusterID string) { hub.DeleteMember(clusterSetID, clusterID) },
			DeleteExport: func(_ *testing.T, clusterSetID, clusterID string, key mcs.Key) {
				hub.DeleteExport(clusterSetID, clusterID, key)
			},
			Wipe:   func(*testing.T) { hub.Wipe() },
			Writes: hub.Writes,
		}
	})
}

// fake is a registry with the content that a test sets.
type fake struct {
	registry.Registry // nil: nothing else is called

	mu      sync.Mutex
	synced  bool
	members []registry.Member
	views   map[mcs.Key]registry.View
	pending map[mcs.Key]bool // lookups that returned ErrNotSynced
	notify  func(mcs.Key)
	cause   error
	result  error
}

func (f *fake) Forget(string) {}

func (f *fake) Lookup(_ context.Context, key mcs.Key, _ ...string) (registry.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		f.pending[key] = true
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
	f.notifyPending(true)
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cause = context.Cause(ctx)
	return f.result
}

// set sets the content of a registry that has been read. It notifies only of pending lookups.
func (f *fake) set(members []registry.Member, views map[mcs.Key]registry.View) {
	f.mu.Lock()
	f.synced, f.members = true, members
	maps.Copy(f.views, views)
	f.mu.Unlock()
	f.notifyPending(false)
}

// notifyPending notifies of pending lookups, and of all keys if all is set, while the registry is
// synced and runs.
func (f *fake) notifyPending(all bool) {
	f.mu.Lock()
	notify, keys := f.notify, f.pending
	if notify == nil || !f.synced {
		f.mu.Unlock()
		return
	}
	f.pending = map[mcs.Key]bool{}
	for key := range f.views {
		keys[key] = keys[key] || all
	}
	f.mu.Unlock()
	for key, due := range keys {
		if due {
			notify(key)
		}
	}
}

func newFake() *fake {
	return &fake{views: map[mcs.Key]registry.View{}, pending: map[mcs.Key]bool{}}
}

// listener records notifications.
type listener struct {
	t    *testing.T
	reg  registry.Registry
	keys chan mcs.Key
}

func runListener(t *testing.T, reg registry.Registry) *listener {
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

// await repeats the lookup of key after each notification until the condition holds.
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

func testConfig(syncTimeout time.Duration) Config {
	return Config{Identity: self, Logger: logr.Discard(), Handover: handover, SyncTimeout: syncTimeout, interval: time.Millisecond}
}

func isExportedFrom(port int32) func(registry.View, error) bool {
	return func(v registry.View, err error) bool {
		return err == nil && len(v.Exports()) == 1 && v.Exports()[0].Ports[0].Port == port
	}
}

// TestLookupWaitsForAllRegistries: the result of one registry alone could differ from that of all.
func TestLookupWaitsForAllRegistries(t *testing.T) {
	first, other := newFake(), newFake()
	reg := New(testConfig(time.Hour), Source{"first", first}, Source{"other", other})
	l := runListener(t, reg)
	if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Lookup before anything was read: %v, want ErrNotSynced", err)
	}
	first.set(nil, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
	if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Lookup before all was read: %v, want ErrNotSynced", err)
	}
	if _, err := reg.Members(t.Context()); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Members before all was read: %v, want ErrNotSynced", err)
	}
	other.set(nil, nil)
	l.await(web, "the export, once all registries are read", isExportedFrom(1))
}

// TestLookupContinuesAfterSyncTimeout: then views come from the registries that were read, and are
// incomplete.
func TestLookupContinuesAfterSyncTimeout(t *testing.T) {
	for _, down := range []int{0, 1} {
		sources := []*fake{newFake(), newFake()}
		reg := New(testConfig(20*time.Millisecond), Source{"first", sources[0]}, Source{"other", sources[1]})
		if _, err := reg.Lookup(t.Context(), web); !errors.Is(err, registry.ErrNotSynced) {
			t.Errorf("Lookup before Run: %v, want ErrNotSynced", err)
		}
		l := runListener(t, reg)
		sources[1-down].set([]registry.Member{member("cls2", 0, 1)}, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
		l.await(web, "the export, and the view is incomplete", func(v registry.View, err error) bool { return isExportedFrom(1)(v, err) && v.Incomplete })
		if _, err := reg.Members(t.Context()); err != nil {
			t.Errorf("Members: %v", err)
		}
		sources[down].set(nil, nil)
		l.await(web, "the view is complete", func(v registry.View, err error) bool { return isExportedFrom(1)(v, err) && !v.Incomplete })
	}
}

// TestRunNotifiesWhenHandoverEnds: another registry becomes the source although no export changes.
func TestRunNotifiesWhenHandoverEnds(t *testing.T) {
	first, other := newFake(), newFake()
	first.set([]registry.Member{member("cls2", 0, 5)}, map[mcs.Key]registry.View{web: exports(export("cls2", 1))})
	other.set([]registry.Member{member("cls2", 5, 5.5)}, nil)
	l := runListener(t, New(testConfig(time.Hour), Source{"first", first}, Source{"other", other}))
	l.await(web, "the export of the previous registry during the handover", isExportedFrom(1))
	other.set([]registry.Member{member("cls2", 5, 7.5)}, nil)
	l.await(web, "no export after the handover", func(v registry.View, err error) bool { return err == nil && len(v.Exports()) == 0 })
}

// TestRunLeavesFirstRegistryOnly: the other registries do not see ErrLeave, and are not run to
// leave.
func TestRunLeavesFirstRegistryOnly(t *testing.T) {
	first, other := newFake(), newFake()
	reg := New(testConfig(time.Hour), Source{"first", first}, Source{"other", other})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}) }()
	within(t, func() bool { other.mu.Lock(); defer other.mu.Unlock(); return other.notify != nil })
	cancel(registry.ErrLeave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !errors.Is(first.cause, registry.ErrLeave) || errors.Is(other.cause, registry.ErrLeave) || other.cause == nil {
		t.Errorf("the first registry ended with %v, the other one with %v; want ErrLeave for the first one only", first.cause, other.cause)
	}
	idle := newFake()
	if err := New(testConfig(time.Hour), Source{"first", first}, Source{"other", idle}).Run(ctx, func(mcs.Key) {}); err != nil {
		t.Error(err)
	}
	if idle.notify != nil {
		t.Error("another registry was run to leave it")
	}
}

// TestRunReturnsFirstRegistrysError: Run ends when the first registry ends.
func TestRunReturnsFirstRegistrysError(t *testing.T) {
	first, other := newFake(), newFake()
	other.result = errors.New("error of another registry")
	first.result = errors.New("error of the first registry")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := New(testConfig(time.Hour), Source{"first", first}, Source{"other", other}).Run(ctx, func(mcs.Key) {})
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
