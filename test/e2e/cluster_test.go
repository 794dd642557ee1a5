package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

const (
	// soon is the time limit for anything that the controller does: twice the 20 s of the
	// conformance suite of mcs-api, because four scenarios share two cores.
	soon = 40 * time.Second
	// started is the time that Kubernetes may take to start or stop pods.
	started = 90 * time.Second
	// quiet is the time for which a scenario waits to verify that nothing happens.
	quiet = 5 * time.Second

	system  = "cloud-map-mcs-system"
	manager = "deployment/cloud-map-mcs-controller-manager"
)

// cluster is one real cluster, cls1 or cls2.
type cluster struct {
	name string
	client.WithWatch
}

var clusters = sync.OnceValues(func() ([]cluster, error) {
	path := ""
	for _, kv := range suite.Env() {
		if v, ok := strings.CutPrefix(kv, "KUBECONFIG="); ok {
			path = v
		}
	}
	var out []cluster
	for _, name := range clusterNames() {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
		if err != nil {
			return nil, err
		}
		config.QPS = -1
		scheme := runtime.NewScheme()
		if err := clientgoscheme.AddToScheme(scheme); err != nil {
			return nil, err
		}
		served.AddMCS(scheme, schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: cmp.Or(onlyCRDVersion(name), "v1beta1")})
		c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
		if err != nil {
			return nil, err
		}
		out = append(out, cluster{name, c})
	}
	return out, nil
})

// clusterNames returns the names of the suite's clusters.
func clusterNames() []string {
	names := make([]string, clusterCount())
	for i := range names {
		names[i] = fmt.Sprintf("cls%d", i+1)
	}
	return names
}

// installed installs the product in all clusters once, and returns the first two.
func installed(t *testing.T) (cls1, cls2 cluster) {
	t.Helper()
	all := installedAll(t)
	return all[0], all[1]
}

