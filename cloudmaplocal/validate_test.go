package cloudmaplocal

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

func TestText(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	tests := []struct {
		name  string
		text  textConstraint
		value string
		want  bool
	}{
		{"instance id of the tutorial", instanceIDText, "tcp-10_10_21_133-80", true},
		{"instance id with every special character", instanceIDText, "a_/:.@-Z9", true},
		{"instance id of 64", instanceIDText, long(64), true},
		{"instance id of 65", instanceIDText, long(65), false},
		{"instance id empty", instanceIDText, "", false},
		{"instance id with space", instanceIDText, "a b", false},
		{"instance id with brackets", instanceIDText, "[::1]", false},

		{"key of 255", attributeKey, long(255), true},
		{"key of 256", attributeKey, long(256), false},
		{"key empty", attributeKey, "", false},
		{"key with space", attributeKey, "a b", false},
		{"key with punctuation", attributeKey, "multicluster.k8s.io/x=!~", true},
		{"key beyond ASCII", attributeKey, "ä", false},

		{"value empty", attributeValue, "", true},
		{"value of 1024", attributeValue, long(1024), true},
		{"value of 1025", attributeValue, long(1025), false},
		{"value with inner space and tab", attributeValue, "a b\tc", true},
		{"value with leading space", attributeValue, " a", false},
		// the last group of the pattern is optional
		{"value with trailing space", attributeValue, "a ", true},
		{"value beyond ASCII", attributeValue, "ü", false},
		{"value with newline", attributeValue, "a\nb", false},

		{"service name", serviceNameText, "nginx-hello", true},
		{"service name of one character", serviceNameText, "a", true},
		{"service name of one underscore", serviceNameText, "_", false},
		{"service name for SRV", serviceNameText, "_http._tcp", true},
		{"service name of a dot", serviceNameText, ".", true},
		{"service label of 63", serviceNameText, long(63), true},
		{"service label of 64", serviceNameText, long(64), false},
		{"service name of 127", serviceNameText, long(63) + "." + long(63), true},
		{"service name of 128", serviceNameText, long(62) + "." + long(62) + ".aa", false},
		{"service name ending with a hyphen", serviceNameText, "a-", false},
		{"service name with an empty label", serviceNameText, "a..b", false},

		{"HTTP namespace of 1024", httpNameText, long(1024), true},
		{"HTTP namespace of 1025", httpNameText, long(1025), false},
		{"HTTP namespace with space", httpNameText, "a b", false},
		{"private namespace of 253", privateNameText, long(253), true},
		{"private namespace of 254", privateNameText, long(254), false},
		{"public namespace", publicNameText, "example.com", true},
		{"public namespace without dot", publicNameText, "example", false},

		{"request id of 64", requestIDText, long(64), true},
		{"request id of 65", requestIDText, long(65), false},
		{"description of 1024 letters of two bytes", descriptionText, strings.Repeat("ü", 1024), true},
		{"description of 1025", descriptionText, long(1025), false},
		{"tag key of 129", tagKeyText, long(129), false},
		{"tag value of 256", tagValueText, long(256), true},
		{"tag value of 257", tagValueText, long(257), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantValid(t, tt.text.check(tt.value), tt.want)
		})
	}
}

// wantValid fails the test unless err is InvalidInput or, if valid, nil.
func wantValid(t *testing.T, err error, valid bool) {
	t.Helper()
	if valid && err != nil {
		t.Errorf("error = %v, want none", err)
	}
	if !valid {
		wantCode(t, err, "InvalidInput")
	}
}

func TestNamespaceName(t *testing.T) {
	tests := []struct {
		kind, name string
		want       bool
	}{
		{kindHTTP, "mcs.prod", true},
		{kindHTTP, "arn:aws:x", false},
		{kindPrivate, "arn:aws:x", false},
		{kindPrivate, "local", true},
		{kindPublic, "local", false},
		{kindPublic, "a.b", true},
	}
	for _, tt := range tests {
		t.Run(tt.kind+" "+tt.name, func(t *testing.T) {
			wantValid(t, checkNamespaceName(tt.kind, tt.name), tt.want)
		})
	}
}

