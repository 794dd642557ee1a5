package controller

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// gatewayTimeout is the time limit of Envoy Gateway for a change, and of its start.
const gatewayTimeout = time.Minute

// envoyGateway is a running Envoy Gateway, whose Gateway demo/hello has the routes.
type envoyGateway struct {
	cluster *cluster
	mu      sync.Mutex
	// answers has the endpoints of each host of a route, or the status without one, as the Envoys
	// of the Gateway know them.
	answers map[string][]string
}

// TestEnvoyGateway runs the control plane of Envoy Gateway on imports of two controllers, and
// compares what it tells the Envoys of a Gateway with the endpoints of the import. A route has one
// of three backends:
//
//   - the ServiceImport, as in samples/gateway-api/import-route.yaml: its clusterset IPs
//   - the derived Service: the endpoints of the import
//   - the ServiceImport with the default routing of Envoy Gateway: none, because it takes slices
//     with the label kubernetes.io/service-name, which kube-proxy needs, for those of a Service
//
// A version of Envoy Gateway that finds the endpoints of a ServiceImport fails the test: then the
// third becomes the first, here and in docs/gateway-api.md.
func TestEnvoyGateway(t *testing.T) {
	if os.Getenv("GATEWAY") == "" {
		t.Skip("it needs root, the ports of Envoy Gateway and its program: make gateway-imports")
	}
	apiservertest.NeedAssets(t)
	a, err := startKubernetes("v1beta1", append(mcsCRDs(), aboutCRDs()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.env.Stop() })
	b := startDualStack(t)
	hub := memory.NewHub()
	hub.SetStaleAfter(10 * time.Second)
	runA := a.run(t, hub, flags("cls1"))
	b.run(t, hub, flags("cls2"))
	g := startEnvoyGateway(t, b)

	key := mcs.Key{Namespace: "demo", Name: "nginx-hello"}
	a.namespace(t, key.Namespace)
	sliceA := a.export(t, key, 1, 2)
	g.apply(t, "samples/gateway-api/envoy-gateway.yaml")
	g.apply(t, "samples/gateway-api/import-route.yaml")
	ips := g.route(t, key, 80)

	t.Log("one cluster")
	g.answer(t, key, "10.1.0.1:8080", "10.1.0.2:8080")
	g.reaches(t, "hello.example.com", ips...)
	t.Log("two clusters")
	sliceB := b.export(t, key, 2, 1)
	all := []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.2.0.1:8080"}
	g.answer(t, key, all...)
	t.Log("an endpoint that is not ready")
	setReadiness := func(ready bool) {
		change(t, a, sliceA, func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}
		})
	}
	setReadiness(false)
	g.answer(t, key, "10.1.0.2:8080", "10.2.0.1:8080")
	setReadiness(true)
	g.answer(t, key, all...)
	t.Log("a drained service")
	a.drainService(t, key, "100%")
	g.answer(t, key, "10.2.0.1:8080")
	a.drainService(t, key, "")
	g.answer(t, key, all...)
	t.Log("the cluster of the Gateway is preferred")
	for _, k := range []*cluster{a, b} {
		change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) {
			e.Annotations = map[string]string{mcs.AnnotationClusterPreference: string(mcs.PreferSameCluster)}
		})
	}
	g.answer(t, key, "10.2.0.1:8080")
	b.setReady(t, sliceB, false)
	g.answer(t, key, "10.1.0.1:8080", "10.1.0.2:8080")
	b.setReady(t, sliceB, true)
	g.answer(t, key, "10.2.0.1:8080")
	for _, k := range []*cluster{a, b} {
		change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) { e.Annotations = nil })
	}
	g.answer(t, key, all...)

	t.Log("two ports with names")
	ports := mcs.Key{Namespace: key.Namespace, Name: "ports"}
	b.exportPorts(t, ports)
	g.route(t, ports, 9090)
	g.answer(t, ports, "10.3.0.1:9091")

	t.Log("two families")
	dual := mcs.Key{Namespace: key.Namespace, Name: "dual"}
	remoteExport(t, hub, "cls3", nil, dualStackExport(dual))
	if ips := g.route(t, dual, 80); len(ips) != 2 {
		t.Errorf("a dual-stack import has the IPs %v", ips)
	}
	g.answer(t, dual, "10.4.0.1:8080", "[2001:db8::1]:8080")

	t.Log("an import without endpoints has no answer of another one")
	empty := mcs.Key{Namespace: key.Namespace, Name: "empty"}
	sliceEmpty := a.export(t, empty, 5, 1)
	g.route(t, empty, 80)
	g.answer(t, empty, "10.5.0.1:8080")
	change(t, a, sliceEmpty, func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
	g.answer(t, empty, "status 503")

	t.Log("a headless import, which has no IPs and no derived Service")
	headless := mcs.Key{Namespace: key.Namespace, Name: "headless"}
	svc := controllertest.Service(headless)
	svc.Spec.ClusterIP, svc.Spec.IPFamilyPolicy = corev1.ClusterIPNone, new(corev1.IPFamilyPolicySingleStack)
	a.create(t, svc)
	a.create(t, controllertest.EndpointSlice(headless, controllertest.Endpoints(6, 1)))
	a.create(t, controllertest.ServiceExport(headless))
	eventually(t, "the headless import", func() error { return b.readyEndpoints(t, headless, "10.6.0.1:8080") })
	g.create(t, route(headless, "import", importRef(headless, 80)))
	g.reaches(t, host(headless, "import"), "status 503")

	t.Log("a ServiceImport that does not exist")
	missing := mcs.Key{Namespace: key.Namespace, Name: "missing"}
	g.create(t, route(missing, "import", importRef(missing, 80)))
	g.reaches(t, host(missing, "import"), "status 500")

	t.Log("a stale cluster")
	runA.stopAndWait(t)
	g.answer(t, key, "10.2.0.1:8080")
}

