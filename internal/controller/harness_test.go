package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// The scenarios run the whole controller, under the RBAC that is installed with it, against real API servers: two
// clusters that share a memory registry. There is no controller-manager, so the tests write the EndpointSlices, no
// garbage is collected and namespaces are not deleted.
//
// They need KUBEBUILDER_ASSETS, a directory with etcd and kube-apiserver: "testbed assets" prints one. TEST_LOG=1 shows
// the controllers' logs.

const (
	// waitTimeout is the time limit of eventually. Most conditions take less than a second, a few seconds on a busy machine.
	waitTimeout = 30 * time.Second
	// waitInterval is the interval between two checks of eventually.
	waitInterval = 25 * time.Millisecond
)

// cluster is one cluster: an API server.
type cluster struct {
	env *envtest.Environment
	// admin has all permissions and reads without a cache.
	admin client.Client
	// cfg is the client configuration of the controller. writes counts its write requests.
	cfg    *rest.Config
	writes writeCounter
}

// writeCounter counts accepted writes by namespace and by what they write, such as "POST services", and refused ones.
type writeCounter struct {
	mu       sync.Mutex
	accepted map[string]map[string]int
	refused  map[string]map[string]int
}

// in returns the number of writes in a namespace, accepted or refused.
func (c *writeCounter) in(namespace string) (n int) {
	accepted, refused := c.byKind(namespace)
	for _, counts := range []map[string]int{accepted, refused} {
		for _, count := range counts {
			n += count
		}
	}
	return n
}

// byKind returns the accepted and refused writes in a namespace by what they write.
func (c *writeCounter) byKind(namespace string) (accepted, refused map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.accepted[namespace]), maps.Clone(c.refused[namespace])
}

func (c *writeCounter) count(namespace, write string, statusCode int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.accepted
	if statusCode >= http.StatusBadRequest {
		counts, write = c.refused, fmt.Sprint(write, " ", statusCode)
	}
	if counts[namespace] == nil {
		counts[namespace] = map[string]int{}
	}
	counts[namespace][write]++
}

func (c *writeCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		_, after, _ := strings.Cut(req.URL.Path, "/namespaces/")
		if req.Method == http.MethodGet || req.URL.Query().Has("dryRun") || req.Body == nil {
			return next.RoundTrip(req)
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		answer, err := next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		// NAMESPACE/RESOURCE[/NAME[/SUBRESOURCE]]
		path := append(strings.Split(after, "/"), "", "", "")
		write := strings.TrimSpace(req.Method + " " + path[1] + " " + path[3])
		if bytes.Contains(body, []byte(`"reason":"Pending"`)) {
			write += " Pending"
		}
		c.count(path[0], write, answer.StatusCode)
		return answer, nil
	})
}

var (
	clustersOnce sync.Once
	clusters     []*cluster
	clustersErr  error
)

func TestMain(m *testing.M) {
	log := logr.Discard()
	if os.Getenv("TEST_LOG") != "" {
		log = (&config.Log{Level: "debug", Format: "text"}).Logger(os.Stderr)
	}
	ctrllog.SetLogger(log)
	klog.SetLogger(log)
	code := m.Run()
	for _, k := range clusters {
		_ = k.env.Stop()
	}
	os.Exit(code)
}

// twoClusters returns two clusters that all tests share. Each test uses namespaces of its own.
func twoClusters(t *testing.T) (a, b *cluster) {
	t.Helper()
	controllertest.NeedAssets(t)
	clustersOnce.Do(func() {
		for range 2 {
			k, err := startKubernetes("v1beta1", append(mcsCRDs(), aboutCRDs()...)...)
			if err != nil {
				clustersErr = err
				return
			}
			clusters = append(clusters, k)
		}
	})
	if clustersErr != nil {
		t.Fatal(clustersErr)
	}
	return clusters[0], clusters[1]
}

