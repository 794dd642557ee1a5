package attack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

func TestAttack_RetaggedServices(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.join(intruder)
		time.Sleep(20 * time.Second)
		for _, s := range []api.Service{c.members(), c.catalog(victim)} {
			if err := c.tag(s.ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
				t.Fatal(err)
			}
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		always(t, 20*time.Minute, "imported", reader.sees(web))
		if !reader.isStale(victim) {
			t.Error("the victim is not stale: the table says that it becomes stale")
		}
		if err := exporter.view(web.Key).Local.Err; !api.IsDenied(err) {
			t.Errorf("the victim reports %v, want that its writes are denied", err)
		}

		// Control: nothing but the tags keeps the victim from writing.
		if err := c.tagAs(admin, c.members().ARN, api.Tags(identityOf(victim), api.PartMembers)...); err != nil {
			t.Fatal(err)
		}
		if err := c.tagAs(admin, c.catalog(victim).ARN, api.Tags(identityOf(victim), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		until(t, 5*time.Minute, "the change is imported when the tags are restored", reader.sees(changed))
	})
}

func TestAttack_RetaggedSealedServices(t *testing.T) {
	inCloud(t, cloudOptions{policies: sealedPolicies}, func(t *testing.T, c *cloud) {
		c.seal(victim, importer, intruder)
		exporter, reader, web := c.start()
		for _, s := range []api.Service{c.members(), c.catalog(victim)} {
			if err := c.tag(s.ARN, api.Tags(identityOf(intruder), api.PartView)...); err != nil {
				t.Fatal(err)
			}
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))
		exporter.stop(nil)
		exporter = c.join(victim)
		exporter.publish(web)
		until(t, 5*time.Minute, "a change of the victim is imported after its restart", reader.sees(web))
		if reader.isStale(victim) {
			t.Error("the victim is stale")
		}

		// Control: the tags are set, and another clusterset's would keep the victim off.
		if err := c.tagAs(admin, c.catalog(victim).ARN, tag("part", "other")); err != nil {
			t.Fatal(err)
		}
		exporter.publish(changed)
		time.Sleep(time.Minute)
		if reader.sees(changed)() {
			t.Error("the tags do not matter")
		}
	})
}

func TestAttack_DeletedClusterset(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.deleteClusterset()
		always(t, 10*time.Minute, "imported", reader.sees(web))
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))
	})
}

// deleteClusterset deletes everything of the clusterset in Cloud Map, as a member. The others
// create what they miss again, so that it may have to delete some of it more than once.
func (c *cloud) deleteClusterset() {
	c.t.Helper()
	client := c.attacker()
	namespaces, err := client.ListNamespaces(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for range 100 {
		for _, s := range c.services(clusterSet) {
			c.deleteService(client, s)
		}
		if err = client.DeleteNamespace(c.t.Context(), namespaces[format.ControlNamespace(clusterSet)]); err == nil {
			return
		}
	}
	c.t.Fatal(err)
}

// deleteService deletes a service with its instances, unless others register instances meanwhile.
func (c *cloud) deleteService(client *api.Client, s api.Service) {
	c.t.Helper()
	if err := c.tag(s.ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
		c.t.Fatal(err)
	}
	instances, err := c.client(admin).ListInstances(c.t.Context(), s)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, instance := range instances {
		if err := client.DeregisterInstance(c.t.Context(), s.ID, instance.ID); err != nil && !api.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
	if err := client.DeleteService(c.t.Context(), s); err != nil && !api.IsInUse(err) {
		c.t.Fatalf("deleting service %s: %v", s.Name, err)
	}
}

func TestAttack_QuotaOfInstances(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.infiltrate()
		client, full := c.attacker(), 0
		namespaces, err := client.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for service := range 3 { // a service has room for 1,000, the namespace for 2,000
			s, err := client.CreateService(t.Context(), namespaces[format.ControlNamespace(clusterSet)], fmt.Sprint("catalog.junk-", service), identityOf(intruder), api.PartCatalog)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 1000 {
				if _, err := client.RegisterInstance(t.Context(), s.ID, api.Instance{ID: fmt.Sprint("junk-", i), Attributes: map[string]string{"A": "b"}}); err != nil {
					full++
					break
				}
			}
		}
		if full == 0 {
			t.Fatal("the namespace is not full")
		}
		always(t, 5*time.Minute, "imported", reader.sees(web))
		if reader.isStale(victim) {
			t.Error("the victim is stale")
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of an export is imported", reader.sees(changed))
		// Control: an export on a new page does not fit, and is reported.
		another := webExport(victim, 1)
		another.Key.Name = "another"
		exporter.publish(another)
		time.Sleep(time.Minute)
		if local := exporter.view(another.Key).Local; reader.sees(another)() || local.Err == nil {
			t.Errorf("an export on another page is imported: %t, reported %v; want it refused by the quota", reader.sees(another)(), local.Err)
		}
	})
}

func TestAttack_RequestRate(t *testing.T) {
	inCloud(t, cloudOptions{throttled: true}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		client, members := c.sdk(keyOf(identityOf(intruder))), c.members()
		ctx, stop := context.WithCancel(t.Context())
		var throttled atomic.Int64
		var flood sync.WaitGroup
		for i := range 2 {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, err := client.RegisterInstance(ctx, &servicediscovery.RegisterInstanceInput{
						ServiceId: &members.ID, InstanceId: aws.String(fmt.Sprint("junk-", i)), Attributes: map[string]string{"A": "b"},
					})
					if limited := (*types.RequestLimitExceeded)(nil); errors.As(err, &limited) || err != nil && strings.Contains(err.Error(), "Throttl") {
						throttled.Add(1)
					}
				}
			})
		}
		until(t, time.Minute, "requests are throttled", func() bool { return throttled.Load() > 100 })
		changed := webExport(victim, 3)
		exporter.publish(changed)
		always(t, time.Minute, "imported", func() bool { return (reader.sees(web)() || reader.sees(changed)()) && !reader.isStale(victim) })
		stop()
		flood.Wait()
		until(t, 2*time.Minute, "a change of the victim is imported when the requests end", reader.sees(changed))
	})
}

