// Package netpolicy translates NetworkPolicies into nftables rules for the Pods of a node. It
// decides and renders; it touches neither the network nor the machine.
//
// The Pods of the testbed are routed, not bridged, so the node forwards all their packets, and sees
// them after kube-proxy has replaced the IP of a Service. The rules are the standard semantics: a
// Pod that a policy selects for a direction accepts in it only what one of its policies allows;
// replies pass; a Pod reaches itself; the node reaches its Pods, for the kubelet's probes. Pods on
// the host network are not subject to policies, and no selector selects them.
package netpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Table is the nftables table of the rules.
const Table = "inet testbed-policies"

// Remove is the nft script that removes the rules.
const Remove = "add table " + Table + "\ndelete table " + Table + "\n"

// State is the part of a cluster that the rules depend on.
type State struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Policies   []*networkingv1.NetworkPolicy
}

// Ruleset returns the nft script that replaces the rules of a node.
func (s State) Ruleset(node string) (string, error) {
	c := newCompiler(s)
	var chains, jumps strings.Builder
	for _, d := range []direction{egress, ingress} {
		var v4, v6 []string
		for _, pod := range c.pods {
			if pod.Spec.NodeName != node {
				continue
			}
			rules, isolated, err := c.rules(d, pod)
			if err != nil {
				return "", err
			}
			if !isolated {
				continue
			}
			name := chainName(d, pod)
			fmt.Fprintf(&chains, "\tchain %s { # %s/%s\n\t\t%s\n\t\tdrop\n\t}\n", name, pod.Namespace, pod.Name, strings.Join(rules, "\n\t\t"))
			for _, ip := range addresses(pod) {
				element := fmt.Sprintf("%s : jump %s", ip, name)
				if ip.Is4() {
					v4 = append(v4, element)
				} else {
					v6 = append(v6, element)
				}
			}
		}
		writeJump(&jumps, "ip", d.local, v4)
		writeJump(&jumps, "ip6", d.local, v6)
	}
	return fmt.Sprintf(`%stable %s {
%s	chain policies {
		ct state established,related accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert } accept
%s	}
	chain forward {
		type filter hook forward priority filter
		jump policies
	}
	chain input { # from a Pod to its node
		type filter hook input priority filter
		jump policies
	}
}
`, Remove, Table, &chains, &jumps), nil
}

func writeJump(out *strings.Builder, family, field string, elements []string) {
	if len(elements) > 0 {
		fmt.Fprintf(out, "\t\t%s %s vmap { %s }\n", family, field, strings.Join(elements, ", "))
	}
}

// direction is ingress or egress.
type direction struct {
	name string
	kind networkingv1.PolicyType
	// local and remote are the fields with the address of the Pod and of its peer.
	local, remote string
}

var (
	ingress = direction{"ingress", networkingv1.PolicyTypeIngress, "daddr", "saddr"}
	egress  = direction{"egress", networkingv1.PolicyTypeEgress, "saddr", "daddr"}
)

// chainName returns the name of a Pod's chain. Addresses are unique on a node, and short.
func chainName(d direction, pod *corev1.Pod) string {
	return d.name + "-" + strings.ReplaceAll(addresses(pod)[0].String(), ":", "_")
}

// compiler translates the policies of one cluster.
type compiler struct {
	namespaces map[string]labels.Set
	// pods have addresses and are not on the host network, sorted by namespace and name.
	pods     []*corev1.Pod
	policies []*networkingv1.NetworkPolicy
}

func newCompiler(s State) compiler {
	c := compiler{namespaces: map[string]labels.Set{}, policies: slices.Clone(s.Policies)}
	for _, ns := range s.Namespaces {
		c.namespaces[ns.Name] = ns.Labels
	}
	for _, pod := range s.Pods {
		// its address may be another Pod's
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !pod.Spec.HostNetwork && !ended && len(addresses(pod)) > 0 {
			c.pods = append(c.pods, pod)
		}
	}
	slices.SortFunc(c.pods, func(a, b *corev1.Pod) int { return compareNames(a, b) })
	slices.SortFunc(c.policies, func(a, b *networkingv1.NetworkPolicy) int { return compareNames(a, b) })
	return c
}

