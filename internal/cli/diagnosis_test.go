package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// healthy are the facts of demo/web, which cls1 exports and cls2 imports, when all is well.
func healthy(t *testing.T) (exporter, importer *serviceFacts, all []serviceFacts) {
	t.Helper()
	f := newFleet()
	exportWeb(f)
	clusters := f.sail(t)
	a := &app{controllerNamespace: defaultNamespace}
	for _, name := range []string{"cls1", "cls2"} {
		all = append(all, a.gatherService(t.Context(), clusters[name], demoWeb, true))
	}
	return &all[0], &all[1], all
}

func setCondition(list []metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	for i := range list {
		if list[i].Type == kind {
			list[i] = metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
		}
	}
}

func TestDiagnose(t *testing.T) {
	type facts = *serviceFacts
	tests := []struct {
		name     string
		breakIt  func(exporter, importer facts)
		wantStop string // "context: hop", "" when all is well
		wantSays string // in the detail or the hint
	}{
		{name: "all is well", breakIt: func(facts, facts) {}},
		{name: "no API server", breakIt: func(e, _ facts) { *e = serviceFacts{context: "cls1", problem: "connection refused"} },
			wantStop: "cls1: API server", wantSays: "kubectl --context cls1"},
		{name: "no export", breakIt: func(e, i facts) { e.export, i.seen.Exports, e.seen.Own = nil, nil, nil },
			wantStop: "cls1: ServiceExport", wantSays: "run: kubectl mcs export web -n demo --context cls1"},
		{name: "no Service", breakIt: func(e, _ facts) { e.service = nil }, wantStop: "cls1: Service", wantSays: "unexport"},
		{name: "ExternalName", breakIt: func(e, _ facts) { e.service.Spec.Type = corev1.ServiceTypeExternalName }, wantStop: "cls1: Service", wantSays: "ExternalName"},
		{name: "no endpoints", breakIt: func(e, _ facts) { e.slices = nil }, wantStop: "cls1: EndpointSlices", wantSays: "0 of 0"},
		{name: "not ready", breakIt: func(e, _ facts) {
			e.slices[0].Endpoints[0].Conditions.Ready, e.slices[0].Endpoints[1].Conditions.Ready = new(bool), new(bool)
		}, wantStop: "cls1: EndpointSlices", wantSays: "0 of 2"},
		{name: "no permission", breakIt: func(e, _ facts) { e.permissions.missing = []string{"list serviceexports"} },
			wantStop: "cls1: permissions", wantSays: "may not list serviceexports"},
		{name: "no controller", breakIt: func(e, _ facts) { e.controller, e.seen, e.controllerProblem = nil, nil, "no pod is ready" },
			wantStop: "cls1: controller", wantSays: "no pod is ready"},
		{name: "no member", breakIt: func(_, i facts) { i.controller = &status.Status{Problem: "no ID"} }, wantStop: "cls2: controller", wantSays: "kubectl mcs join --context cls2"},
		{name: "not synced", breakIt: func(_, i facts) { i.controller.Synced, i.controller.ReadProblem = false, "AccessDenied" },
			wantStop: "cls2: controller", wantSays: "AccessDenied"},
		{name: "not looked at", breakIt: func(e, _ facts) { e.export.Status.Conditions = nil }, wantStop: "cls1: ServiceExport", wantSays: "no controller has looked"},
		{name: "not valid", breakIt: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Valid", metav1.ConditionFalse, "NoService", "none")
		}, wantStop: "cls1: ServiceExport", wantSays: "NoService"},
		{name: "pending", breakIt: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Ready", metav1.ConditionFalse, "Pending", "it is being written")
		}, wantStop: "cls1: ServiceExport", wantSays: "a second or two"},
		{name: "id twice", breakIt: func(e, _ facts) {
			setCondition(e.export.Status.Conditions, "Ready", metav1.ConditionFalse, "Failed", `cluster ID "cls1" is already used by another cluster of the clusterset`)
		}, wantStop: "cls1: ServiceExport", wantSays: "give one of the two clusters another ID"},
		{name: "not published", breakIt: func(e, _ facts) { e.seen.Publication = nil }, wantStop: "cls1: registry", wantSays: "publishes nothing"},
		{name: "not written", breakIt: func(e, _ facts) { e.seen.Publication.State, e.seen.Publication.Problem = "Pending", "Throttled" },
			wantStop: "cls1: registry", wantSays: "Throttled"},
		{name: "no namespace", breakIt: func(_, i facts) { i.namespace = false }, wantStop: "cls2: namespace", wantSays: "create namespace demo"},
		{name: "another registry", breakIt: func(_, i facts) { i.seen.Exports = nil }, wantStop: "cls2: registry", wantSays: "not of cls1"},
		{name: "unknown", breakIt: func(_, i facts) { i.seen.Exports, i.seen.Unknown = nil, []string{"cls1"} }, wantStop: "cls2: registry", wantSays: "those of cls1 cannot be read"},
		{name: "stale", breakIt: func(_, i facts) { i.seen.Stale = []string{"cls1"} }},
		{name: "no import", breakIt: func(_, i facts) { i.imported = nil }, wantStop: "cls2: ServiceImport", wantSays: "docs/install.md#namespaces-that-export-and-import"},
		{name: "import not ready", breakIt: func(_, i facts) {
			setCondition(i.imported.Status.Conditions, "Ready", metav1.ConditionFalse, "IPFamilyNotSupported", "only IPv6")
		}, wantStop: "cls2: ServiceImport", wantSays: "only IPv6"},
		{name: "foreign import", breakIt: func(_, i facts) { i.imported.Labels = map[string]string{"app.kubernetes.io/managed-by": "other"} },
			wantStop: "cls2: ServiceImport", wantSays: "another implementation imports"},
		{name: "exporter not named", breakIt: func(_, i facts) { i.imported.Status.Clusters = nil }, wantStop: "cls2: ServiceImport", wantSays: "not cls1"},
		{name: "no derived Service", breakIt: func(_, i facts) { i.derived = nil }, wantStop: "cls2: derived Service", wantSays: "quota"},
		{name: "another IP", breakIt: func(_, i facts) { i.derived.Spec.ClusterIP = "10.96.0.1" }, wantStop: "cls2: derived Service", wantSays: "10.96.0.1"},
		{name: "no slices", breakIt: func(_, i facts) { i.imports = nil }, wantStop: "cls2: imported slices", wantSays: "0 of 0 endpoints ready from cls1 (there: 2)"},
		{name: "fewer endpoints", breakIt: func(_, i facts) { i.imports[0].Endpoints = i.imports[0].Endpoints[:1] }},
		{name: "no CoreDNS", breakIt: func(_, i facts) { i.dns, i.dnsProblem = nil, "there is none" }},
		{name: "DNS not enabled", breakIt: func(_, i facts) { i.dns.State = "disabled" }, wantStop: "cls2: CoreDNS", wantSays: "run: kubectl mcs dns enable --context cls2"},
		{name: "no answer", breakIt: func(_, i facts) { i.probe.LookupProblem = "no such host" }, wantStop: "cls2: DNS answer", wantSays: "no such host"},
		{name: "another answer", breakIt: func(_, i facts) { i.probe.Addresses = []string{"10.0.0.1"} }, wantStop: "cls2: DNS answer", wantSays: "10.0.0.1"},
		{name: "headless answer", breakIt: func(_, i facts) { i.imported.Spec.Type, i.probe.Addresses = mcsv1beta1.Headless, []string{"10.1.0.1"} }},
		{name: "pods out of reach", breakIt: func(_, i facts) {
			i.probe.Connections[0].Problem, i.probe.Connections[1].Problem = "no answer", "no answer"
		},
			wantStop: "cls2: connection", wantSays: "networkPolicy.probeTo"},
		{name: "IP out of reach", breakIt: func(_, i facts) { i.probe.Connections[0].Problem = "connection refused" }, wantStop: "cls2: connection", wantSays: "kube-proxy, or what takes its place, in this cluster; or the controller's own NetworkPolicy"},
		{name: "nothing over TCP", breakIt: func(_, i facts) { i.probe.Connections = nil }},
		{name: "probe failed", breakIt: func(_, i facts) { i.probe, i.probeProblem = nil, "timed out" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exporter, importer, all := healthy(t)
			tt.breakIt(exporter, importer)
			d := diagnose(demoWeb, all)
			stops, says := "", ""
			if d.Stop != nil {
				stops, says = d.Stop.Context+": "+d.Stop.Name, d.Stop.Detail+"\n"+d.Stop.Hint
				if d.Stop.Hint == "" {
					t.Error("no word on what to do")
				}
			}
			if stops != tt.wantStop || !strings.Contains(says, tt.wantSays) {
				t.Errorf("stops at %q, want %q; says %q, want %q", stops, tt.wantStop, says, tt.wantSays)
			}
		})
	}
}

// With the exporter's context missing, what the importer has read of it counts.
func TestDiagnoseOnlyImporter(t *testing.T) {
	_, importer, _ := healthy(t)
	if d := diagnose(demoWeb, []serviceFacts{*importer}); d.Stop != nil {
		t.Errorf("stops at %+v", d.Stop)
	}
	if d := diagnose(mcs.Key{Namespace: "demo", Name: "other"}, []serviceFacts{{context: "cls2", namespace: true}}); d.Stop == nil || len(d.Stages) != 1 {
		t.Errorf("of a service that is not there: %+v", d)
	}
}

func TestNeededPermissions(t *testing.T) {
	needed, err := neededPermissions("ns")
	if err != nil {
		t.Fatal(err)
	}
	var inNamespace, everywhere int
	for _, p := range needed {
		if p.Verb == "" || p.Resource == "" {
			t.Errorf("%+v", p)
		}
		if p.Namespace == "ns" {
			inNamespace++
		} else {
			everywhere++
		}
	}
	if inNamespace < 5 || everywhere < 20 {
		t.Errorf("%d permissions in the namespace and %d everywhere", inNamespace, everywhere)
	}
}
