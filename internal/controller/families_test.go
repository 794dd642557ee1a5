package controller

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestIPFamilyNotSupported imports an IPv6 service into an IPv4 cluster, until the service has both
// families.
func TestIPFamilyNotSupported(t *testing.T) {
	s := setUp(t, "families")
	other := s.hub.Registry(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set", UID: "3"})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = other.Run(ctx, func(mcs.Key) {})
		close(ended)
	}()
	defer func() { stop(); <-ended }()
	publish := func(families ...corev1.IPFamily) {
		t.Helper()
		err := other.Publish(ctx, mcs.Export{
			Key: s.key, Cluster: "cls3", Created: time.Now(), Changed: time.Now(), Type: mcsv1beta1.ClusterSetIP,
			Ports: []mcs.Port{{Name: "http", Port: 80}}, IPFamilies: families,
			Backends: []mcs.Backends{{
				Ports:     []mcs.BackendPort{{Name: "http", Port: 80}},
				Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("2001:db8::1"), Ready: true, Serving: true}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ready := func(reason string, ips int) func() error {
		return func() error {
			var imp mcsv1beta1.ServiceImport
			if err := s.b.get(t, s.key, &imp); err != nil {
				return err
			}
			c := meta.FindStatusCondition(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady))
			if c == nil || c.Reason != reason || len(imp.Spec.IPs) != ips {
				return fmt.Errorf("condition %+v, IPs %v, want reason %s and %d IPs", c, imp.Spec.IPs, reason, ips)
			}
			return nil
		}
	}
	derived := mcs.Key{Namespace: s.key.Namespace, Name: mcs.DerivedName(s.key)}

	publish(corev1.IPv6Protocol)
	eventually(t, "no family in common", ready(string(mcsv1beta1.ServiceImportReasonIPFamilyNotSupported), 0))
	if err := s.b.get(t, derived, &corev1.Service{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading the derived Service: %v, want none", err)
	}
	publish(corev1.IPv6Protocol, corev1.IPv4Protocol)
	eventually(t, "one family in common", ready(string(mcsv1beta1.ServiceImportReasonReady), 1))
	publish(corev1.IPv6Protocol)
	eventually(t, "none in common again", ready(string(mcsv1beta1.ServiceImportReasonIPFamilyNotSupported), 0))
	if err := s.b.isHeld(t, s.key); err != nil {
		t.Error(err)
	}
}
