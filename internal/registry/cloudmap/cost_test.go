package cloudmap

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

var (
	cls1 = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	cls2 = mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}
)

var webKey, webExport, noise = cloudmaptest.WebKey, cloudmaptest.WebExport, cloudmaptest.Noise

func publish(t *testing.T, reg *Registry, exp mcs.Export) {
	t.Helper()
	if err := reg.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
}

func look(t *testing.T, reg *Registry, key mcs.Key) registry.View {
	t.Helper()
	view, err := reg.Lookup(context.Background(), key)
	if err != nil {
		return registry.View{}
	}
	return view
}

func isExported(t *testing.T, reg *Registry, key mcs.Key) func() bool {
	return func() bool { return look(t, reg, key).Local.State == registry.Exported }
}

// sees reports whether reg has cluster's export of the same content.
func sees(t *testing.T, reg *Registry, exp mcs.Export) func() bool {
	return func() bool {
		for _, got := range look(t, reg, exp.Key).Exports() {
			if got.Equal(registry.Published(exp)) {
				return true
			}
		}
		return false
	}
}

// TestSteadyState counts requests while nothing changes: one read per poll, one write per
// heartbeat, whatever there is.
func TestSteadyState(t *testing.T) {
	for _, exports := range []int{1, 300} {
		t.Run(fmt.Sprint(exports, " exports"), func(t *testing.T) {
			c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 30_000})
			a, b := steady(t, c, cls1), steady(t, c, cls2)
			for i := range exports {
				publish(t, a, webExport("cls1", i, 3))
				publish(t, b, webExport("cls2", i+1000, 3))
			}
			for i := range exports {
				within(t, 20*time.Second, "everything is exported", isExported(t, a, webKey(i)))
				within(t, 20*time.Second, "everything is exported", isExported(t, b, webKey(i+1000)))
				within(t, 20*time.Second, "everything is seen", sees(t, a, webExport("cls2", i+1000, 3)))
				within(t, 20*time.Second, "everything is seen", sees(t, b, webExport("cls1", i, 3)))
			}
			within(t, 60*time.Second, "the instance view is written", func() bool {
				return len(c.instances(t, "demo", "web-0")) == 3 && a.view.Pending() == 0 && b.view.Pending() == 0
			})
			before := maps.Clone(c.server.Load().Requests())
			const periods = 5
			began := time.Now()
			reads := func() int { return c.requests("DiscoverInstances") - int(before["DiscoverInstances"]) }
			writes := func() int { return c.requests("RegisterInstance") - int(before["RegisterInstance"]) }
			within(t, time.Minute, "five reads, five heartbeats and the time for them", func() bool {
				return time.Since(began) >= periods*500*time.Millisecond && reads() >= periods && writes() >= periods
			})
			// Two clusters, a poll every 50 ms and a heartbeat every 500 ms.
			gotReads, gotWrites, took := reads(), writes(), time.Since(began)
			if limit := 2 * (int(took/(50*time.Millisecond)) + 1); gotReads > limit {
				t.Errorf("%d reads in %v, want one per poll: about %d", gotReads, took, limit)
			}
			if limit := 2 * (int(took/(500*time.Millisecond)) + 1); gotWrites > limit {
				t.Errorf("%d writes in %v, want one per heartbeat: about %d", gotWrites, took, limit)
			}
			for operation, count := range c.server.Load().Requests() {
				if operation != "DiscoverInstances" && operation != "RegisterInstance" && count != before[operation] {
					t.Errorf("%d requests %s while nothing changed", count-before[operation], operation)
				}
			}
		})
	}
}

// steady starts a registry with intervals that can be reported apart, and no audits.
func steady(t *testing.T, c *cloud, identity mcs.Identity) *Registry {
	t.Helper()
	cfg := fast(identity)
	cfg.PollInterval, cfg.HeartbeatInterval, cfg.times.Audit = 50*time.Millisecond, 500*time.Millisecond, time.Hour
	cfg.times.instanceResync = time.Hour
	cfg.InstanceView = true
	reg := c.registry(t, cfg)
	start(t, reg)
	return reg
}

// TestOneChange counts the writes for the change of one service, in virtual time, because a record
// may be written twice where the machine is slow.
func TestOneChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		p := w.begin(cls1, nil, func(cfg *Config) { cfg.HeartbeatInterval, cfg.times.Audit = time.Hour, time.Hour })
		for i := range 20 {
			publish(t, p.Registry, webExport("cls1", i, 3))
		}
		for i := range 20 {
			w.until(time.Minute, "everything is exported", isExported(t, p.Registry, webKey(i)))
		}
		time.Sleep(time.Minute)
		before := w.count()
		publish(t, p.Registry, webExport("cls1", 7, 4))
		time.Sleep(time.Minute)
		after := w.count()
		for _, operation := range []string{"RegisterInstance", "RegisterInstance members"} {
			if n := after[operation] - before[operation]; n != 1 {
				t.Errorf("one change made %d requests %s, want 1: the page and the record", n, operation)
			}
		}
		if !isExported(t, p.Registry, webKey(7))() {
			t.Error("the change is not exported")
		}
	})
}

