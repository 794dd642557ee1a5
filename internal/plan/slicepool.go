package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// poolID identifies the slices of one source cluster and address family. A slice never leaves its
// pool.
type poolID struct {
	cluster string
	family  discoveryv1.AddressType
}

func (a poolID) compare(b poolID) int {
	return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(string(a.family), string(b.family)))
}

// pool holds the existing slices and the desired endpoints of one poolID.
type pool struct {
	id       poolID
	existing []*discoveryv1.EndpointSlice
	sets     []*portSet
	// keep: the cluster exports the service, so one slice stays even without endpoints.
	keep bool
}

// portSet holds the endpoints with the same ports, which can share slices.
type portSet struct {
	ports    []discoveryv1.EndpointPort
	order    []endpointID                        // all endpoints, sorted
	unplaced map[endpointID]discoveryv1.Endpoint // endpoints that are in no draft
	drafts   []*draft
}

// endpointID identifies an endpoint of a portSet. Several endpoints of a headless service may have
// one address: each pod has its host name.
type endpointID struct{ address, hostname string }

// idOf returns the ID of ep, which is not in any portSet if ep has no address.
func idOf(ep discoveryv1.Endpoint) endpointID {
	if len(ep.Addresses) == 0 {
		return endpointID{}
	}
	return endpointID{ep.Addresses[0], ptr.Deref(ep.Hostname, "")}
}

// draft is the desired state of a slice.
type draft struct {
	from      *discoveryv1.EndpointSlice // nil: a new slice
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
	changed   bool // its endpoints differ from those of from, so it is written anyway
	shrunk    bool // it has lost endpoints
	unused    bool // it will be deleted
}

// wantedPools returns the pools of all exports, without existing slices.
func wantedPools(in SliceInput) map[poolID]*pool {
	pools := map[poolID]*pool{}
	poolOf := func(cluster string, family discoveryv1.AddressType) *pool {
		id := poolID{cluster, family}
		if pools[id] == nil {
			pools[id] = &pool{id: id}
		}
		return pools[id]
	}
	for _, e := range in.Exports {
		for _, family := range placeholderFamilies(in, e) {
			poolOf(e.Cluster, family).keep = true
		}
		for _, b := range in.Merged.Backends(e) {
			sets := map[discoveryv1.AddressType]*portSet{}
			for _, ep := range b.Endpoints {
				family := addressType(ep.Address)
				if !in.usesFamily(family) {
					continue
				}
				if sets[family] == nil {
					sets[family] = &portSet{ports: in.endpointPorts(b.Ports), unplaced: map[endpointID]discoveryv1.Endpoint{}}
				}
				sets[family].addEndpoint(in.sliceEndpoint(e.Cluster, ep))
			}
			for family, set := range sets {
				p := poolOf(e.Cluster, family)
				p.sets = append(p.sets, set)
			}
		}
	}
	return pools
}

// usesFamily reports whether endpoints of the family are used. kube-proxy ignores slices of a
// family that the derived Service does not have, while clients of a headless service use all
// addresses from DNS.
func (in SliceInput) usesFamily(t discoveryv1.AddressType) bool {
	return in.Merged.Type == mcsv1beta1.Headless || in.hasFamily(t)
}

// hasFamily reports whether the family is one of in.Families, or these are unknown.
func (in SliceInput) hasFamily(t discoveryv1.AddressType) bool {
	return len(in.Families) == 0 || slices.Contains(in.Families, corev1.IPFamily(t))
}

// placeholderFamilies returns the families in which e has a slice even without endpoints: those of
// e that this cluster has, or if e has none, those of its endpoints, or IPv4.
func placeholderFamilies(in SliceInput, e mcs.Export) []discoveryv1.AddressType {
	var families []discoveryv1.AddressType
	for _, f := range e.IPFamilies {
		families = append(families, discoveryv1.AddressType(f))
	}
	if len(families) == 0 && e.EndpointCount() == 0 {
		families = append(families, discoveryv1.AddressTypeIPv4)
	}
	return slices.DeleteFunc(families, func(t discoveryv1.AddressType) bool { return !in.hasFamily(t) })
}

