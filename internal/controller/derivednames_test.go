package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// earlierDerived returns the derived Service of key that a version before 0.1.0 created, as it
// holds its IPs.
func earlierDerived(key mcs.Key) *corev1.Service {
	svc := controllertest.Service(mcs.Key{Namespace: key.Namespace, Name: mcs.ShortDerivedName(key)})
	svc.Spec.Selector = nil
	return plan.HeldService(key, svc, time.Now())
}

// usesDerived waits until the import of key has the derived Service name and the IP of it.
func (k *cluster) usesDerived(t *testing.T, key mcs.Key, name, ip string) {
	t.Helper()
	eventually(t, fmt.Sprintf("import of %s with Service %s", key, name), func() error {
		var imp mcsv1beta1.ServiceImport
		var svc corev1.Service
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		if err := k.get(t, mcs.Key{Namespace: key.Namespace, Name: name}, &svc); err != nil {
			return err
		}
		if got := plan.DerivedName(key, &imp); got != name || len(imp.Spec.IPs) != 1 || imp.Spec.IPs[0] != svc.Spec.ClusterIP || plan.IsHeld(&svc) {
			return fmt.Errorf("the import names %s and has %v; the Service has %s, held: %t", got, imp.Spec.IPs, svc.Spec.ClusterIP, plan.IsHeld(&svc))
		}
		if ip != "" && imp.Spec.IPs[0] != ip {
			return fmt.Errorf("the import has IP %s, want %s", imp.Spec.IPs[0], ip)
		}
		slices := k.slicesOf(t, key)
		for _, s := range slices {
			if !strings.HasPrefix(s.Name, name+"-") || s.Labels["kubernetes.io/service-name"] != name {
				return fmt.Errorf("slice %s is of Service %s, want %s", s.Name, s.Labels["kubernetes.io/service-name"], name)
			}
		}
		if len(slices) == 0 {
			return fmt.Errorf("no slices")
		}
		return nil
	})
}

// TestImports_ShortDerivedNames: an import keeps the derived Service of an earlier version and its
// IPs, also through the hold time. Another service whose short name is the same has a Service of
// its own.
func TestImports_ShortDerivedNames(t *testing.T) {
	s := setUp(t, "short-names")
	key, colliding := mcs.Key{Namespace: "shop", Name: "sf21a8f"}, mcs.Key{Namespace: "shop", Name: "s1e37560"}
	s.a.namespace(t, key.Namespace)
	s.b.namespace(t, key.Namespace)
	earlier := earlierDerived(key)
	if earlier.Name != mcs.ShortDerivedName(colliding) {
		t.Fatal("the names do not collide")
	}
	s.b.create(t, earlier)
	s.a.export(t, colliding, 1, 1)
	s.b.usesDerived(t, colliding, mcs.DerivedName(colliding), "")
	s.a.export(t, key, 2, 1)
	s.b.usesDerived(t, key, earlier.Name, earlier.Spec.ClusterIP)

	s.a.delete(t, controllertest.ServiceExport(key))
	eventually(t, "the Service of the ended import is held", func() error {
		var svc corev1.Service
		if err := s.b.admin.Get(t.Context(), client.ObjectKeyFromObject(earlier), &svc); err != nil || !plan.IsHeld(&svc) {
			return fmt.Errorf("held: %t, %w", plan.IsHeld(&svc), err)
		}
		return nil
	})
	s.a.create(t, controllertest.ServiceExport(key))
	s.b.usesDerived(t, key, earlier.Name, earlier.Spec.ClusterIP)
	s.b.usesDerived(t, colliding, mcs.DerivedName(colliding), "")
}

// TestImports_TwoDerivedServices: after a downgrade and an upgrade an import has a derived Service
// with either name. It keeps that which its ServiceImport names, and the other one goes after the
// hold time.
func TestImports_TwoDerivedServices(t *testing.T) {
	s := setUp(t, "two-derived")
	s.a.export(t, s.key, 1, 1)
	ip := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}}).Spec.IPs[0]
	second := earlierDerived(s.key)
	second.Annotations = nil
	s.b.create(t, second)
	eventually(t, "the second Service is held", func() error {
		var svc corev1.Service
		if err := s.b.admin.Get(t.Context(), client.ObjectKeyFromObject(second), &svc); err != nil || !plan.IsHeld(&svc) {
			return fmt.Errorf("held: %t, %w", plan.IsHeld(&svc), err)
		}
		return nil
	})
	s.b.usesDerived(t, s.key, mcs.DerivedName(s.key), ip)
}
