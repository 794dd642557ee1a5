package cloudmap

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// viewing starts a registry with the instance view.
func viewing(t *testing.T, c *cloud, identity mcs.Identity) (reg *Registry, stop func(error)) {
	t.Helper()
	cfg := fast(identity)
	cfg.InstanceView = true
	reg = c.registry(t, cfg)
	return reg, start(t, reg)
}

// shows reports whether a service has exactly these instances.
func (c *cloud) shows(t *testing.T, key mcs.Key, ids ...string) func() bool {
	return func() bool {
		return slices.Equal(slices.Sorted(maps.Keys(c.instances(t, key.Namespace, key.Name))), ids)
	}
}

func TestViewFollowsExport(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := viewing(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, 10*time.Second, "two instances", c.shows(t, webKey(0), "tcp-10_10_0_0-8080", "tcp-10_10_0_1-8080"))
	attrs := c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]
	want := map[string]string{
		"AWS_INSTANCE_IPV4": "10.10.0.1", "AWS_INSTANCE_PORT": "8080", "CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1",
		"ENDPOINT_PORT_NAME": "http", "ENDPOINT_PROTOCOL": "TCP", "SERVICE_PORT": "80", "SERVICE_PORT_NAME": "http",
		"SERVICE_PROTOCOL": "TCP", "SERVICE_TARGET_PORT": "8080", "SERVICE_TYPE": "ClusterSetIP", "READY": "true",
		"NODENAME": "node-1", "HOSTNAME": "", "K8S_CONTROLLER": "cloud-map-mcs-controller test",
		"SERVICE_EXPORT_CREATION_TIMESTAMP": "1790000000000",
	}
	if diff := cmp.Diff(want, attrs); diff != "" {
		t.Errorf("attributes differ (-want +got):\n%s", diff)
	}

	exp := webExport("cls1", 0, 2)
	exp.Backends[0].Endpoints = exp.Backends[0].Endpoints[1:]
	exp.Backends[0].Endpoints[0].Ready = false
	publish(t, a, exp)
	within(t, 10*time.Second, "one instance", c.shows(t, webKey(0), "tcp-10_10_0_1-8080"))
	within(t, 10*time.Second, "it is not ready", func() bool {
		return c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]["READY"] == "false"
	})

	if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "service and namespace are gone", func() bool {
		namespaces, err := c.client.ListNamespaces(t.Context())
		return err == nil && slices.Equal(slices.Collect(maps.Keys(namespaces)), []string{"mcs.set1"})
	})
}

// A service of the user holds instances of others, of another cluster and of a previous process.
func TestViewLeavesOthersAlone(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	createForeign(t, c, "demo", "web-0")
	foreign := api.Instance{ID: "ecs-task", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.99.0.1", "TASK": "x"}}
	theirs := api.Instance{ID: "tcp-10_10_0_0-8080", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.10.0.0", "CLUSTER_ID": "cls9", "CLUSTERSET_ID": "set1"}}
	left := api.Instance{ID: "tcp-10_10_7_7-8080", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.10.7.7", "CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1"}}
	for _, instance := range []api.Instance{foreign, theirs, left} {
		c.put(t, "demo", "web-0", instance)
	}
	a, _ := viewing(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, 10*time.Second, "the own instance beside those of others, without the leftover", c.shows(t, webKey(0), "ecs-task", "tcp-10_10_0_0-8080", "tcp-10_10_0_1-8080"))

	// An attribute that the user adds to an instance of this cluster stays when the instance
	// changes.
	annotated := c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]
	annotated["COST_CENTER"] = "42"
	c.put(t, "demo", "web-0", api.Instance{ID: "tcp-10_10_0_1-8080", Attributes: annotated})
	exp := webExport("cls1", 0, 2)
	exp.Backends[0].Endpoints[1].Ready = false
	publish(t, a, exp)
	within(t, 10*time.Second, "the change shows", func() bool {
		return c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]["READY"] == "false"
	})
	if got := c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]["COST_CENTER"]; got != "42" {
		t.Errorf("the foreign attribute is %q now, want 42", got)
	}

	if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "only instances of others are left", c.shows(t, webKey(0), "ecs-task", "tcp-10_10_0_0-8080"))
	within(t, 10*time.Second, "the view is done", func() bool { return a.view.Pending() == 0 })
	for id, want := range map[string]api.Instance{"ecs-task": foreign, "tcp-10_10_0_0-8080": theirs} {
		if diff := cmp.Diff(want.Attributes, c.instances(t, "demo", "web-0")[id]); diff != "" {
			t.Errorf("instance %s changed:\n%s", id, diff)
		}
	}
}

