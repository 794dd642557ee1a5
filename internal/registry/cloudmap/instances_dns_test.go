package cloudmap

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// dnsPolicies are those of a cluster whose instance view has DNS records and health.
var dnsPolicies = append(slices.Clone(viewPolicies), "instance-dns.json", "instance-health.json")

// dnsCloud is a cloud that answers DNS.
type dnsCloud struct {
	*cloud
	address string
}

func startDNSCloud(t *testing.T, dropped ...string) *dnsCloud {
	t.Helper()
	return startDNSCloudWith(t, cloudmaplocal.Options{Unthrottled: true}, dropped...)
}

func startDNSCloudWith(t *testing.T, options cloudmaplocal.Options, dropped ...string) *dnsCloud {
	t.Helper()
	return listenDNS(t, startGuarded(t, options, dnsPolicies, dropped...))
}

// listenDNS makes a cloud answer DNS.
func listenDNS(t *testing.T, c *cloud) *dnsCloud {
	t.Helper()
	listener, err := c.server.Load().ListenDNS("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	return &dnsCloud{cloud: c, address: listener.Addr()}
}

// dnsSettings are the settings of the flags --instance-dns-vpc=vpc-0a1b2c3d and
// --unready-instances, with the other defaults.
func dnsSettings(unready instances.Unready) instances.Settings {
	return instances.Settings{VPC: "vpc-0a1b2c3d", TTL: 15, Routing: "MULTIVALUE", Unready: unready}
}

// resolving starts a registry whose instance view has settings.
func (c *dnsCloud) resolving(t *testing.T, identity mcs.Identity, settings instances.Settings) (*Registry, func(error)) {
	t.Helper()
	cfg := fast(identity)
	cfg.InstanceView, cfg.Instances = true, settings
	reg := c.registry(t, cfg)
	return reg, start(t, reg)
}

// lookup returns the addresses, or the ports and targets, that DNS answers, sorted, by TCP or UDP.
func (c *dnsCloud) lookup(t *testing.T, name string, qtype uint16, network string) []string {
	t.Helper()
	client := dns.Client{Net: network, Timeout: 10 * time.Second}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype), c.address)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, rr := range reply.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			found = append(found, rr.A.String())
		case *dns.AAAA:
			found = append(found, rr.AAAA.String())
		case *dns.SRV:
			found = append(found, fmt.Sprint(rr.Port, " ", rr.Target))
		}
	}
	slices.Sort(found)
	return found
}

// resolves reports whether DNS has exactly these answers.
func (c *dnsCloud) resolves(t *testing.T, name string, qtype uint16, want ...string) func() bool {
	return func() bool { return slices.Equal(c.lookup(t, name, qtype, "udp"), want) }
}

func asking(exp mcs.Export, records mcs.InstanceDNS) mcs.Export {
	exp.InstanceDNS = records
	return exp
}

// withReady returns an export whose endpoints are ready as the list says.
func withReady(exp mcs.Export, ready ...bool) mcs.Export {
	exp.Backends = slices.Clone(exp.Backends)
	exp.Backends[0].Endpoints = slices.Clone(exp.Backends[0].Endpoints[:len(ready)])
	for i := range ready {
		exp.Backends[0].Endpoints[i].Ready = ready[i]
	}
	return exp
}

