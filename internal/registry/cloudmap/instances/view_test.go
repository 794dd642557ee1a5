package instances

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

// cloud is a local Cloud Map in the virtual time of a synctest bubble. Requests go to it without a
// network.
type cloud struct {
	*cloudmaplocal.Server
	admin *api.Client
}

func startCloud(t *testing.T) *cloud {
	t.Helper()
	return startCloudWith(t, cloudmaplocal.Options{})
}

func startCloudWith(t *testing.T, options cloudmaplocal.Options) *cloud {
	t.Helper()
	options.Unthrottled, options.Now = true, time.Now
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{Server: server}
	c.admin = c.client(t, "admin")
	return c
}

// Do implements the SDK's HTTPClient.
func (c *cloud) Do(r *http.Request) (*http.Response, error) { return cloudmaptest.Serve(c.Server, r) }

// client returns a client with an access key.
func (c *cloud) client(t *testing.T, key string) *api.Client {
	t.Helper()
	client, err := api.NewClient(t.Context(), api.Config{
		Region: "us-east-1", Endpoint: "http://127.0.0.1", HTTPClient: c, Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// fail makes requests of the view fail from now on. Without rules none fails.
func (c *cloud) fail(t *testing.T, rules ...cloudmaplocal.FaultRule) {
	t.Helper()
	for i := range rules {
		rules[i].AccessKey = "view"
	}
	if err := c.SetFaults(cloudmaplocal.FaultPlan{Rules: rules}); err != nil {
		t.Fatal(err)
	}
}

// service returns a service, which it creates in the name of a cluster if necessary.
func (c *cloud) service(t *testing.T, key mcs.Key, owner mcs.Identity) api.Service {
	t.Helper()
	namespaces, err := c.admin.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, ok := namespaces[key.Namespace]
	if !ok {
		if in, err = c.admin.CreateNamespace(t.Context(), key.Namespace, owner, api.PartView); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.admin.CreateService(t.Context(), in, key.Name, owner, api.PartView)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put registers an instance of a cluster of set1.
func (c *cloud) put(t *testing.T, s api.Service, id, clusterID string) {
	t.Helper()
	attributes := map[string]string{"CLUSTER_ID": clusterID, "CLUSTERSET_ID": "set1"}
	if _, err := c.admin.RegisterInstance(t.Context(), s.ID, api.Instance{ID: id, Attributes: attributes}); err != nil {
		t.Fatal(err)
	}
}

// content returns the services of all namespaces as "namespace/name: IDs of the instances", and
// namespaces without services as "namespace".
func (c *cloud) content(t *testing.T) (all []string) {
	t.Helper()
	namespaces, err := c.admin.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range namespaces {
		services, err := c.admin.ListServices(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if len(services) == 0 {
			all = append(all, name)
		}
		for _, s := range services {
			found, err := c.admin.ListInstances(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, i := range found {
				ids = append(ids, i.ID)
			}
			slices.Sort(ids)
			all = append(all, name+"/"+s.Name+": "+strings.Join(ids, " "))
		}
	}
	slices.Sort(all)
	return all
}

// want checks the content.
func (c *cloud) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := c.content(t); !slices.Equal(got, want) {
		t.Errorf("%s: Cloud Map has %q, want %q", when, got, want)
	}
}

// wantInstances checks the content apart from namespaces and services without instances.
func (c *cloud) wantInstances(t *testing.T, when string, want ...string) {
	t.Helper()
	got := slices.DeleteFunc(c.content(t), func(s string) bool { return !strings.Contains(s, ": ") || strings.HasSuffix(s, ": ") })
	if !slices.Equal(got, want) {
		t.Errorf("%s: Cloud Map has %q, want %q", when, got, want)
	}
}

var (
	ours   = mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-1"}
	theirs = mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}
)

// The instances of webExport with these addresses.
const (
	instance1 = "tcp-10_0_0_1-8080"
	instance2 = "tcp-10_0_0_2-8080"
)

// testView is a view of cluster cls1 with the exports that it mirrors.
type testView struct {
	*View
	metrics *prometheus.Registry

	mu       sync.Mutex
	exports  map[mcs.Key]mcs.Export
	unknown  map[mcs.Key]bool
	notified []string
}

func (c *cloud) view(t *testing.T, change ...func(*Config)) *testView {
	t.Helper()
	v := &testView{metrics: prometheus.NewRegistry(), exports: map[mcs.Key]mcs.Export{}, unknown: map[mcs.Key]bool{}}
	metrics, err := registry.NewMetrics(v.metrics)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Identity: ours, Version: "test", Enabled: true, Desired: v.desired, ResyncInterval: time.Minute, ListWithin: 5 * time.Minute,
		Logger: logr.Discard(), Metrics: metrics,
	}
	for _, edit := range change {
		edit(&cfg)
	}
	v.View = New(c.client(t, "view"), cfg)
	return v
}

// disabled is the configuration of a view that only removes instances.
func disabled(cfg *Config) { cfg.Enabled = false }

func (v *testView) desired(key mcs.Key) (exp *mcs.Export, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e, ok := v.exports[key]; ok {
		exp = &e
	}
	return exp, !v.unknown[key]
}

// publish changes the export of key to one with these addresses, or withdraws it.
func (v *testView) publish(addresses ...string) {
	v.mu.Lock()
	v.exports[key] = webExport("cls1", addresses...)
	if len(addresses) == 0 {
		delete(v.exports, key)
	}
	v.mu.Unlock()
	v.Enqueue(key)
}

// run runs the view until the returned function is called or the test ends.
func (v *testView) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.Run(ctx, func(key mcs.Key) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.notified = append(v.notified, key.Name)
		})
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// start activates the view, runs it, and waits until it has listed the services.
func (v *testView) start(t *testing.T) (stop func()) {
	t.Helper()
	v.Activate()
	stop = v.run(t)
	pass(10 * time.Minute)
	if n := v.Pending() + v.Unconfirmed(); n > 0 {
		t.Errorf("%d services are pending ten minutes after the start", n)
	}
	return stop
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantMetrics checks a gauge of the view: its values by the label that is not the registry.
func (v *testView) wantMetrics(t *testing.T, name string, want map[string]float64) {
	t.Helper()
	families, err := v.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "cloud_map_mcs_registry_"+name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() != "registry" {
					got[label.GetValue()] = metric.GetGauge().GetValue()
				}
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("metric %s: %v, want %v", name, got, want)
	}
}

func TestView_MirrorsExportUntilWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t)
		v.publish("10.0.0.1", "10.0.0.2")
		v.run(t)
		pass(10 * time.Minute)
		c.want(t, "before the cluster ID is held")
		if n := v.Pending(); n != 1 {
			t.Errorf("%d services are pending, want 1", n)
		}
		v.Activate()
		pass(time.Minute - time.Second)
		c.want(t, "before the list of services", "demo/web: "+instance1+" "+instance2)
		if n := v.Pending(); n != 1 {
			t.Errorf("%d services are pending, want 1 for the list of services", n)
		}
		v.wantMetrics(t, "objects", map[string]float64{"instances": 2})
		pass(10 * time.Minute)
		if n := v.Pending() + v.Unconfirmed(); n != 0 {
			t.Errorf("%d services are pending after the list", n)
		}
		v.publish("10.0.0.2", "10.0.0.3")
		pass(time.Minute)
		c.want(t, "after a change", "demo/web: "+instance2+" tcp-10_0_0_3-8080")
		v.publish()
		pass(time.Minute)
		c.want(t, "after the withdrawal")
		if n := v.Unconfirmed(); n != 1 {
			t.Errorf("%d services are to be read once more, want 1", n)
		}
		pass(10 * time.Minute)
		if len(v.services) != 0 {
			t.Errorf("%d services are known without an export and instances", len(v.services))
		}
		v.wantMetrics(t, "objects", map[string]float64{"instances": 0})
		v.wantMetrics(t, "pending", map[string]float64{"services": 0})
		if len(v.notified) > 0 {
			t.Errorf("notified of %v without a warning", v.notified)
		}
	})
}

