package controller

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// cloudMapConfig returns the configuration of a registry with fast polls. Clusters keep their keys
// over restarts.
func cloudMapConfig(t *testing.T, keyrings *registrytest.Keyrings, identity mcs.Identity) cloudmap.Config {
	t.Helper()
	settings := config.Default().Registry
	return cloudmap.Config{
		Identity: identity, Version: "test", InstanceView: true, InstancesPerNamespace: config.Default().AWS.InstancesPerNamespace,
		PollInterval: 200 * time.Millisecond, PollIntervalWithNotifications: settings.PollIntervalWithNotifications,
		HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter,
		Signer: registrytest.Signer(t, identity), Keyring: keyrings.Of(t, identity),
		Logger: ctrllog.Log.WithName("registry").WithValues("run", identity.ClusterID),
	}
}

// newKeyrings returns the keyrings of a clusterset.
func newKeyrings() *registrytest.Keyrings {
	return registrytest.NewKeyrings(config.Default().Registry.StaleAfter)
}

// localCloudMap runs cloudmap-local and sets credentials for it. It returns its URL.
func localCloudMap(t *testing.T, options cloudmaplocal.Options) string {
	t.Helper()
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(func() {
		listener.Close()
		server.Close()
	})
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	return listener.URL
}

// cloudMapRegistries returns a function that makes a cluster's registry on the Cloud Map at url.
func cloudMapRegistries(t *testing.T, url string) func(context.Context, mcs.Identity) (registry.Registry, error) {
	keyrings := newKeyrings()
	return func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
		client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url})
		if err != nil {
			return nil, err
		}
		return cloudmap.New(client, cloudMapConfig(t, keyrings, identity))
	}
}

// This test uses the Cloud Map registry: the AWS SDK and Cloud Map's API, with its eventual
// consistency.
func TestRun_OverCloudMap(t *testing.T) {
	a, b := twoClusters(t)
	url := localCloudMap(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(200 * time.Millisecond)})
	newRegistry := cloudMapRegistries(t, url)
	key := newKey("cloudmap")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	runA := a.runWith(t, newRegistry, testOptions(flags("cls1")))
	b.runWith(t, newRegistry, testOptions(flags("cls2")))

	slice := a.export(t, key, 1, 2)
	for _, k := range []*cluster{a, b} {
		k.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	}
	a.condition(t, key, "Ready=True Exported", "")
	b.export(t, key, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}}
	for _, k := range []*cluster{a, b} {
		k.imported(t, key, both)
	}
	change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(false) })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1 not ready", "10.1.0.2"}, "cls2": {"10.2.0.1"}})

	// An export that is deleted while the controller is down is withdrawn after its start.
	runA.stopAndWait(t)
	a.delete(t, controllertest.ServiceExport(key))
	a.runWith(t, newRegistry, testOptions(flags("cls1")))
	b.imported(t, key, map[string][]string{"cls2": {"10.2.0.1"}})
	b.delete(t, controllertest.ServiceExport(key))
	b.notImported(t, key)
	a.notImported(t, key)
}

// A cluster that gets another ID exports under both until the other clusters have read its exports
// under the new one, so no import ends. AWS Cloud Map confirms writes late.
func TestMembership_ChangesIdentityOverCloudMap(t *testing.T) {
	a, b := twoClusters(t)
	url := localCloudMap(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
	newRegistry := cloudMapRegistries(t, url)
	key := newKey("renamed")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	options := a.identitiesOptions(t, config.Identity{})
	a.runWith(t, newRegistry, options)
	b.runWith(t, newRegistry, testOptions(flags("cls2")))
	var before []*mcsv1beta1.ServiceImport
	keys := make([]mcs.Key, 5)
	for i := range keys {
		keys[i] = mcs.Key{Namespace: key.Namespace, Name: fmt.Sprint("web-", i)}
		a.export(t, keys[i], 1, 2)
	}
	for _, k := range keys {
		before = append(before, b.imported(t, k, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}}))
	}
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls9")
	for i, k := range keys {
		if after := b.imported(t, k, map[string][]string{"cls9": {"10.1.0.1", "10.1.0.2"}}); after.UID != before[i].UID {
			t.Errorf("the import of %s was created again", k)
		}
	}
	a.awaitIdentities(t, "set.cls9")
}
