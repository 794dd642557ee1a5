package cloudmap

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

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// oldInstances are those that the AWS Cloud Map MCS Controller for K8s writes for exp.
func oldInstances(exp mcs.Export) []api.Instance {
	list := instances.FromExport(exp, "set1", "")
	for _, i := range list {
		i.Attributes["K8S_CONTROLLER"] = oldController + " 0.3.1 (887737e)"
	}
	return list
}

func TestCompatCatalog(t *testing.T) {
	const hold = 15 * time.Second
	start := time.Unix(1_790_000_000, 0)
	read := func(exps ...mcs.Export) []legacy.InstanceExport {
		var out []legacy.InstanceExport
		for _, e := range exps {
			out = append(out, legacy.InstanceExport{Cluster: e.Cluster, Export: &e})
		}
		return out
	}
	ours := []legacy.InstanceExport{{Cluster: "cls2", Ours: true, Export: new(webExport("cls2", 0, 5))}}
	unreadable := []legacy.InstanceExport{{Cluster: "cls2", Problems: []string{"bad"}}}
	type step struct {
		after time.Duration // since the step before
		read  []legacy.InstanceExport
		// listed is false for a list without the service; then nothing is read.
		unlisted bool
		want     []mcs.Export
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"an export comes and changes", []step{
			{read: nil},
			{read: read(webExport("cls2", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1)}},
			{read: read(webExport("cls2", 0, 2), webExport("cls3", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 2), webExport("cls3", 0, 1)}},
		}},
		{"this cluster's own is not imported", []step{{read: read(webExport("cls1", 0, 1))}}},
		{"what goes is held for a while", []step{
			{read: read(webExport("cls2", 0, 1), webExport("cls3", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1), webExport("cls3", 0, 1)}},
			{after: time.Second, read: read(webExport("cls3", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1), webExport("cls3", 0, 1)}},
			{after: hold - 1, read: read(webExport("cls3", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1), webExport("cls3", 0, 1)}},
			{after: 1, read: read(webExport("cls3", 0, 1)), want: []mcs.Export{webExport("cls3", 0, 1)}},
		}},
		{"and may come back", []step{
			{read: read(webExport("cls2", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Second, want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Second, read: read(webExport("cls2", 0, 3)), want: []mcs.Export{webExport("cls2", 0, 3)}},
			{after: hold, read: read(webExport("cls2", 0, 3)), want: []mcs.Export{webExport("cls2", 0, 3)}},
		}},
		{"a cluster changes to our kind: its view is not its export", []step{
			{read: read(webExport("cls2", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Second, read: ours, want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: hold, read: ours},
		}},
		{"a cluster of our kind is none of the old ones", []step{{read: ours}}},
		{"unreadable is not empty", []step{
			{read: unreadable},
			{read: read(webExport("cls2", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Hour, read: unreadable, want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Hour, read: unreadable, want: []mcs.Export{webExport("cls2", 0, 1)}},
		}},
		{"the service is deleted and made again", []step{
			{read: read(webExport("cls2", 0, 1)), want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: time.Second, unlisted: true, want: []mcs.Export{webExport("cls2", 0, 1)}},
			{after: hold, unlisted: true},
			{after: time.Second, read: read(webExport("cls2", 0, 2)), want: []mcs.Export{webExport("cls2", 0, 2)}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := compatCatalog{own: "cls1", services: map[mcs.Key]*compatService{}}
			now := start
			for i, s := range tt.steps {
				now = now.Add(s.after)
				found := map[mcs.Key]compatService{webKey(0): {namespace: "demo", service: api.Service{ID: "srv-1"}}}
				if s.unlisted {
					found = nil
				}
				c.list(now, found)
				if !s.unlisted {
					c.services[webKey(0)].note(now, c.own, s.read)
				}
				c.forget(now, hold)
				var got []mcs.Export
				if have := c.services[webKey(0)]; have != nil {
					got = have.exports()
				}
				if !slices.EqualFunc(got, s.want, mcs.Export.Equal) {
					t.Errorf("step %d: %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestCompatDue(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	times := defaultCompatTimes()
	tests := []struct {
		name             string
		s                compatService
		wantDue, wantAll bool
	}{
		{"never read", compatService{}, true, true},
		{"of interest, just read", compatService{read: true, busy: true, readAt: now, lookedAt: now}, true, false},
		{"of interest, read a while ago", compatService{read: true, busy: true, readAt: now.Add(-times.whole), lookedAt: now}, true, true},
		{"nothing to us, just looked at", compatService{read: true, readAt: now.Add(-time.Hour), lookedAt: now}, false, false},
		{"nothing to us, looked at a while ago", compatService{read: true, readAt: now.Add(-time.Hour), lookedAt: now.Add(-times.list)}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if due, all := tt.s.due(now, times); due != tt.wantDue || all != tt.wantAll {
				t.Errorf("due %v whole %v, want %v %v", due, all, tt.wantDue, tt.wantAll)
			}
		})
	}
}

// compat starts a compatibility import that has no second to lose.
func compat(t *testing.T, c *cloud, identity mcs.Identity) (imported *Compat, notified func(mcs.Key) bool) {
	t.Helper()
	imported = NewCompat(c.newClient(t), CompatConfig{
		Identity: identity, PollInterval: 10 * time.Millisecond, Logger: fast(identity).Logger,
		times: compatTimes{list: 50 * time.Millisecond, whole: time.Hour, hold: 200 * time.Millisecond},
	})
	var keys atomic.Pointer[keySet]
	keys.Store(&keySet{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- imported.Run(ctx, func(key mcs.Key) {
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
	return imported, func(key mcs.Key) bool { _, ok := (*keys.Load())[key]; return ok }
}

func compatSees(reg *Compat, exps ...mcs.Export) func() bool {
	return func() bool {
		view, err := reg.Lookup(context.Background(), webKey(0))
		return err == nil && slices.EqualFunc(view.Exports, exps, func(a, b mcs.Export) bool { return a.Equal(shownAs(b)) })
	}
}

// shownAs is what instances say of exp: neither zones nor nodes.
func shownAs(exp mcs.Export) mcs.Export {
	exp = exp.Canonical()
	for _, b := range exp.Backends {
		for i := range b.Endpoints {
			b.Endpoints[i].Zone, b.Endpoints[i].Node = "", ""
		}
	}
	return exp
}

func TestCompatImport(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	createForeign(t, c, "Not-of.Kubernetes", "web-0")
	c.put(t, "demo", "web-0", api.Instance{ID: "ecs-task", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.99.0.1"}})
	reg, notified := compat(t, c, cls1)
	within(t, 10*time.Second, "nothing is exported", compatSees(reg))

	exp := webExport("cls2", 0, 2)
	for _, i := range oldInstances(exp) {
		c.put(t, "demo", "web-0", i)
	}
	within(t, 10*time.Second, "the export is seen", compatSees(reg, exp))
	if !notified(webKey(0)) {
		t.Error("nobody was notified")
	}
	members, err := reg.Members(t.Context())
	if err != nil || len(members) != 1 || members[0].ClusterID != "cls2" || members[0].Version != oldController {
		t.Errorf("members %+v (%v), want cls2", members, err)
	}

	// An instance that cannot be: it is reported, and what could be read is imported.
	bad := oldInstances(exp)[0]
	bad.ID, bad.Attributes["SERVICE_PORT"] = "bad", "eighty"
	c.put(t, "demo", "web-0", bad)
	within(t, 10*time.Second, "the problem is reported", func() bool {
		members, err := reg.Members(t.Context())
		return err == nil && len(members) == 1 && slices.Equal(members[0].Problems, []string{`demo/web-0: instance bad left out: SERVICE_PORT is "eighty", no port number`})
	})
	within(t, 10*time.Second, "the rest stays", compatSees(reg, exp))

	// Whatever Cloud Map answers but the truth changes nothing.
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
		within(t, 10*time.Second, "it was asked a few times", func() bool { return met.Load() > 5 })
		if !compatSees(reg, exp)() {
			t.Errorf("%s: the export is gone", code)
		}
		c.fault.Store(nil)
	}
	c.broken.Store(true)
	within(t, 10*time.Second, "the failure is known", func() bool { reg.mu.Lock(); defer reg.mu.Unlock(); return reg.problem != nil })
	if !compatSees(reg, exp)() {
		t.Error("with Cloud Map down the export is gone")
	}
	c.broken.Store(false)
	for id := range c.instances(t, "demo", "web-0") {
		if s, ok := c.service(t, "demo", "web-0"); !ok {
			t.Fatal("the service is gone")
		} else if err := c.client.DeregisterInstance(t.Context(), s.ID, id); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 10*time.Second, "the export is gone", compatSees(reg))
}

// TestCompatNotSynced has nothing known while Cloud Map cannot be read.
func TestCompatNotSynced(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	c.broken.Store(true)
	reg, notified := compat(t, c, cls1)
	if _, err := reg.Lookup(t.Context(), webKey(0)); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Look says %v, want ErrNotSynced", err)
	}
	if _, err := reg.Members(t.Context()); !errors.Is(err, registry.ErrNotSynced) {
		t.Errorf("Members says %v, want ErrNotSynced", err)
	}
	c.broken.Store(false)
	within(t, 10*time.Second, "who asked is told", func() bool { return notified(webKey(0)) })
	if !compatSees(reg)() {
		t.Error("it is not synced yet")
	}
}

// TestCompatManyInstances has as many instances in a service as it can have: DiscoverInstances may show only a part of them.
func TestCompatManyInstances(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	exp := webExport("cls2", 0, api.MaxDiscovered)
	for _, i := range oldInstances(exp) {
		c.put(t, "demo", "web-0", i)
	}
	reg, _ := compat(t, c, cls1)
	within(t, 30*time.Second, "all endpoints", compatSees(reg, exp))
	if c.requests("ListInstances") == 0 {
		t.Error("a read that may show only a part was taken for whole")
	}
}

// TestCompatCost counts requests while nothing changes: a question for its revision per service and poll, nothing for services that
// are nothing to us.
func TestCompatCost(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	createForeign(t, c, "other", "ecs")
	for _, i := range oldInstances(webExport("cls2", 0, 2)) {
		c.put(t, "demo", "web-0", i)
	}
	reg := NewCompat(c.newClient(t), CompatConfig{Identity: cls1, Logger: fast(cls1).Logger, times: compatTimes{list: time.Hour, whole: time.Hour, hold: time.Minute}})
	ignore := func(mcs.Key) {}
	for range 2 {
		if err := reg.round(t.Context(), ignore); err != nil {
			t.Fatal(err)
		}
	}
	before := maps.Clone(c.server.Load().Requests())
	for range 10 {
		if err := reg.round(t.Context(), ignore); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]int{}
	for operation, count := range c.server.Load().Requests() {
		if n := count - before[operation]; n > 0 {
			got[operation] = n
		}
	}
	if diff := cmp.Diff(map[string]int{"DiscoverInstancesRevision": 10}, got); diff != "" {
		t.Errorf("ten rounds with nothing changing (-want +got):\n%s", diff)
	}
}
