package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// gatherHealthy returns the facts of demo/web, which cls1 exports and cls2 imports, without a
// failure.
func gatherHealthy(t *testing.T) (exporter, importer *ServiceFacts, all []ServiceFacts) {
	t.Helper()
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	connections := clusters.Start(t)
	s := &session.Session{ControllerNamespace: session.DefaultNamespace, Version: clitest.Version}
	for _, name := range []string{"cls1", "cls2"} {
		all = append(all, gatherService(t.Context(), s, connections[name], clitest.DemoWeb, true))
	}
	return &all[0], &all[1], all
}

// setCondition replaces a condition.
func setCondition(list []metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	for i := range list {
		if list[i].Type == kind {
			list[i] = metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
		}
	}
}

func refusalsOf(cluster string) []policy.Refusal {
	return []policy.Refusal{{Cluster: cluster, Reason: policy.ReasonNamespace, Message: "not allowed"}}
}

func TestDiagnose(t *testing.T) {
	type facts = *ServiceFacts
	named := func(service string) map[string]string { return map[string]string{mcs.AnnotationService: service} }
	tests := []struct {
		name        string
		mutate      func(exporter, importer facts)
		wantFailure string // "context: step", "" if no step fails
		wantText    string // in the detail or the remedy
	}{
		{name: "no failure", mutate: func(facts, facts) {}},
		{name: "API server does not respond", mutate: func(e, _ facts) { *e = ServiceFacts{Context: "cls1", problem: "connection refused"} },
			wantFailure: "cls1: API server", wantText: "kubectl --context cls1 version"},
		{name: "no cluster exports the service", mutate: func(e, i facts) { e.export, i.Registry.Exports, e.Registry.Own = nil, nil, nil },
			wantFailure: "cls1: ServiceExport", wantText: "run kubectl mcs export web -n demo --context cls1"},
		{name: "Service does not exist", mutate: func(e, _ facts) { e.service = nil }, wantFailure: "cls1: Service", wantText: "unexport"},
		{name: "Service of another name", mutate: func(e, _ facts) { e.export.Annotations, e.service.Name = named("web-green"), "web-green" }},
		{name: "Service of another name does not exist", mutate: func(e, _ facts) { e.export.Annotations, e.service = named("web-green"), nil },
			wantFailure: "cls1: Service", wantText: "Service demo/web-green does not exist, which annotation cloud-map-mcs.github.io/service of the ServiceExport names"},
		{name: "annotation that is not the name of a Service", mutate: func(e, _ facts) { e.export.Annotations, e.service, e.slices = named("Web"), nil, nil },
			wantFailure: "cls1: Service", wantText: "kubectl mcs export SERVICE --name web -n demo --context cls1"},
		{name: "the Service is exported under another name", mutate: func(e, i facts) {
			e.export, i.Registry.Exports, e.Registry.Own, e.otherNames = nil, nil, nil, []string{"shop", "store"}
		}, wantFailure: "cls1: ServiceExport", wantText: "Service web is exported as shop, store\nrun kubectl mcs diagnose shop -n demo --context cls1"},
		{name: "Service of type ExternalName", mutate: func(e, _ facts) { e.service.Spec.Type = corev1.ServiceTypeExternalName }, wantFailure: "cls1: Service", wantText: "ExternalName"},
		{name: "no endpoints", mutate: func(e, _ facts) { e.slices = nil }, wantFailure: "cls1: EndpointSlices", wantText: "0 of 0"},
		{name: "no ready endpoint", mutate: func(e, _ facts) {
			e.slices[0].Endpoints[0].Conditions.Ready, e.slices[0].Endpoints[1].Conditions.Ready = new(bool), new(bool)
		}, wantFailure: "cls1: EndpointSlices", wantText: "0 of 2"},
		{name: "permission denied", mutate: func(e, _ facts) { e.permissions.missing = []string{"list serviceexports"} },
			wantFailure: "cls1: permissions", wantText: "not have permission to list serviceexports"},
		{name: "no controller pod is ready", mutate: func(e, _ facts) { e.controller, e.Registry, e.controllerProblem = nil, nil, "no pod is ready" },
			wantFailure: "cls1: controller", wantText: "no pod is ready"},
		{name: "cluster is not a member", mutate: func(_, i facts) { i.controller = &status.Status{Leader: true, Problem: "no ID"} }, wantFailure: "cls2: controller", wantText: "kubectl mcs join --context cls2"},
		{name: "only a standby responds", mutate: func(_, i facts) { i.controller = &status.Status{Problem: "this replica stands by"} },
			wantFailure: "cls2: controller", wantText: "no replica is the leader"},
		{name: "registry not read", mutate: func(_, i facts) { i.controller.Synced, i.controller.ReadProblem = false, "AccessDenied" },
			wantFailure: "cls2: controller", wantText: "AccessDenied"},
		{name: "no conditions", mutate: func(e, _ facts) { e.export.Status.Conditions = nil }, wantFailure: "cls1: ServiceExport", wantText: "no controller has set its conditions"},
		{name: "exported without the selectors that are not valid", mutate: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Valid", metav1.ConditionFalse, "InvalidClusterSelector", "selector 1")
		}},
		{name: "export not valid", mutate: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Valid", metav1.ConditionFalse, "NoService", "none")
			setCondition(e.export.Status.Conditions, "Ready", metav1.ConditionFalse, "Failed", "none")
		}, wantFailure: "cls1: ServiceExport", wantText: "NoService"},
		{name: "export pending", mutate: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Ready", metav1.ConditionFalse, "Pending", "it is being written")
		}, wantFailure: "cls1: ServiceExport", wantText: "one or two seconds"},
		{name: "duplicate cluster ID", mutate: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Ready", metav1.ConditionFalse, "Failed", `cluster ID "cls1" is already used by another cluster of the clusterset`)
		}, wantFailure: "cls1: ServiceExport", wantText: "give one of the two clusters another ID"},
		{name: "export not published", mutate: func(e, _ facts) { e.Registry.Publication = nil }, wantFailure: "cls1: registry", wantText: "does not export the service"},
		{name: "export not written", mutate: func(e, _ facts) {
			e.Registry.Publication.State, e.Registry.Publication.Problem = "Pending", "Throttled"
		},
			wantFailure: "cls1: registry", wantText: "Throttled"},
		{name: "namespace does not exist", mutate: func(_, i facts) { i.hasNamespace = false }, wantFailure: "cls2: namespace", wantText: "create namespace demo"},
		{name: "services are not imported into the namespace", mutate: func(_, i facts) {
			i.Import, i.Registry.Exports, i.Registry.Ignored, i.Registry.NotImported = nil, nil, []string{"cls1"}, "namespace default is not imported into unless --import-namespaces names it"
		}, wantFailure: "cls2: namespace", wantText: "names it\nmove the service to another namespace"},
		{name: "clusters use different registries", mutate: func(_, i facts) { i.Registry.Exports = nil }, wantFailure: "cls2: registry", wantText: "not of cls1"},
		{name: "the import policy refuses the only export", mutate: func(_, i facts) { i.Import, i.Registry.Refused = nil, refusalsOf("cls1") },
			wantFailure: "cls2: ServiceImport", wantText: "refused: not allowed\nif this is not intended, change the export or the import policy"},
		{name: "the import policy refuses one of two exports", mutate: func(_, i facts) { i.Import.Status.Clusters, i.Registry.Refused = nil, refusalsOf("cls1") }},
		{name: "the import policy refuses another cluster's export", mutate: func(_, i facts) { i.Import.Status.Clusters, i.Registry.Refused = nil, refusalsOf("cls3") },
			wantFailure: "cls2: ServiceImport", wantText: "not cls1"},
		{name: "export cannot be read", mutate: func(_, i facts) { i.Registry.Exports, i.Registry.Unknown = nil, []string{"cls1"} }, wantFailure: "cls2: registry", wantText: "exports of cls1 cannot be read"},
		{name: "exporting cluster is stale", mutate: func(_, i facts) { i.Registry.Stale = []string{"cls1"} }},
		{name: "ServiceImport does not exist", mutate: func(_, i facts) { i.Import = nil }, wantFailure: "cls2: ServiceImport", wantText: docs.URL("install.md#namespaces-that-export-and-import")},
		{name: "ServiceImport ended, its IP is held", mutate: func(_, i facts) {
			i.Import, i.derived.Annotations = nil, map[string]string{"multicluster.k8s.aws/held-since": "2026-11-21T12:00:00Z"}
		}, wantFailure: "cls2: ServiceImport", wantText: "holds its IP 10.96.9.9 since 2026-11-21T12:00:00Z"},
		{name: "ServiceImport not ready", mutate: func(_, i facts) {
			setCondition(i.Import.Status.Conditions, "Ready", metav1.ConditionFalse, "IPFamilyNotSupported", "only IPv6")
		}, wantFailure: "cls2: ServiceImport", wantText: "only IPv6"},
		{name: "ServiceImport of another implementation", mutate: func(_, i facts) { i.Import.Labels = map[string]string{"app.kubernetes.io/managed-by": "other"} },
			wantFailure: "cls2: ServiceImport", wantText: "another MCS implementation imports"},
		{name: "exporter missing in the ServiceImport", mutate: func(_, i facts) { i.Import.Status.Clusters = nil }, wantFailure: "cls2: ServiceImport", wantText: "not cls1"},
		{name: "derived Service does not exist", mutate: func(_, i facts) { i.derived = nil }, wantFailure: "cls2: derived Service", wantText: "quota"},
		{name: "derived Service relabelled by another tool", mutate: func(_, i facts) { i.derived.Labels["app.kubernetes.io/managed-by"] = "foo" },
			wantFailure: "cls2: derived Service", wantText: `managed-by is "foo"`},
		{name: "derived Service has another IP", mutate: func(_, i facts) { i.derived.Spec.ClusterIP = "10.96.0.1" }, wantFailure: "cls2: derived Service", wantText: "10.96.0.1"},
		{name: "no imported slices", mutate: func(_, i facts) { i.ImportedSlices = nil }, wantFailure: "cls2: imported slices", wantText: "0 of 0 endpoints from cls1 are ready (2 in cls1)"},
		{name: "fewer imported than exported endpoints", mutate: func(_, i facts) { i.ImportedSlices[0].Endpoints = i.ImportedSlices[0].Endpoints[:1] },
			wantFailure: "cls2: imported slices", wantText: "cls2 has 1 of 2 ready endpoints of cls1, without 10.1.0.2"},
		{name: "fewer imported endpoints, and the controller knows why", mutate: func(_, i facts) {
			i.ImportedSlices[0].Endpoints = nil
			i.controller.Imports = []status.ImportProblem{{Key: clitest.DemoWeb, Reason: "Pending", Message: "Failed to write the import: exceeded quota"}}
		}, wantFailure: "cls2: imported slices", wantText: "exceeded quota"},
		{name: "an endpoint that the exporter does not have any more", mutate: func(e, _ facts) {
			e.Registry.Own.Backends[0].Endpoints = e.Registry.Own.Backends[0].Endpoints[:1]
			e.slices[0].Endpoints = e.slices[0].Endpoints[:1]
		},
			wantFailure: "cls1: imported slices", wantText: "1 endpoints that are not ready in cls1: 10.1.0.2"},
		{name: "ready at the source, not in the export", mutate: func(e, _ facts) { e.Registry.Own.Backends[0].Endpoints[1].Ready = false }, wantFailure: "cls1: exported slices", wantText: "1 ready ones are not exported as ready: 10.1.0.2"},
		{name: "endpoints left out of the export", mutate: func(e, _ facts) {
			e.Registry.Own.Backends = nil
			e.Registry.LeftOut = mcs.LeftOuts{{Kind: mcs.LeftOutEndpoint, Slice: "web-a", Reason: "no port", Count: 2}, {Kind: mcs.LeftOutEndpoint, Slice: "web-f", Reason: "FQDN", Count: 1}}
		}, wantFailure: "cls1: exported slices", wantText: "exported 0 of 3 endpoints: 1 of EndpointSlice web-f: FQDN; 2 of EndpointSlice web-a: no port"},
		{name: "endpoints that are left out as they should be", mutate: func(e, _ facts) {
			e.Registry.LeftOut = mcs.LeftOuts{{Kind: mcs.LeftOutEndpoint, Slice: "web-m", Reason: "imported", Count: 2, Intended: true}}
		}},
		{name: "an annotation left out of the export", mutate: func(e, _ facts) {
			e.Registry.LeftOut = mcs.LeftOuts{{Kind: mcs.LeftOutAnnotation, Names: []string{"note"}, Reason: "too long", Count: 1}}
		}},
		{name: "the last warning names why there is no ServiceImport", mutate: func(_, i facts) { i.Import, i.warning = nil, "ImportFailed: exceeded quota" },
			wantFailure: "cls2: ServiceImport", wantText: "exceeded quota"},
		{name: "local traffic in a cluster without endpoints of its own", mutate: func(_, i facts) {
			i.Import.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			i.probe.Connections[0].Problem = "connection refused"
		}, wantFailure: "cls2: traffic policy", wantText: "PreferSameNode"},
		{name: "CoreDNS not found", mutate: func(_, i facts) { i.dns, i.dnsProblem = nil, "there is none" }},
		{name: "DNS not enabled", mutate: func(_, i facts) { i.dns.State = "disabled" }, wantFailure: "cls2: CoreDNS", wantText: "run kubectl mcs dns enable --context cls2"},
		{name: "DNS lookup fails", mutate: func(_, i facts) { i.probe.LookupProblem = "no such host" }, wantFailure: "cls2: DNS answer", wantText: "no such host"},
		{name: "DNS answer differs from the ServiceImport", mutate: func(_, i facts) { i.probe.Addresses = []string{"10.0.0.1"} }, wantFailure: "cls2: DNS answer", wantText: "10.0.0.1"},
		{name: "DNS answer of a headless service", mutate: func(_, i facts) {
			i.Import.Spec.Type, i.probe.Addresses = mcsv1beta1.Headless, []string{"10.1.0.1", "10.1.0.2"}
		}},
		{name: "DNS answer lacks a headless endpoint", mutate: func(_, i facts) { i.Import.Spec.Type, i.probe.Addresses = mcsv1beta1.Headless, []string{"10.1.0.1"} },
			wantFailure: "cls2: DNS answer", wantText: "resolves to 1 of 2 endpoints, without 10.1.0.2"},
		{name: "DNS answer has a headless endpoint that has left", mutate: func(_, i facts) {
			i.Import.Spec.Type, i.probe.Addresses = mcsv1beta1.Headless, []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}
		}, wantFailure: "cls2: DNS answer", wantText: "and to 10.1.0.3, which the import does not have"},
		{name: "DNS answer lacks a clusterset IP", mutate: func(_, i facts) { i.Import.Spec.IPs = append(i.Import.Spec.IPs, "fd00::9") },
			wantFailure: "cls2: DNS answer", wantText: "1 of 2 clusterset IPs, without fd00::9"},
		{name: "endpoints do not accept connections", mutate: func(_, i facts) {
			i.probe.Connections[0].Problem, i.probe.Connections[1].Problem = "no answer", "no answer"
		},
			wantFailure: "cls2: connection", wantText: "networkPolicy.probeTo"},
		{name: "the controller may not connect to the endpoints", mutate: func(_, i facts) {
			i.probe.Connections[0].Problem, i.probe.Connections[1].Problem = "no answer", "no answer"
			i.egress = egress{policyWith()}
		}},
		{name: "clusterset IP does not accept connections", mutate: func(_, i facts) { i.probe.Connections[0].Problem = "connection refused" }, wantFailure: "cls2: connection", wantText: "kube-proxy or its replacement in cls2; if the chart's networkPolicy.enabled is true"},
		{name: "no TCP endpoint", mutate: func(_, i facts) { i.probe.Connections = nil }},
		{name: "probe failed", mutate: func(_, i facts) { i.probe, i.probeProblem = nil, "timed out" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exporter, importer, all := gatherHealthy(t)
			tt.mutate(exporter, importer)
			d := Diagnose(clitest.DemoWeb, all)
			failure, text := "", ""
			if d.Failure != nil {
				failure, text = d.Failure.Context+": "+d.Failure.Name, d.Failure.Detail+"\n"+d.Failure.Remedy
				if d.Failure.Remedy == "" {
					t.Error("the failure has no remedy")
				}
			}
			if failure != tt.wantFailure || !strings.Contains(text, tt.wantText) {
				t.Errorf("failure %q, want %q; text %q, want %q", failure, tt.wantFailure, text, tt.wantText)
			}
		})
	}
}

