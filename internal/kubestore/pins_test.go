package kubestore

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestPins runs on a real API server: whether another process has written the ConfigMap is the
// server's answer.
func TestPins(t *testing.T) {
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	cfg, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "system"}}); err != nil {
		t.Fatal(err)
	}
	store := &Pins{Client: c, Namespace: "system", ClusterSetID: "set1", Logger: logr.Discard()}
	if pins, err := store.LoadPins(t.Context()); err != nil || len(pins) > 0 {
		t.Fatalf("loaded %v (%v) without a ConfigMap, want none", pins, err)
	}
	key := loadKey(t, c).Key()
	pins := map[string]trust.Pin{
		"cls2": {Key: key, From: 5, UID: "uid-2", Last: map[string]trust.Time{"cloudmap": {Generation: 7, Heartbeat: 9}}, Content: map[string]string{"cloudmap": "W2vXx2oJz1c"}, Unsealed: []string{"cloudmap", "west"}, Since: time.Unix(1_800_000_000, 0).UTC()},
		"cls3": {Key: key, UID: "uid-3", Last: map[string]trust.Time{}, Left: true},
		"cls4": {Last: map[string]trust.Time{}, Forgotten: true},
	}
	other := *store
	other.ClusterSetID = "set2"
	if err := other.SavePins(t.Context(), map[string]trust.Pin{"cls9": {Key: key}}); err != nil {
		t.Fatal(err)
	}
	if err := store.SavePins(t.Context(), pins); !errors.Is(err, trust.ErrChanged) {
		t.Fatalf("saved after another process had created the ConfigMap: %v", err)
	}
	if pins, err := store.LoadPins(t.Context()); err != nil || len(pins) > 0 {
		t.Fatalf("loaded %v (%v), which belong to another clusterset", pins, err)
	}
	if err := store.SavePins(t.Context(), pins); err != nil {
		t.Fatal(err)
	}
	if err := other.SavePins(t.Context(), map[string]trust.Pin{"cls9": {}}); !errors.Is(err, trust.ErrChanged) {
		t.Fatalf("saved after another process had saved: %v", err)
	}
	changed := pins["cls2"]
	changed.Left = true
	pins["cls2"] = changed
	if err := store.SavePins(t.Context(), map[string]trust.Pin{"cls2": changed, "cls4": {}}); err != nil {
		t.Fatal(err)
	}
	delete(pins, "cls4")
	got, err := store.LoadPins(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(pins, got); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	testEnds(t, store, &other)
	if got, err := store.LoadPins(t.Context()); err != nil || !cmp.Equal(pins, got) {
		t.Errorf("the end of a process is among the pins: %v (%v)", got, err)
	}
	if err := c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.PinsConfigMap}}); err != nil {
		t.Fatal(err)
	}
	if err := store.SavePins(t.Context(), pins); !errors.Is(err, trust.ErrChanged) {
		t.Errorf("saved some pins after the ConfigMap was deleted with the others: %v", err)
	}
}

// testEnds saves ends of processes. That a process runs is another version of the ConfigMap each
// time: a process that has loaded pins before it saves nothing more.
func testEnds(t *testing.T, store, other *Pins) {
	t.Helper()
	ended := time.Unix(1_800_000_000, 5).UTC()
	for _, want := range []time.Time{{}, ended, {}, {}} {
		previous := *store
		if err := store.SaveEnd(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if got, err := store.LoadEnd(t.Context()); err != nil || !got.Equal(want) {
			t.Errorf("the process has ended at %v (%v), want %v", got, err, want)
		}
		if err := previous.SaveEnd(t.Context(), ended); !errors.Is(err, trust.ErrChanged) {
			t.Errorf("another process has saved its end: %v", err)
		}
	}
	if got, err := other.LoadEnd(t.Context()); err != nil || !got.IsZero() {
		t.Errorf("in another clusterset a process has ended at %v (%v)", got, err)
	}
}
