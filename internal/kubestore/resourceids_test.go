package kubestore

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
)

func TestConfigMapKeepsResourceIDs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	identities := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.IdentityConfigMap},
		Data:       map[string]string{"set1.cls1": "uid-1", "set1.cls2.resource-ids": "other"},
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(identities).Build()
	store := ResourceIDs{Client: kube, Namespace: "system", Identity: mcs.Identity{ClusterSetID: "set1", ClusterID: "cls1", UID: "uid-1"}}
	want := cloudmap.ResourceIDs{Namespace: "ns-1", Members: "srv-1", Catalog: "arn:aws:servicediscovery:us-east-1:111122223333:service/srv-2", Heartbeat: 12}
	for _, ids := range []cloudmap.ResourceIDs{want, {Heartbeat: 13}, {}} {
		if err := store.SaveResourceIDs(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		if got, err := store.LoadResourceIDs(t.Context()); err != nil || got != ids {
			t.Errorf("loaded %v, %v; want %v", got, err, ids)
		}
	}
	if err := store.SaveResourceIDs(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	want.Heartbeat = 14
	// of a cluster that has moved to etcd
	if err := store.SaveHeartbeat(t.Context(), want.Heartbeat); err != nil {
		t.Fatal(err)
	}
	if got, err := store.LoadResourceIDs(t.Context()); err != nil || got != want {
		t.Errorf("after the heartbeat was saved: loaded %v, %v; want %v", got, err, want)
	}
	if err := store.SaveResourceIDs(t.Context(), cloudmap.ResourceIDs{}); err != nil {
		t.Fatal(err)
	}
	var after corev1.ConfigMap
	if err := kube.Get(t.Context(), client.ObjectKeyFromObject(identities), &after); err != nil {
		t.Fatal(err)
	}
	if len(after.Data) != 2 || after.Data["set1.cls1"] != "uid-1" || after.Data["set1.cls2.resource-ids"] != "other" {
		t.Errorf("the other keys are %v, want them unchanged", after.Data)
	}
}

func TestConfigMapWithoutResourceIDs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).Build()
	store := ResourceIDs{Client: kube, Namespace: "system", Identity: mcs.Identity{ClusterSetID: "set1", ClusterID: "cls1"}}
	if got, err := store.LoadResourceIDs(t.Context()); err != nil || got != (cloudmap.ResourceIDs{}) {
		t.Errorf("loaded %v, %v; want none", got, err)
	}
	if err := store.SaveResourceIDs(t.Context(), cloudmap.ResourceIDs{}); err != nil {
		t.Errorf("removing IDs that are not stored: %v", err)
	}
	if err := store.SaveResourceIDs(t.Context(), cloudmap.ResourceIDs{Namespace: "a", Members: "b", Catalog: "c"}); err == nil || !strings.Contains(err.Error(), names.IdentityConfigMap) {
		t.Errorf("saving without the ConfigMap: %v, want an error that names it", err)
	}
}
