package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

func derivedOf(key mcs.Key) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: mcs.DerivedName(key)}}
}

func importOf(key mcs.Key) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

func importedSliceOf(key mcs.Key, cluster string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: mcs.DerivedName(key) + "-" + cluster + "-ipv4-0"}}
}

// isRepaired returns an error if the import is not as the controller writes it: marks, clusterset
// IPs, ports and the endpoint of cls1.
func (k *cluster) isRepaired(t *testing.T, key mcs.Key, ips []string) error {
	imp, svc := importOf(key), derivedOf(key)
	if err := errors.Join(k.get(t, key, imp), k.admin.Get(t.Context(), client.ObjectKeyFromObject(svc), svc)); err != nil {
		return err
	}
	var all discoveryv1.EndpointSliceList
	if err := k.admin.List(t.Context(), &all, client.InNamespace(key.Namespace)); err != nil {
		return err
	}
	var marks []string
	for _, obj := range []client.Object{imp, svc} {
		marks = append(marks, obj.GetLabels()[plan.LabelAppManagedBy])
	}
	for i := range all.Items {
		if s := &all.Items[i]; plan.DerivedNameOfSlice(s) == svc.Name {
			marks = append(marks, s.Labels[plan.LabelManagedBy], s.Labels[discoveryv1.LabelServiceName])
		}
	}
	if d := cmp.Diff([]string{plan.ManagedBy, plan.ManagedBy, plan.ManagedBy, svc.Name}, marks); d != "" {
		return fmt.Errorf("marks of ServiceImport, Service and one slice (-want +got):\n%s", d)
	}
	if !slices.Equal(ips, svc.Spec.ClusterIPs) || svc.Spec.Type != corev1.ServiceTypeClusterIP || svc.Spec.Selector != nil || svc.Spec.Ports[0].Port != 80 {
		return fmt.Errorf("the derived Service is %+v, want IPs %v and port 80", svc.Spec, ips)
	}
	if imp.Spec.Ports[0].Port != 80 {
		return fmt.Errorf("the ServiceImport has ports %v", imp.Spec.Ports)
	}
	if d := cmp.Diff(map[string][]string{"cls1": {"10.1.0.1"}}, k.addresses(t, key)); d != "" {
		return fmt.Errorf("addresses by cluster (-want +got):\n%s", d)
	}
	return k.importComplete(t, key, imp)
}

func TestImports_RepairForeignChanges(t *testing.T) {
	const limit = 5 * time.Second
	edit := func(edit func(*corev1.Service)) func(*testing.T, *cluster, mcs.Key) {
		return func(t *testing.T, k *cluster, key mcs.Key) { change(t, k, derivedOf(key), edit) }
	}
	editImport := func(edit func(*mcsv1beta1.ServiceImport)) func(*testing.T, *cluster, mcs.Key) {
		return func(t *testing.T, k *cluster, key mcs.Key) { change(t, k, importOf(key), edit) }
	}
	editSlice := func(edit func(*discoveryv1.EndpointSlice)) func(*testing.T, *cluster, mcs.Key) {
		return func(t *testing.T, k *cluster, key mcs.Key) { change(t, k, importedSliceOf(key, "cls1"), edit) }
	}
	relabel := func(obj client.Object, label string) {
		labels := obj.GetLabels()
		labels[label] = "foo"
		obj.SetLabels(labels)
	}
	tests := map[string]func(*testing.T, *cluster, mcs.Key){
		"derived Service relabelled": edit(func(svc *corev1.Service) { relabel(svc, plan.LabelAppManagedBy) }),
		"derived Service relabelled, then deleted": func(t *testing.T, k *cluster, key mcs.Key) {
			edit(func(svc *corev1.Service) { relabel(svc, plan.LabelAppManagedBy) })(t, k, key)
			k.delete(t, derivedOf(key))
		},
		"derived Service without labels": edit(func(svc *corev1.Service) { svc.Labels = nil }),
		"derived Service without owner":  edit(func(svc *corev1.Service) { svc.OwnerReferences = nil }),
		"derived Service with a selector and another port": edit(func(svc *corev1.Service) {
			svc.Spec.Selector, svc.Spec.Ports[0].Port = map[string]string{"app": "web"}, 81
		}),
		"derived Service of type NodePort": edit(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort }),
		"derived Service of type ExternalName": edit(func(svc *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
		}),
		"derived Service deleted":     func(t *testing.T, k *cluster, key mcs.Key) { k.delete(t, derivedOf(key)) },
		"ServiceImport relabelled":    editImport(func(imp *mcsv1beta1.ServiceImport) { relabel(imp, plan.LabelAppManagedBy) }),
		"ServiceImport without marks": editImport(func(imp *mcsv1beta1.ServiceImport) { imp.Labels, imp.Annotations = nil, nil }),
		"ServiceImport with another port and IP": editImport(func(imp *mcsv1beta1.ServiceImport) {
			imp.Spec.Ports[0].Port, imp.Spec.IPs = 81, []string{"192.0.2.1"}
		}),
		"ServiceImport deleted": func(t *testing.T, k *cluster, key mcs.Key) { k.delete(t, importOf(key)) },
		"ServiceImport and derived Service deleted": func(t *testing.T, k *cluster, key mcs.Key) {
			k.delete(t, importOf(key))
			if err := client.IgnoreNotFound(k.admin.Delete(t.Context(), derivedOf(key))); err != nil {
				t.Fatal(err)
			}
		},
		"slice relabelled":           editSlice(func(s *discoveryv1.EndpointSlice) { relabel(s, plan.LabelManagedBy) }),
		"slice of another cluster":   editSlice(func(s *discoveryv1.EndpointSlice) { relabel(s, mcsv1beta1.LabelSourceCluster) }),
		"slice of another Service":   editSlice(func(s *discoveryv1.EndpointSlice) { relabel(s, discoveryv1.LabelServiceName) }),
		"slice without marks":        editSlice(func(s *discoveryv1.EndpointSlice) { s.Labels, s.OwnerReferences = nil, nil }),
		"slice with another address": editSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.9.9.9"} }),
		"slice deleted":              func(t *testing.T, k *cluster, key mcs.Key) { k.delete(t, importedSliceOf(key, "cls1")) },
	}
	s := setUp(t, "foreign-hands")
	for name, foreignChange := range tests {
		t.Run(name, func(t *testing.T) {
			key := newKey("foreign-hands")
			s.a.namespace(t, key.Namespace)
			s.b.namespace(t, key.Namespace)
			s.a.export(t, key, 1, 1)
			ips := s.b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}}).Spec.IPs
			foreignChange(t, s.b, key)
			begin := time.Now()
			eventually(t, "repair", func() error { return s.b.isRepaired(t, key, ips) })
			if took := time.Since(begin); took > limit {
				t.Errorf("the repair took %s, want at most %s", took, limit)
			}
		})
	}
}

