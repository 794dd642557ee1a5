package attack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// forgedRecord has the intruder write the record of the victim after change. The import stays, and
// it ends if the victim itself signs the same.
func forgedRecord(t *testing.T, change func(*format.Member)) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		r := c.recordOf(victim)
		change(&r)
		c.write(c.attacker(), c.members(), r.Instance(c.signer(intruder)))
		until(t, 30*time.Second, "the importer or the victim has seen the forged record", func() bool {
			return reader.isRefused(victim)() || exporter.isRefused(victim)()
		})
		always(t, 10*time.Minute, "imported", reader.sees(web))
		if reader.isStale(victim) {
			t.Error("the victim is stale")
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))

		// Control: the same record with the victim's signature.
		exporter.stop(nil)
		r = c.recordOf(victim)
		change(&r)
		c.write(c.client(admin), c.members(), r.Instance(c.signer(victim)))
		until(t, time.Minute, "the import ends by the victim's own record", func() bool { return !reader.sees(changed)() })
	})
}

func TestAttack_ForgedRecordWithoutPages(t *testing.T) {
	forgedRecord(t, func(r *format.Member) {
		r.Pages, r.Generation, r.Heartbeat = format.Digests{}, r.Generation+1e6, r.Heartbeat+1e6
	})
}

func TestAttack_ForgedFarewell(t *testing.T) {
	forgedRecord(t, func(r *format.Member) {
		r.Pages, r.Farewell, r.Generation, r.Heartbeat = format.Digests{}, true, r.Generation+1e6, r.Heartbeat+1e6
	})
}

func TestAttack_ForgedDrain(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		c.infiltrate()
		own := webExport(intruder, 2)
		own.Drain = mcs.DrainForced
		c.attack(own)
		until(t, time.Minute, "the export of the intruder is imported", func() bool { return reader.exportOf(intruder, web.Key) != nil })
		drains := func() map[string]mcs.Drain {
			members, err := reader.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			properties := map[string]mcs.Properties{}
			for _, m := range members {
				properties[m.ClusterID] = m.Properties
			}
			return mcs.Drains(reader.view(web.Key).Exports(), properties, importer)
		}
		r := c.recordOf(victim)
		r.Properties, r.Generation, r.Heartbeat = mcs.Properties{mcs.PropertyDrain: string(mcs.DrainForced)}.Encode(), r.Generation+1e6, r.Heartbeat+1e6
		c.write(c.attacker(), c.members(), r.Instance(c.signer(intruder)))
		until(t, time.Minute, "the forged record is refused", func() bool { return reader.isRefused(victim)() || exporter.isRefused(victim)() })
		always(t, 5*time.Minute, "the victim is not drained", func() bool { return drains()[victim] == "" && drains()[intruder] == mcs.DrainForced })

		// Control: the same property with the victim's own signature.
		exporter.SetProperties(mcs.Properties{mcs.PropertyDrain: string(mcs.DrainForced)})
		until(t, time.Minute, "the victim drains itself", func() bool { return drains()[victim] == mcs.DrainForced })
	})
}

// forgedExport is an export of the victim's service with an address of the intruder.
func forgedExport() mcs.Export {
	exp := webExport(victim, 1)
	exp.Backends[0].Endpoints[0].Address = exp.Backends[0].Endpoints[0].Address.Next().Next().Next().Next().Next()
	return exp
}

func TestAttack_ForgedPage(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatalf("tagging the victim's catalog: %v", err)
		}
		c.writeExports(c.attacker(), victim, c.signer(intruder), forgedExport())
		until(t, time.Minute, "the forged record is refused", func() bool { return reader.isRefused(victim)() || exporter.isRefused(victim)() })
		always(t, 5*time.Minute, "imported as the victim exported it", reader.sees(web))

		// Control: the same page with the victim's signature.
		exporter.stop(nil)
		c.writeExports(c.client(admin), victim, c.signer(victim), forgedExport())
		until(t, time.Minute, "the page is imported with the victim's own signature", reader.sees(forgedExport()))
	})
}

