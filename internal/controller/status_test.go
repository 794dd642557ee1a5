package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// ask gets what the status endpoint at address says at path.
func ask[T any](t *testing.T, address, path string) (T, error) {
	t.Helper()
	var out T
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, errors.New(resp.Status)
	}
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

func TestStatusEndpoint(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("status")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)

	options := testOptions(flags("cls1"))
	options.Election = config.Election{Enabled: true, Namespace: installNamespace}
	options.Serving.Status = freeAddress(t)
	leader := options.Serving.Status
	a.runWith(t, hubRegistry(hub), options)
	a.leader(t, "")
	options.Serving.Status = freeAddress(t)
	a.runWith(t, hubRegistry(hub), options)
	b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 2)
	b.export(t, key, 2, 1)

	eventually(t, "what the leader says", func() error {
		got, err := ask[status.Status](t, leader, status.PathStatus)
		if err != nil {
			return err
		}
		for i := range got.Members {
			got.Members[i].HeartbeatAge, got.Members[i].UID = 0, ""
		}
		want := []status.Member{{ClusterID: "cls1", Exports: 1, Endpoints: 2}, {ClusterID: "cls2", Exports: 1, Endpoints: 1}}
		if diff := cmp.Diff(want, got.Members); diff != "" || !got.Leader || !got.Synced || got.Identity == nil || got.Identity.ClusterID != "cls1" {
			return fmt.Errorf("%+v: %s", got, diff)
		}
		if len(got.Publications) > 0 {
			return fmt.Errorf("not exported: %v", got.Publications)
		}
		return nil
	})
	service, err := ask[status.Service](t, leader, status.ServicePath(key))
	if err != nil {
		t.Fatal(err)
	}
	if service.Own == nil || service.Own.Cluster != "cls1" || len(service.Exports) != 1 || service.Exports[0].Cluster != "cls2" ||
		service.Publication.State != registry.Exported.String() {
		t.Errorf("the service is %+v", service)
	}
	all, err := ask[[]status.Service](t, leader, status.PathServices)
	if err != nil || len(all) != 1 || all[0].Key != key {
		t.Errorf("all services are %+v, %v", all, err)
	}
	probe, err := ask[status.Probe](t, leader, status.ProbePath(key))
	if err != nil || probe.Name != key.Name+"."+key.Namespace+".svc.clusterset.local" {
		t.Errorf("the probe is %+v, %v", probe, err)
	}
	standby, err := ask[status.Status](t, options.Serving.Status, status.PathStatus)
	if err != nil || standby.Leader || standby.Problem != "this replica stands by: another one works" {
		t.Errorf("the standby says %+v, %v", standby, err)
	}
	if _, err := ask[status.Service](t, options.Serving.Status, status.ServicePath(key)); err == nil {
		t.Error("the standby knows the registry")
	}
}

func TestCountMembers(t *testing.T) {
	now := time.Unix(100, 0)
	key := mcs.Key{Namespace: "demo", Name: "web"}
	exp := func(cluster string, n int) mcs.Export {
		return mcs.Export{Key: key, Cluster: cluster, Backends: []mcs.Backends{{Endpoints: make([]mcs.Endpoint, n)}}}
	}
	own := exp("a", 2)
	got := countMembers([]registry.Member{
		{ClusterID: "a", LastSeen: now.Add(time.Second)},
		{ClusterID: "b", LastSeen: now.Add(-90 * time.Second), Stale: true, Problems: []string{"x"}},
		{ClusterID: "c", LastSeen: now},
	}, "a", []status.Service{
		{Own: &own, Exports: []mcs.Export{exp("b", 1), exp("gone", 1)}, Unknown: []string{"c", "gone"}},
		{Exports: []mcs.Export{exp("b", 3)}},
	}, now)
	want := []status.Member{
		{ClusterID: "a", Exports: 1, Endpoints: 2},
		{ClusterID: "b", HeartbeatAge: 90, Stale: true, Exports: 2, Endpoints: 4, Problems: []string{"x"}},
		{ClusterID: "c", Unknown: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestProbeTargets(t *testing.T) {
	imp := &mcsv1beta1.ServiceImport{Spec: mcsv1beta1.ServiceImportSpec{
		IPs:   []string{"10.96.0.7", "fd00::7"},
		Ports: []mcsv1beta1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 53}, {Port: 80}, {Port: 443}},
	}}
	slice := func(cluster string, protocol corev1.Protocol, ready bool, address string) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mcsv1beta1.LabelSourceCluster: cluster}},
			Ports:      []discoveryv1.EndpointPort{{Protocol: &protocol, Port: new(int32(8080))}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	got := probeTargets(imp, []discoveryv1.EndpointSlice{
		slice("b", corev1.ProtocolTCP, false, "10.0.2.1"), slice("b", corev1.ProtocolTCP, true, "10.0.2.2"), slice("b", corev1.ProtocolTCP, true, "10.0.2.3"),
		slice("a", corev1.ProtocolTCP, true, "fd00:1::1"), slice("c", corev1.ProtocolUDP, true, "10.0.3.1"),
	})
	want := []status.Target{
		{Address: "10.96.0.7:80"}, {Address: "[fd00::7]:80"},
		{Address: "[fd00:1::1]:8080", Cluster: "a"}, {Address: "10.0.2.2:8080", Cluster: "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLeaving(t *testing.T) {
	scheme, err := newScheme(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	remembered := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: identitiesName}, Data: map[string]string{"set.cls1": "uid", "set.old": "uid"},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(remembered).Build()
	s := &statusSource{membership: &membership{identities: &identities{client: c, namespace: installNamespace}}}
	old, current := mcs.Identity{ClusterID: "old", ClusterSetID: "set", UID: "uid"}, mcs.Identity{ClusterID: "cls1", ClusterSetID: "set", UID: "uid"}
	if got := s.leaving(t.Context(), &session{identity: current}); !slices.Equal(got, []mcs.Identity{old}) {
		t.Errorf("a member leaves %v", got)
	}
	if got := s.leaving(t.Context(), nil); !slices.Equal(got, []mcs.Identity{current, old}) {
		t.Errorf("no member leaves %v", got)
	}
}