// TestChangesTogether counts the writes of changes that come alone, in pairs and at random, in
// virtual time: a change that is written at once may cost a write of the record of its own, but not
// where writes are many.
func TestChangesTogether(t *testing.T) {
	const rounds = 200
	for name, tt := range map[string]struct {
		// pause returns the time from change i to the next one, and service its service.
		pause   func(i int, random *rand.Rand) time.Duration
		service func(i int) int
		// pages and records are the most writes for each change.
		pages, records float64
	}{
		"alone":                             {pause: func(int, *rand.Rand) time.Duration { return time.Second }, service: func(int) int { return 1 }, pages: 1, records: 1},
		"often, alone":                      {pause: func(int, *rand.Rand) time.Duration { return 150 * time.Millisecond }, service: func(int) int { return 1 }, pages: 1, records: 1},
		"a service with two EndpointSlices": {pause: inPairs, service: func(int) int { return 1 }, pages: 0.5, records: 0.5},
		"two services with the same pods":   {pause: inPairs, service: func(i int) int { return i % 2 }, pages: 1, records: 0.5},
		"at random, five a second":          {pause: atRandom(200 * time.Millisecond), service: func(i int) int { return i % 20 }, pages: 1, records: 0.98},
		"at random, thirteen a second":      {pause: atRandom(75 * time.Millisecond), service: func(i int) int { return i % 20 }, pages: 1, records: 0.98},
		"at random, fifty a second":         {pause: atRandom(20 * time.Millisecond), service: func(i int) int { return i % 20 }, pages: 1, records: 0.22},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{})
				p := w.begin(cls1, nil, func(cfg *Config) {
					cfg.HeartbeatInterval, cfg.times.Audit, cfg.times.Intervals = time.Hour, time.Hour, defaultTimes().Intervals
				})
				for i := range 20 {
					publish(t, p.Registry, webExport("cls1", i, 1))
				}
				time.Sleep(5 * time.Minute)
				random, before := rand.New(rand.NewPCG(1, 0)), w.count()
				for i := range rounds {
					publish(t, p.Registry, webExport("cls1", tt.service(i), 2+i))
					time.Sleep(tt.pause(i, random))
				}
				time.Sleep(time.Minute)
				after := w.count()
				pages, records := after["RegisterInstance"]-before["RegisterInstance"], after["RegisterInstance members"]-before["RegisterInstance members"]
				t.Logf("%d changes made %d writes of pages and %d of the record", rounds, pages, records)
				const learned = 4 // the first changes are not known to be alone or together yet
				if float64(pages) > tt.pages*rounds+learned || float64(records) > tt.records*rounds+learned {
					t.Errorf("%d changes made %d writes of pages and %d of the record, want at most %g and %g for each", rounds, pages, records, tt.pages, tt.records)
				}
			})
		})
	}
}

// atRandom returns a pause that has this mean.
func atRandom(mean time.Duration) func(int, *rand.Rand) time.Duration {
	return func(_ int, random *rand.Rand) time.Duration {
		return time.Duration(random.ExpFloat64() * float64(mean))
	}
}

// inPairs is the pause between changes of which two have one cause.
func inPairs(i int, _ *rand.Rand) time.Duration {
	if i%2 == 0 {
		return 5 * time.Millisecond
	}
	return time.Second
}

// TestThousandExports publishes from nothing under AWS's limits.
func TestThousandExports(t *testing.T) {
	const exports, endpoints = 1000, 20
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		regs := a.start(t, 2, nil)
		exporter, importer := regs[0], regs[1]
		before := a.requests("RegisterInstance", "DeregisterInstance")
		began := time.Now()
		for i := range exports {
			publish(t, exporter, webExport("cls1", i, endpoints))
			time.Sleep(2 * time.Millisecond) // as fast as the controller reconciles them
		}
		for i := range exports {
			await(t, time.Minute, "everything is exported", isExported(t, exporter, webKey(i)))
			await(t, time.Minute, "everything is seen", sees(t, importer, webExport("cls1", i, endpoints)))
		}
		writes := a.requests("RegisterInstance", "DeregisterInstance") - before
		t.Logf("%d exports of %d endpoints took %v and %d writes", exports, endpoints, time.Since(began).Round(time.Millisecond), writes)
		if writes > 200 {
			t.Errorf("%d writes, want at most 200", writes)
		}
	})
}

func membersOf(reg *Registry) []registry.Member {
	members, err := reg.Members(context.Background())
	if err != nil {
		return nil
	}
	return members
}
