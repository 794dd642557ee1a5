package cloudmap

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// crowd is a clusterset whose service members is full.
type crowd struct {
	*simulation
	others otherWriter
	in     []api.Instance
}

// fill registers instances in service members until AWS accepts no further one. They are no
// records, by their IDs.
func (c *crowd) fill() {
	c.t.Helper()
	admin, members := c.others.service(format.MembersService)
	for i := range api.MaxDiscovered {
		instance := api.Instance{ID: fmt.Sprint("Other_", i), Attributes: map[string]string{"A": "b"}}
		_, err := admin.RegisterInstance(c.t.Context(), members.ID, instance)
		if api.IsQuota(err) {
			return
		}
		if err != nil {
			c.t.Fatal(err)
		}
		c.in = append(c.in, instance)
	}
	c.t.Fatal("service members is not full")
}

// clear removes the instances of fill.
func (c *crowd) clear() {
	for _, instance := range c.in {
		c.others.drop(format.MembersService, instance.ID)
	}
}

// records are the IDs in a service with member records, without those of fill.
func (c *crowd) records(service string) string {
	c.t.Helper()
	admin, s := c.others.service(service)
	listed, err := admin.ListInstances(c.t.Context(), s)
	if err != nil {
		c.t.Fatal(err)
	}
	ids := ""
	for _, instance := range listed {
		if len(instance.ID) == len("cls1") {
			ids += " " + instance.ID
		}
	}
	return ids
}

func startCrowd(t *testing.T) *crowd {
	w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3 * api.MaxDiscovered})
	return &crowd{simulation: w, others: otherWriter{simulation: w}}
}

// TestMoreMembers has more clusters than a Cloud Map service has room for.
func TestMoreMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	inBubble(t, func(t *testing.T) {
		c := startCrowd(t)
		second := format.MembersServiceName(2)
		first := c.begin(cls1, nil)
		of1, of2 := webExport("cls1", 0, 1), webExport("cls2", 8, 1)
		publish(t, first.Registry, of1)
		c.until(time.Minute, "cls1 is a member", isExported(t, first.Registry, of1.Key))
		c.fill()

		next := c.begin(cls2, nil)
		publish(t, next.Registry, of2)
		c.until(2*time.Minute, "cls2 joins", isExported(t, next.Registry, of2.Key))
		c.until(time.Minute, "cls1 sees the export of cls2", sees(t, first.Registry, of2))
		c.until(time.Minute, "cls2 sees the export of cls1", sees(t, next.Registry, of1))
		if in, in2 := c.records(format.MembersService), c.records(second); in != " cls1" || in2 != " cls2" {
			t.Errorf("records %q in the first service and %q in the second one, want cls1 and cls2", in, in2)
		}
		reader := c.begin(testIdentity("reader"), nil, func(cfg *Config) { cfg.ReadOnly, cfg.ResourceIDs = true, nil })
		c.until(time.Minute, "a registry that only reads sees both", func() bool { return sees(t, reader.Registry, of1)() && sees(t, reader.Registry, of2)() })

		// A process that starts finds its service by the stored ID, without lists, and without it
		// by its record.
		for name, forget := range map[string]bool{"with the stored IDs": false, "without": true} {
			next.kill()
			if forget {
				_ = c.ids.of("cls2").SaveResourceIDs(t.Context(), ResourceIDs{})
			}
			next = c.begin(cls2, nil)
			of2 = webExport("cls2", 8, 1+len(name)%7)
			publish(t, next.Registry, of2)
			c.until(2*time.Minute, "cls1 sees a change after a restart of cls2 "+name, sees(t, first.Registry, of2))
			if in, in2 := c.records(format.MembersService), c.records(second); in != " cls1" || in2 != " cls2" {
				t.Errorf("after a restart %s: records %q in the first service and %q in the second one, want cls1 and cls2", name, in, in2)
			}
		}

		// The second service is read although the first one has room again.
		c.clear()
		first.kill()
		first = c.begin(cls1, nil)
		publish(t, first.Registry, of1)
		c.until(time.Minute, "cls1 sees the export of cls2 after its restart", sees(t, first.Registry, of2))
		third := c.begin(testIdentity("cls3"), nil)
		c.until(time.Minute, "cls3 sees both", func() bool { return sees(t, third.Registry, of1)() && sees(t, third.Registry, of2)() })
		if in := c.records(format.MembersService); in != " cls1 cls3" {
			t.Errorf("records %q in the first service, want cls1 and cls3", in)
		}

		for _, p := range []*process{first, third, next} {
			if err := p.end(registry.ErrLeave); err != nil {
				t.Error(err)
			}
		}
		reader.kill()
		admin, _ := c.client("admin")
		namespaces, err := admin.ListNamespaces(t.Context())
		if _, there := namespaces["mcs.set1"]; there || err != nil {
			t.Errorf("the namespace is left after the last cluster: %v, %v", namespaces, err)
		}
	})
}

