package serve

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/imports"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

func TestCountMembers(t *testing.T) {
	now := time.Unix(100, 0)
	key := mcs.Key{Namespace: "demo", Name: "web"}
	exp := func(cluster string, n int) mcs.Export {
		return mcs.Export{Key: key, Cluster: cluster, Backends: []mcs.Backends{{Endpoints: make([]mcs.Endpoint, n)}}}
	}
	own := exp("a", 2)
	got := countMembers([]registry.Member{
		{ClusterID: "a", LastSeen: now.Add(time.Second)},
		{ClusterID: "b", LastSeen: now.Add(-90 * time.Second), Stale: true, Problems: []string{"x", registry.RefusedProblem("page 7", errors.New("y"))}},
		{ClusterID: "c", LastSeen: now},
	}, "a", []status.Service{
		{Own: &own, Exports: []mcs.Export{exp("b", 1), exp("gone", 1)}, Unknown: []string{"c", "gone"}},
		{Exports: []mcs.Export{exp("b", 3)}},
	}, now)
	want := []status.Member{
		{ClusterID: "a", Exports: 1, Endpoints: 2},
		{ClusterID: "b", HeartbeatAge: 90, Stale: true, Exports: 2, Endpoints: 4, Problems: []string{"x", "refused page 7: y"}, Refused: []string{"refused page 7: y"}},
		{ClusterID: "c", Unknown: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNewMappedService(t *testing.T) {
	now := time.Unix(100, 0)
	unread := &registry.MappedService{Cluster: "cloud-map", Namespace: "apps", Service: "orders", Problems: []string{"x"}}
	read := &registry.MappedService{Cluster: "cloud-map", Namespace: "apps", Service: "orders", Instances: 2, ReadAt: now.Add(-1500 * time.Millisecond)}
	got := []*status.MappedService{newMappedService(nil, now), newMappedService(unread, now), newMappedService(read, now)}
	want := []*status.MappedService{
		nil, {ClusterID: "cloud-map", Namespace: "apps", Service: "orders", Problems: []string{"x"}},
		{ClusterID: "cloud-map", Namespace: "apps", Service: "orders", Instances: 2, ReadAge: new(1.5)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAddServices: an export that is not shown yet has no warnings to report.
func TestAddServices(t *testing.T) {
	key := mcs.Key{Namespace: "demo", Name: "web"}
	pending := status.Publication{Key: key, State: "Pending", Warnings: []string{"it has no records"}}
	warned := status.Publication{Key: key, State: "Exported", Warnings: []string{"it has no records"}}
	var got status.Status
	addServices(&got, []status.Service{
		{Key: key}, {Key: key, Publication: &status.Publication{Key: key, State: "Exported"}}, {Key: key, Publication: &pending}, {Key: key, Publication: &warned},
		{Key: key, Conflicts: []string{"PortConflict"}},
	})
	want := status.Status{
		Publications: []status.Publication{pending}, InstanceWarnings: []status.Publication{warned}, Conflicts: []status.Conflict{{Key: key, Problems: []string{"PortConflict"}}},
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

func TestImportProblems(t *testing.T) {
	now := time.Unix(1_000, 0)
	ours := map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}
	importWith := func(name string, labels map[string]string, condition metav1.Condition, age time.Duration) *mcsv1beta1.ServiceImport {
		condition.LastTransitionTime = metav1.NewTime(now.Add(-age))
		return &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: labels},
			Status:     mcsv1beta1.ServiceImportStatus{Conditions: []metav1.Condition{condition}},
		}
	}
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"}
	pending := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Pending", Message: "no IP"}
	failed := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "IPFamilyNotSupported", Message: "only IPv6"}
	service := func(name string, annotations map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: ours, Annotations: annotations}}
	}
	elected := make(chan struct{})
	var failures []imports.Failure
	s := &statusSource{elected: elected, failures: func() []imports.Failure { return failures }, reader: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(
		importWith("a", ours, ready, time.Hour), importWith("new", ours, pending, time.Second), importWith("slow", ours, pending, time.Minute),
		importWith("ipv6", ours, failed, time.Second), importWith("foreign", nil, failed, time.Hour),
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "no-conditions", Labels: ours}},
		service("derived", nil), service("held", map[string]string{plan.AnnotationHeldSince: "2026-07-01T12:00:00Z"}),
	).Build()}
	if n, held := s.heldImports(t.Context()); len(s.importProblems(t.Context(), now)) != 0 || n != 0 || len(held) != 0 {
		t.Errorf("a standby has problems, or %d held IPs", n)
	}
	close(elected)
	if n, held := s.heldImports(t.Context()); n != 1 || len(held) != 1 || held[0].Since.IsZero() {
		t.Errorf("%d held IPs, %v, want 1 with its time", n, held)
	}
	got := s.importProblems(t.Context(), now)
	want := []status.ImportProblem{
		{Key: mcs.Key{Namespace: "n", Name: "ipv6"}, Reason: "IPFamilyNotSupported", Message: "only IPv6"},
		{Key: mcs.Key{Namespace: "n", Name: "slow"}, Reason: "Pending", Message: "no IP"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}

	// Imports that cannot be written are problems at once, with or without a ServiceImport.
	for _, name := range []string{"absent", "new", "slow"} {
		failures = append(failures, imports.Failure{Key: mcs.Key{Namespace: "n", Name: name}, Message: "refused"})
	}
	want = []status.ImportProblem{
		{Key: mcs.Key{Namespace: "n", Name: "absent"}, Reason: "NotWritten", Message: "refused"},
		want[0],
		{Key: mcs.Key{Namespace: "n", Name: "new"}, Reason: "Pending", Message: "no IP"},
		want[1],
	}
	if diff := cmp.Diff(want, s.importProblems(t.Context(), now)); diff != "" {
		t.Errorf("problems with failures (-want +got):\n%s", diff)
	}
}
