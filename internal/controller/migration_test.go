package controller

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	sdtypes "github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// The clusters migrate one by one from the legacy controller to ours, while clients use the
// exported services. Each cluster has an access key with the policies that docs/migration.md names,
// and the legacy controllers and the administrator have another one, with all rights.
//
// By default, the test creates the objects and instances that were recorded of the legacy
// controller's version 0.3.1. With OLD_CONTROLLER, the path of its program, the test runs that
// instead. It must be built from that version with its Cloud Map endpoint taken from SD_ENDPOINT
// (docs/migration.md describes this).

// migrationPolicies are the policies that docs/migration.md names.
var migrationPolicies = []string{"cluster.json", "instance-view.json", "compatibility.json"}

// legacyClusterset is a Cloud Map that the legacy controllers of one clusterset use.
type legacyClusterset struct {
	t        *testing.T
	keyrings *registrytest.Keyrings
	url      string
	sdk      *servicediscovery.Client
	// services are the IDs of the Cloud Map services.
	services map[mcs.Key]string
}

func newLegacyClusterset(t *testing.T) *legacyClusterset {
	t.Helper()
	options := cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(200 * time.Millisecond), Unthrottled: true, AccessKeys: []cloudmaplocal.AccessKey{{ID: administrator}}}
	for _, id := range []string{"cls1", "cls2"} {
		policies, err := cloudmaptest.Policies(os.DirFS("../../deploy/iam"), mcs.Identity{ClusterID: id, ClusterSetID: "set"}, migrationPolicies...)
		if err != nil {
			t.Fatal(err)
		}
		options.AccessKeys = append(options.AccessKeys, cloudmaplocal.AccessKey{ID: id, Policies: policies})
	}
	url := localCloudMap(t, options)
	sdk := servicediscovery.New(servicediscovery.Options{
		Region: cloudmaplocal.DefaultRegion, BaseEndpoint: aws.String(url), Credentials: credentials.NewStaticCredentialsProvider(administrator, "test", ""),
	})
	resources, err := cloudmaptest.Stacks(os.DirFS("../../deploy/iam"), "set", "cls1", "cls2")
	if err == nil {
		err = cloudmaptest.Create(t.Context(), sdk, resources)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &legacyClusterset{t: t, keyrings: newKeyrings(), url: url, services: map[mcs.Key]string{}, sdk: sdk}
}

// administrator is the access key that localCloudMap puts into the environment.
const administrator = "test"

