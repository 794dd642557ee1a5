package attack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// sharedField is a field of an import that several exports decide, and the worst that a member can
// put there within its budgets (docs/security/threat-model.md).
type sharedField struct {
	name string
	// ids is the number of IDs that the intruder exports under; isOlder is true if it exported
	// first.
	ids     int
	isOlder bool
	// victim edits the victim's export, and intruder that of the intruder under the ID i, whose
	// address is 10.3.0.i+1.
	victim   func(*mcs.Export)
	intruder func(i int, e *mcs.Export)
	// conflict is the reason by which both clusters report the intruder, and refusal the reason on
	// the ServiceImport, "" without one.
	conflict mcsv1beta1.ServiceExportConditionReason
	refusal  policy.Reason
}

var sharedFields = []sharedField{
	{
		name: "ports", ids: 4, isOlder: true, conflict: mcs.ReasonPortLimitConflict, refusal: policy.ReasonPorts,
		intruder: func(i int, e *mcs.Export) { // 2 MB in the derived Service
			e.Ports, e.Backends = nil, nil
			for n := range 1000 {
				number := int32(10_000 + 1000*i + n)
				e.Ports = append(e.Ports, mcs.Port{
					Name: fmt.Sprintf("%s-%d", strings.Repeat("x", 57), number), Protocol: corev1.ProtocolTCP, Port: number,
					AppProtocol: fmt.Sprintf("%s/%s", strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 62)+".", 4), "."), strings.Repeat("x", 63)),
				})
			}
		},
	},
	{
		name: "port names", ids: 1, conflict: mcsv1beta1.ServiceExportReasonPortConflict,
		intruder: func(_ int, e *mcs.Export) {
			e.Ports = []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}, {Name: "other", Protocol: corev1.ProtocolTCP, Port: 80}}
			e.Backends[0].Ports = []mcs.BackendPort{{Name: "other", Protocol: corev1.ProtocolTCP, Port: 9}}
		},
	},
	{
		name: "properties", ids: 2, conflict: mcsv1beta1.ServiceExportReasonTypeConflict,
		intruder: func(_ int, e *mcs.Export) {
			e.Type, e.IPFamilies = mcsv1beta1.Headless, []corev1.IPFamily{corev1.IPv6Protocol}
			e.Labels, e.Annotations = map[string]string{"team": "other"}, map[string]string{"note": strings.Repeat("x", 4000)}
			e.SessionAffinity, e.InternalTrafficPolicy = corev1.ServiceAffinityClientIP, corev1.ServiceInternalTrafficPolicyLocal
			e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferSameNode
		},
	},
	{
		name: "groups of ports", ids: 1, conflict: mcsv1beta1.ServiceExportReasonPortConflict,
		intruder: func(_ int, e *mcs.Export) { // as many EndpointSlices
			e.Ports, e.Backends = nil, nil
			for n := range int32(100) {
				name := fmt.Sprint("p-", n)
				e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + n})
				e.Backends = append(e.Backends, mcs.Backends{
					Ports:     []mcs.BackendPort{{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + n}},
					Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.3.0.1"), Ready: true, Serving: true}},
				})
			}
		},
	},
	{
		name: "clusters", ids: 30, isOlder: true, conflict: mcsv1beta1.ServiceExportReasonPortConflict,
		intruder: func(i int, e *mcs.Export) {
			e.Ports = append(e.Ports, mcs.Port{Name: fmt.Sprint("p-", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
		},
	},
	{
		name: "headless addresses", ids: 1, conflict: mcs.ReasonAddressConflict, refusal: policy.ReasonOther,
		victim: func(e *mcs.Export) { e.Type = mcsv1beta1.Headless },
		// those of the victim, now and later, under another port
		intruder: func(_ int, e *mcs.Export) {
			e.Type, e.Ports[0].Port = mcsv1beta1.Headless, 81
			e.Backends[0].Ports[0].Port = 8081
			for _, address := range victimAddresses {
				e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true})
			}
		},
	},
	{
		name: "zones", ids: 1, conflict: mcsv1beta1.ServiceExportReasonTrafficDistributionConflict,
		victim: func(e *mcs.Export) {
			e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferSameZone
			for i := range e.Backends[0].Endpoints {
				e.Backends[0].Endpoints[i].Zone = "zone-a"
			}
		},
		intruder: func(int, *mcs.Export) {}, // an endpoint without a zone would end the preference
	},
}

