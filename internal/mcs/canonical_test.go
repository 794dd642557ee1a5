package mcs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestCanonical(t *testing.T) {
	in := Export{
		Key:             Key{Namespace: "demo", Name: "web"},
		Cluster:         "cls1",
		Created:         start.Add(123 * time.Millisecond).In(time.FixedZone("CET", 3600)),
		Changed:         start.Add(123456 * time.Microsecond).In(time.FixedZone("CET", 3600)),
		Type:            mcsv1beta1.ClusterSetIP,
		Ports:           []Port{{Name: "b", Port: 81}, {Name: "a", Port: 80}, {Name: "b", Port: 81}},
		SessionAffinity: corev1.ServiceAffinityClientIP,
		IPFamilies:      []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol, corev1.IPv6Protocol},
		Labels:          map[string]string{},
		Backends: []Backends{
			{Ports: []BackendPort{{Name: "b", Protocol: corev1.ProtocolTCP, Port: 8081}, {Name: "a", Port: 8080}}, Endpoints: []Endpoint{
				readyEndpoint("10.0.0.2"),
				{Address: netip.MustParseAddr("10.0.0.1")},
			}},
			{Ports: []BackendPort{{Name: "c", Port: 1}}},
			{Ports: []BackendPort{{Name: "a", Port: 8080}, {Name: "b", Port: 8081}}, Endpoints: []Endpoint{
				{Address: netip.MustParseAddr("::ffff:10.0.0.1"), Ready: true, Serving: true},
				{Address: netip.MustParseAddr("10.0.0.2"), Serving: true, Terminating: true},
			}},
		},
	}
	before := cmp.Diff(Export{}, in, compareAddr)
	timeout := int32(10800)
	want := Export{
		Key:                   in.Key,
		Cluster:               "cls1",
		Created:               start,
		Changed:               start.Add(123 * time.Millisecond),
		Type:                  mcsv1beta1.ClusterSetIP,
		Ports:                 []Port{tcp("b", 81), tcp("a", 80)},
		SessionAffinity:       corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}},
		IPFamilies:            []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Backends: []Backends{{
			Ports: []BackendPort{
				{Name: "a", Protocol: corev1.ProtocolTCP, Port: 8080}, {Name: "b", Protocol: corev1.ProtocolTCP, Port: 8081},
			},
			Endpoints: []Endpoint{readyEndpoint("10.0.0.1"), readyEndpoint("10.0.0.2")},
		}},
	}
	got := in.Canonical()
	if diff := cmp.Diff(want, got, compareAddr); diff != "" {
		t.Errorf("Canonical (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, got.Canonical(), compareAddr); diff != "" {
		t.Errorf("Canonical is not idempotent (-once +twice):\n%s", diff)
	}
	if after := cmp.Diff(Export{}, in, compareAddr); after != before {
		t.Errorf("Canonical changed its receiver:\n%s", after)
	}
	if n := got.EndpointCount(); n != 2 {
		t.Errorf("EndpointCount() = %d, want 2", n)
	}
}

