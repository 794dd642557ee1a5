package instances

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

func TestServiceConfig(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	for name, tc := range map[string]struct {
		dns      mcs.InstanceDNS
		families []corev1.IPFamily
		ports    int
		want     string
	}{
		"nothing":              {"", []corev1.IPFamily{v4}, 1, ""},
		"none":                 {mcs.InstanceDNSNone, []corev1.IPFamily{v4}, 1, ""},
		"IPv4":                 {mcs.InstanceDNSAuto, []corev1.IPFamily{v4}, 1, "A"},
		"IPv6":                 {mcs.InstanceDNSAuto, []corev1.IPFamily{v6}, 1, "AAAA"},
		"dual-stack":           {mcs.InstanceDNSAuto, []corev1.IPFamily{v6, v4}, 1, "A+AAAA"},
		"families not known":   {mcs.InstanceDNSAuto, nil, 1, "A"},
		"two ports":            {mcs.InstanceDNSAuto, []corev1.IPFamily{v4}, 2, "SRV"},
		"two ports, addresses": {mcs.InstanceDNSAddress, []corev1.IPFamily{v4}, 2, "A"},
		"no ports":             {mcs.InstanceDNSAuto, []corev1.IPFamily{v4}, 0, "A"},
		"one port, SRV":        {mcs.InstanceDNSSRV, []corev1.IPFamily{v4, v6}, 1, "SRV"},
	} {
		t.Run(name, func(t *testing.T) {
			e := mcs.Export{InstanceDNS: tc.dns, IPFamilies: tc.families, Ports: make([]mcs.Port, tc.ports)}
			settings := Settings{TTL: 15, Routing: "WEIGHTED"}
			want := api.ServiceConfig{Records: tc.want}
			if tc.want != "" {
				want.TTL, want.Routing = 15, "WEIGHTED"
			}
			if diff := cmp.Diff(want, settings.serviceConfig(e, types.NamespaceTypeDnsPrivate)); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			for _, other := range []types.NamespaceType{types.NamespaceTypeHttp, types.NamespaceTypeDnsPublic} {
				if got := settings.serviceConfig(e, other); got != (api.ServiceConfig{}) {
					t.Errorf("in a namespace of type %s: %+v, want no records", other, got)
				}
			}
		})
	}
	if !(Settings{Unready: UnreadyUnhealthy}).serviceConfig(mcs.Export{}, types.NamespaceTypeHttp).HasHealth {
		t.Error("no health in an HTTP namespace")
	}
}