// sliceEndpoint returns ep, an endpoint of cluster, as in an EndpointSlice.
func (in SliceInput) sliceEndpoint(cluster string, ep mcs.Endpoint) discoveryv1.Endpoint {
	if cluster != in.LocalCluster {
		ep.Node = "" // a node of this cluster may have the same name
	}
	return discoveryv1.Endpoint{
		Addresses: []string{ep.Address.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready: &ep.Ready, Serving: &ep.Serving, Terminating: &ep.Terminating,
		},
		Hostname: pointerOrNil(ep.Hostname),
		NodeName: pointerOrNil(ep.Node),
		Zone:     pointerOrNil(ep.Zone),
		Hints:    topologyHints(in.Merged.TrafficDistribution, ep.Zone, ep.Node),
	}
}

// addEndpoint adds an endpoint to the set.
func (s *portSet) addEndpoint(ep discoveryv1.Endpoint) {
	s.unplaced[idOf(ep)] = ep
	s.order = append(s.order, idOf(ep))
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// endpointPorts returns ports as in an EndpointSlice, under all their names, sorted.
func (in SliceInput) endpointPorts(ports []mcs.BackendPort) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for _, p := range ports {
		names, several := in.PortNames[p.Name]
		if !several {
			names = []string{p.Name}
		}
		for _, name := range names {
			if slices.ContainsFunc(out, func(o discoveryv1.EndpointPort) bool { return *o.Name == name }) {
				continue
			}
			out = append(out, discoveryv1.EndpointPort{Name: &name, Protocol: &p.Protocol, Port: &p.Port, AppProtocol: pointerOrNil(p.AppProtocol)})
		}
	}
	slices.SortStableFunc(out, func(a, b discoveryv1.EndpointPort) int { return strings.Compare(*a.Name, *b.Name) })
	return out
}

// hasSamePorts reports whether a and b differ in the appProtocol at most.
func hasSamePorts(a, b []discoveryv1.EndpointPort) bool {
	return slices.EqualFunc(a, b, func(a, b discoveryv1.EndpointPort) bool {
		return ptr.Equal(a.Name, b.Name) && ptr.Equal(a.Protocol, b.Protocol) && ptr.Equal(a.Port, b.Port)
	})
}

// hasSameNumbers reports whether a and b differ in names at most.
func hasSameNumbers(a, b []discoveryv1.EndpointPort) bool {
	return maps.Equal(numbersOf(a), numbersOf(b))
}

func numbersOf(ports []discoveryv1.EndpointPort) map[portID]bool {
	out := map[portID]bool{}
	for _, p := range ports {
		out[portIDOf(ptr.Deref(p.Protocol, ""), ptr.Deref(p.Port, 0))] = true
	}
	return out
}

