package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

var cls2 = mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}

func publish(t testing.TB, reg *Registry, i, n int) {
	t.Helper()
	if err := reg.Publish(t.Context(), webExport(reg.cfg.Identity.ClusterID, i, n)); err != nil {
		t.Fatal(err)
	}
}

func withdraw(t testing.TB, reg *Registry, i int) {
	t.Helper()
	if err := reg.Withdraw(t.Context(), webKey(i)); err != nil {
		t.Fatal(err)
	}
}

// lookupView returns reg's view of webKey(i), which is empty before the first list.
func lookupView(t testing.TB, reg *Registry, i int) registry.View {
	t.Helper()
	view, err := reg.Lookup(t.Context(), webKey(i))
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		t.Fatal(err)
	}
	return view
}

// version returns the version of a cluster's webExport(i) that reg sees, 0 for none.
func version(t testing.TB, reg *Registry, clusterID string, i int) int {
	t.Helper()
	for _, exp := range lookupView(t, reg, i).Exports() {
		if exp.Cluster == clusterID {
			return int(exp.Ports[0].Port) - 1
		}
	}
	return 0
}

func awaitVersion(t testing.TB, reg *Registry, clusterID string, i, n int) {
	t.Helper()
	within(t, fmt.Sprintf("%s sees version %d of %s's %v", reg.cfg.Identity.ClusterID, n, clusterID, webKey(i)), func() bool {
		return version(t, reg, clusterID, i) == n
	})
}

func awaitState(t testing.TB, reg *Registry, i int, want registry.PublishState) {
	t.Helper()
	within(t, fmt.Sprintf("%v is %v", webKey(i), want), func() bool {
		_, err := reg.Lookup(t.Context(), webKey(i))
		return err == nil && lookupView(t, reg, i).Local.State == want
	})
}

// awaitReason waits until a publication is Pending with an error that contains reason.
func awaitReason(t testing.TB, reg *Registry, i int, reason string) {
	t.Helper()
	within(t, fmt.Sprintf("%v is Pending with reason %q", webKey(i), reason), func() bool {
		own := lookupView(t, reg, i).Local
		return own.State == registry.Pending && own.Err != nil && strings.Contains(own.Err.Error(), reason)
	})
}

// TestRegistry_FencesOlderProcess runs two processes of one cluster, as when a leader is suspended
// for longer than its Lease. Only the newer process writes. The older one resumes after the newer
// one has stopped.
func TestRegistry_FencesOlderProcess(t *testing.T) {
	s := newTestStore(t, shared(t))
	old, late, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, old)
	start(t, watcher)
	publish(t, old, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	stop := start(t, late)
	publish(t, late, 0, 2)
	awaitVersion(t, watcher, "cls1", 0, 2)
	publish(t, old, 0, 3)
	awaitReason(t, old, 0, "another controller writes to etcd under this cluster's ID")
	publish(t, late, 1, 1)
	awaitVersion(t, watcher, "cls1", 1, 1)
	if n := version(t, watcher, "cls1", 0); n != 2 {
		t.Errorf("the older process has written version %d", n)
	}
	stop(nil)
	awaitVersion(t, watcher, "cls1", 0, 3)
	awaitState(t, old, 0, registry.Exported)
}

// TestRegistry_HandsIDOver: a process that ends in good order gives its ID up, and the next one,
// whose clock is behind, has it at once. The other clusters notice nothing.
func TestRegistry_HandsIDOver(t *testing.T) {
	s := newTestStore(t, shared(t))
	timings := fastTimings()
	timings.lease = time.Hour // much more than patience
	previous, next, watcher := s.registryWith(t, fast(cls1), timings), s.registryWith(t, fast(cls1), timings), s.registry(t, fast(cls2))
	previous.writer.session.claim.number = time.Now().Add(time.Hour).UnixMicro()
	stop := start(t, previous)
	start(t, watcher)
	publish(t, previous, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	stop(nil)
	within(t, "the key alive is gone", func() bool { return s.keys(t, s.layout("set1").alive("cls1"))[s.layout("set1").alive("cls1")] == "" })
	if view := lookupView(t, watcher, 0); len(view.Exports()) != 1 || len(view.WithLiveness(registry.Stale))+len(view.In(registry.Unknown)) > 0 {
		t.Errorf("between the processes the view is %+v, want the export of a live cluster", view)
	}
	members, err := watcher.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.Stale || strings.Contains(strings.Join(m.Problems, "\n"), "lease") {
			t.Errorf("member %s is stale: %t, with problems %q", m.ClusterID, m.Stale, m.Problems)
		}
	}
	start(t, next)
	publish(t, next, 0, 2)
	awaitVersion(t, watcher, "cls1", 0, 2)
}