// TestMoreMembers_Forged has another member write a record under the ID of a cluster into another
// service than the cluster's.
func TestMoreMembers_Forged(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	inBubble(t, func(t *testing.T) {
		c := startCrowd(t)
		first := c.begin(cls1, nil)
		of1, of2 := webExport("cls1", 0, 1), webExport("cls2", 8, 1)
		publish(t, first.Registry, of1)
		c.until(time.Minute, "cls1 is a member", isExported(t, first.Registry, of1.Key))
		c.fill()
		next := c.begin(cls2, nil)
		publish(t, next.Registry, of2)
		c.until(2*time.Minute, "cls1 sees the export of cls2", sees(t, first.Registry, of2))
		c.clear()
		admin, members := c.others.service(format.MembersService)
		for name, signer := range map[string]string{"another key": "uid-of-intruder", "an old record of the cluster": cls2.UID} {
			forged := format.Member{ClusterID: "cls2", ClusterSetID: "set1", UID: cls2.UID, Joined: time.Now().Add(-time.Hour), Heartbeat: 1, Farewell: true}
			if signer != cls2.UID {
				forged.Heartbeat = time.Now().Add(time.Minute).UnixMilli()
			}
			if _, err := admin.RegisterInstance(t.Context(), members.ID, forged.Instance(signerOf(signer))); err != nil {
				t.Fatal(err)
			}
			of2 = webExport("cls2", 8, 2+len(name)%5)
			publish(t, next.Registry, of2)
			c.until(time.Minute, "cls1 sees a change of cls2 beside a record with "+name, sees(t, first.Registry, of2))
			// longer than it takes until a cluster without heartbeats is stale
			time.Sleep(3 * time.Minute)
			if view := look(t, first.Registry, of2.Key); len(view.Exports()) != 1 || len(view.WithLiveness(registry.Stale)) > 0 || len(view.In(registry.Unknown)) > 0 {
				t.Errorf("beside a record with %s: %+v", name, view)
			}
		}
		first.kill()
		next.kill()
	})
}

// TestMemberServices_NamespaceQuota has a namespace that is full, while its service members is not:
// another service would have no room either.
func TestMemberServices_NamespaceQuota(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		// cls1: a record, its copy and a page
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3})
		first := w.begin(cls1, nil)
		of1 := webExport("cls1", 0, 1)
		publish(t, first.Registry, of1)
		w.until(time.Minute, "cls1 is a member", isExported(t, first.Registry, of1.Key))
		next := w.begin(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}, nil)
		publish(t, next.Registry, webExport("cls2", 8, 1))
		time.Sleep(5 * time.Minute)
		admin, _ := w.client("admin")
		namespaces, err := admin.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		services, err := admin.ListServices(t.Context(), namespaces["mcs.set1"])
		if n := countServices(services); n != 1 || err != nil {
			t.Errorf("%d services with member records, %v; want one", n, err)
		}
		first.kill()
		next.kill()
	})
}
