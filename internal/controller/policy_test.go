package controller

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// member is a member of the clusterset that publishes what the test says, as a hostile one would.
type member struct {
	id  string
	reg registry.Registry
}

// runMember joins a cluster to the clusterset until the test ends.
func runMember(t *testing.T, hub *memory.Hub, id string) member {
	t.Helper()
	m := member{id: id, reg: hub.Registry(mcs.Identity{ClusterID: id, ClusterSetID: "set", UID: id})}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.reg.Run(ctx, func(mcs.Key) {})
	}()
	t.Cleanup(func() { stop(); <-ended })
	return m
}

// publish publishes an export of key with the given endpoints, which edits change.
func (m member) publish(t *testing.T, key mcs.Key, addresses []string, edits ...func(*mcs.Export)) {
	t.Helper()
	exp := mcs.Export{
		Key: key, Cluster: m.id, Created: time.Now(), Changed: time.Now(), Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{{Name: "http", Port: 80}}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Backends: []mcs.Backends{{Ports: []mcs.BackendPort{{Name: "http", Port: 8080}}}},
	}
	for _, a := range addresses {
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	for _, edit := range edits {
		edit(&exp)
	}
	if err := m.reg.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
}

// isOfType returns a check that the import of key has a type and the condition Refused with a
// reason, "" for none or False.
func (k *cluster) isOfType(t *testing.T, key mcs.Key, want mcsv1beta1.ServiceImportType, reason string) func() error {
	return func() error {
		var imp mcsv1beta1.ServiceImport
		if err := k.get(t, key, &imp); err != nil {
			return err
		}
		got := ""
		c := meta.FindStatusCondition(imp.Status.Conditions, policy.ConditionRefused)
		if c != nil && c.Status == metav1.ConditionTrue {
			got = c.Reason
		}
		if imp.Spec.Type != want || got != reason {
			return fmt.Errorf("type %s, condition %+v, want type %s and reason %q", imp.Spec.Type, c, want, reason)
		}
		return nil
	}
}

func madeIn2021(e *mcs.Export) { e.Created = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC) }

// An export that claims to be older than all others, or has no time, changes neither type nor ports
// of an import that exists. A restart does not help it; an administrator can.
func TestImport_KeepsPrecedenceOfEstablishedExports(t *testing.T) {
	s := setUp(t, "precedence")
	s.a.export(t, s.key, 1, 1)
	for _, k := range []*cluster{s.a, s.b} { // each cluster decides by its own import
		k.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	}
	hostile := runMember(t, s.hub, "aaa")
	headless := func(e *mcs.Export) { e.Type, e.Ports[0].Port = mcsv1beta1.Headless, 81 }

	hostile.publish(t, s.key, []string{"10.9.0.1"}, headless, func(e *mcs.Export) { e.Created = time.Time{} })
	s.a.condition(t, s.key, "Conflict=True PortConflict,TypeConflict", "type: using ClusterSetIP from cluster cls1")
	eventually(t, "type with an export without a time", s.b.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, ""))

	hostile.publish(t, s.key, []string{"10.9.0.1"}, headless, madeIn2021)
	s.a.condition(t, s.key, "Conflict=True PortConflict,TypeConflict,PrecedenceConflict", "cluster aaa claims to be older than the others but appeared after them, so it does not change type, ports")
	for _, k := range []*cluster{s.a, s.b} {
		eventually(t, "type with an older export", k.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, "PrecedenceNotAllowed"))
	}
	s.runB.stopAndWait(t)
	s.runB = s.b.run(t, s.hub, flags("cls2"))
	s.a.setLabel(t, s.key.Namespace, "some", "label")
	eventually(t, "type after a restart", s.b.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, "PrecedenceNotAllowed"))
	var imp mcsv1beta1.ServiceImport
	if err := s.b.get(t, s.key, &imp); err != nil {
		t.Fatal(err)
	}
	imp.Namespace, imp.Name = s.key.Namespace, s.key.Name
	change(t, s.b, &imp, func(i *mcsv1beta1.ServiceImport) { delete(i.Annotations, plan.AnnotationExportTimes) })
	eventually(t, "type after an administrator accepted the claim", s.b.isOfType(t, s.key, mcsv1beta1.Headless, ""))
	eventually(t, "type in another cluster", s.a.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, "PrecedenceNotAllowed"))
}

