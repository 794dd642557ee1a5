package cloudmap

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// staleWorld is a Cloud Map with AWS's delays. Its clusters have instances with health; markers set
// that of stale ones.
type staleWorld struct {
	*simulation
	admin *api.Client
}

func newStaleWorld(t *testing.T) staleWorld {
	t.Helper()
	w := staleWorld{simulation: newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{ConsistencyDelay: cloudmaplocal.Duration(time.Second), HealthDelay: cloudmaplocal.Duration(30 * time.Second)}})}
	w.admin, _ = w.client("admin")
	return w
}

func withHealth(cfg *Config) {
	cfg.InstanceView, cfg.Instances = true, instances.Settings{Unready: instances.UnreadyUnhealthy}
}

func withMarks(cfg *Config) {
	withHealth(cfg)
	cfg.Instances.Stale = mcs.StaleWithdraw
}

// webOf is an export of web-0 with two endpoints of its own.
func webOf(clusterID string, i int, ready ...bool) mcs.Export {
	exp := withReady(webExport(clusterID, i, 2), ready...)
	exp.Key = webKey(0)
	return exp
}

// health returns the health of the instances of a service, as "cls1 HEALTHY", sorted.
func (w staleWorld) health(key mcs.Key) (all []string) {
	found, _, err := w.admin.DiscoverInstances(w.t.Context(), key.Namespace, key.Name, nil)
	if err != nil && !api.IsNotFound(err) {
		w.t.Fatal(err)
	}
	for _, i := range found {
		all = append(all, i.Attributes[instances.AttrClusterID]+" "+i.Health)
	}
	slices.Sort(all)
	return all
}

func (w staleWorld) untilHealth(timeout time.Duration, what string, want ...string) {
	w.t.Helper()
	began := time.Now()
	w.until(timeout, what, func() bool { return slices.Equal(w.health(webKey(0)), want) })
	w.t.Logf("%s after %v", what, time.Since(began).Round(time.Second))
}

// stays fails the test unless the health of web-0 is and stays as wanted.
func (w staleWorld) stays(d time.Duration, what string, want ...string) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		if got := w.health(webKey(0)); !slices.Equal(got, want) {
			w.t.Fatalf("%s: the health is %v, want %v", what, got, want)
		}
	}
}

// healthWrites returns the number of writes of health so far.
func (w staleWorld) healthWrites() int { return w.count()["UpdateInstanceCustomHealthStatus"] }

var (
	bothHealthy  = []string{"cls1 HEALTHY", "cls1 HEALTHY", "cls2 HEALTHY", "cls2 HEALTHY"}
	firstMarked  = []string{"cls1 UNHEALTHY", "cls1 UNHEALTHY", "cls2 HEALTHY", "cls2 HEALTHY"}
	secondIsGone = []string{"cls1 HEALTHY", "cls1 HEALTHY", "cls2 UNHEALTHY", "cls2 UNHEALTHY"}
)

