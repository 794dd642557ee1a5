package mcs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// SharedAddresses are endpoints of a cluster that are left out, because the export of another
// cluster has their address and one of their ports, and they belong to that one.
type SharedAddresses struct {
	Cluster, Owner string
	// Announced reports whether they are left out because Cluster announces other networks, and not
	// because the export of Owner is older.
	Announced bool
	// Endpoints is their number, and Examples are the addresses of at most leftOutNames of them.
	Endpoints int
	Examples  []string
}

// OwnAddresses returns the exports of one service of type t in their order, with the endpoints that
// each cluster owns, and those that are left out, sorted. exports is not changed.
//
// Within a service an address and port belong to the oldest export that has them, as long as it has
// them, whatever their state is. An export of a cluster that announces networks (PropertyNetworks)
// other than that of the address comes after all others; one of a cluster that announces none
// counts by its age, so that no cluster can take an address from it by an announcement. kube-proxy
// knows one endpoint of a Service for each address and port, and takes any of several: one that is
// not ready in another cluster's export would hide the ready one. An endpoint of which another
// cluster owns one port is left out with all its ports: its address is that of another cluster's
// pod.
//
// In a headless service an address belongs to one cluster with all its ports. DNS has addresses
// only, so that one which is not ready any more would stay in it under another port.
//
// properties are the ClusterProperties of the exporting clusters, as far as they are known.
func OwnAddresses(t mcsv1beta1.ServiceImportType, exports []Export, properties map[string]Properties) ([]Export, []SharedAddresses) {
	if len(exports) < 2 {
		return exports, nil
	}
	owned, shared := ownAddresses(t, exports, nil)
	if len(shared) == 0 {
		return owned, nil // the networks make no difference
	}
	networks := map[string][]netip.Prefix{}
	for _, e := range exports {
		if list := properties[e.Cluster].Networks(); len(list) > 0 {
			networks[e.Cluster] = list
		}
	}
	if len(networks) == 0 {
		return owned, shared
	}
	return ownAddresses(t, exports, func(cluster string, a netip.Addr) bool {
		list := networks[cluster]
		return list != nil && !slices.ContainsFunc(list, func(n netip.Prefix) bool { return n.Contains(a) })
	})
}

// ownAddresses implements OwnAddresses. isOutside reports whether a cluster announces networks and
// none of them has an address; nil is never.
func ownAddresses(t mcsv1beta1.ServiceImportType, exports []Export, isOutside func(cluster string, a netip.Addr) bool) ([]Export, []SharedAddresses) {
	out := slices.Clone(exports)
	order, endpoints := make([]int, len(exports)), 0
	for i, e := range exports {
		order[i] = i
		endpoints += e.EndpointCount()
	}
	slices.SortFunc(order, func(a, b int) int { return comparePrecedence(exports[a], exports[b]) })
	all := claims{kind: t, list: make([]claim, 0, endpoints), latest: make(map[netip.Addr]int, endpoints), overlaps: newOverlaps[portKey]()}
	if all.isOutside = isOutside; isOutside != nil {
		for _, i := range order {
			all.add(exports[i].withoutAddresses(isOutside))
		}
	}
	var shared []SharedAddresses
	for _, i := range order {
		var lost []SharedAddresses
		out[i].Backends, lost = all.add(exports[i])
		shared = append(shared, lost...)
	}
	slices.SortFunc(shared, compareShared)
	return out, shared
}

// LeaveOut returns exports without the endpoints of chosen, their chosen parts, that OwnAddresses
// has left out of owned. The three lists have the same clusters in the same order, t is the type of
// the service. exports is not changed.
func LeaveOut(t mcsv1beta1.ServiceImportType, exports, chosen, owned []Export) []Export {
	out := slices.Clone(exports)
	for i := range out {
		if chosen[i].EndpointCount() == owned[i].EndpointCount() {
			continue
		}
		lost := lostPorts(t, chosen[i].Backends, owned[i].Backends)
		out[i].Backends = nil
		for _, b := range exports[i].Backends {
			ports := b.claimedPorts(t)
			b.Endpoints = slices.DeleteFunc(slices.Clone(b.Endpoints), func(ep Endpoint) bool {
				return slices.ContainsFunc(lost[ep.Address.Unmap()], func(p map[portKey]bool) bool { return haveCommon(p, ports) })
			})
			if len(b.Endpoints) > 0 {
				out[i].Backends = append(out[i].Backends, b)
			}
		}
	}
	return out
}