// The endpoints of a cluster that is not in use are not missing.
func TestDiagnose_ShowsClusterSelection(t *testing.T) {
	_, importer, all := gatherHealthy(t)
	importer.Import.Status.Conditions = append(importer.Import.Status.Conditions, metav1.Condition{
		Type: mcs.ConditionClusterSelection, Status: metav1.ConditionTrue, Reason: mcs.SelectionReasonFirst, Message: "every port: selector 1 (cls2)",
	})
	importer.ImportedSlices[0].Endpoints = importer.ImportedSlices[0].Endpoints[:1]
	steps := map[string]check.Check{}
	for _, phase := range Diagnose(clitest.DemoWeb, all).Phases {
		for _, step := range phase.Steps {
			steps[phase.Context+" "+step.Name] = step
		}
	}
	if got := steps["cls2 cluster selection"]; got.Result != check.OK || got.Detail != "every port: selector 1 (cls2)" {
		t.Errorf("step %+v", got)
	}
	if got := steps["cls2 imported slices"]; got.Result != check.OK || !strings.Contains(got.Detail, "(2 in cls1: the others are not in use, see cluster selection)") {
		t.Errorf("step %+v", got)
	}
}

// The endpoints of a drained cluster are not missing either.
func TestDiagnose_ShowsDrain(t *testing.T) {
	_, importer, all := gatherHealthy(t)
	drained := mcs.ImportDrained([]mcs.DrainedExport{{Cluster: "cls1", Drain: "50%"}})
	importer.Import.Status.Conditions = append(importer.Import.Status.Conditions, drained)
	importer.ImportedSlices[0].Endpoints = importer.ImportedSlices[0].Endpoints[:1]
	steps := map[string]check.Check{}
	for _, phase := range Diagnose(clitest.DemoWeb, all).Phases {
		for _, step := range phase.Steps {
			steps[phase.Context+" "+step.Name] = step
		}
	}
	if got := steps["cls2 drain"]; got.Result != check.OK || got.Detail != "drained: cluster cls1 (50% of its endpoints not used)" {
		t.Errorf("step %+v", got)
	}
	if got := steps["cls2 imported slices"]; got.Result != check.OK || !strings.Contains(got.Detail, "(2 in cls1: the others are not in use, see drain)") {
		t.Errorf("step %+v", got)
	}
}