// TestStaleInstances: the instances of a cluster that is stale become unhealthy where another
// cluster has healthy ones, and are as the cluster has signed where it has not. They are healthy
// again soon after the cluster is back, by its own writes, after a restart as well as after an
// interruption.
func TestStaleInstances(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStaleWorld(t)
		first, second := w.begin(cls1, nil, withHealth), w.begin(cls2, nil, withMarks)
		alone := webExport("cls1", 7, 1)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, first.Registry, alone)
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.untilHealth(time.Minute, "all are healthy", bothHealthy...)
		time.Sleep(10 * time.Minute) // all lists are over
		if n := w.healthWrites(); n != 0 {
			t.Errorf("%d writes of health while all clusters are alive, want none", n)
		}
		first.kill()
		w.untilHealth(4*time.Minute, "the instances of the killed cluster are unhealthy", firstMarked...)
		var reads atomic.Int32
		w.setIntercept(func(r request) (string, string, bool) {
			if r.cluster == "cls2" && r.operation == "DiscoverInstances" && r.names("web-") {
				reads.Add(1)
			}
			return "", "", false
		})
		w.stays(30*time.Minute, "they stay so", firstMarked...)
		if got := w.health(alone.Key); !slices.Equal(got, []string{"cls1 HEALTHY"}) {
			t.Errorf("the last endpoint of a service is %v, want it healthy", got)
		}
		if n, want := w.healthWrites(), instances.StaleRequests(1, 2)["UpdateInstanceCustomHealthStatus"]; n != want {
			t.Errorf("%d writes of health for two instances, want %d", n, want)
		}
		// The view and the marker read one service a minute each, and the marker each of two
		// services once more a minute after it became stale.
		if n, most := int(reads.Load()), 2*30+instances.StaleRequests(2, 2)["DiscoverInstances"]; n > most {
			t.Errorf("%d reads of services in 30 minutes, want at most %d", n, most)
		}

		publish(t, second.Registry, webOf("cls2", 5, false, false))
		w.untilHealth(2*time.Minute, "they are the last ones", secondIsGone...)
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.untilHealth(3*time.Minute, "they are not the last ones any more", firstMarked...)
		if n := w.healthWrites(); n != 2+2+2+4 { // cls2 has changed its own twice
			t.Errorf("%d writes of health, want 10", n)
		}

		second.kill() // a restart of the marker changes nothing
		second = w.begin(cls2, nil, withMarks)
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.stays(10*time.Minute, "the marker has restarted", firstMarked...)
		first = w.begin(cls1, nil, withHealth)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, first.Registry, alone)
		w.untilHealth(40*time.Second, "healthy again after a restart", bothHealthy...)

		w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
		w.untilHealth(4*time.Minute, "the instances of a cluster without a registry are unhealthy", firstMarked...)
		time.Sleep(10 * time.Minute)
		second.kill() // only the cluster itself is left
		w.plan(1)
		w.untilHealth(90*time.Second, "healthy again after an interruption", bothHealthy...)
		w.stays(30*time.Minute, "they stay so", bothHealthy...)
		// After an interruption the cluster may check twice before reads show its first write.
		if n := w.healthWrites(); n != 10+2+2+2 && n != 10+2+2+2+2 {
			t.Errorf("%d writes of health, want 16, or 18 with a second check", n)
		}
	})
}

// TestStaleInstances_LateWrite: a write that the marker decided on before it read that the cluster
// is back comes late. The cluster finds it.
func TestStaleInstances_LateWrite(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStaleWorld(t)
		first, second := w.begin(cls1, nil, withHealth), w.begin(cls2, nil, withMarks)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.untilHealth(time.Minute, "all are healthy", bothHealthy...)
		time.Sleep(10 * time.Minute)
		cutOff := cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"}
		denied := cloudmaplocal.FaultRule{
			AccessKey: "cls2", Kind: cloudmaplocal.FaultError, Code: "ThrottlingException", Operations: []string{"UpdateInstanceCustomHealthStatus"}}
		w.plan(1, cutOff, denied)
		w.until(4*time.Minute, "the marker tries to write", func() bool { return w.healthWrites() > 0 })
		w.plan(1, denied) // the cluster is back, and the marker has requests in progress
		time.Sleep(time.Second)
		w.plan(1)
		w.untilHealth(2*time.Minute, "the late write shows", firstMarked...)
		w.untilHealth(3*time.Minute, "all are healthy", bothHealthy...)
		w.stays(30*time.Minute, "they stay so", bothHealthy...)
	})
}

// TestStaleInstances_TwoMarkers: two markers write each instance once, and a cluster that is stale
// again and again costs one write for each instance and time.
func TestStaleInstances_TwoMarkers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStaleWorld(t)
		first, second, _ := w.begin(cls1, nil, withHealth), w.begin(cls2, nil, withMarks), w.begin(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"}, nil, withMarks)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.untilHealth(time.Minute, "all are healthy", bothHealthy...)
		const times = 5
		for range times {
			time.Sleep(10 * time.Minute)
			w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
			w.untilHealth(4*time.Minute, "unhealthy", firstMarked...)
			time.Sleep(5 * time.Minute)
			w.plan(1)
			w.untilHealth(90*time.Second, "healthy", bothHealthy...)
		}
		// two instances: both markers may write at once, and the cluster again while reads do not
		// show its first write
		if n := w.healthWrites(); n < 4*times || n > 8*times {
			t.Errorf("%d writes of health for two instances that were unhealthy %d times", n, times)
		}
	})
}

