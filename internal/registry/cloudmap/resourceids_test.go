package cloudmap

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
)

// storedIDs returns the resource IDs that cls1 has stored.
func storedIDs(t *testing.T, c *cloud) ResourceIDs {
	t.Helper()
	ids, err := c.ids.of(cls1.UID + cls1.ClusterSetID).LoadResourceIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids.Heartbeat = 0
	return ids
}

// awaitStoredIDs waits until cls1 has stored its resource IDs.
func awaitStoredIDs(t *testing.T, c *cloud) {
	t.Helper()
	within(t, 20*time.Second, "the resource IDs are stored", func() bool { return storedIDs(t, c) != ResourceIDs{} })
}

// requestsOfRestart restarts cls1 and returns the requests until its first heartbeat.
func requestsOfRestart(t *testing.T, c *cloud) map[string]int {
	t.Helper()
	attrs := c.instances(t, "mcs.set1", format.MembersService)["cls1"]
	before := maps.Clone(c.server.Load().Requests())
	reg := c.registry(t, unscanned(cls1))
	stop := start(t, reg)
	within(t, 20*time.Second, "cls1 has joined again", func() bool { return joined(reg) })
	took := map[string]int{}
	for operation, n := range c.server.Load().Requests() {
		if n -= before[operation]; n > 0 && operation != "DiscoverInstances" && operation != "RegisterInstance" {
			took[operation] = n
		}
	}
	within(t, 20*time.Second, "cls1 has written a heartbeat", func() bool {
		now := c.instances(t, "mcs.set1", format.MembersService)["cls1"]
		return now[format.AttrHeartbeat] != attrs[format.AttrHeartbeat]
	})
	stop(nil)
	return took
}

// unscanned are fast intervals without a search for records of the previous process.
func unscanned(identity mcs.Identity) Config {
	cfg := fast(identity)
	cfg.times.instanceList = 100 * time.Hour
	return cfg
}

func joined(reg *Registry) bool {
	return reg.state.Claim() == state.Held
}

// TestResourceIDsAreVerified restarts a controller: it uses the stored IDs and one list of
// services. If an ID does not match, it uses lists and writes to no other resource.
func TestResourceIDsAreVerified(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	elsewhere, err := c.client.CreateNamespace(t.Context(), "elsewhere", mcs.Identity{}, api.PartView)
	if err != nil {
		t.Fatal(err)
	}
	lure := map[string]api.Service{}
	for _, name := range []string{format.MembersService, "catalog.cls1"} {
		if lure[name], err = c.client.CreateService(t.Context(), elsewhere, name, mcs.Identity{}, api.PartView); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, c.registry(t, unscanned(cls1)))
	awaitStoredIDs(t, c)
	_, stopOther := running(t, c, cls2)
	within(t, 20*time.Second, "cls2 has a catalog", func() bool { _, there := c.service(t, "mcs.set1", "catalog.cls2"); return there })
	stop(nil)
	stopOther(nil)
	ids := storedIDs(t, c)
	others, _ := c.service(t, "mcs.set1", "catalog.cls2")
	byIDs := map[string]int{"GetNamespace": 1, "GetService": 2}
	byLists := map[string]int{"ListNamespaces": 1, "ListServices": 1}
	with := func(more map[string]int) map[string]int {
		all := maps.Clone(byLists)
		maps.Copy(all, more)
		return all
	}
	tests := []struct {
		name   string
		stored ResourceIDs
		want   map[string]int
	}{
		{"as they were stored", ids, byIDs},
		{"none", ResourceIDs{}, byLists},
		{"no such namespace", ResourceIDs{"ns-none", ids.Members, ids.Catalog, 0}, with(map[string]int{"GetNamespace": 1})},
		{"another namespace", ResourceIDs{elsewhere.ID, lure[format.MembersService].ID, lure["catalog.cls1"].ID, 0}, with(map[string]int{"GetNamespace": 1})},
		{"members of another namespace", ResourceIDs{ids.Namespace, lure[format.MembersService].ID, ids.Catalog, 0}, with(map[string]int{"GetNamespace": 1, "GetService": 1})},
		{"a catalog of another namespace", ResourceIDs{ids.Namespace, ids.Members, lure["catalog.cls1"].ID, 0}, with(map[string]int{"GetNamespace": 1, "GetService": 2})},
		{"another cluster's catalog", ResourceIDs{ids.Namespace, ids.Members, others.ID, 0}, with(map[string]int{"GetNamespace": 1, "GetService": 2})},
		{"members as the catalog", ResourceIDs{ids.Namespace, ids.Members, ids.Members, 0}, with(map[string]int{"GetNamespace": 1, "GetService": 2})},
		{"ARNs instead of IDs", ResourceIDs{elsewhere.ARN, lure[format.MembersService].ARN, others.ARN, 0}, with(map[string]int{"GetNamespace": 1})},
		{"as they were stored, once more", ids, byIDs},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if err := c.ids.of(cls1.UID+cls1.ClusterSetID).SaveResourceIDs(t.Context(), tc.stored); err != nil {
				t.Fatal(err)
			}
			if took := requestsOfRestart(t, c); !maps.Equal(took, tc.want) {
				t.Errorf("requests %v, want %v", took, tc.want)
			}
			if got := storedIDs(t, c); got != ids {
				t.Errorf("the stored IDs are %+v now, want %+v", got, ids)
			}
		})
	}
	for _, s := range lure {
		if found, err := c.client.ListInstances(t.Context(), s); err != nil || len(found) > 0 {
			t.Errorf("wrong IDs had %v written to service %s of another namespace (%v)", found, s.Name, err)
		}
	}
}

