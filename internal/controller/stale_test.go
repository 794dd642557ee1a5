package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// awaitStale waits until the import has condition Stale with that status and reason, "" for none,
// and text in its message.
func (k *cluster) awaitStale(t *testing.T, key mcs.Key, want, text string) *metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	eventually(t, "condition Stale of "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		got := ""
		if c = meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionStale); c != nil {
			got = string(c.Status) + " " + c.Reason
		}
		if got != want || c != nil && !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %+v, want %q with %q", c, want, text)
		}
		return nil
	})
	return c
}

// When the controller of a cluster dies, its endpoints are withdrawn if the service has others,
// also by a controller that has just started. The last endpoints stay. All are imported again when
// the controller is back.
func TestStaleCluster(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	hub.SetStaleAfter(2 * time.Second)
	shared, alone := newKey("stale"), newKey("stale-alone")
	for _, key := range []mcs.Key{shared, alone} {
		a.namespace(t, key.Namespace)
		b.namespace(t, key.Namespace)
	}
	runA, runB := a.run(t, hub, flags("cls1")), b.run(t, hub, flags("cls2"))
	a.export(t, shared, 1, 2)
	a.export(t, alone, 1, 1)
	slice := b.export(t, shared, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}}
	withdrawn := map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}}
	last := map[string][]string{"cls1": {"10.1.0.1"}}
	before := b.imported(t, shared, both)
	b.imported(t, alone, last)

	runA.stopAndWait(t)
	after := b.imported(t, shared, withdrawn)
	if !slices.Equal(before.Spec.IPs, after.Spec.IPs) || len(after.Spec.Ports) != len(before.Spec.Ports) {
		t.Errorf("the import changed from %+v to %+v", before.Spec, after.Spec)
	}
	b.awaitStale(t, shared, "True Withdrawn", "cluster cls1 (endpoints withdrawn)")
	b.event(t, shared, "StaleCluster")
	b.awaitStale(t, alone, "True LastEndpointsKept", "cluster cls1 (endpoints kept)")
	b.imported(t, alone, last)

	// A controller that has just started does not know which clusters are stale. Until it does, it
	// imports nothing again. The marker shows that it has reconciled.
	marker := mcs.Key{Namespace: shared.Namespace + "-marker", Name: "web"}
	b.namespace(t, marker.Namespace)
	moving := b.export(t, marker, 2, 1)
	b.imported(t, marker, map[string][]string{"cls2": {"10.2.0.1"}})
	writes := b.writes.in(shared.Namespace)
	runB.stopAndWait(t)
	b.run(t, hub, flags("cls2"))
	for n := 2; n < 5; n++ {
		change(t, b, moving, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(2, n) })
		eventually(t, "the marker", func() error {
			if got := len(b.addresses(t, marker)["cls2"]); got != n {
				return fmt.Errorf("%d endpoints, want %d", got, n)
			}
			return nil
		})
	}
	if now := b.writes.in(shared.Namespace); now != writes {
		t.Errorf("a restart made %d writes without a change", now-writes)
	}

	// Without other endpoints, the withdrawn ones are imported again.
	change(t, b, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(false) })
	b.imported(t, shared, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1 not ready"}})
	b.awaitStale(t, shared, "True LastEndpointsKept", "cls1")
	change(t, b, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(true) })
	b.imported(t, shared, withdrawn)

	a.run(t, hub, flags("cls1"))
	imp := b.imported(t, shared, both)
	b.awaitStale(t, shared, "False NoneStale", "")
	b.awaitStale(t, alone, "False NoneStale", "")
	if got := imp.Annotations[plan.AnnotationStaleClusters]; got != "" {
		t.Errorf("the import still lists stale clusters: %q", got)
	}
	if before.Spec.IPs[0] != imp.Spec.IPs[0] {
		t.Errorf("the clusterset IP changed from %s to %s", before.Spec.IPs[0], imp.Spec.IPs[0])
	}
	a.awaitStale(t, shared, "", "")
}

func TestStaleClusterPolicies(t *testing.T) {
	a, b := twoClusters(t)
	tests := map[mcs.StalePolicy]struct {
		want   map[string][]string
		reason string
	}{
		mcs.StaleKeep:        {map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}}, "True Kept"},
		mcs.StaleWithdrawAll: {map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}}, "True Withdrawn"},
	}
	for policy, tt := range tests {
		t.Run(string(policy), func(t *testing.T) {
			hub := memory.NewHub()
			hub.SetStaleAfter(time.Second)
			shared, alone := newKey("stale"), newKey("stale-alone")
			for _, key := range []mcs.Key{shared, alone} {
				a.namespace(t, key.Namespace)
				b.namespace(t, key.Namespace)
			}
			options := testOptions(flags("cls2"))
			options.Registry = config.Default().Registry
			options.Registry.StalePolicy = string(policy)
			runA := a.run(t, hub, flags("cls1"))
			b.runWith(t, hubRegistry(hub), options)
			a.export(t, shared, 1, 1)
			b.export(t, shared, 2, 1)
			a.export(t, alone, 1, 1)
			b.imported(t, shared, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
			b.imported(t, alone, map[string][]string{"cls1": {"10.1.0.1"}})
			runA.stopAndWait(t)
			b.awaitStale(t, shared, tt.reason, "for more than 2m0s from cluster cls1")
			b.imported(t, shared, tt.want)
			b.awaitStale(t, alone, tt.reason, "cls1")
			b.imported(t, alone, map[string][]string{"cls1": tt.want["cls1"]})
		})
	}
}
