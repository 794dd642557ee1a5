package trust

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// memoryStore is a Store in memory.
type memoryStore struct {
	mu    sync.Mutex
	pins  map[string]Pin
	ended time.Time
	saves int
	err   error
}

func (m *memoryStore) LoadEnd(context.Context) (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended, m.err
}

func (m *memoryStore) SaveEnd(_ context.Context, ended time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saveEnd(ended)
}

// saveEnd is SaveEnd for those who hold mu.
func (m *memoryStore) saveEnd(ended time.Time) error {
	if m.saves++; m.err != nil {
		return m.err
	}
	m.ended = ended
	return nil
}

func (m *memoryStore) LoadPins(context.Context) (map[string]Pin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.pins), m.err
}

func (m *memoryStore) SavePins(_ context.Context, pins map[string]Pin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.save(pins)
}

// save is SavePins for those who hold mu.
func (m *memoryStore) save(pins map[string]Pin) error {
	m.saves++
	if m.err != nil {
		return m.err
	}
	if m.pins == nil {
		m.pins = map[string]Pin{}
	}
	for id, pin := range pins {
		if m.pins[id] = pin.clone(); pin.IsZero() {
			delete(m.pins, id)
		}
	}
	return nil
}

// processStore is a Store of one of several processes.
type processStore struct {
	*memoryStore
	version int
}

func (p *processStore) LoadPins(context.Context) (map[string]Pin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = p.saves
	return maps.Clone(p.pins), p.err
}

func (p *processStore) SavePins(_ context.Context, pins map[string]Pin) error {
	return p.write(func() error { return p.save(pins) })
}

func (p *processStore) SaveEnd(_ context.Context, ended time.Time) error {
	return p.write(func() error { return p.saveEnd(ended) })
}

// write runs save, unless another process has saved.
func (p *processStore) write(save func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.version != p.saves {
		return ErrChanged
	}
	err := save()
	p.version = p.saves
	return err
}

const staleAfter = 2 * time.Minute

