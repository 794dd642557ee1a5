package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// setLabel sets the label of namespace, or removes it if value is "".
func (k *cluster) setLabel(t *testing.T, namespace, key, value string) {
	t.Helper()
	change(t, k, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, func(ns *corev1.Namespace) {
		delete(ns.Labels, key)
		if value != "" {
			ns.Labels[key] = value
		}
	})
}

func TestScope_RestrictsNamespaces(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("restricted")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	options := testOptions(flags("cls1"))
	options.Scope.ExportNamespaces, options.Scope.ImportNamespaces = "export=yes", "import!=no"
	a.runWith(t, hubRegistry(hub), options)
	b.run(t, hub, flags("cls2"))

	// A namespace without the label may not export. The condition tells the user how to change
	// that.
	a.export(t, key, 1, 1)
	a.condition(t, key, "Ready=False Failed", `may not export: this cluster's controller runs with --export-namespaces="export=yes"`)
	a.condition(t, key, "Valid=True Valid", "")
	a.event(t, key, "Failed")
	a.setLabel(t, key.Namespace, "export", "yes")
	a.condition(t, key, "Ready=True Exported", "")
	fromA := map[string][]string{"cls1": {"10.1.0.1"}}
	b.imported(t, key, fromA)
	a.imported(t, key, fromA)

	// Without the label, exports are withdrawn. Exports of other clusters are still imported.
	b.export(t, key, 2, 1)
	both := map[string][]string{"cls1": {"10.1.0.1"}, "cls2": {"10.2.0.1"}}
	a.imported(t, key, both)
	a.setLabel(t, key.Namespace, "export", "")
	a.condition(t, key, "Ready=False Failed", "may not export")
	a.condition(t, key, "Conflict=False NoConflicts", "")
	fromB := map[string][]string{"cls2": {"10.2.0.1"}}
	b.imported(t, key, fromB)
	a.imported(t, key, fromB)

	// In a namespace that may not import, the imports are deleted, in this cluster only.
	a.setLabel(t, key.Namespace, "import", "no")
	a.notImported(t, key)
	b.condition(t, key, "Ready=True Exported", "")
	b.imported(t, key, fromB)
	a.setLabel(t, key.Namespace, "import", "yes")
	a.imported(t, key, fromB)

	// A namespace that may not import may still export.
	a.setLabel(t, key.Namespace, "import", "no")
	a.setLabel(t, key.Namespace, "export", "yes")
	a.condition(t, key, "Ready=True Exported", "")
	b.imported(t, key, both)
	a.notImported(t, key)
}

func TestScope_ExcludesSystemNamespaces(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("ordinary")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)
	system := mcs.Key{Namespace: metav1.NamespaceSystem, Name: "web"}
	t.Cleanup(func() { a.deleteObjects(t, system.Namespace) })
	a.run(t, hub, flags("cls1"))
	options := testOptions(flags("cls2"))
	options.Scope.ExportNamespaces = "kube-system," + key.Namespace
	b.runWith(t, hubRegistry(hub), options)
	t.Cleanup(func() { b.deleteObjects(t, system.Namespace) })
	a.export(t, system, 1, 1)
	a.condition(t, system, "Ready=False Failed", "namespace kube-system may not export")
	b.export(t, system, 2, 1)
	b.condition(t, system, "Ready=True Exported", "")
	b.export(t, key, 2, 1)
	a.imported(t, key, map[string][]string{"cls2": {"10.2.0.1"}})
	a.notImported(t, system)
	b.notImported(t, system)
}
