package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// DerivedService is the Service that gives m its clusterset IPs in this cluster: without a selector, for its endpoints
// are the imported EndpointSlices. It is nil where there is none to have: for a headless m, when this cluster supports
// none of m's families, and when m has no port.
//
// owner is the ServiceImport, nil while the Service has to do without. existing, nil if there is none, must be ours or one that is
// taken over; its name, its IPs and what others wrote stay. supported are the families in which this cluster gives Services IPs, nil
// if that is not known. When MustReplace(existing, result), the result is to be created after existing has been deleted.
func DerivedService(m mcs.Merged, owner *metav1.OwnerReference, existing *corev1.Service, supported []corev1.IPFamily) *corev1.Service {
	families := serviceFamilies(m.IPFamilies, supported)
	if m.Type != mcsv1beta1.ClusterSetIP || len(m.Ports) == 0 || len(families) == 0 && len(supported) > 0 {
		return nil
	}
	svc := &corev1.Service{}
	svc.Namespace, svc.Name = m.Key.Namespace, mcs.DerivedName(m.Key)
	if existing != nil && !irreconcilable(existing, families) {
		svc = existing.DeepCopy()
	}
	svc.Labels = withKeys(svc.Labels, map[string]string{
		LabelAppManagedBy:           ManagedBy,
		mcsv1beta1.LabelServiceName: m.Key.Name,
	})
	if owner != nil {
		svc.OwnerReferences = withOwner(svc.OwnerReferences, *owner)
	}

	spec := &svc.Spec
	spec.Type = corev1.ServiceTypeClusterIP
	spec.Selector = nil
	spec.Ports = servicePorts(m.Ports)
	spec.SessionAffinity = cmp.Or(m.SessionAffinity, corev1.ServiceAffinityNone)
	spec.SessionAffinityConfig = m.SessionAffinityConfig.DeepCopy()
	// What Kubernetes would default is set, or every pass would find a difference.
	policy := cmp.Or(m.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	spec.InternalTrafficPolicy = &policy
	spec.TrafficDistribution = optional(m.TrafficDistribution)
	setFamilies(spec, families)
	return svc
}

// MustReplace says whether existing cannot be updated to desired, because Kubernetes lets nobody change the field:
// whether a Service is headless, and the family of its first IP. Both arguments may be nil.
func MustReplace(existing, desired *corev1.Service) bool {
	return existing != nil && desired != nil && irreconcilable(existing, desired.Spec.IPFamilies)
}

func irreconcilable(existing *corev1.Service, families []corev1.IPFamily) bool {
	if existing.Spec.ClusterIP == corev1.ClusterIPNone {
		return true
	}
	has := existing.Spec.IPFamilies
	return len(has) > 0 && len(families) > 0 && !slices.Contains(families, has[0])
}

// serviceFamilies are the wanted families that are supported, in the wanted order. Where either says nothing, the
// other decides.
func serviceFamilies(wanted, supported []corev1.IPFamily) []corev1.IPFamily {
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

// setFamilies gives spec the families, but leaves the first one where it is: its IP is the one that clients know.
func setFamilies(spec *corev1.ServiceSpec, families []corev1.IPFamily) {
	if len(families) == 0 {
		return // nothing is known: Kubernetes chooses
	}
	families = slices.Clone(families)
	if len(spec.IPFamilies) > 0 && spec.IPFamilies[0] != families[0] {
		slices.Reverse(families) // there are two, and irreconcilable made sure that the first one is among them
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	spec.IPFamilies = families
	spec.IPFamilyPolicy = &policy
	// A second IP is given back with its family.
	spec.ClusterIPs = slices.Clone(spec.ClusterIPs[:min(len(spec.ClusterIPs), len(families))])
}

// servicePorts are the ports of a Service without selector: the endpoints' ports are found by name, so targetPort is
// what Kubernetes would default it to.
func servicePorts(ports []mcs.Port) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, p := range ports {
		out = append(out, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, AppProtocol: optional(p.AppProtocol),
			Port: p.Port, TargetPort: intstr.FromInt32(p.Port),
		})
	}
	return out
}