func TestAttack_ReaderWrites(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, web := c.start()
		client := c.client(outsider)
		// Control: it may read, so that the credentials work.
		if found, _, err := client.DiscoverInstances(t.Context(), format.ControlNamespace(clusterSet), format.MembersService, nil); err != nil || len(found) < 2 {
			t.Errorf("reading the members: %d, %v", len(found), err)
		}
		for _, s := range []api.Service{c.members(), c.catalog(victim)} {
			_, err := client.RegisterInstance(t.Context(), s.ID, api.Instance{ID: victim, Attributes: map[string]string{"A": "b"}})
			wantDenied(t, "writing "+s.Name, err)
			wantDenied(t, "deleting from "+s.Name, client.DeregisterInstance(t.Context(), s.ID, victim))
			wantDenied(t, "deleting "+s.Name, client.DeleteService(t.Context(), s))
			wantDenied(t, "tagging "+s.Name, c.tagAs(outsider, s.ARN, tag("part", "view")))
		}
		_, err := client.CreateNamespace(t.Context(), "other", identityOf(intruder), api.PartView)
		wantDenied(t, "creating a namespace", err)
		always(t, time.Minute, "imported", reader.sees(web))
	})
}

func TestAttack_RecordsOfOtherClustersets(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		c.start()
		other := c.joinAs(keyOf(identityIn(otherSet, victim)), identityIn(otherSet, victim))
		other.publish(webExport(victim, 1))
		until(t, time.Minute, "there is another clusterset", other.isExported(webKey))
		client := c.attacker()
		for _, service := range []string{format.MembersService, format.CatalogName(victim)} {
			_, _, err := client.DiscoverInstances(t.Context(), format.ControlNamespace(otherSet), service, nil)
			wantDenied(t, "reading "+service+" of another clusterset", err)
			s := c.service(otherSet, service)
			_, err = client.ListInstances(t.Context(), s)
			wantDenied(t, "listing "+service+" of another clusterset", err)
			_, err = client.RegisterInstance(t.Context(), s.ID, api.Instance{ID: "junk", Attributes: map[string]string{"A": "b"}})
			wantDenied(t, "writing "+service+" of another clusterset", err)
		}
		// Control: the same reads in its own clusterset.
		if _, _, err := client.DiscoverInstances(t.Context(), format.ControlNamespace(clusterSet), format.MembersService, nil); err != nil {
			t.Errorf("reading the own clusterset: %v", err)
		}
	})
}

// squat has the intruder speak for a cluster that has not joined yet.
func (c *cloud) squat() {
	c.t.Helper()
	exp := webExport(newcomer, 1)
	exp.Key.Name = "squatted"
	c.invent(newcomer, exp)
}

// invent has the intruder create a cluster ID that is not in use, and export under it.
func (c *cloud) invent(id string, exports ...mcs.Export) {
	c.t.Helper()
	client := c.attacker()
	namespaces, err := client.ListNamespaces(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := client.CreateService(c.t.Context(), namespaces[format.ControlNamespace(clusterSet)], format.CatalogName(id), identityOf(intruder), api.PartCatalog); err != nil {
		c.t.Fatal(err)
	}
	now := time.Now()
	forged := format.Member{
		ClusterSetID: clusterSet, ClusterID: id, UID: "uid-of-the-intruder", Version: "1", Process: format.NewProcess(now, "x"), Joined: now,
		Generation: now.UnixMilli(), Heartbeat: now.UnixMilli(),
	}
	c.write(client, c.members(), forged.Instance(c.signer(intruder)))
	c.writeExports(client, id, c.signer(intruder), exports...)
}

func TestAttack_SquattedClusterID(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, open, _ := c.start()
		listed := identityIn(clusterSet, "cls2-listed")
		keyring, err := trust.Load(t.Context(), trust.Config{
			ClusterSetID: clusterSet, StaleAfter: time.Minute, Logger: logr.Discard(), Listed: map[string]trust.Key{newcomer: c.signer(newcomer).Key()},
		})
		if err != nil {
			t.Fatal(err)
		}
		careful := c.joinAs(admin, listed, func(cfg *cloudmap.Config) { cfg.Keyring = keyring })
		time.Sleep(20 * time.Second)
		c.squat()
		squatted := mcs.Key{Namespace: "demo", Name: "squatted"}
		always(t, 5*time.Minute, "refused with --trusted-keys", func() bool { return len(careful.view(squatted).Exports()) == 0 })
		if !careful.isRefused(newcomer)() {
			t.Errorf("the record is not reported: %q", careful.problemsOf(newcomer))
		}
		// Control: a cluster without --trusted-keys believes the first key that it sees.
		if open.exportOf(newcomer, squatted) == nil {
			t.Error("the forged export is not imported without --trusted-keys either")
		}
	})
}