func TestAttack_SealedCatalog(t *testing.T) {
	inCloud(t, cloudOptions{policies: sealedPolicies}, func(t *testing.T, c *cloud) {
		c.seal(victim, importer, intruder)
		_, reader, web := c.start()
		catalog := c.catalog(victim)
		forged := api.Instance{ID: "page-00-0", Attributes: map[string]string{"A": "b"}}
		_, err := c.attacker().RegisterInstance(t.Context(), catalog.ID, forged)
		wantDenied(t, "writing the victim's catalog", err)
		if err := c.tag(catalog.ARN, api.Tags(identityOf(intruder), api.PartView)...); err != nil {
			t.Fatalf("tagging the victim's catalog, which AWS cannot prevent: %v", err)
		}
		_, err = c.attacker().RegisterInstance(t.Context(), catalog.ID, forged)
		wantDenied(t, "writing the victim's catalog after tagging it", err)
		for id := range c.instances(catalog) {
			wantDenied(t, "removing "+id, c.attacker().DeregisterInstance(t.Context(), catalog.ID, id))
		}
		wantDenied(t, "deleting the catalog", c.attacker().DeleteService(t.Context(), catalog))
		wantDenied(t, "setting catalog-of", c.tag(catalog.ARN, tag("catalog-of", intruder)))
		always(t, time.Minute, "imported", reader.sees(web))

		// Control: the intruder may write its own catalog.
		c.write(c.attacker(), c.catalog(intruder), forged)
	})
}

func TestAttack_ReplayedRecords(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		oldRecord, oldPages := c.instances(c.members())[victim], c.instances(c.catalog(victim))
		if err := exporter.Withdraw(t.Context(), web.Key); err != nil {
			t.Fatal(err)
		}
		isGone := func() bool { return len(reader.view(web.Key, victim).Exports()) == 0 }
		until(t, time.Minute, "the export is withdrawn", isGone)
		// The catalog is the victim's; create.json cannot keep the intruder from tagging it.
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			for _, part := range oldPages {
				c.write(c.attacker(), c.catalog(victim), part)
			}
			c.write(c.attacker(), c.members(), oldRecord)
			always(t, 20*time.Second, "withdrawn", isGone)
		}

		// Control: a cluster without memory believes the same instances, because the victim has
		// signed them.
		exporter.stop(nil)
		for _, part := range oldPages {
			c.write(c.attacker(), c.catalog(victim), part)
		}
		c.write(c.attacker(), c.members(), oldRecord)
		time.Sleep(time.Second) // the consistency delay
		fresh := c.join(newcomer)
		until(t, time.Minute, "a cluster that sees the victim for the first time imports the replayed export", fresh.sees(web))
	})
}

func TestAttack_ReplayFromOtherClusterset(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		// The victim is also a member of another clusterset, of which the intruder knows all
		// records.
		secret := webExport(victim, 5)
		elsewhere := identityIn(otherSet, victim)
		elsewhere.UID = identityOf(victim).UID
		other := c.joinAs(keyOf(elsewhere), elsewhere, func(cfg *cloudmap.Config) { cfg.Signer = c.signer(victim) })
		other.publish(secret)
		until(t, time.Minute, "it is exported to the other clusterset", other.isExported(secret.Key))
		time.Sleep(20 * time.Second)
		record, pages := c.instances(c.service(otherSet, format.MembersService))[victim], c.instances(c.service(otherSet, format.CatalogName(victim)))
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		replay := func() {
			for _, part := range pages {
				c.write(c.attacker(), c.catalog(victim), part)
			}
			c.write(c.attacker(), c.members(), record)
		}
		replay()
		until(t, time.Minute, "the record of the other clusterset is refused", func() bool { return reader.isRefused(victim)() || exporter.isRefused(victim)() })
		always(t, 5*time.Minute, "imported as exported here", reader.sees(web))

		// Control: the key is the same in both clustersets, so that only the clusterset in the
		// signature makes the difference.
		if parsed, err := format.ParseMember(record, otherSet); err != nil || parsed.Key != c.signer(victim).Key() {
			t.Errorf("the replayed record has key %s, %v; want a valid one with the victim's key", parsed.Key, err)
		}
	})
}