// tag tags the Cloud Map namespace and service of key as the script in docs/migration.md, which
// TestMigrationPage runs.
func (w *legacyClusterset) tag(t *testing.T, key mcs.Key) {
	t.Helper()
	namespaces, err := w.sdk.ListNamespaces(t.Context(), &servicediscovery.ListNamespacesInput{Filters: []sdtypes.NamespaceFilter{
		{Name: sdtypes.NamespaceFilterNameName, Values: []string{key.Namespace}}}})
	if err != nil || len(namespaces.Namespaces) != 1 {
		t.Fatalf("listing namespace %s: %v, %v", key.Namespace, namespaces, err)
	}
	services, err := w.sdk.ListServices(t.Context(), &servicediscovery.ListServicesInput{Filters: []sdtypes.ServiceFilter{
		{Name: sdtypes.ServiceFilterNameNamespaceId, Values: []string{aws.ToString(namespaces.Namespaces[0].Id)}}}})
	if err != nil || len(services.Services) != 1 {
		t.Fatalf("listing the services of %s: %v, %v", key.Namespace, services, err)
	}
	w.services[key] = aws.ToString(services.Services[0].Id)
	for _, arn := range []*string{namespaces.Namespaces[0].Arn, services.Services[0].Arn} {
		_, err := w.sdk.TagResource(t.Context(), &servicediscovery.TagResourceInput{ResourceARN: arn, Tags: []sdtypes.Tag{
			{Key: aws.String("clusterset"), Value: aws.String("set")}, {Key: aws.String("part"), Value: aws.String("view")}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// writers returns the controllers that wrote the instances of key, by address.
func (w *legacyClusterset) writers(ctx context.Context, key mcs.Key) (map[string]string, error) {
	out, err := w.sdk.ListInstances(ctx, &servicediscovery.ListInstancesInput{ServiceId: aws.String(w.services[key])})
	if err != nil {
		return nil, err
	}
	writers := map[string]string{}
	for _, i := range out.Instances {
		writers[i.Attributes["AWS_INSTANCE_IPV4"]], _, _ = strings.Cut(i.Attributes["K8S_CONTROLLER"], " ")
	}
	return writers, nil
}

// awaitWriters waits until the instances of key are those of the addresses, written by these
// controllers: legacy clusters import them.
func (w *legacyClusterset) awaitWriters(t *testing.T, key mcs.Key, want map[string]string) {
	t.Helper()
	eventually(t, "the instances are updated", func() error {
		got, err := w.writers(t.Context(), key)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("they are %v, want %v", got, want)
		}
		return err
	})
}

// newRegistry creates the registries of our controller, as cmd/controller does.
func (w *legacyClusterset) newRegistry(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
	c, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: cloudmaplocal.DefaultRegion, Endpoint: w.url,
		Credentials: credentials.NewStaticCredentialsProvider(identity.ClusterID, "test", "")})
	if err != nil {
		return nil, err
	}
	log := ctrllog.Log.WithName("registry").WithValues("run", identity.ClusterID)
	first, err := cloudmap.New(c, cloudMapConfig(w.t, w.keyrings, identity))
	if err != nil {
		return nil, err
	}
	old := legacy.NewRegistry(c, legacy.Config{Identity: identity, PollInterval: 500 * time.Millisecond, Logger: log})
	return union.New(union.Config{Identity: identity, Logger: log, IsSigned: w.keyrings.Of(w.t, identity).IsSigned},
		union.Source{Name: "cloudmap", Registry: first}, union.Source{Name: "aws-controller", Registry: old}), nil
}

// legacyExport is the export of a cluster with its addresses.
type legacyExport struct {
	cluster   string
	addresses []string
}

// run runs the legacy controller in a cluster until the returned function is called. all includes
// the cluster's own export.
func (w *legacyClusterset) run(t *testing.T, k *cluster, clusterID string, key mcs.Key, all []legacyExport) (stop func()) {
	t.Helper()
	if program := os.Getenv("OLD_CONTROLLER"); program != "" {
		return w.start(t, k, program)
	}
	i := slices.IndexFunc(all, func(e legacyExport) bool { return e.cluster == clusterID })
	w.imitateExport(t, k, key, all[i])
	imitateImport(t, k, key, all)
	return func() {}
}

func (w *legacyClusterset) start(t *testing.T, k *cluster, program string) (stop func()) {
	t.Helper()
	user, err := k.env.AddUser(envtest.User{Name: "old", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path, "SD_ENDPOINT="+w.url, "AWS_REGION="+cloudmaplocal.DefaultRegion)
	if os.Getenv("TEST_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stopped atomic.Bool
	stop = func() {
		if !stopped.Swap(true) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	return stop
}

// imitateExport registers a cluster's endpoints and adds the finalizer to its ServiceExport.
func (w *legacyClusterset) imitateExport(t *testing.T, k *cluster, key mcs.Key, exp legacyExport) {
	t.Helper()
	var export mcsv1beta1.ServiceExport
	export.Namespace, export.Name = key.Namespace, key.Name
	change(t, k, &export, func(e *mcsv1beta1.ServiceExport) { e.Finalizers = append(e.Finalizers, legacy.Finalizer) })
	id := w.service(t, key)
	for _, address := range exp.addresses {
		_, err := w.sdk.RegisterInstance(t.Context(), &servicediscovery.RegisterInstanceInput{
			ServiceId: aws.String(id), InstanceId: aws.String("tcp-" + strings.ReplaceAll(address, ".", "_") + "-8080"),
			Attributes: map[string]string{
				"AWS_INSTANCE_IPV4": address, "AWS_INSTANCE_PORT": "8080", "CLUSTER_ID": exp.cluster, "CLUSTERSET_ID": "set",
				"ENDPOINT_PORT_NAME": "http", "ENDPOINT_PROTOCOL": "TCP", "HOSTNAME": "", "NODENAME": "", "READY": "true",
				"SERVICE_PORT": "80", "SERVICE_PORT_NAME": "http", "SERVICE_PROTOCOL": "TCP", "SERVICE_TARGET_PORT": "80", "SERVICE_TYPE": "ClusterSetIP",
				"SERVICE_EXPORT_CREATION_TIMESTAMP": fmt.Sprint(export.CreationTimestamp.UnixMilli()),
				"K8S_CONTROLLER":                    "aws-cloud-map-mcs-controller-for-k8s 0.3.1 (887737e)",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (w *legacyClusterset) service(t *testing.T, key mcs.Key) string {
	t.Helper()
	if id := w.services[key]; id != "" {
		return id
	}
	out, err := w.sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(key.Namespace)})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Cloud Map namespace is there", func() error {
		op, err := w.sdk.GetOperation(t.Context(), &servicediscovery.GetOperationInput{OperationId: out.OperationId})
		if err != nil {
			return err
		}
		namespace, ok := op.Operation.Targets["NAMESPACE"]
		if !ok {
			return fmt.Errorf("operation is %s", op.Operation.Status)
		}
		svc, err := w.sdk.CreateService(t.Context(), &servicediscovery.CreateServiceInput{NamespaceId: aws.String(namespace), Name: aws.String(key.Name)})
		if err == nil {
			w.services[key] = aws.ToString(svc.Service.Id)
		}
		return err
	})
	return w.services[key]
}

// imitateImport creates a ServiceImport, a derived Service for each source cluster, and their
// EndpointSlices.
func imitateImport(t *testing.T, k *cluster, key mcs.Key, all []legacyExport) {
	t.Helper()
	type named struct {
		Cluster string `json:"cluster"`
		Derived string `json:"derived-service"`
	}
	var annotation []named
	for _, exp := range all {
		sum := sha256.Sum256([]byte(key.Namespace + key.Name + exp.cluster))
		annotation = append(annotation, named{exp.cluster, "imported-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])})
	}
	text, err := json.Marshal(annotation)
	if err != nil {
		t.Fatal(err)
	}
	imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: mcsv1beta1.ServiceImportSpec{
		Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	imp.Annotations = map[string]string{plan.AnnotationDerivedServiceAWS: string(text)}
	k.create(t, imp)
	for i, exp := range all {
		svc := controllertest.Service(mcs.Key{Namespace: key.Namespace, Name: annotation[i].Derived})
		svc.Labels = map[string]string{mcsv1beta1.LabelServiceName: key.Name, mcsv1beta1.LabelSourceCluster: exp.cluster}
		svc.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: mcsv1beta1.GroupName + "/v1alpha1", Kind: "ServiceImport", Name: imp.Name, UID: imp.UID, Controller: new(true), BlockOwnerDeletion: new(true),
		}}
		k.create(t, svc)
		imp.Spec.IPs = append(imp.Spec.IPs, svc.Spec.ClusterIP)
		var list []discoveryv1.Endpoint
		for _, address := range exp.addresses {
			list = append(list, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		slice := controllertest.EndpointSlice(mcs.Key{Namespace: key.Namespace, Name: svc.Name}, list)
		slice.Labels = map[string]string{
			discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: legacy.ControllerName,
			mcsv1beta1.LabelServiceName: key.Name, mcsv1beta1.LabelSourceCluster: exp.cluster,
		}
		slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID, Controller: new(true)}}
		k.create(t, slice)
	}
	if err := k.admin.Update(t.Context(), imp); err != nil {
		t.Fatal(err)
	}
}

// sourcesOf returns the source clusters of the ready endpoints behind an IP of the cluster.
func (k *cluster) sourcesOf(ctx context.Context, namespace, ip string) (map[string]bool, error) {
	var services corev1.ServiceList
	if err := k.admin.List(ctx, &services, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(services.Items, func(s corev1.Service) bool { return s.Spec.ClusterIP == ip })
	if i < 0 {
		return nil, fmt.Errorf("no Service has IP %s", ip)
	}
	var list discoveryv1.EndpointSliceList
	if err := k.admin.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: services.Items[i].Name}); err != nil {
		return nil, err
	}
	sources := map[string]bool{}
	for _, s := range list.Items {
		for _, ep := range s.Endpoints {
			if ep.Conditions.Ready == nil || *ep.Conditions.Ready {
				sources[s.Labels[mcsv1beta1.LabelSourceCluster]] = true
			}
		}
	}
	return sources, nil
}

// watchClients simulates clients of key in a cluster until the returned function is called: one
// resolves the IPs each time, the others cache one of the first IPs each. It reports an error if an
// IP has no ready endpoint.
func (k *cluster) watchClients(t *testing.T, key mcs.Key, uid types.UID, ips []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var checks atomic.Int64
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if problem := k.clientProblem(ctx, key, uid, ips); problem != nil && ctx.Err() == nil {
				t.Errorf("a client of %s was interrupted after %d checks: %v", key, checks.Load(), problem)
				return
			}
			checks.Add(1)
		}
	}()
	return func() {
		cancel()
		<-done
		t.Logf("the clients looked %d times", checks.Load())
	}
}

func (k *cluster) clientProblem(ctx context.Context, key mcs.Key, uid types.UID, kept []string) error {
	var imp mcsv1beta1.ServiceImport
	if err := k.admin.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, &imp); err != nil {
		return err
	}
	if imp.UID != uid || len(imp.Spec.IPs) == 0 {
		return fmt.Errorf("the ServiceImport was replaced (%v) or has no IP: %v", imp.UID != uid, imp.Spec.IPs)
	}
	for _, ip := range append(slices.Clone(imp.Spec.IPs), kept...) {
		sources, err := k.sourcesOf(ctx, key.Namespace, ip)
		if err != nil {
			return err
		}
		if len(sources) == 0 {
			return fmt.Errorf("IP %s has no endpoint", ip)
		}
	}
	return nil
}

// readyEndpoints returns endpoints with condition ready set: the legacy controller treats unset as
// not ready.
func readyEndpoints(x, n int) []discoveryv1.Endpoint {
	list := controllertest.Endpoints(x, n)
	for i := range list {
		list[i].Conditions.Ready = new(true)
	}
	return list
}

func TestMigration(t *testing.T) {
	a, b := twoClusters(t)
	w := newLegacyClusterset(t)
	key := newKey("migration")
	for k, id := range map[*cluster]string{a: "cls1", b: "cls2"} {
		k.property(t, "cluster.clusterset.k8s.io", id)
		k.property(t, "clusterset.k8s.io", "set")
		k.namespace(t, key.Namespace)
	}
	change(t, a, a.export(t, key, 1, 2), func(s *discoveryv1.EndpointSlice) { s.Endpoints = readyEndpoints(1, 2) })
	sliceB := b.export(t, key, 2, 1)
	change(t, b, sliceB, func(s *discoveryv1.EndpointSlice) { s.Endpoints = readyEndpoints(2, 1) })
	all := []legacyExport{{"cls1", []string{"10.1.0.1", "10.1.0.2"}}, {"cls2", []string{"10.2.0.1"}}}
	stopA, stopB := w.run(t, a, "cls1", key, all), w.run(t, b, "cls2", key, all)

	// The legacy controllers import both exports in both clusters, with an IP for each source
	// cluster.
	uids, ips := map[*cluster]types.UID{}, map[*cluster][]string{}
	for _, k := range []*cluster{a, b} {
		eventually(t, "the legacy controller imports both", func() error {
			var imp mcsv1beta1.ServiceImport
			if err := k.get(t, key, &imp); err != nil {
				return err
			}
			uids[k], ips[k] = imp.UID, imp.Spec.IPs
			for _, ip := range imp.Spec.IPs {
				sources, err := k.sourcesOf(t.Context(), key.Namespace, ip)
				if err != nil {
					return err
				}
				if len(sources) != 1 {
					return fmt.Errorf("IP %s has endpoints of %v", ip, sources)
				}
			}
			if len(imp.Spec.IPs) != 2 {
				return fmt.Errorf("IPs %v, want one for each source cluster", imp.Spec.IPs)
			}
			return nil
		})
	}
	endA := a.watchClients(t, key, uids[a], ips[a])
	endB := b.watchClients(t, key, uids[b], ips[b])

	// The administrator tags what the legacy controllers have created. cls2 migrates first: the
	// legacy controller stops, ours starts.
	w.tag(t, key)
	options := testOptions(config.Identity{})
	options.Migration.ImportFromAWSController = true
	stopB()
	b.runWith(t, w.newRegistry, options)
	want := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}}
	b.awaitTakeover(t, key, ips[b], want)
	b.condition(t, key, "Ready=True Exported", "")
	eventually(t, "the finalizer is gone", func() error {
		var exp mcsv1beta1.ServiceExport
		if err := b.get(t, key, &exp); err != nil || len(exp.Finalizers) > 0 {
			return fmt.Errorf("finalizers %v (%w)", exp.Finalizers, err)
		}
		return nil
	})
	// Changes in one cluster are imported in the other. (The imitation does not react to changes.)
	change(t, b, sliceB, func(s *discoveryv1.EndpointSlice) { s.Endpoints = readyEndpoints(2, 2) })
	want["cls2"] = []string{"10.2.0.1", "10.2.0.2"}
	b.awaitTakeover(t, key, ips[b], want)
	w.awaitWriters(t, key, map[string]string{"10.1.0.1": legacy.ControllerName, "10.1.0.2": legacy.ControllerName, "10.2.0.1": plan.ManagedBy, "10.2.0.2": plan.ManagedBy})
	if os.Getenv("OLD_CONTROLLER") != "" {
		eventually(t, "the legacy controller sees the new endpoint", func() error {
			if got := a.addresses(t, key)["cls2"]; !slices.Equal(got, want["cls2"]) {
				return fmt.Errorf("it shows %v", got)
			}
			return nil
		})
	}

	// cls1 migrates.
	stopA()
	a.runWith(t, w.newRegistry, options)
	a.awaitTakeover(t, key, ips[a], want)
	a.condition(t, key, "Ready=True Exported", "")
	w.awaitWriters(t, key, map[string]string{"10.1.0.1": plan.ManagedBy, "10.1.0.2": plan.ManagedBy, "10.2.0.1": plan.ManagedBy, "10.2.0.2": plan.ManagedBy})
	endA()
	endB()

	// Both have migrated. Deleted exports are removed, and no finalizer blocks the deletion.
	a.delete(t, controllertest.ServiceExport(key))
	again := map[string][]string{"cls1": want["cls1"]}
	delete(want, "cls1")
	for _, k := range []*cluster{a, b} {
		k.awaitTakeover(t, key, ips[k], want)
	}
	b.delete(t, controllertest.ServiceExport(key))
	for _, k := range []*cluster{a, b} {
		eventually(t, "the import goes", func() error {
			if err := k.get(t, key, &mcsv1beta1.ServiceImport{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the ServiceImport exists: %w", err)
			}
			var list corev1.ServiceList
			if err := k.admin.List(t.Context(), &list, client.InNamespace(key.Namespace), client.HasLabels{mcsv1beta1.LabelServiceName}); err != nil || len(list.Items) != 1 || !plan.IsHeld(&list.Items[0]) {
				return fmt.Errorf("%d derived Services are left (%w), want one that is held", len(list.Items), err)
			}
			return nil
		})
	}

	// Exported again, the service gets the IPs that were held.
	a.create(t, controllertest.ServiceExport(key))
	for _, k := range []*cluster{a, b} {
		k.awaitTakeover(t, key, ips[k], again)
	}
	denied, err := cloudmaptest.Denied(t.Context(), w.url)
	if err != nil || len(denied) > 0 {
		t.Errorf("with the policies and tags of docs/migration.md these requests were denied: %v (%v)", denied, err)
	}
}

// awaitTakeover waits until our controller manages key's import, with one of the legacy
// controller's IPs and exactly the endpoints of want.
func (k *cluster) awaitTakeover(t *testing.T, key mcs.Key, before []string, want map[string][]string) {
	t.Helper()
	eventually(t, "the import is taken over", func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		if !plan.IsManaged(&imp) || len(imp.Spec.IPs) != 1 || !slices.Contains(before, imp.Spec.IPs[0]) {
			return fmt.Errorf("ours: %v, IPs %v, before %v", plan.IsManaged(&imp), imp.Spec.IPs, before)
		}
		got := map[string][]string{}
		for _, s := range k.slicesOf(t, key) {
			var svc corev1.Service
			if err := k.get(t, mcs.Key{Namespace: key.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}, &svc); err != nil {
				return err
			}
			if svc.Spec.ClusterIP != imp.Spec.IPs[0] {
				continue // of a Service that is to go
			}
			if !plan.IsManaged(&s) {
				return fmt.Errorf("slice %s is still there", s.Name)
			}
			for _, ep := range s.Endpoints {
				cluster := s.Labels[mcsv1beta1.LabelSourceCluster]
				got[cluster] = append(got[cluster], ep.Addresses[0])
				slices.Sort(got[cluster])
			}
		}
		if !maps.EqualFunc(want, got, slices.Equal) {
			return fmt.Errorf("addresses %v, want %v", got, want)
		}
		var list corev1.ServiceList
		if err := k.admin.List(t.Context(), &list, client.InNamespace(key.Namespace), client.HasLabels{mcsv1beta1.LabelServiceName}); err != nil {
			return err
		}
		for _, svc := range list.Items {
			if retires := svc.Annotations[legacy.AnnotationRetires]; !plan.IsManaged(&svc) || (retires != "") != (svc.Spec.ClusterIP != imp.Spec.IPs[0]) {
				return fmt.Errorf("derived Service %s: ours %v, retires %q", svc.Name, plan.IsManaged(&svc), retires)
			}
		}
		return nil
	})
}