// TestDiagnose_ExplainsMissingEndpoints: a state of the clusterset for which an importer does not
// use endpoints is no failure, and is named.
func TestDiagnose_ExplainsMissingEndpoints(t *testing.T) {
	for name, tt := range map[string]struct {
		mutate func(*ServiceFacts)
		want   string
	}{
		"stale": {func(f *ServiceFacts) { f.Registry.Stale = []string{"cls1"} }, "cls1 is stale"},
		"withdrawn": {func(f *ServiceFacts) {
			f.Import.Annotations = map[string]string{plan.AnnotationUnreachableClusters: "cls1"}
		}, "cls1 cannot be reached"},
		"refused": {func(f *ServiceFacts) { f.Registry.Refused = refusalsOf("cls1") }, "refused: not allowed"},
		"budget":  {func(f *ServiceFacts) { f.controller.Members[0].OverBudget = []string{"over budget: 1"} }, "over budget"},
		"family": {func(f *ServiceFacts) {
			f.ImportedSlices[0].Endpoints = append(f.ImportedSlices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.0.2"}})
		}, "1 in cls1 have an IP family that the import does not have"},
		"port": {func(f *ServiceFacts) { f.Import.Spec.Ports[0].Port = 81 }, "2 in cls1 listen on no port of the import"},
	} {
		t.Run(name, func(t *testing.T) {
			exporter, importer, all := gatherHealthy(t)
			importer.ImportedSlices[0].Endpoints = importer.ImportedSlices[0].Endpoints[:1]
			if name == "family" {
				exporter.Registry.Own.Backends[0].Endpoints = append(exporter.Registry.Own.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr("fd00::1"), Ready: true})
			}
			if name == "port" {
				importer.ImportedSlices[0].Endpoints = nil
			}
			tt.mutate(importer)
			got := importer.importedSlicesStep([]string{"cls1"}, all)
			isFailure := name == "port" // no endpoint at all
			if got.IsFailure() != isFailure || !strings.Contains(got.Detail, tt.want) {
				t.Errorf("step %+v, want %q", got, tt.want)
			}
		})
	}
}

