package instances

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// portsExport is an export with TCP ports and addresses; those with "!" are not ready.
func portsExport(cluster, ports string, addresses ...string) mcs.Export {
	e := mcs.Export{Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: cluster, Type: mcsv1beta1.ClusterSetIP, Backends: []mcs.Backends{{}}}
	for i, name := range strings.Fields(ports) {
		number := map[string]int32{"http": 80, "grpc": 7000}[name]
		e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: number})
		e.Ports[i].Port = number
	}
	for _, text := range addresses {
		text, isUnready := strings.CutSuffix(text, "!")
		e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(text), Ready: !isUnready, Pod: cluster})
	}
	return e
}

// byHand returns e as the export of a headless Service without ports, with slices that have some.
func byHand(e mcs.Export) mcs.Export {
	e.Type, e.Ports = mcsv1beta1.Headless, nil
	return e
}

// instancesFor returns the instances that clusters write for exports, in their shape.
func instancesFor(s shape, exports ...mcs.Export) (have []api.Instance) {
	for _, e := range exports {
		found, _ := firstFromExport(e, "set1", "v1", maxInstances, s)
		have = append(have, found...)
	}
	return have
}

func with(instances []api.Instance, changes []api.Instance) []api.Instance {
	out := slices.Clone(instances)
	for _, change := range changes {
		i := slices.IndexFunc(out, func(i api.Instance) bool { return i.ID == change.ID })
		out[i].Health = change.Health
	}
	return out
}

func texts(changes []api.Instance) (out []string) {
	for _, c := range changes {
		out = append(out, c.ID+" "+c.Health)
	}
	return out
}

