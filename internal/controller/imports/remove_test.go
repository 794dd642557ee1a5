package imports

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestRemoveImportKeepsForeignServices(t *testing.T) {
	for name, tt := range map[string]struct {
		labels map[string]string
		kept   bool
	}{
		"derived Service":          {map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}, false},
		"Service of another owner": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			imp := importShowing("cls2")
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: mcs.DerivedName(webKey), Labels: tt.labels}}
			c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(imp, svc).Build()
			r, out := &Controller{client: c}, &outcome{}
			if r.removeImport(t.Context(), importFacts{key: webKey, imp: imp, derived: svc}, out); out.failed() {
				t.Fatal(out.result())
			}
			if found, err := kube.Find(t.Context(), c, client.ObjectKeyFromObject(imp), imp); err != nil || found {
				t.Errorf("the ServiceImport exists: %t (%v), want it deleted", found, err)
			}
			found, err := kube.Find(t.Context(), c, client.ObjectKeyFromObject(svc), svc)
			if err != nil || found != tt.kept {
				t.Errorf("the Service exists: %t (%v), want %t", found, err, tt.kept)
			}
		})
	}
}
