package mcs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Source holds the Kubernetes objects from which NewExport creates an Export.
type Source struct {
	Identity      Identity
	ServiceExport *mcsv1beta1.ServiceExport
	// Service must be valid according to ExportValid.
	Service *corev1.Service
	// Slices are the EndpointSlices whose label kubernetes.io/service-name is the Service's name.
	Slices []discoveryv1.EndpointSlice
	// NamespaceAnnotations are those of the namespace, and ClusterPreference is the default of the
	// cluster: they decide about cluster selectors that the ServiceExport does not have.
	NamespaceAnnotations map[string]string
	ClusterPreference    ClusterPreference
	// ControllerSlicesOnly leaves out the slices that the EndpointSlice controller of Kubernetes
	// did not create.
	ControllerSlicesOnly bool
	// InstanceDNS is the default of the cluster for the namespace's annotation.
	InstanceDNS InstanceDNS
	// Region is the cluster's Region, "" if it is not known.
	Region string
	// CheckAddress returns an error for addresses that this cluster's endpoints cannot have; nil
	// allows all.
	CheckAddress func(netip.Addr) error
}

// endpointSliceController manages the slices of Services with a selector, and corrects those that
// others write under its name.
const endpointSliceController = "endpointslice-controller.k8s.io"

// importers are the values of label endpointslice.kubernetes.io/managed-by of implementations that
// add endpoints of other clusters to a Service: Cilium's global services, Karmada's
// MultiClusterService, Submariner, and the legacy controller. Kubernetes does not copy this label
// from a Service.
var importers = []string{
	"endpointslice-mesh-controller.cilium.io", "endpointslice-dispatch-controller.karmada.io", "lighthouse-agent.submariner.io",
	"aws-cloud-map-mcs-controller-for-k8s",
}

// NewExport creates this cluster's export of src. previous is the last result, or nil: if nothing
// has changed since, Changed stays; otherwise it becomes now.
//
// The result is sanitized because this cluster must merge its own export in the form that the
// others receive. Each endpoint of the slices is in the result or in what is left out. An error
// reports that nothing can be exported.
func NewExport(src Source, previous *Export, now time.Time) (Export, LeftOuts, error) {
	svc, exp := src.Service, src.ServiceExport
	e := Export{
		Key:                   Key{Namespace: exp.Namespace, Name: exp.Name},
		Cluster:               src.Identity.ClusterID,
		Created:               exp.CreationTimestamp.Time,
		Changed:               now,
		Type:                  exportType(svc),
		Ports:                 exportPorts(svc),
		SessionAffinity:       svc.Spec.SessionAffinity,
		SessionAffinityConfig: svc.Spec.SessionAffinityConfig,
		InternalTrafficPolicy: ptr.Deref(svc.Spec.InternalTrafficPolicy, ""),
		TrafficDistribution:   ptr.Deref(svc.Spec.TrafficDistribution, ""),
		IPFamilies:            svc.Spec.IPFamilies,
		Labels:                exp.Spec.ExportedLabels,
		Annotations:           exp.Spec.ExportedAnnotations,
	}
	left := src.readAnnotations(&e)
	for i := range src.Slices {
		b, more := src.exportSlice(&src.Slices[i])
		if !e.needsPods() {
			b.removePods()
		}
		e.Backends = append(e.Backends, b)
		for _, l := range more {
			left.add(l)
		}
	}
	e, err := left.sanitize(e)
	if err != nil {
		return Export{}, nil, fmt.Errorf("exporting Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	if previous != nil && e.Equal(*previous) {
		e.Changed = previous.Changed.UTC().Truncate(time.Millisecond)
	}
	return e, left.sorted(), nil
}

// readAnnotations sets the fields of e that annotations have, and returns the annotations that
// cannot be read.
func (src Source) readAnnotations(e *Export) (left LeftOuts) {
	if e.Type == mcsv1beta1.ClusterSetIP {
		selection, err := src.Selection()
		if err != nil {
			left.addField("clusterSelectors", "%v", err)
		}
		e.ClusterSelectors, e.MinimumReady = selection.Selectors, selection.MinimumReady
	}
	key, text, _ := Annotation(src.ServiceExport.Annotations, AnnotationDrain)
	drain, err := ParseDrain(text)
	if err != nil {
		left.addField("annotation "+key, "%v", err)
	}
	e.Drain = drain
	if e.Recipients, err = src.Recipients(); err != nil {
		left.addNote("exported to no other cluster: " + err.Error())
	}
	if e.InstanceAttributes, err = src.InstanceAttributes(); err != nil {
		left.addField("attributes of Cloud Map instances", "%v", err)
	}
	if e.InstanceAttributes.refersTo(referenceRegion) {
		e.Region = src.Region
	}
	if e.InstanceDNS, err = src.InstanceDNSOf(); err != nil {
		left.addNote(err.Error())
	}
	return left
}

// needsPods reports whether the instances need the names of the pods.
func (e Export) needsPods() bool {
	isPaired := len(e.IPFamilies) > 1 && e.InstanceDNS.IsWanted() && e.InstanceDNS != InstanceDNSSRV
	return isPaired || e.InstanceAttributes.refersTo(referencePod)
}

// Selection returns the cluster selectors of the export.
func (src Source) Selection() (Selection, error) {
	return SelectionRequest{
		Exported: src.ServiceExport.Spec.ExportedAnnotations, Export: src.ServiceExport.Annotations,
		Namespace: src.NamespaceAnnotations, Default: src.ClusterPreference,
	}.Decide()
}

// isControllerSlice reports whether the EndpointSlice controller of Kubernetes created slice for
// the pods of svc. That controller deletes other slices with its label, but only those of Services
// with a selector.
func isControllerSlice(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == endpointSliceController && len(svc.Spec.Selector) > 0 &&
		slices.ContainsFunc(slice.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == svc.UID })
}

