package e2e

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"testing"
)

// measured is the number of requests of one measurement.
const measured = 1000

// TestGateway runs docs/gateway-api.md with its manifests: a client in cls1 splits its traffic
// between cls1 and cls2 by the weights of an HTTPRoute, whose Gateway is a Traefik in cls1, and by
// a drain of a part of cls2's endpoints.
func TestGateway(t *testing.T) {
	if os.Getenv("GATEWAY") == "" {
		t.Skip("it needs an image of Traefik: make gateway")
	}
	cls1, cls2 := installed(t)
	const ns = "demo" // of the manifests
	createNamespace(t, ns, cls1, cls2)
	for _, c := range []cluster{cls1, cls2} {
		command(t, c, "kubectl --context CLS apply -f samples/nginx-deployment.yaml -f samples/nginx-service.yaml -f samples/nginx-serviceexport.yaml -f samples/gateway-api/nginx-hello-CLS.yaml")
	}
	command(t, cls1, "testbed load-image dist/traefik.tar --cluster CLS")
	command(t, cls1, `go -C hack/traefik mod download sigs.k8s.io/gateway-api &&
		kubectl --context CLS apply --server-side -f "$(go -C hack/traefik list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard"`)
	command(t, cls1, "kubectl --context CLS apply -f samples/gateway-api/traefik.yaml -f samples/gateway-api/gateway.yaml -f samples/gateway-api/route.yaml")
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := suite.Output(context.Background(), "kubectl --context cls1 -n demo get gateways,httproutes -o yaml; kubectl --context cls1 -n demo logs deployment/traefik --tail=50")
			t.Log(out)
		}
	})
	startClient(t, cls1, ns)
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, started, func() error { return sameEndpoints(t.Context(), c, cls1, ns, "nginx-hello", 3) })
		eventually(t, started, func() error { return sameEndpoints(t.Context(), c, cls1, ns, "nginx-hello-"+c.name, 3) })
	}
	clusterOf := map[string]string{}
	for _, c := range []cluster{cls1, cls2} {
		for _, address := range podAddresses(t, ns, "nginx-hello", c) {
			clusterOf[address] = c.name
		}
	}
	route := requests{cls1, ns, clusterOf, []string{"-H", "Host: hello.example.com"}, "http://traefik/"}

	// Each step waits for a response that the weights before it exclude: Traefik applies new
	// weights after up to 2 s.
	eventually(t, started, func() error { return route.answeredBy(t.Context(), "cls1", "cls2") })
	route.checkSplit(t, "weights 90 and 10", map[string]float64{"cls1": 0.9, "cls2": 0.1})
	setWeights(t, cls1, 0, 100)
	eventually(t, soon, func() error { return route.answeredBy(t.Context(), "cls2") })
	route.checkSplit(t, "weights 0 and 100", map[string]float64{"cls2": 1})
	setWeights(t, cls1, 50, 50)
	eventually(t, soon, func() error { return route.answeredBy(t.Context(), "cls1", "cls2") })
	route.checkSplit(t, "weights 50 and 50", map[string]float64{"cls1": 0.5, "cls2": 0.5})

	// The clusterset IP has no weights, but a drain of two of cls2's three endpoints leaves it one
	// endpoint of four.
	connections := requests{cls1, ns, clusterOf, []string{"-H", "Connection: close"}, "http://" + fqdn(ns, "nginx-hello") + "/"}
	connections.checkSplit(t, "clusterset IP", map[string]float64{"cls1": 0.5, "cls2": 0.5})
	t.Cleanup(func() { _, _ = plugin(context.Background(), 0, "undrain nginx-hello -n demo --context cls2") })
	says(t, 0, "drain nginx-hello -n demo --context cls2 --part 67%", "is drained by 67%")
	eventually(t, soon, func() error { return connections.servers(t.Context(), map[string]int{"cls1": 3, "cls2": 1}) })
	connections.checkSplit(t, "clusterset IP, 67% of cls2 drained", map[string]float64{"cls1": 0.75, "cls2": 0.25})

	// A Gateway has no failover between the backends of a route: without an endpoint in cls2 its
	// half fails, until the weights change.
	command(t, cls2, "kubectl --context CLS -n demo scale deployment/nginx-demo --replicas=0")
	eventually(t, started, func() error { return route.answeredBy(t.Context(), "cls1", "status 503") })
	route.checkSplit(t, "weights 50 and 50, no endpoint in cls2", map[string]float64{"cls1": 0.5, "status 503": 0.5})
	setWeights(t, cls1, 100, 0)
	eventually(t, soon, func() error { return route.answeredBy(t.Context(), "cls1") })
	route.checkSplit(t, "weights 100 and 0, no endpoint in cls2", map[string]float64{"cls1": 1})
}

