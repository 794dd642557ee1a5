package controller

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// An admission webhook that takes 15 s for each write in one namespace must not delay the imports
// of other namespaces. The delay is at the controller's client, which sees the same.
func TestImports_SlowNamespaceDelaysOnlyItself(t *testing.T) {
	const (
		slowness = 15 * time.Second
		limit    = 4 * time.Second
		services = 60
	)
	a, b := twoClusters(t)
	hub := memory.NewHub()
	slow, other := newKey("slow-webhook"), newKey("fast")
	for _, key := range []mcs.Key{slow, other} {
		a.namespace(t, key.Namespace)
		b.namespace(t, key.Namespace)
	}
	a.run(t, hub, flags("cls1"))
	for i := range services {
		a.export(t, mcs.Key{Namespace: slow.Namespace, Name: fmt.Sprintf("web-%d", i)}, 1, 1)
	}
	var delayed atomic.Int64
	cfg := rest.CopyConfig(b.cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/namespaces/"+slow.Namespace+"/") {
				delayed.Add(1)
				select {
				case <-req.Context().Done():
					return nil, req.Context().Err()
				case <-time.After(slowness):
				}
			}
			return next.RoundTrip(req)
		})
	})
	runConfig(t, cfg, hubRegistry(hub), testOptions(flags("cls2")))
	eventually(t, "slow writes", func() error {
		if n := delayed.Load(); n < 10 {
			return fmt.Errorf("%d of them", n)
		}
		return nil
	})

	begin := time.Now()
	slice := a.export(t, other, 1, 1)
	b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}})
	if took := time.Since(begin); took > limit {
		t.Errorf("the import took %s, want at most %s", took, limit)
	}
	for n := 2; n < 8; n++ {
		begin := time.Now()
		change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, n) })
		eventually(t, "new endpoints", func() error {
			if got := len(b.addresses(t, other)["cls1"]); got != n {
				return fmt.Errorf("%d endpoints, want %d", got, n)
			}
			return nil
		})
		if took := time.Since(begin); took > limit {
			t.Errorf("new endpoints took %s, want at most %s", took, limit)
		}
	}
}
