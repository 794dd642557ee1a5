package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWithOwnerReference(t *testing.T) {
	owner := metav1.OwnerReference{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: "web", UID: "new"}
	with := func(change func(*metav1.OwnerReference)) metav1.OwnerReference {
		ref := owner
		ref.UID = "old"
		change(&ref)
		return ref
	}
	for _, tt := range []struct {
		name     string
		existing metav1.OwnerReference
		replaced bool
	}{
		{"the same object before a restore", with(func(*metav1.OwnerReference) {}), true},
		{"another version of its API", with(func(r *metav1.OwnerReference) { r.APIVersion = "multicluster.x-k8s.io/v1alpha1" }), true},
		{"another kind", with(func(r *metav1.OwnerReference) { r.Kind = "Service" }), false},
		{"another name", with(func(r *metav1.OwnerReference) { r.Name = "db" }), false},
		{"another API group", with(func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1beta1" }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := []metav1.OwnerReference{tt.existing, owner}
			if tt.replaced {
				want = want[1:]
			}
			if d := cmp.Diff(want, withOwnerReference([]metav1.OwnerReference{tt.existing}, owner)); d != "" {
				t.Errorf("references (-want +got):\n%s", d)
			}
		})
	}
}

func TestIsImmutableChange(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	for _, tt := range []struct {
		name             string
		clusterIP        string
		existing, wanted []corev1.IPFamily
		want             bool
	}{
		{"a headless Service", corev1.ClusterIPNone, []corev1.IPFamily{v4}, []corev1.IPFamily{v4}, true},
		{"the same families", "10.0.0.1", []corev1.IPFamily{v4}, []corev1.IPFamily{v4}, false},
		{"a second family", "10.0.0.1", []corev1.IPFamily{v4}, []corev1.IPFamily{v6, v4}, false},
		{"another first family", "10.0.0.1", []corev1.IPFamily{v4}, []corev1.IPFamily{v6}, true},
		{"no families wanted", "10.0.0.1", []corev1.IPFamily{v4}, nil, false},
		{"no families yet", "", nil, []corev1.IPFamily{v6}, false},
		{"no families at all", "", nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: tt.clusterIP, IPFamilies: tt.existing}}
			if got := isImmutableChange(svc, tt.wanted); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSelectKeys_SkipsMissingKey(t *testing.T) {
	got := selectKeys(map[string]string{"a": "1", "c": "3", "d": "4"}, "a,b,c")
	if d := cmp.Diff(map[string]string{"a": "1", "c": "3"}, got); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
	if got := selectKeys(map[string]string{"a": "1"}, ""); got != nil {
		t.Errorf("an empty list selects %v", got)
	}
}

func TestHasSamePorts(t *testing.T) {
	port := func(name string, protocol corev1.Protocol, number int32) []discoveryv1.EndpointPort {
		return []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}}
	}
	base := port("http", corev1.ProtocolTCP, 8080)
	for name, other := range map[string][]discoveryv1.EndpointPort{
		"another name": port("web", corev1.ProtocolTCP, 8080), "another protocol": port("http", corev1.ProtocolUDP, 8080),
		"another number": port("http", corev1.ProtocolTCP, 8081), "no port": nil,
	} {
		if hasSamePorts(base, other) {
			t.Errorf("%s: the ports are taken for the same", name)
		}
	}
	same := port("http", corev1.ProtocolTCP, 8080)
	app := "h2c"
	same[0].AppProtocol = &app
	if !hasSamePorts(base, same) {
		t.Error("another appProtocol: the ports are taken for different ones")
	}
}
