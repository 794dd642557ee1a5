package cloudmaplocal

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/miekg/dns"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// dnsServer is a server that answers DNS too, with a private namespace.
type dnsServer struct {
	*testServer
	address, namespace string
}

func newDNSServer(t *testing.T, opts Options) *dnsServer {
	w := &dnsServer{testServer: newTestServer(t, opts)}
	listener, err := w.server.ListenDNS("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	w.address, w.namespace = listener.Addr(), w.privateNamespace("demo.example")
	return w
}

func (w *testServer) privateNamespace(name string) string {
	w.t.Helper()
	out, err := w.CreatePrivateDnsNamespace(w.t.Context(), &sd.CreatePrivateDnsNamespaceInput{Name: &name, Vpc: new("vpc-1")})
	return w.operation(must(w.t, out, err).OperationId).Targets["NAMESPACE"]
}

// dnsService creates a service with records and returns its ID.
func (w *dnsServer) dnsService(name string, policy types.RoutingPolicy, custom bool, records ...types.RecordType) string {
	w.t.Helper()
	in := &sd.CreateServiceInput{NamespaceId: &w.namespace, Name: &name, DnsConfig: &types.DnsConfig{RoutingPolicy: policy}}
	for _, record := range records {
		in.DnsConfig.DnsRecords = append(in.DnsConfig.DnsRecords, types.DnsRecord{Type: record, TTL: new(int64(7))})
	}
	if custom {
		in.HealthCheckCustomConfig = &types.HealthCheckCustomConfig{}
	}
	out, err := w.CreateService(w.t.Context(), in)
	return *must(w.t, out, err).Service.Id
}

// query sends a question by UDP or TCP.
func (w *dnsServer) query(network, name string, qtype uint16) *dns.Msg {
	w.t.Helper()
	client := dns.Client{Net: network, Timeout: 10 * time.Second}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, qtype), w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply
}

// answers returns the records of an answer in their text form, sorted, with single blanks.
func (w *dnsServer) answers(name string, qtype uint16) []string {
	w.t.Helper()
	return texts(w.query("udp", name, qtype).Answer)
}

func texts(records []dns.RR) []string {
	out := mapSlice(records, func(rr dns.RR) string { return strings.Join(strings.Fields(rr.String()), " ") })
	slices.Sort(out)
	return out
}