func exportType(svc *corev1.Service) mcsv1beta1.ServiceImportType {
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return mcsv1beta1.Headless
	}
	return mcsv1beta1.ClusterSetIP
}

func exportPorts(svc *corev1.Service) []Port {
	var ports []Port
	for _, p := range svc.Spec.Ports {
		ports = append(ports, Port{
			Name:        p.Name,
			Protocol:    p.Protocol,
			Port:        p.Port,
			AppProtocol: ptr.Deref(p.AppProtocol, ""),
			TargetPort:  targetPort(p),
		})
	}
	return ports
}

// targetPort returns the targetPort of p, which defaults to the port's number.
func targetPort(p corev1.ServicePort) string {
	if p.TargetPort == (intstr.IntOrString{}) {
		return strconv.Itoa(int(p.Port))
	}
	return p.TargetPort.String()
}

// exportSlice returns the endpoints of slice that are exported, and those that are not.
func (src Source) exportSlice(slice *discoveryv1.EndpointSlice) (Backends, LeftOuts) {
	refuse := func(reason string, intended bool) (Backends, LeftOuts) {
		var left LeftOuts
		left.add(LeftOut{Kind: LeftOutEndpoint, Slice: slice.Name, Reason: reason, Count: len(slice.Endpoints), Intended: intended})
		return Backends{}, left
	}
	if reason, intended := src.refuseSlice(slice); reason != "" {
		return refuse(reason, intended)
	}
	if exportType(src.Service) == mcsv1beta1.Headless {
		b, left := backendsFromSlice(slice, src.CheckAddress)
		return b, left
	}
	var left LeftOuts
	used := src.servicePorts()
	named := slice.Ports
	if isControllerSlice(slice, src.Service) {
		named = renamedPorts(slice.Ports, src.Service.Spec.Ports)
	}
	ports := sift(&left, named, func(p *discoveryv1.EndpointPort) *LeftOut { return refusePort(slice.Name, *p, used) })
	if len(ports) == 0 {
		return refuse(reasonNoPort, false)
	}
	b, more := backendsFromSlice(slice, src.CheckAddress)
	b.Ports = backendPorts(ports)
	return b, append(left, more...)
}