// TestDiagnose_OtherClusterExplainsNothing: a condition about cls10 does not explain that endpoints
// of cls1 are missing.
func TestDiagnose_OtherClusterExplainsNothing(t *testing.T) {
	_, importer, all := gatherHealthy(t)
	importer.Import.Status.Conditions = append(importer.Import.Status.Conditions, mcs.ImportDrained([]mcs.DrainedExport{{Cluster: "cls10", Drain: "50%"}}))
	importer.ImportedSlices[0].Endpoints = importer.ImportedSlices[0].Endpoints[:1]
	if got := importer.importedSlicesStep([]string{"cls1"}, all); !got.IsFailure() {
		t.Errorf("step %+v, want a failure", got)
	}
}

// TestLastWarning: the newest Warning event about the ServiceImport, and none about other objects.
func TestLastWarning(t *testing.T) {
	clusters := clitest.NewClusters()
	event := func(name, kind, about, message string, minutes int) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name}, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about, Namespace: "demo"},
			Type: corev1.EventTypeWarning, Reason: "ImportFailed", Message: message, EventTime: metav1.NewMicroTime(clitest.Today.Add(time.Duration(minutes) * time.Minute)),
		}
	}
	clusters["cls1"].Add(event("a", "ServiceImport", "web", "old", 1), event("b", "ServiceImport", "web", "exceeded quota", 2),
		event("c", "Service", "web", "of the Service", 3), event("d", "ServiceImport", "other", "of another import", 4))
	got := lastWarning(t.Context(), clusters.Start(t)["cls1"], clitest.DemoWeb)
	if !strings.HasSuffix(got, "ImportFailed: exceeded quota") {
		t.Errorf("warning %q", got)
	}
}

