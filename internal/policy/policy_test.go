package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// tenants is the example of docs/security/import-policy.md.
const tenants = `default: deny
clusters:
  cls2:
    namespaces: [shop, team-a-*]
    podNetworks: [10.2.0.0/16, "fd00:2::/48"]
  cls3: {}
systemNamespaces: [default]
`

func mustParse(t interface {
	Helper()
	Fatal(args ...any)
}, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPolicy_AllowsNamespace(t *testing.T) {
	deny, allow := mustParse(t, tenants), mustParse(t, strings.Replace(tenants, "deny", "allow", 1))
	for _, tt := range []struct {
		name               string
		policy             *Policy
		cluster, namespace string
		want               string
	}{
		{name: "no policy", policy: nil, cluster: "cls9", namespace: "shop"},
		{name: "exact name", policy: deny, cluster: "cls2", namespace: "shop"},
		{name: "exact name is no prefix", policy: deny, cluster: "cls2", namespace: "shop-2", want: "--import-policy does not allow cluster cls2 to export services of namespace shop-2"},
		{name: "prefix", policy: deny, cluster: "cls2", namespace: "team-a-web"},
		{name: "the prefix itself", policy: deny, cluster: "cls2", namespace: "team-a-"},
		{name: "shorter than the prefix", policy: deny, cluster: "cls2", namespace: "team-a", want: "--import-policy does not allow cluster cls2 to export services of namespace team-a"},
		{name: "cluster without limits", policy: deny, cluster: "cls3", namespace: "any"},
		{name: "cluster that is not listed, denied", policy: deny, cluster: "cls4", namespace: "shop", want: "--import-policy denies the clusters that it does not list: to import from cluster cls4, list it there"},
		{name: "cluster that is not listed, allowed", policy: allow, cluster: "cls4", namespace: "any"},
		{name: "listed cluster is limited if others are not", policy: allow, cluster: "cls2", namespace: "any", want: "--import-policy does not allow cluster cls2 to export services of namespace any"},
		{name: "all namespaces", policy: mustParse(t, "default: deny\nclusters: {cls2: {namespaces: ['*']}}"), cluster: "cls2", namespace: "any"},
	} {
		got := ""
		if err := tt.policy.AllowsNamespace(tt.cluster, tt.namespace); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func exportOf(cluster, namespace string, addresses ...string) mcs.Export {
	e := mcs.Export{Key: mcs.Key{Namespace: namespace, Name: "web"}, Cluster: cluster}
	for _, a := range addresses {
		// A group for each endpoint, as the empty group must go.
		e.Backends = append(e.Backends, mcs.Backends{
			Ports: []mcs.BackendPort{{Port: int32(len(e.Backends) + 1)}}, Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr(a), Ready: true}},
		})
	}
	return e
}

func addressesOf(e mcs.Export) []string {
	var out []string
	for _, b := range e.Backends {
		for _, ep := range b.Endpoints {
			out = append(out, ep.Address.String())
		}
	}
	return out
}

func testLocal() *Local {
	return &Local{
		ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")},
		Addresses:       map[netip.Addr]string{netip.MustParseAddr("192.168.0.1"): "the address of node n1"},
	}
}

func TestPolicy_Apply(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policy   *Policy
		export   mcs.Export
		want     []string
		refusals []Refusal
		refused  bool
		// silent reports whether the cluster announces no networks.
		silent bool
	}{
		{name: "nothing refused", export: exportOf("cls2", "shop", "10.2.0.1", "fd00:2::1"), policy: mustParse(t, tenants), want: []string{"10.2.0.1", "fd00:2::1"}},
		{name: "no policy", export: exportOf("cls2", "shop", "10.2.0.1", "1.1.1.1"), want: []string{"10.2.0.1", "1.1.1.1"}},
		{
			name: "Service networks and addresses of this cluster, also without a policy", want: []string{"10.2.0.1"},
			export: exportOf("cls2", "shop", "10.96.0.1", "10.111.255.255", "fd00:96::a", "192.168.0.1", "10.2.0.1"),
			refusals: []Refusal{{"cls2", ReasonLocal, 4, "4 endpoints of cluster cls2 refused: 10.96.0.1 is in this cluster's Service network 10.96.0.0/12, " +
				"10.111.255.255 is in this cluster's Service network 10.96.0.0/12, fd00:96::a is in this cluster's Service network fd00:96::/112 and 1 more"}},
		},
		{
			name: "addresses outside of the pod networks", policy: mustParse(t, tenants), export: exportOf("cls2", "shop", "10.3.0.1", "10.2.0.1", "192.168.0.1"), want: []string{"10.2.0.1"},
			refusals: []Refusal{
				{"cls2", ReasonLocal, 1, "1 endpoint of cluster cls2 refused: 192.168.0.1 is the address of node n1"},
				{"cls2", ReasonNetwork, 1, "1 endpoint of cluster cls2 refused, which --import-policy allows only the pod networks 10.2.0.0/16, fd00:2::/48: 10.3.0.1"},
			},
		},
		{
			name: "announced networks", policy: mustParse(t, "default: allow\naddresses: announced"), export: exportOf("cls2", "shop", "10.3.0.1", "10.2.0.1"), want: []string{"10.2.0.1"},
			refusals: []Refusal{{"cls2", ReasonNetwork, 1, "1 endpoint of cluster cls2 refused, which --import-policy allows only the networks that it announces, 10.2.0.0/16: 10.3.0.1"}},
		},
		{
			name: "no announced networks", policy: mustParse(t, "default: allow\naddresses: announced"), export: exportOf("cls2", "shop", "fd00:2::1"), silent: true,
			refusals: []Refusal{{"cls2", ReasonNetwork, 1, "1 endpoint of cluster cls2 refused, which --import-policy allows only the networks that it announces, and it announces none: fd00:2::1"}},
		},
		{
			name: "podNetworks count before announced networks", policy: mustParse(t, "default: allow\naddresses: announced\nclusters: {cls2: {podNetworks: [10.3.0.0/16]}}"),
			export: exportOf("cls2", "shop", "10.3.0.1", "10.2.0.1"), want: []string{"10.3.0.1"},
			refusals: []Refusal{{"cls2", ReasonNetwork, 1, "1 endpoint of cluster cls2 refused, which --import-policy allows only the pod networks 10.3.0.0/16: 10.2.0.1"}},
		},
		{
			name: "namespace", policy: mustParse(t, tenants), export: exportOf("cls2", "billing", "10.2.0.1"), refused: true,
			refusals: []Refusal{{"cls2", ReasonNamespace, 0, "--import-policy does not allow cluster cls2 to export services of namespace billing"}},
		},
		{
			name: "the last endpoint: the export stays without endpoints", policy: mustParse(t, tenants), export: exportOf("cls2", "shop", "10.3.0.1"),
			refusals: []Refusal{{"cls2", ReasonNetwork, 1, "1 endpoint of cluster cls2 refused, which --import-policy allows only the pod networks 10.2.0.0/16, fd00:2::/48: 10.3.0.1"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := addressesOf(tt.export)
			properties := mcs.Properties{mcs.PropertyNetworks: "10.2.0.0/16"}
			if tt.silent {
				properties = nil
			}
			got, refusals, ok := tt.policy.Apply(tt.export, properties, testLocal())
			if diff := cmp.Diff(tt.refusals, refusals); diff != "" || ok == tt.refused {
				t.Errorf("allowed: %t, refusals (-want +got):\n%s", ok, diff)
			}
			if diff := cmp.Diff(tt.want, addressesOf(got)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, addressesOf(tt.export)); diff != "" {
				t.Errorf("the input changed (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPolicy_Apply_KeepsAddressesOfOtherClusters: without a policy, an import has every address
// that a pod of another cluster may have. Only the exact addresses of this cluster's nodes are
// refused, because on EKS pods and nodes of several clusters share the networks of a VPC.
func TestPolicy_Apply_KeepsAddressesOfOtherClusters(t *testing.T) {
	local := &Local{
		ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16"), netip.MustParsePrefix("fdd3:7636:68bc::/108")},
		Addresses: map[netip.Addr]string{
			netip.MustParseAddr("10.0.1.10"): "the address of node n1", netip.MustParseAddr("2600:1f14:1::10"): "the address of node n1",
			netip.MustParseAddr("10.0.1.20"): "the address of an API server",
		},
	}
	want := []string{
		"10.0.1.11", "2600:1f14:1::11", // a pod in the subnet of this cluster's nodes
		"10.0.2.30",                // a node of the other cluster: a pod with hostNetwork
		"100.64.3.4", "198.19.0.5", // networks that EKS documents for pods (custom networking)
		"172.16.0.9", "192.168.3.4", "fd00:10:244::5", "203.0.113.7",
	}
	refused := []string{"10.0.1.10", "::ffff:10.0.1.10", "2600:1f14:1::10", "10.0.1.20", "172.20.0.1", "fdd3:7636:68bc::1"}
	exp := exportOf("cls2", "shop", append(slices.Clone(want), refused...)...)
	exp.Key.Name, exp.Ports, exp.Type = "web", []mcs.Port{{Port: 80}}, mcsv1beta1.ClusterSetIP
	exp.Ports[0].Protocol, exp.IPFamilies = corev1.ProtocolTCP, []corev1.IPFamily{corev1.IPv4Protocol}
	exp, problems, err := mcs.Sanitize(exp) // as every registry does
	if err != nil {
		t.Fatal(err)
	}
	got, refusals, ok := (*Policy)(nil).Apply(exp, nil, local)
	addresses := addressesOf(got)
	slices.Sort(addresses)
	slices.Sort(want)
	if diff := cmp.Diff(want, addresses); diff != "" || !ok {
		t.Errorf("endpoints (-want +got):\n%s\nproblems %v", diff, problems)
	}
	if len(refusals) != 1 || refusals[0].Endpoints != len(refused) {
		t.Errorf("refusals %+v, want %d endpoints", refusals, len(refused))
	}
}

func TestCondition(t *testing.T) {
	if got := Condition(nil); got.Status != metav1.ConditionFalse || got.Reason != ReasonNothingRefused {
		t.Errorf("nothing refused: %+v", got)
	}
	var refusals []Refusal
	for _, c := range []string{"cls9", "cls2", "cls3", "cls4", "cls5", "cls6", "cls7"} {
		refusals = append(refusals, Refusal{Cluster: c, Reason: ReasonNetwork, Endpoints: 1, Message: c + strings.Repeat(" x", 50)}, Refusal{Cluster: c, Reason: ReasonLocal, Message: c})
	}
	got := Condition(refusals)
	if got.Status != metav1.ConditionTrue || got.Reason != "AddressNotAllowed,AddressOfThisCluster" || !strings.HasPrefix(got.Message, "cls2 x") ||
		!strings.HasSuffix(got.Message, "; and 9 more refusals") {
		t.Errorf("condition %+v", got)
	}
	refusals[2].Message = strings.Repeat("ü", 2000)
	if got := Condition(refusals); len(got.Message) > maxMessageBytes || !strings.HasSuffix(got.Message, "...") {
		t.Errorf("message of %d bytes: %s", len(got.Message), got.Message)
	}
}

func TestIsSystemNamespace(t *testing.T) {
	for namespace, want := range map[string]bool{
		"default": true, "kube-system": true, "kube-anything": true, "cloud-map-mcs-system": true, "shop": false, "kube": false,
		"openshift": true, "openshift-ingress": true, "cattle-system": true, "cattle-fleet-system": true, "openshifts": false, "cattle": false, "my-openshift-shop": false,
		"defaults": false, "": false,
	} {
		if got := IsSystemNamespace(namespace, "cloud-map-mcs-system"); got != want {
			t.Errorf("%q: %t, want %t", namespace, got, want)
		}
	}
	if IsSystemNamespace("", "") {
		t.Error("a controller without a namespace excludes the namespace without a name")
	}
}

func TestPolicy_AllowsSystemNamespace(t *testing.T) {
	p := mustParse(t, tenants)
	if !p.AllowsSystemNamespace("default") || p.AllowsSystemNamespace("kube-system") || (*Policy)(nil).AllowsSystemNamespace("default") {
		t.Error("only listed namespaces are allowed")
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty file", "", `default: "" must be allow or deny, for the clusters that the policy does not list`},
		{"other default", "default: Allow", `default: "Allow" must be allow or deny`},
		{"other addresses", "default: deny\naddresses: mine", `addresses: "mine" must be any, or announced`},
		{"unknown key", "default: deny\nclusterz: {}", `unknown field "clusterz"`},
		{"unknown key of a cluster", "default: deny\nclusters: {cls2: {namespace: [a]}}", `unknown field "namespace"`},
		{"key twice", "default: deny\ndefault: allow", `already set`},
		{"no YAML", "default: [", "the policy is not valid YAML with the keys"},
		{"cluster without a value", "default: allow\nclusters:\n  cls2:\n", "clusters.cls2: must not be empty: set namespaces or podNetworks, or write {} to allow everything"},
		{"list without a value", "default: allow\nclusters:\n  cls2:\n    namespaces:\n", `clusters.cls2.namespaces: must not be empty: write ["*"] for all namespaces`},
		{"empty list", "default: allow\nclusters: {cls2: {podNetworks: []}}", "clusters.cls2.podNetworks: must not be empty: remove the key to allow all addresses"},
		{"cluster ID", "default: allow\nclusters: {Cls2: {}}", `clusters.Cls2: ID "Cls2" is not a DNS label`},
		{"namespace", "default: allow\nclusters: {cls2: {namespaces: [shop, Shop]}}", `clusters.cls2.namespaces[1]: "Shop" must be the name of a namespace, or the beginning of names followed by *`},
		{"asterisk within", "default: allow\nclusters: {cls2: {namespaces: ['*-shop']}}", `clusters.cls2.namespaces[0]: "*-shop" must be`},
		{"two asterisks", "default: allow\nclusters: {cls2: {namespaces: ['shop**']}}", `"shop**" must be`},
		{"namespace twice", "default: allow\nclusters: {cls2: {namespaces: [shop, shop]}}", `clusters.cls2.namespaces[1]: "shop" is listed twice`},
		{"boolean", "default: allow\nclusters: {cls2: {namespaces: [no]}}", "put numbers and the words yes, no, on, off, true, false in quotes"},
		{"address", "default: allow\nclusters: {cls2: {podNetworks: [10.2.0.1/16]}}", `clusters.cls2.podNetworks[0]: "10.2.0.1/16" is an address in a network: write the network, 10.2.0.0/16`},
		{"no network", "default: allow\nclusters: {cls2: {podNetworks: [10.2.0.0]}}", `"10.2.0.0" must be a network such as 10.2.0.0/16 or fd00:2::/48`},
		{"mapped network", "default: allow\nclusters: {cls2: {podNetworks: ['::ffff:10.0.0.0/104']}}", "must be written as an IPv4 network"},
		{"pattern of system namespaces", "default: allow\nsystemNamespaces: ['kube-*']", `systemNamespaces[0]: "kube-*" must be the name of a namespace`},
		{"system namespaces without a value", "default: allow\nsystemNamespaces:\n", "systemNamespaces: must not be empty: remove the key"},
		{"too large", "# " + strings.Repeat("x", MaxBytes), "more than the 1048576 bytes of a ConfigMap"},
		{"many problems", "default: allow\nclusters: {cls2: {namespaces: ['" + strings.Repeat("A','", 30) + "A']}}", "and 41 more problems"},
	} {
		p, err := Parse([]byte(tt.text))
		if err == nil || p != nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// FuzzParse checks that a policy that Parse accepts is as strict as its text: no cluster gets more
// than its rule, and everything else follows the default.
func FuzzParse(f *testing.F) {
	f.Add([]byte(tenants), "cls2", "shop", "10.2.0.1")
	f.Add([]byte("default: allow\nclusters:\n  cls2:\n    namespaces:\n"), "cls2", "x", "1.1.1.1")
	f.Add([]byte("default: deny\nclusters: {cls2: {podNetworks: [0.0.0.0/0]}}"), "cls2", "x", "::1")
	f.Fuzz(func(t *testing.T, text []byte, cluster, namespace, address string) {
		p, err := Parse(text)
		if err != nil {
			if len(err.Error()) > 64<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		for id, r := range p.clusters {
			if mcs.ValidateClusterID(id) != nil || r.namespaces != nil && len(r.namespaces) == 0 || r.podNetworks != nil && len(r.podNetworks) == 0 {
				t.Errorf("rule of %q: %+v", id, r)
			}
		}
		if _, listed := p.clusters[cluster]; !listed && (p.AllowsNamespace(cluster, namespace) == nil) != p.allow {
			t.Errorf("cluster %q, which is not listed, does not follow the default", cluster)
		}
		addr, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		got, refusals, ok := p.Apply(exportOf(cluster, namespace, addr.String()), nil, testLocal())
		if complete := ok && len(addressesOf(got)) == 1; complete == (len(refusals) > 0) {
			t.Errorf("endpoints %v with refusals %+v", addressesOf(got), refusals)
		}
	})
}

// Everything that Apply leaves is allowed, everything that it removes is counted, and applying it
// again changes nothing.
func TestPolicy_ApplyProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := mustParse(t, rapid.SampledFrom([]string{tenants, strings.Replace(tenants, "deny", "allow", 1), "default: allow"}).Draw(t, "policy"))
		addresses := rapid.SliceOf(rapid.SampledFrom([]string{"10.2.0.1", "10.2.255.255", "10.3.0.1", "10.96.0.1", "192.168.0.1", "fd00:2::1", "fd00:3::1", "fd00:96::1"})).Draw(t, "addresses")
		exp := exportOf(rapid.SampledFrom([]string{"cls2", "cls3", "cls4"}).Draw(t, "cluster"), rapid.SampledFrom([]string{"shop", "team-a-x", "billing"}).Draw(t, "namespace"), addresses...)
		local := testLocal()
		got, refusals, ok := p.Apply(exp, nil, local)
		if ok != (p.AllowsNamespace(exp.Cluster, exp.Key.Namespace) == nil) {
			t.Fatalf("allowed: %t", ok)
		}
		if !ok {
			return
		}
		count := len(addressesOf(got))
		for _, r := range refusals {
			count += r.Endpoints
		}
		if count != len(addresses) {
			t.Fatalf("%d endpoints imported or refused, want %d", count, len(addresses))
		}
		networks := p.podNetworks(exp.Cluster)
		for _, text := range addressesOf(got) {
			a := netip.MustParseAddr(text)
			inside := networks == nil
			for _, n := range networks {
				inside = inside || n.Contains(a)
			}
			if !inside || local.Check(a) != nil {
				t.Fatalf("endpoint %s is imported", a)
			}
		}
		again, refusals, ok := p.Apply(got, nil, local)
		if diff := cmp.Diff(addressesOf(got), addressesOf(again)); diff != "" || len(refusals) > 0 || !ok {
			t.Fatalf("applying again: %v %+v\n%s", ok, refusals, diff)
		}
	})
}
