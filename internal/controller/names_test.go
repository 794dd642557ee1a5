package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The domains as the objects have them.
const (
	newDomain = "cloud-map-mcs.github.io/"
	oldDomain = "multicluster.k8s.aws/"
)

// longAgo is a time of transition that a controller cannot set.
var longAgo = metav1.Unix(1790000000, 0)

// withOldTypes returns conditions as a controller before release 0.1.0 wrote them.
func withOldTypes(conditions []metav1.Condition) []metav1.Condition {
	out := slices.Clone(conditions)
	for i, c := range out {
		if kind, ok := strings.CutPrefix(c.Type, newDomain); ok {
			out[i].Type, out[i].LastTransitionTime = oldDomain+kind, longAgo
		}
	}
	return out
}

// isRenamed returns an error unless conditions have kind in the new domain, since longAgo, and none
// in the old one.
func isRenamed(conditions []metav1.Condition, kind string) error {
	c := meta.FindStatusCondition(conditions, kind)
	isOld := slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return strings.HasPrefix(c.Type, oldDomain) })
	if c == nil || isOld || !c.LastTransitionTime.Equal(&longAgo) {
		return fmt.Errorf("conditions %v, want %s since %s and none in %s", conditions, kind, longAgo, oldDomain)
	}
	return nil
}

// writesOf returns the accepted writes of the controller in a namespace, without events.
func (k *cluster) writesOf(namespace string) map[string]int {
	accepted, _ := k.writes.byKind(namespace)
	for kind := range accepted {
		if strings.Contains(kind, "events") {
			delete(accepted, kind)
		}
	}
	return accepted
}