// A previous process left instances and resources. Others have instances in its services, and
// resources that look like them.
func TestView_RemovesLeftovers(t *testing.T) {
	for name, change := range map[string]func(*Config){"enabled": func(*Config) {}, "disabled": disabled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				for name, owner := range map[string]mcs.Identity{"empty": ours, "other-empty": theirs, "mcs.set1": ours} {
					if _, err := c.admin.CreateNamespace(t.Context(), name, owner, api.PartView); err != nil {
						t.Fatal(err)
					}
				}
				c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "web"}, ours), "left", "cls1")
				shared := c.service(t, mcs.Key{Namespace: "demo", Name: "shared"}, ours)
				c.put(t, shared, "left", "cls1")
				c.put(t, shared, "other", "cls2")
				c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "user"}, mcs.Identity{ClusterSetID: "another"}), "left", "cls1")
				c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "no_label"}, theirs), "left", "cls1")
				c.put(t, c.service(t, mcs.Key{Namespace: "no.label", Name: "web"}, theirs), "left", "cls1")
				before := c.content(t)
				v := c.view(t, change)
				v.Activate()
				v.run(t)
				pass(time.Minute - time.Second)
				c.want(t, "before the list", before...)
				pass(15 * time.Minute)
				c.want(t, "after the list", "demo/no_label: left", "demo/shared: other", "demo/user: ", "mcs.set1", "no.label/web: left", "other-empty")
				if n := v.Pending() + v.Unconfirmed(); n != 0 {
					t.Errorf("%d services are pending", n)
				}
			})
		})
	}
}