func TestInstanceAttributes(t *testing.T) {
	custom := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[numbered("k", i)] = "v"
		}
		return m
	}
	// sized has keys and values of n characters together.
	sized := func(n int) map[string]string {
		m := map[string]string{}
		for i := 0; n > 0; i++ {
			part := min(n, 1000)
			m[string(rune('a'+i))] = strings.Repeat("x", part-1)
			n -= part
		}
		return m
	}
	tests := []struct {
		name       string
		attributes map[string]string
		want       bool
	}{
		{"none", map[string]string{}, true},
		{"30 custom", custom(30), true},
		{"31 custom", custom(31), false},
		{"30 custom and AWS's own", merge(custom(30), map[string]string{attrIPv4: "10.0.0.1", attrPort: "80"}), true},
		{"5,000 characters", sized(5000), true},
		{"5,001 characters", sized(5001), false},
		{"both families", map[string]string{attrIPv4: "10.0.0.1", attrIPv6: "fd00::1"}, true},
		{"IPv6 as IPv4", map[string]string{attrIPv4: "fd00::1"}, false},
		{"IPv4 as IPv6", map[string]string{attrIPv6: "10.0.0.1"}, false},
		{"IPv6 with zone", map[string]string{attrIPv6: "fe80::1%eth0"}, false},
		{"port 65535", map[string]string{attrPort: "65535"}, true},
		{"port 65536", map[string]string{attrPort: "65536"}, false},
		{"port by name", map[string]string{attrPort: "http"}, false},
		{"initial health", map[string]string{attrInitialHealth: "UNHEALTHY"}, true},
		{"unknown initial health", map[string]string{attrInitialHealth: "UNKNOWN"}, false},
		{"EC2 instance with health", map[string]string{attrEC2: "i-1", attrInitialHealth: "HEALTHY"}, true},
		{"EC2 instance with anything else", map[string]string{attrEC2: "i-1", "a": "b"}, false},
		{"alias with address", map[string]string{attrAlias: "x.elb.amazonaws.com", attrIPv4: "10.0.0.1"}, false},
		{"alias with custom attribute", map[string]string{attrAlias: "x.elb.amazonaws.com", "a": "b"}, true},
		{"bad key", map[string]string{"a b": ""}, false},
		{"bad value", map[string]string{"a": " b"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantValid(t, checkInstanceAttributes(tt.attributes), tt.want)
		})
	}
}

func TestAttributesForService(t *testing.T) {
	dns := func(policy string, types ...string) *wire.DNSConfig {
		return &wire.DNSConfig{RoutingPolicy: policy, DnsRecords: mapSlice(types, func(s string) wire.DNSRecord { return wire.DNSRecord{Type: s} })}
	}
	tests := []struct {
		name       string
		svc        service
		kind       string
		attributes map[string]string
		want       bool
	}{
		{"HTTP needs nothing", service{}, kindHTTP, map[string]string{"a": "b"}, true},
		{"health without custom check", service{}, kindHTTP, map[string]string{attrInitialHealth: healthy}, false},
		{"health with custom check", service{CustomHealth: &wire.HealthCheckCustomConfig{}}, kindHTTP, map[string]string{attrInitialHealth: healthy}, true},
		{"health check without port", service{HealthCheck: &wire.HealthCheckConfig{}}, kindHTTP, map[string]string{attrIPv4: "1.1.1.1"}, false},
		{"EC2 in DNS", service{}, kindPrivate, map[string]string{attrEC2: "i-1"}, false},
		{"A", service{DNS: dns(routingMultivalue, "A")}, kindPrivate, map[string]string{attrIPv4: "1.1.1.1"}, true},
		{"A without address", service{DNS: dns(routingMultivalue, "A")}, kindPrivate, map[string]string{attrIPv6: "::1"}, false},
		{"A and AAAA with one address", service{DNS: dns(routingMultivalue, "A", "AAAA")}, kindPrivate, map[string]string{attrIPv4: "1.1.1.1"}, false},
		{"SRV", service{DNS: dns(routingMultivalue, "SRV")}, kindPrivate, map[string]string{attrIPv6: "::1", attrPort: "1"}, true},
		{"SRV without port", service{DNS: dns(routingMultivalue, "SRV")}, kindPrivate, map[string]string{attrIPv6: "::1"}, false},
		{"SRV without address", service{DNS: dns(routingMultivalue, "SRV")}, kindPrivate, map[string]string{attrPort: "1"}, false},
		{"CNAME without name", service{DNS: dns(routingWeighted, "CNAME")}, kindPrivate, map[string]string{attrIPv4: "1.1.1.1"}, false},
		{"alias", service{DNS: dns(routingWeighted, "A")}, kindPrivate, map[string]string{attrAlias: "x"}, true},
		{"alias in multivalue", service{DNS: dns(routingMultivalue, "A")}, kindPrivate, map[string]string{attrAlias: "x"}, false},
		{"alias for SRV", service{DNS: dns(routingWeighted, "SRV")}, kindPrivate, map[string]string{attrAlias: "x"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantValid(t, checkAttributesFor(&tt.svc, tt.kind, tt.attributes), tt.want)
		})
	}
}