// TestDNSShowsReadyEndpoints: in a private DNS namespace that the controller creates, DNS answers
// exactly the ready endpoints, with all treatments of the others, by UDP and TCP. TestDNSPace has
// the times.
func TestDNSShowsReadyEndpoints(t *testing.T) {
	for _, unready := range []instances.Unready{instances.UnreadyMark, instances.UnreadyDeregister, instances.UnreadyUnhealthy} {
		t.Run(string(unready), func(t *testing.T) {
			c := startDNSCloud(t)
			a, stop := c.resolving(t, cls1, dnsSettings(unready))
			exp := asking(webExport("cls1", 0, 3), mcs.InstanceDNSAuto)
			within(t, 3*patience, "cls1 has joined", func() bool { return joined(a) })
			for _, step := range []struct {
				ready []bool
				want  []string
			}{
				{[]bool{true, true, true}, []string{"10.10.0.0", "10.10.0.1", "10.10.0.2"}},
				{[]bool{true, false, true}, []string{"10.10.0.0", "10.10.0.2"}},
				{[]bool{false, true, true}, []string{"10.10.0.1", "10.10.0.2"}},
				{[]bool{true}, []string{"10.10.0.0"}},
				{[]bool{true, false, true}, []string{"10.10.0.0", "10.10.0.2"}},
				{[]bool{true, true, true}, []string{"10.10.0.0", "10.10.0.1", "10.10.0.2"}},
			} {
				publish(t, a, withReady(exp, step.ready...))
				within(t, 3*patience, fmt.Sprint("DNS answers ", step.want), c.resolves(t, "web-0.demo", dns.TypeA, step.want...))
				if got := c.lookup(t, "web-0.demo", dns.TypeA, "tcp"); !slices.Equal(got, step.want) {
					t.Errorf("by TCP %v, want %v", got, step.want)
				}
			}
			if warnings := a.view.Warnings(webKey(0)); len(warnings) > 0 {
				t.Errorf("warnings %q", warnings)
			}
			if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
				t.Fatal(err)
			}
			within(t, 3*patience, "the name is gone", c.resolves(t, "web-0.demo", dns.TypeA))
			stop(registry.ErrLeave)
			if denied := c.denials(t); len(denied) > 0 {
				t.Errorf("denied: %v", denied)
			}
			within(t, 3*patience, "nothing is left", func() bool {
				left, err := c.client.ListNamespaces(t.Context())
				return err == nil && len(left) == 0
			})
		})
	}
}

// TestDNSRecordTypes: the records follow from the families and ports of the export.
func TestDNSRecordTypes(t *testing.T) {
	c := startDNSCloud(t)
	a, _ := c.resolving(t, cls1, dnsSettings(""))
	dual := webExport("cls1", 0, 1)
	v6 := dual.Backends[0].Endpoints[0]
	v6.Address = netip.MustParseAddr("fd00::1")
	dual.Backends = append(dual.Backends, mcs.Backends{Ports: dual.Backends[0].Ports, Endpoints: []mcs.Endpoint{v6}})
	dual.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	dual.Backends[0].Endpoints[0].Pod, dual.Backends[1].Endpoints[0].Pod = "web", "web"
	single := func(i int, port bool) mcs.Export {
		exp := webExport("cls1", i, 1)
		if port {
			exp.Ports = append(exp.Ports, mcs.Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090, TargetPort: "9090"})
			exp.Backends[0].Ports = append(exp.Backends[0].Ports, mcs.BackendPort{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090})
		}
		return exp
	}
	publish(t, a, asking(dual, mcs.InstanceDNSAuto))
	publish(t, a, asking(single(1, true), mcs.InstanceDNSAuto))
	publish(t, a, asking(single(2, true), mcs.InstanceDNSAddress))
	publish(t, a, asking(single(3, false), mcs.InstanceDNSSRV))
	for _, want := range []struct {
		name    string
		qtype   uint16
		answers []string
	}{
		{"web-0.demo", dns.TypeA, []string{"10.10.0.0"}},
		{"web-0.demo", dns.TypeAAAA, []string{"fd00::1"}},
		{"web-1.demo", dns.TypeSRV, []string{"8080 tcp-10_10_0_1-8080.web-1.demo.", "9090 tcp-10_10_0_1-9090.web-1.demo."}},
		{"tcp-10_10_0_1-8080.web-1.demo", dns.TypeA, []string{"10.10.0.1"}},
		{"web-2.demo", dns.TypeA, []string{"10.10.0.2"}},
		{"web-3.demo", dns.TypeSRV, []string{"8080 tcp-10_10_0_3-8080.web-3.demo."}},
	} {
		within(t, 3*patience, fmt.Sprint(want.name, " ", dns.TypeToString[want.qtype], " ", want.answers), c.resolves(t, want.name, want.qtype, want.answers...))
	}
	// The annotation is that of the Kubernetes namespace, so that this one comes after a change of
	// it: the first service decides about the type of the Cloud Map namespace.
	publish(t, a, single(4, false))
	within(t, 3*patience, "a service that does not ask has instances", c.shows(t, webKey(4), "tcp-10_10_0_4-8080"))
	if got := c.lookup(t, "web-4.demo", dns.TypeA, "udp"); len(got) > 0 {
		t.Errorf("a service that does not ask has the addresses %v", got)
	}
}

