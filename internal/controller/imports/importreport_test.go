package imports

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func TestImportedServices(t *testing.T) {
	imp := func(name, managedBy string, clusters ...string) mcsv1beta1.ServiceImport {
		out := mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{plan.LabelAppManagedBy: managedBy}}}
		for _, id := range clusters {
			out.Status.Clusters = append(out.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: id})
		}
		return out
	}
	got := importedServices([]mcsv1beta1.ServiceImport{
		imp("web", plan.ManagedBy, "cls1", "cls2", "cls3"),
		imp("db", plan.ManagedBy, "cls3"),
		imp("own", plan.ManagedBy, "cls1"),
		imp("not-written-yet", plan.ManagedBy),
		imp("of-another-controller", "other", "cls2"),
	}, "cls1")
	want := map[string][]mcs.Key{
		"cls2": {{Namespace: "demo", Name: "web"}},
		"cls3": {{Namespace: "demo", Name: "web"}, {Namespace: "demo", Name: "db"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}