func TestShapeOf(t *testing.T) {
	srv, addresses, both := api.ServiceConfig{Records: "SRV"}, api.ServiceConfig{Records: "A"}, api.ServiceConfig{Records: "A+AAAA"}
	health := api.ServiceConfig{Records: "A", HasHealth: true}
	for name, tc := range map[string]struct {
		dns     mcs.InstanceDNS
		unready Unready
		service api.ServiceConfig
		want    shape
	}{
		"default":                       {"", "", api.ServiceConfig{}, shape{}},
		"records of others":             {"", UnreadyMark, addresses, shape{}},
		"both families of others":       {"", UnreadyMark, both, shape{}},
		"addresses":                     {"auto", UnreadyMark, addresses, shape{hasFirstPortOnly: true, hasReadyOnly: true, isAnswered: true}},
		"both families":                 {"auto", UnreadyMark, both, shape{hasFirstPortOnly: true, isPaired: true, hasReadyOnly: true, isAnswered: true}},
		"SRV":                           {"auto", UnreadyMark, srv, shape{hasReadyOnly: true, isAnswered: true}},
		"asks, but HTTP":                {"auto", UnreadyMark, api.ServiceConfig{}, shape{}},
		"deregister":                    {"", UnreadyDeregister, api.ServiceConfig{}, shape{hasReadyOnly: true}},
		"unhealthy":                     {"", UnreadyUnhealthy, api.ServiceConfig{HasHealth: true}, shape{hasHealth: true}},
		"unhealthy with records":        {"auto", UnreadyUnhealthy, health, shape{hasFirstPortOnly: true, hasHealth: true}},
		"no health in the service":      {"", UnreadyUnhealthy, api.ServiceConfig{}, shape{}},
		"no health but records":         {"auto", UnreadyUnhealthy, srv, shape{hasReadyOnly: true, isAnswered: true}},
		"health that is not asked for":  {"", UnreadyMark, health, shape{}},
		"deregister in spite of health": {"", UnreadyDeregister, health, shape{hasReadyOnly: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Settings{Unready: tc.unready}).shapeOf(mcs.Export{InstanceDNS: tc.dns}, tc.service); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	settings := Settings{TTL: 15, Routing: "MULTIVALUE"}
	healthy := settings
	healthy.Unready = UnreadyUnhealthy
	for name, tc := range map[string]struct {
		settings Settings
		dns      mcs.InstanceDNS
		in       types.NamespaceType
		have     api.ServiceConfig
		want     string
	}{
		"no wishes":         {settings, "", types.NamespaceTypeDnsPrivate, api.ServiceConfig{Records: "SRV", TTL: 60}, ""},
		"as asked for":      {settings, "auto", types.NamespaceTypeDnsPrivate, api.ServiceConfig{Records: "A", TTL: 15, Routing: "MULTIVALUE"}, ""},
		"more health":       {settings, "auto", types.NamespaceTypeDnsPrivate, api.ServiceConfig{Records: "A", TTL: 15, Routing: "MULTIVALUE", HasHealth: true}, ""},
		"type HTTP":         {settings, "auto", types.NamespaceTypeDnsPrivate, api.ServiceConfig{}, "it has no DNS records and not DNS records A (TTL 15, MULTIVALUE)"},
		"other type":        {settings, "auto", types.NamespaceTypeDnsPrivate, api.ServiceConfig{Records: "SRV", TTL: 60, Routing: "MULTIVALUE"}, "it has DNS records SRV (TTL 60, MULTIVALUE)"},
		"other routing":     {settings, "auto", types.NamespaceTypeDnsPrivate, api.ServiceConfig{Records: "A", TTL: 15, Routing: "WEIGHTED"}, "DNS records A (TTL 15, WEIGHTED)"},
		"HTTP namespace":    {settings, "auto", types.NamespaceTypeHttp, api.ServiceConfig{}, "--instance-dns-vpc"},
		"no health":         {healthy, "", types.NamespaceTypeHttp, api.ServiceConfig{}, "no custom health check"},
		"health":            {healthy, "", types.NamespaceTypeHttp, api.ServiceConfig{HasHealth: true}, ""},
		"health of another": {settings, "", types.NamespaceTypeHttp, api.ServiceConfig{HasHealth: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := mcs.Export{Key: mcs.Key{Namespace: "demo", Name: "web"}, InstanceDNS: tc.dns, Ports: make([]mcs.Port, 1)}
			if got := tc.settings.difference(e, tc.in, tc.have); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestShapedInstances: the instances of an export in each shape.
func TestShapedInstances(t *testing.T) {
	endpoint := func(address, pod string, ready bool) mcs.Endpoint {
		return mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: ready, Pod: pod}
	}
	ports := []mcs.BackendPort{{Name: "http", Protocol: "TCP", Port: 8080}, {Name: "metrics", Protocol: "TCP", Port: 9090}}
	e := mcs.Export{
		Ports: []mcs.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "metrics", Protocol: "TCP", Port: 90}},
		Backends: []mcs.Backends{
			{Ports: ports, Endpoints: []mcs.Endpoint{endpoint("10.0.0.1", "a", true), endpoint("10.0.0.2", "b", false), endpoint("10.0.0.3", "", true)}},
			{Ports: ports, Endpoints: []mcs.Endpoint{endpoint("fd00::1", "a", true), endpoint("fd00::2", "b", false), endpoint("fd00::3", "", true), endpoint("fd00::4", "c", true)}},
		},
	}
	describe := func(all []api.Instance) (lines []string) {
		for _, i := range all {
			lines = append(lines, strings.TrimSpace(strings.Join([]string{i.ID, i.Attributes[AttrIPv4], i.Attributes[AttrIPv6], i.Health}, " ")))
		}
		return lines
	}
	drained, forced := e, e
	drained.Drain, forced.Drain = mcs.DrainAll, mcs.DrainForced
	paired := []string{
		"tcp-10_0_0_1-8080 10.0.0.1 fd00::1", "tcp-10_0_0_2-8080 10.0.0.2 fd00::2", "tcp-10_0_0_3-8080 10.0.0.3", "tcp-fd00__3-8080  fd00::3", "tcp-fd00__4-8080  fd00::4"}
	for name, tc := range map[string]struct {
		export mcs.Export
		shape  shape
		want   []string
	}{
		"ready and first port only": {e, shape{hasFirstPortOnly: true, hasReadyOnly: true}, []string{
			"tcp-10_0_0_1-8080 10.0.0.1", "tcp-10_0_0_3-8080 10.0.0.3", "tcp-fd00__1-8080  fd00::1", "tcp-fd00__3-8080  fd00::3", "tcp-fd00__4-8080  fd00::4"}},
		"paired": {e, shape{hasFirstPortOnly: true, isPaired: true}, paired},
		"health": {e, shape{hasFirstPortOnly: true, isPaired: true, hasHealth: true}, []string{
			"tcp-10_0_0_1-8080 10.0.0.1 fd00::1 HEALTHY", "tcp-10_0_0_2-8080 10.0.0.2 fd00::2 UNHEALTHY", "tcp-10_0_0_3-8080 10.0.0.3  HEALTHY",
			"tcp-fd00__3-8080  fd00::3 HEALTHY", "tcp-fd00__4-8080  fd00::4 HEALTHY"}},
		"drained": {drained, shape{hasFirstPortOnly: true, isPaired: true, hasReadyOnly: true, hasHealth: true}, []string{
			"tcp-10_0_0_1-8080 10.0.0.1 fd00::1 UNHEALTHY", "tcp-10_0_0_3-8080 10.0.0.3  UNHEALTHY", "tcp-fd00__3-8080  fd00::3 UNHEALTHY",
			"tcp-fd00__4-8080  fd00::4 UNHEALTHY"}},
		"served by others":         {forced, shape{hasFirstPortOnly: true, hasReadyOnly: true, isAnswered: true, hasOthers: true}, nil},
		"served elsewhere":         {forced, shape{hasFirstPortOnly: true, isPaired: true, isAnswered: true}.in(nil, nil), paired},
		"drained, the last ones":   {drained, shape{hasFirstPortOnly: true, isPaired: true, isAnswered: true, hasOthers: true}, paired},
		"served by others, no DNS": {forced, shape{hasFirstPortOnly: true, isPaired: true, hasOthers: true}, paired},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := firstFromExport(tc.export, "set1", "v1", maxInstances, tc.shape)
			if diff := cmp.Diff(tc.want, describe(got)); diff != "" {
				t.Errorf("instances (-want +got):\n%s", diff)
			}
		})
	}
	if got, _ := firstFromExport(e, "set1", "v1", maxInstances, shape{}); len(got) != 14 {
		t.Errorf("%d instances without a shape, want one for each of 7 addresses and 2 ports", len(got))
	}
}

// TestDrainOf: the drain of the instances of a drained cluster follows the decision of importers.
func TestDrainOf(t *testing.T) {
	export := func(cluster string, drain mcs.Drain, ready bool) mcs.Export {
		e := cloudmaptest.WebExport(cluster, 0, 1)
		e.Backends[0].Endpoints[0].Ready, e.Backends[0].Endpoints[0].Serving = ready, ready
		e.Drain = drain
		return e
	}
	own := export("cls1", mcs.DrainAll, true)
	ready, unready, drained := export("cls2", "", true), export("cls2", "", false), export("cls2", mcs.DrainAll, true)
	twoPorts := own
	twoPorts.Ports = append(slices.Clone(own.Ports), mcs.Port{Name: "metrics", Protocol: "TCP", Port: 9090})
	twoPorts.Backends = []mcs.Backends{own.Backends[0]}
	twoPorts.Backends[0].Ports = append(slices.Clone(own.Backends[0].Ports), mcs.BackendPort{Name: "metrics", Protocol: "TCP", Port: 9090})
	for name, tc := range map[string]struct {
		own   mcs.Export
		e     Exporters
		want  mcs.Drain
		known bool
	}{
		"alone":                             {own, Exporters{}, mcs.DrainAll, true},
		"alone, as published":               {own, Exporters{Exports: []mcs.Export{export("cls1", "", true)}}, mcs.DrainAll, true},
		"another cluster":                   {own, Exporters{Exports: []mcs.Export{ready}}, mcs.DrainForced, true},
		"no ready endpoint":                 {export("cls1", mcs.DrainAll, false), Exporters{}, mcs.DrainForced, true},
		"another one without ready ones":    {own, Exporters{Exports: []mcs.Export{unready}}, mcs.DrainAll, true},
		"another one that is drained":       {own, Exporters{Exports: []mcs.Export{drained}}, mcs.DrainAll, true},
		"another one that is stale":         {own, Exporters{Exports: []mcs.Export{ready}, Stale: []string{"cls2"}}, mcs.DrainAll, true},
		"stale or not":                      {own, Exporters{Exports: []mcs.Export{ready}, Unknown: []string{"cls2"}}, mcs.DrainForced, false},
		"unready, and stale or not":         {own, Exporters{Exports: []mcs.Export{unready}, Unknown: []string{"cls2"}}, mcs.DrainAll, true},
		"not all known":                     {own, Exporters{IsOpen: true}, mcs.DrainAll, false},
		"not all known, but another one is": {own, Exporters{Exports: []mcs.Export{ready}, IsOpen: true}, mcs.DrainForced, true},
		"another one with one of two ports": {twoPorts, Exporters{Exports: []mcs.Export{ready}}, mcs.DrainAll, true},
		"forced by the administrator":       {export("cls1", mcs.DrainForced, true), Exporters{}, mcs.DrainForced, true},
		"drained in part":                   {export("cls1", "50%", true), Exporters{Exports: []mcs.Export{ready}}, "50%", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, known := tc.e.DrainOf(tc.own); got != tc.want || known != tc.known {
				t.Errorf("%q (known: %t), want %q (%t)", got, known, tc.want, tc.known)
			}
		})
	}
}

