package served

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestServedVersions(t *testing.T) {
	both := []string{"serviceexports", "serviceexports/status", "serviceimports", "serviceimports/status"}
	list := func(version string, names ...string) *metav1.APIResourceList {
		l := &metav1.APIResourceList{GroupVersion: "multicluster.x-k8s.io/" + version}
		for _, name := range names {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: name})
		}
		return l
	}
	tests := []struct {
		name   string
		served []*metav1.APIResourceList
		want   string
		wantOK bool
	}{
		{"nothing", nil, "v1beta1", false},
		{"both", []*metav1.APIResourceList{list("v1alpha1", both...), list("v1beta1", both...)}, "v1beta1", true},
		{"only the older", []*metav1.APIResourceList{list("v1alpha1", both...)}, "v1alpha1", true},
		{"without status", []*metav1.APIResourceList{list("v1alpha1", "serviceexports", "serviceimports")}, "v1beta1", false},
		{"half each", []*metav1.APIResourceList{list("v1alpha1", both...), list("v1beta1", "serviceexports")}, "v1alpha1", true},
	}
	for _, tt := range tests {
		d := &fake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: tt.served}}
		gv, ok, err := MCS(d)
		if err != nil || ok != tt.wantOK || gv.Version != tt.want || gv.Group != "multicluster.x-k8s.io" {
			t.Errorf("%s: %v, %t, %v; want %s, %t", tt.name, gv, ok, err, tt.want, tt.wantOK)
		}
	}
}