func load(t *testing.T, cfg Config) *Keyring {
	t.Helper()
	cfg.ClusterSetID, cfg.StaleAfter, cfg.Logger = "set1", staleAfter, logr.Discard()
	k, err := Load(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func acceptedRecord(key Key, heartbeat int64, farewell bool) Record {
	return Record{Registry: "a", ClusterID: "cls2", Key: key, At: Time{Heartbeat: heartbeat}, Farewell: farewell}
}

// replace has a cluster replace a key by another one, with which it has written records at 10 and
// 20.
func replace(key, other Key, farewell bool) func(*Keyring) {
	return func(k *Keyring) {
		k.Observe(acceptedRecord(key, 1, false))
		k.Observe(acceptedRecord(other, 10, false))
		k.Observe(acceptedRecord(other, 20, farewell))
	}
}

func TestCheck(t *testing.T) {
	key, other := signer(t, 1).Key(), signer(t, 2).Key()
	next, err := NewSigner(bytes.Repeat([]byte{2}, ed25519.SeedSize), bytes.Repeat([]byte{1}, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		cfg       Config
		before    func(*Keyring)
		after     time.Duration
		presented Presented
		want      Verdict
		wantErr   string
	}{
		"never seen":                     {presented: Presented{Key: key}, want: Unknown},
		"pinned":                         {before: pin(key), presented: Presented{Key: key}, want: Accepted},
		"another key than pinned":        {before: pin(key), presented: Presented{Key: other}, want: Refused, wantErr: "until now"},
		"another key, no heartbeats yet": {before: pin(key), after: staleAfter - 1, presented: Presented{Key: other, Proven: true}, want: Refused, wantErr: "silent for"},
		"another key, pinned key live":   {before: pin(key), after: staleAfter, presented: Presented{Key: other}, want: Refused, wantErr: "built anew"},
		"another key, pinned key stale":  {before: pin(key), after: staleAfter, presented: Presented{Key: other, Proven: true}, want: Unknown},
		"another key, in a registry that never had the pinned one": {
			before: pin(key), after: staleAfter, presented: Presented{Registry: "b", Key: other, Proven: true}, want: Refused, wantErr: "this registry has shown no record with the previous key: if the key is that of the cluster, run kubectl mcs trust cls2"},
		"another key, when another one was trusted before it was seen": {
			before: func(k *Keyring) { trustKey(k, key) }, after: staleAfter, presented: Presented{Key: other, Proven: true}, want: Refused, wantErr: "run kubectl mcs trust cls2"},
		"another key, pinned key stale, and the registry proves nothing": {
			before: pin(key), after: time.Hour, presented: Presented{Key: other, Unproven: "its catalog has no tag"}, want: Refused, wantErr: "has no tag: if the key is that of the cluster, run kubectl mcs trust cls2"},
		"another key, which was in a catalog that was not sealed": {
			before: func(k *Keyring) { pin(key)(k); k.ObserveUnsealed("a", "cls2") }, after: staleAfter, presented: Presented{Key: other, Proven: true}, want: Refused, wantErr: "kubectl mcs trust cls2"},
		"another key, in a registry that is not the one whose catalog was not sealed": {
			before: func(k *Keyring) { pin(key)(k); k.ObserveUnsealed("b", "cls2") }, after: staleAfter, presented: Presented{Key: other, Proven: true}, want: Unknown},
		"trusted": {
			before: func(k *Keyring) { pin(key)(k); trustKey(k, other) }, presented: Presented{Key: other}, want: Accepted},
		"trusted, after another one was in a catalog that was not sealed": {
			before: func(k *Keyring) { pin(key)(k); k.ObserveUnsealed("a", "cls2"); trustKey(k, other) }, after: staleAfter, presented: Presented{Key: other}, want: Accepted},
		"trusted another key": {
			before: func(k *Keyring) { pin(key)(k); trustKey(k, other) }, presented: Presented{Key: key}, want: Refused, wantErr: "until now"},
		"trusted the pinned key, after its farewell": {
			before: func(k *Keyring) { k.Observe(acceptedRecord(key, 1, true)); trustKey(k, key) }, presented: Presented{Key: other}, want: Refused, wantErr: "until now"},
		"trusted the pinned key, after it was forgotten": {
			before: func(k *Keyring) { pin(key)(k); k.Forget("cls2"); trustKey(k, key) }, presented: Presented{Key: other}, want: Refused, wantErr: "until now"},
		"trusted the pinned key, after another one was in a catalog that was not sealed": {
			before: func(k *Keyring) { pin(key)(k); k.ObserveUnsealed("a", "cls2"); trustKey(k, key) }, after: staleAfter, presented: Presented{Key: other, Proven: true}, want: Refused, wantErr: "until now"},
		"trusted the pinned key, when it had been silent": {
			before: func(k *Keyring) { pin(key)(k); time.Sleep(staleAfter); trustKey(k, key) }, presented: Presented{Key: other, Proven: true}, want: Refused, wantErr: "until now"},
		"trusted before it was seen": {before: func(k *Keyring) { trustKey(k, key) }, presented: Presented{Key: other}, want: Refused, wantErr: "until now"},
		"signed by the pinned key":   {before: pin(key), presented: Presented{Key: next.Key(), Succession: next.Succession("set1", "cls2")}, want: Accepted},
		"signed for another cluster": {before: pin(key), presented: Presented{Key: next.Key(), Succession: next.Succession("set1", "cls3")}, want: Refused, wantErr: "until now"},
		"a previous key, as a restored registry shows it": {
			before: replace(key, other, false), after: staleAfter, presented: Presented{Key: key, At: Time{Heartbeat: 9}, Proven: true}, want: Refused, wantErr: "restored"},
		"a previous key, after the farewell of the other one": {
			before: replace(key, other, true), presented: Presented{Key: key, At: Time{Heartbeat: 9}}, want: Refused, wantErr: "restored"},
		"a previous key, of an owner that returns": {
			before: replace(key, other, false), after: staleAfter, presented: Presented{Key: key, At: Time{Heartbeat: 11}, Proven: true}, want: Unknown},
		"a previous key, trusted": {
			before: func(k *Keyring) { replace(key, other, false)(k); trustKey(k, key) }, presented: Presented{Key: key, At: Time{Heartbeat: 9}}, want: Accepted},
		"a previous key, forgotten": {
			before: func(k *Keyring) { replace(key, other, false)(k); k.Forget("cls2") }, presented: Presented{Key: key, At: Time{Heartbeat: 9}}, want: Unknown},
		"after the farewell": {
			before: func(k *Keyring) { k.Observe(acceptedRecord(key, 1, true)) }, presented: Presented{Key: other}, want: Unknown},
		"forgotten, another key": {
			before: func(k *Keyring) { pin(key)(k); k.Forget("cls2") }, presented: Presented{Key: other}, want: Unknown},
		"forgotten, same key": {
			before: func(k *Keyring) { pin(key)(k); k.Forget("cls2") }, presented: Presented{Key: key}, want: Accepted},
		"listed":                      {cfg: Config{Listed: map[string]Key{"cls2": key}}, presented: Presented{Key: key}, want: Accepted},
		"another key than listed":     {cfg: Config{Listed: map[string]Key{"cls2": key}}, presented: Presented{Key: other}, want: Refused, wantErr: "--trusted-keys lists"},
		"others listed":               {cfg: Config{Listed: map[string]Key{"cls3": key}}, presented: Presented{Key: key}, want: Unknown},
		"not listed, and only listed": {cfg: Config{ListedOnly: true}, presented: Presented{Key: key}, want: Refused, wantErr: "does not list"},
		"this cluster's, another key is pinned": {
			before: func(k *Keyring) { pin(key)(k); k.AddOwn("cls2", other) }, presented: Presented{Key: other}, want: Accepted},
		"this cluster has signed the record of another one": {
			before: func(k *Keyring) { pin(key)(k); k.AddOwn("cls1", other) }, presented: Presented{Key: other}, want: Refused, wantErr: "until now"},
		"this cluster's, and only listed": {
			cfg: Config{ListedOnly: true}, before: func(k *Keyring) { k.AddOwn("cls2", key) }, presented: Presented{Key: key}, want: Accepted},
		"this cluster's, another key is listed": {
			cfg: Config{Listed: map[string]Key{"cls2": other}}, before: func(k *Keyring) { k.AddOwn("cls2", key) }, presented: Presented{Key: key}, want: Refused, wantErr: "lists"},
		"listed overrides what is pinned": {
			cfg: Config{Listed: map[string]Key{"cls2": other}}, before: pin(key), presented: Presented{Key: key}, want: Refused, wantErr: "lists"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := load(t, tc.cfg)
				if tc.before != nil {
					tc.before(k)
				}
				time.Sleep(tc.after)
				tc.presented.ClusterID, tc.presented.Registry = "cls2", cmp.Or(tc.presented.Registry, "a")
				got, err := k.Check(tc.presented)
				if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("verdict %v, %v; want %v and an error with %q", got, err, tc.want, tc.wantErr)
				}
			})
		})
	}
}

