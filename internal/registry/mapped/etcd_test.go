package mapped

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd/etcdtest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// startEtcd starts an etcd with users until the test ends.
func startEtcd(t *testing.T) *etcdtest.Cluster {
	t.Helper()
	program, err := etcdtest.Program()
	if err != nil {
		if os.Getenv("REQUIRE_ENVTEST") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cluster, err := etcdtest.Start(t.Context(), etcdtest.Options{Program: program, Dir: t.TempDir(), Args: []string{"--bcrypt-cost=4", "--unsafe-no-fsync"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	return cluster
}

// joinEtcd returns the registry of a cluster on etcd. It does not run yet.
func joinEtcd(t *testing.T, c *etcdtest.Cluster, keyrings *registrytest.Keyrings, identity mcs.Identity) registry.Registry {
	t.Helper()
	user, passwordFile, err := c.AddCluster(t.Context(), "/mcs", identity.ClusterSetID, identity.ClusterID)
	if err != nil {
		t.Fatal(err)
	}
	client, err := etcd.NewClient(etcd.ClientConfig{Endpoints: c.Endpoints(), CAFile: c.CAFile, Username: user, PasswordFile: passwordFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	reg, err := etcd.New(client, etcd.Config{
		Identity: identity, Version: "test", Logger: logr.Discard(), Signer: registrytest.Signer(t, identity), Keyring: keyrings.Of(t, identity),
		PollInterval: 50 * time.Millisecond, HeartbeatInterval: time.Second, StaleAfter: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// TestWithEtcd: beside a registry on etcd, a mapped service is united with the export of a cluster,
// follows Cloud Map while etcd is down, and ends with its mapping alone.
func TestWithEtcd(t *testing.T) {
	store, keyrings := startEtcd(t), registrytest.NewKeyrings(time.Minute)
	c := startCloud(t)
	c.create("apps", "orders")
	c.register("apps/orders", "a", "IPV4=10.0.0.1", "PORT=80")
	services := newRegistry(t, c, entry("", ""))
	reg := union.New(union.Config{Identity: cls1, Logger: logr.Discard(), PseudoClusters: map[string]string{RegistryName: "cloud-map"}},
		union.Source{Name: "etcd", Registry: joinEtcd(t, store, keyrings, cls1)}, union.Source{Name: RegistryName, Registry: services.Registry})
	run(t, reg, func(mcs.Key) {})
	shows := func(what string, want ...string) {
		t.Helper()
		within(t, what, func() bool {
			view, err := reg.Lookup(t.Context(), orders)
			var got []string
			for _, exp := range view.Exports() {
				got = append(got, exp.Cluster+" "+describe(exp))
			}
			return err == nil && slices.Equal(got, want) && len(view.In(registry.Unknown, registry.Unseen)) == 0
		})
	}
	shows("the mapped service alone", "cloud-map http80 10.0.0.1")

	other := joinEtcd(t, store, keyrings, mcs.Identity{ClusterID: "cls2", ClusterSetID: cls1.ClusterSetID, UID: "uid-2"})
	run(t, other, func(mcs.Key) {})
	exp := cloudmaptest.WebExport("cls2", 0, 1)
	exp.Key = orders
	if err := other.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
	const ofCluster = "cls2 http8080 10.10.0.0@eu-west-1a"
	shows("a cluster exports it too", "cloud-map http80 10.0.0.1", ofCluster)

	store.Stop()
	c.register("apps/orders", "b", "IPV4=10.0.0.2", "PORT=80")
	shows("etcd is down", "cloud-map http80 10.0.0.1 10.0.0.2", ofCluster)
	services.writeFile("services: []")
	shows("the mapping is removed", ofCluster)
}