// lostPorts returns the ports of each address that chosen has and owned lacks.
func lostPorts(t mcsv1beta1.ServiceImportType, chosen, owned []Backends) map[netip.Addr][]map[portKey]bool {
	kept := map[string]map[endpointKey]bool{}
	for _, b := range owned {
		kept[portsKey(b.Ports)] = map[endpointKey]bool{}
		for _, ep := range b.Endpoints {
			kept[portsKey(b.Ports)][endpointKey{ep.Address, ep.Hostname}] = true
		}
	}
	lost := map[netip.Addr][]map[portKey]bool{}
	for _, b := range chosen {
		for _, ep := range b.Endpoints {
			if address := ep.Address.Unmap(); !kept[portsKey(b.Ports)][endpointKey{ep.Address, ep.Hostname}] {
				lost[address] = append(lost[address], b.claimedPorts(t))
			}
		}
	}
	return lost
}

// endpointKey identifies an endpoint in a group.
type endpointKey struct {
	address  netip.Addr
	hostname string
}

// haveCommon reports whether a and b have a common port.
func haveCommon(a, b map[portKey]bool) bool {
	for key := range a {
		if b[key] {
			return true
		}
	}
	return false
}

// JoinShared returns the union of two lists of different endpoints, sorted.
func JoinShared(a, b []SharedAddresses) []SharedAddresses {
	out := slices.Clone(a)
	for _, s := range b {
		i := slices.IndexFunc(out, func(o SharedAddresses) bool { return compareShared(o, s) == 0 })
		if i < 0 {
			out = append(out, s)
			continue
		}
		out[i].Endpoints += s.Endpoints
		out[i].Examples = slices.Concat(out[i].Examples, s.Examples)
		out[i].Examples = out[i].Examples[:min(len(out[i].Examples), leftOutNames)]
	}
	slices.SortFunc(out, compareShared)
	return out
}

func compareShared(a, b SharedAddresses) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Owner, b.Owner), compareTrueFirst(a.Announced, b.Announced))
}

// withoutAddresses returns e without the endpoints whose addresses are outside.
func (e Export) withoutAddresses(isOutside func(cluster string, a netip.Addr) bool) Export {
	e.Backends = slices.Clone(e.Backends)
	for i := range e.Backends {
		e.Backends[i].Endpoints = slices.DeleteFunc(slices.Clone(e.Backends[i].Endpoints), func(ep Endpoint) bool { return isOutside(e.Cluster, ep.Address.Unmap()) })
	}
	return e
}

// claims are the addresses and ports of exports.
type claims struct {
	kind mcsv1beta1.ServiceImportType
	// clusters are those of the groups of endpoints of all exports, whose ports are in overlaps.
	clusters []string
	overlaps *overlaps[portKey]
	// list has a claim for each endpoint, and latest the number of the last claim to each address,
	// from 1.
	list   []claim
	latest map[netip.Addr]int
	// isOutside is that of ownAddresses.
	isOutside func(cluster string, a netip.Addr) bool
}

// claim is the claim of a group to an address. before is the number of the previous claim to the
// address, 0 if there is none.
type claim struct{ group, before int }

// add adds the endpoints of e that no other cluster claims, and returns them and the others.
func (c *claims) add(e Export) (kept []Backends, lost []SharedAddresses) {
	for _, b := range e.Backends {
		group := c.overlaps.add(b.claimedPorts(c.kind))
		c.clusters = append(c.clusters, e.Cluster)
		b.Endpoints = slices.Clone(b.Endpoints)
		b.Endpoints = slices.DeleteFunc(b.Endpoints, func(ep Endpoint) bool {
			address := ep.Address.Unmap()
			if owner, owned := c.owner(address, group); owned {
				lost = addShared(lost, SharedAddresses{
					Cluster: e.Cluster, Owner: c.clusters[owner], Announced: c.isOutside != nil && c.isOutside(e.Cluster, address), Endpoints: 1, Examples: []string{address.String()},
				})
				return true
			}
			// Host names of a headless service may share an address: one claim of the group is
			// enough.
			if last := c.latest[address]; last == 0 || c.list[last-1].group != group {
				c.list = append(c.list, claim{group, last})
				c.latest[address] = len(c.list)
			}
			return false
		})
		if len(b.Endpoints) > 0 {
			kept = append(kept, b)
		}
	}
	return kept, lost
}