// trustKey makes key that of the cluster.
func trustKey(k *Keyring, key Key) {
	if err := k.Trust("cls2", key); err != nil {
		panic(err)
	}
}

// TestTrust_KeepsListedKeys: the list of keys decides, and says where to change it.
func TestTrust_KeepsListedKeys(t *testing.T) {
	key, other := signer(t, 1).Key(), signer(t, 2).Key()
	k := load(t, Config{Listed: map[string]Key{"cls2": key}})
	if err := k.Trust("cls2", other); err == nil || !strings.Contains(err.Error(), "--trusted-keys lists key "+key.String()) {
		t.Errorf("error %v, want that the key is listed", err)
	}
	if err := k.Trust("cls2", key); err != nil {
		t.Errorf("the listed key: %v", err)
	}
	only := load(t, Config{Listed: map[string]Key{"cls3": key}, ListedOnly: true})
	if err := only.Trust("cls2", key); err == nil || !strings.Contains(err.Error(), "--trusted-keys does not list cluster cls2") {
		t.Errorf("error %v, want that the cluster is not listed", err)
	}
	if _, isPinned := only.Pin("cls2"); isPinned {
		t.Error("the key of a cluster that is not listed is pinned")
	}
}

// TestChanged: each change of a key is reported with its reason, and nothing else is.
func TestChanged(t *testing.T) {
	key, other := signer(t, 1).Key(), signer(t, 2).Key()
	next, err := NewSigner(bytes.Repeat([]byte{2}, ed25519.SeedSize), bytes.Repeat([]byte{1}, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		before func(*Keyring)
		want   []Reason
	}{
		"first key":           {before: func(*Keyring) {}},
		"the registry proves": {before: pin(key), want: []Reason{ByRegistry}},
		"succession": {before: func(k *Keyring) {
			pin(key)(k)
			_, _ = k.Check(Presented{Registry: "a", ClusterID: "cls2", Key: other, Succession: next.Succession("set1", "cls2")})
		}, want: []Reason{Succession}},
		"farewell":           {before: func(k *Keyring) { k.Observe(acceptedRecord(key, 1, true)) }, want: []Reason{AfterFarewell}},
		"forgotten":          {before: func(k *Keyring) { pin(key)(k); k.Forget("cls2") }, want: []Reason{AfterForget}},
		"forgotten, unknown": {before: func(k *Keyring) { k.Forget("cls2") }},
		"trusted":            {before: func(k *Keyring) { pin(key)(k); trustKey(k, other) }, want: []Reason{ByAdministrator}},
		"trusted, unknown":   {before: func(k *Keyring) { trustKey(k, other) }},
		"the same key":       {before: pin(other)},
		"the previous owner of this cluster's ID": {before: func(k *Keyring) { k.AddOwn("cls2", signer(t, 3).Key()); pin(key)(k) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []Reason
			k := load(t, Config{Changed: func(c Change) {
				if got = append(got, c.Reason); c.ClusterID != "cls2" || c.Previous != key || c.Key != other || (c.Registry == "a") != (c.Reason != ByAdministrator) {
					t.Errorf("change %+v", c)
				}
			}})
			tc.before(k)
			k.Observe(acceptedRecord(other, 2, false))
			k.Observe(acceptedRecord(other, 3, false))
			if !slices.Equal(got, tc.want) {
				t.Errorf("changes %q, want %q", got, tc.want)
			}
		})
	}
}

// TestTrust_KeepsWhatWasImported: a trusted key ends nothing by itself.
func TestTrust_KeepsWhatWasImported(t *testing.T) {
	key, other := signer(t, 1).Key(), signer(t, 2).Key()
	k := load(t, Config{})
	pin(key)(k)
	trustKey(k, other)
	if k.HasEnded("cls2") || !k.IsSigned("cls2") || k.Of("a", "cls2").Key != other {
		t.Errorf("ended %t, signed %t, key %s; want a signed cluster with the trusted key",
			k.HasEnded("cls2"), k.IsSigned("cls2"), k.Of("a", "cls2").Key)
	}
}

// TestTrust_PinnedKeyReturns: a cluster whose key is trusted again has neither left nor is it
// forgotten, and its earlier records do not count again.
func TestTrust_PinnedKeyReturns(t *testing.T) {
	key := signer(t, 1).Key()
	for name, end := range map[string]func(*Keyring){
		"left":      func(k *Keyring) { k.Observe(acceptedRecord(key, 5, true)) },
		"forgotten": func(k *Keyring) { k.Observe(acceptedRecord(key, 5, false)); k.Forget("cls2") },
	} {
		t.Run(name, func(t *testing.T) {
			k := load(t, Config{})
			end(k)
			trustKey(k, key)
			if k.HasEnded("cls2") || !k.IsSigned("cls2") {
				t.Error("it has ended, want that it is signed again")
			}
			if got := k.Of("a", "cls2").Last.Heartbeat; got != 5 {
				t.Errorf("its latest heartbeat is %d, want 5", got)
			}
		})
	}
}

// pin observes a record with key.
func pin(key Key) func(*Keyring) {
	return func(k *Keyring) { k.Observe(acceptedRecord(key, 1, false)) }
}

func TestObserve_KeepsTimesByRegistry(t *testing.T) {
	k, key := load(t, Config{}), signer(t, 1).Key()
	first, second := acceptedRecord(key, 10, false), acceptedRecord(key, 5, false)
	second.Registry = "b"
	k.Observe(first)
	k.Observe(second)
	k.Observe(acceptedRecord(key, 9, false))
	if a, b := k.Of("a", "cls2").Last, k.Of("b", "cls2").Last; a.Heartbeat != 10 || b.Heartbeat != 5 {
		t.Errorf("last %v and %v, want heartbeats 10 and 5", a, b)
	}
}

func TestHasEnded(t *testing.T) {
	key := signer(t, 1).Key()
	left, again, moved := acceptedRecord(key, 2, true), acceptedRecord(key, 3, false), acceptedRecord(key, 4, false)
	moved.Registry = "b"
	tests := map[string]struct {
		steps              func(*Keyring)
		hasEnded, isSigned bool
	}{
		"never seen":                        {func(*Keyring) {}, false, false},
		"live":                              {func(k *Keyring) { k.Observe(again) }, false, true},
		"left":                              {func(k *Keyring) { k.Observe(left) }, true, false},
		"left, and an older record":         {func(k *Keyring) { k.Observe(left); k.Observe(acceptedRecord(key, 1, false)) }, true, false},
		"left and back":                     {func(k *Keyring) { k.Observe(left); k.Observe(again) }, false, true},
		"left after it moved":               {func(k *Keyring) { k.Observe(moved); k.Observe(left) }, false, true},
		"left before it moved":              {func(k *Keyring) { k.Observe(left); k.Observe(moved) }, false, true},
		"forgotten":                         {func(k *Keyring) { k.Observe(again); k.Forget("cls2") }, true, false},
		"forgotten, never seen":             {func(k *Keyring) { k.Forget("cls2") }, true, false},
		"forgotten, and the same record":    {func(k *Keyring) { k.Observe(again); k.Forget("cls2"); k.Observe(again) }, true, false},
		"forgotten and back":                {func(k *Keyring) { k.Observe(left); k.Forget("cls2"); k.Observe(again) }, false, true},
		"forgotten and back in another one": {func(k *Keyring) { k.Observe(again); k.Forget("cls2"); k.Observe(moved) }, false, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			k := load(t, Config{})
			tc.steps(k)
			if ended, signed := k.HasEnded("cls2"), k.IsSigned("cls2"); ended != tc.hasEnded || signed != tc.isSigned {
				t.Errorf("has ended: %t, is signed: %t; want %t, %t", ended, signed, tc.hasEnded, tc.isSigned)
			}
		})
	}
}

