package instances

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// withDNS is the configuration of a view that creates private DNS namespaces.
func withDNS(cfg *Config) {
	cfg.Settings = Settings{VPC: "vpc-0a1b2c3d", TTL: 15, Routing: "MULTIVALUE"}
}

// publishDNS is publish for an export that asks for DNS records.
func (v *testView) publishDNS(addresses ...string) {
	v.mu.Lock()
	exp := webExport("cls1", addresses...)
	exp.InstanceDNS = mcs.InstanceDNSAddress
	v.exports[key] = exp
	v.mu.Unlock()
	v.Enqueue(key)
}

var (
	errRefused   = &api.OperationError{Code: "INVALID_CHANGE_BATCH"}
	errThrottled = &api.OperationError{Code: "THROTTLED_REQUEST"}
)

// TestOperations goes through the writes of three instances and the looks at their operations.
func TestOperations(t *testing.T) {
	op := func(instance string, after time.Duration) operation {
		return operation{id: instance, instance: instance, at: start.Add(after)}
	}
	ids := func(o operations) string {
		var accepted []string
		for _, op := range o.accepted {
			accepted = append(accepted, op.id)
		}
		return fmt.Sprint(accepted, slices.Sorted(maps.Keys(o.undone)))
	}
	var o operations
	check := func(step string, want string, lookAfter time.Duration, wantFailure error) {
		t.Helper()
		if got := ids(o); got != want {
			t.Errorf("%s: operations %s, want %s", step, got, want)
		}
		if got := o.lookAt.Sub(start); len(o.accepted) > 0 && got != lookAfter {
			t.Errorf("%s: the next look is after %v, want %v", step, got, lookAfter)
		}
		if err := o.failure(); !errors.Is(err, wantFailure) {
			t.Errorf("%s: failure %v, want %v", step, err, wantFailure)
		}
	}
	at := start.Add
	o = o.add(start, []operation{op("a", 0), op("b", 0)})
	check("a write", "[a b] []", firstLook, nil)
	o = o.add(at(time.Second), []operation{{id: "b2", instance: "b", at: at(time.Second)}, op("c", time.Second)})
	check("another write", "[a b2 c] []", firstLook, nil)
	o = o.settle(at(2*time.Second), []result{{isOver: true, reason: errRefused}, {}})
	check("one fails, one is not over", "[c b2] [a]", 4*time.Second, nil)
	o = o.settle(at(4*time.Second), []result{{isOver: true}})
	check("one succeeds, the next one is not read", "[b2] [a]", 4*time.Second, nil)
	for _, pause := range []time.Duration{3, 6, 12, 24, 30, 30} { // as long as it has taken
		now := o.lookAt
		o = o.settle(now, []result{{}})
		check("it is not over", "[b2] [a]", now.Sub(start)+pause*time.Second, nil)
	}
	o = o.giveUp(at(2 * time.Minute))
	check("it is not old enough", "[b2] [a]", 109*time.Second, nil)
	o = o.giveUp(at(2*time.Minute + time.Second))
	check("it takes too long", "[] [a]", 0, errRefused)
	o = o.add(at(3*time.Minute), []operation{op("a", 3*time.Minute)})
	check("it is written again", "[a] [a]", 3*time.Minute+firstLook, nil)
	o = o.settle(at(3*time.Minute+firstLook), []result{{}})
	check("it is not over again", "[a] [a]", 3*time.Minute+2*firstLook, nil)
	if again := o.settle(o.lookAt, []result{{isOver: true}}); !again.isEmpty() || again.failure() != nil {
		t.Errorf("operations %s after a success", ids(again))
	}
	o = o.settle(o.lookAt, []result{{isOver: true, reason: errThrottled}})
	check("it is throttled", "[] [a]", 0, errThrottled)
	if lines := o.warnings(); len(lines) > 0 {
		t.Errorf("warnings %q for a failure that a retry resolves", lines)
	}
	o = o.add(at(4*time.Minute), nil)
	check("nothing has to be written any more", "[] []", 0, nil)
}

func TestOperationsWarnings(t *testing.T) {
	o := operations{undone: map[string]undone{}}
	for _, id := range []string{"d", "c", "b", "a"} {
		o.undone[id] = undone{reason: errRefused}
	}
	o.undone["e"], o.undone["f"] = undone{reason: errThrottled}, undone{reason: errRefused, isRemoval: true}
	want := []string{
		"4 endpoints are not shown as Cloud Map instances (a, b, c, …): " + errRefused.Error(),
		"1 Cloud Map instances of endpoints that are gone or not ready are still there (f): " + errRefused.Error(),
	}
	if got := o.warnings(); !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}

