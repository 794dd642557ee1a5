package cloudmap

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// TestPessimistic has two clusters with the shipped policies join, export, import, restart and
// leave, twice, under the worst of each behavior of AWS, one at a time and all at once.
func TestPessimistic(t *testing.T) {
	all := map[string]json.RawMessage{}
	raw, err := json.Marshal(cloudmaplocal.Pessimistic())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	cases := map[string]map[string]json.RawMessage{"all": {}}
	for name, value := range all {
		cases[name] = map[string]json.RawMessage{name: value}
		cases["all"][name] = value
	}
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			raw, err := json.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			behaviors, err := cloudmaplocal.ParseBehaviors(raw)
			if err != nil {
				t.Fatal(err)
			}
			inBubble(t, func(t *testing.T) { liveUnder(t, behaviors) })
		})
	}
}

// liveUnder is the life of two clusters, with the hosts of AWS and the default settings.
func liveUnder(t *testing.T, behaviors cloudmaplocal.Behaviors) {
	t.Helper()
	options := cloudmaplocal.Options{Behaviors: behaviors, AccessKeys: []cloudmaplocal.AccessKey{{ID: "admin"}}}
	for _, identity := range []mcs.Identity{cls1, cls2} {
		options.AccessKeys = append(options.AccessKeys, cloudmaplocal.AccessKey{
			ID: identity.ClusterID, User: identity.ClusterID, Policies: policyOf(t, identity, viewPolicies)})
	}
	w := newSimulation(t, 0, options)
	w.endpoint = ""
	for range 2 {
		liveOnce(t, w)
	}
}

func liveOnce(t *testing.T, w *simulation) {
	t.Helper()
	view := func(cfg *Config) { cfg.InstanceView = true }
	a, b := w.begin(cls1, nil, view), w.begin(cls2, nil, view)
	w.until(5*time.Minute, "both are members", func() bool { return joined(a.Registry) && joined(b.Registry) })
	for i := range 3 {
		exp := webExport("cls1", 0, i+1)
		if i == 2 {
			a.kill()
			a = w.begin(cls1, nil, view)
		}
		publish(t, a.Registry, exp)
		w.until(2*time.Minute, "the change is imported", sees(t, b.Registry, exp))
	}
	// IAM sees the tags of its namespace and its service after 10 s each, and a failing service has
	// a turn once in 10 s or more.
	w.until(2*time.Minute, "the instance view has the endpoints", func() bool { return a.view.Pending() == 0 })
	key := webExport("cls1", 0, 1).Key
	if err := a.Withdraw(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	w.until(2*time.Minute, "the withdrawal is imported", func() bool { return !shows(t, b.Registry, "cls1", key) })
	endTogether(t, w, key, a, b)
	for _, p := range []*process{a, b} {
		if err := p.end(registry.ErrLeave); err != nil {
			t.Errorf("leaving: %v", err)
		}
	}
	time.Sleep(time.Minute)
	admin, _ := w.client("admin")
	left, err := admin.ListNamespaces(t.Context())
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// endTogether has two clusters end their exports of one service within a second, each while reads
// may still show the instances of the other one: one of them has to delete the service.
func endTogether(t *testing.T, w *simulation, key mcs.Key, a, b *process) {
	t.Helper()
	processes := map[string]*process{"cls1": a, "cls2": b}
	for cluster, p := range processes {
		exp := webExport(cluster, 0, 1)
		publish(t, p.Registry, exp)
	}
	w.until(3*time.Minute, "both have instances", func() bool { return a.view.Pending()+b.view.Pending() == 0 })
	time.Sleep(time.Minute)
	for _, p := range processes {
		if err := p.Withdraw(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	time.Sleep(3 * time.Minute)
	admin, _ := w.client("admin")
	namespaces, err := admin.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if in, ok := namespaces[key.Namespace]; ok {
		services, err := admin.ListServices(t.Context(), in)
		if _, ok := services[key.Name]; ok || err != nil {
			t.Errorf("service %s is there three minutes after both exports have ended, error %v", key, err)
		}
	}
}
