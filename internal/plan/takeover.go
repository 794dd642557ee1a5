package plan

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
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// What the AWS Cloud Map MCS Controller for K8s makes of an import, in version 0.3.1: a ServiceImport with a derived Service for each
// source cluster, whose cluster IPs are all in spec.ips, and the derived Services' EndpointSlices. This file recognises them, so
// that a cluster can change controllers without losing the IP that its clients know.

const (
	// OldManagedBy is what the old controller's EndpointSlices carry in LabelManagedBy. Its Services and ServiceImports have no such label.
	OldManagedBy = "aws-cloud-map-mcs-controller-for-k8s"
	// OldFinalizer is what it puts on ServiceExports. Without it running they cannot be deleted.
	OldFinalizer = "multicluster.k8s.aws/service-export-finalizer"
	// AnnotationRetires says on a derived Service, of which an import has one too many, when it goes (RFC 3339). By then no client
	// uses its IP any more.
	AnnotationRetires = "multicluster.k8s.aws/retires"
)

// oldDerivedName is the name that the old controller gives the derived Service of key for a source cluster. Early versions had
// one for all clusters ("").
func oldDerivedName(key mcs.Key, cluster string) string {
	sum := sha256.Sum256([]byte(key.Namespace + key.Name + cluster))
	return "imported-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])
}

// MadeByOldController says whether the AWS Cloud Map MCS Controller for K8s made the ServiceImport and nobody has taken it over: it
// names its derived Services, whose names follow from the ServiceImport's.
func MadeByOldController(imp *mcsv1beta1.ServiceImport) bool {
	if imp == nil || IsManaged(imp) {
		return false
	}
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	annotation := imp.Annotations[AnnotationDerivedServiceAWS]
	if annotation == oldDerivedName(key, "") {
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
		if d.Service != oldDerivedName(key, d.Cluster) {
			return false
		}
	}
	return true
}

// oldDerived says whether the old controller made svc for imp.
func oldDerived(imp *mcsv1beta1.ServiceImport, svc *corev1.Service) bool {
	key := mcs.Key{Namespace: imp.Namespace, Name: imp.Name}
	return belongsTo(imp, svc) && svc.Labels[mcsv1beta1.LabelServiceName] == imp.Name &&
		(svc.Name == oldDerivedName(key, svc.Labels[mcsv1beta1.LabelSourceCluster]) || svc.Name == oldDerivedName(key, ""))
}

func belongsTo(imp *mcsv1beta1.ServiceImport, svc *corev1.Service) bool {
	for _, owner := range svc.OwnerReferences {
		if owner.UID == imp.UID && owner.Kind == mcsv1beta1.ServiceImportKindName {
			return true
		}
	}
	return false
}

// Derived are the Services behind an import.
type Derived struct {
	// Name is that of the derived Service, be it there or not.
	Name string
	// Service is the derived Service, nil if it is not there. Foreign says that it is somebody else's and in the way.
	Service *corev1.Service
	Foreign bool
	// Superfluous are further ones of this import, which the old controller left: sorted by name.
	Superfluous []*corev1.Service
}

// ChooseDerived says which Service is the derived one of key. standard is the one of the name mcs.DerivedName, nil if there is none,
// and candidates are those with the import's label. Both are left as they are.
//
// An import that was taken over keeps one of the old controller's Services, because with the Service the IP would go that clients
// know: the ServiceImport names it. While it does not yet, as takeOver allows only where the old controller's objects may be
// touched, it is the oldest one.
func ChooseDerived(key mcs.Key, imp *mcsv1beta1.ServiceImport, standard *corev1.Service, candidates []*corev1.Service, takeOver bool) Derived {
	d := Derived{Name: mcs.DerivedName(key), Service: standard, Foreign: standard != nil && !IsManaged(standard)}
	if imp == nil {
		return d
	}
	old := oldestFirst(candidates, func(svc *corev1.Service) bool {
		return svc.Name != d.Name && oldDerived(imp, svc) && (takeOver || IsManaged(svc))
	})
	if kept := keptDerived(imp, standard, old); kept != nil {
		d = Derived{Name: kept.Name, Service: kept}
		if standard != nil && IsManaged(standard) {
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

// oldestFirst are those of services that pick picks and that are not being deleted.
func oldestFirst(services []*corev1.Service, pick func(*corev1.Service) bool) []*corev1.Service {
	var out []*corev1.Service
	for _, svc := range services {
		if svc.DeletionTimestamp == nil && pick(svc) {
			out = append(out, svc)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

// keptDerived is the one of old that stays the derived Service, nil if none does.
func keptDerived(imp *mcsv1beta1.ServiceImport, standard *corev1.Service, old []*corev1.Service) *corev1.Service {
	for _, svc := range old {
		if IsManaged(imp) && svc.Name == imp.Annotations[AnnotationDerivedService] {
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

// Retire is what becomes of a superfluous derived Service: it is deleted now when gone is true, and otherwise it should be as svc
// and go at the given time, drain after now if that is not decided yet. A headless one is in nobody's memory.
func Retire(svc *corev1.Service, now time.Time, drain time.Duration) (updated *corev1.Service, at time.Time, gone bool) {
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
	updated.Labels = withKeys(updated.Labels, map[string]string{LabelAppManagedBy: ManagedBy})
	updated.Annotations = withKeys(updated.Annotations, map[string]string{AnnotationRetires: at.UTC().Format(time.RFC3339)})
	return updated, at, false
}

// OldSlice says whether the old controller made the EndpointSlice, for an import.
func OldSlice(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[LabelManagedBy] == OldManagedBy && s.Labels[mcsv1beta1.LabelServiceName] != "" && s.Labels[mcsv1beta1.LabelSourceCluster] != ""
}