// TestResourceIDStoreFails: a cluster whose store fails joins nevertheless, by lists, and stores
// the IDs when the store works again.
func TestResourceIDStoreFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		store := w.ids.of("cls1")
		store.setError(errors.New("the API server is down"))
		p := w.begin(cls1, nil)
		// The last attempt to load the IDs may follow a pause of its own and one of its caller.
		w.until(recallFor+2*defaultTimes().MaxRetry+30*time.Second, "it has joined", func() bool { return joined(p.Registry) })
		if n := w.count()["ListNamespaces"]; n == 0 {
			t.Error("it joined without a list of namespaces: the test proves nothing")
		}
		time.Sleep(time.Minute)
		store.setError(nil)
		w.until(time.Minute, "the IDs are stored", func() bool {
			ids, _ := store.LoadResourceIDs(t.Context())
			return ids.Namespace != ""
		})
		if err := p.end(registry.ErrLeave); err != nil {
			t.Errorf("leaving: %v", err)
		}
		if ids, _ := store.LoadResourceIDs(t.Context()); ids != (ResourceIDs{Heartbeat: ids.Heartbeat}) || ids.Heartbeat == 0 {
			t.Errorf("after leaving %+v is stored, want the heartbeat alone", ids)
		}
	})
}

// TestResourceIDsOfDeletedCatalog: the catalog with the stored ID was deleted.
func TestResourceIDsOfDeletedCatalog(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := running(t, c, cls1)
	exp := webExport("cls1", 0, 1)
	publish(t, a, exp)
	within(t, 20*time.Second, "it is exported", isExported(t, a, exp.Key))
	awaitStoredIDs(t, c)
	before := storedIDs(t, c)
	stop(nil)
	catalog, _ := c.service(t, "mcs.set1", "catalog.cls1")
	for id := range c.instances(t, "mcs.set1", "catalog.cls1") {
		c.drop(t, "mcs.set1", "catalog.cls1", id)
	}
	if err := c.client.DeleteService(t.Context(), catalog); err != nil {
		t.Fatal(err)
	}
	a, _ = running(t, c, cls1)
	publish(t, a, exp)
	within(t, 20*time.Second, "it is exported again", isExported(t, a, exp.Key))
	within(t, 20*time.Second, "the new catalog's ID is stored", func() bool { return storedIDs(t, c) != before })
}

// TestResourceIDsInSharedNamespace: in a namespace that another account shares, ARNs are stored.
func TestResourceIDsInSharedNamespace(t *testing.T) {
	options := twoAccounts()
	options.Shares = []cloudmaplocal.Share{{Owner: ownerAccount, Namespace: "mcs.set1", With: []string{consumerAccount}}}
	c := startCloud(t, options)
	owner := c.clientFor(t, asOwner())
	if _, err := owner.CreateNamespace(t.Context(), "mcs.set1", cls1, api.PartControl); err != nil {
		t.Fatal(err)
	}
	run := func() (stop func(error)) {
		reg := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), unscanned(testIdentity("cls1")))
		stop = start(t, reg)
		within(t, 20*time.Second, "cls1 has joined", func() bool { return joined(reg) })
		return stop
	}
	stop := run()
	ids := c.ids.of(testIdentity("cls1").UID + "set1")
	within(t, 20*time.Second, "the resource IDs are stored", func() bool {
		stored, err := ids.LoadResourceIDs(t.Context())
		return err == nil && stored != ResourceIDs{}
	})
	stop(nil)
	lists := c.requests("ListNamespaces")
	run()
	if got := c.requests("ListNamespaces") - lists; got != 0 {
		t.Errorf("%d lists of namespaces after a restart, want none", got)
	}
	stored, err := ids.LoadResourceIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{stored.Namespace, stored.Members, stored.Catalog} {
		if !strings.HasPrefix(id, "arn:aws:servicediscovery:us-east-1:"+ownerAccount+":") {
			t.Errorf("stored is %q, want ARNs of the owner's", id)
		}
	}
}
