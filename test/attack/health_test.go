package attack

import (
	"maps"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// viewService returns the service of the instance view for key.
func (c *cloud) viewService(key mcs.Key) api.Service {
	c.t.Helper()
	client := c.client(admin)
	namespaces, err := client.ListNamespaces(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	services, err := client.ListServices(c.t.Context(), namespaces[key.Namespace])
	if err != nil {
		c.t.Fatal(err)
	}
	return services[key.Name]
}

func TestAttack_HealthOfOthers(t *testing.T) {
	inCloud(t, cloudOptions{policies: append([]string{"instance-health.json"}, shippedPolicies...)}, func(t *testing.T, c *cloud) {
		withHealth := func(cfg *cloudmap.Config) {
			cfg.InstanceView, cfg.Instances = true, instances.Settings{Unready: instances.UnreadyUnhealthy}
		}
		withMarks := func(cfg *cloudmap.Config) {
			withHealth(cfg)
			cfg.Instances.Stale = mcs.StaleWithdraw
		}
		web := webExport(victim, 2)
		// the same service at other addresses
		elsewhere := func(clusterID string, by int) mcs.Export {
			exp := webExport(clusterID, 2)
			for i := range exp.Backends[0].Endpoints {
				ep := &exp.Backends[0].Endpoints[i]
				for range by {
					ep.Address = ep.Address.Next()
				}
			}
			return exp
		}
		exporter, marker := c.join(victim, withHealth), c.join(importer, withMarks)
		exporter.publish(web)
		marker.publish(elsewhere(importer, 100))
		count := func(clusterID, health string) (n int) {
			found, _, err := c.client(admin).DiscoverInstances(t.Context(), web.Key.Namespace, web.Key.Name, nil)
			if err != nil && !api.IsNotFound(err) {
				t.Fatal(err)
			}
			for _, i := range found {
				if i.Attributes[instances.AttrClusterID] == clusterID && i.Health == health {
					n++
				}
			}
			return n
		}
		unhealthy := func(clusterID string) int { return count(clusterID, api.HealthUnhealthy) }
		// the first one gets an ID
		until(t, time.Minute, "the victim has instances", func() bool { return count(victim, api.HealthHealthy) == 2 })
		// The intruder exports its own endpoints and the victim's; instances of the former are
		// registered.
		m := c.join(intruder, withHealth)
		own := elsewhere(intruder, 200)
		own.Backends[0].Endpoints = append(own.Backends[0].Endpoints, web.Backends[0].Endpoints...)
		m.publish(own)
		until(t, time.Minute, "the intruder is a member", m.isExported(own.Key))
		time.Sleep(5 * time.Minute)
		m.stop(nil)
		service := c.viewService(web.Key)
		for _, i := range instances.FromExport(elsewhere(victim, 300), clusterSet, "test") {
			i.Attributes = maps.Clone(i.Attributes)
			i.Attributes[instances.AttrNames], i.Health = api.AttrInitialHealth, api.HealthHealthy
			c.write(c.attacker(), service, i)
		}
		forged := c.recordOf(victim)
		forged.Heartbeat += 1e6
		const times = 5
		for range times {
			for began := time.Now(); unhealthy(intruder) != 2; time.Sleep(2 * time.Second) {
				if time.Since(began) > 4*time.Minute {
					t.Fatalf("stale %t: %d of the intruder's instances are unhealthy, want 2", marker.isStale(intruder), unhealthy(intruder))
				}
				forged.Heartbeat++
				c.write(c.attacker(), c.members(), forged.Instance(c.signer(intruder)))
			}
			if n := unhealthy(victim); n > 0 {
				t.Fatalf("%d instances in the victim's name are unhealthy", n)
			}
			m = c.join(intruder, withHealth)
			m.publish(own)
			until(t, time.Minute, "the intruder's instances are healthy", func() bool { return unhealthy(intruder) == 0 })
			m.stop(nil)
		}
		// by the marker, and by the intruder itself
		if n := int(c.healthWrites.Load()); n > 2*2*times {
			t.Errorf("%d writes of health because a cluster with two instances was stale %d times", n, times)
		}

		// Control: the victim is stale.
		exporter.stop(nil)
		until(t, 5*time.Minute, "the victim's instances are unhealthy", func() bool { return unhealthy(victim) == 2 })
		always(t, 5*time.Minute, "those in its name are not", func() bool { return unhealthy(victim) == 2 })
	})
}
