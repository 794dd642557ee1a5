package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The attributes of an instance, as the AWS Cloud Map MCS Controller for K8s named them. Users query them.
const (
	attrIPv4         = "AWS_INSTANCE_IPV4"
	attrIPv6         = "AWS_INSTANCE_IPV6"
	attrPort         = "AWS_INSTANCE_PORT"
	attrPortName     = "ENDPOINT_PORT_NAME"
	attrProtocol     = "ENDPOINT_PROTOCOL"
	attrSvcPort      = "SERVICE_PORT"
	attrSvcPortName  = "SERVICE_PORT_NAME"
	attrSvcProtocol  = "SERVICE_PROTOCOL"
	attrTargetPort   = "SERVICE_TARGET_PORT"
	attrClusterID    = "CLUSTER_ID"
	attrClusterSetID = "CLUSTERSET_ID"
	attrServiceType  = "SERVICE_TYPE"
	attrCreated      = "SERVICE_EXPORT_CREATION_TIMESTAMP"
	attrReady        = "READY"
	attrHostname     = "HOSTNAME"
	attrNode         = "NODENAME"
	attrController   = "K8S_CONTROLLER"
)

// managedAttributes are all that we write; others' attributes on our instances stay.
var managedAttributes = []string{
	attrIPv4, attrIPv6, attrPort, attrPortName, attrProtocol, attrSvcPort, attrSvcPortName, attrSvcProtocol,
	attrTargetPort, attrClusterID, attrClusterSetID, attrServiceType, attrCreated, attrReady, attrHostname, attrNode,
	attrController,
}

// Instance is one endpoint and port as Cloud Map shows it.
type Instance struct {
	ID         string
	Attributes map[string]string
}

// Collision is an instance that cannot be shown because its ID belongs to somebody else: in two clusters whose pod
// networks overlap, two endpoints have one address.
type Collision struct {
	ID string
	// ClusterID is the owner's, "" if it is not a cluster.
	ClusterID string
}

// InstanceChanges are what brings a Cloud Map service in step, each sorted by ID.
type InstanceChanges struct {
	Register   []Instance
	Deregister []string
	Collisions []Collision
}

// InstancesOf are the instances that show e, sorted by ID: one for each endpoint address and port. Endpoints without
// ports cannot be shown.
func InstancesOf(e mcs.Export, clusterSetID, controllerVersion string) []Instance {
	byID := map[string]Instance{}
	for _, port := range e.Ports {
		for _, b := range e.Backends {
			i := slices.IndexFunc(b.Ports, func(p mcs.BackendPort) bool { return p.Name == port.Name })
			if i < 0 {
				continue
			}
			for _, ep := range b.Endpoints {
				id := instanceID(b.Ports[i], ep.Address)
				// When two ports of the Service lead to one port of the endpoint, the Service's first port is shown.
				if _, ok := byID[id]; ok {
					continue
				}
				attrs := exportAttributes(e, clusterSetID, controllerVersion)
				addPort(attrs, port, b.Ports[i])
				addEndpoint(attrs, ep)
				byID[id] = Instance{ID: id, Attributes: clean(attrs)}
			}
		}
	}
	var out []Instance
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, byID[id])
	}
	return out
}

// instanceID is "tcp-10_10_21_133-80".
func instanceID(p mcs.BackendPort, address netip.Addr) string {
	host := strings.NewReplacer(".", "_", ":", "_").Replace(address.String())
	return fmt.Sprintf("%s-%s-%d", strings.ToLower(string(p.Protocol)), host, p.Port)
}

func exportAttributes(e mcs.Export, clusterSetID, controllerVersion string) map[string]string {
	return map[string]string{
		attrClusterID:    e.Cluster,
		attrClusterSetID: clusterSetID,
		attrServiceType:  string(e.Type),
		attrCreated:      strconv.FormatInt(e.Created.UnixMilli(), 10),
		attrController:   ManagedBy + " " + controllerVersion,
	}
}

func addPort(attrs map[string]string, svc mcs.Port, backend mcs.BackendPort) {
	attrs[attrPort] = strconv.Itoa(int(backend.Port))
	attrs[attrPortName] = backend.Name
	attrs[attrProtocol] = string(backend.Protocol)
	attrs[attrSvcPort] = strconv.Itoa(int(svc.Port))
	attrs[attrSvcPortName] = svc.Name
	attrs[attrSvcProtocol] = string(svc.Protocol)
	attrs[attrTargetPort] = svc.TargetPort
}

func addEndpoint(attrs map[string]string, ep mcs.Endpoint) {
	if ep.Address.Is4() {
		attrs[attrIPv4] = ep.Address.String()
	} else {
		attrs[attrIPv6] = ep.Address.String()
	}
	attrs[attrReady] = strconv.FormatBool(ep.Ready)
	attrs[attrHostname] = ep.Hostname
	attrs[attrNode] = ep.Node
}

// maxAttributeValue is how long Cloud Map allows a value to be.
const maxAttributeValue = 1024

// clean is attrs with values that Cloud Map takes (printable ASCII, no blank in front), for one bad character would
// have it refuse the whole instance.
func clean(attrs map[string]string) map[string]string {
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

// OwnInstance says of an instance's attributes whether it is the given cluster's. One without a clusterset ID was
// written by an early version of the AWS Cloud Map MCS Controller for K8s.
func OwnInstance(clusterID, clusterSetID string) func(attrs map[string]string) bool {
	return func(attrs map[string]string) bool {
		set, ok := attrs[attrClusterSetID]
		return attrs[attrClusterID] == clusterID && (!ok || set == clusterSetID)
	}
}

// Instances is what has to be done for a Cloud Map service that has the instances have to show want. Instances that
// are not own are neither overwritten nor removed, and attributes that we do not write stay on those that are.
func Instances(want, have []Instance, own func(attrs map[string]string) bool) InstanceChanges {
	var c InstanceChanges
	present := make(map[string]Instance, len(have))
	for _, h := range have {
		present[h.ID] = h
	}
	wanted := make(map[string]bool, len(want))
	for _, w := range want {
		wanted[w.ID] = true
		h, ok := present[w.ID]
		if ok && !own(h.Attributes) {
			c.Collisions = append(c.Collisions, Collision{ID: w.ID, ClusterID: h.Attributes[attrClusterID]})
			continue
		}
		if attrs := WithForeign(w.Attributes, h.Attributes); !ok || !maps.Equal(attrs, h.Attributes) {
			c.Register = append(c.Register, Instance{ID: w.ID, Attributes: attrs})
		}
	}
	for _, h := range have {
		if !wanted[h.ID] && own(h.Attributes) {
			c.Deregister = append(c.Deregister, h.ID)
		}
	}
	slices.SortFunc(c.Register, func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Collisions, func(a, b Collision) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(c.Deregister)
	return c
}

// WithForeign is ours with the attributes of present that we do not write.
func WithForeign(ours, present map[string]string) map[string]string {
	out := maps.Clone(present)
	if out == nil {
		out = map[string]string{}
	}
	for _, k := range managedAttributes {
		delete(out, k)
	}
	maps.Copy(out, ours)
	return out
}