// Each pod of a headless Service has a name, also if pods share an address, as in the network of
// their node. A clusterset IP has each address once.
func TestCanonicalEndpoints(t *testing.T) {
	http := []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}
	other := []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8081}}
	named := func(address, hostname string, ready bool) Endpoint {
		return Endpoint{Address: netip.MustParseAddr(address), Hostname: hostname, Ready: ready, Serving: ready}
	}
	for name, tc := range map[string]struct {
		edit     func(*Export) // nil: type ClusterSetIP
		in, want []Endpoint
	}{
		"two host names on an address": {
			headless, []Endpoint{named("10.0.0.1", "b", true), named("10.0.0.1", "a", true)}, []Endpoint{named("10.0.0.1", "a", true), named("10.0.0.1", "b", true)},
		},
		"one of them is not ready": {
			headless, []Endpoint{named("10.0.0.1", "b", true), named("10.0.0.1", "a", false)}, []Endpoint{named("10.0.0.1", "a", false), named("10.0.0.1", "b", true)},
		},
		"a host name moves between slices": {
			headless, []Endpoint{named("10.0.0.1", "a", false), named("10.0.0.1", "b", true), named("10.0.0.1", "a", true)},
			[]Endpoint{named("10.0.0.1", "a", true), named("10.0.0.1", "b", true)},
		},
		"a pod without host name moves between slices": {
			headless, []Endpoint{named("10.0.0.1", "", true), named("10.0.0.1", "a", false), named("10.0.0.1", "", false)},
			[]Endpoint{named("10.0.0.1", "", true), named("10.0.0.1", "a", false)},
		},
		"one host name on several addresses": {
			headless, []Endpoint{named("fd00::1", "a", true), named("10.0.0.2", "a", true), named("10.0.0.1", "a", true)},
			[]Endpoint{named("10.0.0.1", "a", true), named("10.0.0.2", "a", true), named("fd00::1", "a", true)},
		},
		"ClusterSetIP: an address once, as the ready endpoint": {
			nil, []Endpoint{named("10.0.0.1", "a", false), named("10.0.0.1", "b", true), named("10.0.0.1", "c", false), named("10.0.0.2", "a", false)},
			[]Endpoint{named("10.0.0.1", "b", true), named("10.0.0.2", "a", false)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := webExport("cls1", 0, withBackends(Backends{http, tc.in}, Backends{other, tc.in}))
			if tc.edit != nil {
				tc.edit(&e)
			}
			want := []Backends{{http, tc.want}, {other, tc.want}}
			if diff := cmp.Diff(want, e.Canonical().Backends, compareAddr); diff != "" {
				t.Errorf("Canonical (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, Merge([]Export{e}).Backends(e), compareAddr); diff != "" {
				t.Errorf("Backends (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCanonicalStates: an address and port that several groups of an export have has one state.
func TestCanonicalStates(t *testing.T) {
	ports := func(names ...string) (out []BackendPort) {
		for _, name := range names {
			out = append(out, BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: 8080})
		}
		return out
	}
	up, down := readyEndpoint("10.0.0.1"), Endpoint{Address: netip.MustParseAddr("10.0.0.1")}
	serving := Endpoint{Address: down.Address, Serving: true, Terminating: true}
	node := []BackendPort{{Name: "a", Protocol: corev1.ProtocolTCP, Port: 9090}}
	for name, tc := range map[string]struct {
		groups []Backends
		want   []Endpoint // the first endpoint of each group
		edit   func(*Export)
	}{
		"not ready in one": {groups: []Backends{{ports("a"), []Endpoint{down}}, {ports("a", "b"), []Endpoint{up}}}, want: []Endpoint{up, up}},
		"by a third one": {
			groups: []Backends{{ports("a"), []Endpoint{up}}, {ports("a", "c"), []Endpoint{down}}, {ports("b", "c"), []Endpoint{serving}}}, want: []Endpoint{up, up, up},
		},
		"serving":                         {groups: []Backends{{ports("a"), []Endpoint{serving}}, {ports("a", "b"), []Endpoint{down}}}, want: []Endpoint{serving, serving}},
		"another name":                    {groups: []Backends{{ports("a"), []Endpoint{down}}, {ports("b"), []Endpoint{up}}}, want: []Endpoint{down, up}},
		"another number":                  {groups: []Backends{{ports("a"), []Endpoint{down}}, {node, []Endpoint{up}}}, want: []Endpoint{down, up}},
		"headless, which no proxy serves": {groups: []Backends{{ports("a"), []Endpoint{down}}, {ports("a", "b"), []Endpoint{up}}}, want: []Endpoint{down, up}, edit: headless},
	} {
		t.Run(name, func(t *testing.T) {
			e := webExport("cls1", 0, withBackends(tc.groups...))
			if tc.edit != nil {
				tc.edit(&e)
			}
			var got []Endpoint
			for _, b := range e.Canonical().Backends {
				got = append(got, b.Endpoints[0])
			}
			if diff := cmp.Diff(tc.want, got, compareAddr); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The appProtocol of an endpoint port is that of the Service's port unless the slice has another
// one, so that it is published once.
func TestCanonicalAppProtocol(t *testing.T) {
	bp := func(appProtocol string) []BackendPort {
		return []BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080, AppProtocol: appProtocol}}
	}
	one, two := []Endpoint{readyEndpoint("10.0.0.1")}, []Endpoint{readyEndpoint("10.0.0.2")}
	for name, tc := range map[string]struct{ in, want []Backends }{
		"the Service's":             {[]Backends{{bp("h2c"), one}}, []Backends{{bp(""), one}}},
		"another one":               {[]Backends{{bp("grpc"), one}}, []Backends{{bp("grpc"), one}}},
		"two slices that differ":    {[]Backends{{bp("h2c"), one}, {bp("grpc"), two}}, []Backends{{bp("grpc"), []Endpoint{one[0], two[0]}}}},
		"two slices, another order": {[]Backends{{bp("grpc"), two}, {bp("h2c"), one}}, []Backends{{bp("grpc"), []Endpoint{one[0], two[0]}}}},
	} {
		e := webExport("cls1", 0, headless, withBackends(tc.in...))
		e.Ports[0].AppProtocol = "h2c"
		if diff := cmp.Diff(tc.want, e.Canonical().Backends, compareAddr); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCanonicalSharesNothing(t *testing.T) {
	in := webExport("cls1", 0, clientIP(10), func(e *Export) { e.Labels = map[string]string{"a": "b"} })
	out := in.Canonical()
	out.Ports[0].Name = "x"
	*out.SessionAffinityConfig.ClientIP.TimeoutSeconds = 1
	out.IPFamilies[0] = "x"
	out.Labels["a"] = "x"
	out.Backends[0].Ports[0].Name = "x"
	out.Backends[0].Endpoints[0].Zone = "x"
	want := webExport("cls1", 0, clientIP(10), func(e *Export) { e.Labels = map[string]string{"a": "b"} })
	if diff := cmp.Diff(want, in, compareAddr); diff != "" {
		t.Errorf("changing the copy changed the original (-want +got):\n%s", diff)
	}
}

func TestEqual(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*Export)
		want bool
	}{
		"no change":                   {func(*Export) {}, true},
		"Changed":                     {func(e *Export) { e.Changed = e.Changed.Add(time.Hour) }, true},
		"Created below a second":      {func(e *Export) { e.Created = e.Created.Add(time.Millisecond) }, true},
		"no backends in another form": {func(e *Export) { e.Backends = append(e.Backends, Backends{}) }, true},
		"empty labels":                {func(e *Export) { e.Labels = map[string]string{} }, true},
		"default affinity":            {func(e *Export) { e.SessionAffinity = "" }, true},
		"key":                         {func(e *Export) { e.Key.Name = "other" }, false},
		"cluster":                     {func(e *Export) { e.Cluster = "cls2" }, false},
		"Created":                     {func(e *Export) { e.Created = e.Created.Add(time.Second) }, false},
		"type":                        {headless, false},
		"port":                        {func(e *Export) { e.Ports[0].Port++ }, false},
		"appProtocol":                 {func(e *Export) { e.Ports[0].AppProtocol = "http" }, false},
		"affinity":                    {clientIP(10), false},
		"policy":                      {func(e *Export) { e.InternalTrafficPolicy = "Local" }, false},
		"distribution":                {func(e *Export) { e.TrafficDistribution = "PreferSameZone" }, false},
		"families":                    {withFamilies(corev1.IPv6Protocol), false},
		"label":                       {func(e *Export) { e.Labels = map[string]string{"a": ""} }, false},
		"annotation":                  {func(e *Export) { e.Annotations = map[string]string{"a": ""} }, false},
		"ready":                       {func(e *Export) { e.Backends[0].Endpoints[0].Ready = false }, false},
		"zone":                        {func(e *Export) { e.Backends[0].Endpoints[0].Zone = "b" }, false},
		"node":                        {func(e *Export) { e.Backends[0].Endpoints[0].Node = "n" }, false},
		"pod":                         {func(e *Export) { e.Backends[0].Endpoints[0].Pod = "p" }, false},
		"instance attributes":         {func(e *Export) { e.InstanceAttributes = "a=b" }, false},
		"records of instances":        {func(e *Export) { e.InstanceDNS = InstanceDNSAuto }, false},
		"Region":                      {func(e *Export) { e.Region = "eu-west-1" }, false},
		"endpoint port's appProtocol": {func(e *Export) { e.Backends[0].Ports[0].AppProtocol = "http" }, false},
		"endpoint port":               {func(e *Export) { e.Backends[0].Ports[0].Port++ }, false},
		"endpoint":                    {func(e *Export) { e.Backends[0].Endpoints = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := webExport("cls1", 0), webExport("cls1", 0, tc.edit)
			if a.Equal(b) != tc.want || b.Equal(a) != tc.want {
				t.Errorf("Equal = %t and %t, want %t", a.Equal(b), b.Equal(a), tc.want)
			}
		})
	}
	if a, b := webExport("cls1", 0, clientIP(10)), webExport("cls1", 0, clientIP(11)); a.Equal(b) {
		t.Error("exports with different affinity timeouts are equal")
	}
}
