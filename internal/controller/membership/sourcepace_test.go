package membership

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestSourcePace: the changes of a cluster beyond its pace wait, and nothing else does.
func TestSourcePace(t *testing.T) {
	now, views := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), map[mcs.Key]registry.View{}
	p := newSourcePace(func(_ context.Context, key mcs.Key) (registry.View, error) { return views[key], nil })
	p.now = func() time.Time { return now }
	export := func(cluster string, key mcs.Key, version int) mcs.Export {
		return mcs.Export{Key: key, Cluster: cluster, Created: now.Add(time.Duration(version) * time.Second)}
	}
	show := func(key mcs.Key, exports ...mcs.Export) time.Duration {
		views[key] = registry.View{Exports: exports}
		return p.delay(t.Context(), key)
	}
	keyOf := func(i int) mcs.Key { return mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)} }
	for i := range sourceBurst {
		if delay := show(keyOf(i), export("intruder", keyOf(i), 1)); delay > 0 {
			t.Fatalf("export %d waits %v", i, delay)
		}
	}
	for i := range 10 * sourceChanges {
		show(keyOf(i), export("intruder", keyOf(i), 2))
	}
	if delay := show(keyOf(0), export("intruder", keyOf(0), 3)); delay < 9*time.Second || delay > 11*time.Second {
		t.Errorf("the last of 500 changes waits %v, want 10 s", delay)
	}
	if delay := show(keyOf(0), export("intruder", keyOf(0), 3)); delay != 0 {
		t.Errorf("a notification without a changed export waits %v", delay)
	}
	if delay := show(keyOf(0), export("intruder", keyOf(0), 3), export("victim", keyOf(0), 1)); delay != 0 {
		t.Errorf("a change of another cluster waits %v", delay)
	}
	if delay := show(keyOf(0), export("intruder", keyOf(0), 4), export("victim", keyOf(0), 2)); delay != 0 {
		t.Errorf("a change of another cluster waits for one of the intruder: %v", delay)
	}
	if delay := show(keyOf(0), export("victim", keyOf(0), 2)); delay == 0 {
		t.Error("a withdrawal of the intruder does not wait")
	}
	views[keyOf(1)] = registry.View{Exports: []mcs.Export{export("intruder", keyOf(1), 2)}, Properties: map[string]mcs.Properties{"intruder": {"a": "b"}}}
	if delay := p.delay(t.Context(), keyOf(1)); delay == 0 {
		t.Error("a change of the intruder's properties does not wait")
	}
	now = now.Add(time.Hour)
	if delay := show(keyOf(0)); delay != 0 || len(p.seen) != sourceBurst-1 {
		t.Errorf("an hour later a change waits %v, %d keys are known", delay, len(p.seen))
	}
}
