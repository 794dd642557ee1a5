package show

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

var (
	web = mcs.Key{Namespace: "demo", Name: "web"}
	day = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
)

// exported returns an export of demo/web, hours after day, with ready endpoints and one that is not
// ready.
func exported(cluster string, hours, ready int) mcs.Export {
	e := mcs.Export{
		Key: web, Cluster: cluster, Created: day.Add(time.Duration(hours) * time.Hour), Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{{Protocol: corev1.ProtocolTCP, Port: int32(8000 + hours)}},
	}
	endpoints := make([]mcs.Endpoint, ready+1)
	for i := range ready {
		endpoints[i].Ready = true
	}
	e.Backends = []mcs.Backends{{Endpoints: endpoints}}
	return e
}

func own(e mcs.Export, importing ...string) status.Service {
	return status.Service{
		Key: e.Key, Own: &e, Publication: &status.Publication{Key: e.Key, State: "Exported"},
		Importers: &mcs.Importers{Recipients: []string{"cls2", "cls3"}, Importing: importing, NotReporting: []string{"cls3"}},
	}
}

func TestMergeServices(t *testing.T) {
	withStatus := func(id string, change func(*status.Status)) ClusterStatus {
		s := &status.Status{Identity: &mcs.Identity{ClusterID: id, ClusterSetID: "set1"}, Members: []status.Member{{ClusterID: "cls1"}, {ClusterID: "cls2"}}}
		if change != nil {
			change(s)
		}
		return ClusterStatus{Context: id, Status: s}
	}
	read := func(services ...status.Service) ContextServices { return ContextServices{Services: services} }
	summary := func(e mcs.Export, ready int) ExportSummary {
		return ExportSummary{Cluster: e.Cluster, Created: e.Created, Ready: ready, Endpoints: ready + 1}
	}
	first, second := exported("cls1", 1, 2), exported("cls2", 0, 1)
	none := exported("cls1", 1, 0)
	drained := exported("cls1", 1, 2)
	drained.Drain = "30%"
	drainedSummary := summary(drained, 2)
	drainedSummary.Drain = "100%"
	staleSummary := summary(first, 2)
	staleSummary.Stale = true
	failed := own(first)
	failed.Publication = &status.Publication{Key: web, State: "Pending", Problem: "AccessDenied"}
	refusing := status.Service{Key: web, Exports: []mcs.Export{first}, ImportedFrom: []string{"cls1"}, Refused: []policy.Refusal{{Cluster: "cls1", Message: "addresses"}}, Unknown: []string{"cls4"}}

	port := func(p int32) []mcs.Port { return []mcs.Port{{Protocol: corev1.ProtocolTCP, Port: p}} }
	tests := map[string]struct {
		statuses []ClusterStatus
		lists    []ContextServices
		want     []Service
	}{
		"nothing": {want: []Service{}},
		"a controller that does not respond": {
			[]ClusterStatus{{Context: "cls1", Problem: "connection refused"}, withStatus("cls2", nil)}, []ContextServices{{}, {Problem: "connection refused"}}, []Service{},
		},
		"the exporting cluster knows who imports": {
			[]ClusterStatus{withStatus("cls1", nil)}, []ContextServices{read(own(first, "cls2"))},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}, Importing: []string{"cls2"}, NotReporting: []string{"cls3"}},
			}},
		},
		"the reports of the members are in the status of the exporting cluster": {
			[]ClusterStatus{withStatus("cls1", func(s *status.Status) {
				s.Members = []status.Member{
					{ClusterID: "cls1", Version: "v1"}, {ClusterID: "cls2", Version: "v1", ImportReport: mcs.NewImportReport(map[string][]mcs.Key{"cls1": {web}}, nil)},
					{ClusterID: "cls3", Version: "v1", ImportReport: mcs.NewImportReport(nil, nil)}, {ClusterID: "forged"}, {ClusterID: "mapped", UID: "1", Mapped: true},
				}
			})},
			[]ContextServices{read(status.Service{Key: web, Own: &first})},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}, Importing: []string{"cls2"}},
			}},
		},
		"members do not report": {
			[]ClusterStatus{withStatus("cls1", func(s *status.Status) { s.Members[1].Version = "v1" })}, []ContextServices{read(status.Service{Key: web, Own: &first})},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2"}, NotReporting: []string{"cls2"}},
			}},
		},
		"a cluster with a context has read the export and does not import it": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls2", nil), withStatus("cls3", nil)},
			[]ContextServices{
				read(own(first, "cls2")), read(status.Service{Key: web, Exports: []mcs.Export{first}, ImportedFrom: []string{}}),
				read(status.Service{Key: web, Exports: []mcs.Export{first}, ImportedFrom: []string{"cls3"}}),
			},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}},
			}},
		},
		"a controller that does not say from which clusters it imports": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls3", nil)}, []ContextServices{read(own(first)), read(status.Service{Key: web, Exports: []mcs.Export{first}})},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}, NotReporting: []string{"cls3"}},
			}},
		},
		"a cluster with a context imports, even if it does not report": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls3", nil)}, []ContextServices{read(own(first)), read(status.Service{Key: web, Exports: []mcs.Export{first}, ImportedFrom: []string{"cls1"}})},
			[]Service{{
				State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}, Importing: []string{"cls3"}},
			}},
		},
		"only importers have contexts": {
			[]ClusterStatus{withStatus("cls2", nil)}, []ContextServices{read(status.Service{Key: web, Exports: []mcs.Export{first}, Stale: []string{"cls1"}, ImportedFrom: []string{"cls1"}})},
			[]Service{{
				State: "stale", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{staleSummary}, Importers: mcs.Importers{Importing: []string{"cls2"}},
			}},
		},
		"the oldest export has the ports, and conflicts are listed once": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls2", nil)}, []ContextServices{
				read(status.Service{Key: web, Own: &first, Exports: []mcs.Export{second}, Conflicts: []string{"PortConflict"}, ImportedFrom: []string{"cls1", "cls2"}}),
				read(status.Service{Key: web, Own: &second, Exports: []mcs.Export{first}, Conflicts: []string{"PortConflict"}, ImportedFrom: []string{"cls1", "cls2"}}),
			},
			[]Service{{
				State: "conflict", Type: "ClusterSetIP", Ports: port(8000), Exports: []ExportSummary{summary(first, 2), summary(second, 1)},
				Importers: mcs.Importers{Importing: []string{"cls1", "cls2"}}, ImportersKnown: true, Conflicts: []string{"PortConflict"},
			}},
		},
		"the drain of the cluster is larger than that of the export": {
			[]ClusterStatus{withStatus("cls1", func(s *status.Status) { s.Members[0].Drain = "100%" })}, []ContextServices{read(status.Service{Key: web, Own: &drained})},
			[]Service{{State: "drained", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{drainedSummary}, ImportersKnown: true}},
		},
		"no endpoint is ready": {
			[]ClusterStatus{withStatus("cls1", nil)}, []ContextServices{read(status.Service{Key: web, Own: &none})},
			[]Service{{State: "no endpoints", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(none, 0)}, ImportersKnown: true}},
		},
		"exports for other clusters and to namespaces that are not imported": {
			[]ClusterStatus{withStatus("cls2", nil)}, []ContextServices{read(status.Service{Key: web, Ignored: []string{"cls1"}, NotFor: []string{"cls3"}})},
			[]Service{{State: "not imported here", Exports: []ExportSummary{}, Others: []string{"cls1", "cls3"}}},
		},
		"an export that another context has read is no other": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls2", nil)}, []ContextServices{read(status.Service{Key: web, Own: &first}), read(status.Service{Key: web, Ignored: []string{"cls1"}})},
			[]Service{{State: "ok", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true}},
		},
		"problems": {
			[]ClusterStatus{withStatus("cls1", nil), withStatus("cls2", func(s *status.Status) {
				s.Imports = []status.ImportProblem{{Key: web, Reason: "Failed", Message: "no IP"}}
			}), withStatus("cls3", func(s *status.Status) { s.OverBudget = []mcs.Key{web} })},
			[]ContextServices{read(failed), read(refusing), read(status.Service{Key: web, Exports: []mcs.Export{first}, ImportedFrom: []string{}})},
			[]Service{{
				State: "problem", Type: "ClusterSetIP", Ports: port(8001), Exports: []ExportSummary{summary(first, 2)}, ImportersKnown: true,
				Importers: mcs.Importers{Recipients: []string{"cls2", "cls3"}, Importing: []string{"cls2"}},
				Problems: []string{
					"cls1: not exported: AccessDenied", "cls2: the exports of cls4 could not be read yet", "cls2: refused of cls1: addresses",
					"cls2: the import is not ready: Failed: no IP", "cls3: not imported: the namespace has too many imports (--budget-scale)",
				},
			}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for i := range tt.want {
				tt.want[i].ClusterSetID, tt.want[i].Key = "set1", web
			}
			if d := cmp.Diff(tt.want, MergeServices(tt.statuses, tt.lists), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestMergeServices_ClusterSetsAreSeparate(t *testing.T) {
	exp := exported("cls1", 1, 1)
	var statuses []ClusterStatus
	var lists []ContextServices
	for _, set := range []string{"set2", "set1"} {
		statuses = append(statuses, ClusterStatus{Context: set, Status: &status.Status{Identity: &mcs.Identity{ClusterID: "cls1", ClusterSetID: set}}})
		lists = append(lists, ContextServices{Services: []status.Service{{Key: web, Own: &exp}}})
	}
	got := MergeServices(statuses, lists)
	if len(got) != 2 || got[0].ClusterSetID != "set1" || got[1].ClusterSetID != "set2" || len(got[0].Exports) != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestMergeMembersState(t *testing.T) {
	reachable, unreachable := status.Path{ClusterID: "cls2", State: status.PathReachable}, status.Path{ClusterID: "cls2", State: status.PathUnreachable}
	tests := map[string]struct {
		member    status.Member
		path      status.Path
		faultHere bool
		want      string
	}{
		"ok":                    {path: reachable, want: "ok"},
		"unreachable":           {path: unreachable, want: "unreachable"},
		"the fault is here":     {path: unreachable, faultHere: true, want: "ok"},
		"stale and unreachable": {status.Member{Stale: true}, unreachable, false, "stale"},
		"a problem":             {status.Member{Problems: []string{"page 1"}}, reachable, false, "problem"},
		"drained":               {status.Member{Drain: "100%"}, reachable, false, "drained"},
		"drained in part":       {status.Member{Drain: "30%"}, reachable, false, "drained 30%"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.member.ClusterID = "cls2"
			got := MergeMembers([]ClusterStatus{{Context: "cls1", Status: &status.Status{
				Identity: &mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}, Members: []status.Member{tt.member}, Paths: []status.Path{tt.path}, FaultHere: tt.faultHere,
			}}})
			if len(got) != 1 || got[0].State != tt.want || len(got[0].Paths) != 1 || got[0].Paths[0].From != "cls1" {
				t.Errorf("got %+v, want state %s", got, tt.want)
			}
		})
	}
}

func TestImporterCell(t *testing.T) {
	silent := mcs.Importers{NotReporting: []string{"cls3"}}
	both := mcs.Importers{Importing: []string{"cls2"}, ImportingNamespace: []string{"cls3"}}
	for want, got := range map[string]string{
		"none": importerCell(mcs.Importers{}, true), "unknown": importerCell(mcs.Importers{}, false), "not reported": importerCell(silent, true),
		"cls2":                      importerCell(mcs.Importers{Importing: []string{"cls2"}}, true),
		"cls2, others unknown":      importerCell(both, false),
		"cls2, others not reported": importerCell(both, true),
		"over budget in cls4":       importerCell(mcs.Importers{OverBudget: []string{"cls4"}}, true),
		"cls2, over budget in cls4, others unknown": importerCell(mcs.Importers{Importing: []string{"cls2"}, OverBudget: []string{"cls4"}}, false),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
