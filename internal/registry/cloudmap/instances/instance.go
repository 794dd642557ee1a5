package instances

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// The attributes of an instance, which users query. The legacy controller has the same.
const (
	AttrIPv4            = "AWS_INSTANCE_IPV4"
	AttrIPv6            = "AWS_INSTANCE_IPV6"
	AttrPort            = "AWS_INSTANCE_PORT"
	AttrPortName        = "ENDPOINT_PORT_NAME"
	AttrProtocol        = "ENDPOINT_PROTOCOL"
	AttrServicePort     = "SERVICE_PORT"
	AttrServicePortName = "SERVICE_PORT_NAME"
	AttrServiceProtocol = "SERVICE_PROTOCOL"
	AttrTargetPort      = "SERVICE_TARGET_PORT"
	AttrClusterID       = "CLUSTER_ID"
	AttrClusterSetID    = "CLUSTERSET_ID"
	AttrServiceType     = "SERVICE_TYPE"
	AttrCreated         = "SERVICE_EXPORT_CREATION_TIMESTAMP"
	AttrReady           = "READY"
	AttrHostname        = "HOSTNAME"
	AttrNode            = "NODENAME"
	AttrController      = "K8S_CONTROLLER"
	// AttrNames has the names of the attributes that the user added with
	// mcs.AnnotationInstanceAttributes, and api.AttrInitialHealth if this controller sets it, so
	// that they can be removed again.
	AttrNames = "K8S_ATTRIBUTES"
)

// managedAttributes are the attributes that this controller writes. Other attributes of its
// instances stay.
var managedAttributes = []string{
	AttrIPv4, AttrIPv6, AttrPort, AttrPortName, AttrProtocol, AttrServicePort, AttrServicePortName, AttrServiceProtocol,
	AttrTargetPort, AttrClusterID, AttrClusterSetID, AttrServiceType, AttrCreated, AttrReady, AttrHostname, AttrNode,
	AttrController, AttrNames,
}

// Collision is an instance that cannot be registered because another owner has its ID: two clusters
// with overlapping pod networks have endpoints with the same address.
type Collision struct {
	ID string
	// ClusterID is the cluster ID of the owner, "" if it is not a cluster.
	ClusterID string
}

// Changes are the writes that bring a Cloud Map service in sync, and the collisions, each sorted by
// ID.
type Changes struct {
	Register []api.Instance
	// Health are the instances whose health has to be set, before they are registered if they are
	// in Register too.
	Health     []api.Instance
	Deregister []string
	Collisions []Collision
}

// count returns the number of writes.
func (c Changes) count() int { return len(c.Register) + len(c.Health) + len(c.Deregister) }

// FromExport returns the instances that mirror e, sorted by ID: one for each endpoint address and
// port. Endpoints without ports have none. Of several endpoints with one address, the ready one has
// the instance.
func FromExport(e mcs.Export, clusterSetID, controllerVersion string) []api.Instance {
	out, _ := firstFromExport(e, clusterSetID, controllerVersion, math.MaxInt, shape{})
	return out
}

// firstFromExport returns up to limit instances of FromExport and the number of the others. Those
// it does not create: an export with 1,000 ports and 10,000 endpoints has ten million, of some 2
// KiB each. It takes the endpoints in their order, each with all its ports, so that the same ones
// have instances while the export does not change.
func firstFromExport(e mcs.Export, clusterSetID, controllerVersion string, limit int, s shape) (out []api.Instance, omitted int) {
	if s.hidesDrained(e) {
		return nil, 0
	}
	e.Backends = e.AddressBackends()
	seen := map[string]bool{}
	second := s.secondAddresses(e)
	for _, b := range e.Backends {
		ports := s.portsOf(matchPorts(e, b.Ports))
		for _, ep := range b.Endpoints {
			if !s.shows(ep, second) {
				continue
			}
			for _, port := range ports {
				if len(out) >= limit {
					omitted++
					continue
				}
				id := instanceID(port.backend, ep.Address)
				if seen[id] { // another group of backends has the address too
					continue
				}
				seen[id] = true
				attrs := exportAttributes(e, clusterSetID, controllerVersion)
				addPort(attrs, port.service, port.backend)
				addEndpoint(attrs, ep)
				if address, ok := second[ep.Pod]; ok {
					attrs[AttrIPv6] = address.String()
				}
				addUserAttributes(attrs, e, ep)
				health := s.healthOf(e, ep)
				if health != "" {
					attrs[AttrNames] = strings.Trim(attrs[AttrNames]+nameSeparator+api.AttrInitialHealth, nameSeparator)
				}
				out = append(out, api.Instance{ID: id, Attributes: sanitizeValues(attrs), Health: health})
			}
		}
	}
	slices.SortFunc(out, func(a, b api.Instance) int { return strings.Compare(a.ID, b.ID) })
	return out, omitted
}

