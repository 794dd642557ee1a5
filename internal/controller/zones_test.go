package controller

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
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