// mapWeb makes cls2 import demo/web from a service of AWS Cloud Map instead of cls1, with its state
// in m.
func mapWeb(t *testing.T, m status.MappedService) (importer *ServiceFacts, all []ServiceFacts) {
	t.Helper()
	exporter, importer, all := gatherHealthy(t)
	exporter.export, exporter.service, exporter.Registry.Own, exporter.Import, exporter.derived = nil, nil, nil, nil, nil
	m.ClusterID, m.Namespace, m.Service = "cloud-map", "apps", "orders"
	importer.Registry.Mapped = &m
	importer.Registry.Exports[0].Cluster = "cloud-map"
	importer.Import.Status.Clusters[0].Cluster = "cloud-map"
	importer.ImportedSlices[0].Labels[mcsv1beta1.LabelSourceCluster] = "cloud-map"
	return importer, all
}

// TestDiagnose_MappedService: a service of AWS Cloud Map that cls2 maps, and cls1 does not.
func TestDiagnose_MappedService(t *testing.T) {
	const denied = "demo/web (service orders in apps): not read, its last endpoints stay: AccessDeniedException"
	for name, tc := range map[string]struct {
		mapped     status.MappedService
		mutate     func(*ServiceFacts)
		want       check.Check // without the remedy
		wantRemedy string
		wantFailed string
	}{
		"read": {mapped: status.MappedService{Instances: 2, ReadAge: new(3.2)},
			want: check.Check{Result: check.OK, Detail: "service orders in apps of AWS Cloud Map, read 3s ago: 2 instances"}},
		"not read yet": {want: check.Check{Result: check.Failed, Detail: "service orders in apps of AWS Cloud Map, not read yet"}, wantRemedy: "run this command again",
			wantFailed: "cls2: mapped service"},
		"denied since the start": {mapped: status.MappedService{Problems: []string{denied}},
			mutate: func(f *ServiceFacts) {
				f.Registry.Exports, f.Registry.Unknown, f.Import = nil, []string{"cloud-map"}, nil
			},
			want:       check.Check{Result: check.Failed, Detail: "service orders in apps of AWS Cloud Map; " + denied},
			wantRemedy: docs.URL("ecs-ec2-lambda.md#failures"), wantFailed: "cls2: mapped service"},
		"denied": {mapped: status.MappedService{Instances: 2, ReadAge: new(190.), Problems: []string{denied}},
			mutate: func(f *ServiceFacts) { f.Registry.Stale = []string{"cloud-map"} },
			want:   check.Check{Result: check.Warning, Detail: "service orders in apps of AWS Cloud Map, read 3m10s ago: 2 instances; " + denied}, wantRemedy: docs.URL("ecs-ec2-lambda.md#failures")},
		"refused by the import policy": {mapped: status.MappedService{Instances: 2, ReadAge: new(1.)},
			mutate:     func(f *ServiceFacts) { f.Import, f.Registry.Refused = nil, refusalsOf("cloud-map") },
			want:       check.Check{Result: check.OK, Detail: "service orders in apps of AWS Cloud Map, read 1s ago: 2 instances"},
			wantFailed: "cls2: ServiceImport"},
	} {
		t.Run(name, func(t *testing.T) {
			importer, all := mapWeb(t, tc.mapped)
			if tc.mutate != nil {
				tc.mutate(importer)
			}
			d := Diagnose(clitest.DemoWeb, all)
			failed := ""
			if d.Failure != nil {
				failed = d.Failure.Context + ": " + d.Failure.Name
			}
			if failed != tc.wantFailed {
				t.Errorf("failed is %q: %+v, want %q", failed, d.Failure, tc.wantFailed)
			}
			if first := d.Phases[0]; first.Context != "cls1" || len(first.Steps) != 1 || !strings.Contains(first.Steps[0].Detail, "not mapped in this cluster") {
				t.Errorf("cls1, which does not map it: %+v", first)
			}
			steps := d.Phases[len(d.Phases)-1].Steps
			i := slices.IndexFunc(steps, func(c check.Check) bool { return c.Name == "mapped service" })
			if i < 0 {
				t.Fatalf("steps %+v", steps)
			}
			if got := steps[i]; got.Result != tc.want.Result || got.Detail != tc.want.Detail || !strings.Contains(got.Remedy, tc.wantRemedy) || (got.Remedy == "") != (tc.wantRemedy == "") {
				t.Errorf("step %+v, want %+v with the remedy %q", got, tc.want, tc.wantRemedy)
			}
			for _, s := range steps {
				if s.Name == "registry" && s.Result == check.Warning && strings.Contains(s.Detail, "stale") {
					t.Errorf("the pseudo-cluster has no controller to check: %+v", s)
				}
			}
		})
	}
}