// secondAddresses returns the IPv6 addresses of the pods that have IPv4 addresses too, by pod, if
// the instances have both.
func (s shape) secondAddresses(e mcs.Export) map[string]netip.Addr {
	if !s.isPaired {
		return nil
	}
	hasIPv4, addresses := map[string]bool{}, map[string]netip.Addr{}
	for _, b := range e.Backends {
		for _, ep := range b.Endpoints {
			if ep.Address.Is4() {
				hasIPv4[ep.Pod] = true
			} else if _, ok := addresses[ep.Pod]; !ok {
				addresses[ep.Pod] = ep.Address
			}
		}
	}
	maps.DeleteFunc(addresses, func(pod string, _ netip.Addr) bool { return pod == "" || !hasIPv4[pod] })
	return addresses
}

// portsOf returns the ports that have instances.
func (s shape) portsOf(ports []matchedPort) []matchedPort {
	if s.hasFirstPortOnly {
		return ports[:min(1, len(ports))]
	}
	return ports
}

// shows reports whether an endpoint has instances of its own. second are the addresses that are
// part of other instances.
func (s shape) shows(ep mcs.Endpoint, second map[string]netip.Addr) bool {
	return (ep.Ready || !s.hasReadyOnly) && (ep.Address.Is4() || second[ep.Pod] != ep.Address)
}

// matchedPort is a port of the Service and the port on which backends listen for it.
type matchedPort struct {
	service mcs.Port
	backend mcs.BackendPort
}

// matchPorts returns the ports of the Service on which backends listen. If two of them have one
// target port, it returns the first. A port of a headless Service's slice that is none of the
// Service's stands for itself, as in DNS.
func matchPorts(e mcs.Export, backends []mcs.BackendPort) (matched []matchedPort) {
	type target struct {
		protocol corev1.Protocol
		number   int32
	}
	seen := map[target]bool{}
	add := func(port mcs.Port, backend mcs.BackendPort) {
		if !seen[target{backend.Protocol, backend.Port}] {
			seen[target{backend.Protocol, backend.Port}] = true
			matched = append(matched, matchedPort{port, backend})
		}
	}
	for _, port := range e.Ports {
		if i := slices.IndexFunc(backends, func(p mcs.BackendPort) bool { return p.Name == port.Name }); i >= 0 {
			add(port, backends[i])
		}
	}
	if e.Type == mcsv1beta1.Headless {
		for _, p := range backends {
			add(mcs.Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: strconv.Itoa(int(p.Port))}, p)
		}
	}
	return matched
}

// instanceID returns an ID such as "tcp-10_10_21_133-80".
func instanceID(p mcs.BackendPort, address netip.Addr) string {
	host := strings.NewReplacer(".", "_", ":", "_").Replace(address.String())
	return fmt.Sprintf("%s-%s-%d", strings.ToLower(string(p.Protocol)), host, p.Port)
}

func exportAttributes(e mcs.Export, clusterSetID, controllerVersion string) map[string]string {
	return map[string]string{
		AttrClusterID:    e.Cluster,
		AttrClusterSetID: clusterSetID,
		AttrServiceType:  string(e.Type),
		AttrCreated:      strconv.FormatInt(e.Created.UnixMilli(), 10),
		AttrController:   plan.ManagedBy + " " + controllerVersion,
	}
}

func addPort(attrs map[string]string, svc mcs.Port, backend mcs.BackendPort) {
	attrs[AttrPort] = strconv.Itoa(int(backend.Port))
	attrs[AttrPortName] = backend.Name
	attrs[AttrProtocol] = string(backend.Protocol)
	attrs[AttrServicePort] = strconv.Itoa(int(svc.Port))
	attrs[AttrServicePortName] = svc.Name
	attrs[AttrServiceProtocol] = string(svc.Protocol)
	attrs[AttrTargetPort] = svc.TargetPort
}

func addEndpoint(attrs map[string]string, ep mcs.Endpoint) {
	if ep.Address.Is4() {
		attrs[AttrIPv4] = ep.Address.String()
	} else {
		attrs[AttrIPv6] = ep.Address.String()
	}
	attrs[AttrReady] = strconv.FormatBool(ep.Ready)
	attrs[AttrHostname] = ep.Hostname
	attrs[AttrNode] = ep.Node
}

// addUserAttributes adds the attributes that the user named.
func addUserAttributes(attrs map[string]string, e mcs.Export, ep mcs.Endpoint) {
	if e.InstanceAttributes == "" {
		return
	}
	added := e.InstanceAttributes.Of(e, ep)
	maps.Copy(attrs, added)
	attrs[AttrNames] = strings.Join(slices.Sorted(maps.Keys(added)), nameSeparator)
}

// nameSeparator separates the names in AttrNames. No name has it.
const nameSeparator = ","

// maxAttributeValue is the maximum length of a value in Cloud Map.
const maxAttributeValue = 1024

