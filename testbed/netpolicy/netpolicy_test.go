package netpolicy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
}

// newPod returns a running Pod with label app, and a port of it named http.
func newPod(namespace, app, node string, port int32, ips ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

// cluster has Pods of namespaces shop and blog on nodes n1 and n2, and some that no rule may
// mention.
func cluster(policies ...*networkingv1.NetworkPolicy) State {
	onHost, ended, pending := newPod("shop", "on-host", "n1", 80, "172.30.0.11"), newPod("shop", "ended", "n1", 80, "10.10.0.9"), newPod("shop", "pending", "n1", 80)
	onHost.Spec.HostNetwork = true
	ended.Status.Phase = corev1.PodSucceeded
	return State{
		Namespaces: []*corev1.Namespace{newNamespace("shop"), newNamespace("blog")},
		Pods: []*corev1.Pod{
			newPod("shop", "web", "n1", 80, "10.10.0.2", "fd00::2"), newPod("shop", "db", "n2", 5432, "10.10.1.2", "fd00::1:2"),
			newPod("blog", "web", "n2", 8080, "10.10.1.3"), onHost, ended, pending,
		},
		Policies: policies,
	}
}

// newPolicy returns a policy in namespace shop with a spec in YAML.
func newPolicy(t *testing.T, name, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// chain returns the rules of a chain, nil if it does not exist.
func chain(ruleset, name string) []string {
	_, body, ok := strings.Cut(ruleset, "chain "+name+" {")
	if !ok {
		return nil
	}
	body, _, _ = strings.Cut(body, "\n\t}")
	out := []string{}
	for i, line := range strings.Split(body, "\n") {
		if i > 0 {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestRuleset translates policies of namespace shop for its Pod web on node n1.
func TestRuleset(t *testing.T) {
	self := func(field string, rules ...string) []string {
		return slices.Concat([]string{"ip " + field + " 10.10.0.2 return", "ip6 " + field + " fd00::2 return"}, rules, []string{"drop"})
	}
	in := func(rules ...string) []string { return self("saddr", rules...) }
	out := func(rules ...string) []string { return self("daddr", rules...) }
	tests := map[string]struct {
		specs           []string
		ingress, egress []string // nil: the Pod is not isolated
	}{
		"no policy":                    {},
		"a policy for other pods":      {specs: []string{`podSelector: {matchLabels: {app: db}}`}},
		"default deny of ingress":      {specs: []string{`podSelector: {}`}, ingress: in()},
		"default deny of both":         {specs: []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`}, ingress: in(), egress: out()},
		"egress only":                  {specs: []string{`{podSelector: {}, policyTypes: [Egress]}`}, egress: out()},
		"egress without policy types":  {specs: []string{`{podSelector: {}, egress: [{}]}`}, ingress: in(), egress: out("return")},
		"types without Egress":         {specs: []string{`{podSelector: {}, policyTypes: [Ingress], egress: [{}]}`}, ingress: in()},
		"everything":                   {specs: []string{`{podSelector: {}, ingress: [{}]}`}, ingress: in("return")},
		"an expression":                {specs: []string{`podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}`}, ingress: in()},
		"two policies":                 {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: 80}]}]}`, `{podSelector: {}, ingress: [{ports: [{port: 81}]}]}`}, ingress: in("tcp dport 80 return", "tcp dport 81 return")},
		"a port":                       {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: 80}]}]}`}, ingress: in("tcp dport 80 return")},
		"a UDP port":                   {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: 53, protocol: UDP}]}]}`}, ingress: in("udp dport 53 return")},
		"a range of SCTP ports":        {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: 1, endPort: 65535, protocol: SCTP}]}]}`}, ingress: in("sctp dport 1-65535 return")},
		"a protocol":                   {specs: []string{`{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}`}, ingress: in("meta l4proto udp return")},
		"a named port":                 {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: http}]}]}`}, ingress: in("tcp dport 80 return")},
		"a name that it does not have": {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: dns}]}]}`}, ingress: in()},
		"a name of another protocol":   {specs: []string{`{podSelector: {}, ingress: [{ports: [{port: http, protocol: UDP}]}]}`}, ingress: in()},
		"a named port of peers": {
			specs:   []string{`{podSelector: {}, egress: [{to: [{namespaceSelector: {}}], ports: [{port: http}, {port: 1}]}]}`},
			ingress: in(), egress: out(
				"ip daddr { 10.10.1.3 } tcp dport 8080 return",
				"ip daddr { 10.10.1.2 } tcp dport 5432 return", "ip6 daddr { fd00::1:2 } tcp dport 5432 return",
				"ip daddr { 10.10.0.2 } tcp dport 80 return", "ip6 daddr { fd00::2 } tcp dport 80 return",
				"ip daddr { 10.10.0.2, 10.10.1.2, 10.10.1.3 } tcp dport 1 return", "ip6 daddr { fd00::1:2, fd00::2 } tcp dport 1 return"),
		},
		"a named port of a block":   {specs: []string{`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: http}]}]}`}, egress: out()},
		"pods of the namespace":     {specs: []string{`{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`}, ingress: in("ip saddr { 10.10.0.2, 10.10.1.2 } return", "ip6 saddr { fd00::1:2, fd00::2 } return")},
		"pods of another namespace": {specs: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: blog}}}]}]}`}, ingress: in("ip saddr { 10.10.1.3 } return")},
		"both selectors":            {specs: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}`}, ingress: in("ip saddr { 10.10.0.2, 10.10.1.3 } return", "ip6 saddr { fd00::2 } return")},
		"no such pods":              {specs: []string{`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: none}}}], ports: [{port: 80}]}]}`}, ingress: in()},
		"a block with exceptions": {
			specs:   []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.3.4/32]}}, {ipBlock: {cidr: "fd00::/8"}}], ports: [{port: 80}, {port: 81}]}]}`},
			ingress: in("ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 ip saddr != 10.2.3.4/32 tcp dport 80 return", "ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 ip saddr != 10.2.3.4/32 tcp dport 81 return", "ip6 saddr fd00::/8 tcp dport 80 return", "ip6 saddr fd00::/8 tcp dport 81 return"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var policies []*networkingv1.NetworkPolicy
			for i, spec := range tt.specs {
				policies = append(policies, newPolicy(t, fmt.Sprint("p", i), spec))
			}
			ruleset, err := cluster(policies...).Ruleset("n1")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.ingress, chain(ruleset, "ingress-10.10.0.2")); d != "" {
				t.Errorf("ingress (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.egress, chain(ruleset, "egress-10.10.0.2")); d != "" {
				t.Errorf("egress (-want +got):\n%s", d)
			}
			checkSyntax(t, ruleset)
		})
	}
}