// owner returns the group of another cluster that was the first to claim address and a port of
// group.
func (c *claims) owner(address netip.Addr, group int) (owner int, owned bool) {
	for n := c.latest[address]; n > 0; n = c.list[n-1].before {
		other := c.list[n-1].group
		if c.clusters[other] != c.clusters[group] && c.overlaps.of(other, group) {
			owner, owned = other, true
		}
	}
	return owner, owned
}

// overlaps reports whether groups of endpoints have a common port. K is the identity of a port.
type overlaps[K comparable] struct {
	ports []map[K]bool
	known map[[2]int]bool
}

func newOverlaps[K comparable]() *overlaps[K] { return &overlaps[K]{known: map[[2]int]bool{}} }

// add adds a group and returns its number.
func (o *overlaps[K]) add(ports map[K]bool) int {
	o.ports = append(o.ports, ports)
	return len(o.ports) - 1
}

// of reports whether two groups have a common port. It compares each pair once: many addresses may
// be in both.
func (o *overlaps[K]) of(a, b int) bool {
	pair := [2]int{a, b}
	overlap, known := o.known[pair]
	if !known {
		for key := range o.ports[a] {
			overlap = overlap || o.ports[b][key]
		}
		o.known[pair] = overlap
	}
	return overlap
}

// portNames returns the ports of b as kube-proxy knows them, which has the endpoints of each port
// name and protocol.
func (b Backends) portNames() map[BackendPort]bool {
	out := make(map[BackendPort]bool, len(b.Ports))
	for _, p := range b.Ports {
		p.AppProtocol = ""
		out[p] = true
	}
	return out
}

// claimedPorts returns the ports that b claims for its addresses in a service of type t: the
// protocols and numbers of its ports, and in a headless service the zero portKey alone, which
// stands for all.
func (b Backends) claimedPorts(t mcsv1beta1.ServiceImportType) map[portKey]bool {
	if t == mcsv1beta1.Headless {
		return map[portKey]bool{{}: true}
	}
	out := make(map[portKey]bool, len(b.Ports))
	for _, p := range b.Ports {
		out[portKey{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}] = true
	}
	return out
}

// addShared adds s, a single endpoint, to list.
func addShared(list []SharedAddresses, s SharedAddresses) []SharedAddresses {
	i := slices.IndexFunc(list, func(o SharedAddresses) bool { return compareShared(o, s) == 0 })
	if i < 0 {
		return append(list, s)
	}
	if list[i].Endpoints++; len(list[i].Examples) < leftOutNames && !slices.Contains(list[i].Examples, s.Examples[0]) {
		list[i].Examples = append(list[i].Examples, s.Examples[0])
	}
	return list
}

// String describes s in a line with examples.
func (s SharedAddresses) String() string {
	endpoints := "1 endpoint"
	if s.Endpoints > 1 {
		endpoints = fmt.Sprintf("%d endpoints", s.Endpoints)
	}
	reason := "its export of the service is older"
	if s.Announced {
		reason = "cluster " + s.Cluster + " announces other networks"
	}
	return fmt.Sprintf("%s of cluster %s left out, whose addresses and ports belong to cluster %s, because %s: %s",
		endpoints, s.Cluster, s.Owner, reason, strings.Join(s.Examples, ", "))
}

// ReasonAddressConflict is a reason of the ServiceExport condition Conflict beside those of
// mcs-api: exports have common addresses and ports.
const ReasonAddressConflict mcsv1beta1.ServiceExportConditionReason = "AddressConflict"

// AddressConflict returns the conflict about shared, nil if it is empty. Its message has no
// addresses and numbers, so that it stays the same while pods come and go.
func AddressConflict(shared []SharedAddresses) *Conflict {
	if len(shared) == 0 {
		return nil
	}
	var pairs []string
	for _, s := range shared {
		pairs = append(pairs, fmt.Sprintf("cluster %s exports endpoints of cluster %s", s.Cluster, s.Owner))
	}
	rule := "from the oldest export that has them"
	if slices.ContainsFunc(shared, func(s SharedAddresses) bool { return s.Announced }) {
		rule = "from the oldest export that has them, of a cluster that announces no other networks"
	}
	return &Conflict{
		Reason:  ReasonAddressConflict,
		Message: fmt.Sprintf("addresses: using each address and port %s: %s", rule, enumerate(slices.Compact(pairs))),
	}
}