// victimAddresses are the addresses that the victim has one after the other.
var victimAddresses = []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}

// TestAttack_SharedFields: whatever a member exports of another one's service, that one's endpoints
// are followed, its end takes effect, and both clusters report the member. It takes some 13 s, half
// of them for objects of 1 MB.
func TestAttack_SharedFields(t *testing.T) {
	k := inKubernetes(t)
	victims := k.hostile(victim)
	var intruders []*hubMember
	for i := range 30 {
		intruders = append(intruders, k.hostile(fmt.Sprintf("%s-%d", intruder, i)))
	}
	t.Run("unreadable export", func(t *testing.T) { k.forTest(t).unreadable(victims, k.hostile("cls3-unreadable")) })
	for _, f := range sharedFields {
		t.Run(f.name, func(t *testing.T) {
			k := k.forTest(t)
			key := mcs.Key{Namespace: k.key.Namespace, Name: strings.ReplaceAll(f.name, " ", "-")}
			created := time.Now()
			publish := func(addresses ...string) {
				victims.publish(key, func(e *mcs.Export) {
					if e.Created = created; f.victim != nil {
						f.victim(e)
					}
				}, addresses...)
			}
			attack := func() {
				for i, m := range intruders[:f.ids] {
					m.publish(key, func(e *mcs.Export) {
						e.Created = created.Add(time.Duration(i+1) * time.Second)
						if f.isOlder {
							e.Created = created.Add(-time.Duration(i+1) * time.Second)
						}
						f.intruder(i, e)
					}, fmt.Sprint("10.3.0.", i+1))
				}
			}
			if f.isOlder {
				attack()
				publish(victimAddresses[0])
			} else {
				publish(victimAddresses[0])
				attack()
			}
			k.follows(key, victimAddresses[0])
			publish(victimAddresses[1:]...)
			k.follows(key, victimAddresses[1:]...)
			k.reports(key, victims, f)
			if err := victims.reg.Withdraw(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			k.follows(key)
			for _, m := range intruders[:f.ids] {
				if err := m.reg.Withdraw(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// unreadable has an intruder export a service of the victim, and then a page that cannot be read,
// while the victim adds a port.
func (k *kubernetes) unreadable(victims, intruders *hubMember) {
	key := mcs.Key{Namespace: k.key.Namespace, Name: "unreadable"}
	victims.publish(key, nil, victimAddresses[0])
	intruders.publish(key, nil, "10.3.0.1")
	k.imported(key, victimAddresses[0], "10.3.0.1")
	k.hub.SetUnreadable(intruders.id, true)
	victims.publish(key, func(e *mcs.Export) {
		e.Ports = append(e.Ports, mcs.Port{Name: "added", Protocol: corev1.ProtocolTCP, Port: 443})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: "added", Protocol: corev1.ProtocolTCP, Port: 8443})
	}, victimAddresses[1:]...)
	k.follows(key, victimAddresses[1:]...)
	k.eventually("the added port", func() error {
		var svc corev1.Service
		if err := k.get(mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}, &svc); err != nil {
			return err
		}
		if !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 443 }) {
			return fmt.Errorf("the derived Service has %v", svc.Spec.Ports)
		}
		return nil
	})
	if err := victims.reg.Withdraw(k.t.Context(), key); err != nil {
		k.t.Fatal(err)
	}
	k.follows(key)
}

// forTest returns k for a subtest.
func (k *kubernetes) forTest(t *testing.T) *kubernetes {
	of := *k
	of.t = t
	return &of
}

// follows waits until clients of the import have exactly these endpoints of the victim: ready in
// its slices, with the port of the derived Service and for the clients of their zone, and in those
// of no other cluster. Those that the victim does not have are not its own.
func (k *kubernetes) follows(key mcs.Key, want ...string) {
	k.t.Helper()
	k.eventually("endpoints of the victim in "+key.String(), func() error {
		var list discoveryv1.EndpointSliceList
		if err := k.Admin.List(k.t.Context(), &list, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name}); err != nil {
			return err
		}
		var got []string
		for _, slice := range list.Items {
			for _, ep := range slice.Endpoints {
				switch isVictims := slice.Labels[mcsv1beta1.LabelSourceCluster] == victim; {
				case !isVictims && slices.Contains(want, ep.Addresses[0]):
					return fmt.Errorf("%s is an endpoint of %s", ep.Addresses[0], slice.Labels[mcsv1beta1.LabelSourceCluster])
				case !isVictims:
				case ep.Zone != nil && (ep.Hints == nil || len(ep.Hints.ForZones) != 1 || ep.Hints.ForZones[0].Name != *ep.Zone):
					return fmt.Errorf("%s has another zone for clients: %v", ep.Addresses[0], ep)
				case *ep.Conditions.Ready:
					got = append(got, ep.Addresses...)
				}
			}
			if slice.Labels[mcsv1beta1.LabelSourceCluster] == victim && len(want) > 0 {
				if err := k.serves(key, slice); err != nil {
					return err
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// serves returns an error if the derived Service of an import does not have the port 80 by the name
// of the port in a slice.
func (k *kubernetes) serves(key mcs.Key, slice discoveryv1.EndpointSlice) error {
	var imp mcsv1beta1.ServiceImport
	if err := k.get(key, &imp); err != nil || imp.Spec.Type == mcsv1beta1.Headless {
		return err
	}
	var svc corev1.Service
	if err := k.get(mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}, &svc); err != nil {
		return err
	}
	for _, p := range svc.Spec.Ports {
		if p.Port == 80 && slices.ContainsFunc(slice.Ports, func(o discoveryv1.EndpointPort) bool { return *o.Name == p.Name }) {
			return nil
		}
	}
	return fmt.Errorf("of %d ports of the derived Service none is the victim's, %v", len(svc.Spec.Ports), slice.Ports)
}

// reports waits until the victim and the importer report the intruder.
func (k *kubernetes) reports(key mcs.Key, victims *hubMember, f sharedField) {
	k.t.Helper()
	k.eventually("report of the victim about "+key.String(), func() error {
		view, err := victims.reg.Lookup(k.t.Context(), key)
		if err != nil {
			return err
		}
		exports := view.Exports()
		for _, e := range k.hub.Exports(clusterSet) {
			if e.Key == key && e.Cluster == victim {
				exports = append(exports, e)
			}
		}
		conflicts := plan.DecidePrecedence(plan.PrecedenceInput{Exports: exports, Now: time.Now()}).Merge().Conflicts
		for _, c := range conflicts {
			if c.Reason == f.conflict && strings.Contains(c.Message, intruder+"-") {
				return nil
			}
		}
		return fmt.Errorf("conflicts %v, want %s with the intruder", conflicts, f.conflict)
	})
	if f.refusal == "" {
		return
	}
	k.eventually("report of the importer about "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(key, &imp); err != nil {
			return err
		}
		c := meta.FindStatusCondition(imp.Status.Conditions, policy.ConditionRefused)
		if c == nil || !strings.Contains(c.Reason, string(f.refusal)) || !strings.Contains(c.Message, intruder+"-") {
			return fmt.Errorf("condition %+v, want %s with the intruder", c, f.refusal)
		}
		return nil
	})
}

// TestAttack_HeldIPs: the intruder exports one name after the other until a quota refuses a
// Service, while the IP of an ended import of the victim is held.
func TestAttack_HeldIPs(t *testing.T) {
	k := inKubernetes(t)
	victims := k.hostile(victim)
	victims.publish(k.key, nil, "10.1.0.1")
	k.imported(k.key, "10.1.0.1")
	ip := k.clusterSetIP(k.key)
	withdraw := func(m *hubMember, key mcs.Key) {
		if err := m.reg.Withdraw(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		k.eventually("end of "+key.String(), func() error {
			if k.get(key, &mcsv1beta1.ServiceImport{}) == nil {
				return errors.New("it is still imported")
			}
			return nil
		})
	}
	withdraw(victims, k.key)
	own := mcs.Key{Namespace: k.key.Namespace, Name: "own"}
	rotated := k.hostile("other-id")
	rotated.publish(own, nil, "10.3.0.1")
	k.clusterSetIP(own)
	withdraw(rotated, own)
	k.fullQuota()
	refused := func(m *hubMember, name string) {
		key := mcs.Key{Namespace: k.key.Namespace, Name: name}
		m.publish(key, nil, "10.3.0.2")
		k.eventually("refusal of "+name, func() error {
			var imp mcsv1beta1.ServiceImport
			if err := k.get(key, &imp); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady)); c == nil || !strings.Contains(c.Message, "exceeded quota") {
				return fmt.Errorf("condition %+v", c)
			}
			return nil
		})
	}
	refused(k.hostile(intruder), "another")
	if k.get(mcs.Key{Namespace: own.Namespace, Name: mcs.DerivedName(own)}, &corev1.Service{}) != nil {
		t.Error("the IP of an ended import of another ID is not held any more")
	}
	// Control: those of the same cluster give way.
	refused(rotated, "more")
	k.eventually("release of the intruder's own IP", func() error {
		if k.get(mcs.Key{Namespace: own.Namespace, Name: mcs.DerivedName(own)}, &corev1.Service{}) == nil {
			return errors.New("it is still held")
		}
		return nil
	})
	victims.publish(k.key, nil, "10.1.0.2")
	k.imported(k.key, "10.1.0.2")
	if again := k.clusterSetIP(k.key); again != ip {
		t.Errorf("the victim's service has the IP %s, and had %s", again, ip)
	}
}

// fullQuota gives the namespace a quota of Services that is used up. No controller counts it again.
func (k *kubernetes) fullQuota() {
	k.t.Helper()
	hard := corev1.ResourceList{corev1.ResourceServices: resource.MustParse("10")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: k.key.Namespace, Name: "full"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	k.create(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
	if err := k.Admin.Status().Update(k.t.Context(), quota); err != nil {
		k.t.Fatal(err)
	}
}

// TestAttack_EvictedKey: the intruder makes a cluster forget the key of another one by the keys of
// IDs that it invents, while that one, which was seen last, is down.
func TestAttack_EvictedKey(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		const most = 8
		store := pinStore{}
		keyring, err := trust.Load(t.Context(), trust.Config{
			ClusterSetID: clusterSet, StaleAfter: config.Default().Registry.StaleAfter, Store: store, MaxPins: most, MaxPinBytes: 1, Logger: logr.Discard(),
		})
		if err != nil {
			t.Fatal(err)
		}
		reader := c.join(newcomer, func(cfg *cloudmap.Config) { cfg.Keyring = keyring })
		c.infiltrate()
		for i := range 3 {
			c.invent(fmt.Sprint("earlier-", i))
		}
		time.Sleep(time.Minute)
		web := webExport(victim, 2)
		exporter := c.join(victim)
		exporter.publish(web)
		until(t, time.Minute, "the export of the victim is imported", reader.sees(web))
		keyring.SetImported([]string{victim}) // as the controller does
		exporter.stop(nil)
		known, isReported := map[string]bool{}, false
		for g := range 6 {
			for i := range 4 {
				c.invent(fmt.Sprintf("invented-%d-%d", g, i))
			}
			for range 6 {
				time.Sleep(10 * time.Second)
				for _, m := range c.listMembers(reader) {
					isReported = isReported || slices.ContainsFunc(m.Problems, func(p string) bool { return strings.Contains(p, "has no room for that of another one") })
				}
			}
			for g := range 6 {
				for i := range 4 {
					if id := fmt.Sprintf("invented-%d-%d", g, i); keyring.IsSigned(id) {
						known[id] = true
					}
				}
			}
		}
		if len(known) < most { // control
			t.Errorf("%d of the invented clusters were known, want more than there may be", len(known))
		}
		if pin, ok := keyring.Pin(victim); !ok || pin.Key != c.signer(victim).Key() {
			t.Error("the key of the victim is not pinned any more")
		}
		r := c.recordOf(victim)
		r.Heartbeat, r.Generation = r.Heartbeat+1e6, r.Generation+1e6
		c.write(c.attacker(), c.members(), r.Instance(c.signer(intruder)))
		until(t, time.Minute, "a forged record of the victim is refused", reader.isRefused(victim))
		if !isReported {
			t.Error("no invented cluster without room was reported")
		}
	})
}
