package mcs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Canonical returns a deep copy of e in the form that is published and compared: defaults are set,
// times are in UTC at their resolution, backends are grouped by their ports, sorted and free of
// duplicates, and empty lists and maps are nil. Ports and IPFamilies keep the order of the user.
func (e Export) Canonical() Export {
	e.Created = e.Created.UTC().Truncate(time.Second)
	e.Changed = e.Changed.UTC().Truncate(time.Millisecond)
	e.Ports = canonicalPorts(e.Ports)
	e.SessionAffinity = cmp.Or(e.SessionAffinity, corev1.ServiceAffinityNone)
	e.SessionAffinityConfig = canonicalAffinity(e.SessionAffinity, e.SessionAffinityConfig)
	e.IPFamilies = cloneUnique(e.IPFamilies)
	e.Labels = cloneOrNil(e.Labels)
	e.Annotations = cloneOrNil(e.Annotations)
	e.Backends = groupBackends(e.Type, e.Backends, appProtocols(e.Ports))
	return e
}

// Equal reports whether the canonical forms of e and o differ in Changed at most.
func (e Export) Equal(o Export) bool {
	// exports that are equal as they are need no canonical form, which is costly
	return e.equal(o) || e.Canonical().equal(o.Canonical())
}

// equal compares two exports as they are, except for Changed.
func (e Export) equal(o Export) bool {
	return e.Key == o.Key && e.Cluster == o.Cluster && e.Created.Equal(o.Created) && e.equalService(o) &&
		e.InstanceAttributes == o.InstanceAttributes && e.Region == o.Region && e.InstanceDNS == o.InstanceDNS &&
		maps.Equal(e.Labels, o.Labels) && maps.Equal(e.Annotations, o.Annotations) &&
		slices.EqualFunc(e.Backends, o.Backends, Backends.equal)
}

// HasShapeOf reports whether e and o differ in endpoints, labels and annotations at most.
func (e Export) HasShapeOf(o Export) bool { return e.equalService(o) }

// equalService compares the properties of the Services.
func (e Export) equalService(o Export) bool {
	return e.Type == o.Type &&
		slices.Equal(e.Ports, o.Ports) &&
		e.SessionAffinity == o.SessionAffinity &&
		affinityTimeout(e.SessionAffinityConfig) == affinityTimeout(o.SessionAffinityConfig) &&
		e.InternalTrafficPolicy == o.InternalTrafficPolicy &&
		e.TrafficDistribution == o.TrafficDistribution &&
		e.ClusterSelectors == o.ClusterSelectors && e.MinimumReady == o.MinimumReady &&
		e.Drain == o.Drain && e.Recipients == o.Recipients &&
		slices.Equal(e.IPFamilies, o.IPFamilies)
}

// AddressBackends returns the backends of e with each address once, as the ready endpoint if there
// is one. Those of a headless export may have it several times, with different host names.
func (e Export) AddressBackends() []Backends {
	if e.Type != mcsv1beta1.Headless {
		return e.Backends
	}
	return groupBackends(mcsv1beta1.ClusterSetIP, e.Backends, nil)
}

// EndpointCount returns the number of endpoints in all backends of e.
func (e Export) EndpointCount() int {
	n := 0
	for _, b := range e.Backends {
		n += len(b.Endpoints)
	}
	return n
}

func (b Backends) equal(o Backends) bool {
	return slices.Equal(b.Ports, o.Ports) && slices.Equal(b.Endpoints, o.Endpoints)
}

func canonicalPorts(ports []Port) []Port {
	filled := slices.Clone(ports)
	for i := range filled {
		filled[i].Protocol = cmp.Or(filled[i].Protocol, corev1.ProtocolTCP)
	}
	return cloneUnique(filled)
}

// canonicalAffinity returns the config that affinity uses: nil except for ClientIP, whose timeout
// Kubernetes defaults.
func canonicalAffinity(affinity corev1.ServiceAffinity, config *corev1.SessionAffinityConfig) *corev1.SessionAffinityConfig {
	if affinity != corev1.ServiceAffinityClientIP {
		return nil
	}
	timeout := cmp.Or(affinityTimeout(config), corev1.DefaultClientIPServiceAffinitySeconds)
	return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
}

// affinityTimeout returns the timeout of config in seconds, or 0, which no Service can have.
func affinityTimeout(config *corev1.SessionAffinityConfig) int32 {
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return 0
	}
	return *config.ClientIP.TimeoutSeconds
}