func TestNewService(t *testing.T) {
	records := func(types ...string) *wire.DNSConfig {
		return &wire.DNSConfig{DnsRecords: mapSlice(types, func(s string) wire.DNSRecord { return wire.DNSRecord{Type: s, TTL: aws.Int64(60)} })}
	}
	weighted := func(d *wire.DNSConfig) *wire.DNSConfig { d.RoutingPolicy = routingWeighted; return d }
	check := &wire.HealthCheckConfig{Type: "TCP"}
	tests := []struct {
		name string
		kind string
		in   wire.CreateServiceInput
		want bool
	}{
		{"HTTP", kindHTTP, wire.CreateServiceInput{}, true},
		{"HTTP with health check", kindHTTP, wire.CreateServiceInput{HealthCheckConfig: check}, true},
		{"HTTP with records", kindHTTP, wire.CreateServiceInput{DnsConfig: records("A")}, false},
		{"DNS without records", kindPrivate, wire.CreateServiceInput{}, false},
		{"DNS with type HTTP", kindPrivate, wire.CreateServiceInput{Type: "HTTP"}, true},
		{"DNS with type HTTP and records", kindPrivate, wire.CreateServiceInput{Type: "HTTP", DnsConfig: records("A")}, false},
		{"type DNS", kindPrivate, wire.CreateServiceInput{Type: "DNS", DnsConfig: records("A")}, false},
		{"A and AAAA", kindPrivate, wire.CreateServiceInput{DnsConfig: records("AAAA", "A")}, true},
		{"A and SRV", kindPrivate, wire.CreateServiceInput{DnsConfig: records("A", "SRV")}, false},
		{"A twice", kindPrivate, wire.CreateServiceInput{DnsConfig: records("A", "A")}, false},
		{"no record", kindPrivate, wire.CreateServiceInput{DnsConfig: records()}, false},
		{"record without TTL", kindPrivate, wire.CreateServiceInput{DnsConfig: &wire.DNSConfig{DnsRecords: []wire.DNSRecord{{Type: "A"}}}}, false},
		{"negative TTL", kindPrivate, wire.CreateServiceInput{DnsConfig: &wire.DNSConfig{DnsRecords: []wire.DNSRecord{{Type: "A", TTL: aws.Int64(-1)}}}}, false},
		{"CNAME", kindPrivate, wire.CreateServiceInput{DnsConfig: weighted(records("CNAME"))}, true},
		{"CNAME in multivalue", kindPrivate, wire.CreateServiceInput{DnsConfig: records("CNAME")}, false},
		{"CNAME with health check", kindPublic, wire.CreateServiceInput{DnsConfig: weighted(records("CNAME")), HealthCheckConfig: check}, false},
		{"health check in public DNS", kindPublic, wire.CreateServiceInput{DnsConfig: records("A"), HealthCheckConfig: check}, true},
		{"health check in private DNS", kindPrivate, wire.CreateServiceInput{DnsConfig: records("A"), HealthCheckConfig: check}, false},
		{"both health checks", kindHTTP, wire.CreateServiceInput{HealthCheckConfig: check, HealthCheckCustomConfig: &wire.HealthCheckCustomConfig{}}, false},
		{"TCP check with path", kindHTTP, wire.CreateServiceInput{HealthCheckConfig: &wire.HealthCheckConfig{Type: "TCP", ResourcePath: "/"}}, false},
		{"unknown check", kindHTTP, wire.CreateServiceInput{HealthCheckConfig: &wire.HealthCheckConfig{Type: "UDP"}}, false},
		{"threshold 0", kindHTTP, wire.CreateServiceInput{HealthCheckCustomConfig: &wire.HealthCheckCustomConfig{FailureThreshold: new(0)}}, false},
		{"threshold 11", kindHTTP, wire.CreateServiceInput{HealthCheckConfig: &wire.HealthCheckConfig{Type: "TCP", FailureThreshold: new(11)}}, false},
		{"reserved tag", kindHTTP, wire.CreateServiceInput{Tags: []wire.Tag{{Key: "aws:x", Value: "y"}}}, false},
		{"tag twice", kindHTTP, wire.CreateServiceInput{Tags: []wire.Tag{{Key: "x", Value: "y"}, {Key: "x", Value: "z"}}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Name = "svc"
			_, err := newService(&namespace{ID: "ns-x", Kind: tt.kind}, tt.in)
			wantValid(t, err, tt.want)
		})
	}
}