// startDualStack starts an API server whose Services have both families.
func startDualStack(t *testing.T) *cluster {
	t.Helper()
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112")
	started, err := controllertest.StartKubernetesIn(env, "v1beta1", nil, append(mcsCRDs(), aboutCRDs()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = started.Env.Stop() })
	return &cluster{env: started.Env, admin: started.Admin, cfg: started.Config}
}

// startEnvoyGateway starts bin/envoy-gateway on the API server of k with the CRDs of its release,
// and follows how it configures the Envoys of Gateway demo/hello.
func startEnvoyGateway(t *testing.T, k *cluster) *envoyGateway {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	crds := filepath.Join(moduleDir(t, "github.com/envoyproxy/gateway"), "charts/gateway-helm/charts/crds/crds")
	if _, err := envtest.InstallCRDs(k.env.Config, envtest.CRDInstallOptions{Paths: []string{filepath.Join(crds, "gatewayapi-crds.yaml"), filepath.Join(crds, "generated")}}); err != nil {
		t.Fatal(err)
	}
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "envoy-gateway-system"}})
	k.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}})

	// Envoy Gateway reads its certificates from /certs: it runs with a root directory of its own.
	root := t.TempDir()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command("/envoy-gateway", args...)
		cmd.Dir = "/"
		cmd.Env = []string{"KUBECONFIG=/kubeconfig", "HOME=/"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	write := func(path string, content []byte, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(filepath.Join(bin, "envoy-gateway"))
	if err != nil {
		t.Fatalf("%v: run make gateway-imports", err)
	}
	write("envoy-gateway", program, 0o755)
	write("kubeconfig", k.env.KubeConfig, 0o600)
	write("config.yaml", []byte(`apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Kubernetes
  kubernetes:
    leaderElection: {disable: true}
    proxyTopologyInjector: {disable: true}
`), 0o600)
	if out, err := run("certgen", "--disable-topology-injector").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for secret, dir := range map[string]string{"envoy-gateway": "certs", "envoy": "envoy"} {
		var s corev1.Secret
		if err := k.get(t, mcs.Key{Namespace: "envoy-gateway-system", Name: secret}, &s); err != nil {
			t.Fatal(err)
		}
		for name, content := range s.Data {
			write(filepath.Join(dir, name), content, 0o600)
		}
	}
	g := &envoyGateway{cluster: k}
	g.start(t, run("server", "--config-path", "/config.yaml"), io.Discard)
	reader, writer := io.Pipe()
	g.start(t, exec.Command(filepath.Join(bin, "envoy-gateway-xds"), "-certs", filepath.Join(root, "envoy"), "-gateway", "demo/hello"), writer)
	t.Cleanup(func() { _ = writer.Close() })
	go g.follow(reader)
	return g
}

// moduleDir returns the directory of a module of hack/envoy-gateway.
func moduleDir(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", path)
	cmd.Dir, cmd.Env = "../../hack/envoy-gateway", append(os.Environ(), "GOTOOLCHAIN=auto")
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		t.Fatal(err)
	}
	return module.Dir
}

// start starts a program until the test ends. Its output is in the log of a failed test.
func (g *envoyGateway) start(t *testing.T, cmd *exec.Cmd, stdout io.Writer) {
	t.Helper()
	output := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, output
	if stdout == io.Discard {
		cmd.Stdout = output
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			lines := strings.Split(output.String(), "\n")
			t.Logf("%s:\n%s", cmd.Path, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
}

func (g *envoyGateway) follow(lines io.Reader) {
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		answers := map[string][]string{}
		if json.Unmarshal(scanner.Bytes(), &answers) == nil {
			g.mu.Lock()
			g.answers = answers
			g.mu.Unlock()
		}
	}
}

// apply creates the objects of a file of this repository.
func (g *envoyGateway) apply(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var obj unstructured.Unstructured
		if err := decoder.Decode(&obj); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		g.cluster.create(t, &obj)
	}
}

func (g *envoyGateway) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, obj := range objects {
		g.cluster.create(t, obj)
	}
}

