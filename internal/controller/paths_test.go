package controller

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// podNetwork is the network of the pods of cls1 as another cluster reaches it.
type podNetwork struct {
	cut     atomic.Bool
	reached atomic.Int64
}

func (n *podNetwork) dial(_ context.Context, address netip.AddrPort) error {
	if !netip.MustParsePrefix("10.1.0.0/16").Contains(address.Addr()) {
		return nil
	}
	if n.cut.Load() {
		return context.DeadlineExceeded
	}
	n.reached.Add(1)
	return nil
}

// probes are as those of the product, about a hundred times faster.
func (n *podNetwork) probes() paths.Probes {
	return paths.Probes{
		Dial: n.dial,
		Rules: pathhealth.Rules{
			UnreachableAfter: 300 * time.Millisecond, MinFailures: 3, ReachableAfter: 100 * time.Millisecond, UnknownAfter: waitTimeout, MaxPause: waitTimeout,
		},
		Times: paths.Times{
			Tick: 10 * time.Millisecond, Round: 50 * time.Millisecond, Connect: time.Second,
			Endpoints: 500 * time.Millisecond, EndpointsAlone: 50 * time.Millisecond, Unknown: 500 * time.Millisecond,
		},
	}
}

// awaitUnreachable waits until the import has condition Unreachable with that status and reason, ""
// for none, and text in its message.
func (k *cluster) awaitUnreachable(t *testing.T, key mcs.Key, want, text string) {
	t.Helper()
	eventually(t, "condition Unreachable of "+key.String(), func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		got := ""
		c := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionUnreachable)
		if c != nil {
			got = string(c.Status) + " " + c.Reason
		}
		if got != want || c != nil && !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %+v, want %q with %q", c, want, text)
		}
		return nil
	})
}

// When the path to a cluster fails, its endpoints are withdrawn in the cluster that cannot reach
// it, if the service has others, also by a controller that starts then. The last endpoints stay.
// The other cluster is not concerned. All are back when the path is.
func TestPathHealth(t *testing.T) {
	a, b := twoClusters(t)
	hub, network := memory.NewHub(), &podNetwork{}
	shared, alone := newKey("paths"), newKey("paths-alone")
	for _, key := range []mcs.Key{shared, alone} {
		a.namespace(t, key.Namespace)
		b.namespace(t, key.Namespace)
	}
	options := testOptions(flags("cls2"))
	options.Registry.PathHealth = string(mcs.PathHealthWithdraw)
	setup := Setup{Options: options, NewRegistry: hubRegistry(hub), Probes: network.probes()}
	a.run(t, hub, flags("cls1"))
	runB := runSetup(t, b.cfg, setup)
	a.export(t, shared, 1, 2)
	slice := a.export(t, alone, 1, 1)
	change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints = controllertest.Endpoints(1, 3)[2:] })
	b.export(t, shared, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "cls2": {"10.2.0.1"}}
	withdrawn := map[string][]string{"cls1": nil, "cls2": {"10.2.0.1"}}
	last := map[string][]string{"cls1": {"10.1.0.3"}}
	b.imported(t, shared, both)
	b.imported(t, alone, last)
	a.imported(t, shared, both)
	before := network.reached.Load()
	eventually(t, "probes of both endpoints", func() error {
		if n := network.reached.Load() - before; n < 20 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})

	network.cut.Store(true)
	imp := b.imported(t, shared, withdrawn)
	if got := imp.Annotations[plan.AnnotationUnreachableClusters]; got != "cls1" {
		t.Errorf("the import lists %q as unreachable, want cls1", got)
	}
	b.awaitUnreachable(t, shared, "True Withdrawn", "cls1 (endpoints withdrawn)")
	b.event(t, shared, "UnreachableCluster")
	b.awaitUnreachable(t, alone, "True LastEndpointsKept", "cls1 (endpoints kept)")
	b.imported(t, alone, last)
	a.imported(t, shared, both)
	a.awaitUnreachable(t, shared, "", "")

	// A new process has not reached the cluster: it keeps the decision. The marker shows that it
	// has reconciled.
	runB.stopAndWait(t)
	writes := b.writes.in(shared.Namespace)
	kinds, _ := b.writes.byKind(shared.Namespace)
	runSetup(t, b.cfg, setup)
	marker := mcs.Key{Namespace: shared.Namespace + "-marker", Name: "web"}
	b.namespace(t, marker.Namespace)
	b.export(t, marker, 2, 1)
	b.imported(t, marker, map[string][]string{"cls2": {"10.2.0.1"}})
	b.imported(t, shared, withdrawn)
	if now := b.writes.in(shared.Namespace); now != writes {
		after, refused := b.writes.byKind(shared.Namespace)
		t.Errorf("a restart made %d writes without a change: %v after %v, refused %v", now-writes, after, kinds, refused)
	}

	network.cut.Store(false)
	imp = b.imported(t, shared, both)
	b.awaitUnreachable(t, shared, "False NoneUnreachable", "")
	b.eventOf(t, shared, corev1.EventTypeNormal, "UnreachableCluster")
	b.awaitUnreachable(t, alone, "False NoneUnreachable", "")
	if got := imp.Annotations[plan.AnnotationUnreachableClusters]; got != "" {
		t.Errorf("the import still lists unreachable clusters: %q", got)
	}
}
