package mcs

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Source is what an Export is made of, as the Kubernetes API shows it.
type Source struct {
	Identity      Identity
	ServiceExport *mcsv1beta1.ServiceExport
	// Service must be one of which ExportValid says that it can be exported.
	Service *corev1.Service
	// Slices are the EndpointSlices with the Service's name in label kubernetes.io/service-name.
	Slices []discoveryv1.EndpointSlice
}

// NewExport makes this cluster's export of src. previous is what was made last, nil if nothing: while nothing has
// changed since, Changed stays; otherwise it becomes now.
//
// The result is sanitized, for this cluster must merge its own export in the form in which the others receive it. The
// lines say what was left out of it, the error why it cannot be exported at all.
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
		InternalTrafficPolicy: deref(svc.Spec.InternalTrafficPolicy),
		TrafficDistribution:   deref(svc.Spec.TrafficDistribution),
		IPFamilies:            svc.Spec.IPFamilies,
		Labels:                exp.Spec.ExportedLabels,
		Annotations:           exp.Spec.ExportedAnnotations,
	}
	var unreadable []string
	for i := range src.Slices {
		slice := &src.Slices[i]
		if !isSource(slice, svc) {
			continue
		}
		b, bad := backendsOf(slice)
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
			AppProtocol: deref(p.AppProtocol),
			TargetPort:  targetPort(p),
		})
	}
	return ports
}

// targetPort is p's targetPort, which is the port's own number where the user wrote none.
func targetPort(p corev1.ServicePort) string {
	if p.TargetPort == (intstr.IntOrString{}) {
		return strconv.Itoa(int(p.Port))
	}
	return p.TargetPort.String()
}

// isSource says whether slice holds endpoints of svc in this very cluster. What is imported, by whichever
// implementation, must not be exported again, and names (FQDN) are no addresses.
func isSource(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	_, imported := slice.Labels[mcsv1beta1.LabelServiceName]
	if !imported {
		_, imported = slice.Labels[mcsv1beta1.LabelSourceCluster]
	}
	return !imported && slice.Labels[discoveryv1.LabelServiceName] == svc.Name &&
		(slice.AddressType == discoveryv1.AddressTypeIPv4 || slice.AddressType == discoveryv1.AddressTypeIPv6)
}

// backendsOf is what slice says, with the defaults of the API for what it leaves open.
func backendsOf(slice *discoveryv1.EndpointSlice) (Backends, []string) {
	var b Backends
	var bad []string
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue // "all ports", which no Service port can be matched with
		}
		b.Ports = append(b.Ports, BackendPort{Name: deref(p.Name), Protocol: deref(p.Protocol), Port: *p.Port})
	}
	for _, ep := range slice.Endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		// One endpoint has one address; kube-proxy too looks at the first only.
		addr, err := netip.ParseAddr(ep.Addresses[0])
		if err != nil {
			bad = append(bad, fmt.Sprintf("endpoint %q of EndpointSlice %s left out: it is no IP address", abbreviate(ep.Addresses[0]), slice.Name))
			continue
		}
		b.Endpoints = append(b.Endpoints, Endpoint{
			Address:     addr,
			Ready:       derefOr(ep.Conditions.Ready, true),
			Serving:     derefOr(ep.Conditions.Serving, true),
			Terminating: derefOr(ep.Conditions.Terminating, false),
			Hostname:    deref(ep.Hostname),
			Zone:        deref(ep.Zone),
			Node:        deref(ep.NodeName),
		})
	}
	return b, bad
}

func deref[T any](p *T) T {
	var zero T
	return derefOr(p, zero)
}

func derefOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