// writePolicy writes a policy as the kubelet does: by renaming.
func writePolicy(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// The policy limits what clusters export here, follows the file, and stays in use while the file is
// not valid.
func TestImportPolicy_LimitsClusters(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key, other := newKey("policy-shop"), newKey("policy-billing")
	for _, namespace := range []string{key.Namespace, other.Namespace} {
		a.namespace(t, namespace)
		b.namespace(t, namespace)
	}
	path := filepath.Join(t.TempDir(), "policy.yaml")
	text := "default: deny\nclusters: {cls1: {}, cls3: {namespaces: [" + key.Namespace + "], podNetworks: [10.3.0.0/16]}}"
	writePolicy(t, path, text)
	options := testOptions(flags("cls2"))
	options.Scope.ImportPolicy = path
	b.runWith(t, hubRegistry(hub), options)
	a.run(t, hub, flags("cls1"))
	hostile, unlisted := runMember(t, hub, "cls3"), runMember(t, hub, "cls4")

	a.export(t, key, 1, 1)
	a.export(t, other, 1, 1)
	hostile.publish(t, key, []string{"10.3.0.1", "10.1.0.9"})
	hostile.publish(t, other, []string{"10.3.0.2"})
	unlisted.publish(t, key, []string{"10.4.0.1"})
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls3": {"10.3.0.1"}})
	b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}})
	eventually(t, "refusals", b.isOfType(t, key, mcsv1beta1.ClusterSetIP, "AddressNotAllowed,NamespaceNotAllowed"))
	eventually(t, "refusals", b.isOfType(t, other, mcsv1beta1.ClusterSetIP, "NamespaceNotAllowed"))
	b.event(t, key, "ExportRefused")
	// The other cluster has no policy.
	a.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}, "cls3": {"10.3.0.2"}})

	writePolicy(t, path, "default: everything")
	writePolicy(t, path, "default: allow")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls3": {"10.1.0.9", "10.3.0.1"}, "cls4": {"10.4.0.1"}})
	b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}, "cls3": {"10.3.0.2"}})
	eventually(t, "refusals", b.isOfType(t, key, mcsv1beta1.ClusterSetIP, ""))
	writePolicy(t, path, text)
	b.imported(t, other, map[string][]string{"cls1": {"10.1.0.1"}})
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls3": {"10.3.0.1"}})
}

// Without a valid policy nothing is imported, and imports stay as they are.
func TestImportPolicy_NotValidAtStart(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("policy-invalid")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy(t, path, "default: maybe")
	options := testOptions(flags("cls2"))
	options.Scope.ImportPolicy = path
	b.runWith(t, hubRegistry(hub), options)
	a.run(t, hub, flags("cls1"))
	a.export(t, key, 1, 1)
	b.export(t, key, 2, 1)
	// cls2 exports meanwhile
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
	b.notImported(t, key)
	writePolicy(t, path, "default: allow")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
}