func TestDNS_Records(t *testing.T) {
	w := newDNSServer(t, Options{})
	web := w.dnsService("web", "", false, "A")
	w.register(web, "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"})
	w.register(web, "b", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.2"})
	both := w.dnsService("both", "", false, "A", "AAAA")
	w.register(both, "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.3", "AWS_INSTANCE_IPV6": "fd00::3"})
	srv := w.dnsService("_web._tcp", "", false, "SRV")
	w.register(srv, "tcp-10_0_0_4-80", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.4", "AWS_INSTANCE_PORT": "80"})
	w.register(srv, "tcp-fd00__4-80", map[string]string{"AWS_INSTANCE_IPV6": "fd00::4", "AWS_INSTANCE_PORT": "80"})
	cname := w.dnsService("alias", "WEIGHTED", false, "CNAME")
	w.register(cname, "a", map[string]string{"AWS_INSTANCE_CNAME": "example.com"})
	w.dnsService("empty", "", false, "A")
	w.register(w.dnsService(".", "", false, "A"), "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.9"})

	none := []string{}
	for _, tc := range []struct {
		name  string
		qtype uint16
		rcode int
		want  []string
	}{
		{"web.demo.example.", dns.TypeA, 0, []string{"web.demo.example. 7 IN A 10.0.0.1", "web.demo.example. 7 IN A 10.0.0.2"}},
		{"WEB.demo.Example.", dns.TypeA, 0, []string{"WEB.demo.Example. 7 IN A 10.0.0.1", "WEB.demo.Example. 7 IN A 10.0.0.2"}},
		{"web.demo.example.", dns.TypeAAAA, 0, none},
		{"both.demo.example.", dns.TypeA, 0, []string{"both.demo.example. 7 IN A 10.0.0.3"}},
		{"both.demo.example.", dns.TypeAAAA, 0, []string{"both.demo.example. 7 IN AAAA fd00::3"}},
		{"_web._tcp.demo.example.", dns.TypeSRV, 0, []string{
			"_web._tcp.demo.example. 7 IN SRV 1 1 80 tcp-10_0_0_4-80._web._tcp.demo.example.",
			"_web._tcp.demo.example. 7 IN SRV 1 1 80 tcp-fd00__4-80._web._tcp.demo.example."}},
		{"tcp-10_0_0_4-80._web._tcp.demo.example.", dns.TypeA, 0, []string{"tcp-10_0_0_4-80._web._tcp.demo.example. 7 IN A 10.0.0.4"}},
		{"tcp-fd00__4-80._web._tcp.demo.example.", dns.TypeAAAA, 0, []string{"tcp-fd00__4-80._web._tcp.demo.example. 7 IN AAAA fd00::4"}},
		{"tcp-10_0_0_4-80._web._tcp.demo.example.", dns.TypeAAAA, 0, none},
		{"a.web.demo.example.", dns.TypeA, dns.RcodeNameError, none},
		{"_tcp.demo.example.", dns.TypeA, 0, none},
		{"alias.demo.example.", dns.TypeA, 0, []string{"alias.demo.example. 7 IN CNAME example.com."}},
		{"empty.demo.example.", dns.TypeA, dns.RcodeNameError, none},
		{"missing.demo.example.", dns.TypeA, dns.RcodeNameError, none},
		{"demo.example.", dns.TypeA, 0, []string{"demo.example. 7 IN A 10.0.0.9"}},
		{"demo.example.", dns.TypeSOA, 0, []string{"demo.example. 15 IN SOA ns-0.awsdns-00.com. awsdns-hostmaster.amazon.com. 1 7200 900 1209600 86400"}},
		{"xdemo.example.", dns.TypeA, dns.RcodeRefused, none},
		{"example.com.", dns.TypeA, dns.RcodeRefused, none},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(tc.name+" "+dns.TypeToString[tc.qtype]+" "+network, func(t *testing.T) {
				reply := w.query(network, tc.name, tc.qtype)
				assertEqual(t, tc.want, texts(reply.Answer))
				assertEqual(t, tc.rcode, reply.Rcode)
				if isNegative := len(tc.want) == 0 && tc.rcode != dns.RcodeRefused; isNegative != (len(reply.Ns) == 1) {
					t.Errorf("authority %v: a negative answer has the SOA, no other one", reply.Ns)
				}
			})
		}
	}
	w.deregister(web, "a")
	assertEqual(t, []string{"web.demo.example. 7 IN A 10.0.0.2"}, w.answers("web.demo.example.", dns.TypeA))
}

// TestDNS_Choice: Route 53 answers eight instances at most, or one, and no unhealthy ones unless
// all are.
func TestDNS_Choice(t *testing.T) {
	w := newDNSServer(t, Options{Behaviors: Behaviors{HealthDelay: Duration(30 * time.Second)}})
	many, one := w.dnsService("many", "MULTIVALUE", true, "A"), w.dnsService("one", "WEIGHTED", true, "A")
	for i := range 12 {
		for _, svc := range []string{many, one} {
			status := map[bool]string{true: "HEALTHY", false: "UNHEALTHY"}[i < 10]
			w.register(svc, fmt.Sprint("i", i), map[string]string{"AWS_INSTANCE_IPV4": fmt.Sprint("10.0.0.", i), "AWS_INIT_HEALTH_STATUS": status})
		}
	}
	seen := map[string]bool{}
	for range 200 {
		answer := w.query("udp", "many.demo.example.", dns.TypeA).Answer
		assertEqual(t, 8, len(answer))
		for _, rr := range answer {
			seen[rr.(*dns.A).A.String()] = true
		}
		answer = w.query("udp", "one.demo.example.", dns.TypeA).Answer
		assertEqual(t, 1, len(answer))
		if last := answer[0].(*dns.A).A.To4()[3]; last >= 10 {
			t.Fatalf("10.0.0.%d is unhealthy", last)
		}
	}
	if len(seen) != 10 || seen["10.0.0.10"] || seen["10.0.0.11"] {
		t.Errorf("answers had %v, want the ten healthy instances", sortedKeys(seen))
	}
	for i := range 10 {
		_, err := w.UpdateInstanceCustomHealthStatus(t.Context(), &sd.UpdateInstanceCustomHealthStatusInput{
			ServiceId: &many, InstanceId: new(fmt.Sprint("i", i)), Status: types.CustomHealthStatusUnhealthy})
		if err != nil {
			t.Fatal(err)
		}
	}
	has := func(address string) bool {
		for range 200 {
			if slices.Contains(w.answers("many.demo.example.", dns.TypeA), "many.demo.example. 7 IN A "+address) {
				return true
			}
		}
		return false
	}
	if has("10.0.0.11") {
		t.Error("an unhealthy instance was answered while others are healthy")
	}
	w.clock.Advance(30 * time.Second)
	if !has("10.0.0.11") {
		t.Error("with no healthy instance, all should be answered")
	}
}

