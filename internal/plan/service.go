package plan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// DerivedService returns the Service that gives m its clusterset IPs in this cluster. It has no
// selector because its endpoints are the imported EndpointSlices. It is nil if m is headless, if m
// has no port, and if this cluster supports none of m's families.
//
// owner is the ServiceImport, nil while it does not exist. existing, nil if there is none, must be
// managed by this controller or taken over; its name, its IPs and the changes of others stay.
// supported are the families of this cluster's Services, nil if unknown. If MustReplace(existing,
// result), the caller deletes existing before it creates the result.
func DerivedService(m mcs.Merged, owner *metav1.OwnerReference, existing *corev1.Service, supported []corev1.IPFamily) *corev1.Service {
	families := supportedFamilies(m.IPFamilies, supported)
	if m.Type != mcsv1beta1.ClusterSetIP || len(m.Ports) == 0 || len(families) == 0 && len(supported) > 0 {
		return nil
	}
	svc := &corev1.Service{}
	svc.Namespace, svc.Name = m.Key.Namespace, mcs.DerivedName(m.Key)
	if existing != nil && mcs.IsDerivedNameOf(existing.Name, m.Key) {
		svc.Name = existing.Name // that of an earlier version, to which routes may refer
	}
	if existing != nil && !isImmutableChange(existing, families) {
		svc = existing.DeepCopy()
		delete(svc.Annotations, AnnotationHeldSince)
		delete(svc.Annotations, AnnotationHeldFor)
		if existing.Spec.Type == corev1.ServiceTypeExternalName {
			svc.Spec = corev1.ServiceSpec{}
		}
	}
	svc.Labels = withKeys(svc.Labels, map[string]string{
		LabelAppManagedBy:           ManagedBy,
		mcsv1beta1.LabelServiceName: m.Key.Name,
	})
	if owner != nil {
		svc.OwnerReferences = withOwnerReference(svc.OwnerReferences, *owner)
	}

	spec := &svc.Spec
	spec.Type = corev1.ServiceTypeClusterIP
	spec.Selector = nil
	spec.Ports = servicePorts(m.Ports)
	spec.SessionAffinity = cmp.Or(m.SessionAffinity, corev1.ServiceAffinityNone)
	spec.SessionAffinityConfig = m.SessionAffinityConfig.DeepCopy()
	// Fields that Kubernetes would default are set: otherwise every reconcile would find a
	// difference.
	policy := cmp.Or(m.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	spec.InternalTrafficPolicy = &policy
	spec.TrafficDistribution = pointerOrNil(m.TrafficDistribution)
	setFamilies(spec, families)
	return svc
}

// RequestIPs sets in svc, a derived Service that has no IP, the IPs to ask for: those in ips that
// belong to a family of the Service. It reports whether there are any. Kubernetes allocates the IP
// of another family as usual.
func RequestIPs(svc *corev1.Service, ips []string) bool {
	if svc == nil || len(svc.Spec.ClusterIPs) > 0 {
		return false
	}
	var families []corev1.IPFamily
	var wanted []string
	for _, ip := range ips {
		family := familyOf(ip)
		usable := slices.Contains(svc.Spec.IPFamilies, family) || len(svc.Spec.IPFamilies) == 0 && len(wanted) == 0
		if family != "" && usable && !slices.Contains(families, family) {
			families, wanted = append(families, family), append(wanted, ip)
		}
	}
	if len(wanted) == 0 {
		return false
	}
	for _, family := range svc.Spec.IPFamilies {
		if !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Spec.IPFamilies = wanted[0], wanted, families
	return true
}

// familyOf returns the family of ip, "" if it is no IP.
func familyOf(ip string) corev1.IPFamily {
	addr, err := netip.ParseAddr(ip)
	switch {
	case err != nil:
		return ""
	case addr.Is4():
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// MustReplace reports whether existing cannot be updated to desired because the change concerns an
// immutable field: whether a Service is headless, and the family of its first IP. Both arguments
// may be nil.
func MustReplace(existing, desired *corev1.Service) bool {
	return existing != nil && desired != nil && isImmutableChange(existing, desired.Spec.IPFamilies)
}

func isImmutableChange(existing *corev1.Service, families []corev1.IPFamily) bool {
	if existing.Spec.ClusterIP == corev1.ClusterIPNone {
		return true
	}
	has := existing.Spec.IPFamilies
	return len(has) > 0 && len(families) > 0 && !slices.Contains(families, has[0])
}

// supportedFamilies returns the wanted families that are supported, in the wanted order. If either
// list is empty, it returns the other.
func supportedFamilies(wanted, supported []corev1.IPFamily) []corev1.IPFamily {
	switch {
	case len(wanted) == 0:
		return slices.Clone(supported)
	case len(supported) == 0:
		return slices.Clone(wanted)
	}
	var out []corev1.IPFamily
	for _, f := range wanted {
		if slices.Contains(supported, f) {
			out = append(out, f)
		}
	}
	return out
}

// setFamilies sets the families of spec but keeps the first one, whose IP clients use.
func setFamilies(spec *corev1.ServiceSpec, families []corev1.IPFamily) {
	if len(families) == 0 {
		return // unknown: Kubernetes chooses
	}
	families = slices.Clone(families)
	if len(spec.IPFamilies) > 0 && spec.IPFamilies[0] != families[0] {
		// there are two, and isImmutableChange has checked that the first one is among them
		slices.Reverse(families)
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	spec.IPFamilies = families
	spec.IPFamilyPolicy = &policy
	// A second IP is released with its family.
	spec.ClusterIPs = slices.Clone(spec.ClusterIPs[:min(len(spec.ClusterIPs), len(families))])
}

// servicePorts returns the ports of a Service without selector. kube-proxy finds the endpoints'
// ports by name, so targetPort has its default.
func servicePorts(ports []mcs.Port) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, p := range ports {
		out = append(out, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, AppProtocol: pointerOrNil(p.AppProtocol),
			Port: p.Port, TargetPort: intstr.FromInt32(p.Port),
		})
	}
	return out
}
