package controller

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// An API server that, like one before Kubernetes 1.34, knows neither PreferSameZone nor PreferSameNode.
func TestOlderKubernetesGetsPreferClose(t *testing.T) {
	needAssets(t)
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().
		Append("emulated-version", "1.34"). // the last one in which the feature can be turned off
		Append("feature-gates", "PreferSameTrafficDistribution=false")
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ wanted, want string }{
		{"", ""}, {"PreferClose", "PreferClose"}, {"PreferSameZone", "PreferClose"}, {"PreferSameNode", "PreferClose"},
	}
	d := &distributions{client: c}
	for _, tc := range tests {
		got, err := d.usable(t.Context(), "default", tc.wanted)
		if err != nil || got != tc.want {
			t.Errorf("%q became %q (%v), want %q", tc.wanted, got, err, tc.want)
		}
	}

	// This is why slices too must be planned with what is usable.
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "hints"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Hints: &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "n"}},
		}}},
	}
	if err := c.Create(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	if hints := slice.Endpoints[0].Hints; len(hints.ForZones) != 1 || len(hints.ForNodes) != 0 {
		t.Errorf("the API server kept the hints %+v, want those for zones only", hints)
	}
}

// What the exporting Service says travels to the import, its derived Service and the slices, which stay the same objects.
func TestTrafficPolicyTravels(t *testing.T) {
	s := setUp(t, "distribution")
	s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	svc := service(s.key)
	uid := s.b.slicesOf(t, s.key)[0].UID
	const local, everywhere = corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	for _, want := range []trafficPolicy{
		{local, "PreferSameNode", 1, 1}, {everywhere, "PreferSameZone", 1, 0}, {local, "PreferClose", 1, 0}, {everywhere, "", 0, 0},
	} {
		change(t, s.a, svc, func(svc *corev1.Service) {
			svc.Spec.InternalTrafficPolicy, svc.Spec.TrafficDistribution = &want.internal, nil
			if want.distribution != "" {
				svc.Spec.TrafficDistribution = &want.distribution
			}
		})
		eventually(t, "the import says "+want.distribution, func() error { return s.b.hasPolicy(t, s.key, want) })
	}
	if list := s.b.slicesOf(t, s.key); len(list) != 1 || list[0].UID != uid {
		t.Error("the slice was made anew")
	}
}

// trafficPolicy is what a Service says about whom traffic goes to, and how many hints its one endpoint has for that.
type trafficPolicy struct {
	internal           corev1.ServiceInternalTrafficPolicy
	distribution       string
	forZones, forNodes int
}

// hasPolicy wants the import, its derived Service and its slice to follow want.
func (k *cluster) hasPolicy(t *testing.T, key mcs.Key, want trafficPolicy) error {
	var imp mcsv1beta1.ServiceImport
	var svc corev1.Service
	if err := errors.Join(k.get(t, key, &imp), k.get(t, mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}, &svc)); err != nil {
		return err
	}
	var hints discoveryv1.EndpointHints
	if h := k.slicesOf(t, key)[0].Endpoints[0].Hints; h != nil {
		hints = *h
	}
	of := func(internal *corev1.ServiceInternalTrafficPolicy, distribution *string) trafficPolicy {
		return trafficPolicy{ptr.Deref(internal, ""), ptr.Deref(distribution, ""), len(hints.ForZones), len(hints.ForNodes)}
	}
	diff := cmp.Diff(want, of(imp.Spec.InternalTrafficPolicy, imp.Spec.TrafficDistribution), cmp.AllowUnexported(trafficPolicy{})) +
		cmp.Diff(want, of(svc.Spec.InternalTrafficPolicy, svc.Spec.TrafficDistribution), cmp.AllowUnexported(trafficPolicy{}))
	if diff != "" {
		return fmt.Errorf("import and derived Service (-want +got):\n%s", diff)
	}
	return nil
}
