package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

func TestDecideAutoExport(t *testing.T) {
	flags := config.Default().Scope
	flags.AutoExport = "export=auto"
	s, err := newScope(flags)
	if err != nil {
		t.Fatal(err)
	}
	key := mcs.Key{Namespace: "shop", Name: "web"}
	selected := func(edits ...func(*corev1.Service)) *corev1.Service {
		svc := service(key)
		svc.UID, svc.Labels = "svc", map[string]string{"export": "auto"}
		for _, edit := range edits {
			edit(svc)
		}
		return svc
	}
	written := func(edits ...func(*mcsv1beta1.ServiceExport)) *mcsv1beta1.ServiceExport {
		exp := serviceExport(key)
		exp.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
		exp.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: key.Name, UID: "svc"}}
		for _, edit := range edits {
			edit(exp)
		}
		return exp
	}
	going := &metav1.Time{Time: time.Unix(1, 0)}
	unselected := selected(func(svc *corev1.Service) { svc.Labels = nil })
	tests := []struct {
		name      string
		namespace string
		svc       *corev1.Service
		exp       *mcsv1beta1.ServiceExport
		want      autoVerdict
	}{
		{name: "nothing", want: autoNone},
		{name: "selected", svc: selected(), want: autoCreate},
		{name: "selected and exported", svc: selected(), exp: written(), want: autoNone},
		{name: "selected and exported by the user", svc: selected(), exp: serviceExport(key), want: autoNone},
		{name: "not selected", svc: unselected, want: autoNone},
		{name: "not selected any more", svc: unselected, exp: written(), want: autoDelete},
		{name: "not selected, exported by the user", svc: unselected, exp: serviceExport(key), want: autoNone},
		{
			name: "not selected, a user's copy of ours", svc: unselected, want: autoNone,
			exp: written(func(e *mcsv1beta1.ServiceExport) { e.OwnerReferences = nil }),
		},
		{
			name: "not selected, ours that the user took over", svc: unselected, want: autoNone,
			exp: written(func(e *mcsv1beta1.ServiceExport) { e.Labels = nil }),
		},
		{name: "the Service is gone", exp: written(), want: autoDelete},
		{name: "the Service is gone, the user's export stays", exp: serviceExport(key), want: autoNone},
		{name: "the Service is another one", svc: selected(func(svc *corev1.Service) { svc.UID = "new" }), exp: written(), want: autoDelete},
		{name: "the Service is going", svc: selected(func(svc *corev1.Service) { svc.DeletionTimestamp = going }), want: autoNone},
		{
			name: "the export is going already", svc: unselected, want: autoNone,
			exp: written(func(e *mcsv1beta1.ServiceExport) { e.DeletionTimestamp = going }),
		},
		{
			name: "ExternalName", want: autoNone,
			svc: selected(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName }),
		},
		{
			name: "became ExternalName", exp: written(), want: autoDelete,
			svc: selected(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName }),
		},
		{
			name: "derived Service", want: autoNone,
			svc: selected(func(svc *corev1.Service) { svc.Labels[plan.LabelAppManagedBy] = plan.ManagedBy }),
		},
		{
			name: "another implementation's derived Service", want: autoNone,
			svc: selected(func(svc *corev1.Service) {
				svc.OwnerReferences = []metav1.OwnerReference{{APIVersion: "multicluster.x-k8s.io/v1alpha1", Kind: "ServiceImport", Name: "x"}}
			}),
		},
		{name: "namespace that may not export", namespace: "kube-system", svc: selected(), want: autoNone},
		{name: "namespace that may not export any more", namespace: "kube-system", svc: selected(), exp: written(), want: autoDelete},
		{
			name: "default/kubernetes", want: autoNone,
			svc: selected(func(svc *corev1.Service) { svc.Namespace, svc.Name = "default", "kubernetes" }),
		},
		{
			name: "another Service kubernetes", want: autoCreate,
			svc: selected(func(svc *corev1.Service) { svc.Name = "kubernetes" }),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ns := namespaceMetadata()
			ns.Name = "shop"
			if tt.namespace != "" {
				ns.Name = tt.namespace
			}
			ns.Labels = map[string]string{corev1.LabelMetadataName: ns.Name}
			if got := decideAutoExport(s, ns, tt.svc, tt.exp); got != tt.want {
				t.Errorf("verdict %d, want %d", got, tt.want)
			}
		})
	}
	off, err := newScope(config.Default().Scope)
	if err != nil {
		t.Fatal(err)
	}
	ns := namespaceMetadata()
	ns.Labels = map[string]string{corev1.LabelMetadataName: "shop"}
	if got := decideAutoExport(off, ns, selected(), nil); got != autoNone {
		t.Errorf("switched off: verdict %d, want none", got)
	}
	if got := decideAutoExport(off, ns, selected(), written()); got != autoDelete {
		t.Errorf("switched off: verdict %d on what was written before, want delete", got)
	}
}

// exportUID waits until key is exported, or not exported, and says by which ServiceExport.
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
			return fmt.Errorf("it is there, or %w", err)
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
		change(t, a, service(key), func(svc *corev1.Service) { svc.Labels = map[string]string{"export": value} })
	}
	a.create(t, service(key))
	a.create(t, endpointSlice(key, endpoints(1, 1)))
	a.create(t, service(manual))
	a.create(t, serviceExport(manual))
	label(manual, "auto")
	manualUID := a.exportUID(t, manual, true)

	// It comes with the label and goes with it.
	label(key, "auto")
	a.exportUID(t, key, true)
	a.condition(t, key, "Ready=True Exported", "")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	label(key, "no")
	a.exportUID(t, key, false)
	b.notImported(t, key)

	// What is deleted by hand comes back; the derived Service of the import is not exported in turn.
	label(key, "auto")
	uid := a.exportUID(t, key, true)
	a.delete(t, serviceExport(key))
	eventually(t, "another ServiceExport", func() error {
		if got := a.exportUID(t, key, true); got == uid {
			return fmt.Errorf("still %s", got)
		}
		return nil
	})
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})

	// It goes with the Service, and with the namespace's permission.
	a.delete(t, service(key))
	a.exportUID(t, key, false)
	b.notImported(t, key)
	a.create(t, service(key))
	label(key, "auto")
	a.exportUID(t, key, true)
	a.setLabel(t, key.Namespace, "export", "no")
	a.exportUID(t, key, false)
	a.setLabel(t, key.Namespace, "export", "")
	a.exportUID(t, key, true)

	// Switched off, everything automatic goes. What users wrote was never touched.
	run.end(t)
	a.run(t, hub, flags("cls1"))
	a.exportUID(t, key, false)
	label(manual, "no")
	b.imported(t, manual, map[string][]string{"cls1": nil})
	if got := a.exportUID(t, manual, true); got != manualUID {
		t.Errorf("the user's ServiceExport is another one: %s, before %s", got, manualUID)
	}
}