// refuseSlice returns why no endpoint of slice is exported, "" if they are, and whether that is
// intended. Labels that Kubernetes copies from the Service to its slices, and that users write to
// slices of their own, do not count: an imported slice has another owner, name or manager.
func (src Source) refuseSlice(slice *discoveryv1.EndpointSlice) (reason string, intended bool) {
	manager := slice.Labels[discoveryv1.LabelManagedBy]
	switch {
	case slice.Labels[discoveryv1.LabelServiceName] != src.Service.Name:
		return fmt.Sprintf("it belongs to Service %q", abbreviate(slice.Labels[discoveryv1.LabelServiceName])), true
	case IsImportedSlice(slice):
		return reasonOwnImport, true
	case slices.ContainsFunc(slice.OwnerReferences, isServiceImport):
		return reasonImportOwner, true
	case slices.Contains(importers, manager):
		return fmt.Sprintf(reasonOtherImport, manager), true
	case slice.AddressType != discoveryv1.AddressTypeIPv4 && slice.AddressType != discoveryv1.AddressTypeIPv6:
		return reasonFQDN, false
	case src.ControllerSlicesOnly && !isControllerSlice(slice, src.Service):
		return reasonNotOurs, true
	}
	return "", false
}

// portName is what kube-proxy matches the ports of a Service and of its slices by.
type portName struct {
	name     string
	protocol corev1.Protocol
}

// servicePorts returns the ports of the Service.
func (src Source) servicePorts() map[portName]bool {
	out := make(map[portName]bool, len(src.Service.Spec.Ports))
	for _, p := range src.Service.Spec.Ports {
		out[portName{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}] = true
	}
	return out
}

// renamedPorts returns ports, those of a slice of the EndpointSlice controller, with the names that
// the Service has for them. A user changes a Service before that controller changes its slices:
// until then a slice has the previous names, and its endpoints would be in no port. A port whose
// name the Service lacks is recognized by its number if one port, whose name the slice lacks, has
// that numeric targetPort.
func renamedPorts(ports []discoveryv1.EndpointPort, service []corev1.ServicePort) []discoveryv1.EndpointPort {
	free := make(map[portName]corev1.ServicePort, len(service))
	for _, p := range service {
		free[portName{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}] = p
	}
	var renamed []int
	for i, p := range ports {
		if _, known := free[nameOf(p)]; known {
			delete(free, nameOf(p))
		} else {
			renamed = append(renamed, i)
		}
	}
	out := slices.Clone(ports)
	for _, i := range renamed {
		if name, ok := onlyPortOfTarget(free, ports[i]); ok {
			out[i].Name = &name.name
			delete(free, name)
		}
	}
	return out
}

// onlyPortOfTarget returns the one port of a Service that has a port of a slice as its numeric
// targetPort.
func onlyPortOfTarget(service map[portName]corev1.ServicePort, p discoveryv1.EndpointPort) (only portName, ok bool) {
	for name, svc := range service {
		if name.protocol != nameOf(p).protocol || !hasNumericTarget(svc) || !isTarget(svc, p) {
			continue
		}
		if ok {
			return portName{}, false
		}
		only, ok = name, true
	}
	return only, ok
}

// isTarget reports whether the port of a slice has the number of the targetPort of a Service's
// port.
func isTarget(svc corev1.ServicePort, p discoveryv1.EndpointPort) bool {
	return p.Port != nil && targetPort(svc) == strconv.Itoa(int(*p.Port))
}

// nameOf returns the name and protocol of a port of a slice.
func nameOf(p discoveryv1.EndpointPort) portName {
	return portName{ptr.Deref(p.Name, ""), cmp.Or(ptr.Deref(p.Protocol, ""), corev1.ProtocolTCP)}
}

// hasNumericTarget reports whether the targetPort of p is a number, and not a name that each pod
// may give to another number.
func hasNumericTarget(p corev1.ServicePort) bool { return p.TargetPort.Type == intstr.Int }

