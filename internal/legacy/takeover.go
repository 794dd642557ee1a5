package legacy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// For an import, version 0.3.1 of the legacy controller creates a ServiceImport, a derived Service
// for each source cluster, whose cluster IPs are all in spec.ips, and the derived Services'
// EndpointSlices. This file recognizes them, so that a cluster can change controllers without
// losing the IP that its clients use.

const (
	// Finalizer is the finalizer that the legacy controller adds to ServiceExports, which cannot be
	// deleted without it.
	Finalizer = "multicluster.k8s.aws/service-export-finalizer"
	// AnnotationRetires is the time (RFC 3339) at which a superfluous derived Service is deleted,
	// when no client uses its IP any more.
	AnnotationRetires = "multicluster.k8s.aws/retires"
)

// derivedName returns the legacy controller's name of the derived Service of key for a source
// cluster. Early versions had one for all clusters ("").
func derivedName(key mcs.Key, cluster string) string {
	sum := sha256.Sum256([]byte(key.Namespace + key.Name + cluster))
	return "imported-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])
}

// IsServiceImport reports whether the legacy controller created the ServiceImport and this
// controller has not taken it over: its annotation lists derived Services with names that follow
// from the ServiceImport's.
func IsServiceImport(imp *mcsv1beta1.ServiceImport) bool {
	if imp == nil || plan.IsManaged(imp) {
		return false
	}
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	annotation := imp.Annotations[plan.AnnotationDerivedServiceAWS]
	if annotation == derivedName(key, "") {
		return true
	}
	var derived []struct {
		Cluster string `json:"cluster"`
		Service string `json:"derived-service"`
	}
	if err := json.Unmarshal([]byte(annotation), &derived); err != nil || len(derived) == 0 {
		return false
	}
	for _, d := range derived {
		if d.Service != derivedName(key, d.Cluster) {
			return false
		}
	}
	return true
}

// isDerivedService reports whether the legacy controller created svc for imp.
func isDerivedService(imp *mcsv1beta1.ServiceImport, svc *corev1.Service) bool {
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	return isOwnedBy(imp, svc) && svc.Labels[mcsv1beta1.LabelServiceName] == imp.Name &&
		(svc.Name == derivedName(key, svc.Labels[mcsv1beta1.LabelSourceCluster]) || svc.Name == derivedName(key, ""))
}

func isOwnedBy(imp *mcsv1beta1.ServiceImport, svc *corev1.Service) bool {
	for _, owner := range svc.OwnerReferences {
		if owner.UID == imp.UID && owner.Kind == mcsv1beta1.ServiceImportKindName {
			return true
		}
	}
	return false
}

// Derived are the derived Services of an import.
type Derived struct {
	// Name is the name of the derived Service, which may not exist.
	Name string
	// Service is the derived Service, nil if it does not exist. Foreign: it belongs to another
	// owner.
	Service *corev1.Service
	Foreign bool
	// Superfluous are further derived Services of the legacy controller, sorted by name.
	Superfluous []*corev1.Service
}

// ChooseDerived returns the derived Service of key. standard is the Service with a derived name of
// key, nil if there is none, and candidates are those with the import's label. Neither is changed.
//
// An import that was taken over keeps one of the legacy controller's Services, because clients use
// its IP: the ServiceImport names it. Before the takeover, which takeOver allows, it is the oldest
// one.
func ChooseDerived(key mcs.Key, imp *mcsv1beta1.ServiceImport, standard *corev1.Service, candidates []*corev1.Service, takeOver bool) Derived {
	d := Derived{Name: mcs.DerivedName(key), Service: standard, Foreign: standard != nil && !plan.IsManaged(standard)}
	if standard != nil {
		d.Name = standard.Name
	}
	if imp == nil {
		return d
	}
	old := oldestFirst(candidates, func(svc *corev1.Service) bool {
		return svc.Name != d.Name && isDerivedService(imp, svc) && (takeOver || plan.IsManaged(svc))
	})
	if kept := keptDerived(imp, standard, old); kept != nil {
		d = Derived{Name: kept.Name, Service: kept}
		if standard != nil && plan.IsManaged(standard) {
			d.Superfluous = append(d.Superfluous, standard)
		}
	}
	for _, svc := range old {
		if svc != d.Service {
			d.Superfluous = append(d.Superfluous, svc)
		}
	}
	slices.SortFunc(d.Superfluous, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	return d
}

// oldestFirst returns the services that match and are not being deleted, by age.
func oldestFirst(services []*corev1.Service, matches func(*corev1.Service) bool) []*corev1.Service {
	var out []*corev1.Service
	for _, svc := range services {
		if svc.DeletionTimestamp == nil && matches(svc) {
			out = append(out, svc)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

// keptDerived returns the Service of old that stays the derived Service, or nil.
func keptDerived(imp *mcsv1beta1.ServiceImport, standard *corev1.Service, old []*corev1.Service) *corev1.Service {
	for _, svc := range old {
		if plan.IsManaged(imp) && svc.Name == imp.Annotations[plan.AnnotationDerivedService] {
			return svc
		}
	}
	if standard != nil {
		return nil
	}
	for _, svc := range old {
		if _, retires := svc.Annotations[AnnotationRetires]; !retires && svc.Spec.ClusterIP != corev1.ClusterIPNone {
			return svc
		}
	}
	return nil
}

// Retire decides about a superfluous derived Service. If mustDelete is false, the Service should be
// updated and deleted at the given time, which is drain after now unless an annotation has it.
// Headless Services have no cluster IP that clients could have cached, so they are deleted
// immediately.
func Retire(svc *corev1.Service, now time.Time, drain time.Duration) (updated *corev1.Service, at time.Time, mustDelete bool) {
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil, now, true
	}
	at, err := time.Parse(time.RFC3339, svc.Annotations[AnnotationRetires])
	if err != nil || at.After(now.Add(drain)) {
		at = now.Add(drain).Truncate(time.Second)
	}
	if !at.After(now) {
		return nil, at, true
	}
	updated = svc.DeepCopy()
	metav1.SetMetaDataLabel(&updated.ObjectMeta, plan.LabelAppManagedBy, plan.ManagedBy)
	metav1.SetMetaDataAnnotation(&updated.ObjectMeta, AnnotationRetires, at.UTC().Format(time.RFC3339))
	return updated, at, false
}

// IsEndpointSlice reports whether the legacy controller created the EndpointSlice for an import.
func IsEndpointSlice(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[plan.LabelManagedBy] == ControllerName && s.Labels[mcsv1beta1.LabelServiceName] != "" && s.Labels[mcsv1beta1.LabelSourceCluster] != ""
}
