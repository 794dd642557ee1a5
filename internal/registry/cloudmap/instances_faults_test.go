package cloudmap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

func warns(t *testing.T, reg *Registry, key mcs.Key, texts ...string) func() bool {
	return func() bool {
		have := look(t, reg, key).Local.Warnings
		return len(have) == len(texts) && !slices.ContainsFunc(texts, func(text string) bool {
			return !slices.ContainsFunc(have, func(line string) bool { return strings.Contains(line, text) })
		})
	}
}

func TestViewReportsCollisions(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	theirs := api.Instance{ID: "tcp-10_10_0_0-8080", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.10.0.0", "CLUSTER_ID": "cls9", "CLUSTERSET_ID": "set1"}}
	c.put(t, "demo", "web-0", theirs)
	a, _ := viewing(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, 10*time.Second, "the collision is reported", warns(t, a, webKey(0), "1 endpoints are not shown as Cloud Map instances because others use their IDs (tcp-10_10_0_0-8080 of cluster cls9)"))

	// The other cluster leaves the ID.
	s, _ := c.service(t, "demo", "web-0")
	if err := c.client.DeregisterInstance(t.Context(), s.ID, theirs.ID); err != nil {
		t.Fatal(err)
	}
	publish(t, a, webExport("cls1", 0, 3))
	within(t, 10*time.Second, "nothing is left to report", warns(t, a, webKey(0)))
}

// shares are those of the namespaces with cluster cls1.
type shares struct{ areGone atomic.Bool }

// answer answers the requests of the cluster while the shares are gone: everything is as if it did
// not exist.
func (s *shares) answer(req request) (code, body string, ok bool) {
	if !s.areGone.Load() || req.cluster != "cls1" {
		return "", "", false
	}
	code, body = answerUnshared(req.operation)
	return code, body, true
}

// instancesOf returns a function that returns the number of instances of a service.
func instancesOf(t *testing.T, w *simulation, key mcs.Key) func() int {
	admin, _ := w.client("admin")
	return func() int {
		have, _, err := admin.DiscoverInstances(t.Context(), key.Namespace, key.Name, nil)
		if err != nil && !api.IsNotFound(err) {
			t.Fatal(err)
		}
		return len(have)
	}
}

// TestViewListsAgainAfterShareWasGone: a controller starts without the instance view, and removes
// the instances of the previous process. When it lists the services to find that, the share of the
// namespaces is gone for a while.
func TestViewListsAgainAfterShareWasGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exp := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true}), webExport("cls1", 0, 1)
		var isRestarted atomic.Bool
		var shares shares
		w.setIntercept(func(req request) (code, body string, ok bool) {
			if req.operation == "ListNamespaces" && isRestarted.Swap(false) {
				shares.areGone.Store(true)
			}
			return shares.answer(req)
		})
		instances := instancesOf(t, w, exp.Key)
		joined := time.Now()
		withView := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
		publish(t, withView.Registry, exp)
		w.until(2*time.Minute, "the instance is there", func() bool { return instances() == 1 })
		withView.kill()
		isRestarted.Store(true)
		without := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView, cfg.Joined = false, joined })
		publish(t, without.Registry, exp)
		w.until(2*time.Minute, "the services are listed", shares.areGone.Load)
		time.Sleep(2 * time.Minute)
		shares.areGone.Store(false)
		w.until(5*time.Minute, "the instance is gone", func() bool { return instances() == 0 })
	})
}

// TestViewRemovesInstancesAfterShareWasGone: an export ends while the share of the namespaces is
// gone, for so long that reads have shown several times that its service does not exist.
func TestViewRemovesInstancesAfterShareWasGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exp := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true}), webExport("cls1", 0, 1)
		var shares shares
		w.setIntercept(shares.answer)
		instances := instancesOf(t, w, exp.Key)
		cluster := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
		publish(t, cluster.Registry, exp)
		w.until(2*time.Minute, "the instance is there", func() bool { return instances() == 1 })
		time.Sleep(5 * time.Minute) // it has listed the services
		shares.areGone.Store(true)
		time.Sleep(10 * time.Second) // a poll shows that
		if err := cluster.Withdraw(t.Context(), exp.Key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		shares.areGone.Store(false)
		w.until(5*time.Minute, "the instance is gone", func() bool { return instances() == 0 })
	})
}

