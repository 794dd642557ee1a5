package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// readers is the ClusterRoleBinding that lets the client pods read the metrics.
const readers = "e2e-metrics-readers"

// TestNetworkPolicies installs the chart while the testbed enforces its NetworkPolicies;
// TestQuickStart and TestTutorial do the same with the policies of deploy/base. Connections that
// they do not allow fail, and succeed without the policies. The test runs before these two. All
// begin and end with empty clusters.
func TestNetworkPolicies(t *testing.T) {
	onlyOn(t, clusterset.CloudMap)
	if testing.Short() {
		t.Skip("it takes three minutes, and TestQuickStart enforces the policies of deploy/base: NIGHTLY=1 runs it")
	}
	cls1, cls2, ns, _ := withPolicies(t)
	policiesOfChart(t, cls1, cls2, ns)
}

// withPolicies enforces NetworkPolicies until the test ends or calls stop, and starts a client pod
// in both clusters, which are empty.
func withPolicies(t *testing.T) (cls1, cls2 cluster, ns string, stop func()) {
	t.Helper()
	isEmpty(t)
	both, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	stop = enforcePolicies(t)
	ns = namespace(t, both...)
	for _, c := range both {
		startClient(t, c, ns)
	}
	return both[0], both[1], ns, stop
}

// isEmpty fails the test if another scenario has installed the product before.
func isEmpty(t *testing.T) {
	t.Helper()
	if touched.Load() {
		t.Fatal("another scenario has installed the product before: move scenarios that do not call t.Parallel below TestQuickStart, or into a file whose name sorts later")
	}
}

// emptyIfFailed removes everything that a walk-through has installed if it failed before its last
// step, which does so.
func emptyIfFailed(t *testing.T) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"cls1", "cls2"} {
			_, _ = suite.Output(context.Background(), strings.ReplaceAll("kubectl mcs leave --context CLS --yes; kubectl --context CLS delete namespace demo "+system+" --ignore-not-found --timeout=60s; "+
				"kubectl --context CLS delete crds "+crds+" --ignore-not-found", "CLS", name))
		}
	})
}

// walkThrough runs the walk-through, and checks the policy of deploy/base when both clusters
// export.
func walkThrough(t *testing.T, cls1, cls2 cluster, ns string) {
	allowMetrics(t, ns, cls1, cls2)
	emptyIfFailed(t)
	for _, step := range tutorial.Steps(suite.Registry, 2) {
		if err := step.Slower(patience()).Run(t.Context(), suite, t.Output()); err != nil {
			t.Fatal(err)
		}
		if step.Number == 11 { // both clusters export
			policiesOfBase(t, cls1, cls2, ns)
		}
	}
}

// allowMetrics lets the client pods in ns read the metrics until the test ends.
func allowMetrics(t *testing.T, ns string, in ...cluster) {
	t.Helper()
	for _, c := range in {
		kubectl(t, c, "create", "clusterrolebinding", readers, "--clusterrole=cloud-map-mcs-controller-metrics-reader", "--serviceaccount="+ns+":default")
		t.Cleanup(func() {
			_, _ = suite.Kubectl(context.Background(), c.name, "delete", "clusterrolebinding", readers, "--ignore-not-found")
		})
	}
}

// policiesOfBase checks the policy of deploy/base while cls1 exports nginx-hello: it allows metrics
// to the pods of the cluster, and notifications and health checks to all.
func policiesOfBase(t *testing.T, cls1, cls2 cluster, ns string) {
	t.Helper()
	if suite.Registry == clusterset.CloudMap { // etcd watches, without notifications
		eventually(t, started, func() error { return notified(t.Context(), cls1, ns) })
		eventually(t, started, func() error { return notified(t.Context(), cls2, ns) })
	}
	attempts := map[string]attempt{
		"a web server, from the controller": {cls1, func(ctx context.Context, c cluster) error {
			pods, err := podIPs(ctx, c, "demo", "nginx-hello")
			if err != nil || len(pods) == 0 {
				return fmt.Errorf("pods of nginx-hello: %q, %w", pods, err)
			}
			_, err = suite.Kubectl(ctx, c.name, "-n", system, "exec", manager, "--", "/program", "probe", "--timeout=3s", "http://"+net.JoinHostPort(pods[0], "80")+"/")
			return err
		}},
	}
	for _, address := range leaderAddresses(t, cls1, 8080) {
		attempts["metrics at "+address+" from another cluster"] = attempt{cls2, connectTo(ns, "https://"+address+"/metrics")}
	}
	checkPolicies(t, []cluster{cls1, cls2}, attempts)
}