// installedAll installs the product in all clusters once, and returns them: two, or as many as
// E2E_CLUSTERS says.
func installedAll(t *testing.T) []cluster {
	t.Helper()
	if err := installOnce(); err != nil {
		t.Fatal(err)
	}
	all, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// onlyOn leaves a scenario out that is about another registry than the one that the clusters share.
func onlyOn(t *testing.T, registry string) {
	t.Helper()
	if suite.Registry != registry {
		t.Skipf("it is about %s, and this clusterset is on %s", registry, suite.Registry)
	}
}

// touched reports whether installOnce has begun.
var touched atomic.Bool

var installOnce = sync.OnceValue(func() error {
	touched.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for _, c := range clusterNames() { // etcd's users one after the other
		if err := deploy(ctx, c); err != nil {
			return err
		}
	}
	return atOnce(clusterNames(), func(c string) error { return becomeMember(ctx, c) })
})

// install installs the product in one cluster and makes it a member, or restores that.
func install(ctx context.Context, c string) error {
	if err := deploy(ctx, c); err != nil {
		return err
	}
	return becomeMember(ctx, c)
}

// deploy creates the objects of the product in one cluster.
func deploy(ctx context.Context, c string) error {
	if err := runLines(ctx, c, tutorial.Install(suite.Registry)); err != nil {
		return err
	}
	return restrictCRDs(ctx, c)
}

// becomeMember waits for the product in one cluster, enables its DNS and makes it a member.
func becomeMember(ctx context.Context, c string) error {
	return runLines(ctx, c, []string{
		"kubectl --context CLS -n cloud-map-mcs-system rollout status " + manager + " --timeout=90s",
		enableDNS(c),
		"sed s/cls2/CLS/ samples/clusterproperty-cls2.yaml | kubectl --context CLS apply -f -",
	})
}

// atOnce calls f for all elements at the same time, and returns the errors. f must not end the
// test, as t.Fatal does.
func atOnce[T any](of []T, f func(T) error) error {
	errs := make([]error, len(of))
	var running sync.WaitGroup
	for i, one := range of {
		running.Go(func() { errs[i] = f(one) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// runLines runs command lines, in which CLS stands for the cluster.
func runLines(ctx context.Context, c string, lines []string) error {
	for _, line := range lines {
		line = strings.ReplaceAll(line, "CLS", c)
		if out, err := suite.Output(ctx, line); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// namespace creates a namespace in every given cluster, and deletes it after the test.
func namespace(t *testing.T, in ...cluster) string {
	t.Helper()
	name := "e2e-" + strings.ToLower(strings.Map(func(r rune) rune {
		if r == '/' || r == '_' {
			return '-'
		}
		return r
	}, strings.TrimPrefix(t.Name(), "Test")))
	createNamespace(t, name, in...)
	return name
}

// createNamespace creates a namespace in every given cluster, and deletes it after the test.
func createNamespace(t *testing.T, name string, in ...cluster) {
	t.Helper()
	for _, c := range in {
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	t.Cleanup(func() {
		for _, c := range in {
			_ = c.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	})
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

// always checks repeatedly for a while that check succeeds, to test that something does not happen.
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

// condition waits for a condition of a ServiceExport with the given reason and parts of its
// message.
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

// importIP returns the clusterset IP of a ServiceImport.
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

// imported returns the addresses in the slices imported from a source cluster (any when ""),
// sorted; ready ones only when asked.
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

// podIPs returns the IPv4 addresses of the ready pods of a Service in its own cluster's
// EndpointSlices, sorted.
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

// sameEndpoints checks that the ready imported endpoints in one cluster are the n ready endpoints
// of the Service in another.
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

// web returns a Deployment of the demo's web server with its Service.
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

// clientPod returns a pod to run nslookup and curl in.
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

// serviceImport reads a ServiceImport.
func serviceImport(ctx context.Context, c cluster, ns, name string) (*mcsv1beta1.ServiceImport, error) {
	var imp mcsv1beta1.ServiceImport
	if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &imp); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return &imp, nil
}

// derivedService returns the Service that gives an import its IP.
func derivedService(ctx context.Context, c cluster, ns, name string) (*corev1.Service, error) {
	imp, err := serviceImport(ctx, c, ns, name)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	var svc corev1.Service
	if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: plan.DerivedName(mcs.Key{Namespace: ns, Name: name}, imp)}, &svc); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return &svc, nil
}

// noDerivedService checks that the derived Service does not exist, or only holds its IPs.
func noDerivedService(ctx context.Context, c cluster, ns, name string) error {
	svc, err := derivedService(ctx, c, ns, name)
	if err == nil && !plan.IsHeld(svc) {
		return fmt.Errorf("%s: the derived Service %s is still there", c.name, svc.Name)
	}
	return client.IgnoreNotFound(err)
}

// importedSlices returns the EndpointSlices imported from a source cluster.
func importedSlices(ctx context.Context, c cluster, ns, name, source string) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	err := c.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{mcsv1beta1.LabelServiceName: name, mcsv1beta1.LabelSourceCluster: source})
	return list.Items, err
}

// exporters checks that a ServiceImport names exactly these exporting clusters.
func exporters(ctx context.Context, c cluster, ns, name string, want ...string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	var got []string
	for _, s := range imp.Status.Clusters {
		got = append(got, s.Cluster)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: ServiceImport %s/%s is of clusters %v, want %v", c.name, ns, name, got, want)
	}
	return nil
}

// change edits an object and retries on conflicts.
func change[T client.Object](t *testing.T, c cluster, obj T, edit func(T)) {
	t.Helper()
	eventually(t, soon, func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		return c.Update(t.Context(), obj)
	})
}

// nextSecond waits until an export that is created now is younger than e: creationTimestamp counts
// seconds.
func nextSecond(t *testing.T, c cluster, e *mcsv1beta1.ServiceExport) {
	t.Helper()
	eventually(t, soon, func() error {
		probe := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "probe"}}
		if err := c.Create(t.Context(), probe, client.DryRunAll); err != nil {
			return err
		}
		if !probe.CreationTimestamp.After(e.CreationTimestamp.Time) {
			return fmt.Errorf("%s: it is still the second in which the other export was made", c.name)
		}
		return nil
	})
}

// service returns a Service without selector, with one port: http 80. Its endpoints are created by
// hand.
func service(ns, name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// endpoints returns an EndpointSlice for a Service with those ports.
func endpoints(ns, service, name string, ports []corev1.ServicePort, of ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   of,
	}
	if netip.MustParseAddr(of[0].Addresses[0]).Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &protocol})
	}
	return slice
}

// endpoint returns an endpoint that is ready, with a hostname unless it is "".
func endpoint(address, hostname string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	if hostname != "" {
		e.Hostname = &hostname
	}
	return e
}

// servers returns a Deployment of the demo's web server with label app=NAME. It is called
// CLUSTER-NAME, so that an answer, which bears the pod's name, tells where it comes from.
func servers(c cluster, ns, name string, replicas int, flags ...string) string {
	return deployment(ns, c.name+"-"+name, name, replicas, 80, flags...)
}