// TestViewRemovesInstancesAfterShareWasGoneBriefly: an export ends while the share of the
// namespaces is gone, and a read shows that its service does not exist. The share is back when the
// service is read once more: the list of namespaces, which was made seconds ago, lacks that of the
// service, but the read shows the instance. The service must not be forgotten.
func TestViewRemovesInstancesAfterShareWasGoneBriefly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exp := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true}), webExport("cls1", 0, 1)
		var shares shares
		w.setIntercept(shares.answer)
		instances := instancesOf(t, w, exp.Key)
		cluster := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView, cfg.times.instanceResync = true, viewAudit })
		publish(t, cluster.Registry, exp)
		w.until(2*time.Minute, "the instance is there", func() bool { return instances() == 1 })
		time.Sleep(5 * time.Minute) // it has listed the services
		shares.areGone.Store(true)
		if err := cluster.Withdraw(t.Context(), exp.Key); err != nil {
			t.Fatal(err)
		}
		w.until(viewAudit/2, "a read does not find the service", func() bool { return cluster.view.Unconfirmed() == 1 })
		shares.areGone.Store(false)
		for range 4 { // the control plane makes lists too
			time.Sleep(viewAudit / 4)
			cluster.view.AddNamespaces(nil)
		}
		w.until(5*time.Minute, "the instance is gone", func() bool { return instances() == 0 })
	})
}

// TestViewRemovesInstancesOfClone: a clone of a cluster that cannot read for a while creates
// instances of an export that the cluster does not have, until it gives way. The cluster finds the
// copy of the clone's record, lists the services again, and removes them.
func TestViewRemovesInstancesOfClone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		joined := time.Now()
		withView := func(cfg *Config) { cfg.InstanceView, cfg.Joined = true, joined }
		original := w.begin(cls1, nil, withView)
		publish(t, original.Registry, webExport("cls1", 0, 1))
		time.Sleep(5 * time.Minute) // it has listed the services
		w.ids.copyTo("cls1", "cls1clone")
		w.plan(1, unreadable("cls1"))
		clone := w.create("cls1clone", cls1, withView)
		extra := webExport("cls1", 8, 2)
		publish(t, clone.Registry, extra)
		clone.run(nil)
		admin, _ := w.client("admin")
		instances := func() int {
			have, _, err := admin.DiscoverInstances(t.Context(), extra.Key.Namespace, extra.Key.Name, nil)
			if err != nil && !api.IsNotFound(err) {
				t.Fatal(err)
			}
			return len(have)
		}
		w.until(time.Minute, "the clone has created instances", func() bool { return instances() > 0 })
		var duplicate *registry.DuplicateIDError
		w.until(2*time.Minute, "the clone gives way", func() bool { return errors.As(look(t, clone.Registry, extra.Key).Local.Err, &duplicate) })
		w.plan(1)
		w.until(10*time.Minute, "the instances are removed", func() bool { return instances() == 0 })
	})
}

func TestViewReportsTooMany(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := viewing(t, c, cls1)
	exp := webExport("cls1", 0, api.MaxDiscovered+7)
	publish(t, a, exp)
	within(t, 60*time.Second, "it is reported", warns(t, a, webKey(0), "7 endpoints are not shown as Cloud Map instances: a service has at most 1000"))
	b, _ := viewing(t, c, cls2)
	within(t, 10*time.Second, "all of them are exported", sees(t, b, exp))
}

func TestViewReportsQuota(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3})
	a, _ := viewing(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 4))
	within(t, 10*time.Second, "it is reported", warns(t, a, webKey(0), "raise the quota"))
}