// TestDiagnose_NoMapping: a service that no file maps, and the reason why the file is not in use.
func TestDiagnose_NoMapping(t *testing.T) {
	_, all := mapWeb(t, status.MappedService{})
	for i := range all {
		all[i].Registry = &status.Service{Key: clitest.DemoWeb}
	}
	all[1].controller.Members = append(all[1].controller.Members, status.Member{ClusterID: "cloud-map", Mapped: true, Problems: []string{"services.yaml is not in use"}})
	d := Diagnose(clitest.DemoWeb, all)
	if d.Failure == nil || !strings.Contains(d.Failure.Detail, "no file of --cloud-map-services maps it (cls2: services.yaml is not in use)") {
		t.Errorf("failure %+v", d.Failure)
	}
}

// What the instances of Cloud Map lack is a warning: the export works.
func TestDiagnose_ShowsInstanceWarnings(t *testing.T) {
	exporter, _, all := gatherHealthy(t)
	exporter.Registry.Publication.Warnings = []string{"the Cloud Map namespace demo has the type HTTP"}
	d := Diagnose(clitest.DemoWeb, all)
	last := d.Phases[0].Steps[len(d.Phases[0].Steps)-1]
	if d.Failure != nil || last.Name != "instance view" || last.Result != check.Warning || last.Detail != "the Cloud Map namespace demo has the type HTTP" || last.Remedy == "" {
		t.Errorf("failure %+v, last step %+v", d.Failure, last)
	}
}

