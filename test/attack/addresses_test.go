package attack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestAttack_ShadowedAddresses: kube-proxy knows one endpoint of a Service for each address and
// port, so that the address of another cluster's pod in two slices is in service only as often as
// that one comes last.
func TestAttack_ShadowedAddresses(t *testing.T) {
	t.Run("kube", shadowInKubernetes)
	t.Run("cloud", func(t *testing.T) {
		inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
			exporter, reader, web := c.start()
			shadow := shadowOf(web)
			hostile := c.join(intruder)
			hostile.publish(shadow)
			until(t, time.Minute, "the export of the intruder is read", func() bool { return reader.sees(shadow)() && exporter.sees(shadow)() })
			checkShadow(t, web, reader.view(web.Key))
			own := exporter.view(web.Key)
			own.Set(victim, registry.ClusterView{State: registry.Exports, Export: &web})
			checkShadow(t, web, own)
			// An export that claims to be older owns the addresses, unless its cluster announces
			// other networks. The import policy can require that it announces some.
			shadow.Created = web.Created.Add(-time.Hour)
			hostile.publish(shadow)
			hostile.SetProperties(intruderNetworks)
			until(t, time.Minute, "the older export and the networks are read", func() bool {
				return reader.sees(shadow)() && len(reader.view(web.Key).Clusters[intruder].Properties.Networks()) > 0
			})
			checkShadow(t, web, reader.view(web.Key))
		})
	})
	t.Run("etcd", func(t *testing.T) {
		s := startEtcd(t)
		exporter, reader, web := s.start()
		shadow := shadowOf(web)
		// etcd knows which export was first
		shadow.Created = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
		hostile := s.join(identityOf(intruder))
		hostile.publish(shadow)
		until(t, etcdWait, "the export of the intruder is read", func() bool { return reader.sees(shadow)() && exporter.sees(shadow)() })
		checkShadow(t, web, reader.view(web.Key))
		// It announces the networks of the victim, which announces none.
		hostile.SetProperties(mcs.Properties{mcs.PropertyNetworks: "10.0.0.0/8"})
		until(t, etcdWait, "the networks are read", func() bool { return len(reader.view(web.Key).Clusters[intruder].Properties.Networks()) > 0 })
		checkShadow(t, web, reader.view(web.Key))
	})
}

// intruderNetworks are the ClusterProperties of the intruder, whose pods have these addresses.
var intruderNetworks = mcs.Properties{mcs.PropertyNetworks: "10.3.0.0/16"}

// shadowOf returns the export of the intruder: the endpoints of web as not ready in ten groups of
// ports, and one of its own.
func shadowOf(web mcs.Export) mcs.Export {
	shadow := web
	shadow.Cluster, shadow.Created = intruder, web.Created.Add(time.Second)
	shadow.Backends, shadow.Ports = nil, slices.Clone(web.Ports)
	for i := range int32(10) {
		group := mcs.Backends{Ports: slices.Clone(web.Backends[0].Ports)}
		if i > 0 {
			name := fmt.Sprint("extra-", i)
			shadow.Ports = append(shadow.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + i})
			group.Ports = append(group.Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + i})
		}
		for _, ep := range web.Backends[0].Endpoints {
			group.Endpoints = append(group.Endpoints, mcs.Endpoint{Address: ep.Address})
		}
		shadow.Backends = append(shadow.Backends, group)
	}
	own := mcs.Endpoint{Address: netip.MustParseAddr("10.3.0.1"), Ready: true, Serving: true}
	shadow.Backends[0].Endpoints = append(shadow.Backends[0].Endpoints, own)
	return shadow.Canonical()
}

