package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// IsDerivedService reports whether svc is a derived Service of key that this controller created or took over. Other clients may
// overwrite the managed-by label, so a Service with the derived name is recognized by any other mark of this controller too.
func IsDerivedService(key mcs.Key, svc *corev1.Service) bool {
	if IsManaged(svc) {
		return true
	}
	return svc.Name == mcs.DerivedName(key) &&
		(svc.Labels[mcsv1beta1.LabelServiceName] == key.Name || IsHeld(svc) || slices.Contains(ImportOwners(svc), key.Name))
}

// IsOwnImport reports whether this controller created imp or took it over. Other clients may overwrite the managed-by label, so imp is
// recognized by its derived Service and by the imported slices that it owns too.
func IsOwnImport(imp *mcsv1beta1.ServiceImport, imported []*discoveryv1.EndpointSlice) bool {
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	if IsManaged(imp) || imp.Annotations[AnnotationDerivedService] == mcs.DerivedName(key) {
		return true
	}
	return slices.ContainsFunc(imported, func(s *discoveryv1.EndpointSlice) bool {
		return isImportedSlice(key, s) && slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == imp.UID })
	})
}

// ImportOwners returns the names of the ServiceImports that own obj.
func ImportOwners(obj metav1.Object) []string {
	var out []string
	for _, o := range obj.GetOwnerReferences() {
		if o.Kind == mcsv1beta1.ServiceImportKindName && apiGroup(o.APIVersion) == mcsv1beta1.GroupName {
			out = append(out, o.Name)
		}
	}
	return out
}

// isImportedSlice reports whether s is an imported slice of key that this controller created.
func isImportedSlice(key mcs.Key, s *discoveryv1.EndpointSlice) bool {
	derived, _, ok := mcs.ParseSliceName(s)
	return ok && derived == mcs.DerivedName(key) || IsManaged(s) && s.Labels[mcsv1beta1.LabelServiceName] == key.Name
}

// SourceCluster returns the source cluster of an imported slice. Its name has it, which no client can change as it can change the label.
func SourceCluster(s *discoveryv1.EndpointSlice) string {
	if _, cluster, ok := mcs.ParseSliceName(s); ok {
		return cluster
	}
	return s.Labels[mcsv1beta1.LabelSourceCluster]
}

// DerivedNameOfSlice returns the name of the derived Service in the name of an imported slice, "" if s has no such name.
func DerivedNameOfSlice(s *discoveryv1.EndpointSlice) string {
	derived, _, _ := mcs.ParseSliceName(s)
	return derived
}

// IsHeld reports whether svc is a derived Service without an import, which only keeps its IPs.
func IsHeld(svc *corev1.Service) bool {
	_, held := svc.Annotations[AnnotationHeldSince]
	return held
}

// HeldSince returns the time at which the import of svc ended if svc only keeps its IPs, the zero time if that is not known.
func HeldSince(svc *corev1.Service) (since time.Time, isHeld bool) {
	since, _ = time.Parse(time.RFC3339, svc.Annotations[AnnotationHeldSince])
	return since, IsHeld(svc)
}

// HasIP reports whether svc has a cluster IP, and thus something to hold.
func HasIP(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// HeldService returns svc, the derived Service of an import that has ended, as it keeps its IPs: with the time at which that began, and
// without an owner, because the garbage collector would delete it with the ServiceImport. svc is not changed.
func HeldService(key mcs.Key, svc *corev1.Service, now time.Time) *corev1.Service {
	held := svc.DeepCopy()
	held.Labels = withKeys(held.Labels, map[string]string{LabelAppManagedBy: ManagedBy, mcsv1beta1.LabelServiceName: key.Name})
	held.OwnerReferences = slices.DeleteFunc(held.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == mcsv1beta1.ServiceImportKindName && apiGroup(o.APIVersion) == mcsv1beta1.GroupName
	})
	if len(held.OwnerReferences) == 0 {
		held.OwnerReferences = nil
	}
	held.Spec.Selector = nil // it must serve nothing
	since, err := time.Parse(time.RFC3339, held.Annotations[AnnotationHeldSince])
	if err != nil || since.After(now) {
		held.Annotations = withKeys(held.Annotations, map[string]string{AnnotationHeldSince: now.UTC().Format(time.RFC3339)})
	}
	return held
}

// HoldRemaining returns how much longer svc, which HeldService returned, keeps its IPs.
func HoldRemaining(svc *corev1.Service, hold time.Duration, now time.Time) time.Duration {
	since, err := time.Parse(time.RFC3339, svc.Annotations[AnnotationHeldSince])
	if err != nil || since.After(now) {
		return hold
	}
	return max(0, since.Add(hold).Sub(now))
}
