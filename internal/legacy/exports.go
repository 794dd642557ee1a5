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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// InstanceExport is one cluster's export of a service according to the instances of a Cloud Map
// service.
type InstanceExport struct {
	Cluster string
	// Export is the sanitized export. It is nil if nothing of it is usable; Problems are the
	// reasons.
	Export *mcs.Export
	// HasPages: this controller wrote all instances, so the complete export is in the registry.
	HasPages bool
	// Problems are lines about the parts that were left out.
	Problems []string
	// Cost is what the export costs of the budgets, zero until countCosts.
	Cost budget.Amounts
}

// countCosts sets Cost of each usable export.
func countCosts(read []InstanceExport) {
	for i, e := range read {
		if e.Export == nil {
			continue
		}
		size, err := record.Size(*e.Export)
		if err != nil { // it is sanitized: this does not happen
			read[i].Export, read[i].Problems = nil, append(e.Problems, err.Error())
			continue
		}
		read[i].Cost = budget.Of(*e.Export, size)
	}
}

// ExportsOf returns the exports of key according to the instances of its Cloud Map service, sorted
// by cluster. It is the inverse of instances.FromExport. It ignores instances of other clustersets
// and of no cluster. Other clients with write access may have written the instances, so nothing in
// them is trusted.
//
// Instances do not hold session affinity, traffic policies, zones, exported labels and exports
// without endpoints.
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
	out := InstanceExport{Cluster: cluster, HasPages: !slices.ContainsFunc(list, func(i api.Instance) bool { return !isFromInstanceView(i) })}
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

// isFromInstanceView reports whether the instance view of this controller wrote the instance.
func isFromInstanceView(i api.Instance) bool {
	return strings.HasPrefix(i.Attributes[instances.AttrController], plan.ManagedBy+" ")
}

// shownEndpoint is the content of one instance: one endpoint with one port.
type shownEndpoint struct {
	created     int64 // milliseconds since 1970
	serviceType mcsv1beta1.ServiceImportType
	port        mcs.Port
	backend     mcs.BackendPort
	endpoint    mcs.Endpoint
}

// lastMilli is the end of year 9999, the last one in RFC 3339.
const lastMilli = 253_402_300_799_000

// parseInstance parses an instance. An instance with an IPv4 and an IPv6 address is two endpoints.
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
	// An export without a creation time loses all conflicts and has no other disadvantage.
	if s.created, err = strconv.ParseInt(a[instances.AttrCreated], 10, 64); err != nil || s.created < 0 || s.created > lastMilli {
		s.created = time.Time{}.UnixMilli()
	}
	return s.atAddresses(a[instances.AttrIPv4], a[instances.AttrIPv6])
}

// atAddresses returns s for each address that is not empty.
func (s shownEndpoint) atAddresses(addresses ...string) ([]shownEndpoint, error) {
	var out []shownEndpoint
	for _, text := range addresses {
		if text == "" {
			continue
		}
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not an IP address", text)
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

// commonest returns the value of most endpoints, which differ while a change is written instance by
// instance. Of two equally common values it returns the smaller one, so that every cluster reads
// the same.
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

// portsOf returns the Service's ports by number. Instances do not hold the user's order.
func portsOf(shown []shownEndpoint) []mcs.Port {
	seen := map[mcs.Port]bool{}
	for _, s := range shown {
		seen[s.port] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b mcs.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Name, b.Name), cmp.Compare(a.TargetPort, b.TargetPort))
	})
}

// familiesOf returns the families of the endpoints' addresses, IPv4 first.
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

// shownBackends groups the ports by address. An address has two numbers for a port name while a
// change is being written: then it is in two groups.
func shownBackends(shown []shownEndpoint) []mcs.Backends {
	type group struct {
		address netip.Addr
		number  int // of the group of this address
	}
	byGroup := map[group]*mcs.Backends{}
	var order []group
	for _, s := range shown {
		at := group{address: s.endpoint.Address}
		named := func(p mcs.BackendPort) bool { return p.Name == s.backend.Name }
		for byGroup[at] != nil && slices.ContainsFunc(byGroup[at].Ports, named) {
			at.number++
		}
		b := byGroup[at]
		if b == nil {
			b = &mcs.Backends{Endpoints: []mcs.Endpoint{s.endpoint}}
			byGroup[at] = b
			order = append(order, at)
		}
		b.Ports = append(b.Ports, s.backend)
		// Readiness is a property of the endpoint: an endpoint with a port that is still not ready
		// is not ready.
		b.Endpoints[0].Ready = b.Endpoints[0].Ready && s.endpoint.Ready
		b.Endpoints[0].Serving = b.Endpoints[0].Ready
	}
	var out []mcs.Backends
	for _, at := range order {
		out = append(out, *byGroup[at])
	}
	return out
}