func TestAttack_OlderClaimOfClusterID(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		claim := c.recordOf(victim)
		claim.UID, claim.Joined, claim.Heartbeat = "uid-of-the-intruder", claim.Joined.Add(-24*time.Hour), claim.Heartbeat+1e6
		for range 30 {
			claim.Heartbeat += 10_000
			c.write(c.attacker(), c.members(), claim.Instance(c.signer(intruder)))
			time.Sleep(5 * time.Second)
			if !reader.sees(web)() {
				t.Fatal("the import ended")
			}
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "the victim goes on exporting", reader.sees(changed))

		// Control: a cluster whose ID another one has, by record and catalog, exports nothing.
		duplicate := identityOf(victim)
		duplicate.UID = "uid-duplicate"
		second := c.joinAs(keyOf(duplicate), duplicate)
		second.publish(webExport(victim, 4))
		until(t, time.Minute, "a second cluster with the same ID reports a duplicate", func() bool {
			var problem *registry.DuplicateIDError
			return errors.As(second.view(webKey).Local.Err, &problem)
		})
	})
}

func TestAttack_GenerationWithoutSuccessor(t *testing.T) {
	for name, isKnown := range map[string]bool{"the controller restarts": true, "the controller has lost its ConfigMap": false} {
		t.Run(name, func(t *testing.T) { lastGeneration(t, isKnown) })
	}
}

func lastGeneration(t *testing.T, isKnown bool) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		const last = 1 << 53
		forged := c.recordOf(victim)
		forged.Generation, forged.Heartbeat = last, 253402300799_999 // the end of the year 9999
		exporter.stop(nil)
		c.write(c.attacker(), c.members(), forged.Instance(c.signer(intruder)))
		if !isKnown {
			delete(c.joined, identityOf(victim))
		}
		exporter = c.join(victim) // reads its record as a previous process left it
		exporter.publish(web)
		changed := webExport(victim, 3)
		until(t, 5*time.Minute, "the victim has its own record back", func() bool {
			r, err := format.ParseMember(c.instances(c.members())[victim], clusterSet)
			return err == nil && r.Key == c.signer(victim).Key() && r.Generation < last
		})
		exporter.publish(changed)
		until(t, 3*time.Minute, "a change of the victim is imported", reader.sees(changed))

		// Control: the victim's own record with this time is read, and keeps every later one from
		// counting.
		exporter.stop(nil)
		c.write(c.client(admin), c.members(), forged.Instance(c.signer(victim)))
		until(t, time.Minute, "the record with the victim's signature is believed", func() bool {
			members, _ := reader.Members(t.Context())
			return slices.ContainsFunc(members, func(m registry.Member) bool { return m.ClusterID == victim && m.Heartbeat.Year() == 9999 })
		})
	})
}

func TestAttack_RecordKeptOverwritten(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		forged := c.recordOf(victim)
		forged.Heartbeat += 1e6
		client, members := c.attacker(), c.members()
		overwrite := func() {
			forged.Heartbeat++
			c.write(client, members, forged.Instance(c.signer(intruder)))
		}
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(200 * time.Millisecond) {
			overwrite()
			if !reader.sees(web)() || reader.isStale(victim) {
				t.Fatalf("after %v: imported %t, stale %t", time.Since(began), reader.sees(web)(), reader.isStale(victim))
			}
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		for began := time.Now(); !reader.sees(changed)(); time.Sleep(200 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("a change of the victim is not imported within a minute")
			}
			overwrite()
		}

		// Control: a dead cluster becomes stale, so that heartbeats arrive by the copy in the
		// catalog only.
		exporter.stop(nil)
		for began := time.Now(); !reader.isStale(victim); time.Sleep(200 * time.Millisecond) {
			if time.Since(began) > 5*time.Minute {
				t.Fatal("the victim is not stale although its controller ended")
			}
			overwrite()
		}
	})
}