func compareNames(a, b metav1.Object) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// addresses returns the addresses of a Pod.
func addresses(pod *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// rules returns the rules that allow a Pod's packets in a direction, and whether a policy isolates
// it.
func (c compiler) rules(d direction, pod *corev1.Pod) (rules []string, isolated bool, err error) {
	for _, ip := range addresses(pod) {
		rules = append(rules, fmt.Sprintf("%s %s %s return", family(ip), d.remote, ip)) // itself
	}
	for _, policy := range c.policies {
		selects, err := matches(&policy.Spec.PodSelector, pod.Labels)
		if err != nil {
			return nil, false, fmt.Errorf("NetworkPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
		}
		if policy.Namespace != pod.Namespace || !selects || !applies(policy, d.kind) {
			continue
		}
		isolated = true
		for _, rule := range policyRules(policy, d.kind) {
			allowed, err := c.translate(d, pod, policy.Namespace, rule)
			if err != nil {
				return nil, false, fmt.Errorf("NetworkPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
			}
			rules = append(rules, allowed...)
		}
	}
	return rules, isolated, nil
}

// applies reports whether a policy is about a direction. Without policy types, each policy is about
// ingress, and one with egress rules about egress.
func applies(policy *networkingv1.NetworkPolicy, kind networkingv1.PolicyType) bool {
	if len(policy.Spec.PolicyTypes) > 0 {
		return slices.Contains(policy.Spec.PolicyTypes, kind)
	}
	return kind == networkingv1.PolicyTypeIngress || len(policy.Spec.Egress) > 0
}

// policyRule is a rule of either direction: no peers are all peers, no ports are all ports.
type policyRule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func policyRules(policy *networkingv1.NetworkPolicy, kind networkingv1.PolicyType) (out []policyRule) {
	if kind == networkingv1.PolicyTypeIngress {
		for _, r := range policy.Spec.Ingress {
			out = append(out, policyRule{r.From, r.Ports})
		}
		return out
	}
	for _, r := range policy.Spec.Egress {
		out = append(out, policyRule{r.To, r.Ports})
	}
	return out
}

// translate returns the nftables rules of one rule of a policy in namespace.
func (c compiler) translate(d direction, pod *corev1.Pod, namespace string, rule policyRule) (out []string, err error) {
	peers, pods, err := c.peers(d, namespace, rule.peers)
	if err != nil {
		return nil, err
	}
	ports := []string{""}
	if len(rule.ports) > 0 {
		ports = nil
	}
	for _, port := range rule.ports {
		if isNamed(port) && d == egress { // a name of each peer
			out = append(out, namedPorts(d, pods, port)...)
		} else if match, ok := matchPort(pod, port); ok {
			ports = append(ports, match)
		}
	}
	for _, peer := range peers {
		for _, port := range ports {
			out = append(out, strings.Join(strings.Fields(peer+" "+port+" return"), " "))
		}
	}
	return out, nil
}

func isNamed(port networkingv1.NetworkPolicyPort) bool {
	return port.Port != nil && port.Port.Type == intstr.String
}

// matchPort returns the match of a port of pod, and whether the Pod has it.
func matchPort(pod *corev1.Pod, port networkingv1.NetworkPolicyPort) (match string, ok bool) {
	protocol := nftProtocol(port)
	switch {
	case port.Port == nil:
		return "meta l4proto " + protocol, true
	case isNamed(port):
		number, ok := containerPort(pod, port.Port.StrVal, protocolOf(port))
		return fmt.Sprintf("%s dport %d", protocol, number), ok
	case port.EndPort != nil:
		return fmt.Sprintf("%s dport %d-%d", protocol, port.Port.IntVal, *port.EndPort), true
	default:
		return fmt.Sprintf("%s dport %d", protocol, port.Port.IntVal), true
	}
}

// namedPorts returns the rules that allow each of pods at its port with a name.
func namedPorts(d direction, pods []*corev1.Pod, port networkingv1.NetworkPolicyPort) (out []string) {
	for _, pod := range pods {
		match, ok := matchPort(pod, port)
		if !ok {
			continue
		}
		for _, address := range matchAddresses(d, addresses(pod)) {
			out = append(out, address+" "+match+" return")
		}
	}
	return out
}

// peers returns the matches of the addresses of peers, and the Pods among them.
func (c compiler) peers(d direction, namespace string, peers []networkingv1.NetworkPolicyPeer) (out []string, pods []*corev1.Pod, err error) {
	if len(peers) == 0 {
		return []string{""}, c.pods, nil
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			match, err := matchBlock(d, peer.IPBlock)
			if err != nil {
				return nil, nil, err
			}
			out = append(out, match)
			continue
		}
		selected, err := c.selectPods(namespace, peer)
		if err != nil {
			return nil, nil, err
		}
		var ips []netip.Addr
		for _, pod := range selected {
			ips = append(ips, addresses(pod)...)
		}
		pods = append(pods, selected...)
		out = append(out, matchAddresses(d, ips)...)
	}
	return out, pods, nil
}

// selectPods returns the Pods that a peer with selectors selects. Without a namespace selector they
// are in the policy's namespace.
func (c compiler) selectPods(namespace string, peer networkingv1.NetworkPolicyPeer) (out []*corev1.Pod, err error) {
	for _, pod := range c.pods {
		in := pod.Namespace == namespace
		if peer.NamespaceSelector != nil {
			if in, err = matches(peer.NamespaceSelector, c.namespaces[pod.Namespace]); err != nil {
				return nil, err
			}
		}
		selected := true
		if peer.PodSelector != nil {
			if selected, err = matches(peer.PodSelector, pod.Labels); err != nil {
				return nil, err
			}
		}
		if in && selected {
			out = append(out, pod)
		}
	}
	return out, nil
}

func matches(selector *metav1.LabelSelector, set labels.Set) (bool, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, fmt.Errorf("reading a selector: %w", err)
	}
	return parsed.Matches(set), nil
}

// matchAddresses returns one match for each family that ips have.
func matchAddresses(d direction, ips []netip.Addr) (out []string) {
	byFamily := map[string][]string{}
	for _, ip := range ips {
		byFamily[family(ip)] = append(byFamily[family(ip)], ip.String())
	}
	for _, f := range []string{"ip", "ip6"} {
		if list := byFamily[f]; len(list) > 0 {
			slices.Sort(list)
			out = append(out, fmt.Sprintf("%s %s { %s }", f, d.remote, strings.Join(slices.Compact(list), ", ")))
		}
	}
	return out
}

func matchBlock(d direction, block *networkingv1.IPBlock) (string, error) {
	network, err := netip.ParsePrefix(block.CIDR)
	if err != nil {
		return "", fmt.Errorf("reading a block: %w", err)
	}
	field := family(network.Addr()) + " " + d.remote
	match := field + " " + network.Masked().String()
	for _, except := range block.Except {
		out, err := netip.ParsePrefix(except)
		if err != nil {
			return "", fmt.Errorf("reading an exception of a block: %w", err)
		}
		match += " " + field + " != " + out.Masked().String()
	}
	return match, nil
}

func family(ip netip.Addr) string {
	if ip.Is4() {
		return "ip"
	}
	return "ip6"
}

func nftProtocol(port networkingv1.NetworkPolicyPort) string {
	return strings.ToLower(string(protocolOf(port)))
}

func protocolOf(port networkingv1.NetworkPolicyPort) corev1.Protocol {
	if port.Protocol == nil {
		return corev1.ProtocolTCP
	}
	return *port.Protocol
}

// containerPort returns the number of a Pod's port with a name, in containers and sidecars.
func containerPort(pod *corev1.Pod, name string, protocol corev1.Protocol) (number int32, ok bool) {
	containers := slices.Clone(pod.Spec.Containers)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, p := range c.Ports {
			if p.Name == name && cmp.Or(p.Protocol, corev1.ProtocolTCP) == protocol {
				return p.ContainerPort, true
			}
		}
	}
	return 0, false
}
