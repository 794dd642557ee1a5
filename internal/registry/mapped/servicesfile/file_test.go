package servicesfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// fullFile uses every key.
const fullFile = `
services:
- cloudMap: {namespace: apps.internal, service: orders}
  import: {namespace: shop, name: orders}
  ports:
  - {name: http, port: 80, targetPort: 8080, appProtocol: http}
  - {name: dns, port: 53, protocol: UDP}
  created: "2026-01-31T01:00:00+01:00"
  ipFamilies: [IPv6, IPv4]
- cloudMap: {namespace: Connect, service: Cart_v2}
  import: {namespace: shop, name: cart}
  ports: [{port: 9000}]
zones: {eu-central-1a: euc1-az2, eu-central-1b: euc1-az3}
`

func TestParse(t *testing.T) {
	got, err := Parse([]byte(fullFile))
	if err != nil {
		t.Fatal(err)
	}
	zones := mcs.Zones{"eu-central-1a": "euc1-az2", "eu-central-1b": "euc1-az3"}
	want := []Mapping{
		{
			Zones:     zones,
			Namespace: "Connect", Service: "Cart_v2", Key: mcs.Key{Namespace: "shop", Name: "cart"},
			Families: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:    []Port{{Port: mcs.Port{Port: 9000, Protocol: corev1.ProtocolTCP}}},
		},
		{
			Zones:     zones,
			Namespace: "apps.internal", Service: "orders", Key: mcs.Key{Namespace: "shop", Name: "orders"},
			Created:  time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
			Families: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
			Ports: []Port{
				{Port: mcs.Port{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: "http"}, Target: 8080},
				{Port: mcs.Port{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if none, err := Parse([]byte("services: []")); err != nil || len(none) != 0 {
		t.Errorf("an empty list: %v, %v", none, err)
	}
}

// entry returns a file with one valid entry, in which old is replaced.
func entry(old, replacement string) string {
	return strings.Replace(`services:
- cloudMap: {namespace: apps, service: orders}
  import: {namespace: shop, name: orders}
  ports: [{name: http, port: 80}]
`, old, replacement, 1)
}

func TestParse_Refuses(t *testing.T) {
	many := strings.Builder{}
	many.WriteString("services:\n")
	for i := range MaxServices + 1 {
		fmt.Fprintf(&many, "- {cloudMap: {namespace: a, service: s%d}, import: {namespace: shop, name: s%d}, ports: [{port: 80}]}\n", i, i)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "services: must be a list; write [] for none"},
		{"no list", "services:", "services: must be a list; write [] for none"},
		{"unknown key", entry("ports", "port"), `unknown field "port"`},
		{"key twice", entry("ports: ", "import: {}\n  ports: "), `already set in map`},
		{"not YAML", "{", "the file is not valid YAML"},
		{"null entry", "services: [null]", "services[0].cloudMap.namespace: \"\" must be the name"},
		{"no namespace of Cloud Map", entry("namespace: apps, ", ""), `services[0].cloudMap.namespace: "" must be the name in AWS Cloud Map`},
		{"space in the service of Cloud Map", entry("service: orders", `service: "a b"`), `services[0].cloudMap.service: "a b" must be the name`},
		{"service of Cloud Map too long", entry("service: orders", "service: "+strings.Repeat("a", 128)), "1 to 127 ASCII characters"},
		{"namespace", entry("namespace: shop", "namespace: Shop"), `services[0].import.namespace: "Shop" must be`},
		{"name", entry("name: orders", "name: -st"), `services[0].import.name: "-st" must be a name for a Kubernetes Service`},
		{"no ports", entry("ports: [{name: http, port: 80}]", ""), "services[0].ports: must have 1 to 100 ports"},
		{"port 0", entry("port: 80", "port: 0"), "services[0].ports[0].port: 0 must be a port number"},
		{"target port 0", entry("port: 80", "port: 80, targetPort: 0"), "services[0].ports[0].targetPort: 0 must be a port number"},
		{"protocol", entry("port: 80", "port: 80, protocol: tcp"), `services[0].ports[0].protocol: "tcp" must be TCP, UDP or SCTP`},
		{"application protocol", entry("port: 80", "port: 80, appProtocol: '/'"), `services[0].ports[0].appProtocol: "/" must be`},
		{"name of a port", entry("name: http", "name: HTTP"), `services[0].ports[0].name: "HTTP" must be a DNS label`},
		{"second port without a name", entry("port: 80}", "port: 80}, {port: 81}"), `services[0].ports[1].name: "" must be a DNS label`},
		{"port twice", entry("port: 80}", "port: 80}, {name: b, port: 80}"), "services[0].ports[1]: another port has the same name"},
		{"time", entry("ports:", "created: yesterday\n  ports:"), `services[0].created: "yesterday" must be a time`},
		{"time too early", entry("ports:", `created: "1970-01-01T00:00:00Z"`+"\n  ports:"), "must be a time from 2020 to 2199"},
		{"unknown family", entry("ports:", "ipFamilies: [ipv4]\n  ports:"), "services[0].ipFamilies: must be [IPv4]"},
		{"family twice", entry("ports:", "ipFamilies: [IPv4, IPv4]\n  ports:"), "services[0].ipFamilies: must be [IPv4]"},
		{"import twice", entry("", "") + strings.TrimPrefix(entry("service: orders", "service: other"), "services:\n"), "services[1].import: services[0] is imported as shop/orders too"},
		{"zone without an ID", "zones: {eu-central-1a: ''}\n" + entry("", ""), `zones: "eu-central-1a": "" must be the name of a zone and its ID`},
		{"two zones as one", "zones: {a: '1,b=2'}\n" + entry("", ""), `zones: "a": "1,b=2" must be`},
		{"name of a zone", "zones: {' a': '1'}\n" + entry("", ""), `zones: " a": "1" must be`},
		{"too many", many.String(), "services: there are 201"},
		{"too large", "# " + strings.Repeat("x", MaxBytes), "more than the 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v; want an error with %q", got, err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(fullFile)
	f.Add(entry("", ""))
	f.Add("services: []")
	f.Fuzz(func(t *testing.T, text string) {
		mappings, err := Parse([]byte(text))
		if err != nil {
			if len(err.Error()) > 20_000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		keys := map[mcs.Key]bool{}
		for _, m := range mappings {
			if keys[m.Key] || len(m.Ports) == 0 || m.Namespace == "" || m.Service == "" {
				t.Errorf("%+v is not usable", m)
			}
			keys[m.Key] = true
		}
	})
}
