package etcd

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

// The write and the read of an export are in one trace, and only those of the export that has
// changed.
func TestTrace(t *testing.T) {
	s := newTestStore(t, shared(t))
	receiver, err := tracingtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(receiver.Close)
	tracer, err := tracing.New(t.Context(), tracing.Config{Endpoint: receiver.Address, Insecure: true, Ratio: 1, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	registries := map[string]*Registry{}
	for _, identity := range []mcs.Identity{cls1, cls2} {
		cfg := fast(identity)
		cfg.Trace = tracer.Of(identity)
		registries[identity.ClusterID] = s.registry(t, cfg)
		start(t, registries[identity.ClusterID])
	}
	within(t, "cls2 has read everything", func() bool {
		_, err := registries["cls2"].Lookup(t.Context(), webKey(1))
		return err == nil
	})
	publishAt := func(i, n int, changed int64) {
		exp := webExport("cls1", i, n)
		exp.Changed = time.UnixMilli(changed)
		if err := registries["cls1"].Publish(t.Context(), exp); err != nil {
			t.Fatal(err)
		}
		awaitVersion(t, registries["cls2"], "cls1", i, n)
	}
	publishAt(1, 1, 1_800_000_000_001)
	publishAt(2, 1, 1_800_000_000_002)
	publishAt(1, 2, 1_800_000_000_003)
	const steps = 6
	within(t, "all steps have arrived", func() bool { return len(receiver.Spans()) == steps })
	if err := tracer.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	traces := tracingtest.ByTrace(receiver.Spans())
	if len(traces) != 3 {
		t.Fatalf("%d traces, want 3", len(traces))
	}
	for _, trace := range traces {
		of := func(cluster, step string) bool {
			return slices.ContainsFunc(trace, func(s tracingtest.Span) bool { return s.Name == step && s.Attributes["cluster"] == cluster })
		}
		if len(trace) != 2 || !of("cls1", tracing.WriteExport) || !of("cls2", tracing.ReadExport) {
			t.Errorf("the trace is\n%s, want a write by cls1 and a read by cls2", tracingtest.Print(trace))
		}
	}
}