// No cluster redirects clients to nodes, API servers and Services of the importing cluster.
func TestImport_RefusesAddressesOfThisCluster(t *testing.T) {
	_, b := twoClusters(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "policy-node"}}
	b.create(t, node)
	t.Cleanup(func() { _ = b.admin.Delete(context.Background(), node) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.77.1"}, {Type: corev1.NodeHostName, Address: "policy-node"}}
	if err := b.admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	var kubernetes corev1.Service
	if err := b.get(t, mcs.Key{Namespace: "default", Name: "kubernetes"}, &kubernetes); err != nil {
		t.Fatal(err)
	}
	s := setUp(t, "addresses")
	hostile := runMember(t, s.hub, "cls3")
	hostile.publish(t, s.key, []string{"10.3.0.1", "192.168.77.1", kubernetes.Spec.ClusterIP})
	s.b.imported(t, s.key, map[string][]string{"cls3": {"10.3.0.1"}})
	eventually(t, "refusals", s.b.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, "AddressOfThisCluster"))
	var imp mcsv1beta1.ServiceImport
	if err := s.b.get(t, s.key, &imp); err != nil {
		t.Fatal(err)
	}
	message := meta.FindStatusCondition(imp.Status.Conditions, policy.ConditionRefused).Message
	for _, want := range []string{"2 endpoints of cluster cls3 refused", kubernetes.Spec.ClusterIP + " is in this cluster's Service network", "192.168.77.1 is the address of node policy-node"} {
		if !strings.Contains(message, want) {
			t.Errorf("condition %q lacks %q", message, want)
		}
	}
}

// An address and port belong to the oldest export that has them, in its own cluster and in others,
// as long as it has them. Both sides report it.
func TestImport_AddressBelongsToOldestExport(t *testing.T) {
	s := setUp(t, "shared")
	slice := s.a.export(t, s.key, 1, 2)
	hostile, created := runMember(t, s.hub, "aaa"), time.Now().Add(time.Hour) // younger
	hostile.publish(t, s.key, []string{"10.1.0.1", "10.1.0.2", "10.9.0.1"}, func(e *mcs.Export) {
		e.Created = created
		for i := range 2 {
			e.Backends[0].Endpoints[i].Ready, e.Backends[0].Endpoints[i].Serving = false, false
		}
	})
	for _, k := range []*cluster{s.a, s.b} {
		k.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}, "aaa": {"10.9.0.1"}})
		eventually(t, "refusals", k.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, "AddressOfAnotherCluster"))
	}
	s.a.condition(t, s.key, "Conflict=True AddressConflict", "cluster aaa exports endpoints of cluster cls1")
	// The pod ends, and the other cluster has its address.
	change(t, s.a, slice, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] })
	for _, k := range []*cluster{s.a, s.b} {
		k.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}, "aaa": {"10.1.0.2 not ready", "10.9.0.1"}})
	}
	hostile.publish(t, s.key, []string{"10.9.0.1"}, func(e *mcs.Export) { e.Created = created })
	s.a.condition(t, s.key, "Conflict=False NoConflicts", "")
	for _, k := range []*cluster{s.a, s.b} {
		eventually(t, "no refusals", k.isOfType(t, s.key, mcsv1beta1.ClusterSetIP, ""))
	}
}

// Namespace default exists in every cluster, so it is imported into only where it is listed.
func TestScope_DefaultNamespaceMustBeListed(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := mcs.Key{Namespace: metav1.NamespaceDefault, Name: newKey("default").Namespace}
	t.Cleanup(func() {
		for _, k := range []*cluster{a, b} {
			_ = k.admin.Delete(context.Background(), &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
			_ = k.admin.Delete(context.Background(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
		}
	})
	a.run(t, hub, flags("cls1"))
	options := testOptions(flags("cls2"))
	options.Scope.ImportNamespaces = "default"
	b.runWith(t, hubRegistry(hub), options)
	a.export(t, key, 1, 1)
	a.condition(t, key, "Ready=True Exported", "")
	a.event(t, key, "PartlyExported")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.notImported(t, key)
}

// A tenant who writes EndpointSlices exports what Kubernetes' own controller made, and nothing
// else, with --export-slices=controller.
func TestExport_ControllerSlicesOnly(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("handmade")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	options := testOptions(flags("cls1"))
	options.Scope.ExportSlices = config.ExportControllerSlices
	a.runWith(t, hubRegistry(hub), options)
	b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 1) // the test writes the slice
	a.condition(t, key, "Ready=True Exported", "")
	a.event(t, key, "PartlyExported")
	b.imported(t, key, map[string][]string{"cls1": nil})
}