// policiesOfChart checks a policy that allows the metrics to one namespace, and all other traffic
// to the networks that need it.
func policiesOfChart(t *testing.T, cls1, cls2 cluster, ns string) {
	both := []cluster{cls1, cls2}
	pods := map[string]string{"cls1": "10.10.0.0/16,fd00:10:10::/48", "cls2": "10.12.0.0/16,fd00:10:12::/48"}
	other := map[string]string{"cls1": "cls2", "cls2": "cls1"}
	t.Cleanup(func() {
		for _, c := range both {
			for _, line := range []string{
				"kubectl mcs leave --context CLS --yes || true",
				"helm --kube-context CLS -n " + system + " uninstall cloud-map-mcs-controller --ignore-not-found --wait --timeout 60s",
				"kubectl --context CLS delete crds " + crds + " --ignore-not-found",
				"kubectl --context CLS delete namespace " + system + " --ignore-not-found --timeout=60s",
			} {
				if out, err := suite.Output(context.Background(), strings.ReplaceAll(line, "CLS", c.name)); err != nil {
					t.Errorf("%s: %v: %s", line, err, out)
				}
			}
		}
	})
	intruders := ns + "-intruder"
	createNamespace(t, intruders, both...)
	for _, c := range both {
		startClient(t, c, intruders)
		command(t, c, "kubectl --context CLS apply -f deploy/manager/namespace.yaml")
		command(t, c, "kubectl --context CLS -n "+system+" create secret generic aws-credentials --from-env-file=bin/aws/CLS.env")
		command(t, c, "helm --kube-context CLS -n "+system+" install cloud-map-mcs-controller "+chart+" --wait --timeout 90s"+chartValues+
			" --set networkPolicy.podNetworks='{"+pods[other[c.name]]+"}' --set networkPolicy.egressTo={172.30.0.0/24}"+
			" --set networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\\\.io/metadata\\\\.name="+ns+
			" --set metrics.readers[0].kind=ServiceAccount,metrics.readers[0].name=default,metrics.readers[0].namespace="+ns)
	}
	for _, c := range both {
		command(t, c, "helm --kube-context CLS -n "+system+" test cloud-map-mcs-controller --timeout 90s")
	}
	publish(t, cls1, ns, 1, asIs)
	eventually(t, soon, func() error { return exporters(t.Context(), cls2, ns, "web", "cls1") })
	eventually(t, started, func() error { return notified(t.Context(), cls1, ns) })
	eventually(t, started, func() error { return notified(t.Context(), cls2, ns) })
	attempts := map[string]attempt{"notification": {cls1, func(ctx context.Context, c cluster) error {
		return sendNotification(ctx, c, ns, intruders)
	}}}
	for _, address := range leaderAddresses(t, cls1, 8080) {
		attempts["metrics at "+address] = attempt{cls1, connectTo(intruders, "https://"+address+"/metrics")}
		attempts["metrics at "+address+" from another cluster"] = attempt{cls2, connectTo(ns, "https://"+address+"/metrics")}
	}
	for _, address := range leaderAddresses(t, cls1, 8081) {
		health := "http://" + address + "/healthz"
		// as kubectl mcs check of the other cluster
		eventually(t, soon, func() error { return connectTo(ns, health)(t.Context(), cls2) })
		attempts["health at "+address] = attempt{cls1, connectTo(intruders, health)}
	}
	checkPolicies(t, both, attempts)
	// The status has no authentication, and is on the loopback address: no policy is needed.
	for _, address := range leaderAddresses(t, cls1, 8082) {
		for _, from := range []string{ns, intruders} {
			if err := connectTo(from, "http://"+address+"/status")(t.Context(), cls1); err == nil {
				t.Errorf("a pod of %s reaches the status endpoint", from)
			}
		}
	}
}

// attempt is a connection that the policies do not allow, from a pod of a cluster.
type attempt struct {
	from cluster
	try  func(context.Context, cluster) error
}

// checkPolicies makes each attempt with the policies, which must refuse it, and as a control
// without them.
func checkPolicies(t *testing.T, both []cluster, attempts map[string]attempt) {
	t.Helper()
	// all attempts at once: one that is refused waits for its time limit
	each := func(try func(what string, a attempt) error) {
		t.Helper()
		if err := atOnce(slices.Collect(maps.Keys(attempts)), func(what string) error { return try(what, attempts[what]) }); err != nil {
			t.Error(err)
		}
	}
	each(func(what string, a attempt) error {
		err := a.try(t.Context(), a.from)
		if err == nil {
			return fmt.Errorf("%s: the policy allows it", what)
		}
		t.Logf("%s: refused: %v", what, err)
		return nil
	})
	saved := map[string][]networkingv1.NetworkPolicy{}
	for _, c := range both {
		var list networkingv1.NetworkPolicyList
		if err := c.List(t.Context(), &list, client.InNamespace(system)); err != nil || len(list.Items) == 0 {
			t.Fatalf("%s has %d policies (%v), want some", c.name, len(list.Items), err)
		}
		saved[c.name] = list.Items
		for _, policy := range list.Items {
			remove(t, c, &policy)
		}
	}
	each(func(what string, a attempt) error {
		if err := clusterset.Eventually(t.Context(), soon, func() error { return a.try(t.Context(), a.from) }); err != nil {
			return fmt.Errorf("%s: it fails without a policy too: %w", what, err)
		}
		return nil
	})
	for _, c := range both {
		for _, policy := range saved[c.name] {
			policy.ResourceVersion = ""
			create(t, c, &policy)
		}
	}
	each(func(what string, a attempt) error {
		if err := clusterset.Eventually(t.Context(), soon, func() error {
			if a.try(t.Context(), a.from) == nil {
				return errors.New("allowed")
			}
			return nil
		}); err != nil {
			return fmt.Errorf("%s: after the policy was created again: %w", what, err)
		}
		return nil
	})
}

