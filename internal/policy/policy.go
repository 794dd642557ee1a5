// Package policy decides which exports of other clusters this cluster imports, and with which
// addresses: by the file of --import-policy and by the addresses of this cluster itself. It does no
// I/O.
package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Policy is a parsed --import-policy. A nil *Policy allows everything.
type Policy struct {
	// allow reports whether clusters without a rule may export everything.
	allow    bool
	clusters map[string]rule
	// announcedOnly reports whether the endpoints of a cluster without podNetworks must be in the
	// networks that it announces.
	announcedOnly bool
	// systemNamespaces are the system namespaces that may be imported into.
	systemNamespaces []string
}

// rule limits the exports of one cluster.
type rule struct {
	// namespaces are names, or prefixes that end with an asterisk; nil means all.
	namespaces []string
	// podNetworks contain all endpoints of the cluster; nil means any.
	podNetworks []netip.Prefix
}

// AllowsNamespace returns an error with the reason why cluster may not export services of
// namespace.
func (p *Policy) AllowsNamespace(cluster, namespace string) error {
	if p == nil {
		return nil
	}
	r, listed := p.clusters[cluster]
	switch {
	case !listed && !p.allow:
		return fmt.Errorf("--import-policy denies the clusters that it does not list: to import from cluster %s, list it there", cluster)
	case listed && r.namespaces != nil && !slices.ContainsFunc(r.namespaces, func(pattern string) bool { return matches(pattern, namespace) }):
		return fmt.Errorf("--import-policy does not allow cluster %s to export services of namespace %s", cluster, namespace)
	}
	return nil
}

// matches reports whether pattern is name, or a prefix of it and an asterisk.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// podNetworks returns the networks of a cluster's endpoints, nil for any.
func (p *Policy) podNetworks(cluster string) []netip.Prefix {
	if p == nil {
		return nil
	}
	return p.clusters[cluster].podNetworks
}

// usesAnnounced reports whether the endpoints of a cluster must be in the networks that it
// announces.
func (p *Policy) usesAnnounced(cluster string) bool {
	return p != nil && p.announcedOnly && p.clusters[cluster].podNetworks == nil
}

// AllowsSystemNamespace reports whether the policy lists namespace, a system namespace, to be
// imported into.
func (p *Policy) AllowsSystemNamespace(namespace string) bool {
	return p != nil && slices.Contains(p.systemNamespaces, namespace)
}

// Local are the addresses of this cluster that no endpoint of another cluster can have. The zero
// value has none.
type Local struct {
	// ServiceNetworks are the networks of the cluster IPs of Services.
	ServiceNetworks []netip.Prefix
	// Addresses are further addresses, each with its description.
	Addresses map[netip.Addr]string
}

// CheckService returns an error if a is a cluster IP in this cluster.
func (l *Local) CheckService(a netip.Addr) error {
	if l == nil {
		return nil
	}
	for _, network := range l.ServiceNetworks {
		if network.Contains(a) {
			return fmt.Errorf("is in this cluster's Service network %s", network)
		}
	}
	return nil
}

// Check returns an error if a is an address of this cluster.
func (l *Local) Check(a netip.Addr) error {
	if err := l.CheckService(a); err != nil || l == nil {
		return err
	}
	if name, ok := l.Addresses[a]; ok {
		return fmt.Errorf("is %s", name)
	}
	return nil
}

// IsSameNetworks reports whether l and other have the same Service networks.
func (l *Local) IsSameNetworks(other *Local) bool {
	return slices.Equal(l.ServiceNetworks, other.ServiceNetworks)
}

// ChangedAddresses returns the addresses that only one of l and other has, and those that are
// another thing in the other.
func (l *Local) ChangedAddresses(other *Local) map[netip.Addr]struct{} {
	changed := map[netip.Addr]struct{}{}
	for a, name := range l.Addresses {
		if now, ok := other.Addresses[a]; !ok || now != name {
			changed[a] = struct{}{}
		}
	}
	for a := range other.Addresses {
		if _, ok := l.Addresses[a]; !ok {
			changed[a] = struct{}{}
		}
	}
	return changed
}

// Reason is the reason of a refusal, as in a condition.
type Reason string

// The reasons of refusals.
const (
	// ReasonNamespace: the policy does not allow the cluster to export services of the namespace.
	ReasonNamespace Reason = "NamespaceNotAllowed"
	// ReasonNetwork: endpoints are not in the pod networks that the policy allows the cluster.
	ReasonNetwork Reason = "AddressNotAllowed"
	// ReasonLocal: endpoints have addresses of this cluster that are no pods of another one.
	ReasonLocal Reason = "AddressOfThisCluster"
	// ReasonOther: endpoints have an address and port that belong to another cluster, whose export
	// of the service is older.
	ReasonOther Reason = "AddressOfAnotherCluster"
	// ReasonPorts: the exports of the service have too many ports together.
	ReasonPorts Reason = "TooManyPorts"
	// ReasonPrecedence: the export claims to be older than those that the import was established
	// with.
	ReasonPrecedence Reason = "PrecedenceNotAllowed"
)

// Refusal is the refusal of an export, or of some of its endpoints.
type Refusal struct {
	Cluster string `json:"cluster"`
	Reason  Reason `json:"reason"`
	// Endpoints is the number of refused endpoints, 0 if it does not concern endpoints.
	Endpoints int    `json:"endpoints,omitempty"`
	Message   string `json:"message"`
}