func TestAttack_DeletedRecordAndPages(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		client := c.attacker()
		if err := c.tag(c.catalog(victim).ARN, api.Tags(identityOf(intruder), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		for id := range c.instances(c.catalog(victim)) {
			if err := client.DeregisterInstance(t.Context(), c.catalog(victim).ID, id); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.DeregisterInstance(t.Context(), c.members().ID, victim); err != nil {
			t.Fatal(err)
		}
		always(t, 5*time.Minute, "imported", reader.sees(web))

		// Control: without the tag of the intruder, a withdrawn export ends.
		if err := c.tagAs(admin, c.catalog(victim).ARN, api.Tags(identityOf(victim), api.PartCatalog)...); err != nil {
			t.Fatal(err)
		}
		if err := exporter.Withdraw(t.Context(), web.Key); err != nil {
			t.Fatal(err)
		}
		until(t, 3*time.Minute, "the victim's own withdrawal ends the import", func() bool { return !reader.sees(web)() })
	})
}

func TestAttack_ThousandJunkRecords(t *testing.T) {
	kinds := map[string]func(c *cloud, i int) api.Instance{
		"not signed": func(_ *cloud, i int) api.Instance {
			return api.Instance{ID: fmt.Sprint("junk-", i), Attributes: map[string]string{"A": "b"}}
		},
		"of invented clusters": func(c *cloud, i int) api.Instance {
			r := format.Member{ClusterSetID: clusterSet, ClusterID: fmt.Sprint("junk-", i), UID: fmt.Sprint("uid-", i), Version: "1", Generation: 1, Joined: time.Now(), Heartbeat: time.Now().UnixMilli()}
			return r.Instance(c.signer(intruder))
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
				exporter, reader, web := c.start()
				client, members := c.attacker(), c.members()
				for i := range 1000 {
					if _, err := client.RegisterInstance(t.Context(), members.ID, kind(c, i)); err != nil {
						break // the quota of the service
					}
				}
				if n := len(c.instances(members)); n != 1000 {
					t.Fatalf("there are %d records, want as many as AWS allows", n)
				}
				before := c.server.Requests()["DiscoverInstances"]
				always(t, time.Minute, "imported", reader.sees(web))
				// Each cluster polls once a second, and reads the catalogs of eight unknown
				// clusters at a poll.
				if n := c.server.Requests()["DiscoverInstances"] - before; n > 2*60*10 {
					t.Errorf("%d reads of two clusters in a minute, want ten a second each", n)
				}
				if reader.isStale(victim) {
					t.Error("the victim is stale")
				}
				changed := webExport(victim, 3)
				exporter.publish(changed)
				until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))

				// Control: the service is full. A cluster that joins needs another one
				// (TestMoreMembers of internal/registry/cloudmap).
				_, err := c.client(admin).RegisterInstance(t.Context(), members.ID, kind(c, 1000))
				if err == nil {
					t.Error("there is room for another record")
				}
			})
		})
	}
}