// The controller has not read all objects since its start: an export that it does not know yet may
// exist.
func TestView_WaitsForUnknownExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		c.put(t, c.service(t, key, ours), instance1, "cls1")
		v := c.view(t)
		v.unknown[key] = true
		v.Activate()
		v.run(t)
		pass(30 * time.Minute)
		c.want(t, "while the export is unknown", "demo/web: "+instance1)
		v.mu.Lock()
		delete(v.unknown, key)
		v.mu.Unlock()
		pass(maxUndecidedRetry + 5*time.Second)
		c.want(t, "when there is known to be none")
	})
}

// Other clients remove and change instances, or delete the service and the namespace.
func TestView_RestoresInstances(t *testing.T) {
	deregister := func(t *testing.T, c *cloud) api.Service {
		s := c.service(t, key, ours)
		if err := c.admin.DeregisterInstance(t.Context(), s.ID, instance1); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, damage := range map[string]func(t *testing.T, c *cloud){
		"removed": func(t *testing.T, c *cloud) { deregister(t, c) },
		"changed": func(t *testing.T, c *cloud) { c.put(t, c.service(t, key, ours), instance1, "cls1") },
		"left by another process": func(t *testing.T, c *cloud) {
			c.put(t, c.service(t, key, ours), instance2, "cls1")
		},
		"service deleted": func(t *testing.T, c *cloud) {
			if err := c.admin.DeleteService(t.Context(), deregister(t, c)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				v := c.view(t)
				v.publish("10.0.0.1")
				v.start(t)
				damage(t, c)
				pass(5 * time.Minute)
				c.want(t, "after two reads", "demo/web: "+instance1)
				s := c.service(t, key, ours)
				found, err := c.admin.ListInstances(t.Context(), s)
				if err != nil || len(found) != 1 || found[0].Attributes[AttrIPv4] != "10.0.0.1" {
					t.Errorf("instances %v, %v; want the attributes restored", found, err)
				}
				writes := c.Requests()["RegisterInstance"]
				pass(time.Hour)
				if more := c.Requests()["RegisterInstance"] - writes; more > 0 {
					t.Errorf("%d writes without a change", more)
				}
			})
		})
	}
}

