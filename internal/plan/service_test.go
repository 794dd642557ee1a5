package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// webService returns the derived Service of merged() in a single-stack IPv4 cluster.
func webService(edits ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: derived,
			Labels: map[string]string{
				"app.kubernetes.io/managed-by": "cloud-map-mcs-controller", "multicluster.kubernetes.io/service-name": "web",
			},
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(80)}},
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			IPFamilies:            []corev1.IPFamily{v4},
			IPFamilyPolicy:        ptr.To(corev1.IPFamilyPolicySingleStack),
		},
	}
	for _, edit := range edits {
		edit(svc)
	}
	return svc
}

// allocated adds the fields that the API server sets on a Service.
func allocated(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.UID, s.ResourceVersion = "uid-2", "7"
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
	}
}

func dualStack(families ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = families, ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	}
}

func TestDerivedServiceWithoutAnOwner(t *testing.T) {
	unowned := webService(func(s *corev1.Service) { s.OwnerReferences = nil })
	for name, c := range map[string]struct{ existing, want *corev1.Service }{
		"new":               {nil, unowned},
		"it has none yet":   {unowned, unowned},
		"its own one stays": {webService(), webService()},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, DerivedService(merged(), nil, c.existing, []corev1.IPFamily{v4})); diff != "" {
				t.Errorf("DerivedService (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDerivedService(t *testing.T) {
	families := func(f ...corev1.IPFamily) func(*mcs.Merged) { return func(m *mcs.Merged) { m.IPFamilies = f } }
	both := []corev1.IPFamily{v4, v6}
	tests := []struct {
		name        string
		merged      mcs.Merged
		existing    *corev1.Service
		supported   []corev1.IPFamily
		want        *corev1.Service
		wantReplace bool
	}{
		{name: "new", merged: merged(), supported: both, want: webService()},
		{name: "nothing to do", merged: merged(), existing: webService(allocated("172.20.0.9")), want: webService(allocated("172.20.0.9"))},
		{
			name: "all merged properties", supported: both,
			merged: merged(func(m *mcs.Merged) {
				m.Ports = append(m.Ports, mcs.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, AppProtocol: "dns", TargetPort: "x"})
				m.SessionAffinity = corev1.ServiceAffinityClientIP
				m.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
				m.InternalTrafficPolicy, m.TrafficDistribution = "Local", "PreferSameZone"
				m.IPFamilies = []corev1.IPFamily{v6, v4}
				m.Labels = map[string]string{"not": "for the Service"}
			}),
			want: webService(dualStack(v6, v4), func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
					Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, AppProtocol: ptr.To("dns"), TargetPort: intstr.FromInt32(53),
				})
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				s.Spec.TrafficDistribution = ptr.To("PreferSameZone")
			}),
		},
		{
			name: "IPs and the changes of others stay, other changes of managed fields are reverted", merged: merged(),
			existing: webService(allocated("172.20.0.9"), func(s *corev1.Service) {
				s.Labels["theirs"], s.Annotations = "1", map[string]string{"theirs": "1"}
				s.OwnerReferences[0].UID, s.OwnerReferences[0].APIVersion = "of a previous object", "multicluster.x-k8s.io/v1alpha1"
				s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{Kind: "Other"})
				s.Spec.Selector = map[string]string{"app": "web"}
				s.Spec.Ports[0].Port, s.Spec.TrafficDistribution = 81, ptr.To("PreferClose")
			}),
			want: webService(allocated("172.20.0.9"), func(s *corev1.Service) {
				s.Labels["theirs"], s.Annotations = "1", map[string]string{"theirs": "1"}
				s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{Kind: "Other"})
			}),
		},
		{name: "a headless service has no derived Service", merged: merged(func(m *mcs.Merged) { m.Type = mcsv1beta1.Headless }), existing: webService()},
		{name: "a service without ports has no derived Service", merged: merged(func(m *mcs.Merged) { m.Ports = nil })},
		{name: "no family in common", merged: merged(families(v6)), supported: []corev1.IPFamily{v4}},
		{name: "only supported families", merged: merged(families(v6, v4)), supported: []corev1.IPFamily{v4}, want: webService()},
		{name: "supported families unknown", merged: merged(families(v6, v4)), want: webService(dualStack(v6, v4))},
		{name: "no families in the exports: those of the cluster", merged: merged(families()), supported: both, want: webService(dualStack(v4, v6))},
		{
			name: "no known families: Kubernetes chooses", merged: merged(families()),
			want: webService(func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil }),
		},
		{
			name: "a second family is added", merged: merged(families(v6, v4)), supported: both,
			existing: webService(allocated("172.20.0.9")),
			want:     webService(dualStack(v4, v6), allocated("172.20.0.9")),
		},
		{
			name: "the second family is removed", merged: merged(families(v4)), supported: both,
			existing: webService(dualStack(v4, v6), allocated("172.20.0.9", "fd00::9")),
			want:     webService(allocated("172.20.0.9")),
		},
		{
			name: "another order does not move the IPs", merged: merged(families(v6, v4)), supported: both,
			existing: webService(dualStack(v4, v6), allocated("172.20.0.9", "fd00::9")),
			want:     webService(dualStack(v4, v6), allocated("172.20.0.9", "fd00::9")),
		},
		{
			name: "the first family is removed", merged: merged(families(v6)), supported: both,
			existing:    webService(dualStack(v4, v6), allocated("172.20.0.9", "fd00::9")),
			want:        webService(func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{v6} }),
			wantReplace: true,
		},
		{
			name: "the existing Service is headless", merged: merged(),
			existing:    webService(allocated("None")),
			want:        webService(),
			wantReplace: true,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.existing.DeepCopy()
			got := DerivedService(tc.merged, &owner, tc.existing, tc.supported)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("DerivedService (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.existing); diff != "" {
				t.Errorf("the existing one was changed (-before +after):\n%s", diff)
			}
			if replace := MustReplace(tc.existing, got); replace != tc.wantReplace {
				t.Errorf("MustReplace = %t, want %t", replace, tc.wantReplace)
			}
			if got == nil {
				return
			}
			if again := DerivedService(tc.merged, &owner, got, tc.supported); !apiequality.Semantic.DeepEqual(got, again) {
				t.Errorf("the next pass wants something else:\n%s", cmp.Diff(got, again))
			}
		})
	}
}
