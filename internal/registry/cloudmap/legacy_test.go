package cloudmap

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// legacyInstances returns the instances that the legacy controller writes for exp.
func legacyInstances(exp mcs.Export) []api.Instance {
	list := instances.FromExport(exp, "set1", "")
	for _, i := range list {
		i.Attributes[instances.AttrController] = legacy.ControllerName + " 0.3.1 (887737e)"
	}
	return list
}

// A hundred clusters of one account import from legacy controllers and list all namespaces and
// services from one quota. They find intervals at which a cluster that has to list to join does not
// wait.
func TestLegacyRegistriesShareQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	const clusters, namespaces = 100, 10
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		f := newFleet()
		client := func(name string) *api.Client {
			c, err := api.NewClient(t.Context(), api.Config{Region: "us-east-1", Endpoint: "https://cloudmap.test", Rates: legacy.Rates(), HTTPClient: guarded{a, f, name}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		admin := client("admin")
		for i := range namespaces {
			in, err := admin.CreateNamespace(t.Context(), fmt.Sprint("demo-", i), cls1, api.PartView)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.CreateService(t.Context(), in, "web", cls1, api.PartView); err != nil {
				t.Fatal(err)
			}
		}
		all := make([]*legacy.Registry, clusters)
		for i := range all {
			all[i] = legacy.NewRegistry(client(fmt.Sprint(i)), legacy.Config{Identity: testIdentity(fmt.Sprint("cls", i)), Logger: logr.Discard()})
			start(t, all[i])
		}
		listed := func() bool {
			for _, c := range all {
				if _, err := c.Members(t.Context()); err != nil {
					return false
				}
			}
			return true
		}
		// 1,100 lists, 1,000 of them of services at two a second for all.
		took := await(t, 30*time.Minute, "every cluster has listed once", listed)
		t.Logf("all have listed once after %v: %v, of which throttled %v", took.Round(time.Second), f.calls, f.throttled)
		time.Sleep(15 * time.Minute)
		f.reset()
		time.Sleep(15 * time.Minute)
		for _, operation := range []string{"ListNamespaces", "ListServices"} {
			calls, throttled := f.calls[operation], f.throttled[operation]
			t.Logf("%s: %.2f a second, %d of %d throttled", operation, float64(calls)/(15*time.Minute).Seconds(), throttled, calls)
			if throttled > calls/5 {
				t.Errorf("%s: %d of %d requests of %d clusters are throttled, want one in five at most", operation, throttled, calls, clusters)
			}
		}
		joins := a.registry(t, a.standard(1))
		exp := webExport("cls1", 0, 1)
		publish(t, joins, exp)
		start(t, joins)
		took = await(t, time.Minute, "a cluster has joined", isExported(t, joins, exp.Key))
		t.Logf("a cluster joins within %v", took.Round(time.Second))
	})
}