// Another client creates a service and puts an instance into it after this process has listed the
// services. The list of the services does not show it, and AWS Cloud Map has no conditional writes.
func TestView_KeepsInstancesOfServiceCreatedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		c.service(t, mcs.Key{Namespace: key.Namespace, Name: "other"}, theirs)
		v := c.view(t)
		v.start(t)
		s := c.service(t, key, theirs)
		c.put(t, s, instance1, "cls2")
		v.publish("10.0.0.1", "10.0.0.2")
		pass(time.Minute)
		found, err := c.admin.ListInstances(t.Context(), s)
		if err != nil || len(found) != 2 || found[0].Attributes[AttrClusterID] != "cls2" || found[1].Attributes[AttrClusterID] != "cls1" {
			t.Errorf("instances %v, %v; want that of cls2 as it was, and one of cls1", found, err)
		}
		v.wantMetrics(t, "omitted_instances", map[string]float64{"collision": 1, "limit": 0, "refused": 0, "failed": 0})
	})
}

// AWS Cloud Map refuses an instance, and another cluster has the ID of a second one. Both are
// reported, and neither is tried again and again.
func TestView_ReportsOmittedEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{"RegisterInstance"}, Instance: instance2, Code: "InvalidInput", Message: "bad"})
		c.put(t, c.service(t, key, theirs), "tcp-10_0_0_9-8080", "cls2")
		v := c.view(t)
		v.publish("10.0.0.1", "10.0.0.2", "10.0.0.9")
		v.start(t)
		want := []string{
			"1 endpoints are not shown as Cloud Map instances because others use their IDs (tcp-10_0_0_9-8080 of cluster cls2): do the pod networks overlap?",
			"1 endpoints are not shown because AWS Cloud Map refuses their instances: " + instance2 + " (bad)",
		}
		check := func(when string) {
			t.Helper()
			if got := v.Warnings(key); !slices.Equal(got, want) {
				t.Errorf("%s: warnings %q, want %q", when, got, want)
			}
			v.wantMetrics(t, "objects", map[string]float64{"instances": 1})
			v.wantMetrics(t, "omitted_instances", map[string]float64{"collision": 1, "limit": 0, "refused": 1, "failed": 0})
			if !slices.Equal(v.notified, []string{"web"}) {
				t.Errorf("%s: notified of %v, want one notification", when, v.notified)
			}
		}
		check("at the start")
		writes := c.Requests()["RegisterInstance"]
		pass(time.Hour)
		check("an hour later")
		if more := c.Requests()["RegisterInstance"] - writes; more > 0 {
			t.Errorf("%d writes without a change", more)
		}
		c.fail(t)
		v.publish("10.0.0.1", "10.0.0.2")
		pass(time.Minute)
		c.want(t, "after the end of the fault", "demo/web: "+instance1+" "+instance2+" tcp-10_0_0_9-8080")
		if got := v.Warnings(key); len(got) > 0 || len(v.notified) != 2 {
			t.Errorf("warnings %q, notified of %v; want no warning and a second notification", got, v.notified)
		}
	})
}

// A service that cannot be written is reported only if a retry does not help, and written when it
// can be.
func TestView_ReportsFailure(t *testing.T) {
	for _, tt := range []struct {
		code     string
		warnings int
	}{{"ResourceLimitExceeded", 1}, {"AccessDeniedException", 1}, {"InternalFailure", 0}} {
		for _, operation := range []string{"CreateHttpNamespace", "CreateService", "RegisterInstance"} {
			t.Run(tt.code+" of "+operation, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := startCloud(t)
					c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: tt.code, Message: "no"})
					var failures int
					log := funcr.New(func(_, args string) {
						if strings.Contains(args, "Failed to mirror endpoints") {
							failures++
						}
					}, funcr.Options{})
					v := c.view(t, func(cfg *Config) { cfg.Logger = log })
					v.publish("10.0.0.1")
					v.Activate()
					v.run(t)
					pass(10 * time.Minute)
					got := v.Warnings(key)
					if len(got) != tt.warnings || len(v.notified) != tt.warnings || len(got) > 0 && !strings.Contains(got[0], operation+": "+tt.code+": no") {
						t.Errorf("warnings %q, notified of %v; want %d", got, v.notified, tt.warnings)
					}
					if failures != 1 {
						t.Errorf("%d failures are logged, want the first one", failures)
					}
					v.wantMetrics(t, "objects", map[string]float64{"instances": 0})
					v.wantMetrics(t, "omitted_instances", map[string]float64{"collision": 0, "limit": 0, "refused": 0, "failed": float64(tt.warnings)})
					v.wantMetrics(t, "pending", map[string]float64{"services": 1})
					c.fail(t)
					pass(10 * time.Minute)
					c.want(t, "after the end of the fault", "demo/web: "+instance1)
					if got := v.Warnings(key); len(got) > 0 || len(v.notified) != 2*tt.warnings {
						t.Errorf("warnings %q, notified of %v after the end of the fault", got, v.notified)
					}
				})
			})
		}
	}
}