// running runs a Keyring until stop is called, which waits for its end.
func running(t *testing.T, k *Keyring) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.Run(ctx, func() error { <-ctx.Done(); return nil }); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

func TestRun_SavesPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		k, key := load(t, Config{Store: store}), signer(t, 1).Key()
		stop := running(t, k)
		saved := func() Pin { store.mu.Lock(); defer store.mu.Unlock(); return store.pins["cls2"] }
		k.Observe(acceptedRecord(key, 1, false))
		time.Sleep(1500 * time.Millisecond)
		if saved().Key != key {
			t.Error("a new key is not saved within a second and a half")
		}
		k.Observe(acceptedRecord(key, 2, false))
		time.Sleep(time.Minute)
		if saved().Last["a"].Heartbeat != 1 {
			t.Error("a heartbeat is saved at once")
		}
		time.Sleep(saveInterval)
		if saved().Last["a"].Heartbeat != 2 {
			t.Error("a heartbeat is not saved after the save interval")
		}
		store.mu.Lock()
		store.err = errors.New("the API server is down")
		store.mu.Unlock()
		k.Forget("cls2")
		time.Sleep(time.Minute)
		store.mu.Lock()
		store.err = nil
		store.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		if !saved().Forgotten {
			t.Error("a pin is not saved after the store works again")
		}
		k.Observe(acceptedRecord(key, 3, false))
		stop()
		if again := load(t, Config{Store: store}); again.Of("a", "cls2").Last.Heartbeat != 3 || again.HasEnded("cls2") {
			t.Errorf("after a restart: %+v", again.pins["cls2"].Pin)
		}
	})
}