// OfShared returns the refusals of endpoints whose addresses belong to another cluster.
func OfShared(shared []mcs.SharedAddresses) []Refusal {
	var out []Refusal
	for _, s := range shared {
		out = append(out, Refusal{Cluster: s.Cluster, Reason: ReasonOther, Endpoints: s.Endpoints, Message: s.String()})
	}
	return out
}

// OfPorts returns the refusals of ports, because the exports that m was merged from have too many.
func OfPorts(m mcs.Merged) []Refusal {
	var out []Refusal
	for _, u := range m.PortUses {
		if message := m.PortsLeftOut(u.Cluster); message != "" {
			out = append(out, Refusal{Cluster: u.Cluster, Reason: ReasonPorts, Message: message})
		}
	}
	return out
}

// maxExamples is the number of addresses in the message of a Refusal.
const maxExamples = 3

// Apply returns the part of exp, an export of another cluster, that this cluster imports, and the
// refusals. It reports false if that is the whole export. properties are the ClusterProperties of
// the exporting cluster, nil if they are not known. exp is not changed.
func (p *Policy) Apply(exp mcs.Export, properties mcs.Properties, local *Local) (mcs.Export, []Refusal, bool) {
	if err := p.AllowsNamespace(exp.Cluster, exp.Key.Namespace); err != nil {
		return mcs.Export{}, []Refusal{{Cluster: exp.Cluster, Reason: ReasonNamespace, Message: err.Error()}}, false
	}
	networks, limited := p.podNetworks(exp.Cluster), p.usesAnnounced(exp.Cluster)
	if limited {
		networks = properties.Networks()
	}
	limited = limited || networks != nil
	byReason := map[Reason]*addresses{}
	refused := func(a netip.Addr) bool {
		if err := local.Check(a); err != nil {
			add(byReason, ReasonLocal, fmt.Sprintf("%s %v", a, err))
			return true
		}
		if limited && !slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) }) {
			add(byReason, ReasonNetwork, a.String())
			return true
		}
		return false
	}
	backends := withoutEndpoints(exp.Backends, refused)
	if len(byReason) == 0 {
		return exp, nil, true
	}
	exp.Backends = backends
	var out []Refusal
	if a := byReason[ReasonLocal]; a != nil {
		out = append(out, Refusal{exp.Cluster, ReasonLocal, a.count,
			fmt.Sprintf("%s of cluster %s refused: %s", a.endpoints(), exp.Cluster, a.list())})
	}
	if a := byReason[ReasonNetwork]; a != nil {
		allowed := "the pod networks " + listNetworks(networks)
		switch {
		case !p.usesAnnounced(exp.Cluster):
		case len(networks) == 0:
			allowed = "the networks that it announces, and it announces none"
		default:
			allowed = "the networks that it announces, " + listNetworks(networks)
		}
		out = append(out, Refusal{exp.Cluster, ReasonNetwork, a.count,
			fmt.Sprintf("%s of cluster %s refused, which --import-policy allows only %s: %s", a.endpoints(), exp.Cluster, allowed, a.list())})
	}
	return exp, out, true
}

// CheckAddress returns an error if this cluster must not connect to address a for cluster: it
// imports nothing from that cluster, or no endpoint with this address. The networks that the
// cluster announces are not compared: the address is that of its controller or of an endpoint.
func (p *Policy) CheckAddress(cluster string, a netip.Addr, local *Local) error {
	if p != nil && !p.allow {
		if _, listed := p.clusters[cluster]; !listed {
			return errors.New("--import-policy denies the cluster")
		}
	}
	if err := mcs.CheckPodAddress(a); err != nil {
		return err
	}
	if err := local.Check(a); err != nil {
		return err
	}
	if networks := p.podNetworks(cluster); networks != nil && !slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) }) {
		return errors.New("--import-policy does not allow the cluster this address")
	}
	return nil
}

// addresses are refused addresses, with examples.
type addresses struct {
	count    int
	examples []string
}

func add(byReason map[Reason]*addresses, reason Reason, example string) {
	a := byReason[reason]
	if a == nil {
		a = &addresses{}
		byReason[reason] = a
	}
	if a.count++; len(a.examples) < maxExamples {
		a.examples = append(a.examples, example)
	}
}

func (a *addresses) endpoints() string {
	if a.count == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", a.count)
}

func (a *addresses) list() string {
	list := strings.Join(a.examples, ", ")
	if more := a.count - len(a.examples); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// listNetworks joins networks for a message.
func listNetworks(networks []netip.Prefix) string {
	var list []string
	for _, n := range networks[:min(len(networks), maxExamples)] {
		list = append(list, n.String())
	}
	text := strings.Join(list, ", ")
	if more := len(networks) - len(list); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// withoutEndpoints returns a copy of backends without the refused endpoints.
func withoutEndpoints(backends []mcs.Backends, refused func(netip.Addr) bool) []mcs.Backends {
	var out []mcs.Backends
	for _, b := range backends {
		b.Endpoints = slices.DeleteFunc(slices.Clone(b.Endpoints), func(e mcs.Endpoint) bool { return refused(e.Address) })
		if len(b.Endpoints) > 0 {
			out = append(out, b)
		}
	}
	return out
}