// An instance whose registration came to nothing is registered again, even if a list shows it, and
// its other attributes stay.
func TestView_WithLastWrite_Undone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exp := webExport("cls1", "10.0.0.1", "10.0.0.2")
		v := &View{cfg: Config{Identity: ours, Version: "test", ResyncInterval: time.Minute}, isOwn: OwnedBy("cls1", "set1")}
		want, _ := v.instancesOf(&exp, shape{})
		for name, writtenAt := range map[string]time.Time{"recent": time.Now(), "long ago": time.Now().Add(-time.Hour)} {
			listed, _ := v.instancesOf(&exp, shape{})
			listed[1].Attributes["LAMBDA"] = "x"
			last := service{applied: &exp, writtenAt: writtenAt, operations: operations{undone: map[string]undone{instance2: {}}}}
			changes := Diff(want, v.withLastWrite(listed, last), v.isOwn)
			if len(changes.Register) != 1 || changes.Register[0].ID != instance2 || changes.Register[0].Attributes["LAMBDA"] != "x" || changes.count() != 1 {
				t.Errorf("%s: changes %+v, want the registration of the second instance", name, changes)
			}
		}
	})
}

// failOperations makes AWS accept requests of the view and fail to carry them out.
func (c *cloud) failOperations(t *testing.T, request, instance, code string, next int) {
	t.Helper()
	c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultFail, Operations: []string{request}, Instance: instance, Code: code, Message: "no", Next: next})
}

// AWS reports what Route 53 refuses in the operation of a write that it has accepted. It is
// reported to users as long as it lasts, and tried again.
func TestView_ReportsFailedOperation(t *testing.T) {
	notShown := "1 endpoints are not shown as Cloud Map instances (" + instance2 + "): "
	stillShown := "1 Cloud Map instances of endpoints that are gone or not ready are still there (" + instance2 + "): "
	nothing := "the endpoints are not shown as Cloud Map instances: creating namespace demo: "
	for _, tt := range []struct {
		request, code, want string
		// within is the time within which it is retried after three failures.
		within time.Duration
	}{
		{"RegisterInstance", "ACCESS_DENIED", notShown, maxRetry},
		{"RegisterInstance", "INVALID_CHANGE_BATCH", notShown, maxRetry},
		{"RegisterInstance", "INTERNAL_FAILURE", notShown, maxRetry},
		{"RegisterInstance", "THROTTLED_REQUEST", "", maxRetry},
		{"DeregisterInstance", "ACCESS_DENIED", stillShown, maxRetry},
		{"DeregisterInstance", "HOSTED_ZONE_NOT_FOUND", stillShown, maxRetry},
		{"CreatePrivateDnsNamespace", "ACCESS_DENIED", nothing, maxRetry},
		{"CreatePrivateDnsNamespace", "CANNOT_CREATE_HOSTED_ZONE", nothing, maxRetry},
		{"CreatePrivateDnsNamespace", "INTERNAL_FAILURE", nothing, maxRetry},
	} {
		t.Run(tt.code+" of "+tt.request, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloudWith(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(time.Second), ConsistencyDelay: cloudmaplocal.Duration(500 * time.Millisecond)}})
				failures := 0
				log := funcr.New(func(_, args string) {
					if strings.Contains(args, "Failed to mirror endpoints") || strings.Contains(args, "another client") {
						failures++
					}
				}, funcr.Options{})
				v := c.view(t, withDNS, func(cfg *Config) { cfg.Logger = log })
				isRemoval, failing := tt.request == "DeregisterInstance", ""
				if tt.request != "CreatePrivateDnsNamespace" {
					failing = instance2
					v.publishDNS("10.0.0.1")
				}
				if isRemoval {
					v.publishDNS("10.0.0.1", "10.0.0.2")
				}
				v.start(t)
				c.failOperations(t, tt.request, failing, tt.code, 0)
				if isRemoval {
					v.publishDNS("10.0.0.1")
				} else {
					v.publishDNS("10.0.0.1", "10.0.0.2")
				}
				want := []string{}
				if tt.want != "" {
					want = []string{tt.want + "AWS Cloud Map accepted the request, but the operation failed: " + tt.code + ": no"}
				}
				isReported := func() bool {
					got := v.Warnings(key)
					return len(got) == len(want) && (len(got) == 0 || strings.HasPrefix(got[0], want[0]))
				}
				for _, after := range []time.Duration{5 * time.Second, 10 * time.Minute} {
					if pass(after); !isReported() {
						t.Errorf("after %v the warnings are %q, want %q", after, v.Warnings(key), want)
					}
				}
				if len(v.notified) != len(want) {
					t.Errorf("%d notifications, want %d: nothing changes while it is retried", len(v.notified), len(want))
				}
				if failures != 1 {
					t.Errorf("%d failures are logged, want the first one", failures)
				}
				c.fail(t)
				pass(tt.within + 10*time.Second)
				shown := "demo/web: " + instance1 + " " + instance2
				if isRemoval {
					shown = "demo/web: " + instance1
				}
				c.want(t, "after the end of the fault", shown)
				if got := v.Warnings(key); len(got) > 0 || len(v.notified) != 2*len(want) || v.Pending() > 0 {
					t.Errorf("after the end of the fault the warnings are %q, with %d notifications and %d services pending", got, len(v.notified), v.Pending())
				}
				v.wantMetrics(t, "omitted_instances", map[string]float64{"collision": 0, "limit": 0, "refused": 0, "failed": 0})
			})
		})
	}
}