// TestDNSFamiliesDiffer: clusters with different IP families share a service. Records of addresses
// show the endpoints of the cluster with the families of the service alone, and what the others
// lack is reported. SRV records show all.
func TestDNSFamiliesDiffer(t *testing.T) {
	dualStack := func(i int) mcs.Export {
		exp := webExport("cls1", i, 1)
		v6 := exp.Backends[0].Endpoints[0]
		v6.Address = netip.MustParseAddr(fmt.Sprint("fd00::", i+1))
		exp.Backends = append(exp.Backends, mcs.Backends{Ports: exp.Backends[0].Ports, Endpoints: []mcs.Endpoint{v6}})
		exp.Backends[0].Endpoints[0].Pod, exp.Backends[1].Endpoints[0].Pod = "web", "web"
		exp.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		return exp
	}
	singleStack := func(i int) mcs.Export {
		exp := webExport("cls2", i+90, 1)
		exp.Key = webKey(i)
		return exp
	}
	c := startDNSCloud(t)
	a, _ := c.resolving(t, cls1, dnsSettings(""))
	b, _ := c.resolving(t, cls2, dnsSettings(""))
	for i, first := range []*Registry{a, b} { // which creates the service
		publish(t, first, asking(map[*Registry]mcs.Export{a: dualStack(i), b: singleStack(i)}[first], mcs.InstanceDNSAddress))
		within(t, 3*patience, "the first export is shown", func() bool { return len(c.lookup(t, fmt.Sprintf("web-%d.demo", i), dns.TypeA, "udp")) == 1 })
	}
	publish(t, b, asking(singleStack(0), mcs.InstanceDNSAddress))
	publish(t, a, asking(dualStack(1), mcs.InstanceDNSAddress))
	publish(t, a, asking(dualStack(2), mcs.InstanceDNSSRV))
	publish(t, b, asking(singleStack(2), mcs.InstanceDNSSRV))

	within(t, 3*patience, "the single-stack endpoint is refused", warns(t, b, webKey(0), "AWS_INSTANCE_IPV6 is required", "it has DNS records A+AAAA"))
	within(t, 3*patience, "so is an IPv6 address", warns(t, a, webKey(1), "AWS_INSTANCE_IPV4 is required", "it has DNS records A (TTL"))
	for _, want := range []struct {
		name    string
		qtype   uint16
		answers []string
	}{
		{"web-0.demo", dns.TypeA, []string{"10.10.0.0"}}, // of cls1 alone
		{"web-0.demo", dns.TypeAAAA, []string{"fd00::1"}},
		{"web-1.demo", dns.TypeA, []string{"10.10.0.1", "10.10.0.91"}},
		{"web-1.demo", dns.TypeAAAA, nil},
		{"web-2.demo", dns.TypeSRV, []string{"8080 tcp-10_10_0_2-8080.web-2.demo.", "8080 tcp-10_10_0_92-8080.web-2.demo.", "8080 tcp-fd00__3-8080.web-2.demo."}},
	} {
		within(t, 3*patience, fmt.Sprint(want.name, " ", dns.TypeToString[want.qtype], " ", want.answers), c.resolves(t, want.name, want.qtype, want.answers...))
	}
}

