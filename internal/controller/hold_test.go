package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// isHeld returns an error unless key's derived Service only holds its IPs.
func (k *cluster) isHeld(t *testing.T, key mcs.Key) error {
	svc := derivedOf(key)
	if err := k.admin.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
		return err
	}
	if !plan.IsHeld(svc) || len(svc.OwnerReferences) > 0 || svc.Spec.Selector != nil {
		return errors.New("the derived Service exists and is not held")
	}
	return nil
}

// released waits until key's derived Service does not exist.
func (k *cluster) released(t *testing.T, key mcs.Key) {
	t.Helper()
	eventually(t, "release of the IP", func() error {
		svc := derivedOf(key)
		err := k.admin.Get(t.Context(), client.ObjectKeyFromObject(svc), svc)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the derived Service exists"), err)
	})
}

func (s *scene) sameIPs(t *testing.T, before *mcsv1beta1.ServiceImport) {
	t.Helper()
	after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	if !slices.Equal(before.Spec.IPs, after.Spec.IPs) {
		t.Errorf("the clusterset IPs changed from %v to %v", before.Spec.IPs, after.Spec.IPs)
	}
}

func TestImports_KeepIPWhenExportedAgain(t *testing.T) {
	s := setUp(t, "hold")
	s.a.export(t, s.key, 1, 1)
	before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})

	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.b.notImported(t, s.key)
	if err := s.b.isHeld(t, s.key); err != nil {
		t.Error(err)
	}
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.sameIPs(t, before)

	// The same with a change of the held Service by another client and a restart in between.
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.b.notImported(t, s.key)
	change(t, s.b, derivedOf(s.key), func(svc *corev1.Service) {
		svc.Labels, svc.Spec.Selector = nil, map[string]string{"app": "web"}
	})
	eventually(t, "the held Service is repaired", func() error { return s.b.isHeld(t, s.key) })
	s.runB.stopAndWait(t)
	s.b.run(t, s.hub, flags("cls2"))
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.sameIPs(t, before)

	// A headless service has no clusterset IP. It gets the same when it is not headless any more.
	s.a.delete(t, controllertest.Service(s.key))
	headless := controllertest.Service(s.key)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	headless.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	s.a.create(t, headless)
	eventually(t, "a headless import with a held Service", func() error {
		imp := importOf(s.key)
		if err := s.b.get(t, s.key, imp); err != nil || imp.Spec.Type != mcsv1beta1.Headless {
			return errors.Join(errors.New("not headless"), err)
		}
		return s.b.isHeld(t, s.key)
	})
	s.a.delete(t, controllertest.Service(s.key))
	s.a.create(t, controllertest.Service(s.key))
	s.sameIPs(t, before)
}

func TestImports_ReleaseHeldIP(t *testing.T) {
	end := func(t *testing.T, s *scene) {
		t.Helper()
		s.a.export(t, s.key, 1, 1)
		s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
		s.a.delete(t, controllertest.ServiceExport(s.key))
	}
	t.Run("after the hold time", func(t *testing.T) {
		s := setUp(t, "hold-short")
		s.runB.stopAndWait(t)
		options := testOptions(flags("cls2"))
		options.ClusterSetIPHold = 2 * time.Second
		s.b.runWith(t, hubRegistry(s.hub), options)
		end(t, s)
		eventually(t, "the IP is held", func() error { return s.b.isHeld(t, s.key) })
		s.b.released(t, s.key)
	})
	t.Run("at once without a hold time", func(t *testing.T) {
		s := setUp(t, "hold-never")
		s.runB.stopAndWait(t)
		options := testOptions(flags("cls2"))
		options.ClusterSetIPHold = 0
		s.b.runWith(t, hubRegistry(s.hub), options)
		end(t, s)
		s.b.released(t, s.key)
	})
	t.Run("after a restart", func(t *testing.T) {
		s := setUp(t, "hold-restart")
		end(t, s)
		eventually(t, "the IP is held", func() error { return s.b.isHeld(t, s.key) })
		s.runB.stopAndWait(t)
		change(t, s.b, derivedOf(s.key), func(svc *corev1.Service) {
			svc.Annotations[plan.AnnotationHeldSince] = time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
		})
		s.b.run(t, s.hub, flags("cls2"))
		s.b.released(t, s.key)
	})
	t.Run("after a restart without an identity", func(t *testing.T) {
		s := setUp(t, "hold-alone")
		end(t, s)
		eventually(t, "the IP is held", func() error { return s.b.isHeld(t, s.key) })
		s.runB.stopAndWait(t)
		options := testOptions(flags(""))
		options.ClusterSetIPHold = time.Second
		s.b.runWith(t, hubRegistry(s.hub), options)
		s.b.released(t, s.key)
	})
}

// TestImports_KeepIPWhenNamespaceIsExcluded: a label of the namespace that is gone for a moment
// does not change the IPs.
func TestImports_KeepIPWhenNamespaceIsExcluded(t *testing.T) {
	s := setUp(t, "hold-excluded")
	s.runB.stopAndWait(t)
	options := testOptions(flags("cls2"))
	options.Scope.ImportNamespaces = "mcs!=no"
	run := s.b.runWith(t, hubRegistry(s.hub), options)
	s.a.export(t, s.key, 1, 1)
	before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})

	s.b.setLabel(t, s.key.Namespace, "mcs", "no")
	s.b.notImported(t, s.key)
	if err := s.b.isHeld(t, s.key); err != nil {
		t.Error(err)
	}
	s.b.setLabel(t, s.key.Namespace, "mcs", "yes")
	s.sameIPs(t, before)

	// The same with a restart in between, and for an import that had ended before.
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.b.notImported(t, s.key)
	s.b.setLabel(t, s.key.Namespace, "mcs", "no")
	run.stopAndWait(t)
	s.b.runWith(t, hubRegistry(s.hub), options)
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.b.notImported(t, s.key)
	if err := s.b.isHeld(t, s.key); err != nil {
		t.Error(err)
	}
	s.b.setLabel(t, s.key.Namespace, "mcs", "yes")
	s.sameIPs(t, before)
}

// TestImports_KeepIPWhenServiceMoves: one cluster ends its export, and later another one exports
// the service.
func TestImports_KeepIPWhenServiceMoves(t *testing.T) {
	s := setUp(t, "hold-move")
	s.a.export(t, s.key, 1, 1)
	exported := map[string][]string{"cls1": {"10.1.0.1"}}
	inA, inB := s.a.imported(t, s.key, exported), s.b.imported(t, s.key, exported)
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.a.notImported(t, s.key)
	s.b.notImported(t, s.key)
	s.b.export(t, s.key, 2, 1)
	moved := map[string][]string{"cls2": {"10.2.0.1"}}
	for k, before := range map[*cluster]*mcsv1beta1.ServiceImport{s.a: inA, s.b: inB} {
		if after := k.imported(t, s.key, moved); !slices.Equal(before.Spec.IPs, after.Spec.IPs) {
			t.Errorf("the clusterset IPs changed from %v to %v", before.Spec.IPs, after.Spec.IPs)
		}
	}
}