// TestRun_KeepsLaterPins: a leader that was frozen, and goes on for a moment after the next one has
// saved pins, does not replace them by its earlier ones.
func TestRun_KeepsLaterPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, key := &memoryStore{}, signer(t, 1).Key()
		frozen := load(t, Config{Store: &processStore{memoryStore: store}})
		frozen.Observe(acceptedRecord(key, 1, false))
		stopFrozen := running(t, frozen)
		time.Sleep(2 * time.Second)
		frozen.Observe(acceptedRecord(key, 2, false)) // not saved yet
		other := acceptedRecord(key, 2, false)
		other.ClusterID = "cls3"
		next := load(t, Config{Store: &processStore{memoryStore: store}})
		stopNext := running(t, next)
		next.Observe(acceptedRecord(key, 3, true))
		next.Observe(other)
		time.Sleep(1500 * time.Millisecond)
		other.At.Heartbeat = 5
		other.Registry = "b"
		frozen.Observe(other)
		stopFrozen()
		stopNext()
		again := load(t, Config{Store: store})
		if !again.HasEnded("cls2") || again.Of("a", "cls2").Last.Heartbeat != 3 {
			t.Errorf("cls2 is %+v, want its farewell with heartbeat 3", again.pins["cls2"].Pin)
		}
		if got := again.pins["cls3"].Pin; got.Last["a"].Heartbeat != 2 || got.Last["b"].Heartbeat != 5 {
			t.Errorf("cls3 is %+v, want the heartbeats of both processes", got)
		}
	})
}

// TestRun_SavesEnd: the pins are complete after a process that has ended, and not after one that
// was killed, or beside which another one has run.
func TestRun_SavesEnd(t *testing.T) {
	key := signer(t, 1).Key()
	for name, tt := range map[string]struct {
		before func(t *testing.T, store *memoryStore)
		want   bool
	}{
		"nothing is stored": {before: func(*testing.T, *memoryStore) {}},
		"a process has ended": {before: func(t *testing.T, store *memoryStore) {
			running(t, load(t, Config{Store: &processStore{memoryStore: store}}))()
		}, want: true},
		"and long ago": {before: func(t *testing.T, store *memoryStore) {
			running(t, load(t, Config{Store: &processStore{memoryStore: store}}))()
			time.Sleep(endLifetime)
		}},
		"and the next one was killed": {before: func(t *testing.T, store *memoryStore) {
			running(t, load(t, Config{Store: &processStore{memoryStore: store}}))()
			killed := load(t, Config{Store: &processStore{memoryStore: store}})
			if err := killed.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		"after a killed one, one has ended before it has read a second record": {before: func(t *testing.T, store *memoryStore) {
			afterKill(t, store, key, 0, -1)
		}},
		"after a killed one, one has ended that has read two records": {before: func(t *testing.T, store *memoryStore) {
			afterKill(t, store, key, 0, -1, 0)
		}, want: true},
		"after a killed one, one has ended that has read none for long": {before: func(t *testing.T, store *memoryStore) {
			afterKill(t, store, key, time.Hour)
		}, want: true},
		"one has ended after the next one had begun": {before: func(t *testing.T, store *memoryStore) {
			stop := running(t, load(t, Config{Store: &processStore{memoryStore: store}}))
			synctest.Wait()
			next := load(t, Config{Store: &processStore{memoryStore: store}})
			if err := next.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			stop()
		}},
		"the store fails at the end": {before: func(t *testing.T, store *memoryStore) {
			stop := running(t, load(t, Config{Store: &processStore{memoryStore: store}}))
			synctest.Wait()
			store.mu.Lock()
			store.err = errors.New("the API server is down")
			store.mu.Unlock()
			stop()
			store.err = nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &memoryStore{}
				tt.before(t, store)
				k := load(t, Config{Store: &processStore{memoryStore: store}})
				stop := running(t, k)
				k.Observe(acceptedRecord(key, 1, false))
				synctest.Wait()
				if got := k.IsComplete(); got != tt.want {
					t.Errorf("complete: %t, want %t", got, tt.want)
				}
				stop()
				if again := load(t, Config{Store: store}); again.Of("a", "cls2").Last.Heartbeat != 1 {
					t.Error("the pins lack what was read last")
				}
			})
		})
	}
}

