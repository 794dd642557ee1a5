package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// exportUID waits until the ServiceExport of key exists, or with wanted false does not exist. It
// returns the UID.
func (k *cluster) exportUID(t *testing.T, key mcs.Key, wanted bool) types.UID {
	t.Helper()
	var exp mcsv1beta1.ServiceExport
	eventually(t, fmt.Sprintf("ServiceExport of %s: %t", key, wanted), func() error {
		exp = mcsv1beta1.ServiceExport{}
		err := k.get(t, key, &exp)
		if wanted {
			return err
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("want not found: %w", err)
		}
		return nil
	})
	return exp.UID
}

func TestAutoExport(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("auto")
	manual := mcs.Key{Namespace: key.Namespace, Name: "manual"}
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	options := testOptions(flags("cls1"))
	options.Scope.AutoExport = "export=auto"
	options.Scope.ExportNamespaces = "export!=no"
	run := a.runWith(t, hubRegistry(hub), options)

	label := func(key mcs.Key, value string) {
		t.Helper()
		change(t, a, controllertest.Service(key), func(svc *corev1.Service) { svc.Labels = map[string]string{"export": value} })
	}
	a.create(t, controllertest.Service(key))
	a.create(t, controllertest.EndpointSlice(key, controllertest.Endpoints(1, 1)))
	a.create(t, controllertest.Service(manual))
	a.create(t, controllertest.ServiceExport(manual))
	label(manual, "auto")
	manualUID := a.exportUID(t, manual, true)

	// The ServiceExport is created when the label is set, and deleted when it is removed.
	label(key, "auto")
	a.exportUID(t, key, true)
	a.condition(t, key, "Ready=True Exported", "")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	label(key, "no")
	a.exportUID(t, key, false)
	b.notImported(t, key)

	// A deleted ServiceExport is created again. The derived Service of the import is not exported.
	label(key, "auto")
	uid := a.exportUID(t, key, true)
	a.delete(t, controllertest.ServiceExport(key))
	eventually(t, "another ServiceExport", func() error {
		if got := a.exportUID(t, key, true); got == uid {
			return fmt.Errorf("still %s", got)
		}
		return nil
	})
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	// It is deleted with the Service, and when the namespace may no longer export.
	a.delete(t, controllertest.Service(key))
	a.exportUID(t, key, false)
	b.notImported(t, key)
	a.create(t, controllertest.Service(key))
	label(key, "auto")
	a.exportUID(t, key, true)
	a.setLabel(t, key.Namespace, "export", "no")
	a.exportUID(t, key, false)
	a.setLabel(t, key.Namespace, "export", "")
	a.exportUID(t, key, true)

	// Without autoExport, the automatic ServiceExports are deleted. Those of users are unchanged.
	run.stopAndWait(t)
	a.run(t, hub, flags("cls1"))
	a.exportUID(t, key, false)
	label(manual, "no")
	b.imported(t, manual, map[string][]string{"cls1": nil})
	if got := a.exportUID(t, manual, true); got != manualUID {
		t.Errorf("the user's ServiceExport was replaced: UID %s, before %s", got, manualUID)
	}
}

// A policy that refuses one automatic ServiceExport, or its deletion, is reported on the object,
// and other Services are exported and withdrawn. It costs 3 s.
func TestAutoExport_RefusedWriteAffectsOnlyItself(t *testing.T) {
	hub := memory.NewHub()
	a, _ := twoClusters(t)
	key := newKey("auto-refused")
	a.namespace(t, key.Namespace)
	options := testOptions(flags("cls1"))
	options.Scope.AutoExport = "export=auto"
	a.runWith(t, hubRegistry(hub), options)
	named := func(name string) mcs.Key { return mcs.Key{Namespace: key.Namespace, Name: name} }
	setExport := func(name, value string) {
		change(t, a, controllertest.Service(named(name)), func(svc *corev1.Service) { svc.Labels = map[string]string{"export": value} })
	}
	for _, name := range []string{"stays", "ends", "refused", "new"} {
		a.create(t, controllertest.Service(named(name)))
	}
	setExport("stays", "auto")
	setExport("ends", "auto")
	a.exportUID(t, named("stays"), true)
	a.exportUID(t, named("ends"), true)

	end := a.installPolicyIn(t, key.Namespace, "request.resource.resource == 'configmaps' || request.resource.resource == 'serviceexports' && "+
		"(request.operation == 'CREATE' && object.metadata.name == 'refused' || request.operation == 'DELETE' && oldObject.metadata.name == 'stays')")
	setExport("refused", "auto")
	setExport("stays", "no")
	setExport("ends", "no")
	setExport("new", "auto")
	a.exportUID(t, named("ends"), false)
	a.exportUID(t, named("new"), true)
	a.event(t, named("refused"), "AutoExportRefused")
	a.event(t, named("stays"), "AutoExportRefused")
	end(t)
	a.exportUID(t, named("refused"), true)
	a.exportUID(t, named("stays"), false)
}
