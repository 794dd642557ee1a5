package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// exportTo sets the recipients of a ServiceExport.
func (k *cluster) exportTo(t *testing.T, key mcs.Key, recipients string) {
	t.Helper()
	change(t, k, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) {
		e.Annotations = map[string]string{mcs.AnnotationExportTo: recipients}
	})
}

// Only the recipients of an export import it. Its own cluster always does, and conflicts are those
// among the exports that reach a cluster.
func TestRecipients(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("recipients")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	a.run(t, hub, flags("cls1"))
	b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 1)
	both := map[string][]string{"cls1": {"10.1.0.1"}}
	b.imported(t, key, both)

	t.Log("for another cluster")
	a.exportTo(t, key, "cls3")
	b.notImported(t, key)
	a.imported(t, key, both)
	a.condition(t, key, mcs.ConditionRecipients+"=True NoClusters", "")
	a.condition(t, key, "Valid=True Valid", "")

	t.Log("for clusters with a property")
	a.exportTo(t, key, `[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`)
	b.property(t, "env.example.com", "prod")
	b.imported(t, key, both)
	a.exportTo(t, key, "cls2,cls3")
	a.condition(t, key, mcs.ConditionRecipients+"=True SomeClusters", "exported to cluster cls2")

	t.Log("an older export that does not reach a cluster decides nothing there")
	b.export(t, key, 2, 1)
	a.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
	change(t, b, controllertest.Service(key), func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	b.condition(t, key, "Conflict=True SessionAffinityConflict", "")
	a.exportTo(t, key, "cls3")
	b.condition(t, key, "Conflict=False NoConflicts", "")
	imp := b.imported(t, key, map[string][]string{"cls2": {"10.2.0.1"}})
	if imp.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		t.Errorf("session affinity %q of an export that does not reach cls2", imp.Spec.SessionAffinity)
	}
	a.condition(t, key, "Conflict=True SessionAffinityConflict", "")

	t.Log("recipients that are not valid are none")
	a.exportTo(t, key, "Cls2")
	a.condition(t, key, "Valid=False InvalidRecipients", "exported to no other cluster")
	a.event(t, key, "InvalidRecipients")
	b.imported(t, key, map[string][]string{"cls2": {"10.2.0.1"}})

	t.Log("the default of the namespace, and all clusters")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}
	change(t, a, ns, func(n *corev1.Namespace) { n.Annotations = map[string]string{mcs.AnnotationExportTo: "cls3"} })
	a.exportTo(t, key, "*")
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
	a.condition(t, key, mcs.ConditionRecipients+"=False AllClusters", "")
	change(t, a, controllertest.ServiceExport(key), func(e *mcsv1beta1.ServiceExport) { e.Annotations = nil })
	b.imported(t, key, map[string][]string{"cls2": {"10.2.0.1"}})
	change(t, a, ns, func(n *corev1.Namespace) { n.Annotations = map[string]string{mcs.AnnotationExportTo: "cls2"} })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}})
}

// While its own ClusterProperties are unknown, a cluster leaves the imports from exports for some
// clusters as they are.
func TestRecipients_UnknownProperties(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("recipients-restart")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	b.property(t, "env.example.com", "prod")
	a.run(t, hub, flags("cls1"))
	running := b.run(t, hub, flags("cls2"))
	a.export(t, key, 1, 1)
	a.exportTo(t, key, `[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`)
	before := b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	running.stopAndWait(t)
	b.run(t, hub, flags("cls2"))
	a.export(t, mcs.Key{Namespace: key.Namespace, Name: "later"}, 3, 1)
	b.imported(t, mcs.Key{Namespace: key.Namespace, Name: "later"}, map[string][]string{"cls1": {"10.3.0.1"}})
	if after := b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}}); after.UID != before.UID {
		t.Error("the import was created again by a restart")
	}
}
