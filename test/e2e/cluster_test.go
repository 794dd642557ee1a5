package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

const (
	// soon is how long the controller may take for anything: the conformance suite's 20 s (FACTS.md 2.10).
	soon = 20 * time.Second
	// started is how long Kubernetes may take to start or stop pods.
	started = 90 * time.Second
	// quiet is how long nothing must happen before a scenario says that nothing happens.
	quiet = 5 * time.Second

	system  = "cloud-map-mcs-system"
	manager = "deployment/cloud-map-mcs-controller-manager"
)

// cluster is one real cluster, cls1 or cls2.
type cluster struct {
	name string
	client.Client
}

var clusters = sync.OnceValues(func() ([]cluster, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := mcsv1beta1.Install(scheme); err != nil {
		return nil, err
	}
	path := ""
	for _, kv := range suite.Env() {
		if v, ok := strings.CutPrefix(kv, "KUBECONFIG="); ok {
			path = v
		}
	}
	var out []cluster
	for _, name := range []string{"cls1", "cls2"} {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
		if err != nil {
			return nil, err
		}
		config.QPS = -1
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			return nil, err
		}
		out = append(out, cluster{name, c})
	}
	return out, nil
})

// installed installs the product in both clusters once, and gives the clusters.
func installed(t *testing.T) (cls1, cls2 cluster) {
	t.Helper()
	if err := installOnce(); err != nil {
		t.Fatal(err)
	}
	both, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	return both[0], both[1]
}

var installOnce = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for _, c := range []string{"cls1", "cls2"} {
		for _, line := range []string{
			"kubectl --context CLS apply -k deploy/overlays/local",
			"kubectl --context CLS -n cloud-map-mcs-system rollout status " + manager + " --timeout=90s",
			"kubectl mcs dns enable --context CLS",
			"kubectl --context CLS apply -f samples/clusterproperty-CLS.yaml",
		} {
			line = strings.ReplaceAll(line, "CLS", c)
			if out, err := suite.Output(ctx, line); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
		}
	}
	return nil
})

// namespace makes a namespace in every given cluster, which goes with the test.
func namespace(t *testing.T, in ...cluster) string {
	t.Helper()
	name := "e2e-" + strings.ToLower(strings.Map(func(r rune) rune {
		if r == '/' || r == '_' {
			return '-'
		}
		return r
	}, strings.TrimPrefix(t.Name(), "Test")))
	for _, c := range in {
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	t.Cleanup(func() {
		for _, c := range in {
			_ = c.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	})
	return name
}

func create(t *testing.T, c cluster, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
}

func remove(t *testing.T, c cluster, obj client.Object) {
	t.Helper()
	if err := c.Delete(t.Context(), obj); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
}

func apply(t *testing.T, c cluster, manifest string) {
	t.Helper()
	if err := suite.Apply(t.Context(), c.name, manifest); err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, c cluster, args ...string) string {
	t.Helper()
	out, err := suite.Kubectl(t.Context(), c.name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	if err := clusterset.Eventually(t.Context(), within, check); err != nil {
		t.Fatal(err)
	}
}

// always wants check to hold for a while: for saying that something does not happen.
func always(t *testing.T, during time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := check(); err != nil {
			t.Fatal(err)
		}
	}
}

func export(t *testing.T, c cluster, ns, name string) *mcsv1beta1.ServiceExport {
	t.Helper()
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	create(t, c, e)
	return e
}

// condition wants a condition of a ServiceExport, with the given reason and with what its message must say.
func condition(ctx context.Context, c cluster, ns, name, kind string, status metav1.ConditionStatus, reason, says string) error {
	var e mcsv1beta1.ServiceExport
	if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &e); err != nil {
		return err
	}
	got := meta.FindStatusCondition(e.Status.Conditions, kind)
	if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, says) {
		return fmt.Errorf("%s: ServiceExport %s/%s has condition %+v, want %s=%s, reason %s, a message with %q", c.name, ns, name, got, kind, status, reason, says)
	}
	return nil
}

func exported(ctx context.Context, c cluster, ns, name string) error {
	return condition(ctx, c, ns, name, "Ready", metav1.ConditionTrue, "Exported", "")
}

// importIP is the clusterset IP of a ServiceImport.
func importIP(ctx context.Context, c cluster, ns, name string) (string, error) {
	var imp mcsv1beta1.ServiceImport
	if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &imp); err != nil {
		return "", err
	}
	if len(imp.Spec.IPs) == 0 {
		return "", fmt.Errorf("%s: ServiceImport %s/%s has no IP", c.name, ns, name)
	}
	return imp.Spec.IPs[0], nil
}

// imported are the addresses in the slices imported from a source cluster (any when ""), sorted; ready ones only when asked.
func imported(ctx context.Context, c cluster, ns, name, source string, readyOnly bool) ([]string, error) {
	labels := client.MatchingLabels{mcsv1beta1.LabelServiceName: name}
	if source != "" {
		labels[mcsv1beta1.LabelSourceCluster] = source
	}
	var list discoveryv1.EndpointSliceList
	if err := c.List(ctx, &list, client.InNamespace(ns), labels); err != nil {
		return nil, err
	}
	var out []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if !readyOnly || *e.Conditions.Ready {
				out = append(out, e.Addresses...)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// podIPs are the IPv4 addresses of the ready pods of a Service, as its own cluster's EndpointSlices say, sorted.
func podIPs(ctx context.Context, c cluster, ns, name string) ([]string, error) {
	var list discoveryv1.EndpointSliceList
	if err := c.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{discoveryv1.LabelServiceName: name}); err != nil {
		return nil, err
	}
	var out []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if *e.Conditions.Ready && netip.MustParseAddr(e.Addresses[0]).Is4() {
				out = append(out, e.Addresses...)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// sameEndpoints wants the ready imported endpoints in one cluster to be the ready endpoints of the Service in another, n of them.
func sameEndpoints(ctx context.Context, from, in cluster, ns, name string, n int) error {
	want, err := podIPs(ctx, from, ns, name)
	if err != nil {
		return err
	}
	got, err := imported(ctx, in, ns, name, from.name, true)
	if err != nil {
		return err
	}
	if len(want) != n || !slices.Equal(got, want) {
		return fmt.Errorf("%s has imported %v from %s, whose Service has %v; want the same %d", in.name, got, from.name, want, n)
	}
	return nil
}

// web is a Deployment of the demo's web server with its Service.
func web(ns, name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: nginxdemos/hello:plain-text
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /ready, port: 80}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {app: %[2]s}
  ports: [{port: 80, targetPort: 80}]
`, ns, name, replicas)
}

// clientPod is a pod to run nslookup and curl in.
func clientPod(ns string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "nicolaka/netshoot:v0.15", imagePullPolicy: IfNotPresent, command: [sleep, infinity]}]
`, ns)
}

// ask runs a command in the client pod.
func ask(ctx context.Context, c cluster, ns string, command ...string) (string, error) {
	return suite.Kubectl(ctx, c.name, append([]string{"-n", ns, "exec", "client", "--"}, command...)...)
}
