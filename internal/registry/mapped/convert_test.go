package mapped

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

// testMapping maps orders in apps to shop/orders with the ports, for both families.
func testMapping(ports ...servicesfile.Port) servicesfile.Mapping {
	return servicesfile.Mapping{
		Namespace: "apps", Service: "orders", Key: mcs.Key{Namespace: "shop", Name: "orders"}, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports: ports,
	}
}

// ipv4Mapping is testMapping for IPv4.
func ipv4Mapping(ports ...servicesfile.Port) servicesfile.Mapping {
	m := testMapping(ports...)
	m.Families = []corev1.IPFamily{corev1.IPv4Protocol}
	return m
}

// tcp returns a port.
func tcp(name string, port, target int32) servicesfile.Port {
	return servicesfile.Port{Port: mcs.Port{Name: name, Port: port, Protocol: corev1.ProtocolTCP}, Target: target}
}

// instance returns an instance with attributes as "NAME=value". AWS_INSTANCE_ is omitted.
func instance(id string, attrs ...string) api.HealthInstance {
	i := api.HealthInstance{Instance: api.Instance{ID: id, Attributes: map[string]string{}}}
	for _, a := range attrs {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "IPV4", "IPV6", "PORT", "CNAME":
			name = "AWS_INSTANCE_" + name
		}
		i.Attributes[name] = value
	}
	return i
}

func unhealthy(i api.HealthInstance) api.HealthInstance {
	i.Unhealthy = true
	return i
}

// describe returns a line for each group of endpoints: its port numbers, and the addresses with !
// for those that are not ready and @ before the zone.
func describe(exp mcs.Export) string {
	var lines []string
	for _, b := range exp.Backends {
		var words []string
		for _, p := range b.Ports {
			words = append(words, fmt.Sprintf("%s%d", p.Name, p.Port))
		}
		for _, e := range b.Endpoints {
			word := e.Address.String()
			if !e.Ready {
				word += "!"
			}
			if e.Zone != "" {
				word += "@" + e.Zone
			}
			if e.Ready != e.Serving {
				word += "?"
			}
			words = append(words, word)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, "; ")
}

func TestExportOf(t *testing.T) {
	for _, tt := range []struct {
		name    string
		mapping servicesfile.Mapping
		list    []api.HealthInstance
		want    string
		lines   []string
	}{
		{name: "no instances", mapping: testMapping(tcp("", 80, 0))},
		{
			name: "an instance of ECS, with awsvpc networking", mapping: testMapping(tcp("", 80, 8080)),
			list: []api.HealthInstance{instance("task", "IPV4=10.0.0.1", "AVAILABILITY_ZONE=eu-central-1a", "ECS_CLUSTER_NAME=c", "REGION=eu-central-1")},
			want: "8080 10.0.0.1@eu-central-1a",
		},
		{
			name: "ports of the instances", mapping: testMapping(tcp("", 80, 0)),
			list: []api.HealthInstance{instance("b", "IPV4=10.0.0.2", "PORT=32769"), instance("a", "IPV4=10.0.0.1", "PORT=32768")},
			want: "32768 10.0.0.1; 32769 10.0.0.2",
		},
		{
			name: "both families", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{instance("a", "IPV4=10.0.0.1", "IPV6=2001:db8::1")}, want: "80 10.0.0.1 2001:db8::1",
		},
		{
			name: "one family", mapping: ipv4Mapping(tcp("", 80, 80)),
			list:  []api.HealthInstance{instance("a", "IPV4=10.0.0.1", "IPV6=2001:db8::1"), instance("b", "IPV6=2001:db8::2")},
			want:  "80 10.0.0.1",
			lines: []string{"instance b left out: it has an IPv6 address only: add IPv6 to ipFamilies"},
		},
		{
			name: "two ports, one from the instance", mapping: testMapping(tcp("http", 80, 0), tcp("admin", 81, 9000)),
			list: []api.HealthInstance{instance("a", "IPV4=10.0.0.1", "PORT=8080")}, want: "admin9000 http8080 10.0.0.1",
		},
		{
			name: "unhealthy instances are not ready", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{unhealthy(instance("a", "IPV4=10.0.0.1")), instance("b", "IPV4=10.0.0.2")}, want: "80 10.0.0.1! 10.0.0.2",
		},
		{
			name: "also if all are", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{unhealthy(instance("a", "IPV4=10.0.0.1"))}, want: "80 10.0.0.1!",
		},
		{
			name: "one of two instances with an address is healthy", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{unhealthy(instance("a", "IPV4=10.0.0.1")), instance("b", "IPV4=10.0.0.1")}, want: "80 10.0.0.1",
		},
		{
			name: "instances of this clusterset", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{instance("a", "IPV4=10.0.0.1", "CLUSTERSET_ID=set1"), instance("b", "IPV4=10.0.0.2", "CLUSTERSET_ID=set2")}, want: "80 10.0.0.2",
		},
		{
			name: "without an address", mapping: testMapping(tcp("", 80, 80)),
			list:  []api.HealthInstance{instance("lambda", "arn=x"), instance("db", "CNAME=db.example.com")},
			lines: []string{"instance db left out: it has neither", "instance lambda left out: it has neither"},
		},
		{
			name: "without a port", mapping: testMapping(tcp("", 80, 0)),
			list:  []api.HealthInstance{instance("a", "IPV4=10.0.0.1"), instance("b", "IPV4=10.0.0.1", "PORT=70000"), instance("c", "IPV4=10.0.0.1", "PORT=-1")},
			lines: []string{`instance a left out: AWS_INSTANCE_PORT is "", no port number: set targetPort`, `"70000"`, `"-1"`},
		},
		{
			name: "no addresses", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{
				instance("a", "IPV4=ten"), instance("b", "IPV4=2001:db8::1"), instance("c", "IPV6=10.0.0.1"), instance("d", "IPV6=::ffff:10.0.0.1"), instance("e", "IPV6=fe80::1%eth0"),
			},
			lines: []string{`AWS_INSTANCE_IPV4 is "ten"`, `AWS_INSTANCE_IPV4 is "2001:db8::1"`, `AWS_INSTANCE_IPV6 is "10.0.0.1"`, `AWS_INSTANCE_IPV6 is "::ffff:10.0.0.1"`, "endpoint fe80::1%eth0 left out"},
		},
		{
			name: "addresses that no pod has", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{
				instance("a", "IPV4=127.0.0.1"), instance("b", "IPV4=169.254.169.254"), instance("c", "IPV4=0.0.0.0"), instance("d", "IPV6=fd00:ec2::254"), instance("e", "IPV6=2001:db8::1"),
			},
			want:  "80 2001:db8::1",
			lines: []string{"0.0.0.0 left out", "127.0.0.1 left out", "169.254.169.254 left out", "fd00:ec2::254 left out"},
		},
		{
			name: "a zone that is no label value", mapping: testMapping(tcp("", 80, 80)),
			list: []api.HealthInstance{instance("a", "IPV4=10.0.0.1", "AVAILABILITY_ZONE=a b")}, want: "80 10.0.0.1", lines: []string{`zone "a b"`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			exp, lines, err := exportOf(tt.mapping, "cloud-map", "set1", tt.list)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, describe(exp)); diff != "" {
				t.Errorf("endpoints, -want +got:\n%s", diff)
			}
			if len(lines) != len(tt.lines) {
				t.Fatalf("lines %q, want %q", lines, tt.lines)
			}
			all := strings.Join(lines, "\n")
			for _, want := range tt.lines {
				if !strings.Contains(all, want) {
					t.Errorf("lines %q, want %q", lines, want)
				}
			}
		})
	}
}