func TestStaleHealth(t *testing.T) {
	perPort, perAddress, paired := shape{hasHealth: true}, shape{hasHealth: true, hasFirstPortOnly: true}, shape{hasHealth: true, hasFirstPortOnly: true, isPaired: true}
	const first, third = "tcp-10_1_0_1-80", "tcp-10_2_0_1-80"
	one, two := portsExport("cls1", "http", "10.1.0.1", "10.1.0.2!"), portsExport("cls2", "http", "10.2.0.1")
	dead := "cls1"
	drained := one
	drained.Drain = "100%"
	for name, tc := range map[string]struct {
		exports []mcs.Export
		shape   shape
		stale   string
		unknown string
		policy  mcs.StalePolicy
		// health is that of instances, if it is not that of their exports. edit changes all of
		// them.
		health map[string]string
		edit   func(api.Instance) api.Instance
		want   []string
	}{
		"nothing is stale":                        {exports: []mcs.Export{one, two}, shape: perPort},
		"another cluster serves":                  {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, want: []string{first + " UNHEALTHY"}},
		"the last ones":                           {exports: []mcs.Export{one}, shape: perPort, stale: dead},
		"the last ones, withdraw-all":             {exports: []mcs.Export{one}, shape: perPort, stale: dead, policy: mcs.StaleWithdrawAll, want: []string{first + " UNHEALTHY"}},
		"both are stale":                          {exports: []mcs.Export{one, two}, shape: perPort, stale: "cls1 cls2"},
		"the other may be stale":                  {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, unknown: "cls2"},
		"the other is not ready":                  {exports: []mcs.Export{one, portsExport("cls2", "http", "10.2.0.1!")}, shape: perPort, stale: dead},
		"the other is unhealthy":                  {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, health: map[string]string{third: api.HealthUnhealthy}},
		"the other has no instances":              {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, edit: without("cls2")},
		"it is unhealthy already":                 {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, health: map[string]string{first: api.HealthUnhealthy}},
		"the others are gone: as signed":          {exports: []mcs.Export{one}, shape: perPort, stale: dead, health: map[string]string{first: api.HealthUnhealthy}, want: []string{first + " HEALTHY"}},
		"what was drained stays unhealthy":        {exports: []mcs.Export{drained}, shape: perPort, stale: dead, health: map[string]string{first: api.HealthUnhealthy}},
		"a port that the other does not have":     {exports: []mcs.Export{portsExport("cls1", "http grpc", "10.1.0.1"), two}, shape: perPort, stale: dead, want: []string{first + " UNHEALTHY"}},
		"the address of a port that stays":        {exports: []mcs.Export{portsExport("cls1", "http grpc", "10.1.0.1"), two}, shape: perAddress, stale: dead},
		"all ports of an address":                 {exports: []mcs.Export{portsExport("cls1", "http grpc", "10.1.0.1"), portsExport("cls2", "http grpc", "10.2.0.1")}, shape: perAddress, stale: dead, want: []string{first + " UNHEALTHY"}},
		"the other lacks an instance of its port": {exports: []mcs.Export{portsExport("cls1", "http grpc", "10.1.0.1"), portsExport("cls2", "http grpc", "10.2.0.1")}, shape: perPort, stale: dead, health: map[string]string{"tcp-10_2_0_1-7000": "gone"}},
		"another family":                          {exports: []mcs.Export{one, portsExport("cls2", "http", "fd00::2")}, shape: perPort, stale: dead},
		"both families of a pod, one is served":   {exports: []mcs.Export{portsExport("cls1", "http", "10.1.0.1", "fd00::1"), two}, shape: paired, stale: dead},
		"both families of a pod are served":       {exports: []mcs.Export{portsExport("cls1", "http", "10.1.0.1", "fd00::1"), portsExport("cls2", "http", "10.2.0.1", "fd00::2")}, shape: paired, stale: dead, want: []string{first + " UNHEALTHY"}},
		"not signed":                              {exports: []mcs.Export{portsExport("cls1", "http", "10.1.0.9"), two}, shape: perPort, stale: dead, edit: moved("10_1_0_9", "10_1_0_1")},
		"of another cluster by its attribute":     {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, edit: changed("cls1", AttrClusterID, "cls3")},
		"of another clusterset":                   {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, edit: changed("cls1", AttrClusterSetID, "set2")},
		"of a cluster that does not set health":   {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, edit: changed("cls1", AttrNames, "team")},
		"headless, with ports of slices only":     {exports: []mcs.Export{byHand(one), byHand(two)}, shape: perPort, stale: dead, want: []string{first + " UNHEALTHY"}},
		"in a service without health":             {exports: []mcs.Export{one, two}, shape: perPort, stale: dead, edit: func(i api.Instance) api.Instance { i.Health = ""; return i }},
	} {
		t.Run(name, func(t *testing.T) {
			have := instancesFor(tc.shape, tc.exports...)
			for i := range have {
				if health, ok := tc.health[have[i].ID]; ok {
					have[i].Health = health
				}
				if tc.edit != nil {
					have[i] = tc.edit(have[i])
				}
			}
			have = slices.DeleteFunc(have, func(i api.Instance) bool { return i.Health == "gone" })
			e := Exporters{Exports: tc.exports, Stale: strings.Fields(tc.stale), Unknown: strings.Fields(tc.unknown)}
			policy := tc.policy
			if policy == "" {
				policy = mcs.StaleWithdraw
			}
			got := texts(staleHealth(e, policy, "set1", tc.shape.hasFirstPortOnly, have))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// without removes the instances of a cluster.
func without(cluster string) func(api.Instance) api.Instance {
	return func(i api.Instance) api.Instance {
		if i.Attributes[AttrClusterID] == cluster {
			i.Health = "gone"
		}
		return i
	}
}

// moved gives instances another ID, as if they were of another address.
func moved(from, to string) func(api.Instance) api.Instance {
	return func(i api.Instance) api.Instance {
		i.ID = strings.ReplaceAll(i.ID, from, to)
		return i
	}
}

// changed changes an attribute of the instances of a cluster.
func changed(cluster, attr, value string) func(api.Instance) api.Instance {
	return func(i api.Instance) api.Instance {
		if i.Attributes[AttrClusterID] == cluster {
			i.Attributes = maps.Clone(i.Attributes)
			i.Attributes[attr] = value
		}
		return i
	}
}

// TestStaleHealthProperties: with random exports, staleness, readiness and health, only instances
// of stale clusters change, a change leaves nothing to change, and a port and family that had a
// healthy instance of any cluster keeps one.
func TestStaleHealthProperties(t *testing.T) {
	for seed := range uint64(3000) {
		dice := rand.New(rand.NewPCG(seed, 0))
		s := shape{hasHealth: true, hasFirstPortOnly: dice.IntN(3) == 0}
		var e Exporters
		for cluster := range 1 + dice.IntN(4) {
			id := fmt.Sprint("cls", cluster)
			var addresses []string
			for i := range dice.IntN(3) {
				addresses = append(addresses, fmt.Sprintf("10.%d.0.%d%s", cluster, i, []string{"", "", "!"}[dice.IntN(3)]))
			}
			e.Exports = append(e.Exports, portsExport(id, []string{"http", "grpc", "http grpc"}[dice.IntN(3)], addresses...))
			switch dice.IntN(3) {
			case 0:
				e.Stale = append(e.Stale, id)
			case 1:
				if dice.IntN(2) == 0 {
					e.Unknown = append(e.Unknown, id)
				}
			}
		}
		have := instancesFor(s, e.Exports...)
		for i := range have {
			if dice.IntN(4) == 0 {
				have[i].Health = []string{api.HealthHealthy, api.HealthUnhealthy}[dice.IntN(2)]
			}
		}
		changes := staleHealth(e, mcs.StaleWithdraw, "set1", s.hasFirstPortOnly, have)
		for _, c := range changes {
			if !slices.Contains(e.Stale, c.Attributes[AttrClusterID]) {
				t.Errorf("seed %d: %s of %s changes, stale are %v", seed, c.ID, c.Attributes[AttrClusterID], e.Stale)
			}
		}
		after := with(have, changes)
		if again := staleHealth(e, mcs.StaleWithdraw, "set1", s.hasFirstPortOnly, after); len(again) > 0 {
			t.Errorf("seed %d: %v change again after %v", seed, texts(again), texts(changes))
		}
		if was, is := healthyPorts(s, e.Exports, have), healthyPorts(s, e.Exports, after); slices.ContainsFunc(was, func(p string) bool { return !slices.Contains(is, p) }) {
			t.Errorf("seed %d: healthy were the ports %v, and are %v", seed, was, is)
		}
	}
}

// healthyPorts returns the ports of healthy instances. One that stands for an address has all ports
// of its export.
func healthyPorts(s shape, exports []mcs.Export, instances []api.Instance) (ports []string) {
	for _, i := range instances {
		switch {
		case i.Health != api.HealthHealthy:
		case !s.hasFirstPortOnly:
			ports = append(ports, i.Attributes[AttrPort])
		default:
			of := slices.IndexFunc(exports, func(e mcs.Export) bool { return e.Cluster == i.Attributes[AttrClusterID] })
			for _, p := range exports[of].Ports {
				ports = append(ports, fmt.Sprint(p.Port))
			}
		}
	}
	return ports
}
