package controller

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// runReporting starts a controller that reports its imports, and reads the reports of the others,
// without delay.
func (k *cluster) runReporting(t *testing.T, hub *memory.Hub, identity config.Identity) *instance {
	t.Helper()
	return runSetup(t, k.cfg, Setup{Options: testOptions(identity), NewRegistry: hubRegistry(hub), ReportInterval: 50 * time.Millisecond})
}

// The condition of a ServiceExport names the clusters that import the service, as they report.
func TestImporters(t *testing.T) {
	a, b := twoClusters(t)
	hub := memory.NewHub()
	key := newKey("importers")
	later := mcs.Key{Namespace: key.Namespace, Name: "later"}
	a.namespace(t, key.Namespace)
	a.runReporting(t, hub, flags("cls1"))
	running := b.runReporting(t, hub, flags("cls2"))
	a.export(t, key, 1, 1)

	t.Log("cls2 has no namespace to import into")
	a.condition(t, key, mcs.ConditionImported+"=False NotImported", "no other cluster has reported that it imports the service")

	t.Log("cls2 imports the service")
	b.namespace(t, key.Namespace)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1"}})
	a.condition(t, key, mcs.ConditionImported+"=True Imported", "imported by cls2")

	t.Log("and exports it, too: a cluster does not report what it imports from itself")
	b.export(t, key, 2, 1)
	b.condition(t, key, mcs.ConditionImported+"=True Imported", "imported by cls1")

	t.Log("the controller of cls2 ends, and reports the same when it is back")
	running.stopAndWait(t)
	a.export(t, later, 3, 1)
	a.condition(t, later, mcs.ConditionImported+"=False NotImported", "")
	b.runReporting(t, hub, flags("cls2"))
	a.condition(t, later, mcs.ConditionImported+"=True Imported", "imported by cls2")
	a.condition(t, key, mcs.ConditionImported+"=True Imported", "imported by cls2")

	t.Log("an export that is not for cls2 any more")
	a.exportTo(t, key, "cls3")
	a.condition(t, key, mcs.ConditionImported+"=False NotImported", "")
	a.condition(t, later, mcs.ConditionImported+"=True Imported", "imported by cls2")
}