// checkShadow checks that a cluster with view, which has all exports, uses the endpoints of web as
// they are and the intruder's own one, and reports both clusters.
func checkShadow(t *testing.T, web mcs.Export, view registry.View) {
	t.Helper()
	p := plan.DecidePrecedence(plan.PrecedenceInput{Exports: view.Exports(), Order: view.Order, Properties: view.PropertiesWith(importer, nil), Now: time.Now()})
	owned, _ := p.OwnAddresses(p.Merge().Type)
	for _, e := range owned {
		switch {
		case e.Cluster == victim && e.EndpointCount() != web.EndpointCount():
			t.Errorf("of the victim %v is in use, want all of %v", e.Backends, web.Backends)
		case e.Cluster == intruder && (e.EndpointCount() != 1 || e.Backends[0].Endpoints[0].Address != netip.MustParseAddr("10.3.0.1")):
			t.Errorf("of the intruder %v is in use, want its own endpoint", e.Backends)
		}
	}
	// Control: the intruder has exported all of it.
	if len(owned) != 2 || view.Exports()[0].EndpointCount()+view.Exports()[1].EndpointCount() != 11*web.EndpointCount()+1 {
		t.Errorf("the exports are %v", view.Exports())
	}
	if !slices.ContainsFunc(p.Merge().Conflicts, func(c mcs.Conflict) bool {
		return c.Reason == mcs.ReasonAddressConflict && strings.Contains(c.Message, "cluster "+intruder+" exports endpoints of cluster "+victim)
	}) {
		t.Errorf("conflicts are %v, want one about the addresses", p.Merge().Conflicts)
	}
}

func shadowInKubernetes(t *testing.T) {
	k := inKubernetes(t)
	created := time.Now().Add(-time.Hour)
	honest, hostile := k.hostile(victim), k.hostile(intruder)
	publish := func(addresses ...string) {
		honest.publish(k.key, func(e *mcs.Export) { e.Created = created }, addresses...)
	}
	shadowing := func(e *mcs.Export) {
		*e = shadowOf(*e)
		e.Created = time.Now().Add(time.Hour)
	}
	publish("10.1.0.1", "10.1.0.2")
	hostile.publish(k.key, shadowing, "10.1.0.1", "10.1.0.2", "10.1.0.3")
	k.owned(k.key, victim, "10.1.0.1", "10.1.0.2")
	k.refused(k.key, policy.ReasonOther)
	// A new pod of the victim, whose address the intruder had listed.
	publish("10.1.0.2", "10.1.0.3")
	k.owned(k.key, victim, "10.1.0.2", "10.1.0.3")
	// An export that is older owns the addresses, unless its cluster announces other networks.
	late := mcs.Key{Namespace: k.key.Namespace, Name: "late"}
	hostile.publish(late, func(e *mcs.Export) { *e = shadowOf(*e); e.Created = created.Add(-time.Hour) }, "10.1.0.7")
	honest.publish(late, func(e *mcs.Export) { e.Created = created }, "10.1.0.7")
	k.refused(late, policy.ReasonOther)
	hostile.reg.SetProperties(intruderNetworks)
	k.owned(late, victim, "10.1.0.7")
	// In the cluster that exports the service itself the same holds, and its user learns of both
	// clusters.
	own := mcs.Key{Namespace: k.key.Namespace, Name: "own"}
	k.export(own, nil, "10.2.0.1")
	hostile.publish(own, shadowing, "10.2.0.1")
	k.owned(own, importer, "10.2.0.1")
	k.eventually("conflict", func() error {
		var exp mcsv1beta1.ServiceExport
		if err := k.get(own, &exp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(exp.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict))
		if c == nil || !strings.Contains(c.Reason, string(mcs.ReasonAddressConflict)) || !strings.Contains(c.Message, "cluster "+intruder+" exports endpoints of cluster "+importer) {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

// owned waits until the slices of a cluster have exactly these addresses, ready, and those of the
// intruder its own one but none of these.
func (k *kubernetes) owned(key mcs.Key, cluster string, want ...string) {
	k.t.Helper()
	k.eventually("endpoints of "+key.String(), func() error {
		var list discoveryv1.EndpointSliceList
		if err := k.Admin.List(k.t.Context(), &list, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name}); err != nil {
			return err
		}
		var got, others []string
		for _, slice := range list.Items {
			for _, ep := range slice.Endpoints {
				switch {
				case slice.Labels[mcsv1beta1.LabelSourceCluster] != cluster:
					others = append(others, ep.Addresses...)
				case *ep.Conditions.Ready:
					got = append(got, ep.Addresses...)
				}
			}
		}
		slices.Sort(got)
		isShadowed := slices.ContainsFunc(others, func(address string) bool { return slices.Contains(want, address) })
		if !slices.Equal(got, want) || isShadowed || !slices.Contains(others, "10.3.0.1") {
			return fmt.Errorf("ready are %v, want %v; others are %v", got, want, others)
		}
		return nil
	})
}
