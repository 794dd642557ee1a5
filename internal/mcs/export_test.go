package mcs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// start is the creation time of the first export of the tests.
var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// compareAddr lets cmp compare addresses.
var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// webExport returns a ClusterSetIP export of port http 80/TCP by cluster, created age seconds after
// start, with one ready endpoint. Each edit changes it.
func webExport(cluster string, age int, edits ...func(*Export)) Export {
	e := Export{
		Key:             Key{Namespace: "demo", Name: "web"},
		Cluster:         cluster,
		Created:         start.Add(time.Duration(age) * time.Second),
		Changed:         start,
		Type:            mcsv1beta1.ClusterSetIP,
		Ports:           []Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol},
		Backends: []Backends{{
			Ports:     []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []Endpoint{readyEndpoint("10.10.0.1")},
		}},
	}
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

func readyEndpoint(address string) Endpoint {
	return Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true}
}

func withPorts(ports ...Port) func(*Export) {
	return func(e *Export) { e.Ports = ports }
}

func tcp(name string, number int32) Port {
	return Port{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
}

func withFamilies(families ...corev1.IPFamily) func(*Export) {
	return func(e *Export) { e.IPFamilies = families }
}

func withBackends(backends ...Backends) func(*Export) {
	return func(e *Export) { e.Backends = backends }
}

func headless(e *Export) { e.Type = mcsv1beta1.Headless }

func clientIP(seconds int32) func(*Export) {
	return func(e *Export) {
		e.SessionAffinity = corev1.ServiceAffinityClientIP
		e.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func sorted(list []string) []string {
	return slices.Sorted(slices.Values(list))
}