func TestFilters(t *testing.T) {
	tests := []struct {
		name string
		f    wire.Filter
		want bool
	}{
		{"EQ by default", wire.Filter{Name: "SERVICE_ID", Values: []string{"srv-1"}}, true},
		{"EQ with two", wire.Filter{Name: "SERVICE_ID", Values: []string{"a", "b"}}, false},
		{"EQ with none", wire.Filter{Name: "SERVICE_ID"}, false},
		{"IN with two", wire.Filter{Name: "STATUS", Condition: "IN", Values: []string{"PENDING", "FAIL"}}, true},
		{"IN with none", wire.Filter{Name: "STATUS", Condition: "IN"}, false},
		{"IN where it is not supported", wire.Filter{Name: "SERVICE_ID", Condition: "IN", Values: []string{"a"}}, false},
		{"BETWEEN", wire.Filter{Name: "UPDATE_DATE", Condition: "BETWEEN", Values: []string{"1", "2"}}, true},
		{"BETWEEN with one", wire.Filter{Name: "UPDATE_DATE", Condition: "BETWEEN", Values: []string{"1"}}, false},
		{"EQ on a date", wire.Filter{Name: "UPDATE_DATE", Values: []string{"1"}}, false},
		{"unknown name", wire.Filter{Name: "NAME", Values: []string{"a"}}, false},
		{"empty value", wire.Filter{Name: "SERVICE_ID", Values: []string{""}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantValid(t, operationFilters.check([]wire.Filter{tt.f}), tt.want)
		})
	}
}

func TestOptions(t *testing.T) {
	tests := []struct {
		name string
		opts Options
		want string // part of the error; "" for none
	}{
		{"zero", Options{}, ""},
		{"short account", Options{Account: "1"}, "12 digits"},
		{"strange region", Options{Region: "Über"}, "us-east-1"},
		{"unknown operation", Options{Limits: map[string]Limit{"Register": {1, 1}}}, "no such operation"},
		{"no burst", Options{Limits: map[string]Limit{"RegisterInstance": {1, 0}}}, "at least 1"},
		{"negative delay", Options{Behaviors: ReadsLate(-1)}, "consistencyDelay"},
		{"negative quota", Options{NamespaceQuota: -1}, "negative"},
		{"key without id", Options{AccessKeys: []AccessKey{{Secret: "x"}}}, "access key"},
		{"key of no account", Options{AccessKeys: []AccessKey{{ID: "A", Account: "x"}}}, "12 digits"},
		{"key twice", Options{AccessKeys: []AccessKey{{ID: "A"}, {ID: "A"}}}, "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.opts)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error = %v, want one that contains %q", err, tt.want)
			}
		})
	}
}

func TestEveryOperationHasALimit(t *testing.T) {
	for name := range handlers {
		if _, has := defaultLimits[name]; !has {
			t.Errorf("%s has no default limit", name)
		}
	}
}

// An instance with the ID of an EC2 instance gets an address, the same one whenever it is
// registered.
func TestEC2InstanceAddress(t *testing.T) {
	w := newTestServer(t, Options{})
	svc := w.service(w.namespace("demo"), "web")
	addressOf := func(id, ec2 string) string {
		t.Helper()
		w.register(svc, id, map[string]string{"AWS_EC2_INSTANCE_ID": ec2})
		found, _ := w.discovered("demo", "web")
		attributes := found[id].Attributes
		if attributes["AWS_EC2_INSTANCE_ID"] != ec2 || len(attributes) != 2 {
			t.Errorf("attributes %v, want the ID and an address", attributes)
		}
		address, err := netip.ParseAddr(attributes["AWS_INSTANCE_IPV4"])
		if err != nil || !netip.MustParsePrefix("10.0.0.0/8").Contains(address) {
			t.Errorf("address %q, want one in 10.0.0.0/8", attributes["AWS_INSTANCE_IPV4"])
		}
		return address.String()
	}
	a := addressOf("a", "i-0123456789abcdef0")
	assertEqual(t, a, addressOf("a", "i-0123456789abcdef0"))
	assertEqual(t, a, addressOf("b", "i-0123456789abcdef0"))
	if b := addressOf("c", "i-0123456789abcdef1"); a == b {
		t.Errorf("two EC2 instances have the address %s", a)
	}
}
