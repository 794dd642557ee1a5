package controller

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The traffic policy of the exported Service is applied to the import, its derived Service and its
// slices, which are updated in place.
func TestImports_FollowTrafficPolicy(t *testing.T) {
	s := setUp(t, "distribution")
	s.a.export(t, s.key, 1, 1)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	svc := controllertest.Service(s.key)
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
		t.Error("the slice was created again")
	}
}

// trafficPolicy holds the fields of a Service that restrict its endpoints, and the number of
// topology hints of its one endpoint.
type trafficPolicy struct {
	internal           corev1.ServiceInternalTrafficPolicy
	distribution       string
	forZones, forNodes int
}

// hasPolicy returns an error unless the import, its derived Service and its slice have the policy
// want.
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
