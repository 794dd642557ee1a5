package mcs

import (
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
	// NamespaceAnnotations are those of the namespace, and ClusterPreference is the default of the cluster: they decide about cluster selectors
	// that the ServiceExport does not have.
	NamespaceAnnotations map[string]string
	ClusterPreference    ClusterPreference
	// ControllerSlicesOnly leaves out the slices that the EndpointSlice controller of Kubernetes did not create.
	ControllerSlicesOnly bool
	// InstanceDNS is the default of the cluster for the namespace's annotation.
	InstanceDNS InstanceDNS
	// Region is the cluster's Region, "" if it is not known.
	Region string
	// CheckAddress returns an error for addresses that this cluster's endpoints cannot have; nil allows all.
	CheckAddress func(netip.Addr) error
}

// endpointSliceController manages the slices of Services with a selector, and corrects those that others write under its name.
const endpointSliceController = "endpointslice-controller.k8s.io"

// NewExport creates this cluster's export of src. previous is the last result, or nil: if nothing has changed since, Changed stays;
// otherwise it becomes now.
//
// The result is sanitized because this cluster must merge its own export in the form that the others receive. The lines report
// the properties that were left out. An error reports that nothing can be exported.
func NewExport(src Source, previous *Export, now time.Time) (Export, []string, error) {
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
	unreadable := src.readAnnotations(&e)
	for i := range src.Slices {
		slice := &src.Slices[i]
		if !isSourceSlice(slice, svc) {
			continue
		}
		if src.ControllerSlicesOnly && !isControllerSlice(slice, svc) {
			unreadable = append(unreadable, fmt.Sprintf("EndpointSlice %s left out: it was not created by the EndpointSlice controller of Kubernetes for a Service "+
				"with a selector (--export-slices=controller)", slice.Name))
			continue
		}
		b, bad := backendsFromSlice(slice)
		if !e.needsPods() {
			b.removePods()
		}
		bad = append(bad, src.leaveOutAddresses(&b)...)
		e.Backends = append(e.Backends, b)
		unreadable = append(unreadable, bad...)
	}
	e, left, err := Sanitize(e)
	if err != nil {
		return Export{}, nil, fmt.Errorf("exporting Service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	if previous != nil && e.Equal(*previous) {
		e.Changed = previous.Changed.UTC().Truncate(time.Millisecond)
	}
	return e, append(unreadable, left...), nil
}

// readAnnotations sets the fields of e that annotations have. The lines report the annotations that cannot be read.
func (src Source) readAnnotations(e *Export) (unreadable []string) {
	if e.Type == mcsv1beta1.ClusterSetIP {
		selection, err := src.Selection()
		if err != nil {
			unreadable = append(unreadable, "clusterSelectors left out: "+err.Error())
		}
		e.ClusterSelectors, e.MinimumReady = selection.Selectors, selection.MinimumReady
	}
	drain, err := ParseDrain(src.ServiceExport.Annotations[AnnotationDrain])
	if err != nil {
		unreadable = append(unreadable, fmt.Sprintf("annotation %s left out: %v", AnnotationDrain, err))
	}
	e.Drain = drain
	if e.Recipients, err = src.Recipients(); err != nil {
		unreadable = append(unreadable, "exported to no other cluster: "+err.Error())
	}
	if e.InstanceAttributes, err = src.InstanceAttributes(); err != nil {
		unreadable = append(unreadable, "attributes of Cloud Map instances left out: "+err.Error())
	}
	if e.InstanceAttributes.refersTo(referenceRegion) {
		e.Region = src.Region
	}
	if e.InstanceDNS, err = src.InstanceDNSOf(); err != nil {
		unreadable = append(unreadable, err.Error())
	}
	return unreadable
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

// isControllerSlice reports whether the EndpointSlice controller of Kubernetes created slice for the pods of svc. That controller deletes other slices
// with its label, but only those of Services with a selector.
func isControllerSlice(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == endpointSliceController && len(svc.Spec.Selector) > 0 &&
		slices.ContainsFunc(slice.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == svc.UID })
}

// leaveOutAddresses removes the endpoints of b with addresses that src.CheckAddress refuses, and returns a line for each.
func (src Source) leaveOutAddresses(b *Backends) []string {
	if src.CheckAddress == nil {
		return nil
	}
	var p problems
	b.Endpoints = slices.DeleteFunc(b.Endpoints, func(e Endpoint) bool {
		err := src.CheckAddress(e.Address.Unmap())
		if err != nil {
			p.add("endpoint %s left out: the address %v", e.Address, err)
		}
		return err != nil
	})
	return p.lines()
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

// isSourceSlice reports whether slice holds endpoints of svc in this cluster. Endpoints that any MCS implementation imported must
// not be exported again, and slices of type FQDN hold no addresses.
func isSourceSlice(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	_, imported := slice.Labels[mcsv1beta1.LabelServiceName]
	if !imported {
		_, imported = slice.Labels[mcsv1beta1.LabelSourceCluster]
	}
	return !imported && slice.Labels[discoveryv1.LabelServiceName] == svc.Name &&
		(slice.AddressType == discoveryv1.AddressTypeIPv4 || slice.AddressType == discoveryv1.AddressTypeIPv6)
}

// BackendsOf returns the endpoints of slice.
func BackendsOf(slice *discoveryv1.EndpointSlice) Backends {
	b, _ := backendsFromSlice(slice)
	return b
}

// backendsFromSlice returns the endpoints of slice, with the defaults of the API for unset fields.
func backendsFromSlice(slice *discoveryv1.EndpointSlice) (Backends, []string) {
	var b Backends
	var bad []string
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue // "all ports", which matches no Service port
		}
		b.Ports = append(b.Ports, BackendPort{Name: ptr.Deref(p.Name, ""), Protocol: ptr.Deref(p.Protocol, ""), Port: *p.Port, AppProtocol: ptr.Deref(p.AppProtocol, "")})
	}
	for _, ep := range slice.Endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		// An endpoint has one address; kube-proxy also uses only the first one.
		addr, err := netip.ParseAddr(ep.Addresses[0])
		if err != nil {
			bad = append(bad, fmt.Sprintf("endpoint %q of EndpointSlice %s left out: it is not an IP address", abbreviate(ep.Addresses[0]), slice.Name))
			continue
		}
		b.Endpoints = append(b.Endpoints, Endpoint{
			Address:     addr,
			Ready:       ptr.Deref(ep.Conditions.Ready, true),
			Serving:     ptr.Deref(ep.Conditions.Serving, true),
			Terminating: ptr.Deref(ep.Conditions.Terminating, false),
			Hostname:    ptr.Deref(ep.Hostname, ""),
			Zone:        ptr.Deref(ep.Zone, ""),
			Node:        ptr.Deref(ep.NodeName, ""),
			Pod:         podOf(ep),
		})
	}
	return b, bad
}

// podOf returns the name of the endpoint's pod, "" if it is none.
func podOf(ep discoveryv1.Endpoint) string {
	if ep.TargetRef == nil || ep.TargetRef.Kind != "Pod" || len(validation.IsDNS1123Subdomain(ep.TargetRef.Name)) > 0 {
		return ""
	}
	return ep.TargetRef.Name
}

// removePods removes the names of the pods: without need they would make an export change when a pod is replaced.
func (b Backends) removePods() {
	for i := range b.Endpoints {
		b.Endpoints[i].Pod = ""
	}
}