// TestRegistry_TakesIDBackFromDuplicate stops a cluster for so long that another one takes its ID,
// and starts it again. The duplicate does not take the ID back, neither while it runs nor after a
// restart.
func TestRegistry_TakesIDBackFromDuplicate(t *testing.T) {
	s := newTestStore(t, shared(t))
	twin := mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-of-the-duplicate"}
	process := func(identity mcs.Identity, joined time.Time) *Registry {
		cfg := fast(identity)
		// as the ConfigMap has it
		cfg.StaleAfter, cfg.Joined = time.Second, joined.Truncate(time.Second)
		return s.registry(t, cfg)
	}
	joined := func(reg *Registry) time.Time {
		members, err := reg.Members(t.Context())
		if err != nil || len(members) == 0 {
			t.Fatalf("members %v, error %v", members, err)
		}
		return members[0].Joined
	}
	original, watcher := process(cls1, time.Time{}), s.registry(t, fast(cls2))
	stop := start(t, original)
	start(t, watcher)
	publish(t, original, 0, 1)
	awaitState(t, original, 0, registry.Exported)
	joinedFirst := joined(original)
	stop(nil)

	duplicate := process(twin, time.Time{})
	stop = start(t, duplicate)
	publish(t, duplicate, 0, 2)
	awaitState(t, duplicate, 0, registry.Exported)
	joinedLater := joined(duplicate)

	original = process(cls1, joinedFirst)
	start(t, original)
	publish(t, original, 0, 3)
	awaitReason(t, duplicate, 0, "uid-1")
	awaitState(t, original, 0, registry.Exported)
	stop(nil)

	duplicate = process(twin, joinedLater)
	start(t, duplicate)
	publish(t, duplicate, 0, 4)
	awaitReason(t, duplicate, 0, "uid-1")
	publish(t, original, 0, 5)
	awaitVersion(t, watcher, "cls1", 0, 5)
}