// A service of the user with DNS records accepts addresses of one family only.
func TestViewInServiceWithDNS(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	out, err := c.sdk(admin).CreatePrivateDnsNamespace(t.Context(), &servicediscovery.CreatePrivateDnsNamespaceInput{Name: aws.String("demo"), Vpc: aws.String("vpc-12345678")})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.client.AwaitOperation(t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range []types.RecordType{types.RecordTypeA, types.RecordTypeAaaa, types.RecordTypeSrv} {
		t.Run(string(record), func(t *testing.T) {
			i := map[types.RecordType]int{types.RecordTypeA: 0, types.RecordTypeAaaa: 1, types.RecordTypeSrv: 2}[record]
			_, err := c.sdk(admin).CreateService(t.Context(), &servicediscovery.CreateServiceInput{
				Name: aws.String(webKey(i).Name), NamespaceId: aws.String(targets["NAMESPACE"]),
				DnsConfig: &types.DnsConfig{DnsRecords: []types.DnsRecord{{TTL: aws.Int64(60), Type: record}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			a, stop := viewing(t, c, cls1)
			exp := webExport("cls1", i, 1)
			v6 := exp.Backends[0].Endpoints[0]
			v6.Address = netip.MustParseAddr("fd00::1")
			exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, v6)
			exp.IPFamilies = append(exp.IPFamilies, corev1.IPv6Protocol)
			publish(t, a, exp)
			v4ID, v6ID := fmt.Sprintf("tcp-10_10_0_%d-8080", i), "tcp-fd00__1-8080"
			want, warning := map[types.RecordType][]string{types.RecordTypeA: {v4ID}, types.RecordTypeAaaa: {v6ID}, types.RecordTypeSrv: {v4ID, v6ID}}[record], []string{"1 endpoints are not shown because AWS Cloud Map refuses their instances"}
			if record == types.RecordTypeSrv {
				warning = nil
			}
			within(t, 10*time.Second, "what the records allow", c.shows(t, webKey(i), want...))
			within(t, 10*time.Second, "the rest is reported", warns(t, a, webKey(i), warning...))
			stop(registry.ErrLeave)
			if _, ok := c.service(t, "demo", webKey(i).Name); !ok {
				t.Error("the user's service is gone")
			}
		})
	}
}

// A process without the instance view removes the instances of a previous process that had it.
func TestViewSwitchedOff(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := viewing(t, c, cls1)
	b, _ := viewing(t, c, cls2)
	publish(t, a, webExport("cls1", 0, 2))
	publish(t, a, webExport("cls1", 1, 1))
	theirs := webExport("cls2", 0, 3)
	theirs.Backends[0].Endpoints = theirs.Backends[0].Endpoints[2:]
	publish(t, b, theirs)
	within(t, 10*time.Second, "all are shown", c.shows(t, webKey(0), "tcp-10_10_0_0-8080", "tcp-10_10_0_1-8080", "tcp-10_10_0_2-8080"))
	within(t, 10*time.Second, "all are shown", func() bool { return len(c.instances(t, "demo", "web-1")) == 1 })
	stop(nil)

	cfg := fast(cls1)
	a = c.registry(t, cfg)
	publish(t, a, webExport("cls1", 0, 4))
	publish(t, a, webExport("cls1", 1, 1))
	stop = start(t, a)
	within(t, 10*time.Second, "the other cluster's instance is left", c.shows(t, webKey(0), "tcp-10_10_0_2-8080"))
	within(t, 10*time.Second, "the unused service is gone", func() bool { _, ok := c.service(t, "demo", "web-1"); return !ok })
	within(t, 10*time.Second, "the export is confirmed", isExported(t, a, webKey(1)))
	within(t, 10*time.Second, "what is exported is seen", sees(t, b, webExport("cls1", 0, 4)))
	before := c.requests("ListInstances", "ListServices")
	publish(t, a, webExport("cls1", 0, 5))
	within(t, 10*time.Second, "what is exported is seen", sees(t, b, webExport("cls1", 0, 5)))
	if after := c.requests("ListInstances", "ListServices"); after != before {
		t.Errorf("%d requests for instances although the view is off", after-before)
	}
	stop(registry.ErrLeave)
}

// This controller replaces the legacy controller: clusters that still run it must not see its
// instances disappear.
func TestViewOfLegacyController(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	exp := webExport("cls1", 0, 2)
	for _, i := range legacyInstances(exp) {
		i.Attributes["LAMBDA"] = "x"
		c.put(t, "demo", "web-0", i)
	}
	cfg := fast(cls1)
	cfg.InstanceView = true
	a := c.registry(t, cfg)
	gone := c.requests("DeregisterInstance")
	publish(t, a, exp)
	start(t, a)
	within(t, 10*time.Second, "the view has adopted them", func() bool {
		for _, attrs := range c.instances(t, "demo", "web-0") {
			if attrs["K8S_CONTROLLER"] != "cloud-map-mcs-controller test" || attrs["LAMBDA"] != "x" {
				return false
			}
		}
		return len(c.instances(t, "demo", "web-0")) == 2
	})
	if c.requests("DeregisterInstance") != gone {
		t.Error("instances were deregistered on the way")
	}
}

// Another client deletes and changes instances of this cluster.
func TestViewRestoresInstances(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := viewing(t, c, cls1)
	for i := range 3 {
		publish(t, a, webExport("cls1", i, 2))
		within(t, 10*time.Second, "two instances", func() bool { return len(c.instances(t, "demo", webKey(i).Name)) == 2 })
	}
	within(t, 10*time.Second, "the view is done", func() bool { return a.view.Pending() == 0 })
	s, _ := c.service(t, "demo", "web-1")
	if err := c.client.DeregisterInstance(t.Context(), s.ID, "tcp-10_10_0_2-8080"); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "it is back", c.shows(t, webKey(1), "tcp-10_10_0_2-8080", "tcp-10_10_0_3-8080"))
	changed := c.instances(t, "demo", "web-2")["tcp-10_10_0_4-8080"]
	changed["READY"] = "false"
	c.put(t, "demo", "web-2", api.Instance{ID: "tcp-10_10_0_4-8080", Attributes: changed})
	within(t, 10*time.Second, "it is right again", func() bool { return c.instances(t, "demo", "web-2")["tcp-10_10_0_4-8080"]["READY"] == "true" })
}

// Requests are lost or answered wrongly, and leave instances of this cluster behind.
func TestViewRemovesLeftovers(t *testing.T) {
	key := webKey(0)
	// failNext makes the next request about the service fail, and returns a check that it did.
	failNext := func(t *testing.T, c *cloud, rule cloudmaplocal.FaultRule) (happened func() bool) {
		rule.Service, rule.Next = key.Name, 1
		if err := c.server.Load().SetFaults(cloudmaplocal.FaultPlan{Rules: []cloudmaplocal.FaultRule{rule}}); err != nil {
			t.Fatal(err)
		}
		return func() bool { _, hits := c.server.Load().Faults(); return hits[0] == 1 }
	}
	t.Run("a removal is accepted and lost", func(t *testing.T) {
		c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
		createForeign(t, c, key.Namespace, key.Name)
		a, _ := viewing(t, c, cls1)
		publish(t, a, webExport("cls1", 0, 1))
		within(t, 10*time.Second, "the instance", c.shows(t, key, "tcp-10_10_0_0-8080"))
		happened := failNext(t, c, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultLost, Operations: []string{"DeregisterInstance"}})
		withdraw(t, a, key)
		within(t, 10*time.Second, "the removal gets lost", happened)
		within(t, 10*time.Second, "nothing is left", c.shows(t, key))
	})
	t.Run("the service of a leftover of a previous process is not found at first", func(t *testing.T) {
		c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
		createForeign(t, c, key.Namespace, key.Name)
		c.put(t, key.Namespace, key.Name, api.Instance{ID: "tcp-10_10_9_9-80", Attributes: map[string]string{"CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1"}})
		happened := failNext(t, c, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "ServiceNotFound", Operations: []string{"DiscoverInstances"}})
		viewing(t, c, cls1)
		within(t, 10*time.Second, "it is not found", happened)
		within(t, 10*time.Second, "nothing is left", c.shows(t, key))
	})
}

// listInstances returns the instances of a service of the instance view, with the service and a
// client that may change them. A service or namespace that does not exist has none.
func listInstances(w *simulation, key mcs.Key) (admin *api.Client, s api.Service, listed []api.Instance) {
	w.t.Helper()
	admin, _ = w.client("admin")
	namespaces, err := admin.ListNamespaces(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	in, ok := namespaces[key.Namespace]
	if !ok {
		return admin, s, nil
	}
	services, err := admin.ListServices(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	if s = services[key.Name]; s.ID == "" {
		return admin, s, nil
	}
	if listed, err = admin.ListInstances(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
	return admin, s, listed
}

// TestViewRetriesRemoval denies the first removal of an instance: the next attempt removes it, and
// does not take the export that is gone for removed.
func TestViewRetriesRemoval(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		cluster := w.begin(cls1, nil, func(cfg *Config) { cfg.InstanceView = true })
		exp := webExport("cls1", 0, 3)
		publish(t, cluster.Registry, exp)
		instances := func() []api.Instance { _, _, listed := listInstances(w, exp.Key); return listed }
		time.Sleep(10 * time.Minute) // nothing was written recently
		if n := len(instances()); n != 3 {
			t.Fatalf("%d instances, want 3", n)
		}
		var isDenied atomic.Bool
		w.setIntercept(func(req request) (code, body string, ok bool) {
			return "AccessDeniedException", "", req.operation == "DeregisterInstance" && req.names("tcp-") && !isDenied.Swap(true)
		})
		withdraw(t, cluster.Registry, exp.Key)
		time.Sleep(10 * time.Second) // less than the interval between two reads
		if n := len(instances()); n > 0 {
			t.Errorf("%d instances, want none", n)
		}
		cluster.kill()
	})
}

// TestViewRemovesInstanceOfServiceThatSeemedGone has an instance return after its removal, while an
// answer says that its service does not exist: a later read shows the instance, and it is removed.
func TestViewRemovesInstanceOfServiceThatSeemedGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		viewed := func(cfg *Config) { cfg.InstanceView = true }
		cluster, other := w.begin(cls1, nil, viewed), w.begin(cls2, nil, viewed)
		mine, theirs := webExport("cls1", 0, 1), webExport("cls2", 0, 1)
		theirs.Backends[0].Endpoints[0].Address = netip.MustParseAddr("10.99.0.1")
		publish(t, cluster.Registry, mine)
		publish(t, other.Registry, theirs)
		instances := func() []api.Instance { _, _, listed := listInstances(w, mine.Key); return listed }
		time.Sleep(10 * time.Minute) // nothing was written recently
		admin, service, before := listInstances(w, mine.Key)
		if len(before) != 2 {
			t.Fatalf("%d instances, want 2", len(before))
		}
		withdraw(t, cluster.Registry, mine.Key)
		time.Sleep(10 * time.Second)
		if n := len(instances()); n != 1 {
			t.Fatalf("%d instances, want the one of the other cluster", n)
		}
		var isGone atomic.Bool
		w.setIntercept(func(req request) (code, body string, ok bool) {
			isRead := req.cluster == "cls1" && req.operation == "DiscoverInstances" && req.names(mine.Key.Name)
			return "ServiceNotFound", "", isRead && !isGone.Swap(true)
		})
		for _, instance := range before {
			if _, err := admin.RegisterInstance(t.Context(), service.ID, instance); err != nil {
				t.Fatal(err)
			}
		}
		w.until(10*time.Minute, "the service has seemed gone", isGone.Load)
		time.Sleep(5 * time.Minute) // the next reads
		if n := len(instances()); n != 1 {
			t.Errorf("%d instances, want the one of the other cluster", n)
		}
		cluster.kill()
		other.kill()
	})
}

