package etcd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestRegistry_ReadsNamespaceThatIsImportedNow: the exports of a namespace that begins to be
// imported are read at once, without a list, an answer of the watch or a problem.
func TestRegistry_ReadsNamespaceThatIsImportedNow(t *testing.T) {
	const exports = pageKeys + 8
	s := newTestStore(t, shared(t))
	cfg, timings := fast(cls2), fastTimings()
	cfg.HeartbeatInterval = time.Hour // without changes the watch gives no answer
	exporter := s.registryWith(t, cfg, timings)
	start(t, exporter)
	for i := range exports {
		publish(t, exporter, i, 1)
	}
	for i := range exports {
		awaitState(t, exporter, i, registry.Exported)
	}

	var isWanted atomic.Bool
	cfg = fast(cls1)
	cfg.ReadOnly, cfg.PollInterval, timings.silence = true, time.Hour, time.Hour
	cfg.Wanted = func(namespace string) bool { return namespace == webKey(0).Namespace && isWanted.Load() }
	importer := s.registryWith(t, cfg, timings)
	start(t, importer)
	for i := range exports {
		within(t, "the export is ignored", func() bool { return len(lookupView(t, importer, i).In(registry.Ignored)) == 1 })
	}
	lists := s.lists.Load()
	isWanted.Store(true)
	for i := range exports {
		awaitVersion(t, importer, "cls2", i, 1)
	}
	if n := s.lists.Load() - lists; n > 0 {
		t.Errorf("all keys were listed again, in %d requests", n)
	}
	if err := importer.Report().Reading; err != nil {
		t.Errorf("reading has the problem: %v", err)
	}
}
