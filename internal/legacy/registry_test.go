package legacy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

var cls1 = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-cls1"}

// startRegistry runs a registry with short intervals.
func startRegistry(t *testing.T, c *cloud, identity mcs.Identity) (reg *Registry, notified func(mcs.Key) bool) {
	t.Helper()
	reg = NewRegistry(c.newClient(t), Config{
		Identity: identity, PollInterval: 10 * time.Millisecond, Logger: logr.Discard(),
		intervals: intervals{list: 50 * time.Millisecond, reread: time.Hour, hold: 200 * time.Millisecond},
	})
	var keys atomic.Pointer[engine.Keys]
	keys.Store(&engine.Keys{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- reg.Run(ctx, func(key mcs.Key) {
			more := maps.Clone(*keys.Load())
			more[key] = struct{}{}
			keys.Store(&more)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return reg, func(key mcs.Key) bool { _, ok := (*keys.Load())[key]; return ok }
}

func hasExports(reg *Registry, exps ...mcs.Export) func() bool {
	return func() bool {
		view, err := reg.Lookup(context.Background(), key)
		return err == nil && slices.EqualFunc(view.Exports(), exps, func(a, b mcs.Export) bool { return a.Equal(asInstances(b)) })
	}
}

// asInstances returns exp without the properties that instances do not hold: zones and nodes.
func asInstances(exp mcs.Export) mcs.Export {
	exp = exp.Canonical()
	for _, b := range exp.Backends {
		for i := range b.Endpoints {
			b.Endpoints[i].Zone, b.Endpoints[i].Node = "", ""
		}
	}
	return exp
}

func TestRegistry_ImportsAndKeepsOnErrors(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	c.createService(t, "demo", "web")
	c.createService(t, "Not-of.Kubernetes", "web")
	c.register(t, c.service(t, "demo", "web"), api.Instance{ID: "ecs-task", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.99.0.1"}})
	reg, notified := startRegistry(t, c, cls1)
	within(t, 10*time.Second, "there is no export", hasExports(reg))

	exp := exportOfSize("cls2", 2)
	c.register(t, c.service(t, "demo", "web"), legacyInstances(exp)...)
	within(t, 10*time.Second, "the export is seen", hasExports(reg, exp))
	if !notified(key) {
		t.Error("no notification")
	}
	members, err := reg.Members(t.Context())
	if err != nil || len(members) != 1 || members[0].ClusterID != "cls2" || members[0].Version != ControllerName {
		t.Errorf("members %+v (%v), want cls2", members, err)
	}

	// An invalid instance is reported, and the others are imported.
	bad := legacyInstances(exp)[0]
	bad.ID, bad.Attributes["SERVICE_PORT"] = "bad", "eighty"
	c.register(t, c.service(t, "demo", "web"), bad)
	within(t, 10*time.Second, "the problem is reported", func() bool {
		members, err := reg.Members(t.Context())
		return err == nil && len(members) == 1 && slices.Equal(members[0].Problems, []string{`demo/web: instance bad left out: SERVICE_PORT is "eighty", no port number`})
	})
	within(t, 10*time.Second, "the rest stays", hasExports(reg, exp))

	// Errors change nothing.
	for _, code := range []string{"ThrottlingException", "RequestLimitExceeded", "AccessDeniedException", "ServiceNotFound", "NamespaceNotFound"} {
		var met atomic.Int64
		fault := func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ListNamespaces") || strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ListServices") {
				return false // it is the reading that fails here
			}
			met.Add(1)
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"__type":%q,"message":"as the test wants"}`, code)
			return true
		}
		c.fault.Store(&fault)
		within(t, 10*time.Second, "some requests failed", func() bool { return met.Load() > 5 })
		if !hasExports(reg, exp)() {
			t.Errorf("%s: the export is gone", code)
		}
		c.fault.Store(nil)
	}
	c.isDown.Store(true)
	within(t, 10*time.Second, "the failure is known", func() bool { reg.mu.Lock(); defer reg.mu.Unlock(); return reg.problem.Err() != nil })
	if !hasExports(reg, exp)() {
		t.Error("with Cloud Map down the export is gone")
	}
	c.isDown.Store(false)
	s := c.service(t, "demo", "web")
	list, err := c.client.ListInstances(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if err := c.client.DeregisterInstance(t.Context(), s.ID, i.ID); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 10*time.Second, "the export is gone", hasExports(reg))
}

func TestRegistry_NotSyncedUntilRead(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	c.isDown.Store(true)
	reg, notified := startRegistry(t, c, cls1)
	if _, err := reg.Lookup(t.Context(), key); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Lookup returned %v, want ErrNotSynced", err)
	}
	if _, err := reg.Members(t.Context()); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Members returned %v, want ErrNotSynced", err)
	}
	c.isDown.Store(false)
	within(t, 10*time.Second, "the key is notified", func() bool { return notified(key) })
	if !hasExports(reg)() {
		t.Error("it is not synced yet")
	}
}

// A service has as many instances as it can have: DiscoverInstances may return only a part of them.
func TestRegistry_ReadsManyInstances(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	c.createService(t, "demo", "web")
	exp := exportOfSize("cls2", api.MaxDiscovered)
	c.register(t, c.service(t, "demo", "web"), legacyInstances(exp)...)
	reg, _ := startRegistry(t, c, cls1)
	within(t, 30*time.Second, "all endpoints", hasExports(reg, exp))
	if c.server.Requests()["ListInstances"] == 0 {
		t.Error("the instances were not listed")
	}
}

// While nothing changes, each poll reads the revision of each used service and makes no request for
// unused ones.
func TestRegistry_SteadyStateRequests(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	c.createService(t, "demo", "web")
	c.createService(t, "other", "ecs")
	c.register(t, c.service(t, "demo", "web"), legacyInstances(exportOfSize("cls2", 2))...)
	reg := NewRegistry(c.newClient(t), Config{Identity: cls1, Logger: logr.Discard(), intervals: intervals{list: time.Hour, reread: time.Hour, hold: time.Minute}})
	ignore := func(mcs.Key) {}
	for range 2 {
		if err := reg.poll(t.Context(), ignore); err != nil {
			t.Fatal(err)
		}
	}
	before := maps.Clone(c.server.Requests())
	for range 10 {
		if err := reg.poll(t.Context(), ignore); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]int{}
	for operation, count := range c.server.Requests() {
		if n := count - before[operation]; n > 0 {
			got[operation] = n
		}
	}
	if diff := cmp.Diff(map[string]int{"DiscoverInstancesRevision": 10}, got); diff != "" {
		t.Errorf("ten rounds with nothing changing (-want +got):\n%s", diff)
	}
}

// TestRegistry_KeepsBudget: instances of more exports than the budget of one member are read, in
// the names of several clusters.
func TestRegistry_KeepsBudget(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	// The namespace has all of the budget but the share of one that comes later, a quarter.
	limit := budget.Amounts{budget.Exports: 8, budget.Endpoints: 1000, budget.Ports: 1000, budget.PortEndpoints: 1000, budget.Bytes: 1 << 20}
	ledger := budget.NewLedger(budget.Limits{Member: limit, Total: limit.Plus(limit)})
	const services, fit = 4, 6
	c.createService(t, "demo", "web-0", "web-1", "web-2", "web-3")
	for i := range services {
		name := fmt.Sprint("web-", i)
		for n, cluster := range []string{"cls2", "cls3"} {
			exp := webExport(cluster, fmt.Sprintf("10.9%d.0.1", n))
			exp.Key.Name = name
			c.register(t, c.service(t, "demo", name), legacyInstances(exp)...)
		}
	}
	reg := NewRegistry(c.newClient(t), Config{
		Identity: cls1, Logger: logr.Discard(), Ledger: ledger, intervals: intervals{list: time.Hour, reread: time.Hour, hold: time.Minute},
	})
	if err := reg.poll(t.Context(), func(mcs.Key) {}); err != nil {
		t.Fatal(err)
	}
	exports, unknown := 0, 0
	for i := range services {
		view, err := reg.Lookup(t.Context(), mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)})
		if err != nil {
			t.Fatal(err)
		}
		exports, unknown = exports+len(view.Exports()), unknown+len(view.In(registry.Unknown))
	}
	if exports != fit || unknown != 2*services-fit {
		t.Errorf("%d exports and %d unknown, want %d and %d", exports, unknown, fit, 2*services-fit)
	}
	if usage := ledger.Usage(); usage.Total[budget.Exports] != fit || usage.Excess != 2*services-fit {
		t.Errorf("%d exports are booked and %d in excess, want %d and %d", usage.Total[budget.Exports], usage.Excess, fit, 2*services-fit)
	}
	members, err := reg.Members(t.Context())
	if err != nil || !slices.ContainsFunc(members, func(m registry.Member) bool { return slices.ContainsFunc(m.Problems, registry.IsOverBudget) }) {
		t.Errorf("members %+v (%v), want one over budget", members, err)
	}
}
