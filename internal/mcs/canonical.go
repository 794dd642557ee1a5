package mcs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Canonical is a deep copy of e in the form that is published and compared: defaults filled in, times in UTC at their
// resolution, backends grouped by their ports, sorted and free of duplicates, and nil for what is empty. The order of
// Ports and IPFamilies is the user's and stays.
func (e Export) Canonical() Export {
	e.Created = e.Created.UTC().Truncate(time.Second)
	e.Changed = e.Changed.UTC().Truncate(time.Millisecond)
	e.Ports = canonicalPorts(e.Ports)
	e.SessionAffinity = cmp.Or(e.SessionAffinity, corev1.ServiceAffinityNone)
	e.SessionAffinityConfig = canonicalAffinity(e.SessionAffinity, e.SessionAffinityConfig)
	e.IPFamilies = unique(e.IPFamilies)
	e.Labels = nonEmpty(e.Labels)
	e.Annotations = nonEmpty(e.Annotations)
	e.Backends = groupBackends(e.Backends)
	return e
}

// Equal says whether e and o are the same export: they may differ in Changed, and in what Canonical irons out.
func (e Export) Equal(o Export) bool {
	return e.equal(o) || e.Canonical().equal(o.Canonical()) // what is the same is so in canonical form, too, which is costly to make
}

// equal compares two exports as they are, Changed aside.
func (e Export) equal(o Export) bool {
	return e.Key == o.Key && e.Cluster == o.Cluster && e.Created.Equal(o.Created) && e.sameService(o) &&
		maps.Equal(e.Labels, o.Labels) && maps.Equal(e.Annotations, o.Annotations) &&
		slices.EqualFunc(e.Backends, o.Backends, Backends.equal)
}

// sameService compares what the Services say.
func (e Export) sameService(o Export) bool {
	return e.Type == o.Type &&
		slices.Equal(e.Ports, o.Ports) &&
		e.SessionAffinity == o.SessionAffinity &&
		affinityTimeout(e.SessionAffinityConfig) == affinityTimeout(o.SessionAffinityConfig) &&
		e.InternalTrafficPolicy == o.InternalTrafficPolicy &&
		e.TrafficDistribution == o.TrafficDistribution &&
		slices.Equal(e.IPFamilies, o.IPFamilies)
}

// EndpointCount is the number of endpoints in all of e's backends.
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
	return unique(filled)
}

// canonicalAffinity is the config that affinity acts upon: none but for ClientIP, whose timeout Kubernetes defaults.
func canonicalAffinity(affinity corev1.ServiceAffinity, config *corev1.SessionAffinityConfig) *corev1.SessionAffinityConfig {
	if affinity != corev1.ServiceAffinityClientIP {
		return nil
	}
	timeout := cmp.Or(affinityTimeout(config), corev1.DefaultClientIPServiceAffinitySeconds)
	return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
}

// affinityTimeout is config's timeout in seconds, or 0, which no Service can have.
func affinityTimeout(config *corev1.SessionAffinityConfig) int32 {
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return 0
	}
	return *config.ClientIP.TimeoutSeconds
}

// groupBackends gathers endpoints that listen on the same ports into one group each, and sorts everything. An address
// that a group holds twice, as happens while Kubernetes moves an endpoint from one slice to another, stays once.
func groupBackends(in []Backends) []Backends {
	var out []Backends
	byPorts := map[string]int{}
	for _, b := range in {
		if len(b.Endpoints) == 0 {
			continue
		}
		ports := canonicalBackendPorts(b.Ports)
		key := portsKey(ports)
		i, ok := byPorts[key]
		if !ok {
			i = len(out)
			byPorts[key] = i
			out = append(out, Backends{Ports: ports, Endpoints: make([]Endpoint, 0, len(b.Endpoints))})
		}
		for _, ep := range b.Endpoints {
			ep.Address = ep.Address.Unmap()
			out[i].Endpoints = append(out[i].Endpoints, ep)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Endpoints, compareEndpoints)
		out[i].Endpoints = slices.CompactFunc(out[i].Endpoints, func(a, b Endpoint) bool { return a.Address == b.Address })
	}
	slices.SortFunc(out, func(a, b Backends) int { return slices.CompareFunc(a.Ports, b.Ports, compareBackendPorts) })
	return out
}

// portsKey is a string that differs whenever ports do.
func portsKey(ports []BackendPort) string {
	var b strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&b, "%q %q %d ", p.Name, p.Protocol, p.Port)
	}
	return b.String()
}

func canonicalBackendPorts(in []BackendPort) []BackendPort {
	ports := slices.Clone(in)
	for i := range ports {
		ports[i].Protocol = cmp.Or(ports[i].Protocol, corev1.ProtocolTCP)
	}
	slices.SortFunc(ports, compareBackendPorts)
	if ports = slices.Compact(ports); len(ports) == 0 {
		return nil
	}
	return ports
}

func compareBackendPorts(a, b BackendPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// compareEndpoints sorts by address. Of two reports on one address the better one comes first: what is ready in one
// slice and not yet, or no longer, in another is ready. The rest only makes the order total.
func compareEndpoints(a, b Endpoint) int {
	if c := a.Address.Compare(b.Address); c != 0 {
		return c
	}
	return cmp.Or(
		trueFirst(a.Ready, b.Ready), trueFirst(a.Serving, b.Serving), trueFirst(!a.Terminating, !b.Terminating),
		cmp.Compare(b.Hostname, a.Hostname), cmp.Compare(b.Zone, a.Zone), cmp.Compare(b.Node, a.Node))
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// unique is a copy of list without repetitions, the first of equals staying where it is; nil for an empty one.
func unique[T comparable](list []T) []T {
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

// nonEmpty is a copy of m, or nil for an empty one.
func nonEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
