package exports

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestDecideAutoExport(t *testing.T) {
	flags := config.Default().Scope
	flags.AutoExport = "export=auto"
	s, err := kube.NewScope(flags)
	if err != nil {
		t.Fatal(err)
	}
	key := mcs.Key{Namespace: "shop", Name: "web"}
	selected := func(edits ...func(*corev1.Service)) *corev1.Service {
		svc := controllertest.Service(key)
		svc.UID, svc.Labels = "svc", map[string]string{"export": "auto"}
		for _, edit := range edits {
			edit(svc)
		}
		return svc
	}
	written := func(edits ...func(*mcsv1beta1.ServiceExport)) *mcsv1beta1.ServiceExport {
		exp := controllertest.ServiceExport(key)
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
		{name: "no Service, no ServiceExport", want: autoNone},
		{name: "selected", svc: selected(), want: autoCreate},
		{name: "selected and exported", svc: selected(), exp: written(), want: autoNone},
		{name: "selected and exported by the user", svc: selected(), exp: controllertest.ServiceExport(key), want: autoNone},
		{name: "selected, and the user exports another Service under its name", svc: selected(), exp: controllertest.ServiceExportOf(key, "web-green"), want: autoNone},
		{name: "not selected", svc: unselected, want: autoNone},
		{name: "not selected any more", svc: unselected, exp: written(), want: autoDelete},
		{name: "not selected, exported by the user", svc: unselected, exp: controllertest.ServiceExport(key), want: autoNone},
		{
			name: "not selected, a user's copy of ours", svc: unselected, want: autoNone,
			exp: written(func(e *mcsv1beta1.ServiceExport) { e.OwnerReferences = nil }),
		},
		{
			name: "not selected, ours that the user took over", svc: unselected, want: autoNone,
			exp: written(func(e *mcsv1beta1.ServiceExport) { e.Labels = nil }),
		},
		{name: "the Service was deleted", exp: written(), want: autoDelete},
		{name: "the Service was deleted, the user's export stays", exp: controllertest.ServiceExport(key), want: autoNone},
		{name: "the Service was created again", svc: selected(func(svc *corev1.Service) { svc.UID = "new" }), exp: written(), want: autoDelete},
		{name: "the Service is being deleted", svc: selected(func(svc *corev1.Service) { svc.DeletionTimestamp = going }), want: autoNone},
		{
			name: "the export is being deleted", svc: unselected, want: autoNone,
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
			svc: selected(func(svc *corev1.Service) {
				svc.Name, svc.Labels[plan.LabelAppManagedBy] = mcs.DerivedName(mcs.Key{Namespace: "demo", Name: "web"}), plan.ManagedBy
			}),
		},
		{
			name: "a Service with the labels of a derived Service, copied with its manifest", want: autoCreate,
			svc: selected(func(svc *corev1.Service) {
				svc.Labels[plan.LabelAppManagedBy], svc.Labels[mcsv1beta1.LabelServiceName] = plan.ManagedBy, "web"
			}),
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
			ns := kube.NamespaceMetadata()
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
	off, err := kube.NewScope(config.Default().Scope)
	if err != nil {
		t.Fatal(err)
	}
	ns := kube.NamespaceMetadata()
	ns.Labels = map[string]string{corev1.LabelMetadataName: "shop"}
	if got := decideAutoExport(off, ns, selected(), nil); got != autoNone {
		t.Errorf("switched off: verdict %d, want none", got)
	}
	if got := decideAutoExport(off, ns, selected(), written()); got != autoDelete {
		t.Errorf("switched off: verdict %d on what was written before, want delete", got)
	}
}

// While the API server does not answer, a Service that cannot be read is not one that does not
// exist: nothing is created or deleted, and each failure is returned, so that it is retried.
func TestAutoExporter_ReturnsErrors(t *testing.T) {
	flags := config.Default().Scope
	flags.AutoExport = "export=auto"
	scope, err := kube.NewScope(flags)
	if err != nil {
		t.Fatal(err)
	}
	key := mcs.Key{Namespace: "shop", Name: "web"}
	svc := controllertest.Service(key)
	svc.UID, svc.Labels = "svc", map[string]string{"export": "auto"}
	ours := controllertest.ServiceExport(key)
	ours.Labels = map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	ours.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: key.Name, UID: "svc"}}
	denied := errors.New("denied")
	failing := func(fails func(client.Object) bool) interceptor.Funcs {
		return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if fails(obj) {
				return denied
			}
			return c.Get(ctx, name, obj, opts...)
		}}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		funcs   interceptor.Funcs
		// exported reports whether the ServiceExport exists afterwards.
		exported bool
		wantErr  string
	}{
		"selected":     {objects: []client.Object{svc}, exported: true},
		"not selected": {objects: []client.Object{ours}},
		"the Service cannot be read": {
			objects: []client.Object{svc, ours}, funcs: failing(func(o client.Object) bool { _, is := o.(*corev1.Service); return is }),
			exported: true, wantErr: "denied",
		},
		"the ServiceExport cannot be read": {
			objects: []client.Object{svc}, funcs: failing(func(o client.Object) bool { _, is := o.(*mcsv1beta1.ServiceExport); return is }), wantErr: "denied",
		},
		"the namespace cannot be read": {
			objects: []client.Object{svc}, funcs: failing(func(o client.Object) bool { _, is := o.(*metav1.PartialObjectMetadata); return is }), wantErr: "denied",
		},
		"the ServiceExport cannot be created": {
			objects: []client.Object{svc}, wantErr: "creating ServiceExport shop/web: denied",
			funcs: interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return denied }},
		},
		"the ServiceExport cannot be deleted": {
			objects: []client.Object{ours}, exported: true, wantErr: "deleting ServiceExport shop/web: denied",
			funcs: interceptor.Funcs{Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return denied }},
		},
	} {
		t.Run(name, func(t *testing.T) {
			stored := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).
				WithObjects(append(tt.objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})...).Build()
			_, err := NewAutoExporter(interceptor.NewClient(stored, tt.funcs), scope, kube.EventRecorder{Recorder: events.NewFakeRecorder(1)}, 1).Reconcile(t.Context(), kube.RequestFor(key))
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one that contains %q", err, tt.wantErr)
			}
			found, err := kube.Find(t.Context(), stored, kube.NameOf(key), &mcsv1beta1.ServiceExport{})
			if err != nil || found != tt.exported {
				t.Errorf("the ServiceExport exists: %v, want %v (%v)", found, tt.exported, err)
			}
		})
	}
}