func TestAttack_SquattedSealedClusterID(t *testing.T) {
	inCloud(t, cloudOptions{policies: sealedPolicies}, func(t *testing.T, c *cloud) {
		c.seal(victim, importer, intruder, newcomer)
		c.start()
		client := c.attacker()
		namespaces, err := client.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		namespace := namespaces[format.ControlNamespace(clusterSet)]
		create := func(how string) {
			for _, part := range []string{api.PartCatalog, api.PartView} {
				_, err := client.CreateService(t.Context(), namespace, format.CatalogName("cls5"), identityOf(intruder), part)
				wantDenied(t, "creating a catalog with part="+part+how, err)
			}
		}
		create("")
		if err := c.tag(namespace.ARN, api.Tags(identityOf(intruder), api.PartView)...); err != nil {
			t.Fatal(err)
		}
		create(" in the namespace, tagged as one of the instance view")
		_, err = client.RegisterInstance(t.Context(), c.catalog(newcomer).ID, api.Instance{ID: format.CopyID, Attributes: map[string]string{"A": "b"}})
		wantDenied(t, "writing the catalog of a cluster that has not joined", err)
		// Control: a namespace of its own with the instance view can be created.
		if _, err := client.CreateNamespace(t.Context(), "view", identityOf(intruder), api.PartView); err != nil {
			t.Errorf("creating a namespace of the instance view: %v", err)
		}
	})
}

func TestAttack_FlappingExports(t *testing.T) {
	inCloud(t, cloudOptions{throttled: true}, func(t *testing.T, c *cloud) {
		reader, web := c.join(importer), webExport(victim, 2)
		exporter := c.join(victim, func(cfg *cloudmap.Config) { cfg.InstanceView = true })
		exporter.publish(web)
		until(t, time.Minute, "the export is imported", reader.sees(web))
		time.Sleep(30 * time.Second)
		delay := func(n int) time.Duration {
			changed, began := webExport(victim, n), time.Now()
			exporter.publish(changed)
			until(t, time.Minute, "a change of the neighbour is imported", reader.sees(changed))
			return time.Since(began)
		}
		elsewhere := func(n int) time.Duration {
			changed, began := webExport(importer, n), time.Now()
			reader.publish(changed)
			until(t, time.Minute, "a change of another cluster is imported", exporter.sees(changed))
			return time.Since(began)
		}
		quiet := max(delay(3), elsewhere(3))
		ctx, stop := context.WithCancel(t.Context())
		var tenant sync.WaitGroup
		var flaps atomic.Int64
		tenant.Go(func() { // 50 ServiceExports a second, on all pages
			for i := 0; ctx.Err() == nil; i++ {
				exp := webExport(victim, 1)
				exp.Key = mcs.Key{Namespace: "tenant", Name: fmt.Sprint("flap-", i%200)}
				var err error
				if i/200%2 == 0 {
					err = exporter.Publish(ctx, exp)
				} else {
					err = exporter.Withdraw(ctx, exp.Key)
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				flaps.Add(1)
				time.Sleep(20 * time.Millisecond)
			}
		})
		time.Sleep(5 * time.Minute) // the bursts of pages and instances
		written := func() int {
			requests := c.server.Requests()
			return requests["RegisterInstance"] + requests["DeregisterInstance"]
		}
		before, began := written(), time.Now()
		var longest time.Duration
		for i := range 20 {
			longest = max(longest, delay(4+i), elsewhere(4+i))
			time.Sleep(5 * time.Second)
		}
		writes := float64(written()-before) / time.Since(began).Seconds()
		stop()
		tenant.Wait()
		t.Logf("%d flaps, %.1f writes a second; a change of a neighbour or another cluster takes %v, %v without flaps", flaps.Load(), writes, longest, quiet)
		if flaps.Load() < 1000 { // control
			t.Errorf("%d flaps", flaps.Load())
		}
		// 10 of pages and 10 of instances, and the records that announce the pages.
		if rate := api.DefaultRates()["RegisterInstance"].PerSecond; writes > rate/2 {
			t.Errorf("%.1f writes a second, want at most half of the %v that AWS allows the account", writes, rate)
		}
		if longest > 5*time.Second {
			t.Errorf("a change of a neighbour or another cluster took %v", longest)
		}
	})
}
