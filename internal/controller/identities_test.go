package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// identitiesOptions returns options of a controller that stores its identities in a ConfigMap,
// which is deleted when the test ends.
func (k *cluster) identitiesOptions(t *testing.T, identity config.Identity) config.Options {
	t.Helper()
	deleteIdentities := func() {
		err := k.admin.Delete(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: membership.IdentitiesName}})
		if client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	deleteIdentities()
	t.Cleanup(deleteIdentities)
	options := testOptions(identity)
	options.Election.Namespace = installNamespace
	return options
}

// awaitIdentities waits until the ConfigMap has exactly these identities, as "clusterset.cluster".
func (k *cluster) awaitIdentities(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("stored identities %v", want), func() error {
		list, err := (&membership.Identities{Client: k.admin, Namespace: installNamespace}).List(t.Context())
		if err != nil {
			return err
		}
		var got []string
		for _, i := range list {
			got = append(got, i.ClusterSetID+"."+i.ClusterID)
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
}

// awaitExporters waits until the registry has exports of exactly these clusters in a clusterset.
func awaitExporters(t *testing.T, hub *memory.Hub, clusterSet string, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("exports of %v in clusterset %s", want, clusterSet), func() error {
		var got []string
		for _, exp := range hub.Exports(clusterSet) {
			got = append(got, exp.Cluster)
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
}

func TestIdentities_WithdrawPreviousIdentity(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("moved")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.run(t, hub, flags("cls2"))
	options := a.identitiesOptions(t, config.Identity{})
	options.Membership.LeaveAfter = time.Second
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	run := a.runWith(t, hubRegistry(hub), options)
	a.export(t, key, 1, 1)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.awaitIdentities(t, "set.cls1")

	// Another cluster ID.
	run.stopAndWait(t)
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls9")
	run = a.runWith(t, hubRegistry(hub), options)
	b.imported(t, key, map[string][]string{"cls9": {"10.1.0.1"}})
	a.imported(t, key, map[string][]string{"cls9": {"10.1.0.1"}})
	a.awaitIdentities(t, "set.cls9")

	// Another clusterset.
	run.stopAndWait(t)
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "other")
	run = a.runWith(t, hubRegistry(hub), options)
	b.notImported(t, key)
	awaitExporters(t, hub, "other", "cls9")
	a.awaitIdentities(t, "other.cls9")

	// No identity since the start: the cluster keeps the last one.
	run.stopAndWait(t)
	a.property(t, aboutv1beta1.ClusterIDProperty, "")
	run = a.runWith(t, hubRegistry(hub), options)
	a.identityKept(t, "it leaves with kubectl mcs leave only")
	awaitExporters(t, hub, "other", "cls9")
	a.awaitIdentities(t, "other.cls9")

	// Another identity, and then another while a controller runs.
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.awaitIdentities(t, "set.cls1")
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls9")
	b.imported(t, key, map[string][]string{"cls9": {"10.1.0.1"}})
	a.awaitIdentities(t, "set.cls9")

	// If the registry is down when the cluster leaves, a later process withdraws the exports.
	hub.SetError(errors.New("the registry is down"))
	a.property(t, aboutv1beta1.ClusterIDProperty, "")
	a.condition(t, key, "Ready=False Failed", "create ClusterProperty cluster.clusterset.k8s.io")
	run.stopAndWait(t)
	a.awaitIdentities(t, "set.cls9")
	hub.SetError(nil)
	awaitExporters(t, hub, "set", "cls9")
	a.runWith(t, hubRegistry(hub), options)
	b.notImported(t, key)
	a.awaitIdentities(t)
}

// Exports of other clusters are not withdrawn: those of a clone that still uses the previous
// identity, and those of the cluster from which the ConfigMap was copied.
func TestIdentities_WithdrawOnlyOwnExports(t *testing.T) {
	hub := memory.NewHub()
	a, _ := twoClusters(t)
	options := a.identitiesOptions(t, flags("cls1"))
	var system corev1.Namespace
	if err := a.admin.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, &system); err != nil {
		t.Fatal(err)
	}
	remembered := &membership.Identities{Client: a.admin, Namespace: installNamespace}
	for _, identity := range []mcs.Identity{
		{ClusterID: "clone", ClusterSetID: "set", UID: string(system.UID)},
		{ClusterID: "other", ClusterSetID: "set", UID: "uid-of-another-cluster"},
	} {
		if err := remembered.Add(t.Context(), identity); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		reg := hub.Registry(identity)
		if err := reg.Publish(t.Context(), mcs.Export{
			Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: identity.ClusterID, Type: mcsv1beta1.ClusterSetIP, Created: time.Unix(1000, 0),
			Ports: []mcs.Port{{Protocol: corev1.ProtocolTCP, Port: 80}},
		}); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(ended)
			if err := reg.Run(ctx, func(mcs.Key) {}); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() { stop(); <-ended })
	}
	awaitExporters(t, hub, "set", "clone", "other")
	a.runWith(t, hubRegistry(hub), options)
	a.awaitIdentities(t, "set.cls1")
	awaitExporters(t, hub, "set", "clone", "other")
}