// createForeign creates a private DNS namespace and a service in it as another client, with the
// tags that let the view write.
func (c *dnsCloud) createForeign(t *testing.T, service string, records ...types.RecordType) {
	t.Helper()
	tags := []types.Tag{{Key: aws.String("clusterset"), Value: aws.String("set1")}, {Key: aws.String("part"), Value: aws.String("view")}}
	out, err := c.sdk(admin).CreatePrivateDnsNamespace(t.Context(), &servicediscovery.CreatePrivateDnsNamespaceInput{
		Name: aws.String("demo"), Vpc: aws.String("vpc-12345678"), Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := c.client.AwaitOperation(t.Context(), aws.ToString(out.OperationId))
	if err != nil {
		t.Fatal(err)
	}
	in := &servicediscovery.CreateServiceInput{Name: aws.String(service), NamespaceId: aws.String(targets["NAMESPACE"]), Tags: tags}
	in.DnsConfig = &types.DnsConfig{}
	for _, record := range records {
		in.DnsConfig.DnsRecords = append(in.DnsConfig.DnsRecords, types.DnsRecord{TTL: aws.Int64(60), Type: record})
	}
	if _, err := c.sdk(admin).CreateService(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}

// TestDNSKeepsRecordsOfOthers: a service of the legacy controller, with SRV records, keeps them
// with all settings. What differs from the settings is reported.
func TestDNSKeepsRecordsOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		records mcs.InstanceDNS
		unready instances.Unready
		answers int
		warning string
	}{
		"no records are asked for": {"", "", 2, ""},
		"addresses":                {mcs.InstanceDNSAddress, "", 1, "it has DNS records SRV (TTL 60, MULTIVALUE) and not DNS records A (TTL 15, MULTIVALUE)"},
		"another TTL":              {mcs.InstanceDNSSRV, "", 1, "it has DNS records SRV (TTL 60, MULTIVALUE) and not DNS records SRV (TTL 15, MULTIVALUE)"},
		"health":                   {"", instances.UnreadyUnhealthy, 2, "it has no custom health check"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startDNSCloud(t)
			c.createForeign(t, webKey(0).Name, types.RecordTypeSrv)
			a, stop := c.resolving(t, cls1, dnsSettings(tc.unready))
			publish(t, a, withReady(asking(webExport("cls1", 0, 2), tc.records), true, false))
			within(t, 3*patience, "the answers", func() bool { return len(c.lookup(t, "web-0.demo", dns.TypeSRV, "udp")) == tc.answers })
			within(t, 3*patience, "what differs is reported", func() bool {
				warnings := strings.Join(a.view.Warnings(webKey(0)), "; ")
				return strings.Contains(warnings, tc.warning) && (warnings == "") == (tc.warning == "")
			})
			stop(registry.ErrLeave)
			s, ok := c.service(t, "demo", "web-0")
			if !ok || s.Records != api.RecordsSRV || s.TTL != 60 || s.HasHealth {
				t.Errorf("the service is %+v (exists: %t), want its SRV records with TTL 60", s, ok)
			}
		})
	}
}

// TestDNSInHTTPNamespace: a namespace without DNS is used as it is, and that is reported.
func TestDNSInHTTPNamespace(t *testing.T) {
	c := startDNSCloud(t)
	settings := dnsSettings("")
	settings.VPC = ""
	a, _ := c.resolving(t, cls1, settings)
	publish(t, a, asking(webExport("cls1", 0, 1), mcs.InstanceDNSAuto))
	within(t, 3*patience, "the instance is there", c.shows(t, webKey(0), "tcp-10_10_0_0-8080"))
	within(t, 3*patience, "it is reported", warns(t, a, webKey(0), "--instance-dns-vpc"))
}

