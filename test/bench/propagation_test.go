package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
)

// The floor can be measured several times on the same clusters, and each change is one that the
// watch has not shown before.
func TestFloor(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	config, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	api, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	both := &clusters{exporter: api, importer: api}
	im, err := both.follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		samples, err := both.floor(t.Context(), im, parallel)
		if err != nil {
			t.Fatal(err)
		}
		if s := spread(samples); s.Samples != floorChanges || s.P50 <= 0 || s.Max > float64(time.Minute.Milliseconds()) {
			t.Errorf("%+v, want %d samples of writes to API servers", s, floorChanges)
		}
	}
}