// An export for other clusters is not missing.
func TestDiagnose_ShowsRecipients(t *testing.T) {
	exporter, importer, all := gatherHealthy(t)
	recipients, err := mcs.ParseRecipients("cls3")
	if err != nil {
		t.Fatal(err)
	}
	exporter.export.Status.Conditions = append(exporter.export.Status.Conditions, mcs.ExportRecipients(recipients, []string{"cls3"}))
	exporter.Registry.Own.Drain = "30%"
	importer.Registry.NotFor = []string{"cls1"}
	importer.Import, importer.ImportedSlices = nil, nil
	d := Diagnose(clitest.DemoWeb, all)
	if d.Failure != nil {
		t.Errorf("failure %+v", d.Failure)
	}
	i := slices.IndexFunc(d.Phases[0].Steps, func(c check.Check) bool { return c.Name == "ServiceExport" })
	if got := d.Phases[0].Steps[i]; got.Result != check.OK || got.Detail != "valid and exported to cluster cls3; drained: 30%" {
		t.Errorf("step %+v", got)
	}
	last := d.Phases[len(d.Phases)-1].Steps
	if got := last[len(last)-1]; got.Name != "recipients" || got.Result != check.OK || got.Detail != "for other clusters than this one: the exports of cls1" {
		t.Errorf("last step %+v", got)
	}
}