// planDrafts returns the drafts of all slices of the pool, existing and new: steps 1 to 4 of
// Slices.
func (p *pool) planDrafts(limit int) []*draft {
	slices.SortFunc(p.existing, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	free := p.assignExisting(limit)
	for _, set := range p.sets {
		set.fillChanged(limit)
		set.dissolveShrunk(limit)
		free = append(free, set.releaseEmpty()...)
	}
	var drafts []*draft
	for _, set := range p.sets {
		free = set.placeRemaining(free, limit)
		drafts = append(drafts, set.drafts...)
	}
	if p.keep && len(drafts) == 0 {
		if len(free) == 0 {
			return []*draft{{}}
		}
		free[0].ports, free[0].changed = nil, len(free[0].from.Endpoints) > 0
		drafts, free = append(drafts, free[0]), free[1:]
	}
	for _, d := range free {
		d.unused = true
	}
	return append(drafts, free...)
}

// assignExisting creates a draft of each existing slice. It adds drafts with the ports of a set to
// the set, or else those that differ in the names of the ports, whose endpoints can stay too, and
// returns the others.
func (p *pool) assignExisting(limit int) (free []*draft) {
	for _, s := range p.existing {
		d := &draft{from: s}
		i := slices.IndexFunc(p.sets, func(set *portSet) bool { return hasSamePorts(set.ports, s.Ports) })
		if i < 0 {
			i = slices.IndexFunc(p.sets, func(set *portSet) bool { return len(s.Endpoints) > 0 && hasSameNumbers(set.ports, s.Ports) })
		}
		if i < 0 {
			free = append(free, d)
			continue
		}
		p.sets[i].adoptSlice(d, limit)
	}
	return free
}

// adoptSlice adds d to the set. d keeps the endpoints of its slice that the set has, in their
// order.
func (s *portSet) adoptSlice(d *draft, limit int) {
	d.ports, d.changed = s.ports, !hasSamePorts(s.ports, d.from.Ports)
	for _, had := range d.from.Endpoints {
		ep, ok := s.unplaced[idOf(had)]
		if !ok || len(d.endpoints) == limit {
			d.changed, d.shrunk = true, true
			continue
		}
		d.changed = d.changed || !apiequality.Semantic.DeepEqual(ep, had)
		d.endpoints = append(d.endpoints, ep)
		delete(s.unplaced, idOf(ep))
	}
	s.drafts = append(s.drafts, d)
}

// takeUnplaced removes up to n endpoints from the unplaced ones and returns them.
func (s *portSet) takeUnplaced(n int) []discoveryv1.Endpoint {
	var out []discoveryv1.Endpoint
	for len(s.order) > 0 && len(out) < n {
		id := s.order[0]
		s.order = s.order[1:]
		if ep, ok := s.unplaced[id]; ok {
			delete(s.unplaced, id)
			out = append(out, ep)
		}
	}
	return out
}

// fullestFirst returns the drafts of the set by descending number of endpoints.
func (s *portSet) fullestFirst() []*draft {
	return slices.SortedStableFunc(slices.Values(s.drafts), func(a, b *draft) int {
		return cmp.Compare(len(b.endpoints), len(a.endpoints))
	})
}

// fillChanged puts new endpoints into drafts that are written anyway.
func (s *portSet) fillChanged(limit int) {
	for _, d := range s.fullestFirst() {
		if d.changed {
			d.endpoints = append(d.endpoints, s.takeUnplaced(limit-len(d.endpoints))...)
		}
	}
}

// dissolveShrunk moves the endpoints of drafts that have shrunk to a quarter into drafts that are
// written anyway, or else into the fullest draft. The quarter keeps endpoints from moving with
// every small change of a service's size.
func (s *portSet) dissolveShrunk(limit int) {
	fullest := s.fullestFirst()
	for _, d := range slices.Backward(fullest) {
		if n := len(d.endpoints); !d.shrunk || n == 0 || n > limit/4 {
			continue
		}
		fits := func(o *draft) bool {
			return o != d && len(o.endpoints) > 0 && len(o.endpoints)+len(d.endpoints) <= limit
		}
		i := slices.IndexFunc(fullest, func(o *draft) bool { return o.changed && fits(o) })
		if i < 0 {
			i = slices.IndexFunc(fullest, fits)
		}
		if i < 0 {
			continue
		}
		fullest[i].endpoints = append(fullest[i].endpoints, d.endpoints...)
		fullest[i].changed = true
		d.endpoints = nil
	}
}

// releaseEmpty removes the drafts without endpoints from the set and returns them.
func (s *portSet) releaseEmpty() (empty []*draft) {
	s.drafts = slices.DeleteFunc(s.drafts, func(d *draft) bool {
		if len(d.endpoints) == 0 {
			empty = append(empty, d)
			return true
		}
		return false
	})
	return empty
}

// placeRemaining puts the unplaced endpoints into drafts and returns the free drafts that it did
// not use.
func (s *portSet) placeRemaining(free []*draft, limit int) []*draft {
	for len(s.unplaced) > 0 {
		n := min(len(s.unplaced), limit)
		if d := s.fullestWithRoom(n, limit); d != nil {
			d.endpoints = append(d.endpoints, s.takeUnplaced(n)...)
			d.changed = true
			continue
		}
		d := &draft{}
		if len(free) > 0 {
			d, free = free[0], free[1:]
		}
		d.ports, d.endpoints, d.changed = s.ports, s.takeUnplaced(n), true
		s.drafts = append(s.drafts, d)
	}
	return free
}

// fullestWithRoom returns the fullest draft with room for n endpoints, or nil.
func (s *portSet) fullestWithRoom(n, limit int) *draft {
	for _, d := range s.fullestFirst() {
		if len(d.endpoints)+n <= limit {
			return d
		}
	}
	return nil
}