// The operations of writes in a service without records, which change nothing in Route 53, are not
// looked at, and those in a service with records once if they end soon.
func TestView_LooksAtOperations(t *testing.T) {
	for name, tt := range map[string]struct {
		publish func(*testView, ...string)
		delay   time.Duration
		lost    int
		want    int
	}{
		"without DNS": {(*testView).publish, time.Second, 0, 0},
		"with DNS":    {(*testView).publishDNS, time.Second, 0, 3},
		// at 2, 4, 8, 16 and 32 s
		"with DNS, half a minute": {(*testView).publishDNS, 31 * time.Second, 0, 3 * 5},
		// at 2, 4, 8, 16, 32, 62 and 92 s, and when it is written again after two minutes
		"with DNS, one that never ends": {(*testView).publishDNS, time.Second, 1, 2 + 7 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloudWith(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(tt.delay)}})
				v := c.view(t, withDNS)
				tt.publish(v, "10.0.0.1", "10.0.0.2")
				v.start(t)
				before := c.Requests()["GetOperation"]
				if tt.lost > 0 {
					c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultLost, Operations: []string{"RegisterInstance"}, Next: tt.lost})
				}
				tt.publish(v, "10.0.0.2", "10.0.0.3", "10.0.0.4")
				pass(20 * time.Minute)
				if got := c.Requests()["GetOperation"] - before; got != tt.want {
					t.Errorf("%d requests for the operations of three writes, want %d", got, tt.want)
				}
				c.want(t, "after 20 minutes", "demo/web: "+instance2+" tcp-10_0_0_3-8080 tcp-10_0_0_4-8080")
				if got := v.Warnings(key); len(got) > 0 || len(v.notified) > 0 {
					t.Errorf("warnings %q, %d notifications", got, len(v.notified))
				}
			})
		})
	}
}

// A change of a service does not wait until the operations of many earlier writes are known, and
// neither do their failures.
func TestView_WritesBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t, withDNS)
		v.publishDNS("10.0.0.1")
		v.start(t)
		c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultFail, Operations: []string{"RegisterInstance"}, Instance: instance2, Code: "ACCESS_DENIED"},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultDelay, Operations: []string{"GetOperation"}, Delay: cloudmaplocal.Duration(100 * time.Millisecond)})
		addresses := []string{"10.0.0.1", "10.0.0.2"}
		for i := range 200 {
			addresses = append(addresses, fmt.Sprint("10.0.1.", i))
		}
		v.publishDNS(addresses...)
		pass(5 * time.Second)
		began := time.Now()
		v.publishDNS(append(addresses, "10.0.0.3")...)
		for len(v.Warnings(key)) == 0 || !slices.ContainsFunc(c.content(t), func(s string) bool { return strings.Contains(s, "tcp-10_0_0_3-8080") }) {
			if time.Sleep(100 * time.Millisecond); time.Since(began) > 10*time.Second {
				t.Fatalf("warnings %q, content %q", v.Warnings(key), c.content(t))
			}
		}
	})
}

// The export is withdrawn, and AWS does not carry the removal out: it is removed again soon, not in
// the turn of the service's next read.
func TestView_RetriesFailedOperationOfRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloudWith(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(time.Second)}})
		v := c.view(t, withDNS)
		var want []string
		for i := range 5 {
			exp := webExport("cls1", "10.0.0.1")
			exp.Key.Name, exp.InstanceDNS = fmt.Sprint("other-", i), mcs.InstanceDNSAddress
			v.exports[exp.Key] = exp
			v.Enqueue(exp.Key)
			want = append(want, "demo/"+exp.Key.Name+": "+instance1)
		}
		v.publishDNS("10.0.0.1")
		v.start(t)
		c.failOperations(t, "DeregisterInstance", "", "ACCESS_DENIED", 1)
		v.publish()
		pass(30 * time.Second)
		c.want(t, "30 s after the withdrawal", want...)
	})
}

// A cluster that leaves returns why AWS does not remove its instances.
func TestView_LeaveReturnsFailureOfOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t, withDNS)
		v.publishDNS("10.0.0.1")
		v.start(t)()
		c.failOperations(t, "DeregisterInstance", "", "ACCESS_DENIED", 0)
		began := time.Now()
		if err := v.Leave(t.Context()); !api.IsDenied(err) || time.Since(began) > time.Minute {
			t.Errorf("Leave returned %v after %v, want the denial", err, time.Since(began))
		}
		c.fail(t)
		if err := v.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want(t, "after Leave")
	})
}