// enforcePolicies makes the testbed enforce NetworkPolicies until the test ends or calls stop.
func enforcePolicies(t *testing.T) (stop func()) {
	t.Helper()
	cmd := exec.Command("bash", "-c", "exec testbed run -- testbed enforce")
	cmd.Dir, cmd.Env, cmd.Stderr = suite.Root, suite.Env(), t.Output()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("testbed enforce: %v", err)
		}
	})
	t.Cleanup(stop)
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(output).ReadString('\n')
		line <- text
	}()
	select {
	case text := <-line:
		if !strings.Contains(text, "enforcing") {
			t.Fatalf("testbed enforce prints %q", text)
		}
	case <-time.After(started):
		t.Fatal("testbed enforce does not enforce")
	}
	return stop
}

// leader returns the pod that holds the lease.
func leader(ctx context.Context, c cluster) (*corev1.Pod, error) {
	holder, err := suite.Kubectl(ctx, c.name, "-n", system, "get", "lease", "cloud-map-mcs-controller", "-o", "jsonpath={.spec.holderIdentity}")
	if err != nil {
		return nil, err
	}
	// client-go appends a UUID to the pod's name
	name, _, _ := strings.Cut(strings.TrimSpace(holder), "_")
	pod := &corev1.Pod{}
	return pod, c.Get(ctx, client.ObjectKey{Namespace: system, Name: name}, pod)
}

// leaderAddresses returns the addresses of a port of the leader, one for each family.
func leaderAddresses(t *testing.T, c cluster, port int) (out []string) {
	t.Helper()
	pod, err := leader(t.Context(), c)
	if err != nil || len(pod.Status.PodIPs) == 0 {
		t.Fatalf("%s: the leader has the addresses %v: %v", c.name, pod, err)
	}
	for _, ip := range pod.Status.PodIPs {
		out = append(out, net.JoinHostPort(ip.IP, strconv.Itoa(port)))
	}
	return out
}

// connectTo returns an attempt of the client pod in ns to get an HTTP response of any status.
func connectTo(ns, url string) func(context.Context, cluster) error {
	return func(ctx context.Context, c cluster) error {
		_, err := ask(ctx, c, ns, "curl", "--silent", "--show-error", "--insecure", "--max-time", "3", "--output", "/dev/null", url)
		return err
	}
}

// sendNotification sends a datagram from namespace from to the leader's port for peer
// notifications, and returns an error if the leader has not received it within a second.
func sendNotification(ctx context.Context, c cluster, reader, from string) error {
	before, err := received(ctx, c, reader, "malformed")
	if err != nil {
		return err
	}
	pod, err := leader(ctx, c)
	if err != nil {
		return err
	}
	if _, err := ask(ctx, c, from, "sh", "-c", "echo no notification | nc -u -w 1 "+pod.Status.PodIP+" 8479"); err != nil {
		return err
	}
	after, err := received(ctx, c, reader, "malformed")
	if err == nil && after == before {
		err = errors.New("the controller has not received the datagram")
	}
	return err
}

// notified returns an error unless the leader has received valid notifications.
func notified(ctx context.Context, c cluster, reader string) error {
	n, err := received(ctx, c, reader, "ok")
	if err == nil && n == 0 {
		err = fmt.Errorf("%s has received no peer notification", c.name)
	}
	return err
}

var receivedNotifications = regexp.MustCompile(`(?m)^cloud_map_mcs_registry_peer_notifications_total\{direction="received",registry="[^"]*",result="([a-z_]+)"\} (\d+)$`)

// received returns the number of notifications with a result in the leader's metrics, which the
// client pod in reader reads.
func received(ctx context.Context, c cluster, reader, result string) (n int, err error) {
	pod, err := leader(ctx, c)
	if err != nil {
		return 0, err
	}
	text, err := ask(ctx, c, reader, "sh", "-c", `curl --silent --show-error --fail --insecure --max-time 5 `+
		`--header "Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)" https://`+net.JoinHostPort(pod.Status.PodIP, "8080")+`/metrics`)
	if err != nil {
		return 0, err
	}
	for _, match := range receivedNotifications.FindAllStringSubmatch(text, -1) {
		if match[1] == result {
			count, err := strconv.Atoi(match[2])
			if err != nil {
				return 0, err
			}
			n += count
		}
	}
	return n, nil
}
