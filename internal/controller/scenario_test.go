package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

var keys atomic.Int64

// newKey returns a key in a namespace of its own. Without a controller-manager no namespace can be
// used twice.
func newKey(namespace string) mcs.Key {
	return mcs.Key{Namespace: fmt.Sprintf("%s-%d", namespace, keys.Add(1)), Name: "web"}
}

// export exports key from the cluster with n endpoints from 10.x.0.1 on, and returns their slice.
func (k *cluster) export(t *testing.T, key mcs.Key, x, n int) *discoveryv1.EndpointSlice {
	t.Helper()
	slice := controllertest.EndpointSlice(key, controllertest.Endpoints(x, n))
	k.create(t, controllertest.Service(key))
	k.create(t, slice)
	k.create(t, controllertest.ServiceExport(key))
	return slice
}

// property sets the cluster's ClusterProperty name to value, or deletes it if value is "". One that
// the controller has derived becomes the test's.
func (k *cluster) property(t *testing.T, name, value string) {
	t.Helper()
	p := &aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if value == "" {
		if err := k.admin.Delete(t.Context(), p); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return
	}
	p.Spec.Value = value
	err := k.admin.Create(t.Context(), p)
	switch {
	case apierrors.IsAlreadyExists(err):
		change(t, k, p, func(p *aboutv1beta1.ClusterProperty) { p.Labels, p.Annotations, p.Spec.Value = nil, nil, value })
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.admin.Delete(context.Background(), p); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// imported waits until key is imported with these source clusters and their addresses, "10.1.0.1"
// or "10.1.0.1 not ready", and importComplete finds no error. It returns the ServiceImport.
func (k *cluster) imported(t *testing.T, key mcs.Key, want map[string][]string) *mcsv1beta1.ServiceImport {
	t.Helper()
	var imp mcsv1beta1.ServiceImport
	eventually(t, "import of "+key.String(), func() error {
		// written after the ServiceImport, which is read after them: it is what they were made for
		got := k.addresses(t, key)
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		if err := k.importComplete(t, key, &imp); err != nil {
			return err
		}
		var clusters, wantClusters []string
		for _, c := range imp.Status.Clusters {
			clusters = append(clusters, c.Cluster)
		}
		for c := range want {
			wantClusters = append(wantClusters, c)
		}
		slices.Sort(wantClusters)
		if d := cmp.Diff(wantClusters, clusters); d != "" {
			return fmt.Errorf("status.clusters (-want +got):\n%s", d)
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("addresses by cluster (-want +got):\n%s", d)
		}
		return nil
	})
	return &imp
}

func (k *cluster) importComplete(t *testing.T, key mcs.Key, imp *mcsv1beta1.ServiceImport) error {
	derived := mcs.Key{Namespace: key.Namespace, Name: mcs.DerivedName(key)}
	var svc corev1.Service
	if err := k.get(t, derived, &svc); err != nil {
		return err
	}
	if d := cmp.Diff(svc.Spec.ClusterIPs, imp.Spec.IPs); d != "" {
		return fmt.Errorf("IPs of derived Service and import: %s", d)
	}
	if owners := svc.OwnerReferences; len(owners) != 1 || owners[0].UID != imp.UID {
		return fmt.Errorf("the derived Service is owned by %v", owners)
	}
	if got := imp.Annotations[plan.AnnotationDerivedServiceAWS]; got != derived.Name {
		return fmt.Errorf("annotation is %q", got)
	}
	if !meta.IsStatusConditionTrue(imp.Status.Conditions, string(mcsv1beta1.ServiceImportConditionReady)) {
		return fmt.Errorf("not Ready: %v", imp.Status.Conditions)
	}
	if imp.Status.EndpointSliceObjects != mcsv1beta1.EndpointSliceObjectsPresent {
		return fmt.Errorf("endpointSliceObjects = %q", imp.Status.EndpointSliceObjects)
	}
	return nil
}

// slicesOf returns the imported slices of key.
func (k *cluster) slicesOf(t *testing.T, key mcs.Key) []discoveryv1.EndpointSlice {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	err := k.admin.List(t.Context(), &list, client.InNamespace(key.Namespace), client.MatchingLabels{mcsv1beta1.LabelServiceName: key.Name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (k *cluster) addresses(t *testing.T, key mcs.Key) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, s := range k.slicesOf(t, key) {
		cluster := s.Labels[mcsv1beta1.LabelSourceCluster]
		out[cluster] = append(out[cluster], []string{}...)
		for _, ep := range s.Endpoints {
			address := ep.Addresses[0]
			if !*ep.Conditions.Ready {
				address += " not ready"
			}
			out[cluster] = append(out[cluster], address)
		}
		slices.Sort(out[cluster])
	}
	return out
}

// notImported waits until all objects of key's import are deleted. A Service that holds the IPs may
// exist.
func (k *cluster) notImported(t *testing.T, key mcs.Key) {
	t.Helper()
	eventually(t, "import of "+key.String()+" goes", func() error {
		if err := k.get(t, key, &mcsv1beta1.ServiceImport{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ServiceImport exists: %w", err)
		}
		if err := k.isHeld(t, key); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if n := len(k.slicesOf(t, key)); n > 0 {
			return fmt.Errorf("%d slices are left", n)
		}
		return nil
	})
}

// condition waits until the ServiceExport has the condition "Type=Status Reason" with text in its
// message.
func (k *cluster) condition(t *testing.T, key mcs.Key, want, text string) {
	t.Helper()
	eventually(t, "condition "+want+" on "+key.String(), func() error {
		var exp mcsv1beta1.ServiceExport
		if err := k.get(t, key, &exp); err != nil {
			return err
		}
		var have []string
		for _, c := range exp.Status.Conditions {
			is := fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason)
			if is == want && strings.Contains(c.Message, text) && c.ObservedGeneration == exp.Generation {
				return nil
			}
			have = append(have, is+": "+c.Message)
		}
		return fmt.Errorf("has %s", strings.Join(have, "; "))
	})
}

// event waits for a warning about the object of that name.
func (k *cluster) event(t *testing.T, key mcs.Key, reason string) {
	t.Helper()
	k.eventOf(t, key, corev1.EventTypeWarning, reason)
}

// eventOf waits for an event of a type about the object of that name.
func (k *cluster) eventOf(t *testing.T, key mcs.Key, eventType, reason string) {
	t.Helper()
	eventually(t, "event "+reason+" on "+key.String(), func() error {
		var list eventsv1.EventList
		if err := k.admin.List(t.Context(), &list, client.InNamespace(key.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == key.Name && e.Reason == reason && e.Type == eventType {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
}
