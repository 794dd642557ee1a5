package controller

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// scene is two clusters a ("cls1") and b ("cls2") of one clusterset with a namespace in both.
type scene struct {
	a, b       *cluster
	hub        *memory.Hub
	key        mcs.Key
	runA, runB *instance
}

func setUp(t *testing.T, namespace string) *scene {
	t.Helper()
	s := &scene{hub: memory.NewHub(), key: newKey(namespace)}
	s.a, s.b = twoClusters(t)
	s.a.namespace(t, s.key.Namespace)
	s.b.namespace(t, s.key.Namespace)
	s.runA = s.a.run(t, s.hub, flags("cls1"))
	s.runB = s.b.run(t, s.hub, flags("cls2"))
	return s
}

func TestImports_CreatedInAllClusters(t *testing.T) {
	s := setUp(t, "everywhere")
	s.a.export(t, s.key, 1, 2)
	want := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}}
	for _, k := range []*cluster{s.b, s.a} {
		if g := k.imported(t, s.key, want).Generation; g != 1 {
			t.Errorf("the ServiceImport has generation %d: it was created without its IPs", g)
		}
	}
	s.a.condition(t, s.key, "Valid=True Valid", "")
	s.a.condition(t, s.key, "Ready=True Exported", "")
	s.a.condition(t, s.key, "Conflict=False NoConflicts", "")

	s.b.export(t, s.key, 2, 1)
	want["cls2"] = []string{"10.2.0.1"}
	s.a.imported(t, s.key, want)
	s.b.imported(t, s.key, want)
}

func TestImports_StayWithoutEndpoints(t *testing.T) {
	s := setUp(t, "zero")
	slice := s.a.export(t, s.key, 1, 3)
	before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2", "10.1.0.3"}})
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = nil })
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 1) })
	after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	if before.UID != after.UID || before.Spec.IPs[0] != after.Spec.IPs[0] {
		t.Errorf("the import changed: %s %v, then %s %v", before.UID, before.Spec.IPs, after.UID, after.Spec.IPs)
	}
}

func TestImports_FollowReadiness(t *testing.T) {
	s := setUp(t, "readiness")
	slice := s.a.export(t, s.key, 1, 2)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(false) })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1 not ready", "10.1.0.2"}})
	change(t, s.a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(true) })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
}

func TestImports_SplitEndpointSlices(t *testing.T) {
	s := setUp(t, "many")
	s.a.export(t, s.key, 1, 150)
	eventually(t, "150 endpoints", func() error {
		n := 0
		list := s.b.slicesOf(t, s.key)
		for _, slice := range list {
			n += len(slice.Endpoints)
		}
		if n != 150 || len(list) != 2 {
			return fmt.Errorf("%d endpoints in %d slices", n, len(list))
		}
		return nil
	})
}

func TestImports_DeletedWithLastExport(t *testing.T) {
	s := setUp(t, "unexport")
	s.a.export(t, s.key, 1, 1)
	s.b.export(t, s.key, 2, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.a.imported(t, s.key, map[string][]string{"cls2": {"10.2.0.1"}})
	s.b.imported(t, s.key, map[string][]string{"cls2": {"10.2.0.1"}})
	s.b.delete(t, controllertest.ServiceExport(s.key))
	s.a.notImported(t, s.key)
	s.b.notImported(t, s.key)
	for _, k := range []*cluster{s.a, s.b} {
		if err := k.get(t, s.key, &corev1.Service{}); err != nil {
			t.Errorf("the user's own Service: %v", err)
		}
	}
}

func TestImports_WaitForNamespace(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("later")
	a.namespace(t, key.Namespace)
	a.run(t, hub, flags("cls1"))
	b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 1)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	b.namespace(t, key.Namespace)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
}

func TestImports_KeepForeignServiceImport(t *testing.T) {
	s := setUp(t, "foreign")
	foreign := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name},
		Spec:       mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, Ports: []mcsv1beta1.ServicePort{{Port: 1234}}},
	}
	s.b.create(t, foreign)
	s.a.export(t, s.key, 1, 1)
	s.b.event(t, s.key, "NotManaged")
	var now mcsv1beta1.ServiceImport
	if err := s.b.get(t, s.key, &now); err != nil || now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the foreign ServiceImport was changed: %v, version %s, then %s", err, foreign.ResourceVersion, now.ResourceVersion)
	}
	s.b.delete(t, foreign)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
}