// afterKill runs a process after one that was killed, and had read a record of cls2. It reads these
// heartbeats of cls2, and runs for a while.
func afterKill(t *testing.T, store *memoryStore, key Key, runs time.Duration, heartbeats ...int64) {
	t.Helper()
	store.pins = map[string]Pin{"cls2": {Key: key, Last: map[string]Time{"a": {Heartbeat: -2}}}}
	k := load(t, Config{Store: &processStore{memoryStore: store}})
	stop := running(t, k)
	synctest.Wait()
	for _, at := range heartbeats {
		k.Observe(acceptedRecord(key, at, false))
	}
	time.Sleep(runs)
	stop()
}

// TestRun_TwoIdentities: a cluster that is renamed reads under both IDs for a while. The pins are
// complete when it reads under none.
func TestRun_TwoIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		running(t, load(t, Config{Store: &processStore{memoryStore: store}}))()
		k := load(t, Config{Store: &processStore{memoryStore: store}})
		stopFirst := running(t, k)
		synctest.Wait()
		stopSecond := running(t, k)
		synctest.Wait()
		stopFirst()
		if !store.ended.IsZero() {
			t.Error("the end of the process is saved while it reads")
		}
		if !k.IsComplete() {
			t.Error("the pins are not complete, although the previous process had ended")
		}
		stopSecond()
		if store.ended.IsZero() {
			t.Error("the end of the process is not saved")
		}
	})
}

// TestRun_Lacking: a process has read exports that no record names, which the pins do not have.
// Neither the next process is certain of them, nor one that starts after it has read nothing.
func TestRun_Lacking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, key := &memoryStore{}, signer(t, 1).Key()
		for i, want := range []bool{false, false, true} {
			k := load(t, Config{Store: &processStore{memoryStore: store}})
			stop := running(t, k)
			synctest.Wait()
			switch i {
			case 0:
				k.Observe(acceptedRecord(key, 1, false))
				k.SetLacking()
			case 2:
				k.Observe(acceptedRecord(key, 2, false))
				k.Observe(acceptedRecord(key, 3, false))
			}
			stop()
			if isSaved := !store.ended.IsZero(); isSaved != want {
				t.Errorf("after process %d it is saved that the pins have all: %t", i+1, isSaved)
			}
		}
	})
}

// TestRun_WaitsForStore: no record is read before it is saved that a process reads.
func TestRun_WaitsForStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		k := load(t, Config{Store: store})
		store.err = errors.New("the API server is down")
		reads := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx, func() error { close(reads); <-ctx.Done(); return nil }) }()
		time.Sleep(time.Minute)
		select {
		case <-reads:
			t.Error("records are read although it could not be saved that they are")
		default:
		}
		store.mu.Lock()
		store.err = nil
		store.mu.Unlock()
		<-reads
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestRun_SavesDeletedPins: pins that another user has deleted are saved again, those that have not
// changed too.
func TestRun_SavesDeletedPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, key := &memoryStore{}, signer(t, 1).Key()
		k := load(t, Config{Store: &processStore{memoryStore: store}})
		stop := running(t, k)
		k.Observe(acceptedRecord(key, 1, false))
		time.Sleep(2 * time.Second)
		store.mu.Lock()
		store.pins, store.saves = nil, store.saves+1
		store.mu.Unlock()
		other := acceptedRecord(key, 1, false)
		other.ClusterID = "cls3"
		k.Observe(other)
		time.Sleep(1500 * time.Millisecond)
		if again := load(t, Config{Store: store}); !again.IsSigned("cls2") || !again.IsSigned("cls3") {
			t.Errorf("after a restart there are the pins %v, want those of cls2 and cls3", again.pins)
		}
		stop()
	})
}