func TestAttack_RecordInFurtherServices(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, reader, web := c.start()
		namespaces, err := c.attacker().ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		farewell := c.recordOf(victim)
		farewell.Pages, farewell.Farewell, farewell.Generation, farewell.Heartbeat = format.Digests{}, true, farewell.Generation+1e6, farewell.Heartbeat+1e6
		var further []api.Service
		for n := 2; n <= format.MaxMembersServices; n++ {
			s, err := c.attacker().CreateService(t.Context(), namespaces[format.ControlNamespace(clusterSet)], format.MembersServiceName(n), identityOf(intruder), api.PartMembers)
			if err != nil {
				t.Fatal(err)
			}
			c.write(c.attacker(), s, farewell.Instance(c.signer(intruder)))
			further = append(further, s)
		}
		reader.stop(nil)
		reader = c.join(importer) // a process that starts looks for further services
		until(t, time.Minute, "imported after a restart", reader.sees(web))
		before := c.server.Requests()["DiscoverInstances"]
		always(t, 5*time.Minute, "imported", reader.sees(web))
		// One of two clusters reads all four services with each poll, which is every five seconds,
		// or every second while not all notifications arrive.
		if n := c.server.Requests()["DiscoverInstances"] - before; n > 5*60*(format.MaxMembersServices+1+1) {
			t.Errorf("%d reads of two clusters in five minutes", n)
		}
		if reader.isStale(victim) {
			t.Error("the victim is stale")
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))

		// Control: the services are read. The victim's own farewell in one of them ends the import.
		exporter.stop(nil)
		farewell.Heartbeat += 1e6
		c.write(c.client(admin), further[0], farewell.Instance(c.signer(victim)))
		until(t, time.Minute, "the import ends by the victim's own record", func() bool { return !reader.sees(changed)() })
	})
}

// pinStore is a trust.Store in memory.
type pinStore map[string]trust.Pin

func (s pinStore) LoadPins(context.Context) (map[string]trust.Pin, error) { return s, nil }

func (s pinStore) SavePins(_ context.Context, pins map[string]trust.Pin) error {
	for id, pin := range pins {
		if s[id] = pin; pin.IsZero() {
			delete(s, id)
		}
	}
	return nil
}

func (pinStore) LoadEnd(context.Context) (time.Time, error) { return time.Time{}, nil }
func (pinStore) SaveEnd(context.Context, time.Time) error   { return nil }

func TestAttack_RotatedClusters(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, _, web := c.start()
		c.infiltrate()
		const most, group, groups = 50, 10, 12
		store := pinStore{}
		bounded := func() (*member, func()) {
			keyring, err := trust.Load(t.Context(), trust.Config{ClusterSetID: clusterSet, StaleAfter: config.Default().Registry.StaleAfter, Store: store, MaxPins: most, Logger: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			saved := make(chan struct{})
			go func() {
				defer close(saved)
				_ = keyring.Run(ctx, func() error { <-ctx.Done(); return nil })
			}()
			m := c.join(newcomer, func(cfg *cloudmap.Config) { cfg.Keyring = keyring })
			return m, func() { m.stop(nil); stop(); <-saved }
		}
		reader, stop := bounded()
		until(t, time.Minute, "the export of the victim is imported", reader.sees(web))
		exporter.stop(nil)
		known := map[string]bool{}
		for g := range groups {
			for i := range group {
				c.invent(fmt.Sprintf("invented-%d-%d", g, i))
			}
			time.Sleep(30 * time.Second)
			for id := range store {
				known[id] = true
			}
			for i := range group {
				id := fmt.Sprintf("invented-%d-%d", g, i)
				if err := c.attacker().DeregisterInstance(t.Context(), c.members().ID, id); err != nil {
					t.Fatal(err)
				}
				c.deleteService(c.attacker(), c.catalog(id))
			}
		}
		stop()
		if len(known) < group*groups { // control
			t.Errorf("%d clusters were known, want more than %d", len(known), group*groups)
		}
		if len(store) > most+3*group { // those of the last minute stay besides
			t.Errorf("%d keys of clusters are stored, want some %d", len(store), most)
		}
		if store[victim].Key != c.signer(victim).Key() {
			t.Error("the key of the victim is not pinned any more")
		}
		reader, _ = bounded()
		r := c.recordOf(victim)
		r.Heartbeat, r.Generation = r.Heartbeat+1e6, r.Generation+1e6
		c.write(c.attacker(), c.members(), r.Instance(c.signer(intruder)))
		until(t, time.Minute, "a forged record of the victim is refused after a restart", reader.isRefused(victim))
	})
}
