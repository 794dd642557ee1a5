package etcd

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// TestMoveFromCloudMap moves as docs/etcd.md describes: cluster by cluster, each exporting to one
// registry and importing from both. The importer never loses the export. An export that is
// withdrawn after the move is removed although Cloud Map still has it.
func TestMoveFromCloudMap(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value)
	}
	w := &moveWorld{t: t, store: newTestStore(t, shared(t)), cloudMap: startCloudMap(t)}
	exporter, importer := w.life(cls1, "cloudmap", "etcd"), w.life(cls2, "cloudmap", "etcd")
	exporter.publish(0, 1)
	exporter.publish(1, 1)
	importer.awaitVersion(0, 1)
	importer.awaitVersion(1, 1)

	exporter.end()
	w.exports = map[int]int{0: 2}
	exporter = w.life(cls1, "etcd", "cloudmap")
	importer.awaitVersion(0, 2)
	importer.awaitVersion(1, 0)

	importer.end()
	importer = w.life(cls2, "etcd", "cloudmap")
	importer.awaitVersion(0, 2)
	exporter.publish(0, 3)
	importer.awaitVersion(0, 3)
	importer.awaitVersion(1, 0)

	exporter.end()
	importer.end()
	w.exports = map[int]int{0: 3}
	exporter, importer = w.life(cls1, "etcd"), w.life(cls2, "etcd")
	importer.awaitVersion(0, 3)
	exporter.publish(0, 4)
	importer.awaitVersion(0, 4)
	importer.end()
}

type moveWorld struct {
	t        *testing.T
	store    *testStore
	cloudMap string
	// exports are the versions that the next life of cls1 publishes before it runs.
	exports map[int]int
}

func startCloudMap(t *testing.T) (url string) {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(func() {
		listener.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return listener.URL
}

// life is one process of a cluster's controller, exporting to the first registry and importing from
// all.
type life struct {
	t   *testing.T
	reg registry.Registry
	end func()
}

func (w *moveWorld) life(identity mcs.Identity, names ...string) *life {
	w.t.Helper()
	var sources []union.Source
	for i, name := range names {
		sources = append(sources, union.Source{Name: name, Registry: w.registry(identity, name, i > 0)})
	}
	cfg := union.Config{Identity: identity, Logger: logr.Discard(), Handover: 3 * time.Second}
	l := &life{t: w.t, reg: union.New(cfg, sources[0], sources[1:]...)}
	if identity == cls1 {
		for i, n := range w.exports {
			l.publish(i, n)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var mu sync.Mutex // each registry notifies by itself
	seen, lost := false, false
	var once sync.Once
	go func() {
		done <- l.reg.Run(ctx, func(mcs.Key) {
			mu.Lock()
			defer mu.Unlock()
			n := l.version(0)
			lost = lost || seen && n == 0
			seen = seen || n > 0
		})
	}()
	l.end = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("Run: %v", err)
			}
			if lost {
				w.t.Errorf("%s lost the export for a while", identity.ClusterID)
			}
		})
	}
	w.t.Cleanup(l.end)
	return l
}

func (w *moveWorld) registry(identity mcs.Identity, name string, readOnly bool) registry.Registry {
	w.t.Helper()
	if name == "etcd" {
		cfg := fast(identity)
		cfg.ReadOnly = readOnly
		return w.store.registry(w.t, cfg)
	}
	client, err := cloudmapapi.NewClient(w.t.Context(), cloudmapapi.Config{Region: "us-east-1", Endpoint: w.cloudMap})
	if err != nil {
		w.t.Fatal(err)
	}
	reg, err := cloudmap.New(client, cloudmap.Config{
		Identity: identity, ReadOnly: readOnly, Logger: logr.Discard(),
		PollInterval: 100 * time.Millisecond, PollIntervalWithNotifications: 100 * time.Millisecond,
		HeartbeatInterval: time.Second, StaleAfter: time.Minute, InstancesPerNamespace: 2000,
		Signer: registrytest.Signer(w.t, identity), Keyring: w.store.keyrings.Of(w.t, identity),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return reg
}

func (l *life) publish(i, n int) {
	l.t.Helper()
	if err := l.reg.Publish(l.t.Context(), webExport("cls1", i, n)); err != nil {
		l.t.Fatal(err)
	}
}

// version returns the number of the export that is read from cls1, 0 for none and before the
// registry is synced.
func (l *life) version(i int) int {
	view, err := l.reg.Lookup(context.Background(), webKey(i))
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		l.t.Error(err)
	}
	for _, exp := range view.Exports() {
		return int(exp.Ports[0].Port) - 1
	}
	return 0
}

func (l *life) awaitVersion(i, n int) {
	l.t.Helper()
	// An unknown export may still exist.
	within(l.t, "the version is as exported", func() bool {
		view, err := l.reg.Lookup(l.t.Context(), webKey(i))
		return err == nil && !view.Incomplete && len(view.In(registry.Unknown)) == 0 && l.version(i) == n
	})
}
