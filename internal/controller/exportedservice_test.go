package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// withdrawals is a registry that counts the withdrawals of each export.
type withdrawals struct {
	registry.Registry
	mu     sync.Mutex
	counts map[mcs.Key]int
}

func (w *withdrawals) Withdraw(ctx context.Context, key mcs.Key) error {
	w.mu.Lock()
	w.counts[key]++
	w.mu.Unlock()
	return w.Registry.Withdraw(ctx, key)
}

func (w *withdrawals) of(key mcs.Key) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[key]
}

// nameService makes a ServiceExport export the Service of a name.
func (k *cluster) nameService(t *testing.T, key mcs.Key, service string) {
	t.Helper()
	change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) {
		e.Annotations = map[string]string{mcs.AnnotationService: service}
	})
}

// service creates the Service of key with n endpoints from 10.x.0.1 on, and returns their slice.
func (k *cluster) service(t *testing.T, key mcs.Key, x, n int) *discoveryv1.EndpointSlice {
	t.Helper()
	slice := controllertest.EndpointSlice(key, controllertest.Endpoints(x, n))
	k.create(t, controllertest.Service(key))
	k.create(t, slice)
	return slice
}

// A ServiceExport exports the Service that it names, which may come later, under its own name, as
// other ServiceExports may. Events of the Service and its slices concern all of them.
func TestExports_UnderOtherNames(t *testing.T) {
	s := setUp(t, "names")
	named := func(name string) mcs.Key { return mcs.Key{Namespace: s.key.Namespace, Name: name} }
	web, shop, blue := s.key, named("shop"), named("web-blue")
	importedAll := func(want ...string) {
		t.Helper()
		for _, key := range []mcs.Key{web, shop, blue} {
			s.b.imported(t, key, map[string][]string{"cls1": want})
		}
	}

	t.Log("a Service that comes later")
	for _, key := range []mcs.Key{web, shop} {
		s.a.create(t, controllertest.ServiceExportOf(key, blue.Name))
	}
	s.a.create(t, controllertest.ServiceExport(blue))
	s.a.condition(t, web, "Valid=False NoService", "no Service web-blue in this namespace, which annotation "+mcs.AnnotationService)
	s.a.condition(t, blue, "Valid=False NoService", "no Service of this name")
	slice := s.a.service(t, blue, 1, 1)
	importedAll("10.1.0.1")
	s.a.imported(t, web, map[string][]string{"cls1": {"10.1.0.1"}})
	s.a.condition(t, web, "Valid=True Valid", "")
	s.a.condition(t, web, "Ready=True Exported", "")

	t.Log("events of a slice and of the Service")
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	importedAll("10.1.0.1", "10.1.0.2")
	change(t, s.a, controllertest.Service(blue), func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 })
	for _, key := range []mcs.Key{web, shop, blue} {
		s.b.importedPorts(t, key, []string{"http:81"}, []string{"http:8080"})
	}

	t.Log("the end of one export, and of the Service")
	s.a.delete(t, controllertest.ServiceExport(shop))
	s.b.notImported(t, shop)
	s.b.imported(t, web, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	s.a.delete(t, controllertest.Service(blue))
	for _, key := range []mcs.Key{web, blue} {
		s.b.notImported(t, key)
		s.a.condition(t, key, "Valid=False NoService", "")
	}
}

// A changed annotation changes the export, which is not withdrawn in between, although the Service
// is created just before. Without a Service to export it is withdrawn, with a condition and an
// event, and has the same IPs when there is one again.
func TestExports_OfAnotherService(t *testing.T) {
	a, b := twoClusters(t)
	web := newKey("blue-green")
	named := func(name string) mcs.Key { return mcs.Key{Namespace: web.Namespace, Name: name} }
	hub, reg := memory.NewHub(), &withdrawals{counts: map[mcs.Key]int{}}
	a.namespace(t, web.Namespace)
	b.namespace(t, web.Namespace)
	a.runWith(t, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg.Registry = hub.Registry(identity)
		return reg, nil
	}, testOptions(flags("cls1")))
	b.run(t, hub, flags("cls2"))
	blue := a.service(t, named("web-0"), 1, 1)
	a.create(t, controllertest.ServiceExportOf(web, "web-0"))
	from := func(address string) map[string][]string { return map[string][]string{"cls1": {address}} }
	before := b.imported(t, web, from("10.1.0.1"))
	local := a.imported(t, web, from("10.1.0.1"))
	a.condition(t, web, "Ready=True Exported", "")

	t.Log("another Service, ten times")
	withdrawn, last := reg.of(web), ""
	var slice *discoveryv1.EndpointSlice
	for i := range 10 {
		last = fmt.Sprintf("web-%d", i+1)
		slice = a.service(t, named(last), 2+i, 1)
		a.nameService(t, web, last)
		b.imported(t, web, from(fmt.Sprintf("10.%d.0.1", 2+i)))
	}
	if after := b.imported(t, web, from("10.11.0.1")); after.UID != before.UID || !slices.Equal(after.Spec.IPs, before.Spec.IPs) {
		t.Errorf("the import changed: %s %v, then %s %v", before.UID, before.Spec.IPs, after.UID, after.Spec.IPs)
	}
	if after := a.imported(t, web, from("10.11.0.1")); after.UID != local.UID {
		t.Error("the import of the exporting cluster was created again")
	}
	if n := reg.of(web) - withdrawn; n > 0 {
		t.Errorf("the export was withdrawn %d times", n)
	}
	a.condition(t, web, "Ready=True Exported", "")

	t.Log("events of the Service that it exports now, and not of that before")
	change(t, a, blue, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 2) })
	change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(12, 1) })
	b.imported(t, web, from("10.12.0.1"))

	for _, step := range []struct{ service, reason, text string }{
		{"web-red", "NoService", "no Service web-red"},
		{"Web", "InvalidServiceName", `"Web"`},
		// which exists although nothing is exported: it holds the IPs
		{mcs.DerivedName(web), "InvalidServiceType", "derived Service of ServiceImport web"},
	} {
		t.Log(step.reason)
		a.nameService(t, web, step.service)
		a.condition(t, web, "Valid=False "+step.reason, step.text)
		a.condition(t, web, "Ready=False Failed", "nothing is exported")
		a.event(t, web, step.reason)
		b.notImported(t, web)
		a.notImported(t, web)
	}

	t.Log("a Service again")
	a.nameService(t, web, last)
	if after := b.imported(t, web, from("10.12.0.1")); !slices.Equal(after.Spec.IPs, before.Spec.IPs) {
		t.Errorf("the import has the IPs %v, before %v", after.Spec.IPs, before.Spec.IPs)
	}
}