// A Service of another owner with the derived name prevents the import. When it is deleted, as the
// event advises, the import is created.
func TestImports_CreatedWhenForeignServiceIsDeleted(t *testing.T) {
	s := setUp(t, "foreign-service")
	foreign := controllertest.Service(mcs.Key{Namespace: s.key.Namespace, Name: mcs.DerivedName(s.key)})
	s.b.create(t, foreign)
	s.a.export(t, s.key, 1, 1)
	s.b.event(t, mcs.Key{Namespace: s.key.Namespace, Name: foreign.Name}, "NotManaged")
	s.b.delete(t, foreign)
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
}

// The derived Service is deleted while no controller runs, and another Service gets its IP: the
// import gets another one, and says so.
func TestImports_ReportChangedIP(t *testing.T) {
	for name, spec := range map[string]func(ip string) (taken, recorded string){
		"the IP is taken":        func(ip string) (string, string) { return ip, ip },
		"the IP is out of range": func(string) (string, string) { return "", "192.0.2.1" },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t, "changed-ip")
			s.a.export(t, s.key, 1, 1)
			before := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
			taken, recorded := spec(before.Spec.IPs[0])
			s.runB.stopAndWait(t)
			s.b.delete(t, derivedOf(s.key))
			if taken != "" {
				other := controllertest.Service(mcs.Key{Namespace: s.key.Namespace, Name: "other"})
				other.Spec.ClusterIP = taken
				s.b.create(t, other)
			}
			change(t, s.b, importOf(s.key), func(imp *mcsv1beta1.ServiceImport) { imp.Spec.IPs = []string{recorded} })
			s.b.run(t, s.hub, flags("cls2"))
			after := s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
			if after.Spec.IPs[0] == recorded {
				t.Errorf("the import has IP %s, which it cannot have", recorded)
			}
			s.b.event(t, s.key, "ClusterSetIPChanged")
		})
	}
}

// A finalizer of another client keeps a slice that is being deleted. It loses its endpoints, which
// kube-proxy would use: those that stay are in another slice. Then it is left alone. The end of the
// import does the same.
func TestImports_EmptySlicesInDeletion(t *testing.T) {
	s := setUp(t, "slice-in-deletion")
	source := s.a.export(t, s.key, 1, 3)
	three := map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2", "10.1.0.3"}}
	s.b.imported(t, s.key, three)
	first := importedSliceOf(s.key, "cls1")
	s.b.holdInDeletion(t, first)
	s.b.emptied(t, first)
	s.b.imported(t, s.key, three)
	before := first.ResourceVersion

	change(t, s.a, source, func(e *discoveryv1.EndpointSlice) { e.Endpoints = e.Endpoints[:1] })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	if s.b.emptied(t, first); first.ResourceVersion != before {
		t.Errorf("the empty slice was written again: version %s, then %s", before, first.ResourceVersion)
	}

	second := importedSliceOf(s.key, "cls1")
	second.Name = mcs.DerivedName(s.key) + "-cls1-ipv4-1"
	change(t, s.b, second, func(e *discoveryv1.EndpointSlice) { e.Finalizers = []string{"example.com/theirs"} })
	t.Cleanup(func() { s.b.release(t, second) })
	s.a.delete(t, controllertest.ServiceExport(s.key))
	s.b.emptied(t, second)
}

// holdInDeletion deletes the slice, which a finalizer keeps until the test ends.
func (k *cluster) holdInDeletion(t *testing.T, slice *discoveryv1.EndpointSlice) {
	t.Helper()
	change(t, k, slice, func(e *discoveryv1.EndpointSlice) { e.Finalizers = []string{"example.com/theirs"} })
	t.Cleanup(func() { k.release(t, slice) })
	k.delete(t, slice)
}

// release removes the finalizers of the slice.
func (k *cluster) release(t *testing.T, slice *discoveryv1.EndpointSlice) {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := k.admin.Patch(context.Background(), slice.DeepCopy(), patch); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

// emptied waits until the slice is being deleted and has no endpoints, and reads it.
func (k *cluster) emptied(t *testing.T, slice *discoveryv1.EndpointSlice) {
	t.Helper()
	eventually(t, "slice "+slice.Name+" without endpoints", func() error {
		if err := k.admin.Get(t.Context(), client.ObjectKeyFromObject(slice), slice); err != nil {
			return err
		}
		if slice.DeletionTimestamp == nil || len(slice.Endpoints) > 0 {
			return fmt.Errorf("deleted at %v, %d endpoints", slice.DeletionTimestamp, len(slice.Endpoints))
		}
		return nil
	})
}