// Requests of every kind fail for a while: afterwards every instance is right, also that of a
// previous process.
func TestView_RecoversFromFaults(t *testing.T) {
	for _, operation := range []string{"ListNamespaces", "ListServices", "ListInstances", "DiscoverInstances", "DeregisterInstance", "ListTagsForResource", "DeleteService", "DeleteNamespace"} {
		for _, code := range []string{"InternalFailure", "ThrottlingException", "AccessDeniedException"} {
			t.Run(code+" of "+operation, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := startCloud(t)
					c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "left"}, ours), "left", "cls1")
					c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "user"}, theirs), "other", "cls2")
					fault := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: code}
					c.fail(t, fault)
					v := c.view(t)
					v.publish("10.0.0.1")
					v.Activate()
					v.run(t)
					pass(10 * time.Minute)
					c.fail(t)
					pass(20 * time.Minute)
					c.wantInstances(t, "after the end of the fault", "demo/user: other", "demo/web: "+instance1)
					c.fail(t, fault)
					v.publish()
					pass(10 * time.Minute)
					c.fail(t)
					pass(20 * time.Minute)
					c.wantInstances(t, "after the withdrawal", "demo/user: other")
					if n := v.Pending() + v.Unconfirmed(); n != 0 || len(v.services) != 0 {
						t.Errorf("%d services are pending and %d known after the withdrawal", n, len(v.services))
					}
				})
			})
		}
	}
}

// A controller that never had instances, and has no permissions for them, stops asking for them.
func TestView_GivesUpCleanupIfDenied(t *testing.T) {
	for _, operation := range []string{"ListNamespaces", "ListInstances", "DeregisterInstance"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				c.put(t, c.service(t, key, ours), "left", "cls1")
				c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: "AccessDeniedException"})
				v := c.view(t, disabled)
				v.Activate()
				v.run(t)
				pass(20 * time.Minute)
				if !v.IsCleanupDenied() || v.Pending() != 0 || len(v.services) != 0 {
					t.Errorf("given up: %t, %d pending, %d services known", v.IsCleanupDenied(), v.Pending(), len(v.services))
				}
				v.wantMetrics(t, "pending", map[string]float64{"services": 0})
				v.ListAgain(time.Time{})
				requests := c.Requests()
				pass(time.Hour)
				if !maps.Equal(requests, c.Requests()) {
					t.Error("it makes requests after it has given up")
				}
				if err := v.Leave(t.Context()); err != nil {
					t.Errorf("Leave: %v, want no error of a disabled view without permissions", err)
				}
				c.fail(t)
				v.Activate()
				if v.IsCleanupDenied() {
					t.Error("it has given up before a new attempt")
				}
				pass(15 * time.Minute)
				c.want(t, "with permissions")
			})
		})
	}
}

// A first denial may be due to a role that AWS has not propagated yet. An enabled view never gives
// up.
func TestView_RetriesDeniedList(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		denied int
	}{"disabled": {disabled, maxDenials - 1}, "enabled": {func(*Config) {}, maxDenials + 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				c.put(t, c.service(t, key, ours), "left", "cls1")
				c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{"ListNamespaces"}, Code: "AccessDeniedException", Next: tt.denied})
				v := c.view(t, tt.change)
				v.Activate()
				v.run(t)
				pass(30 * time.Minute)
				if v.IsCleanupDenied() {
					t.Errorf("it has given up after %d denials", tt.denied)
				}
				c.want(t, "with permissions")
			})
		})
	}
}