// host returns the host of the route to a kind of backend.
func host(key mcs.Key, backend string) string { return backend + "." + key.Name + ".example.com" }

// importRef returns the ServiceImport of key as a backend.
func importRef(key mcs.Key, port int64) map[string]any {
	return map[string]any{"group": mcsv1beta1.GroupName, "kind": "ServiceImport", "name": key.Name, "port": port}
}

// route returns an HTTPRoute of host with one backend.
func route(key mcs.Key, backend string, ref map[string]any) client.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
		"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name + "-" + backend},
		"spec": map[string]any{
			"parentRefs": []any{map[string]any{"name": "hello"}},
			"hostnames":  []any{host(key, backend)},
			"rules":      []any{map[string]any{"backendRefs": []any{ref}}},
		},
	}}
}

// route creates a route to each kind of backend of an import, and returns its clusterset IPs with
// the port.
func (g *envoyGateway) route(t *testing.T, key mcs.Key, port int64) (ips []string) {
	t.Helper()
	eventually(t, "the clusterset IPs of "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		err := g.cluster.get(t, key, &imp)
		if err == nil && len(imp.Spec.IPs) == 0 {
			err = fmt.Errorf("%s has no IP", key)
		}
		ips = nil
		for _, ip := range imp.Spec.IPs {
			ips = append(ips, netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port)).String())
		}
		slices.Sort(ips)
		return err
	})
	g.create(t,
		route(key, "import", importRef(key, port)),
		route(key, "ips", importRef(key, port)),
		route(key, "service", map[string]any{"name": mcs.DerivedName(key), "port": port}),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "BackendTrafficPolicy",
			"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name},
			"spec": map[string]any{
				"targetRefs":  []any{map[string]any{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": key.Name + "-ips"}},
				"routingType": "Service",
			},
		}})
	g.reaches(t, host(key, "ips"), ips...)
	return ips
}

// answer waits until want are the ready endpoints of the import, and the answer of its routes. The
// clusterset IPs of an import stay, with or without endpoints.
func (g *envoyGateway) answer(t *testing.T, key mcs.Key, want ...string) {
	t.Helper()
	endpoints := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return strings.HasPrefix(s, "status") })
	eventually(t, "the ready endpoints of "+key.String(), func() error { return g.cluster.readyEndpoints(t, key, endpoints...) })
	g.reaches(t, host(key, "service"), want...)
	g.reaches(t, host(key, "import"), "status 503")
	g.mu.Lock()
	defer g.mu.Unlock()
	t.Logf("%s: ServiceImport %v, with routingType Service %v, derived Service %v", key, g.answers[host(key, "import")], g.answers[host(key, "ips")], g.answers[host(key, "service")])
}

// reaches waits until the requests for a host go to these endpoints, or get this status.
func (g *envoyGateway) reaches(t *testing.T, host string, want ...string) {
	t.Helper()
	for deadline := time.Now().Add(gatewayTimeout); ; time.Sleep(waitInterval) {
		g.mu.Lock()
		d := cmp.Diff(want, g.answers[host])
		g.mu.Unlock()
		if d == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the endpoints of %s for Envoy (-want +got):\n%s", host, d)
		}
	}
}

// readyEndpoints checks the ready endpoints in the imported slices, whose port of the routes is
// the last.
func (k *cluster) readyEndpoints(t *testing.T, key mcs.Key, want ...string) error {
	var got []string
	for _, s := range k.slicesOf(t, key) {
		for _, ep := range s.Endpoints {
			if *ep.Conditions.Ready {
				got = append(got, netip.AddrPortFrom(netip.MustParseAddr(ep.Addresses[0]), uint16(*s.Ports[len(s.Ports)-1].Port)).String())
			}
		}
	}
	slices.Sort(got)
	if len(got)+len(want) > 0 && !slices.Equal(got, want) {
		return fmt.Errorf("ready endpoints %v, want %v", got, want)
	}
	return nil
}

// exportPorts exports a Service with ports 80 and 9090, whose endpoint has 8080 and 9091.
func (k *cluster) exportPorts(t *testing.T, key mcs.Key) {
	t.Helper()
	svc := controllertest.Service(key)
	svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP})
	slice := controllertest.EndpointSlice(key, controllertest.Endpoints(3, 1))
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("metrics"), Port: new(int32(9091)), Protocol: new(corev1.ProtocolTCP)})
	k.create(t, svc)
	k.create(t, slice)
	k.create(t, controllertest.ServiceExport(key))
}

// dualStackExport returns an export with an endpoint of each family.
func dualStackExport(key mcs.Key) mcs.Export {
	backends := func(address string) mcs.Backends {
		return mcs.Backends{
			Ports:     []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr(address), Ready: true, Serving: true}},
		}
	}
	return mcs.Export{
		Key: key, Type: mcsv1beta1.ClusterSetIP, Created: time.Now(), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports:    []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		Backends: []mcs.Backends{backends("10.4.0.1"), backends("2001:db8::1")},
	}
}
