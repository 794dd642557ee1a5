package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The metrics of kube-proxy, which its sources describe in pkg/proxy/metrics.
const (
	proxyEndpointChanges = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
	proxySyncs           = "kubeproxy_sync_proxy_rules_duration_seconds_count"
	proxyCPU             = "process_cpu_seconds_total"
)

// proxyMetrics returns the metrics of the kube-proxy of a node, each summed over its labels.
func proxyMetrics(t *testing.T, node nodeNetwork) map[string]float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       node.dial,
	}}
	out := map[string]float64{}
	eventually(t, soon, func() error {
		clear(out)
		resp, err := client.Get("http://127.0.0.1:10249/metrics")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		for line := range strings.Lines(string(text)) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			name, _, _ := strings.Cut(series, "{")
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				out[name] += n
			}
		}
		return err
	})
	return out
}

// TestKubeProxyIgnoresHeadlessImports changes all of 10,000 endpoints of headless imports, and
// measures the work of kube-proxy: it watches no slice of theirs, so it sees none of the changes. 3
// minutes; it runs alone.
func TestKubeProxyIgnoresHeadlessImports(t *testing.T) {
	if testing.Short() {
		t.Skip("NIGHTLY=1 runs it: 10,000 endpoints are a load for the other scenarios")
	}
	const services, perService, perSlice, rounds = 10, 1000, 100, 5
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	var sources []*discoveryv1.EndpointSlice
	for i := range services {
		name := fmt.Sprintf("db-%d", i)
		svc := service(ns, name)
		svc.Spec.ClusterIP, svc.Spec.IPFamilyPolicy = corev1.ClusterIPNone, new(corev1.IPFamilyPolicySingleStack)
		create(t, cls1, svc)
		for j := range perService / perSlice {
			var all []discoveryv1.Endpoint
			for k := range perSlice {
				all = append(all, endpoint(fmt.Sprintf("10.%d.%d.%d", 100+i, j, k+1), ""))
			}
			slice := endpoints(ns, name, fmt.Sprintf("%s-%d", name, j), svc.Spec.Ports, all...)
			create(t, cls1, slice)
			sources = append(sources, slice)
		}
		export(t, cls1, ns, name)
	}
	allReady := func(ready bool) error {
		found := 0
		for i := range services {
			list, err := importedSlices(t.Context(), cls2, ns, fmt.Sprintf("db-%d", i), "cls1")
			if err != nil {
				return err
			}
			for _, s := range list {
				for _, ep := range s.Endpoints {
					if *ep.Conditions.Ready == ready {
						found++
					}
				}
			}
		}
		if found != services*perService {
			return fmt.Errorf("%d of %d endpoints have ready=%t", found, services*perService, ready)
		}
		return nil
	}
	eventually(t, started, func() error { return allReady(true) })
	node := networkOf(t, "cls2-node1")
	before, begin := proxyMetrics(t, node), time.Now()
	for round := range rounds {
		ready := round%2 == 1
		for _, slice := range sources {
			change(t, cls1, slice, func(s *discoveryv1.EndpointSlice) {
				for i := range s.Endpoints {
					s.Endpoints[i].Conditions.Ready = &ready
				}
			})
		}
		eventually(t, started, func() error { return allReady(ready) })
	}
	after := proxyMetrics(t, node)
	changed := after[proxyEndpointChanges] - before[proxyEndpointChanges]
	t.Logf("kube-proxy of cls2-node1, while %d endpoints in %d imported slices changed %d times in %s: %.0f changes of endpoints, %.0f syncs, %.2f s of CPU",
		services*perService, len(sources), rounds, time.Since(begin).Round(time.Second), changed, after[proxySyncs]-before[proxySyncs], after[proxyCPU]-before[proxyCPU])
	if changed >= float64(len(sources)) {
		t.Errorf("kube-proxy saw %.0f changes of EndpointSlices, want none of the %d in each round", changed, len(sources))
	}
}
