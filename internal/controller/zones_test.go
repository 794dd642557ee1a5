package controller

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// The endpoints of a cluster in another account have the zones by the names of this cluster, in
// their zone and in their topology hints. They follow the zones of either cluster.
func TestZones(t *testing.T) {
	a, _ := twoClusters(t)
	key := newKey("zones")
	a.namespace(t, key.Namespace)
	a.property(t, mcs.PropertyZones, "eu-west-1a=euw1-az1,eu-west-1b=euw1-az2")
	hub := memory.NewHub()
	a.run(t, hub, flags("cls1"))
	exp := mcs.Export{
		Key: key, Type: mcsv1beta1.ClusterSetIP, Created: time.Now(), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		TrafficDistribution: corev1.ServiceTrafficDistributionPreferSameZone,
		Ports:               []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		Backends: []mcs.Backends{{
			Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{
				{Address: netip.MustParseAddr("10.2.0.1"), Ready: true, Serving: true, Zone: "eu-west-1a"},
				{Address: netip.MustParseAddr("10.2.0.2"), Ready: true, Serving: true, Zone: "eu-west-1c"},
			},
		}},
	}
	remote := remoteExport(t, hub, "cls2", mcs.Properties{mcs.PropertyZones: "eu-west-1a=euw1-az2,eu-west-1c=euw1-az3"}, exp)
	zones := func(first, second string) {
		t.Helper()
		eventually(t, "zones of the endpoints", func() error {
			got := map[string][]string{}
			for _, s := range a.slicesOf(t, key) {
				for _, ep := range s.Endpoints {
					got[ep.Addresses[0]] = []string{*ep.Zone, ep.Hints.ForZones[0].Name}
				}
			}
			if diff := cmp.Diff(map[string][]string{"10.2.0.1": {first, first}, "10.2.0.2": {second, second}}, got); diff != "" {
				return fmt.Errorf("-want +got:\n%s", diff)
			}
			return nil
		})
	}
	zones("eu-west-1b", "euw1-az3")
	remote.SetProperties(mcs.Properties{mcs.PropertyZones: "eu-west-1a=euw1-az1,eu-west-1c=euw1-az3"})
	zones("eu-west-1a", "euw1-az3")
	a.property(t, mcs.PropertyZones, "eu-west-1x=euw1-az1,eu-west-1c=euw1-az3")
	zones("eu-west-1x", "eu-west-1c")
	remote.SetProperties(nil)
	zones("eu-west-1a", "eu-west-1c")
}

// The Region and zone of the nodes are ClusterProperties that others can read, as long as the
// cluster is a member and no user has written others.
func TestDerivedProperties(t *testing.T) {
	a, _ := twoClusters(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "derived-1", Labels: map[string]string{
		corev1.LabelTopologyRegion: "eu-west-1", corev1.LabelTopologyZone: "eu-west-1a",
	}}}
	a.create(t, node)
	t.Cleanup(func() {
		if err := a.admin.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
	values := func(want map[string]string) {
		t.Helper()
		eventually(t, "ClusterProperties", func() error {
			var list aboutv1beta1.ClusterPropertyList
			if err := a.admin.List(t.Context(), &list); err != nil {
				return err
			}
			got := map[string]string{}
			for _, p := range list.Items {
				got[p.Name] = fmt.Sprint(p.Spec.Value, " ", p.Labels[plan.LabelAppManagedBy])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("-want +got:\n%s", diff)
			}
			return nil
		})
	}
	const own = " " + plan.ManagedBy
	identity := map[string]string{aboutv1beta1.ClusterIDProperty: "cls1 ", aboutv1beta1.ClusterSetIDProperty: "set "}
	with := func(more map[string]string) map[string]string {
		out := maps.Clone(identity)
		maps.Copy(out, more)
		return out
	}
	a.property(t, aboutv1beta1.ClusterIDProperty, "cls1")
	a.property(t, aboutv1beta1.ClusterSetIDProperty, "set")
	options := testOptions(config.Identity{})
	options.Membership.LeaveAfter = time.Nanosecond
	a.runWith(t, hubRegistry(memory.NewHub()), options)
	values(with(map[string]string{mcs.PropertyRegion: "eu-west-1" + own, mcs.PropertyZone: "eu-west-1a" + own}))

	t.Log("a user writes another value, with the manifest that has our label and annotation")
	region := &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: mcs.PropertyRegion}}
	change(t, a, region, func(p *aboutv1beta1.ClusterProperty) { p.Spec.Value = "eu-south-1" })
	change(t, a, node, func(n *corev1.Node) {
		n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone] = "eu-west-2", "eu-west-2b"
	})
	values(with(map[string]string{mcs.PropertyRegion: "eu-south-1" + own, mcs.PropertyZone: "eu-west-2b" + own}))

	t.Log("the user deletes it")
	if err := a.admin.Delete(t.Context(), region); err != nil {
		t.Fatal(err)
	}
	values(with(map[string]string{mcs.PropertyRegion: "eu-west-2" + own, mcs.PropertyZone: "eu-west-2b" + own}))

	t.Log("the cluster leaves, a user's zone stays")
	a.property(t, mcs.PropertyZone, "rack-1")
	values(with(map[string]string{mcs.PropertyRegion: "eu-west-2" + own, mcs.PropertyZone: "rack-1 "}))
	a.property(t, aboutv1beta1.ClusterIDProperty, "")
	values(map[string]string{aboutv1beta1.ClusterSetIDProperty: "set ", mcs.PropertyZone: "rack-1 "})
}
