package legacy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// InstanceExport is one cluster's export of a service, as the instances of a Cloud Map service tell of it.
type InstanceExport struct {
	Cluster string
	// Export is what could be rebuilt, sanitized. It is nil when nothing of it can be used; then Problems say why.
	Export *mcs.Export
	// Ours says that every instance was written by a controller like this one: what they show is in the registry as
	// well, and there it is whole.
	Ours bool
	// Problems are what had to be left out, one line each.
	Problems []string
}

// ExportsOf rebuilds the exports of key from the instances of its Cloud Map service, sorted by cluster. It is the reverse
// of InstancesOf. Instances of another clusterset, or of no cluster, have no part in it. Whoever may write to the service
// may have written them: nothing in them is trusted.
//
// Instances hold less than an export: session affinity, traffic policies, zones, exported labels and an export without
// endpoints are not in them.
func ExportsOf(key mcs.Key, clusterSetID string, list []api.Instance) []InstanceExport {
	byCluster := map[string][]api.Instance{}
	for _, i := range list {
		if cluster := i.Attributes[instances.AttrClusterID]; cluster != "" && i.Attributes[instances.AttrClusterSetID] == clusterSetID {
			byCluster[cluster] = append(byCluster[cluster], i)
		}
	}
	var out []InstanceExport
	for _, cluster := range slices.Sorted(maps.Keys(byCluster)) {
		out = append(out, exportOf(key, cluster, byCluster[cluster]))
	}
	return out
}

func exportOf(key mcs.Key, cluster string, list []api.Instance) InstanceExport {
	list = slices.SortedFunc(slices.Values(list), func(a, b api.Instance) int { return strings.Compare(a.ID, b.ID) })
	out := InstanceExport{Cluster: cluster, Ours: !slices.ContainsFunc(list, func(i api.Instance) bool { return !writtenByUs(i) })}
	var readable []shownEndpoint
	for _, i := range list {
		shown, err := parseInstance(i)
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("instance %s left out: %v", i.ID, err))
			continue
		}
		readable = append(readable, shown...)
	}
	exp := mcs.Export{
		Key: key, Cluster: cluster,
		Created:    time.UnixMilli(commonest(readable, func(s shownEndpoint) int64 { return s.created })),
		Type:       commonest(readable, func(s shownEndpoint) mcsv1beta1.ServiceImportType { return s.serviceType }),
		Ports:      portsOf(readable),
		IPFamilies: familiesOf(readable),
		Backends:   shownBackends(readable),
	}
	sanitized, left, err := mcs.Sanitize(exp)
	out.Problems = append(out.Problems, left...)
	if err != nil {
		out.Problems = append(out.Problems, err.Error())
		return out
	}
	out.Export = &sanitized
	return out
}

// writtenByUs says whether a controller like this one wrote the instance.
func writtenByUs(i api.Instance) bool {
	return strings.HasPrefix(i.Attributes[instances.AttrController], plan.ManagedBy+" ")
}

// shownEndpoint is what one instance says: one endpoint, one port.
type shownEndpoint struct {
	created     int64 // milliseconds since 1970
	serviceType mcsv1beta1.ServiceImportType
	port        mcs.Port
	backend     mcs.BackendPort
	endpoint    mcs.Endpoint
}

// lastMilli is the end of year 9999, the last that RFC 3339 can write.
const lastMilli = 253_402_300_799_000

