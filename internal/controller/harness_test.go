package controller

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// The scenarios run the whole controller, under the RBAC that is installed with it, against real
// API servers: two clusters that share a memory registry. There is no controller-manager, so the
// tests write the EndpointSlices, no garbage is collected and namespaces are not deleted.
//
// They need KUBEBUILDER_ASSETS, a directory with etcd and kube-apiserver: "testbed assets" prints
// one. TEST_LOG=1 shows the controllers' logs.

const (
	// waitTimeout is the time limit of eventually. Most conditions take less than a second, a few
	// seconds on a busy machine.
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

// writeCounter counts accepted writes by namespace and by what they write, such as "POST services",
// and refused ones.
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
	apiservertest.NeedAssets(t)
	clustersOnce.Do(func() {
		for range 2 {
			k, err := startKubernetes("v1beta1", append(mcsCRDs(), aboutCRDs()...)...)
			if err == nil {
				err = (&controllertest.Kubernetes{Admin: k.admin, Config: k.cfg}).AllowAutoExport()
			}
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

// startKubernetes starts an API server with crds and the controller's RBAC. version is that of the
// MCS and About APIs.
func startKubernetes(version string, crds ...*apiextensionsv1.CustomResourceDefinition) (*cluster, error) {
	k := &cluster{writes: writeCounter{accepted: map[string]map[string]int{}, refused: map[string]map[string]int{}}}
	env := &envtest.Environment{}
	// Of the 254 IPs of the default range, parallel tests take one that another test has freed and
	// wants back.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	started, err := controllertest.StartKubernetesIn(env, version, k.writes.wrap, crds...)
	if err != nil {
		return nil, err
	}
	k.env, k.admin, k.cfg = started.Env, started.Admin, started.Config
	return k, nil
}

const (
	installNamespace = controllertest.InstallNamespace
	controllerUser   = controllertest.ControllerUser
)

func mcsCRDs() []*apiextensionsv1.CustomResourceDefinition { return controllertest.MCSCRDs() }

func aboutCRDs() []*apiextensionsv1.CustomResourceDefinition { return controllertest.AboutCRDs() }

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
	// endpoints of tests do not exist
	options.Registry.PathHealth = string(mcs.PathHealthOff)
	// the previous identity ends after two polls
	options.Registry.PollIntervalWithNotifications = options.Registry.PollInterval
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
	// a report of imports changes a condition some time later: only tests of it want that
	setup.ReportInterval = cmp.Or(setup.ReportInterval, time.Hour)
	setup.Resolver = noResolver
	setup.Logger = ctrllog.Log.WithValues("run", setup.Options.Identity.ClusterID)
	go func() { i.done <- Run(ctx, cfg, setup) }()
	t.Cleanup(func() { i.stopAndWait(t) })
	return i
}

// noResolver resolves no name. The host of a test has another DNS than a pod.
var noResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("there is no DNS server")
}}

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