// TestExportOf_LosesConflicts: the exports of clusters decide about a service, unless the mapping
// has a time.
func TestExportOf_LosesConflicts(t *testing.T) {
	m := testMapping(tcp("", 80, 80))
	exp, _, err := exportOf(m, "cloud-map", "set1", nil)
	if err != nil || !exp.Created.IsZero() {
		t.Errorf("created %v, %v; want no time", exp.Created, err)
	}
	of := mcs.Export{Key: m.Key, Cluster: "zzz", Created: time.Now(), Type: exp.Type, Ports: []mcs.Port{{Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: "http"}}}
	if merged := mcs.Merge([]mcs.Export{exp, of}); merged.Ports[0].AppProtocol != "http" {
		t.Errorf("the mapped service decides: %+v", merged.Ports)
	}
	m.Created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if exp, _, err = exportOf(m, "cloud-map", "set1", nil); err != nil || !exp.Created.Equal(m.Created) {
		t.Errorf("created %v, %v; want %v", exp.Created, err, m.Created)
	}
	if merged := mcs.Merge([]mcs.Export{exp, of}); merged.Ports[0].AppProtocol != "" {
		t.Errorf("the mapped service does not decide: %+v", merged.Ports)
	}
}

func FuzzExportOf(f *testing.F) {
	f.Add("10.0.0.1", "2001:db8::1", "80", "a", false)
	f.Add("169.254.169.254", "::1", "0", "", true)
	f.Fuzz(func(t *testing.T, ipv4, ipv6, port, zone string, isUnhealthy bool) {
		i := instance("i", "IPV4="+ipv4, "IPV6="+ipv6, "PORT="+port, "AVAILABILITY_ZONE="+zone)
		i.Unhealthy = isUnhealthy
		exp, lines, err := exportOf(testMapping(tcp("", 80, 0)), "cloud-map", "set1", []api.HealthInstance{i})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range exp.Backends {
			for _, e := range b.Endpoints {
				if err := mcs.CheckPodAddress(e.Address); err != nil || e.Ready == isUnhealthy {
					t.Errorf("endpoint %+v: %v", e, err)
				}
			}
		}
		if len(lines) > servicesfile.MaxProblems+1 {
			t.Errorf("%d lines", len(lines))
		}
	})
}

// entry returns a file with one valid entry, in which old is replaced.
func entry(old, replacement string) string {
	return strings.Replace(`services:
- cloudMap: {namespace: apps, service: orders}
  import: {namespace: shop, name: orders}
  ports: [{name: http, port: 80}]
`, old, replacement, 1)
}

// FuzzExportOf_File: every file that can be parsed has exports that other clusters could make too.
func FuzzExportOf_File(f *testing.F) {
	f.Add(entry("", ""))
	f.Add(entry("port: 80}", "port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}"))
	f.Fuzz(func(t *testing.T, text string) {
		mappings, err := servicesfile.Parse([]byte(text))
		if err != nil {
			return
		}
		for _, m := range mappings {
			if exp, lines, err := exportOf(m, "cloud-map", "set1", nil); err != nil || len(lines) > 0 || len(exp.Ports) != len(m.Ports) {
				t.Errorf("an export of %+v is not valid: %v %v", m, err, lines)
			}
		}
	})
}