// A transaction with an outdated fence has no effect.
func TestStore_WriteRejectsOutdatedFence(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	publish(t, reg, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	reg.writer.session.mu.Lock()
	fence := reg.writer.session.claim.fence
	reg.writer.session.claim.dropFence() // as after a write of unknown outcome
	reg.writer.wake.Set()
	reg.writer.session.mu.Unlock()
	within(t, "the key alive is rewritten", func() bool {
		reg.writer.session.mu.Lock()
		defer reg.writer.session.mu.Unlock()
		return reg.writer.session.claim.fence > fence
	})
	late := []operation{operationFor(t, 0, 9)}
	if _, err := reg.writer.store.write(t.Context(), fence, late, nil); !errors.Is(err, errFenceLost) {
		t.Errorf("writing with an outdated fence: %v, want errFenceLost", err)
	}
	publish(t, reg, 1, 1)
	awaitVersion(t, watcher, "cls1", 1, 1)
	if n := version(t, watcher, "cls1", 0); n != 1 {
		t.Errorf("the late write changed the export to version %d", n)
	}
}

// After its lease has expired, as when etcd was unreachable for long, the cluster joins again and
// continues to export.
func TestRegistry_RejoinsAfterLeaseExpired(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	publish(t, reg, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	for range 3 {
		reg.writer.session.mu.Lock()
		lease := reg.writer.session.lease
		reg.writer.session.mu.Unlock()
		if lease == 0 {
			continue
		}
		if _, err := s.Root().Revoke(t.Context(), clientv3.LeaseID(lease)); err != nil {
			t.Fatal(err)
		}
		within(t, "the cluster has another lease", func() bool {
			reg.writer.session.mu.Lock()
			defer reg.writer.session.mu.Unlock()
			return reg.writer.session.lease != 0 && reg.writer.session.lease != lease && reg.writer.session.claim.fence != 0
		})
	}
	publish(t, reg, 0, 2)
	awaitVersion(t, watcher, "cls1", 0, 2)
}

// A deleted or changed member record is written again.
func TestRegistry_RestoresMemberRecord(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg := s.registry(t, fast(cls1))
	start(t, reg)
	l := s.layout("set1")
	for _, key := range []string{l.member("cls1"), l.alive("cls1")} {
		within(t, key+" exists", func() bool { return s.keys(t, key)[key] != "" })
		s.remove(t, key)
		within(t, key+" exists again", func() bool { return s.keys(t, key)[key] != "" })
	}
	s.putKey(t, l.member("cls1"), "garbage")
	within(t, "the garbage is overwritten", func() bool { return s.keys(t, l.member("cls1"))[l.member("cls1")] != "garbage" })
}

// After a compaction the watch cannot resume. The reader lists again.
func TestRegistry_ListsAgainAfterCompaction(t *testing.T) {
	s, writerStore := newTestStore(t, shared(t)), newTestStore(t, shared(t))
	writerStore.prefix = s.prefix
	reg, watcher := writerStore.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	for i := range 6 {
		publish(t, reg, i, 1)
	}
	for i := range 6 {
		awaitVersion(t, watcher, "cls1", i, 1)
	}
	s.proxy.Cut()
	publish(t, reg, 0, 2)
	withdraw(t, reg, 1)
	publish(t, reg, 6, 1)
	for i, want := range map[int]registry.PublishState{0: registry.Exported, 1: registry.Absent, 6: registry.Exported} {
		awaitState(t, reg, i, want)
	}
	if n := version(t, watcher, "cls1", 0); n != 1 {
		t.Fatalf("the watcher sees version %d while it is cut off", n)
	}
	answer, err := s.Root().Get(t.Context(), s.prefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root().Compact(t.Context(), answer.Header.Revision); err != nil {
		t.Fatal(err)
	}
	s.proxy.Restore()
	awaitVersion(t, watcher, "cls1", 0, 2)
	awaitVersion(t, watcher, "cls1", 1, 0)
	awaitVersion(t, watcher, "cls1", 6, 1)
	for i := 2; i < 6; i++ {
		awaitVersion(t, watcher, "cls1", i, 1)
	}
}

// The user of a cluster can neither write another cluster's keys nor read another clusterset.
func TestStore_RefusesForeignKeys(t *testing.T) {
	s := newTestStore(t, shared(t))
	client := s.client(t, cls1)
	st := &store{client: client, layout: s.layout("set1"), id: "cls2"}
	if _, err := st.write(t.Context(), 0, []operation{operationFor(t, 0, 1)}, nil); err == nil || !strings.Contains(err.Error(), docs.URL("etcd.md#a-user-for-each-cluster")) {
		t.Errorf("writing another cluster's export: %v, want a denial that names the documentation", err)
	}
	if err := st.sayFarewell(t.Context(), 0, 0, nil); err == nil {
		t.Error("another cluster's keys could be removed")
	}
	other := &store{client: client, layout: s.layout("set2"), id: "cls1"}
	if _, _, err := other.list(t.Context()); err == nil {
		t.Error("another clusterset could be read")
	}
}

// Exports wait while permissions are revoked.
func TestRegistry_RetriesAfterRevokedPermissions(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	publish(t, reg, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	user, _, err := s.AddCluster(t.Context(), s.prefix, "set1", "cls1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	publish(t, reg, 0, 2)
	awaitReason(t, reg, 0, "must have the permissions of "+docs.URL("etcd.md#a-user-for-each-cluster"))
	if n := version(t, watcher, "cls1", 0); n != 1 {
		t.Errorf("the export is at version %d", n)
	}
	if err := s.Restore(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	awaitVersion(t, watcher, "cls1", 0, 2)
}

// A wrong password is reported, and a corrected file is read without a restart.
func TestRegistry_ReloadsPassword(t *testing.T) {
	s := newTestStore(t, shared(t))
	user, passwordFile, err := s.AddCluster(t.Context(), s.prefix, "set1", "cls1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(passwordFile, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := s.registry(t, fast(cls1))
	start(t, reg)
	within(t, "the wrong password is reported", func() bool {
		_, err := reg.Lookup(t.Context(), webKey(0))
		return err != nil && strings.Contains(err.Error(), "--etcd-password-file")
	})
	if err := os.WriteFile(passwordFile, []byte("password of "+user+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	publish(t, reg, 0, 1)
	awaitState(t, reg, 0, registry.Exported)
	// And once more while it runs.
	if _, err := s.Root().UserChangePassword(t.Context(), user, "rotated"); err != nil {
		t.Fatal(err)
	}
	s.proxy.Cut()
	s.proxy.Restore()
	if err := os.WriteFile(passwordFile, []byte("rotated"), 0o600); err != nil {
		t.Fatal(err)
	}
	publish(t, reg, 0, 2)
	within(t, "version 2 is exported", func() bool {
		own := lookupView(t, reg, 0).Local
		return own.State == registry.Exported
	})
}

// With client certificates, the user is the common name, and there is no password.
func TestRegistry_AuthenticatesWithClientCertificate(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick, ClientCertificates: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	user, _, err := c.AddCluster(t.Context(), "/mcs", "set1", "cls1")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Certificate(user); err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := c.CertificateFiles(user)
	client, err := NewClient(ClientConfig{Endpoints: c.Endpoints(), CAFile: c.CAFile, CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := fast(cls1)
	cfg.Signer, cfg.Keyring = registrytest.Signer(t, cls1), registrytest.NewKeyrings(time.Minute).Of(t, cls1)
	reg, err := newRegistry(client, cfg, fastTimings())
	if err != nil {
		t.Fatal(err)
	}
	start(t, reg)
	publish(t, reg, 0, 1)
	awaitState(t, reg, 0, registry.Exported)
}

// When etcd's quota is used up, exports stay: a withdrawal counts by the signed record, which etcd
// refuses too. New exports and withdrawals report why they wait, and are written when there is
// space again.
func TestRegistry_RecoversFromFullStorage(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: append([]string{"--quota-backend-bytes=4194304"}, quick...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	for i := range 3 {
		publish(t, reg, i, 1)
		awaitVersion(t, watcher, "cls1", i, 1)
	}
	fillStorage(t, s)
	publish(t, reg, 0, 2)
	publish(t, reg, 7, 1)
	awaitReason(t, reg, 0, "storage quota is used up")
	withdraw(t, reg, 1)
	awaitReason(t, reg, 1, "storage quota is used up")
	for i := range 2 {
		if n := version(t, watcher, "cls1", i); n != 1 {
			t.Errorf("export %d is at version %d while etcd's storage is full", i, n)
		}
	}
	freeStorage(t, s)
	awaitVersion(t, watcher, "cls1", 1, 0)
	awaitVersion(t, watcher, "cls1", 0, 2)
	awaitVersion(t, watcher, "cls1", 7, 1)
	awaitVersion(t, watcher, "cls1", 2, 1)
}

// fillStorage writes until etcd's storage quota is used up.
func fillStorage(t testing.TB, s *testStore) {
	t.Helper()
	within(t, "etcd's storage quota is used up", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		for err == nil {
			_, err = s.Root().Put(ctx, "/junk", strings.Repeat("x", 256<<10))
		}
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
}

// freeStorage deletes what fillStorage wrote and clears the alarm.
func freeStorage(t testing.TB, s *testStore) {
	t.Helper()
	if err := tryFreeStorage(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// tryFreeStorage follows the steps of docs/etcd.md for a full storage.
func tryFreeStorage(ctx context.Context, s *testStore) error {
	root := s.Root()
	answer, err := root.Delete(ctx, "/junk")
	if err == nil {
		_, err = root.Compact(ctx, answer.Header.Revision, clientv3.WithCompactPhysical())
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = nil
	}
	for _, endpoint := range s.Endpoints() {
		if err == nil {
			_, err = root.Defragment(ctx, endpoint)
		}
	}
	if err == nil {
		_, err = root.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	return err
}

// A read-only registry writes nothing.
func TestRegistry_ReadOnlyWritesNothing(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg := s.registry(t, fast(cls1))
	start(t, reg)
	publish(t, reg, 0, 1)
	awaitState(t, reg, 0, registry.Exported)
	cfg := fast(cls2)
	cfg.ReadOnly = true
	reader := s.registry(t, cfg)
	stop := start(t, reader)
	awaitVersion(t, reader, "cls1", 0, 1)
	if err := reader.Publish(t.Context(), webExport("cls2", 0, 1)); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Publish: %v, want ErrReadOnly", err)
	}
	if err := reader.Withdraw(t.Context(), webKey(0)); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Withdraw: %v, want ErrReadOnly", err)
	}
	stop(registry.ErrLeave)
	if keys := s.keys(t, s.layout("set1").cluster("cls2")); len(keys) != 0 {
		t.Errorf("the read-only registry wrote %v", keys)
	}
}

// Without changes, only heartbeats are written.
func TestRegistry_WritesOnlyHeartbeatsWithoutChanges(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	start(t, reg)
	start(t, watcher)
	for i := range 20 {
		publish(t, reg, i, 1)
	}
	for i := range 20 {
		awaitState(t, reg, i, registry.Exported)
		awaitVersion(t, watcher, "cls1", i, 1)
	}
	writes := s.writes.Load()
	l := s.layout("set1")
	before := s.keys(t, l.root)
	heartbeats := 0
	within(t, "five heartbeats", func() bool {
		now := s.keys(t, l.root)
		if now[l.member("cls1")] != before[l.member("cls1")] {
			heartbeats++
			before[l.member("cls1")] = now[l.member("cls1")]
		}
		return heartbeats >= 5
	})
	before[l.member("cls2")] = s.keys(t, l.root)[l.member("cls2")]
	after := s.keys(t, l.root)
	for key, value := range before {
		if key != l.member("cls1") && key != l.member("cls2") && after[key] != value {
			t.Errorf("%s was written", key)
		}
	}
	if n := s.writes.Load() - writes; n != 0 {
		t.Errorf("%d exports were written without a change", n)
	}
}

func TestNew_ChecksConfig(t *testing.T) {
	client, err := NewClient(ClientConfig{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"all set":                {func(*Config) {}, ""},
		"no signer":              {func(c *Config) { c.Signer = nil }, "Signer"},
		"only read, no signer":   {func(c *Config) { c.Signer, c.ReadOnly = nil, true }, ""},
		"no keyring":             {func(c *Config) { c.Keyring = nil }, "Keyring"},
		"no poll interval":       {func(c *Config) { c.PollInterval = 0 }, "PollInterval"},
		"no heartbeat interval":  {func(c *Config) { c.HeartbeatInterval = 0 }, "HeartbeatInterval"},
		"a negative stale after": {func(c *Config) { c.StaleAfter = -1 }, "StaleAfter"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := fast(cls1)
			cfg.Signer, cfg.Keyring = registrytest.Signer(t, cls1), registrytest.NewKeyrings(time.Minute).Of(t, cls1)
			tt.change(&cfg)
			if _, err := New(client, cfg); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one that contains %q", err, tt.want)
			}
		})
	}
}

// A restored etcd may soon have a later revision than before, so that the watch continues. The
// exporter must notice that its exports are not there, and the reader that it has not read
// everything.
func TestRegistry_NoticesRestoredBackup(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	reg, watcher := s.registry(t, fast(cls1)), s.registry(t, fast(cls2))
	client := s.client(t, identityOf("cls3")) // its user is part of the backup
	start(t, reg)
	start(t, watcher)
	publish(t, reg, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	restore, err := c.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, reg, 0, 2)
	publish(t, reg, 1, 1)
	awaitVersion(t, watcher, "cls1", 0, 2)
	awaitVersion(t, watcher, "cls1", 1, 1)
	s.proxy.Cut()
	before := watcher.mirror.revision()
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	within(t, "a later revision than before", func() bool {
		answer, err := s.Root().Put(t.Context(), "/other", "x")
		return err == nil && answer.Header.Revision > before+1000
	})
	s.proxy.Restore()
	cfg := fast(identityOf("cls3"))
	cfg.Prefix, cfg.Signer, cfg.Keyring = s.prefix, registrytest.Signer(t, cfg.Identity), s.keyrings.Of(t, cfg.Identity)
	late, err := newRegistry(client, cfg, fastTimings())
	if err != nil {
		t.Fatal(err)
	}
	start(t, late)
	for _, reader := range []*Registry{watcher, late} {
		awaitVersion(t, reader, "cls1", 0, 2)
		awaitVersion(t, reader, "cls1", 1, 1)
	}
	withdraw(t, reg, 1)
	awaitVersion(t, watcher, "cls1", 1, 0)
	awaitVersion(t, late, "cls1", 1, 0)
}

// etcd does not answer requests with a token that it gave out after the backup was made, and a
// client of etcd keeps its token until etcd refuses it or a watch begins. A process that has not
// listed yet has no watch.
func TestRegistry_LogsInAgainAfterRestoredBackup(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	client := s.client(t, cls1) // its user is part of the backup
	restore, err := c.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	within(t, "etcd serves", func() bool {
		_, err := s.Root().Get(t.Context(), "/other")
		return err == nil
	})
	for range 100 { // etcd has as many entries less when it is restored
		s.putKey(t, "/other", "x")
	}
	if _, err := client.connection(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	reg := s.registryOf(t, client, fast(cls1), fastTimings())
	start(t, reg)
	publish(t, reg, 0, 1)
	awaitState(t, reg, 0, registry.Exported)
}

// A backup has the key alive of the process that ran then. The process that has replaced it since
// takes the ID again although the lease of that one lasts.
func TestRegistry_TakesIDAgainAfterRestore(t *testing.T) {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program(t), Dir: t.TempDir(), Args: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	s := newTestStore(t, c)
	timings := fastTimings()
	timings.lease = time.Hour // much more than patience
	previous, watcher := s.registryWith(t, fast(cls1), timings), s.registry(t, fast(cls2))
	stop := start(t, previous)
	start(t, watcher)
	publish(t, previous, 0, 1)
	awaitVersion(t, watcher, "cls1", 0, 1)
	restore, err := c.Backup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stop(nil)
	reg := s.registryWith(t, fast(cls1), timings)
	start(t, reg)
	publish(t, reg, 0, 2)
	awaitVersion(t, watcher, "cls1", 0, 2)
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	publish(t, reg, 1, 1)
	awaitVersion(t, watcher, "cls1", 1, 1)
	awaitState(t, reg, 0, registry.Exported)
	awaitVersion(t, watcher, "cls1", 0, 2)
}

// A write that fails is repeated after a pause, whatever happens meanwhile: else each change in
// etcd and each change of an export would be a request.
func TestRegistry_PausesAfterFailedWrite(t *testing.T) {
	s := newTestStore(t, shared(t))
	reg := s.registry(t, fast(cls1))
	reg.writer.timings.retry = engine.Backoff{Initial: time.Hour, Max: time.Hour}
	s.dropHeartbeats.Store(true)
	start(t, reg)
	within(t, "the failure is reported", func() bool { return reg.Report().Writing != nil })
	before := s.claims.Load()
	for n := range 5 {
		publish(t, reg, n, 1)
		revision := reg.mirror.revision()
		s.putKey(t, s.layout("set1").member("cls2"), string(memberValue(t, cls2, time.Now(), nil)))
		within(t, "the change is read", func() bool { return reg.mirror.revision() > revision })
	}
	if after := s.claims.Load(); before == 0 || after != before {
		t.Errorf("%d attempts to join after %d, want no further one", after, before)
	}
}