// refusePort returns that no port of the Service uses a port of a slice, nil if one of used does.
func refusePort(slice string, p discoveryv1.EndpointPort, used map[portName]bool) *LeftOut {
	name := nameOf(p)
	refused := &LeftOut{Kind: LeftOutEndpointPort, Names: []string{quote(name.name)}, Slice: slice, Reason: reasonOtherPort, Count: 1}
	switch {
	case p.Port == nil:
		refused.Reason = reasonAllPorts
	case used[name]:
		return nil
	}
	return refused
}

func isServiceImport(o metav1.OwnerReference) bool { return o.Kind == mcsv1beta1.ServiceImportKindName }

// BackendsOf returns the endpoints of slice, which is an imported one.
func BackendsOf(slice *discoveryv1.EndpointSlice) Backends {
	// what is left out has been reported by the cluster that exports it
	b, _ := backendsFromSlice(slice, nil)
	return b
}

// backendsFromSlice returns the endpoints of slice, with the defaults of the API for unset fields,
// and those whose addresses cannot be used. check may be nil.
func backendsFromSlice(slice *discoveryv1.EndpointSlice, check func(netip.Addr) error) (Backends, LeftOuts) {
	var left LeftOuts
	b := Backends{Ports: backendPorts(slice.Ports), Endpoints: make([]Endpoint, 0, len(slice.Endpoints))}
	sift(&left, slice.Endpoints, func(ep *discoveryv1.Endpoint) *LeftOut {
		address, refused := endpointAddress(*ep, check)
		if refused != nil {
			refused.Slice = slice.Name
			return refused
		}
		b.Endpoints = append(b.Endpoints, Endpoint{
			Address:     address,
			Ready:       ptr.Deref(ep.Conditions.Ready, true),
			Serving:     ptr.Deref(ep.Conditions.Serving, true),
			Terminating: ptr.Deref(ep.Conditions.Terminating, false),
			Hostname:    ptr.Deref(ep.Hostname, ""),
			Zone:        ptr.Deref(ep.Zone, ""),
			Node:        ptr.Deref(ep.NodeName, ""),
			Pod:         podOf(*ep),
		})
		return nil
	})
	return b, left
}

// backendPorts returns the ports that have a number. One without means all ports, which a headless
// Service does not need.
func backendPorts(in []discoveryv1.EndpointPort) (out []BackendPort) {
	for _, p := range in {
		if p.Port != nil {
			out = append(out, BackendPort{Name: ptr.Deref(p.Name, ""), Protocol: ptr.Deref(p.Protocol, ""), Port: *p.Port, AppProtocol: ptr.Deref(p.AppProtocol, "")})
		}
	}
	return out
}

// endpointAddress returns the address of ep, or why it has none that can be exported. kube-proxy
// also uses only the first one.
func endpointAddress(ep discoveryv1.Endpoint, check func(netip.Addr) error) (netip.Addr, *LeftOut) {
	if len(ep.Addresses) == 0 {
		return netip.Addr{}, &LeftOut{Kind: LeftOutEndpoint, Reason: reasonNoAddress, Count: 1}
	}
	address, err := netip.ParseAddr(ep.Addresses[0])
	if err != nil {
		return netip.Addr{}, leftOut(LeftOutEndpoint, quote(ep.Addresses[0]), reasonNotIP)
	}
	if err := CheckPodAddress(address); err != nil {
		return netip.Addr{}, leftOut(LeftOutEndpoint, address.String(), err.Error())
	}
	if check != nil {
		if err := check(address.Unmap()); err != nil {
			return netip.Addr{}, leftOut(LeftOutEndpoint, address.String(), "the address "+err.Error())
		}
	}
	return address, nil
}

// podOf returns the name of the endpoint's pod, "" if it is none.
func podOf(ep discoveryv1.Endpoint) string {
	if ep.TargetRef == nil || ep.TargetRef.Kind != "Pod" || len(validation.IsDNS1123Subdomain(ep.TargetRef.Name)) > 0 {
		return ""
	}
	return ep.TargetRef.Name
}

// removePods removes the names of the pods: without need they would make an export change when a
// pod is replaced.
func (b Backends) removePods() {
	for i := range b.Endpoints {
		b.Endpoints[i].Pod = ""
	}
}