// Without the context of the exporter, the exports that the importer has read count.
func TestDiagnoseOnlyImporter(t *testing.T) {
	_, importer, _ := gatherHealthy(t)
	if d := Diagnose(clitest.DemoWeb, []ServiceFacts{*importer}); d.Failure != nil {
		t.Errorf("failure %+v", d.Failure)
	}
	if d := Diagnose(mcs.Key{Namespace: "demo", Name: "other"}, []ServiceFacts{{Context: "cls2", hasNamespace: true}}); d.Failure == nil || len(d.Phases) != 1 {
		t.Errorf("diagnosis of a service that does not exist: %+v", d)
	}
}

func TestRequiredPermissions(t *testing.T) {
	required, err := requiredPermissions(roleFile, "ns")
	if err != nil {
		t.Fatal(err)
	}
	var inNamespace, everywhere int
	for _, p := range required {
		if p.Verb == "" || p.Resource == "" {
			t.Errorf("%+v", p)
		}
		if p.Namespace == "ns" {
			inNamespace++
		} else {
			everywhere++
		}
	}
	metrics, err := requiredPermissions(metricsRoleFile, "ns")
	if err != nil || len(metrics) != 2 || metrics[0].Resource != "tokenreviews" || metrics[1].Resource != "subjectaccessreviews" {
		t.Errorf("for metrics: %+v, %v", metrics, err)
	}
	if inNamespace < 5 || everywhere < 20 {
		t.Errorf("%d permissions in the namespace and %d everywhere", inNamespace, everywhere)
	}
}