// groupBackends puts endpoints with the same ports into one group and sorts everything. It removes
// duplicates of an endpoint within a group, which occur while Kubernetes moves an endpoint from one
// slice to another. implied are appProtocols that ports with these names have anyway.
func groupBackends(kind mcsv1beta1.ServiceImportType, in []Backends, implied map[string]string) []Backends {
	var out []Backends
	byPorts := map[string]int{}
	for _, b := range in {
		if len(b.Endpoints) == 0 {
			continue
		}
		ports := canonicalBackendPorts(b.Ports, implied)
		key := portsKey(ports)
		i, ok := byPorts[key]
		if !ok {
			i = len(out)
			byPorts[key] = i
			out = append(out, Backends{Ports: ports, Endpoints: make([]Endpoint, 0, len(b.Endpoints))})
		}
		for j, p := range ports { // two slices differ in an appProtocol while Kubernetes changes it
			out[i].Ports[j].AppProtocol = max(out[i].Ports[j].AppProtocol, p.AppProtocol)
		}
		for _, ep := range b.Endpoints {
			ep.Address = ep.Address.Unmap()
			out[i].Endpoints = append(out[i].Endpoints, ep)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Endpoints, func(a, b Endpoint) int {
			if c := compareIDs(kind, a, b); c != 0 {
				return c
			}
			return compareStates(a, b)
		})
		out[i].Endpoints = slices.CompactFunc(out[i].Endpoints, func(a, b Endpoint) bool { return compareIDs(kind, a, b) == 0 })
	}
	slices.SortFunc(out, func(a, b Backends) int { return slices.CompareFunc(a.Ports, b.Ports, compareBackendPorts) })
	// of an export with more groups some are left out, and the others are grouped again
	if kind != mcsv1beta1.Headless && len(out) <= maxBackends {
		uniteStates(out)
	}
	return out
}

// uniteStates makes an address and port that several groups have ready in all of them if it is
// ready in one: an endpoint keeps its ports, and has the best state of those that have its address
// and one of its ports. An address may have other ports with another state: pods in the network of
// their node.
func uniteStates(groups []Backends) {
	repeated := repeatedAddresses(groups)
	if len(repeated) == 0 {
		return
	}
	at := func(p place) *Endpoint { return &groups[p.group].Endpoints[p.endpoint] }
	overlaps := newOverlaps[BackendPort]()
	for _, b := range groups {
		overlaps.add(b.portNames())
	}
	for _, places := range repeated {
		slices.SortStableFunc(places, func(a, b place) int { return compareStates(*at(a), *at(b)) })
		for len(places) > 0 {
			best, reached := at(places[0]), places[:1:1]
			places = places[1:]
			for n := 0; n < len(reached); n++ {
				places = slices.DeleteFunc(places, func(p place) bool {
					if !overlaps.of(reached[n].group, p.group) {
						return false
					}
					ep := at(p)
					ep.Ready, ep.Serving, ep.Terminating = best.Ready, best.Serving, best.Terminating
					reached = append(reached, p)
					return true
				})
			}
		}
	}
}

// place is the place of an endpoint in groups of them.
type place struct{ group, endpoint int }

// repeatedAddresses returns the places of each address that several groups have.
func repeatedAddresses(groups []Backends) map[netip.Addr][]place {
	if len(groups) < 2 {
		return nil
	}
	first, repeated := map[netip.Addr]place{}, map[netip.Addr][]place{}
	for i, b := range groups {
		for j, ep := range b.Endpoints {
			here := place{i, j}
			before, isRepeated := first[ep.Address]
			switch {
			case !isRepeated:
				first[ep.Address] = here
			case repeated[ep.Address] == nil:
				repeated[ep.Address] = []place{before, here}
			default:
				repeated[ep.Address] = append(repeated[ep.Address], here)
			}
		}
	}
	return repeated
}

// portsKey returns a string that is unique for the names, protocols and numbers of ports: endpoints
// with the same ones can share a slice.
func portsKey(ports []BackendPort) string {
	var b strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&b, "%q %q %d ", p.Name, p.Protocol, p.Port)
	}
	return b.String()
}

func canonicalBackendPorts(in []BackendPort, implied map[string]string) []BackendPort {
	ports := slices.Clone(in)
	for i, p := range ports {
		ports[i].Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if p.AppProtocol == implied[p.Name] {
			ports[i].AppProtocol = ""
		}
	}
	slices.SortFunc(ports, compareBackendPorts)
	if ports = slices.Compact(ports); len(ports) == 0 {
		return nil
	}
	return ports
}

func compareBackendPorts(a, b BackendPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), cmp.Compare(a.AppProtocol, b.AppProtocol))
}

// compareIDs compares the identities of endpoints. That of a headless Service's endpoint is its
// address and host name: pods that share an address, as those in the network of their node, have a
// name each. That of another one is its address: kube-proxy knows an address and port once, and
// takes any of several endpoints with it, so that one that is not ready could hide the ready one.
func compareIDs(kind mcsv1beta1.ServiceImportType, a, b Endpoint) int {
	if c := a.Address.Compare(b.Address); c != 0 || kind != mcsv1beta1.Headless {
		return c
	}
	return cmp.Compare(a.Hostname, b.Hostname)
}

// compareStates sorts endpoints with the same identity. The ready one comes first: an endpoint that
// is ready in one slice and not in another is ready. The other fields only make the order total.
func compareStates(a, b Endpoint) int {
	return cmp.Or(
		compareTrueFirst(a.Ready, b.Ready), compareTrueFirst(a.Serving, b.Serving), compareTrueFirst(!a.Terminating, !b.Terminating),
		cmp.Compare(b.Hostname, a.Hostname), cmp.Compare(b.Zone, a.Zone), cmp.Compare(b.Node, a.Node), cmp.Compare(b.Pod, a.Pod))
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// cloneUnique returns a copy of list that keeps the first of equal elements, or nil for an empty
// list.
func cloneUnique[T comparable](list []T) []T {
	var out []T
	seen := make(map[T]bool, len(list))
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// cloneOrNil returns a copy of m, or nil for an empty map.
func cloneOrNil(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