// TestDNS_Size: an answer that does not fit into a datagram is truncated, and complete by TCP or
// with EDNS.
func TestDNS_Size(t *testing.T) {
	w := newDNSServer(t, Options{})
	svc := w.dnsService(strings.Repeat("long", 15), "", false, "SRV")
	for i := range 8 {
		w.register(svc, fmt.Sprint(strings.Repeat("i", 60), i), map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "80"})
	}
	name := strings.Repeat("long", 15) + ".demo.example."
	if reply := w.query("udp", name, dns.TypeSRV); !reply.Truncated { // the client reads 512 bytes
		t.Error("by UDP: not truncated")
	}
	if reply := w.query("tcp", name, dns.TypeSRV); reply.Truncated || len(reply.Answer) != 8 {
		t.Errorf("by TCP: truncated: %t with %d records, want 8", reply.Truncated, len(reply.Answer))
	}
	client := dns.Client{Net: "udp", UDPSize: 4096}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeSRV).SetEdns0(4096, false), w.address)
	if err != nil || reply.Truncated || len(reply.Answer) != 8 {
		t.Errorf("with EDNS: %v, %v, want 8 records", reply, err)
	}
}

// TestDNS_FollowsTheReplica: DNS shows what DiscoverInstances shows, after the same delay.
func TestDNS_FollowsTheReplica(t *testing.T) {
	w := newDNSServer(t, Options{Behaviors: ReadsLate(500 * time.Millisecond)})
	svc := w.dnsService("web", "", false, "A")
	w.register(svc, "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"})
	assertEqual(t, []string{}, w.answers("web.demo.example.", dns.TypeA))
	w.clock.Advance(500 * time.Millisecond)
	assertEqual(t, []string{"web.demo.example. 7 IN A 10.0.0.1"}, w.answers("web.demo.example.", dns.TypeA))
}