// sanitizeValues returns attrs with values that Cloud Map accepts (printable ASCII, no leading
// blank): it refuses the whole instance because of one bad character.
func sanitizeValues(attrs map[string]string) map[string]string {
	for k, v := range attrs {
		v = strings.Map(func(r rune) rune {
			if r >= ' ' && r <= '~' || r == '\t' {
				return r
			}
			return '?'
		}, v)
		attrs[k] = strings.TrimSpace(v[:min(len(v), maxAttributeValue)])
	}
	return attrs
}

// OwnedBy returns a function that reports whether an instance with attrs belongs to the cluster.
// Instances of early versions of the legacy controller have no clusterset ID but the name of the
// controller. An instance with neither belongs to a user, who may have given it an attribute
// CLUSTER_ID.
func OwnedBy(clusterID, clusterSetID string) func(attrs map[string]string) bool {
	return func(attrs map[string]string) bool {
		set, ok := attrs[AttrClusterSetID]
		return attrs[AttrClusterID] == clusterID && (set == clusterSetID || !ok && attrs[AttrController] != "")
	}
}

// Diff returns the changes by which a service with the instances have gets the instances want. It
// neither overwrites nor removes instances for which isOwn is false, and keeps attributes of others
// on the instances that it overwrites.
func Diff(want, have []api.Instance, isOwn func(attrs map[string]string) bool) Changes {
	var c Changes
	present := make(map[string]api.Instance, len(have))
	for _, h := range have {
		present[h.ID] = h
	}
	wanted := make(map[string]bool, len(want))
	for _, w := range want {
		wanted[w.ID] = true
		h, ok := present[w.ID]
		if ok && !isOwn(h.Attributes) {
			c.Collisions = append(c.Collisions, Collision{ID: w.ID, ClusterID: h.Attributes[AttrClusterID]})
			continue
		}
		c.addWrites(w, h, ok)
	}
	for _, h := range have {
		if !wanted[h.ID] && isOwn(h.Attributes) {
			c.Deregister = append(c.Deregister, h.ID)
		}
	}
	slices.SortFunc(c.Register, func(a, b api.Instance) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Health, func(a, b api.Instance) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Collisions, func(a, b Collision) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(c.Deregister)
	return c
}

// addWrites adds the writes by which an instance gets as wanted. h is what there is of it; ok if
// there is any.
func (c *Changes) addWrites(w, h api.Instance, ok bool) {
	if attrs := withForeignAttributes(w.Attributes, h.Attributes); !ok || !equalAttributes(attrs, h.Attributes, w.Health != "") {
		c.Register = append(c.Register, api.Instance{ID: w.ID, Attributes: attrs, Health: w.Health})
	}
	if ok && w.Health != h.Health && w.Health != "" {
		c.Health = append(c.Health, api.Instance{ID: w.ID, Health: w.Health})
	}
}

// equalAttributes compares attributes, without the health with which an instance was registered if
// this controller sets health.
func equalAttributes(want, have map[string]string, setsHealth bool) bool {
	if setsHealth {
		want, have = maps.Clone(want), maps.Clone(have)
		delete(want, api.AttrInitialHealth)
		delete(have, api.AttrInitialHealth)
	}
	return maps.Equal(want, have)
}

// withForeignAttributes returns own with the attributes of present that this controller does not
// write.
func withForeignAttributes(own, present map[string]string) map[string]string {
	out := maps.Clone(present)
	if out == nil {
		out = map[string]string{}
	}
	for _, k := range slices.Concat(managedAttributes, strings.Split(present[AttrNames], nameSeparator)) {
		delete(out, k)
	}
	maps.Copy(out, own)
	return out
}

// mergeWritten returns the instances of a service from the last write and from a list that may not
// show it yet. The last write counts for the instances of this cluster; the list adds the instances
// and attributes of others.
func mergeWritten(written, listed []api.Instance, isOwn func(map[string]string) bool) []api.Instance {
	byID := map[string]api.Instance{}
	for _, instance := range written {
		byID[instance.ID] = instance
	}
	for _, instance := range listed {
		own, isWritten := byID[instance.ID]
		switch {
		case !isOwn(instance.Attributes):
			byID[instance.ID] = instance
		case isWritten:
			byID[instance.ID] = api.Instance{ID: instance.ID, Attributes: withForeignAttributes(own.Attributes, instance.Attributes), Health: own.Health}
		default:
			// a previous process wrote it, or the last write removed it
			byID[instance.ID] = onlyOwner(instance)
		}
	}
	return slices.Collect(maps.Values(byID))
}

// onlyOwner returns an instance of which only the owner is certain: Diff removes it unless it is
// wanted, and writes it if it is.
func onlyOwner(instance api.Instance) api.Instance {
	owner := map[string]string{}
	for _, attr := range []string{AttrClusterID, AttrClusterSetID, AttrController} {
		if value, ok := instance.Attributes[attr]; ok {
			owner[attr] = value
		}
	}
	return api.Instance{ID: instance.ID, Attributes: withForeignAttributes(owner, instance.Attributes)}
}