func TestPin_Merged(t *testing.T) {
	key, other := signer(t, 1).Key(), signer(t, 2).Key()
	at := func(heartbeat int64) map[string]Time { return map[string]Time{"a": {Heartbeat: heartbeat}} }
	own := Pin{Key: key, Last: at(2)}
	for name, tt := range map[string]struct{ own, stored, want Pin }{
		"none is stored":                  {own, Pin{}, own},
		"stored is earlier":               {own, Pin{Key: key, UID: "stored", Last: at(1), Left: true}, own},
		"stored is later":                 {own, Pin{Key: key, UID: "stored", Last: at(3), Left: true}, Pin{Key: key, UID: "stored", Last: at(3), Left: true}},
		"the same, and forgotten here":    {Pin{Key: key, Last: at(2), Forgotten: true}, own, Pin{Key: key, Last: at(2), Forgotten: true}},
		"stored has another key":          {own, Pin{Key: other, UID: "stored", Last: at(3)}, own},
		"stored has another registry":     {own, Pin{Key: key, Last: map[string]Time{"b": {Heartbeat: 1}}}, Pin{Key: key, Last: map[string]Time{"a": {Heartbeat: 2}, "b": {Heartbeat: 1}}}},
		"own has another registry":        {own, Pin{Key: key, Last: map[string]Time{"b": {Heartbeat: 3}}}, Pin{Key: key, Last: map[string]Time{"a": {Heartbeat: 2}, "b": {Heartbeat: 3}}}},
		"own has no records, stored some": {Pin{Key: key}, own, own},
		"stored has no records":           {own, Pin{Key: key}, own},
		"neither was sealed":              {Pin{Key: key, Last: at(2), Unsealed: []string{"b"}}, Pin{Key: key, Last: at(3), Unsealed: []string{"a"}}, Pin{Key: key, Last: at(3), Unsealed: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.own.merged(tt.stored); !got.equal(tt.want, withTimes) || got.UID != tt.want.UID {
				t.Errorf("%+v and stored %+v are %+v, want %+v", tt.own, tt.stored, got, tt.want)
			}
		})
	}
}

func TestRun_SavesChangesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		k, key := load(t, Config{Store: store}), signer(t, 1).Key()
		stop := running(t, k)
		last := Time{}
		observe := func(every time.Duration, records int, announce bool) (saves int) {
			store.mu.Lock()
			before := store.saves
			store.mu.Unlock()
			for range records {
				time.Sleep(every)
				last.Heartbeat++
				if announce {
					last.Generation++
				}
				k.Observe(Record{Registry: "a", ClusterID: "cls2", Key: key, At: last})
			}
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.saves - before
		}
		observe(time.Second, 30, true)
		if n := observe(time.Second, 60, true); n > 6 {
			t.Errorf("%d saves in a minute of changes, want one in 10 s", n)
		}
		time.Sleep(saveChanges + 1500*time.Millisecond)
		store.mu.Lock()
		if got := store.pins["cls2"].Last["a"]; got != last {
			t.Errorf("saved is %v some seconds after %v", got, last)
		}
		store.mu.Unlock()
		if n := observe(12*time.Second, 100, false); n > 5 {
			t.Errorf("%d saves in 20 minutes of heartbeats, want one in 5 minutes", n)
		}
		stop()
	})
}

// TestObserveUnsealed_IsSaved: the next process knows each registry whose catalog was not sealed.
func TestObserveUnsealed_IsSaved(t *testing.T) {
	store, key := &memoryStore{}, signer(t, 1).Key()
	k := load(t, Config{Store: store})
	pin(key)(k)
	for _, registry := range []string{"b", "a", "b"} {
		k.ObserveUnsealed(registry, "cls2")
		k.save(t.Context(), withoutTimes)
	}
	if got, _ := load(t, Config{Store: store}).Pin("cls2"); !slices.Equal(got.Unsealed, []string{"a", "b"}) {
		t.Errorf("the catalogs in %q were not sealed, want those in a and b", got.Unsealed)
	}
}

func TestLoad_FailsWithoutPins(t *testing.T) {
	_, err := Load(t.Context(), Config{Store: &memoryStore{err: errors.New("denied")}})
	if err == nil || !strings.Contains(err.Error(), "reading the keys") {
		t.Errorf("error %v", err)
	}
}

// TestSince: a cluster was first seen when its first record was believed, whatever follows, also
// across restarts.
func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, key := &memoryStore{}, signer(t, 1).Key()
		k := load(t, Config{Store: store})
		first := time.Now()
		pin(key)(k)
		later := map[string]func(){
			"later":                       func() {},
			"with another key":            func() { k.Observe(acceptedRecord(signer(t, 2).Key(), 5, false)) },
			"after its farewell":          func() { k.Observe(acceptedRecord(signer(t, 2).Key(), 6, true)) },
			"after it was forgotten":      func() { k.Forget("cls2") },
			"after a restart":             func() { k.save(t.Context(), withTimes); k = load(t, Config{Store: store}) },
			"with yet another key and ID": func() { k.Observe(Record{Registry: "a", ClusterID: "cls3", Key: key}) },
		}
		for _, what := range slices.Sorted(maps.Keys(later)) {
			time.Sleep(time.Hour)
			later[what]()
			if got := k.Since("cls2"); !got.Equal(first) {
				t.Errorf("%s: seen since %v, want %v", what, got, first)
			}
		}
		if got := k.Since("cls4"); !got.Equal(time.Now()) {
			t.Errorf("a cluster that was never seen: since %v, want now", got)
		}
		listed := load(t, Config{Store: store, Listed: map[string]Key{"cls2": key}})
		if got := listed.Since("cls2"); !got.IsZero() {
			t.Errorf("a listed cluster: since %v, want before all others", got)
		}
	})
}