// TestUpgrade_OldNames checks that the objects of a controller before release 0.1.0, with names in
// the domain of AWS, are taken over: recipients, the order of the exports, held IPs and the times
// of conditions stay, and a further restart writes nothing.
func TestUpgrade_OldNames(t *testing.T) {
	s := setUp(t, "old-names")
	private, ended := mcs.Key{Namespace: s.key.Namespace, Name: "private"}, mcs.Key{Namespace: s.key.Namespace, Name: "ended"}
	s.a.create(t, controllertest.Service(private))
	s.a.create(t, controllertest.EndpointSlice(private, controllertest.Endpoints(3, 1)))
	restricted := controllertest.ServiceExport(private)
	restricted.Annotations = map[string]string{oldDomain + "export-to": "cls3"}
	s.a.create(t, restricted)
	s.a.export(t, ended, 2, 1)
	held := s.b.imported(t, ended, map[string][]string{"cls1": {"10.2.0.1"}})
	s.a.delete(t, controllertest.ServiceExport(ended))
	s.b.notImported(t, ended)
	eventually(t, "the IP is held", func() error { return s.b.isHeld(t, ended) })
	s.a.export(t, s.key, 1, 1)
	change(t, s.a, controllertest.ServiceExport(s.key), func(e *mcsv1beta1.ServiceExport) {
		e.Spec.ExportedAnnotations = map[string]string{"example.com/note": "not imported"}
	})
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	contested := newKey("old-names-order")
	s.a.namespace(t, contested.Namespace)
	s.b.namespace(t, contested.Namespace)
	s.a.export(t, contested, 5, 1)
	s.b.imported(t, contested, map[string][]string{"cls1": {"10.5.0.1"}})
	hostile := runMember(t, s.hub, "aaa")
	hostile.publish(t, contested, []string{"10.9.0.1"}, madeIn2021, func(e *mcs.Export) { e.Type = mcsv1beta1.Headless })
	precedence := s.b.isOfType(t, contested, mcsv1beta1.ClusterSetIP, "PrecedenceNotAllowed")
	eventually(t, "the order of the exports", precedence)
	s.a.condition(t, private, newDomain+"Recipients=True NoClusters", "")
	s.a.event(t, private, "DeprecatedAnnotation")

	t.Log("as the controller before the release left the objects")
	s.runA.stopAndWait(t)
	s.runB.stopAndWait(t)
	exp, imp, ordered := controllertest.ServiceExport(private), importOf(s.key), importOf(contested)
	change(t, s.b, imp, func(i *mcsv1beta1.ServiceImport) {
		i.Annotations[oldDomain+"not-imported"] = i.Annotations[newDomain+"not-imported"]
		delete(i.Annotations, newDomain+"not-imported")
	})
	if err := errors.Join(s.a.get(t, private, exp), s.b.get(t, contested, ordered)); err != nil {
		t.Fatal(err)
	}
	imp.Status.Conditions = withOldTypes(append(imp.Status.Conditions, mcs.ImportDrained(nil)))
	exp.Status.Conditions = withOldTypes(exp.Status.Conditions)
	ordered.Status.Conditions = withOldTypes(ordered.Status.Conditions)
	if err := errors.Join(s.b.admin.Status().Update(t.Context(), imp), s.b.admin.Status().Update(t.Context(), ordered), s.a.admin.Status().Update(t.Context(), exp)); err != nil {
		t.Fatal(err)
	}
	svc := derivedOf(ended)
	if err := s.b.get(t, mcs.Key{Namespace: svc.Namespace, Name: svc.Name}, svc); err != nil {
		t.Fatal(err)
	}
	// a controller of either version reads these after an upgrade or a downgrade
	if svc.Annotations[oldDomain+"held-since"] == "" || svc.Annotations[oldDomain+"held-for"] != "cls1" || ordered.Annotations[oldDomain+"export-times"] == "" {
		t.Fatalf("the state is in other annotations: %v of the Service, %v of the ServiceImport", svc.Annotations, ordered.Annotations)
	}

	t.Log("the upgrade")
	before := s.b.writesOf(s.key.Namespace)
	runA, runB := s.a.run(t, s.hub, flags("cls1")), s.b.run(t, s.hub, flags("cls2"))
	eventually(t, "the names of the import", func() error {
		if err := s.b.get(t, s.key, imp); err != nil {
			return err
		}
		if imp.Annotations[newDomain+"not-imported"] != "example.com/note" || imp.Annotations[oldDomain+"not-imported"] != "" {
			return fmt.Errorf("annotations %v", imp.Annotations)
		}
		return isRenamed(imp.Status.Conditions, mcs.ConditionDrained)
	})
	eventually(t, "the names of the export", func() error {
		if err := s.a.get(t, private, exp); err != nil {
			return err
		}
		return isRenamed(exp.Status.Conditions, mcs.ConditionRecipients)
	})
	eventually(t, "the order of the exports", precedence)
	s.b.notImported(t, private)
	if err := s.b.isHeld(t, ended); err != nil {
		t.Error(err)
	}
	after := s.b.writesOf(s.key.Namespace)
	for kind, n := range before {
		if after[kind] -= n; after[kind] == 0 {
			delete(after, kind)
		}
	}
	if diff := cmp.Diff(map[string]int{"PUT serviceimports": 1, "PUT serviceimports status": 1}, after); diff != "" {
		t.Errorf("writes of the upgrade (-want +got):\n%s", diff)
	}
	s.a.create(t, controllertest.ServiceExport(ended))
	if got := s.b.imported(t, ended, map[string][]string{"cls1": {"10.2.0.1"}}); !slices.Equal(got.Spec.IPs, held.Spec.IPs) {
		t.Errorf("the held IPs changed from %v to %v", held.Spec.IPs, got.Spec.IPs)
	}
	s.a.condition(t, ended, "Ready=True Exported", "")

	t.Log("a restart")
	runA.stopAndWait(t)
	runB.stopAndWait(t)
	steady := []map[string]int{s.a.writesOf(s.key.Namespace), s.b.writesOf(s.key.Namespace)}
	s.a.run(t, s.hub, flags("cls1"))
	s.b.run(t, s.hub, flags("cls2"))
	// When the marker is imported, the services before it were reconciled.
	marker := mcs.Key{Namespace: newKey("old-names-marker").Namespace, Name: "web"}
	s.a.namespace(t, marker.Namespace)
	s.b.namespace(t, marker.Namespace)
	s.a.export(t, marker, 4, 1)
	s.b.imported(t, marker, map[string][]string{"cls1": {"10.4.0.1"}})
	if diff := cmp.Diff(steady, []map[string]int{s.a.writesOf(s.key.Namespace), s.b.writesOf(s.key.Namespace)}); diff != "" {
		t.Errorf("writes of a restart:\n%s", diff)
	}
}

// TestRecipients_NewNameReplacesOld checks that the old annotation of a namespace restricts an
// export until it is removed, and that the new one of the ServiceExport has precedence.
func TestRecipients_NewNameReplacesOld(t *testing.T) {
	s := setUp(t, "old-recipients")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.key.Namespace}}
	change(t, s.a, ns, func(n *corev1.Namespace) { n.Annotations = map[string]string{oldDomain + "export-to": "cls3"} })
	s.a.export(t, s.key, 1, 1)
	s.a.condition(t, s.key, newDomain+"Recipients=True NoClusters", "")
	change(t, s.a, ns, func(n *corev1.Namespace) { n.Annotations[newDomain+"export-to"] = "cls2" })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
	change(t, s.a, ns, func(n *corev1.Namespace) { delete(n.Annotations, newDomain+"export-to") })
	s.b.notImported(t, s.key)
	change(t, s.a, ns, func(n *corev1.Namespace) { n.Annotations = nil })
	s.b.imported(t, s.key, map[string][]string{"cls1": {"10.1.0.1"}})
}
