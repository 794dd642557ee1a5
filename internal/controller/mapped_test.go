package controller

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// A mapped service of Cloud Map is imported like the export of a cluster. It survives a restart
// while Cloud Map does not answer, shares the import with a cluster that exports the name, and ends
// when its mapping is removed, also while Cloud Map does not answer.
func TestRun_ImportsMappedService(t *testing.T) {
	a, b := twoClusters(t)
	key := newKey("mapped")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)

	server, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	var isDown atomic.Bool
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isDown.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)
	access := credentials.NewStaticCredentialsProvider("test", "test", "")
	sdk := servicediscovery.New(servicediscovery.Options{Region: "ap-southeast-2", BaseEndpoint: aws.String(listener.URL), Credentials: access})
	client, err := cloudmapapi.NewClient(t.Context(), cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: listener.URL, Credentials: access})
	if err != nil {
		t.Fatal(err)
	}
	register := createMapped(t, sdk, client)
	path := filepath.Join(t.TempDir(), "services.yaml")
	writeMapping := func(text string) {
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	writeMapping(fmt.Sprintf("services: [{cloudMap: {namespace: apps, service: orders}, import: {namespace: %s, name: %s}, ports: [{name: http, port: 80, targetPort: 8080}]}]", key.Namespace, key.Name))

	hub := memory.NewHub()
	newRegistry := func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg := mapped.New(client, mapped.Config{Identity: identity, Cluster: "cloud-map", Path: path, Logger: ctrllog.Log})
		return union.New(union.Config{Identity: identity, Logger: ctrllog.Log, PseudoClusters: map[string]string{mapped.RegistryName: "cloud-map"}},
			union.Source{Name: "memory", Registry: hub.Registry(identity)}, union.Source{Name: mapped.RegistryName, Registry: reg}), nil
	}
	a.run(t, hub, flags("cls1"))
	runB := b.runWith(t, newRegistry, testOptions(flags("cls2")))

	before := b.imported(t, key, map[string][]string{"cloud-map": nil})
	register("task", map[string]string{"AWS_INSTANCE_IPV4": "10.44.0.1"})
	mappedOnly := map[string][]string{"cloud-map": {"10.44.0.1"}}
	b.imported(t, key, mappedOnly)

	// The addresses of this cluster are refused as those of any member.
	var api corev1.Service
	if err := b.get(t, mcs.Key{Namespace: "default", Name: "kubernetes"}, &api); err != nil {
		t.Fatal(err)
	}
	register("api-server", map[string]string{"AWS_INSTANCE_IPV4": api.Spec.ClusterIP})
	eventually(t, "the cluster IP is refused", func() error {
		imp := importOf(key)
		if err := b.get(t, key, imp); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(imp.Status.Conditions, policy.ConditionRefused) {
			return fmt.Errorf("conditions %+v", imp.Status.Conditions)
		}
		return nil
	})
	b.imported(t, key, mappedOnly)

	isDown.Store(true)
	runB.stopAndWait(t)
	b.runWith(t, newRegistry, testOptions(flags("cls2")))
	both := map[string][]string{"cloud-map": {"10.44.0.1"}, "cls1": {"10.1.0.1"}}
	a.export(t, key, 1, 1) // its import shows that the new process has reconciled the import
	imp := b.imported(t, key, both)
	if len(imp.Spec.IPs) == 0 || imp.Spec.IPs[0] != before.Spec.IPs[0] || imp.UID != before.UID {
		t.Errorf("the clusterset IPs are %v, before %v", imp.Spec.IPs, before.Spec.IPs)
	}
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.condition(t, key, "Conflict=False NoConflicts", "")

	writeMapping("services: []")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.delete(t, controllertest.ServiceExport(key))
	b.notImported(t, key)
}

// createMapped creates service orders in namespace apps, and returns a function that registers an
// instance.
func createMapped(t *testing.T, sdk *servicediscovery.Client, client *cloudmapapi.Client) func(id string, attrs map[string]string) {
	t.Helper()
	out, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String("apps")})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := client.AwaitOperation(t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		t.Fatal(err)
	}
	service, err := sdk.CreateService(t.Context(), &servicediscovery.CreateServiceInput{Name: aws.String("orders"), NamespaceId: aws.String(targets["NAMESPACE"])})
	if err != nil {
		t.Fatal(err)
	}
	return func(id string, attrs map[string]string) {
		t.Helper()
		_, err := sdk.RegisterInstance(t.Context(), &servicediscovery.RegisterInstanceInput{ServiceId: service.Service.Id, InstanceId: &id, Attributes: attrs})
		if err != nil {
			t.Fatal(err)
		}
	}
}