// exportWebAndAlone exports Service web, with a server in each cluster, from all clusters, and
// Service alone from the first one. It returns when clients in the other clusters reach all: the
// namespace, the command that asks web for the name of its server, and web's clusterset IP in the
// second cluster.
func exportWebAndAlone(t *testing.T, all ...cluster) (ns, command, ip string) {
	t.Helper()
	ns = namespace(t, all...)
	var names []string
	for _, c := range all {
		apply(t, c, servers(c, ns, "web", 1))
		svc := service(ns, "web")
		svc.Spec.Selector = map[string]string{"app": "web"}
		create(t, c, svc)
		export(t, c, ns, "web")
		names = append(names, c.name)
	}
	first, others := all[0], all[1:]
	apply(t, first, web(ns, "alone", 1))
	export(t, first, ns, "alone")
	command = curl("http://" + fqdn(ns, "web"))
	for _, c := range others {
		startClient(t, c, ns)
		eventually(t, started, func() error { return answeredBy(t.Context(), c, ns, command, names...) })
		eventually(t, started, func() error { return sameEndpoints(t.Context(), first, c, ns, "alone", 1) })
	}
	ip, err := importIP(t.Context(), others[0], ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	return ns, command, ip
}

// podAddresses returns the addresses of the pods of Service name in these clusters, on port 80.
func podAddresses(t *testing.T, ns, name string, in ...cluster) (addresses []string) {
	t.Helper()
	for _, c := range in {
		ips, err := podIPs(t.Context(), c, ns, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range ips {
			addresses = append(addresses, net.JoinHostPort(ip, "80"))
		}
	}
	return addresses
}

// deployment returns a Deployment of the demo's web server, whose container port "web" is the given
// one.
func deployment(ns, name, app string, replicas, port int, flags ...string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: %[3]s, deployment: %[2]s}}
  template:
    metadata: {labels: {app: %[3]s, deployment: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: nginxdemos/hello:plain-text
        imagePullPolicy: IfNotPresent
        args: ["--http", ":%[5]d"%[6]s]
        ports: [{name: web, containerPort: %[5]d}]
        readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, failureThreshold: 1}
`, ns, name, app, replicas, port, quoted(flags))
}

func quoted(flags []string) string {
	var b strings.Builder
	for _, f := range flags {
		fmt.Fprintf(&b, ", %q", f)
	}
	return b.String()
}

// startClient starts the pod "client" and waits for it.
func startClient(t *testing.T, c cluster, ns string) {
	t.Helper()
	apply(t, c, clientPod(ns))
	kubectl(t, c, "-n", ns, "wait", "pod/client", "--for=condition=Ready", "--timeout=90s")
}

// fqdn returns a service's name in the clusterset with a prefix; it is absolute, so that search
// domains are not used.
func fqdn(ns, name string, before ...string) string {
	return strings.Join(append(before, name, ns, "svc.clusterset.local."), ".")
}

var (
	// podName matches the name of the pod in an answer of a server.
	podName = regexp.MustCompile(`\b(cls[1-4])-[a-z0-9-]+\b`)
	// failedRequest matches the line of curl about a request without an answer.
	failedRequest = regexp.MustCompile(`FAILED.*`)
)

// answers runs a command n times in the client pod of c, four at a time, and counts the answers by
// pod. failed are the lines of curl about requests without an answer.
func answers(ctx context.Context, c cluster, ns string, n int, command string) (got map[string]int, failed []string, err error) {
	script := fmt.Sprintf("for i in $(seq %d); do (%s) & [ $((i %% 4)) -ne 0 ] || wait; done; wait", n, command)
	out, err := ask(ctx, c, ns, "sh", "-c", script)
	if err != nil {
		return nil, nil, err
	}
	got = map[string]int{}
	for _, name := range podName.FindAllString(out, -1) {
		got[name]++
	}
	return got, failedRequest.FindAllString(out, -1), nil
}

// answeredBy runs a command many times and checks that pods of exactly these clusters respond, each
// time.
func answeredBy(ctx context.Context, c cluster, ns, command string, want ...string) error {
	from, err := answeringClusters(ctx, c, ns, command)
	if err == nil && !slices.Equal(from, want) {
		err = fmt.Errorf("in %s %q was answered by pods of %v, want %v", c.name, command, from, want)
	}
	return err
}

// notAnsweredBy runs a command many times and checks that pods of other clusters respond, each
// time.
func notAnsweredBy(ctx context.Context, c cluster, ns, command, not string) error {
	from, err := answeringClusters(ctx, c, ns, command)
	if err == nil && slices.Contains(from, not) {
		err = fmt.Errorf("in %s %q was answered by pods of %v", c.name, command, from)
	}
	return err
}

// answeringClusters runs a command many times and returns the clusters of the pods that respond,
// sorted. There must be an answer each time.
func answeringClusters(ctx context.Context, c cluster, ns, command string) (from []string, err error) {
	const tries = 16 // of two pods, both answer but for one time in 2^15
	got, failed, err := answers(ctx, c, ns, tries, command)
	if err != nil {
		return nil, err
	}
	total := 0
	for pod, n := range got {
		total += n
		from = append(from, pod[:len("cls1")])
	}
	if total != tries {
		return nil, fmt.Errorf("in %s %q was answered by %v, want %d answers: %q", c.name, command, got, tries, failed)
	}
	slices.Sort(from)
	return slices.Compact(from), nil
}

// curl returns the command that asks for the server's name. A request that fails prints curl's exit
// code and the seconds after which the name was resolved and the connection established.
func curl(url string) string {
	return "curl -s -m 10 -w '%{onerror}name: FAILED, exit %{exitcode}, resolved %{time_namelookup} s, connected %{time_connect} s\\n' " + url + " | grep name:"
}