// TestStaleInstances_Outage: while the registry does not answer the marker, or no heartbeat
// advances, nothing is stale.
func TestStaleInstances_Outage(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStaleWorld(t)
		first, second := w.begin(cls1, nil, withHealth), w.begin(cls2, nil, withMarks)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		w.untilHealth(time.Minute, "all are healthy", bothHealthy...)
		reads := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "InternalFailure", AccessKey: "cls2", Operations: []string{"DiscoverInstances"}}
		writes := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Operations: []string{"RegisterInstance"}}
		for _, rules := range [][]cloudmaplocal.FaultRule{{reads}, {writes}} {
			w.plan(1, rules...)
			w.stays(10*time.Minute, "the registry does not work", bothHealthy...)
			w.plan(1)
			w.stays(10*time.Minute, "it works again", bothHealthy...)
		}
		if n := w.healthWrites(); n != 0 {
			t.Errorf("%d writes of health, want none", n)
		}
	})
}

// TestStaleInstances_Rights: the shipped policies suffice. Without the one for health, the stale
// member names it.
func TestStaleInstances_Rights(t *testing.T) {
	for dropped, want := range map[string]string{"": "", "instance-health.json WriteHealth": "--stale-instances=unhealthy need instance-health.json"} {
		t.Run("without "+dropped, func(t *testing.T) {
			c := startGuarded(t, cloudmaplocal.Options{Unthrottled: true}, dnsPolicies, dropped)
			run := func(cfg Config, change func(*Config)) (*Registry, func(error)) {
				change(&cfg)
				cfg.StaleAfter = 3 * cfg.HeartbeatInterval
				reg := c.registry(t, cfg)
				return reg, start(t, reg)
			}
			a, stop := run(fast(cls1), withHealth)
			b, _ := run(fast(cls2), withMarks)
			publish(t, a, webOf("cls1", 0, true, true))
			publish(t, b, webOf("cls2", 5, true, true))
			within(t, 3*patience, "all are healthy", func() bool { return len(c.withHealth(t, api.HealthHealthy)) == 4 })
			stop(nil)
			within(t, 3*patience, "they are unhealthy, or it is reported", func() bool {
				if want == "" {
					return len(c.withHealth(t, api.HealthUnhealthy)) == 2
				}
				members, err := b.Members(t.Context())
				return err == nil && slices.ContainsFunc(members, func(m registry.Member) bool {
					return m.ClusterID == "cls1" && m.Stale && strings.Contains(strings.Join(m.Problems, "; "), want)
				})
			})
			if denied := c.denials(t); (len(denied) > 0) != (want != "") {
				t.Errorf("denied: %v", denied)
			}
		})
	}
}

// TestStaleInstances_Again: a cluster that is stale for the second time is unhealthy again although
// another cluster of the service has been stale all the time.
func TestStaleInstances_Again(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newStaleWorld(t)
		third := w.begin(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"}, nil, withHealth)
		first, second := w.begin(cls1, nil, withHealth), w.begin(cls2, nil, withMarks)
		publish(t, first.Registry, webOf("cls1", 0, true, true))
		publish(t, second.Registry, webOf("cls2", 5, true, true))
		publish(t, third.Registry, webOf("cls3", 9, true, true))
		healthy, dead := []string{"cls3 HEALTHY", "cls3 HEALTHY"}, []string{"cls3 UNHEALTHY", "cls3 UNHEALTHY"}
		w.untilHealth(time.Minute, "all are healthy", slices.Concat(bothHealthy, healthy)...)
		third.kill()
		w.untilHealth(4*time.Minute, "one cluster is stale", slices.Concat(bothHealthy, dead)...)
		for range 2 {
			time.Sleep(5 * time.Minute)
			w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
			w.untilHealth(4*time.Minute, "two clusters are stale", slices.Concat(firstMarked, dead)...)
			time.Sleep(5 * time.Minute)
			w.plan(1)
			w.untilHealth(90*time.Second, "one is back", slices.Concat(bothHealthy, dead)...)
		}
	})
}