// parseInstance reads an instance. One that has both an IPv4 and an IPv6 address is two endpoints.
func parseInstance(i api.Instance) ([]shownEndpoint, error) {
	a := i.Attributes
	s := shownEndpoint{
		serviceType: mcsv1beta1.ServiceImportType(a[instances.AttrServiceType]),
		port:        mcs.Port{Name: a[instances.AttrServicePortName], Protocol: corev1.Protocol(a[instances.AttrServiceProtocol]), TargetPort: a[instances.AttrTargetPort]},
		backend:     mcs.BackendPort{Name: a[instances.AttrServicePortName], Protocol: corev1.Protocol(a[instances.AttrProtocol])},
		endpoint:    mcs.Endpoint{Ready: true, Hostname: a[instances.AttrHostname]},
	}
	var err error
	if s.port.Port, err = parsePort(a, instances.AttrServicePort); err != nil {
		return nil, err
	}
	if s.backend.Port, err = parsePort(a, instances.AttrPort); err != nil {
		return nil, err
	}
	if ready, ok := a[instances.AttrReady]; ok {
		if s.endpoint.Ready, err = strconv.ParseBool(ready); err != nil {
			return nil, fmt.Errorf("%s is %.20q, neither true nor false", instances.AttrReady, ready)
		}
	}
	s.endpoint.Serving = s.endpoint.Ready
	// Without a time the export is younger than all others, which costs it conflicts and nothing else.
	if s.created, err = strconv.ParseInt(a[instances.AttrCreated], 10, 64); err != nil || s.created < 0 || s.created > lastMilli {
		s.created = time.Time{}.UnixMilli()
	}
	return s.at(a[instances.AttrIPv4], a[instances.AttrIPv6])
}

// at is s at each of the addresses that are there.
func (s shownEndpoint) at(addresses ...string) ([]shownEndpoint, error) {
	var out []shownEndpoint
	for _, text := range addresses {
		if text == "" {
			continue
		}
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%.40q is no IP address", text)
		}
		s.endpoint.Address = address
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("it has neither " + instances.AttrIPv4 + " nor " + instances.AttrIPv6)
	}
	return out, nil
}

func parsePort(attrs map[string]string, name string) (int32, error) {
	n, err := strconv.ParseUint(attrs[name], 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s is %.20q, no port number", name, attrs[name])
	}
	return int32(n), nil
}

// commonest is the value that most endpoints show: while a change is being written, instance by instance, they differ. Of
// two as common the smaller one counts, so that every cluster reads the same.
func commonest[T cmp.Ordered](shown []shownEndpoint, value func(shownEndpoint) T) T {
	counts := map[T]int{}
	for _, s := range shown {
		counts[value(s)]++
	}
	var best T
	for _, v := range slices.Sorted(maps.Keys(counts)) {
		if counts[v] > counts[best] {
			best = v
		}
	}
	return best
}

// portsOf are the Service's ports, by number. The user's order is not in the instances.
func portsOf(shown []shownEndpoint) []mcs.Port {
	seen := map[mcs.Port]bool{}
	for _, s := range shown {
		seen[s.port] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b mcs.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Name, b.Name), cmp.Compare(a.TargetPort, b.TargetPort))
	})
}

// familiesOf are the families that the endpoints have addresses of, IPv4 first.
func familiesOf(shown []shownEndpoint) []corev1.IPFamily {
	var out []corev1.IPFamily
	for _, want := range []struct {
		family corev1.IPFamily
		is4    bool
	}{{corev1.IPv4Protocol, true}, {corev1.IPv6Protocol, false}} {
		if slices.ContainsFunc(shown, func(s shownEndpoint) bool { return s.endpoint.Address.Unmap().Is4() == want.is4 }) {
			out = append(out, want.family)
		}
	}
	return out
}

// shownBackends puts the ports of each address together. An address shows a port name with two numbers while a change is
// being written: it is then in two groups.
func shownBackends(shown []shownEndpoint) []mcs.Backends {
	type place struct {
		address netip.Addr
		number  int // of the group
	}
	byPlace := map[place]*mcs.Backends{}
	var order []place
	for _, s := range shown {
		at := place{address: s.endpoint.Address}
		named := func(p mcs.BackendPort) bool { return p.Name == s.backend.Name }
		for byPlace[at] != nil && slices.ContainsFunc(byPlace[at].Ports, named) {
			at.number++
		}
		b := byPlace[at]
		if b == nil {
			b = &mcs.Backends{Endpoints: []mcs.Endpoint{s.endpoint}}
			byPlace[at] = b
			order = append(order, at)
		}
		b.Ports = append(b.Ports, s.backend)
		// Readiness is the endpoint's, not the port's: an endpoint of which a port is still shown as not ready is not ready.
		b.Endpoints[0].Ready = b.Endpoints[0].Ready && s.endpoint.Ready
		b.Endpoints[0].Serving = b.Endpoints[0].Ready
	}
	var out []mcs.Backends
	for _, at := range order {
		out = append(out, *byPlace[at])
	}
	return out
}