// startKubernetes starts an API server with crds and the controller's RBAC. version is that of the MCS and About APIs.
func startKubernetes(version string, crds ...*apiextensionsv1.CustomResourceDefinition) (*cluster, error) {
	env := &envtest.Environment{CRDs: crds}
	cfg, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("starting an API server: %w", err)
	}
	k := &cluster{env: env, writes: writeCounter{accepted: map[string]map[string]int{}, refused: map[string]map[string]int{}}}
	k.admin, err = client.New(cfg, client.Options{Scheme: adminScheme(version)})
	if err == nil {
		err = k.installRBAC()
	}
	if err == nil {
		k.cfg, err = k.controllerConfig()
	}
	if err == nil {
		err = k.installPolicy()
	}
	if err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return k, nil
}

func adminScheme(version string) *runtime.Scheme {
	scheme, err := kube.NewScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: version})
	if err != nil {
		panic(err)
	}
	for _, add := range []func(*runtime.Scheme) error{rbacv1.AddToScheme, eventsv1.AddToScheme, apiextensionsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	aboutv1beta1.AddToScheme(scheme, schema.GroupVersion{Group: aboutv1beta1.GroupName, Version: version})
	return scheme
}

// installNamespace is the controller's namespace.
const installNamespace = "cloud-map-mcs-system"

// controllerUser is the user name of the controller's ServiceAccount.
const controllerUser = "system:serviceaccount:" + installNamespace + ":cloud-map-mcs-controller-manager"

// installRBAC gives controllerUser what deploy/rbac gives the controller's ServiceAccount, and nothing else.
func (k *cluster) installRBAC() error {
	var file []byte
	for _, name := range []string{"role.yaml", "metrics-auth.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", name))
		if err != nil {
			return err
		}
		file = append(append(file, text...), "---\n"...)
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: installNamespace}}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: controllerUser}}
	for doc := range bytes.SplitSeq(file, []byte("---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return err
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind.Kind}
		switch kind.Kind {
		case "ClusterRole":
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal(doc, &role); err != nil {
				return err
			}
			ref.Name = role.Name
			objects = append(objects, &role, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: ref, Subjects: subjects,
			})
		case "Role":
			var role rbacv1.Role
			if err := yaml.Unmarshal(doc, &role); err != nil {
				return err
			}
			ref.Name = role.Name
			objects = append(objects, &role, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}, RoleRef: ref, Subjects: subjects,
			})
		}
	}
	for _, obj := range objects {
		if err := k.admin.Create(context.Background(), obj); err != nil {
			return err
		}
	}
	return nil
}

// installPolicy restricts controllerUser to its own objects (deploy/rbac/policy.yaml), and waits until that is in effect.
func (k *cluster) installPolicy() error {
	file, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", "policy.yaml"))
	if err != nil {
		return err
	}
	for doc := range bytes.SplitSeq(file, []byte("\n---\n")) {
		var obj unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
			return err
		}
		if err := k.admin.Create(context.Background(), &obj); err != nil {
			return err
		}
	}
	controller, err := client.New(k.cfg, client.Options{Scheme: k.admin.Scheme()})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(waitInterval) {
		probe := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		err := controller.Create(context.Background(), probe, client.DryRunAll)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cloud-map-mcs-controller-own-objects") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the policy is not in effect: creating a Service: %w", err)
		}
	}
}

func (k *cluster) controllerConfig() (*rest.Config, error) {
	user, err := k.env.AddUser(envtest.User{Name: controllerUser}, nil)
	if err != nil {
		return nil, err
	}
	cfg := user.Config()
	defaults := config.Default().Kubernetes
	cfg.QPS, cfg.Burst = defaults.QPS, defaults.Burst
	cfg.Wrap(k.writes.wrap)
	return cfg, nil
}

func mcsCRDs() []*apiextensionsv1.CustomResourceDefinition {
	return []*apiextensionsv1.CustomResourceDefinition{parseCRD(mcscrd.ServiceExportCRD), parseCRD(mcscrd.ServiceImportCRD)}
}

func aboutCRDs() []*apiextensionsv1.CustomResourceDefinition {
	file, err := os.ReadFile(filepath.Join("..", "..", "deploy", "crds", "about.k8s.io_clusterproperties.yaml"))
	if err != nil {
		panic(err)
	}
	return []*apiextensionsv1.CustomResourceDefinition{parseCRD(file)}
}

func parseCRD(file []byte) *apiextensionsv1.CustomResourceDefinition {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(file, &crd); err != nil {
		panic(err)
	}
	return &crd
}