// setWeights changes the weights of the backends of the sample's HTTPRoute.
func setWeights(t *testing.T, c cluster, cls1, cls2 int) {
	t.Helper()
	kubectl(t, c, "-n", "demo", "patch", "httproute", "hello", "--type=json", "-p", fmt.Sprintf(
		`[{"op": "replace", "path": "/spec/rules/0/backendRefs/0/weight", "value": %d}, {"op": "replace", "path": "/spec/rules/0/backendRefs/1/weight", "value": %d}]`, cls1, cls2))
}

// requests are requests of the client pod of a cluster to servers of several clusters.
type requests struct {
	from      cluster
	namespace string
	clusterOf map[string]string // address of a server: its cluster
	flags     []string          // of curl
	url       string
}

// response matches the address of the server in the body of a response, or the status that curl
// adds to it.
var response = regexp.MustCompile(`Server address: (\S+)|(status \d+)`)

// send sends n requests and counts the responses by the address of the server, and those of another
// status than 200 by the status.
func (r requests) send(ctx context.Context, n int) (map[string]int, error) {
	args := append([]string{"curl", "-s", "-m", "3", "-w", "\nstatus %{http_code}\n"}, r.flags...)
	out, err := ask(ctx, r.from, r.namespace, append(args, fmt.Sprintf("%s?[1-%d]", r.url, n))...)
	if err != nil {
		return nil, err
	}
	got := map[string]int{}
	for _, m := range response.FindAllStringSubmatch(out, -1) {
		if m[2] != "status 200" {
			got[m[1]+m[2]]++
		}
	}
	return got, nil
}

// split is send, by cluster or status.
func (r requests) split(ctx context.Context, n int) (map[string]int, error) {
	got, err := r.send(ctx, n)
	out := map[string]int{}
	for key, count := range got {
		if c, ok := r.clusterOf[key]; ok {
			key = c
		}
		out[key] += count
	}
	return out, err
}

// answeredBy checks that exactly these clusters and statuses are among some responses.
func (r requests) answeredBy(ctx context.Context, want ...string) error {
	const n = 50
	got, err := r.split(ctx, n)
	if err != nil {
		return err
	}
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
		return fmt.Errorf("%d requests to %s were answered by %v, want by %v", n, r.url, got, want)
	}
	return nil
}

// servers checks the number of servers of each cluster that respond.
func (r requests) servers(ctx context.Context, want map[string]int) error {
	const n = 100 // four servers are all among them, but for one time in 10^12
	responses, err := r.send(ctx, n)
	if err != nil {
		return err
	}
	got := map[string]int{}
	for address := range responses {
		got[r.clusterOf[address]]++
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("%d requests to %s reached servers by cluster %v, want %v", n, r.url, got, want)
	}
	return nil
}

// checkSplit measures the parts of the responses and compares them with the probabilities, within
// five standard deviations of the binomial distribution, which chance exceeds once in 1.7 million
// measurements.
func (r requests) checkSplit(t *testing.T, what string, want map[string]float64) {
	t.Helper()
	got, err := r.split(t.Context(), measured)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %d requests were answered by %v", what, measured, got)
	total := 0
	for key, count := range got {
		total += count
		p := want[key]
		if limit := 5 * math.Sqrt(measured*p*(1-p)); math.Abs(float64(count)-measured*p) > limit {
			t.Errorf("%s: %s answered %d of %d requests, want %.0f ± %.0f", what, key, count, measured, measured*p, limit)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] == 0 {
			t.Errorf("%s: no request was answered by %s", what, key)
		}
	}
	if total != measured {
		t.Errorf("%s: %d of %d requests were answered", what, total, measured)
	}
}