// TestKeyring_BoundsPins: of more clusters than there may be pins, those that were seen first stay
// pinned, also after a restart.
func TestKeyring_BoundsPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, cfg := &memoryStore{}, Config{MaxPins: 10}
		cfg.Store = store
		k := load(t, cfg)
		observe := func(id string) {
			k.Observe(Record{Registry: "cloudmap", ClusterID: id, Key: signer(t, 1).Key(), At: Time{Generation: 1, Heartbeat: time.Now().UnixMilli()}})
			time.Sleep(staleAfter)
		}
		for i := range 5 {
			observe(fmt.Sprint("member-", i))
		}
		k.Forget("member-0")
		for i := range 100 {
			observe(fmt.Sprint("invented-", i))
		}
		k.save(t.Context(), withTimes)
		again := load(t, cfg)
		for i := range 5 {
			if _, ok := again.Pin(fmt.Sprint("member-", i)); !ok {
				t.Errorf("member-%d is not pinned any more", i)
			}
		}
		if len(store.pins) != 10 {
			t.Errorf("%d pins are stored, want 10", len(store.pins))
		}
	})
}

// TestKeyring_KeepsImported: whatever IDs a member invents, the key of a silent cluster that is
// imported from stays pinned, also if that cluster was seen last, and there are no more pins than
// there may be.
func TestKeyring_KeepsImported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		cfg := Config{MaxPins: 10, MaxPinBytes: 1, Store: store}
		k := load(t, cfg)
		verdict := func(k *Keyring, id string) Verdict {
			key := signer(t, 1).Key()
			v, err := k.Check(Presented{Registry: "cloudmap", ClusterID: id, Key: key})
			if v == Refused && (err == nil || !strings.Contains(err.Error(), "kubectl mcs forget")) {
				t.Errorf("the refusal of %s: %v", id, err)
			}
			if v != Refused {
				k.Observe(Record{Registry: "cloudmap", ClusterID: id, Key: key, At: Time{Generation: 1, Heartbeat: time.Now().UnixMilli()}})
			}
			return v
		}
		invent := func(k *Keyring, prefix string, n int) (refused int) {
			for i := range n {
				if verdict(k, fmt.Sprint(prefix, "-", i)) == Refused {
					refused++
				}
			}
			return refused
		}
		k.Forget("forgotten")
		invent(k, "earlier", 8)
		verdict(k, "victim")
		k.SetImported([]string{"victim"})
		// one takes the place of the forgotten cluster, which has no record
		if refused := invent(k, "at-once", 3); refused != 2 {
			t.Errorf("%d of 3 clusters are refused while the others have just been heard", refused)
		}
		time.Sleep(staleAfter)
		if refused := invent(k, "first", 9); refused != 0 {
			t.Errorf("%d clusters are refused although others are silent and nothing is imported from them", refused)
		}
		if refused := invent(k, "second", 5); refused != 5 {
			t.Errorf("%d of 5 clusters are refused", refused)
		}
		k.save(t.Context(), withTimes)
		for name, k := range map[string]*Keyring{"before": k, "after a restart": load(t, cfg)} {
			if pin, ok := k.Pin("victim"); !ok || pin.Key != signer(t, 1).Key() {
				t.Errorf("%s the victim is not pinned any more", name)
			}
		}
		if len(store.pins) != 10 {
			t.Errorf("%d pins are stored, want 10", len(store.pins))
		}
		time.Sleep(staleAfter)
		again := load(t, cfg)
		time.Sleep(staleAfter)
		if v := verdict(again, "too-early"); v != Refused {
			t.Error("a new cluster replaces one that may be imported from")
		}
		again.SetImported([]string{"victim"})
		if v := verdict(again, "later"); v == Refused {
			t.Error("a new cluster is refused although nothing is imported from a silent one")
		}
	})
}

// TestKeyring_ForgottenLast: a forgotten cluster is not seen for the first time while there are
// others to replace, and does not keep new ones out for ever.
func TestKeyring_ForgottenLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := load(t, Config{MaxPins: 3})
		observe := func(id string) {
			k.Observe(Record{Registry: "cloudmap", ClusterID: id, Key: signer(t, 1).Key(), At: Time{Generation: 1, Heartbeat: time.Now().UnixMilli()}})
		}
		observe("forgotten")
		k.Forget("forgotten")
		time.Sleep(time.Second)
		observe("old")
		k.SetImported(nil)
		time.Sleep(staleAfter)
		observe("new-1")
		observe("new-2")
		if _, ok := k.Pin("old"); ok {
			t.Error("the other cluster is still pinned")
		}
		if pin, ok := k.Pin("forgotten"); !ok || !pin.Forgotten {
			t.Error("the forgotten cluster is not pinned any more")
		}
		observe("new-3")
		if _, ok := k.Pin("forgotten"); ok {
			t.Error("the forgotten cluster keeps a new one out")
		}
	})
}