func TestImports_StayDuringRegistryOutage(t *testing.T) {
	s := setUp(t, "outage")
	s.a.export(t, s.key, 1, 1)
	local := s.b.export(t, s.key, 2, 1)
	before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
	s.hub.SetError(errors.New("the registry is down"))

	// Local endpoints are still imported, before and after a restart.
	change(t, s.b, local, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(2, 2) })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1", "10.2.0.2"}})
	s.runB.stopAndWait(t)
	s.b.run(t, s.hub, flags("cls2"))
	change(t, s.b, local, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(2, 3) })
	after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1", "10.2.0.2", "10.2.0.3"}})
	if before.UID != after.UID || before.Spec.IPs[0] != after.Spec.IPs[0] {
		t.Errorf("the import changed: %s %v, then %s %v", before.UID, before.Spec.IPs, after.UID, after.Spec.IPs)
	}

	// An export that is withdrawn meanwhile removes only its own endpoints.
	s.b.delete(t, controllertest.ServiceExport(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.hub.SetError(nil)
	s.a.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
}

func TestExports_ReportRegistryError(t *testing.T) {
	s := setUp(t, "shown")
	s.a.export(t, s.key, 1, 1)
	s.a.condition(t, s.key, "Ready=True Exported", "")
	s.hub.SetError(errors.New("access denied for a test"))
	other := mcs.Key{Namespace: s.key.Namespace, Name: "other"}
	s.a.export(t, other, 1, 1)
	s.a.condition(t, other, "Ready=False Failed", "access denied for a test")
	s.a.event(t, other, "Failed")
	s.hub.SetError(nil)
	s.a.condition(t, other, "Ready=True Exported", "")
}

func TestExports_WithdrawAfterRestart(t *testing.T) {
	s := setUp(t, "down")
	s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.runA.stopAndWait(t)
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.runB.stopAndWait(t)
	s.b.run(t, s.hub, flags("cls2"))
	s.a.run(t, s.hub, flags("cls1"))
	s.b.notImported(t, s.key)
	s.a.notImported(t, s.key)
}

// After a bulk export every ServiceExport gets a status, also if some are deleted meanwhile.
func TestExports_BulkWritesEveryStatus(t *testing.T) {
	s := setUp(t, "many")
	const n = 40
	key := func(i int) mcs.Key { return mcs.Key{Namespace: s.key.Namespace, Name: fmt.Sprintf("svc-%d", i)} }
	for i := range n {
		s.a.export(t, key(i), 1, 1)
	}
	for i := 0; i < n; i += 4 {
		s.a.delete(t, controllertest.ServiceExport(key(i)))
	}
	for i := range n {
		if i%4 == 0 {
			continue
		}
		s.a.condition(t, key(i), "Ready=True Exported", "")
		for _, k := range []*cluster{s.a, s.b} {
			k.imported(t, key(i), map[string][]string{"cls1": {"10.1.0.1"}})
		}
	}
	for i := 0; i < n; i += 4 { // last, when what was on its way has arrived
		s.a.notImported(t, key(i))
		s.b.notImported(t, key(i))
	}
}

// A controller that is stopped between the first two writes of an import leaves a derived Service
// without an owner.
func TestImportsRemoveOrphanedService(t *testing.T) {
	s := setUp(t, "earlier-life")
	derivedFor := func(key mcs.Key) *corev1.Service {
		svc := controllertest.Service(mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)})
		svc.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: key.Name}
		svc.Spec.Selector = nil
		return svc
	}
	s.runB.stopAndWait(t)
	s.a.export(t, s.key, 1, 1)
	used, unused := derivedFor(s.key), derivedFor(mcs.Key{Namespace: s.key.Namespace, Name: "unused"})
	s.b.create(t, used)
	s.b.create(t, unused)
	s.b.run(t, s.hub, flags("cls2"))
	imp := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	if d := cmp.Diff(used.Spec.ClusterIPs, imp.Spec.IPs); d != "" {
		t.Errorf("IPs of the Service that was there and of the import (-want +got):\n%s", d)
	}
	eventually(t, "removing the orphaned derived Service", func() error {
		err := s.b.admin.Get(t.Context(), client.ObjectKeyFromObject(unused), unused)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

func TestImports_KeepEndpointsOfUnreadableCluster(t *testing.T) {
	s := setUp(t, "unreadable")
	s.a.export(t, s.key, 1, 1)
	s.b.export(t, s.key, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}}
	s.b.imported(t, s.key, both)
	s.runB.stopAndWait(t)
	s.hub.SetUnreadable("cls1", true)
	s.b.run(t, s.hub, flags("cls2"))

	marker := mcs.Key{Namespace: s.key.Namespace, Name: "marker"}
	s.b.export(t, marker, 2, 1)
	s.b.imported(t, marker, map[string][]string{"cls2": {"10.2.0.1"}})
	s.b.imported(t, s.key, both)
	s.b.delete(t, controllertest.ServiceExport(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.hub.SetUnreadable("cls1", false)
	s.b.notImported(t, s.key)
}

func TestExportReportsDuplicateClusterID(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("duplicate")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	first := a.run(t, hub, flags("cls1"))
	a.export(t, key, 1, 1)
	a.condition(t, key, "Ready=True Exported", "")
	b.run(t, hub, flags("cls1"))
	b.export(t, key, 2, 1)
	b.condition(t, key, "Ready=False Failed", `"cls1" is already used`)
	b.event(t, key, "Failed")
	if exports := hub.Exports("set"); len(exports) != 1 || exports[0].Backends[0].Endpoints[0].Address.String() != "10.1.0.1" {
		t.Errorf("the registry has %v", exports)
	}
	first.stopAndWait(t)
	b.condition(t, key, "Ready=True Exported", "")
}

func TestExports_ReportMissingService(t *testing.T) {
	s := setUp(t, "noservice")
	s.a.create(t, controllertest.ServiceExport(s.key))
	s.a.condition(t, s.key, "Valid=False NoService", "")
	s.a.event(t, s.key, "NoService")
	s.a.create(t, controllertest.Service(s.key))
	s.a.condition(t, s.key, "Ready=True Exported", "")
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})

	// The Service is deleted and created again. Its ServiceExport stays.
	s.a.delete(t, controllertest.Service(s.key))
	s.a.condition(t, s.key, "Valid=False NoService", "")
	s.b.notImported(t, s.key)
	s.a.create(t, controllertest.Service(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": nil})

	// So does what it is.
	change(t, s.a, controllertest.Service(s.key), func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	})
	s.a.condition(t, s.key, "Valid=False InvalidServiceType", "ExternalName")
	s.a.event(t, s.key, "InvalidServiceType")
	s.b.notImported(t, s.key)
}

func TestExports_AllReportConflict(t *testing.T) {
	s := setUp(t, "conflict")
	s.a.export(t, s.key, 1, 1)
	s.a.condition(t, s.key, "Ready=True Exported", "")
	s.b.export(t, s.key, 2, 1)
	change(t, s.b, controllertest.Service(s.key), func(svc *corev1.Service) {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	for _, k := range []*cluster{s.a, s.b} {
		k.condition(t, s.key, "Conflict=True SessionAffinityConflict", "1 of 2 clusters disagree: cls2")
	}
	change(t, s.b, controllertest.Service(s.key), func(svc *corev1.Service) {
		svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	})
	for _, k := range []*cluster{s.a, s.b} {
		k.condition(t, s.key, "Conflict=False NoConflicts", "")
	}
}

func TestImports_FollowServiceType(t *testing.T) {
	s := setUp(t, "headless")
	s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	s.a.delete(t, controllertest.Service(s.key))
	headless := controllertest.Service(s.key)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	// one without selector would be given both
	headless.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	s.a.create(t, headless)
	eventually(t, "headless import", func() error {
		var imp mcsv1beta1.ServiceImport
		if err := s.b.get(t, s.key, &imp); err != nil {
			return err
		}
		if imp.Spec.Type != mcsv1beta1.Headless || len(imp.Spec.IPs) > 0 {
			return fmt.Errorf("type %s with IPs %v", imp.Spec.Type, imp.Spec.IPs)
		}
		if err := s.b.isHeld(t, s.key); err != nil {
			return err
		}
		list := s.b.slicesOf(t, s.key)
		if len(list) != 1 || list[0].Labels[discoveryv1.LabelServiceName] != mcs.DerivedName(s.key)+"-headless" {
			return fmt.Errorf("slices %v", list)
		}
		return nil
	})
	s.a.delete(t, controllertest.Service(s.key))
	s.a.create(t, controllertest.Service(s.key))
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
}

func TestImports_IgnoreTerminatingNamespace(t *testing.T) {
	s := setUp(t, "terminating")
	s.b.delete(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.key.Namespace}})
	s.a.export(t, s.key, 1, 1)
	other := newKey("terminating-not")
	s.a.namespace(t, other.Namespace)
	s.b.namespace(t, other.Namespace)
	s.a.export(t, other, 1, 1)
	s.b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}})
	s.b.notImported(t, s.key)
}

func TestImports_RestoreDeletedObjects(t *testing.T) {
	s := setUp(t, "repair")
	s.a.export(t, s.key, 1, 1)
	want := map[string][]string{"cls1": {"10.1.0.1"}}
	s.b.imported(t, s.key, want)
	s.b.delete(t, &s.b.slicesOf(t, s.key)[0])
	s.b.imported(t, s.key, want)
	s.b.delete(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: mcs.DerivedName(s.key)}})
	s.b.imported(t, s.key, want)
	s.b.delete(t, &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}})
	s.b.imported(t, s.key, want)
}