// TestRuleset_JumpsByAddress checks that the packets of the node's isolated Pods, and of no other,
// reach their chains.
func TestRuleset_JumpsByAddress(t *testing.T) {
	s := cluster(newPolicy(t, "p", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	for node, jumps := range map[string][]string{
		"n1": {
			"ip saddr vmap { 10.10.0.2 : jump egress-10.10.0.2 }", "ip6 saddr vmap { fd00::2 : jump egress-10.10.0.2 }",
			"ip daddr vmap { 10.10.0.2 : jump ingress-10.10.0.2 }", "ip6 daddr vmap { fd00::2 : jump ingress-10.10.0.2 }",
		},
		"n2": { // not Pod web of namespace blog
			"ip saddr vmap { 10.10.1.2 : jump egress-10.10.1.2 }", "ip6 saddr vmap { fd00::1:2 : jump egress-10.10.1.2 }",
			"ip daddr vmap { 10.10.1.2 : jump ingress-10.10.1.2 }", "ip6 daddr vmap { fd00::1:2 : jump ingress-10.10.1.2 }",
		},
		"n3": nil,
	} {
		ruleset, err := s.Ruleset(node)
		if err != nil {
			t.Fatal(err)
		}
		want := append([]string{
			"ct state established,related accept", "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert } accept",
		}, jumps...)
		if d := cmp.Diff(want, chain(ruleset, "policies")); d != "" {
			t.Errorf("%s (-want +got):\n%s", node, d)
		}
	}
}

// TestRuleset_IsStable: the order of the objects does not matter, so that nothing is applied
// without a change.
func TestRuleset_IsStable(t *testing.T) {
	a := cluster(newPolicy(t, "p", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`), newPolicy(t, "q", `{podSelector: {}, egress: [{}]}`))
	b := a
	b.Pods, b.Policies = slices.Clone(a.Pods), slices.Clone(a.Policies)
	slices.Reverse(b.Pods)
	slices.Reverse(b.Policies)
	first, err := a.Ruleset("n1")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := b.Ruleset("n1"); err != nil || first != second {
		t.Errorf("%v, and the rules differ:\n%s", err, cmp.Diff(first, second))
	}
}

func TestRuleset_RejectsInvalidPolicy(t *testing.T) {
	for _, spec := range []string{
		`podSelector: {matchExpressions: [{key: app, operator: Near}]}`,
		`{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: Near}]}}]}]}`,
		`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: ten}}]}]}`,
		`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [ten]}}]}]}`,
	} {
		if _, err := cluster(newPolicy(t, "p", spec)).Ruleset("n1"); err == nil || !strings.Contains(err.Error(), "NetworkPolicy shop/p") {
			t.Errorf("%s: %v, want an error with the policy's name", spec, err)
		}
	}
}

// checkSyntax lets nft check a ruleset, if the test may.
func checkSyntax(t *testing.T, ruleset string) {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil || os.Geteuid() != 0 {
		return
	}
	check := exec.CommandContext(t.Context(), nft, "-c", "-f", "-")
	check.Stdin = bytes.NewBufferString(ruleset)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("nft: %v: %s\n%s", err, out, ruleset)
	}
}