// Several clusters stop exporting a service, and the last one deletes it: the others need no list
// to see that.
func TestViewForgetsServiceThatOtherClusterDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		var lines atomic.Value
		log := funcr.New(func(_, args string) {
			if strings.Contains(args, "Failed") {
				lines.Store(args)
			}
		}, funcr.Options{})
		isIdle := func(l *process) func() bool { return func() bool { return l.view.Pending()+l.view.Unconfirmed() == 0 } }
		var clusters []*process
		for _, identity := range []mcs.Identity{cls1, cls2} {
			l := w.begin(identity, nil, func(cfg *Config) { cfg.InstanceView, cfg.Logger = true, log })
			for k := range 2 {
				exp := webExport(identity.ClusterID, k, 1)
				exp.Backends[0].Endpoints[0].Address = netip.AddrFrom4([4]byte{10, byte(len(clusters)), 0, byte(k)})
				publish(t, l.Registry, exp)
			}
			clusters = append(clusters, l)
		}
		time.Sleep(10 * time.Minute) // nothing was written recently
		for _, l := range clusters {
			w.until(time.Minute, "the instances are written", isIdle(l))
		}
		before := w.count()
		for _, l := range clusters {
			withdraw(t, l.Registry, webKey(0))
			time.Sleep(2 * time.Second)
		}
		for _, l := range clusters {
			w.until(10*time.Minute, "the service is forgotten", isIdle(l))
		}
		after := w.count()
		for _, operation := range []string{"ListNamespaces", "ListServices"} {
			if n := after[operation] - before[operation]; n > 0 {
				t.Errorf("%d requests %s, want none", n, operation)
			}
		}
		if n := after["DeleteService"] - before["DeleteService"]; n != 1 {
			t.Errorf("%d requests DeleteService, want one", n)
		}
		if line := lines.Load(); line != nil {
			t.Errorf("a failure was logged: %s", line)
		}
		for _, l := range clusters {
			l.kill()
		}
	})
}