// TestDiff_Health: health is set of instances that exist and have another or an unknown one. The
// health of a registration is no difference.
func TestDiff_Health(t *testing.T) {
	wanted := func(ready, health string) []api.Instance {
		i := api.Instance{ID: "a", Attributes: map[string]string{AttrReady: ready}, Health: health}
		if health != "" {
			i.Attributes[AttrNames] = api.AttrInitialHealth
		}
		return []api.Instance{i}
	}
	// registered is an instance that was registered with this controller's health.
	registered := func(ready, health string) []api.Instance {
		i := wanted(ready, api.HealthHealthy)[0]
		i.Attributes[api.AttrInitialHealth], i.Health = api.HealthHealthy, health
		return []api.Instance{i}
	}
	// foreign has a health that another client registered.
	foreign := wanted("true", "")
	foreign[0].Attributes[api.AttrInitialHealth], foreign[0].Health = api.HealthUnhealthy, api.HealthUnhealthy
	hidden := registered("true", "HEALTHY") // AWS does not document whether lists have it
	delete(hidden[0].Attributes, api.AttrInitialHealth)
	all := func(map[string]string) bool { return true }
	for name, tc := range map[string]struct {
		want, have       []api.Instance
		register, health string
	}{
		"new":                        {wanted("true", "HEALTHY"), nil, "a HEALTHY", ""},
		"same":                       {wanted("true", "HEALTHY"), registered("true", "HEALTHY"), "", ""},
		"same, not in the list":      {wanted("true", "HEALTHY"), hidden, "", ""},
		"changed":                    {wanted("false", "UNHEALTHY"), registered("true", "HEALTHY"), "a UNHEALTHY", "a UNHEALTHY"},
		"health only":                {wanted("true", "UNHEALTHY"), registered("true", "HEALTHY"), "", "a UNHEALTHY"},
		"not known":                  {wanted("true", "HEALTHY"), registered("true", ""), "", "a HEALTHY"},
		"attribute only":             {wanted("true", "HEALTHY"), registered("x", "HEALTHY"), "a HEALTHY", ""},
		"no health any more":         {wanted("true", ""), registered("true", "UNHEALTHY"), "a ", ""},
		"health of another":          {wanted("true", ""), foreign, "", ""},
		"instead of that of another": {wanted("true", "HEALTHY"), foreign, "a HEALTHY", "a HEALTHY"},
		"without health":             {wanted("true", ""), wanted("true", ""), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			changes := Diff(tc.want, tc.have, all)
			text := func(all []api.Instance) string {
				var out []string
				for _, i := range all {
					out = append(out, i.ID+" "+i.Health)
				}
				return strings.Join(out, ", ")
			}
			if text(changes.Register) != tc.register || text(changes.Health) != tc.health {
				t.Errorf("register %q and set the health of %q, want %q and %q", text(changes.Register), text(changes.Health), tc.register, tc.health)
			}
		})
	}
}