// TestDNS_LongestZone: the zone of the longest name answers, also if the name exists in the other
// one.
func TestDNS_LongestZone(t *testing.T) {
	w := newDNSServer(t, Options{})
	w.register(w.dnsService("web.inner", "", false, "A"), "a", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"})
	assertEqual(t, 1, len(w.answers("web.inner.demo.example.", dns.TypeA)))
	w.privateNamespace("inner.demo.example")
	assertEqual(t, dns.RcodeNameError, w.query("udp", "web.inner.demo.example.", dns.TypeA).Rcode)
}

func TestSRVInstanceIDs(t *testing.T) {
	srv := service{DNS: &wire.DNSConfig{DnsRecords: []wire.DNSRecord{{Type: "SRV"}}}}
	for id, want := range map[string]bool{
		"tcp-10_0_0_1-80": true, "a": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "a.b": false, "a/b": false, "a:b": false, "a@b": false,
	} {
		wantValid(t, checkInstanceIDFor(&srv, id), want)
		wantValid(t, checkInstanceIDFor(&service{DNS: &wire.DNSConfig{DnsRecords: []wire.DNSRecord{{Type: "A"}}}}, id), true)
	}
}

// TestRoute53Rights: what changes hosted zones and their records needs rights in Route 53, and no
// other request does. Without them the operation fails, or the request.
func TestRoute53Rights(t *testing.T) {
	const cloudMap = `{"Effect":"Allow","Action":"servicediscovery:*","Resource":"*"}`
	zone := func(actions string) string {
		return `{"Effect":"Allow","Action":[` + actions + `],"Resource":"arn:aws:route53:::hostedzone/*"}`
	}
	everywhere := func(actions string) string { return `{"Effect":"Allow","Action":[` + actions + `],"Resource":"*"}` }
	change := []string{zone(`"route53:ChangeResourceRecordSets","route53:GetHostedZone"`), everywhere(`"route53:ListHostedZonesByName"`)}
	create := []string{everywhere(`"route53:CreateHostedZone","route53:ListHostedZonesByName","ec2:DescribeVpcs","ec2:DescribeRegions"`), zone(`"route53:GetHostedZone"`)}
	remove := []string{zone(`"route53:DeleteHostedZone","route53:GetHostedZone"`), everywhere(`"route53:ListHostedZonesByName"`)}
	type ids struct{ web, http, empty string }
	createZone := func(w *testServer, _ ids) (*string, error) {
		out, err := w.CreatePrivateDnsNamespace(w.t.Context(), &sd.CreatePrivateDnsNamespaceInput{Name: new("other.example"), Vpc: new("vpc-1")})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	}
	register := func(w *testServer, svc string) (*string, error) {
		out, err := w.RegisterInstance(w.t.Context(), &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a"),
			Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"}})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	}
	registerWeb := func(w *testServer, in ids) (*string, error) { return register(w, in.web) }
	deregister := func(w *testServer, in ids) (*string, error) {
		out, err := w.DeregisterInstance(w.t.Context(), &sd.DeregisterInstanceInput{ServiceId: &in.web, InstanceId: new("there")})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	}
	deleteZone := func(w *testServer, in ids) (*string, error) {
		out, err := w.DeleteNamespace(w.t.Context(), &sd.DeleteNamespaceInput{Id: &in.empty})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	}
	for _, tc := range []struct {
		name       string
		statements []string
		do         func(*testServer, ids) (operation *string, err error)
		denied     string // the action
	}{
		{"create a zone", create, createZone, ""},
		{"create a zone without rights", nil, createZone, "route53:CreateHostedZone"},
		{"create a zone with other rights", change, createZone, "route53:CreateHostedZone"},
		{"register", change, registerWeb, ""},
		{"register without rights", nil, registerWeb, "route53:ChangeResourceRecordSets"},
		{"register with a right for no zone", change[1:], registerWeb, "route53:ChangeResourceRecordSets"},
		{"register in a service without records", nil, func(w *testServer, in ids) (*string, error) { return register(w, in.http) }, ""},
		{"deregister", change, deregister, ""},
		{"deregister without rights", nil, deregister, "route53:ChangeResourceRecordSets"},
		{"delete a zone", remove, deleteZone, ""},
		{"delete a zone without rights", nil, deleteZone, "route53:DeleteHostedZone"},
		{"update health", nil, func(w *testServer, in ids) (*string, error) {
			_, err := w.UpdateInstanceCustomHealthStatus(w.t.Context(), &sd.UpdateInstanceCustomHealthStatusInput{
				ServiceId: &in.web, InstanceId: new("there"), Status: types.CustomHealthStatusUnhealthy})
			return nil, err
		}, ""},
	} {
		for _, atOnce := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, ", denied at once: ", atOnce), func(t *testing.T) {
				w := newDNSServer(t, Options{Behaviors: Behaviors{DenyAtOnce: atOnce}, AccessKeys: []AccessKey{
					{ID: "AKIDEXAMPLE"}, {ID: "LIMITED", Policies: []iampolicy.Policy{policy(t, append([]string{cloudMap}, tc.statements...)...)}}}})
				in := ids{web: w.dnsService("web", "", true, "A"), empty: w.privateNamespace("empty.example")}
				w.register(in.web, "there", map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.2"})
				api, err := w.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: &w.namespace, Name: new("api"), Type: types.ServiceTypeOptionHttp})
				in.http = *must(t, api, err).Service.Id
				id, err := tc.do(&testServer{t: t, url: w.url, Client: w.client("us-east-1", "LIMITED", "s")}, in)
				denied := "is not authorized to perform: " + tc.denied + " on resource: "
				if tc.denied != "" && atOnce {
					if err == nil || !strings.Contains(err.Error(), "AccessDeniedException") || !strings.Contains(err.Error(), denied) {
						t.Errorf("error %v, want a denial of %s", err, tc.denied)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if id == nil {
					return // there is no operation
				}
				op := w.operation(id)
				if tc.denied == "" {
					assertEqual(t, types.OperationStatusSuccess, op.Status)
					return
				}
				assertEqual(t, types.OperationStatusFail, op.Status)
				assertEqual(t, "ACCESS_DENIED", *op.ErrorCode)
				if !strings.Contains(*op.ErrorMessage, denied) {
					t.Errorf("message %q, want a denial of %s", *op.ErrorMessage, tc.denied)
				}
				// nothing has changed
				assertEqual(t, 1, len(w.answers("web.demo.example.", dns.TypeA)))
			})
		}
	}
}

func TestListenDNS_InUse(t *testing.T) {
	w := newDNSServer(t, Options{})
	if _, err := w.server.ListenDNS(w.address); err == nil || !strings.Contains(err.Error(), "for DNS") {
		t.Errorf("error %v, want one for the address", err)
	}
	if _, err := netip.ParseAddrPort(w.address); err != nil {
		t.Error(err)
	}
}