// The list of services may have been made while the share of a namespace was gone.
func TestView_ListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t)
		v.ListAgain(time.Time{})
		v.run(t)
		began := time.Now()
		v.start(t)
		c.put(t, c.service(t, key, ours), "left", "cls1")
		v.ListAgain(time.Now())
		pass(10 * time.Minute)
		c.want(t, "without a list since", "demo/web: left")
		v.ListAgain(began)
		if n := v.Pending(); n != 1 {
			t.Errorf("%d are pending, want the list", n)
		}
		pass(15 * time.Minute)
		c.want(t, "after another list")
	})
}

// Another cluster holds the cluster ID, which marks the instances: they may be its own.
func TestView_WritesNothingWhileInactive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t)
		v.publish("10.0.0.1")
		v.start(t)
		v.Deactivate()
		v.publish("10.0.0.2")
		s := c.service(t, key, ours)
		c.put(t, s, "clone", "cls1")
		before := c.content(t)
		v.ListAgain(time.Time{})
		pass(time.Hour)
		c.want(t, "while another cluster holds the ID", before...)
		v.Activate()
		pass(time.Minute)
		c.want(t, "with the ID", "demo/web: "+instance2)
	})
}

// An administrator has deleted the namespaces: the services are written at once, not one a minute.
func TestView_EnqueueAllReconcilesEveryService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		v := c.view(t)
		var want []string
		for i := range 10 {
			exp := webExport("cls1", "10.0.0.1")
			exp.Key.Name = fmt.Sprint("web-", i)
			v.exports[exp.Key] = exp
			v.Enqueue(exp.Key)
			want = append(want, "demo/"+exp.Key.Name+": "+instance1)
		}
		v.start(t)
		c.want(t, "at the start", want...)
		for i := range 10 {
			s := c.service(t, mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)}, ours)
			if err := c.admin.DeregisterInstance(t.Context(), s.ID, instance1); err != nil {
				t.Fatal(err)
			}
		}
		v.EnqueueAll()
		pass(time.Minute)
		c.want(t, "after all were enqueued", want...)
	})
}

// Leave removes every instance of this cluster, also those of services that the view does not know.
func TestView_LeaveRemovesInstances(t *testing.T) {
	lost := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultLost, Operations: []string{"DeregisterInstance"}, Next: 1}
	denied := cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"}
	for name, tt := range map[string]struct {
		change    func(*Config)
		fault     *cloudmaplocal.FaultRule
		operation string
		wantErr   string
	}{
		"enabled":                  {change: func(*Config) {}},
		"disabled":                 {change: disabled},
		"a removal is lost":        {change: func(*Config) {}, fault: &lost},
		"enabled, lists denied":    {change: func(*Config) {}, fault: &denied, operation: "ListNamespaces", wantErr: "AccessDenied"},
		"enabled, removals denied": {change: func(*Config) {}, fault: &denied, operation: "DeregisterInstance", wantErr: "AccessDenied"},
		"broken": {
			change: disabled, fault: &cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "InternalFailure"},
			operation: "DiscoverInstances", wantErr: "reading the instances of demo/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				v := c.view(t, tt.change)
				v.publish("10.0.0.1")
				v.start(t)()
				c.put(t, c.service(t, mcs.Key{Namespace: "demo", Name: "unknown"}, theirs), "left", "cls1")
				shared := c.service(t, mcs.Key{Namespace: "demo", Name: "shared"}, ours)
				c.put(t, shared, "left", "cls1")
				c.put(t, shared, "other", "cls2")
				if tt.fault != nil {
					rule := *tt.fault
					if tt.operation != "" {
						rule.Operations = []string{tt.operation}
					}
					c.fail(t, rule)
				}
				err := v.Leave(t.Context())
				if tt.wantErr != "" {
					if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
						t.Errorf("error %v, want %s", err, tt.wantErr)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				c.want(t, "after Leave", "demo/shared: other")
			})
		})
	}
	if err := (*View)(nil).Leave(t.Context()); err != nil {
		t.Errorf("Leave without a view: %v", err)
	}
}