// keepVersion removes all versions of crds but version.
func keepVersion(version string, crds ...*apiextensionsv1.CustomResourceDefinition) []*apiextensionsv1.CustomResourceDefinition {
	for _, crd := range crds {
		crd.Spec.Versions = slices.DeleteFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name != version
		})
		crd.Spec.Versions[0].Storage = true
	}
	return crds
}

// instance is one running controller.
type instance struct {
	stop context.CancelFunc
	done chan error
}

// flags returns the identity that flags would set.
func flags(clusterID string) config.Identity {
	return config.Identity{ClusterID: clusterID, ClusterSetID: "set"}
}

// run starts a controller, which is stopped when the test ends or by stopAndWait.
func (k *cluster) run(t *testing.T, hub *memory.Hub, identity config.Identity) *instance {
	t.Helper()
	return k.runWith(t, hubRegistry(hub), testOptions(identity))
}

// testOptions returns the defaults without leader election and without listening ports.
func testOptions(identity config.Identity) config.Options {
	options := config.Default()
	options.Identity = identity
	options.Election.Enabled = false
	options.Registry.PollIntervalWithNotifications = options.Registry.PollInterval // the previous identity ends after two polls
	options.Serving = config.Serving{Metrics: "0", Probes: "0", Status: "0"}
	return options
}

func hubRegistry(hub *memory.Hub) membership.RegistryFactory {
	return func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		return hub.Registry(identity), nil
	}
}

func (k *cluster) runWith(t *testing.T, newRegistry membership.RegistryFactory, options config.Options) *instance {
	t.Helper()
	return runConfig(t, k.cfg, newRegistry, options)
}

// runConfig starts a controller with a client configuration of its own.
func runConfig(t *testing.T, cfg *rest.Config, newRegistry membership.RegistryFactory, options config.Options) *instance {
	t.Helper()
	return runSetup(t, cfg, Setup{Options: options, NewRegistry: newRegistry})
}

// runSetup starts a controller with everything that setup has.
func runSetup(t *testing.T, cfg *rest.Config, setup Setup) *instance {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	i := &instance{stop: stop, done: make(chan error, 1)}
	setup.Logger = ctrllog.Log.WithValues("run", setup.Options.Identity.ClusterID)
	go func() { i.done <- Run(ctx, cfg, setup) }()
	t.Cleanup(func() { i.stopAndWait(t) })
	return i
}

// stopAndWait stops the controller and waits until Run has returned.
func (i *instance) stopAndWait(t *testing.T) {
	t.Helper()
	i.stop()
	select {
	case err, ok := <-i.done:
		if ok && err != nil {
			t.Errorf("the controller failed: %v", err)
		}
		if ok {
			close(i.done)
		}
	case <-time.After(waitTimeout):
		t.Error("the controller did not stop")
	}
}

// namespace creates a namespace, and deletes its objects when the test ends.
func (k *cluster) namespace(t *testing.T, name string) {
	t.Helper()
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	t.Cleanup(func() { k.deleteObjects(t, name) })
}

// deleteObjects deletes the objects of a namespace.
func (k *cluster) deleteObjects(t *testing.T, namespace string) {
	t.Helper()
	for _, obj := range []client.Object{
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceImport{}, &corev1.Service{}, &discoveryv1.EndpointSlice{},
	} {
		if err := k.admin.DeleteAllOf(context.Background(), obj, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	}
}

func (k *cluster) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := k.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (k *cluster) delete(t *testing.T, obj client.Object) {
	t.Helper()
	if err := k.admin.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// change reads obj, applies edit and writes it. It retries conflicts.
func change[T client.Object](t *testing.T, k *cluster, obj T, edit func(T)) {
	t.Helper()
	eventually(t, "changing "+obj.GetName(), func() error {
		if err := k.admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		return k.admin.Update(t.Context(), obj)
	})
}

func (k *cluster) get(t *testing.T, key mcs.Key, obj client.Object) error {
	return k.admin.Get(t.Context(), types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, obj)
}

// eventually waits until check returns no error.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: after %s: %v", what, waitTimeout, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(waitInterval):
		}
	}
}

// roundTripper is a function that implements http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