// A previous process ended before it could remove its instances. The next one has all exports of
// the cluster before it runs.
func TestViewAfterRestart(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := viewing(t, c, cls1)
	for i := range 3 {
		publish(t, a, webExport("cls1", i, 1))
		within(t, 10*time.Second, "the export is confirmed", isExported(t, a, webKey(i)))
		within(t, 10*time.Second, "an instance", func() bool { return len(c.instances(t, "demo", webKey(i).Name)) == 1 })
	}
	stop(nil)
	// An instance of a service that no page has: registered when the controller died.
	createForeign(t, c, "other", "orphan")
	c.put(t, "other", "orphan", api.Instance{ID: "tcp-10_10_9_9-80", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.10.9.9", "CLUSTER_ID": "cls1", "CLUSTERSET_ID": "set1"}})

	cfg := fast(cls1)
	cfg.InstanceView = true
	a = c.registry(t, cfg)
	publish(t, a, webExport("cls1", 0, 2))
	publish(t, a, webExport("cls1", 2, 1))
	start(t, a)
	within(t, 10*time.Second, "the orphan is gone", c.shows(t, mcs.Key{Namespace: "other", Name: "orphan"}))
	within(t, 10*time.Second, "the new endpoint", func() bool { return len(c.instances(t, "demo", "web-0")) == 2 })
	within(t, 10*time.Second, "the service that is not exported any more is gone", func() bool { _, ok := c.service(t, "demo", "web-1"); return !ok })
	if got := len(c.instances(t, "demo", "web-2")); got != 1 {
		t.Errorf("web-2 has %d instances, want its 1", got)
	}
	if _, ok := c.service(t, "other", "orphan"); !ok {
		t.Error("a service of the user was deleted")
	}
}

func TestViewInDNSNamespace(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	out, err := c.sdk(admin).CreatePrivateDnsNamespace(t.Context(), &servicediscovery.CreatePrivateDnsNamespaceInput{Name: aws.String("demo"), Vpc: aws.String("vpc-12345678")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.AwaitOperation(t.Context(), aws.ToString(out.OperationId)); err != nil {
		t.Fatal(err)
	}
	a, stop := viewing(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, 10*time.Second, "two instances", func() bool { return len(c.instances(t, "demo", "web-0")) == 2 })
	stop(registry.ErrLeave)
	namespaces, err := c.client.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(namespaces) != 1 || namespaces["demo"].Type != types.NamespaceTypeDnsPrivate {
		t.Errorf("after leaving there are namespaces %v, want the user's demo only", namespaces)
	}
	if services, err := c.client.ListServices(t.Context(), namespaces["demo"]); err != nil || len(services) != 0 {
		t.Errorf("after leaving there are services %v (%v), want none", services, err)
	}
}

func TestViewGoesWithTheCluster(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := viewing(t, c, cls1)
	b, _ := viewing(t, c, cls2)
	publish(t, a, webExport("cls1", 0, 2))
	other := webExport("cls2", 0, 1)
	other.Backends[0].Endpoints[0].Address = other.Backends[0].Endpoints[0].Address.Next().Next().Next()
	publish(t, b, other)
	within(t, 10*time.Second, "three instances", func() bool { return len(c.instances(t, "demo", "web-0")) == 3 })
	stop(registry.ErrLeave)
	within(t, 10*time.Second, "the other's instance is left", c.shows(t, webKey(0), "tcp-10_10_0_3-8080"))
	within(t, 10*time.Second, "the catalog is gone", func() bool { _, ok := c.service(t, "mcs.set1", "catalog.cls1"); return !ok })
	if _, ok := c.service(t, "mcs.set1", "catalog.cls2"); !ok {
		t.Error("the other cluster's catalog is gone too")
	}
}

// TestLeaveWithLateCalls leaves while reconcilers that have not ended yet still use the registry.
// It is a test for the race detector.
func TestLeaveWithLateCalls(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := viewing(t, c, cls1)
	for i := range 5 {
		publish(t, a, webExport("cls1", i, 1))
	}
	within(t, 10*time.Second, "all is mirrored", func() bool { return isExported(t, a, webKey(4))() && a.view.Pending() == 0 })
	left := make(chan struct{})
	go func() {
		defer close(left)
		stop(registry.ErrLeave)
	}()
	for i := 0; ; i++ {
		select {
		case <-left:
			return
		default:
		}
		publish(t, a, webExport("cls1", i%20, 1+i%2))
		look(t, a, webKey(i%20))
		a.Report()
		time.Sleep(time.Millisecond)
	}
}

// With a full namespace quota no instance can be registered.
func TestViewNeverBlocksPages(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, NamespaceQuota: 1})
	a, _ := viewing(t, c, cls1)
	b, _ := viewing(t, c, cls2)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, 10*time.Second, "the export is confirmed", isExported(t, a, webKey(0)))
	within(t, 10*time.Second, "the export is seen", sees(t, b, webExport("cls1", 0, 2)))
}

// createForeign creates a namespace and a service as a user does, without the tags of the
// controllers.
func createForeign(t *testing.T, c *cloud, namespaceName, serviceName string) {
	t.Helper()
	out, err := c.sdk(admin).CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(namespaceName)})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.client.AwaitOperation(t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.sdk(admin).CreateService(t.Context(), &servicediscovery.CreateServiceInput{Name: aws.String(serviceName), NamespaceId: aws.String(targets["NAMESPACE"])})
	if err != nil {
		t.Fatal(err)
	}
}

// TestViewAttributes: consumers filter by the attributes that the user named, as with
// `aws servicediscovery discover-instances --query-parameters team=payments`.
func TestViewAttributes(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := viewing(t, c, cls1)
	exp := webExport("cls1", 0, 2)
	exp.InstanceAttributes = "team=payments\nzone=$(zone)"
	publish(t, a, exp)
	discovered := func(query map[string]string) func() bool {
		return func() bool {
			found, _, err := c.client.DiscoverInstances(t.Context(), "demo", "web-0", query)
			return err == nil && len(found) == 1 && found[0].ID == "tcp-10_10_0_1-8080"
		}
	}
	zone := exp.Backends[0].Endpoints[1].Zone
	within(t, patience, "one instance of the team is in the zone", discovered(map[string]string{"team": "payments", "zone": zone}))
	exp.InstanceAttributes = "zone=$(zone)"
	publish(t, a, exp)
	within(t, patience, "the team is removed", func() bool {
		attrs := c.instances(t, "demo", "web-0")["tcp-10_10_0_1-8080"]
		_, has := attrs["team"]
		return !has && attrs["zone"] == zone
	})
}