// Lists may not show a write that was made just before the cluster leaves. Leave does not wait for
// that longer than for the lists.
func TestView_LeaveSoonAfterWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloud(t)
		c.put(t, c.service(t, key, theirs), "other", "cls2") // the service stays
		v := c.view(t)
		stop := v.start(t)
		v.publish("10.0.0.1", "10.0.0.2")
		pass(10 * time.Second)
		stop()
		c.want(t, "before Leave", "demo/web: other "+instance1+" "+instance2)
		began := time.Now()
		if err := v.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want(t, "after Leave", "demo/web: other")
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("Leave took %v", took)
		}
	})
}

// A cluster leaves while its instances are being written. AWS Cloud Map carries out later what it
// has accepted, and lists do not show it before.
func TestView_LeaveDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCloudWith(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{OperationDelay: cloudmaplocal.Duration(2 * time.Second), ConsistencyDelay: cloudmaplocal.Duration(500 * time.Millisecond)}})
		c.service(t, key, theirs)
		c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultHang, Operations: []string{"RegisterInstance"}, Instance: instance2})
		v := c.view(t)
		stop := v.start(t)
		v.publish("10.0.0.1", "10.0.0.2")
		pass(time.Second)
		v.publish()
		stop()
		for v.Leave(t.Context()) != nil { // the namespace is being deleted
			pass(time.Second)
		}
		pass(time.Minute)
		c.want(t, "after Leave")
	})
}

// One denied request does not end the removal of instances by a disabled view: the role may be new.
func TestView_LeaveAfterOneDenial(t *testing.T) {
	for _, operation := range []string{"ListNamespaces", "ListInstances", "DeregisterInstance"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				c.put(t, c.service(t, key, ours), "left", "cls1")
				c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: "AccessDeniedException", Next: maxDenials - 1})
				v := c.view(t, disabled)
				attempts := 0
				for err := errUndecided; err != nil; attempts++ {
					err = v.Leave(t.Context())
				}
				if attempts != maxDenials {
					t.Errorf("%d attempts, want %d", attempts, maxDenials)
				}
				c.want(t, "after Leave")
			})
		})
	}
}

// A removal that fails is tried again at once, not in the turn of the service's next read, and a
// service without instances is deleted after all.
func TestView_RetriesFailedRemoval(t *testing.T) {
	for _, operation := range []string{"DeregisterInstance", "ListTagsForResource", "DeleteService"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCloud(t)
				v := c.view(t)
				var want []string
				for i := range 5 {
					exp := webExport("cls1", "10.0.0.1")
					exp.Key.Name = fmt.Sprint("other-", i)
					v.exports[exp.Key] = exp
					v.Enqueue(exp.Key)
					want = append(want, "demo/"+exp.Key.Name+": "+instance1)
				}
				v.publish("10.0.0.1")
				v.start(t)
				c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: "InternalFailure", Next: 1})
				v.publish()
				pass(30 * time.Second)
				c.want(t, "30 s after the withdrawal", want...)
			})
		})
	}
}

// The deletion of a service or of its namespace fails for longer than the interval between two
// reads: afterwards the service is deleted, although reads have shown no instance since.
func TestView_DeletesServiceAfterLongFault(t *testing.T) {
	for _, operation := range []string{"ListTagsForResource", "DeleteService", "DeleteNamespace"} {
		for _, code := range []string{"InternalFailure", "ThrottlingException"} {
			t.Run(code+" of "+operation, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := startCloud(t)
					v := c.view(t)
					v.publish("10.0.0.1")
					v.start(t)
					c.want(t, "before the fault", "demo/web: "+instance1)
					c.fail(t, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Operations: []string{operation}, Code: code})
					v.publish()
					pass(10 * time.Minute)
					c.fail(t)
					pass(20 * time.Minute)
					c.want(t, "20 minutes after the end of the fault")
					if n := v.Pending() + v.Unconfirmed(); n != 0 || len(v.services) != 0 {
						t.Errorf("%d services are pending and %d known", n, len(v.services))
					}
				})
			})
		}
	}
}
