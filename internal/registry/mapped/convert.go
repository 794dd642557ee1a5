package mapped

import (
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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

// attrZone is the attribute in which ECS writes the Availability Zone of a task with Service
// Discovery. The name that Service Connect uses is not verified.
const attrZone = "AVAILABILITY_ZONE"

// unknownTime is a plausible creation time for mcs.Sanitize, which reports exports without one.
var unknownTime = time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC)

// exportOf returns the export that the instances of a service describe, sanitized as those of
// clusters, and a line for each thing that was left out. Instances of clusters of this clusterset
// are left out: their exports are in the registry. An unhealthy instance is an endpoint that is not
// ready, also if all of them are: as for a Service, clients then get no connection instead of one
// to an endpoint that its owner reports as failed.
func exportOf(m servicesfile.Mapping, cluster, clusterSetID string, list []api.HealthInstance) (mcs.Export, []string, error) {
	exp := mcs.Export{Key: m.Key, Cluster: cluster, Created: m.Created, Type: mcsv1beta1.ClusterSetIP, IPFamilies: m.Families}
	if exp.Created.IsZero() {
		exp.Created = unknownTime
	}
	for _, p := range m.Ports {
		exp.Ports = append(exp.Ports, p.Port)
	}
	var lines []string
	list = slices.SortedFunc(slices.Values(list), func(a, b api.HealthInstance) int { return strings.Compare(a.ID, b.ID) })
	groups := map[string]*mcs.Backends{}
	for _, i := range list {
		if i.Attributes[instances.AttrClusterSetID] == clusterSetID {
			continue
		}
		ports, err := portsOf(m, i.Attributes)
		var addresses []netip.Addr
		if err == nil {
			addresses, err = addressesOf(i.Attributes, m.Families)
		}
		if err != nil {
			lines = append(lines, fmt.Sprintf("instance %s left out: %v", servicesfile.Abbreviate(i.ID), err))
			continue
		}
		addEndpoints(groups, ports, addresses, mcs.Endpoint{Ready: !i.Unhealthy, Serving: !i.Unhealthy, Zone: i.Attributes[attrZone]})
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		exp.Backends = append(exp.Backends, *groups[key])
	}
	exp, more, err := mcs.Sanitize(exp)
	exp.Created = m.Created
	return exp, first(append(lines, more...)), err
}

// first returns the first lines, and the number of the others.
func first(lines []string) []string {
	if len(lines) <= servicesfile.MaxProblems {
		return lines
	}
	return append(lines[:servicesfile.MaxProblems:servicesfile.MaxProblems], fmt.Sprintf("and %d more problems", len(lines)-servicesfile.MaxProblems))
}

// portsOf returns the ports on which an instance listens.
func portsOf(m servicesfile.Mapping, attrs map[string]string) ([]mcs.BackendPort, error) {
	var out []mcs.BackendPort
	for _, p := range m.Ports {
		number := p.Target
		if number == 0 {
			n, err := strconv.ParseUint(attrs[instances.AttrPort], 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("%s is %q, no port number: set targetPort in the mapping", instances.AttrPort, servicesfile.Abbreviate(attrs[instances.AttrPort]))
			}
			number = int32(n)
		}
		out = append(out, mcs.BackendPort{Name: p.Name, Protocol: p.Protocol, Port: number})
	}
	return out, nil
}

// addressesOf returns the addresses of an instance that are of the families.
func addressesOf(attrs map[string]string, families []corev1.IPFamily) (out []netip.Addr, err error) {
	other := corev1.IPFamily("")
	for _, f := range []struct {
		family    corev1.IPFamily
		attribute string
	}{{corev1.IPv4Protocol, instances.AttrIPv4}, {corev1.IPv6Protocol, instances.AttrIPv6}} {
		text := attrs[f.attribute]
		if text == "" {
			continue
		}
		address, err := netip.ParseAddr(text)
		switch {
		case err != nil || address.Is4() != (f.family == corev1.IPv4Protocol) || address.Is4In6():
			return nil, fmt.Errorf("%s is %q, no such address", f.attribute, servicesfile.Abbreviate(text))
		case slices.Contains(families, f.family):
			out = append(out, address)
		default:
			other = f.family
		}
	}
	if len(out) == 0 && other != "" {
		return nil, fmt.Errorf("it has an %s address only: add %s to ipFamilies in the mapping", other, other)
	}
	if len(out) == 0 {
		return nil, errors.New("it has neither " + instances.AttrIPv4 + " nor " + instances.AttrIPv6 + ": only instances with an address can be imported")
	}
	return out, nil
}

// addEndpoints adds an endpoint for each address to the group with these ports. Of two instances
// with one address and the same ports, such as a task that ended and one that got its address, the
// endpoint is ready if one is.
func addEndpoints(groups map[string]*mcs.Backends, ports []mcs.BackendPort, addresses []netip.Addr, ep mcs.Endpoint) {
	key := fmt.Sprint(ports)
	group := groups[key]
	if group == nil {
		group = &mcs.Backends{Ports: ports}
		groups[key] = group
	}
	for _, address := range addresses {
		at := slices.IndexFunc(group.Endpoints, func(e mcs.Endpoint) bool { return e.Address == address })
		if at >= 0 {
			group.Endpoints[at].Ready = group.Endpoints[at].Ready || ep.Ready
			group.Endpoints[at].Serving = group.Endpoints[at].Ready
			continue
		}
		ep.Address = address
		group.Endpoints = append(group.Endpoints, ep)
	}
}
