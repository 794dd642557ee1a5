package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// awaitImportReady waits until the ServiceImport has condition Ready with that status and text in
// its message.
func (k *cluster) awaitImportReady(t *testing.T, key mcs.Key, want, text string) {
	t.Helper()
	eventually(t, "condition Ready="+want, func() error {
		imp := importOf(key)
		if err := k.get(t, key, imp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
		if c == nil || string(c.Status) != want || !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %+v, want %s with %q", c, want, text)
		}
		return nil
	})
}

// An admission policy that refuses the slices of an import makes it not Ready, until it allows
// them.
func TestImports_NotReadyWhileWritesAreRefused(t *testing.T) {
	s := setUp(t, "refused")
	s.runB.stopAndWait(t)
	var refuse atomic.Bool
	cfg := rest.CopyConfig(s.b.cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodGet || !refuse.Load() || !strings.Contains(req.URL.Path, s.key.Namespace+"/endpointslices") {
				return next.RoundTrip(req)
			}
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused by a test","reason":"Forbidden","code":403}`
			return &http.Response{
				StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req,
			}, nil
		})
	})
	runConfig(t, cfg, hubRegistry(s.hub), testOptions(flags("cls2")))
	slice := s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	refuse.Store(true)
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	s.b.awaitImportReady(t, s.key, "False", "refused by a test")
	s.b.event(t, s.key, "ImportFailed")
	refuse.Store(false)
	s.b.awaitImportReady(t, s.key, "True", "")
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
}

// An export that was Ready is not when its last change cannot be written.
func TestExports_NotReadyWhileWritesFail(t *testing.T) {
	s := setUp(t, "unwritten")
	slice := s.a.export(t, s.key, 1, 1)
	s.a.condition(t, s.key, "Ready=True Exported", "")
	s.hub.SetError(errors.New("access denied for a test"))
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	s.a.condition(t, s.key, "Ready=False Failed", "access denied for a test")
	s.hub.SetError(nil)
	s.a.condition(t, s.key, "Ready=True Exported", "")
}

// forgetful is a registry that has not seen cls1 since its start, as after a restart while the
// registry was restored.
type forgetful struct {
	registry.Registry
	blind  *atomic.Bool
	notify atomic.Pointer[func(mcs.Key)]
}

func (r *forgetful) Lookup(ctx context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	view, err := r.Registry.Lookup(ctx, key, imported...)
	if !r.blind.Load() {
		return view, err
	}
	view.Clusters = maps.Clone(view.Clusters)
	delete(view.Clusters, "cls1")
	view.SetUnseen(imported, func(id string) bool { return id != "cls1" })
	return view, err
}

func (r *forgetful) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.notify.Store(&notify)
	return r.Registry.Run(ctx, notify)
}

// A restarted controller keeps what it imported from a cluster that the registry has not shown
// since, for as long as that takes.
func TestImports_KeepUnseenClusterAfterRestart(t *testing.T) {
	s := setUp(t, "unseen")
	s.a.export(t, s.key, 1, 1)
	s.b.export(t, s.key, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}}
	before := s.b.imported(t, s.key, both)
	alone := mcs.Key{Namespace: s.key.Namespace, Name: "alone"}
	s.a.export(t, alone, 3, 1)
	s.b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	s.runB.stopAndWait(t)

	var blind atomic.Bool
	blind.Store(true)
	var started atomic.Pointer[forgetful]
	s.b.runWith(t, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg := &forgetful{Registry: s.hub.Registry(identity), blind: &blind}
		started.Store(reg)
		return reg, nil
	}, testOptions(flags("cls2")))
	marker := mcs.Key{Namespace: s.key.Namespace, Name: "marker"}
	s.b.export(t, marker, 2, 1)
	s.b.imported(t, marker, map[string][]string{"cls2": {"10.2.0.1"}})
	s.b.delete(t, controllertest.ServiceExport(s.key))
	after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
	if !slices.Equal(before.Spec.IPs, after.Spec.IPs) {
		t.Errorf("the clusterset IPs changed from %v to %v", before.Spec.IPs, after.Spec.IPs)
	}

	s.a.delete(t, controllertest.ServiceExport(s.key))
	blind.Store(false)
	(*started.Load().notify.Load())(s.key)
	s.b.notImported(t, s.key)
	s.b.imported(t, alone, map[string][]string{"cls1": {"10.3.0.1"}})
}