// withHealth returns the IDs of the instances of web-0 with this health.
func (c *cloud) withHealth(t *testing.T, health string) (ids []string) {
	t.Helper()
	found, _, err := c.client.DiscoverInstances(t.Context(), "demo", "web-0", nil)
	if err != nil {
		return nil // there is no such service yet
	}
	for _, i := range found {
		if i.Health == health {
			ids = append(ids, i.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestHealthOut: endpoints that are not ready, and those of a drained cluster, are unhealthy; each
// change costs one request more.
func TestHealthOut(t *testing.T) {
	const first, second = "tcp-10_10_0_0-8080", "tcp-10_10_0_1-8080"
	c := startDNSCloud(t)
	settings := dnsSettings(instances.UnreadyUnhealthy)
	a, stop := c.resolving(t, cls1, settings)
	exp := webExport("cls1", 0, 2)
	shows := func(what string, healthy, unhealthy []string) {
		t.Helper()
		within(t, 3*patience, what, func() bool {
			return slices.Equal(c.withHealth(t, api.HealthHealthy), healthy) && slices.Equal(c.withHealth(t, api.HealthUnhealthy), unhealthy)
		})
	}
	health := func() int { return c.requests("UpdateInstanceCustomHealthStatus") }
	publish(t, a, withReady(exp, true, false))
	shows("a new instance has its health", []string{first}, []string{second})
	if n := health(); n != 0 {
		t.Errorf("%d requests for the health of new instances, want none", n)
	}
	publish(t, a, withReady(exp, true, true))
	shows("both are healthy", []string{first, second}, nil)
	if n := health(); n != 1 {
		t.Errorf("%d requests for the health of one instance, want 1", n)
	}
	a.SetProperties(mcs.Properties{mcs.PropertyDrain: "100%"})
	shows("the cluster is drained", nil, []string{first, second})
	a.SetProperties(mcs.Properties{mcs.PropertyDrain: "50%"})
	shows("a cluster that is drained in part is healthy", []string{first, second}, nil)
	drained := withReady(exp, true, true)
	drained.Drain = mcs.DrainForced
	publish(t, a, drained)
	shows("the export is drained", nil, []string{first, second})
	// Another client changes the health of an instance: the next read repairs it.
	within(t, 3*patience, "the writes are over", func() bool { return a.view.Pending() == 0 })
	s, _ := c.service(t, "demo", "web-0")
	if _, err := c.sdk(admin).UpdateInstanceCustomHealthStatus(t.Context(), &servicediscovery.UpdateInstanceCustomHealthStatusInput{
		ServiceId: aws.String(s.ID), InstanceId: aws.String(first), Status: types.CustomHealthStatusHealthy}); err != nil {
		t.Fatal(err)
	}
	shows("it is unhealthy again", nil, []string{first, second})
	stop(nil)
	// A restart finds the health as it is.
	before := health()
	a, stop = c.resolving(t, cls1, settings)
	publish(t, a, drained)
	within(t, 3*patience, "the restarted controller has read it", func() bool { return a.view.Pending() == 0 && isExported(t, a, webKey(0))() })
	shows("nothing changes", nil, []string{first, second})
	if n := health(); n != before {
		t.Errorf("%d requests for health after a restart, want none", n-before)
	}
	stop(nil)
	// Without health, what was registered as unhealthy is registered again.
	settings.Unready = instances.UnreadyMark
	a, _ = c.resolving(t, cls1, settings)
	publish(t, a, withReady(exp, true, true))
	shows("without the setting all are healthy", []string{first, second}, nil)
}

// TestHealthOut_Delayed: health that is changed back before reads show the change is right in the
// end, also after an instance that was just registered.
func TestHealthOut_Delayed(t *testing.T) {
	c := startDNSCloudWith(t, cloudmaplocal.Options{
		Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{
			HealthDelay:      cloudmaplocal.Duration(300 * time.Millisecond),
			OperationDelay:   cloudmaplocal.Duration(50 * time.Millisecond),
			ConsistencyDelay: cloudmaplocal.Duration(100 * time.Millisecond),
		},
	})
	cfg := fast(cls1)
	cfg.InstanceView, cfg.Instances, cfg.times.instanceResync = true, dnsSettings(instances.UnreadyUnhealthy), time.Minute
	a := c.registry(t, cfg)
	start(t, a)
	within(t, 3*patience, "cls1 has joined", func() bool { return joined(a) })
	exp := webExport("cls1", 0, 2)
	for _, ready := range []bool{false, true, false, true} {
		written := c.requests("RegisterInstance")
		publish(t, a, withReady(exp, true, ready))
		within(t, 3*patience, "it is written", func() bool { return a.view.Pending() == 0 && c.requests("RegisterInstance") > written })
	}
	within(t, 3*patience, "nothing is unhealthy", func() bool { return len(c.withHealth(t, api.HealthHealthy)) == 2 })
	calls := c.requests("UpdateInstanceCustomHealthStatus")
	publish(t, a, withReady(exp, true, false))
	within(t, 3*patience, "one is unhealthy", func() bool { return len(c.withHealth(t, api.HealthUnhealthy)) == 1 })
	if n := c.requests("UpdateInstanceCustomHealthStatus") - calls; n != 1 {
		t.Errorf("%d requests for one change of health, want 1", n)
	}
}

// TestEveryDNSStatementIsNeeded drops one statement at a time: some request is then denied.
func TestEveryDNSStatementIsNeeded(t *testing.T) {
	for _, file := range dnsPolicies[len(viewPolicies):] {
		var document struct{ Statement []struct{ Sid string } }
		if err := json.Unmarshal(policyDocument(t, file, cls1), &document); err != nil {
			t.Fatal(err)
		}
		for _, s := range document.Statement {
			t.Run(file+" "+s.Sid, func(t *testing.T) {
				c := startDNSCloudWith(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{DenyAtOnce: true}}, file+" "+s.Sid)
				denied := func() bool { return len(c.denials(t)) > 0 }
				a, stop := c.resolving(t, cls1, dnsSettings(instances.UnreadyUnhealthy))
				exp := asking(webExport("cls1", 0, 2), mcs.InstanceDNSAuto)
				for _, ready := range []bool{true, false} {
					publish(t, a, withReady(exp, true, ready))
					within(t, 3*patience, "it is written or denied", func() bool {
						return denied() || len(c.lookup(t, "web-0.demo", dns.TypeA, "udp")) == map[bool]int{true: 2, false: 1}[ready]
					})
				}
				if !denied() {
					if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
						t.Fatal(err)
					}
				}
				within(t, 3*patience, "something is denied", denied)
				stop(nil)
			})
		}
	}
}

// TestReadinessRequests compares the model, of which docs/cost.md has the figures, with the
// requests of the view. In virtual time, because a record may be written twice where the machine is
// slow.
func TestReadinessRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		records mcs.InstanceDNS
		unready instances.Unready
		ports   int
		want    map[string]int
	}{
		"marked":                     {"", instances.UnreadyMark, 2, map[string]int{"ListInstances": 1, "RegisterInstance": 2}},
		"deregistered":               {"", instances.UnreadyDeregister, 2, map[string]int{"ListInstances": 1, "DeregisterInstance": 2}},
		"addresses, two ports":       {mcs.InstanceDNSAddress, instances.UnreadyMark, 2, map[string]int{"GetOperation": 1, "ListInstances": 1, "DeregisterInstance": 1}},
		"SRV records":                {mcs.InstanceDNSSRV, instances.UnreadyMark, 2, map[string]int{"GetOperation": 2, "ListInstances": 1, "DeregisterInstance": 2}},
		"health":                     {"", instances.UnreadyUnhealthy, 1, map[string]int{"ListInstances": 1, "DiscoverInstances": 1, "RegisterInstance": 1, "UpdateInstanceCustomHealthStatus": 1}},
		"SRV records and health":     {mcs.InstanceDNSSRV, instances.UnreadyUnhealthy, 2, map[string]int{"GetOperation": 2, "ListInstances": 1, "DiscoverInstances": 1, "RegisterInstance": 2, "UpdateInstanceCustomHealthStatus": 2}},
		"address records and health": {mcs.InstanceDNSAuto, instances.UnreadyUnhealthy, 1, map[string]int{"GetOperation": 1, "ListInstances": 1, "DiscoverInstances": 1, "RegisterInstance": 1, "UpdateInstanceCustomHealthStatus": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			exp := asking(webExport("cls1", 0, 2), tc.records)
			for len(exp.Ports) < tc.ports {
				exp.Ports = append(exp.Ports, mcs.Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090})
				exp.Backends[0].Ports = append(exp.Backends[0].Ports, mcs.BackendPort{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090})
			}
			settings := dnsSettings(tc.unready)
			if diff := cmp.Diff(tc.want, settings.ReadinessRequests(exp, types.NamespaceTypeDnsPrivate)); diff != "" {
				t.Errorf("the model (-want +got):\n%s", diff)
			}
			operations := []string{"ListInstances", "RegisterInstance", "RegisterInstance members", "DeregisterInstance", "UpdateInstanceCustomHealthStatus", "GetOperation"}
			want := map[string]int{}
			for _, o := range operations {
				want[o] = tc.want[o]
			}
			want["RegisterInstance"]++ // the page
			want["RegisterInstance members"] = 1
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				p := w.begin(cls1, nil, func(cfg *Config) {
					cfg.InstanceView, cfg.Instances, cfg.times.instanceResync, cfg.times.Audit, cfg.HeartbeatInterval = true, settings, time.Hour, time.Hour, time.Hour
				})
				publish(t, p.Registry, exp)
				w.until(2*time.Minute, "it is written, and the first list is over", func() bool {
					return isExported(t, p.Registry, exp.Key)() && p.view.Pending() == 0 && w.count()["RegisterInstance"] > 2
				})
				time.Sleep(5 * time.Minute)
				before := w.count()
				publish(t, p.Registry, withReady(exp, false, true))
				time.Sleep(time.Minute)
				after, took := w.count(), map[string]int{}
				for _, o := range operations {
					took[o] = after[o] - before[o]
				}
				if diff := cmp.Diff(want, took); diff != "" {
					t.Errorf("the requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestDNSWithoutRights: without a statement of the policies, the warning at the export names the
// policy that has it, and the export itself works. AWS does not document whether it denies requests
// without rights in Route 53, or only their operations.
func TestDNSWithoutRights(t *testing.T) {
	for dropped, want := range map[string]string{
		"instance-dns.json CreatePrivateNamespaces": "private DNS namespaces of --instance-dns-vpc need instance-dns.json",
		"instance-dns.json CreateZones":             "private DNS namespaces of --instance-dns-vpc need instance-dns.json",
		"instance-dns.json ChangeRecords":           "the service has DNS records, which need instance-dns.json",
		"instance-health.json WriteHealth":          "--unready-instances=unhealthy and --stale-instances=unhealthy need instance-health.json",
	} {
		for _, atOnce := range []bool{false, true} {
			t.Run(fmt.Sprint(dropped, ", denied at once: ", atOnce), func(t *testing.T) {
				c := startDNSCloudWith(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{DenyAtOnce: atOnce}}, dropped)
				a, _ := c.resolving(t, cls1, dnsSettings(instances.UnreadyUnhealthy))
				exp := asking(webExport("cls1", 0, 2), mcs.InstanceDNSAuto)
				publish(t, a, exp)
				within(t, 3*patience, "it is written, or that it is denied is reported", func() bool {
					return len(look(t, a, webKey(0)).Local.Warnings) > 0 || len(c.lookup(t, "web-0.demo", dns.TypeA, "udp")) == 2
				})
				publish(t, a, withReady(exp, true, false))
				within(t, 3*patience, "the export works, and the warning names the policy", func() bool {
					return isExported(t, a, webKey(0))() && strings.Contains(strings.Join(look(t, a, webKey(0)).Local.Warnings, "; "), want)
				})
			})
		}
	}
}

// TestDNSWithoutRights_Removal: without the right to change records, DNS answers an endpoint that
// is gone. The warning at the export says so.
func TestDNSWithoutRights_Removal(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		t.Run(fmt.Sprint("denied at once: ", atOnce), func(t *testing.T) {
			c := startDNSCloudWith(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{DenyAtOnce: atOnce}}, "instance-dns.json ChangeRecords")
			c.createForeign(t, webKey(0).Name, types.RecordTypeA)
			exp := asking(webExport("cls1", 0, 2), mcs.InstanceDNSAuto)
			for _, i := range instances.FromExport(exp, "set1", "test") { // with the right
				c.put(t, "demo", webKey(0).Name, i)
			}
			a, _ := c.resolving(t, cls1, dnsSettings(""))
			publish(t, a, withReady(exp, true))
			within(t, 3*patience, "the warning names the policy", func() bool {
				return strings.Contains(strings.Join(look(t, a, webKey(0)).Local.Warnings, "; "), "the service has DNS records, which need instance-dns.json")
			})
			if got := len(c.lookup(t, "web-0.demo", dns.TypeA, "udp")); got != 2 {
				t.Errorf("DNS has %d answers, want 2", got)
			}
		})
	}
}
