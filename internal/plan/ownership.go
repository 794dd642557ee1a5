package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// IsDerivedService reports whether svc is a derived Service of key that this controller created or
// took over. Other clients may overwrite the managed-by label, so a Service with the derived name
// is recognized by any other mark of this controller too.
func IsDerivedService(key mcs.Key, svc *corev1.Service) bool {
	switch {
	case ImportWithSameName(key, svc) != "":
		return false
	case IsManaged(svc):
		return true
	}
	return mcs.IsDerivedNameOf(svc.Name, key) &&
		(svc.Labels[mcsv1beta1.LabelServiceName] == key.Name || IsHeld(svc) || slices.Contains(ImportOwners(svc), key.Name))
}

// ImportWithSameName returns the name of another import of this controller that obj belongs to,
// although its name is, or begins with, the derived name of key: the hashes of both names are the
// same. It is "" if there is none.
//
// The label of obj tells the import, else its owner. Other clients may change both, so they count
// only if that import has this derived name too. The one to which the object belongs keeps it, and
// the other does not touch it.
func ImportWithSameName(key mcs.Key, obj metav1.Object) string {
	derived, _, ok := mcs.CutDerivedName(obj.GetName())
	if !ok || !mcs.IsDerivedNameOf(derived, key) {
		return ""
	}
	for _, name := range append([]string{obj.GetLabels()[mcsv1beta1.LabelServiceName]}, ImportOwners(obj)...) {
		if name == key.Name {
			return ""
		}
		if name != "" && mcs.IsDerivedNameOf(derived, mcs.Key{Namespace: obj.GetNamespace(), Name: name}) {
			return name
		}
	}
	return ""
}

// DerivedName returns the name of the derived Service of key, whose ServiceImport is imp: the one
// that imp names, because that of an earlier version, or of the legacy controller, keeps its name.
// imp may be nil.
func DerivedName(key mcs.Key, imp *mcsv1beta1.ServiceImport) string {
	if imp != nil && mcs.IsDerivedName(imp.Annotations[AnnotationDerivedService]) {
		return imp.Annotations[AnnotationDerivedService]
	}
	return mcs.DerivedName(key)
}

// IsOwnImport reports whether this controller created imp or took it over. Other clients may
// overwrite the managed-by label, so imp is recognized by its derived Service and by the imported
// slices that it owns too.
func IsOwnImport(imp *mcsv1beta1.ServiceImport, imported []*discoveryv1.EndpointSlice) bool {
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	if IsManaged(imp) || mcs.IsDerivedNameOf(imp.Annotations[AnnotationDerivedService], key) {
		return true
	}
	return slices.ContainsFunc(imported, func(s *discoveryv1.EndpointSlice) bool {
		return IsImportedSlice(key, s) && slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == imp.UID })
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

// IsImportedSlice reports whether s is an imported slice of key that this controller created.
func IsImportedSlice(key mcs.Key, s *discoveryv1.EndpointSlice) bool {
	derived, _, ok := mcs.ParseSliceName(s)
	return ok && mcs.IsDerivedNameOf(derived, key) && ImportWithSameName(key, s) == "" || IsManaged(s) && s.Labels[mcsv1beta1.LabelServiceName] == key.Name
}

// SourceCluster returns the source cluster of an imported slice. Its name has it, which no client
// can change as it can change the label.
func SourceCluster(s *discoveryv1.EndpointSlice) string {
	if _, cluster, ok := mcs.ParseSliceName(s); ok {
		return cluster
	}
	return s.Labels[mcsv1beta1.LabelSourceCluster]
}

// DerivedNameOfSlice returns the name of the derived Service in the name of an imported slice, ""
// if s has no such name.
func DerivedNameOfSlice(s *discoveryv1.EndpointSlice) string {
	derived, _, _ := mcs.ParseSliceName(s)
	return derived
}

// IsHeld reports whether svc is a derived Service without an import, which only keeps its IPs.
func IsHeld(svc *corev1.Service) bool {
	_, held := svc.Annotations[AnnotationHeldSince]
	return held
}

// HeldSince returns the time at which the import of svc ended if svc only keeps its IPs, the zero
// time if that is not known.
func HeldSince(svc *corev1.Service) (since time.Time, isHeld bool) {
	since, _ = time.Parse(time.RFC3339, svc.Annotations[AnnotationHeldSince])
	return since, IsHeld(svc)
}

// HasIP reports whether svc has a cluster IP, and thus something to hold.
func HasIP(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// HeldService returns svc, the derived Service of an import that has ended, as it keeps its IPs:
// with the time at which that began, and without an owner, because the garbage collector would
// delete it with the ServiceImport. svc is not changed.
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

// SetHeldFor sets the clusters that exported the service of svc, the result of HeldService.
func SetHeldFor(svc *corev1.Service, clusters []string) {
	svc.Annotations = withKeys(svc.Annotations, map[string]string{AnnotationHeldFor: strings.Join(clusters, ",")})
}

// HeldFor returns these clusters, none if they are not known.
func HeldFor(svc *corev1.Service) []string {
	if svc.Annotations[AnnotationHeldFor] == "" {
		return nil
	}
	return strings.Split(svc.Annotations[AnnotationHeldFor], ",")
}

// HoldRemaining returns how much longer svc, which HeldService returned, keeps its IPs.
func HoldRemaining(svc *corev1.Service, hold time.Duration, now time.Time) time.Duration {
	since, err := time.Parse(time.RFC3339, svc.Annotations[AnnotationHeldSince])
	if err != nil || since.After(now) {
		return hold
	}
	return max(0, since.Add(hold).Sub(now))
}
