package doctor

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	clitest.RunSessions(t, Commands, []clitest.TerminalSession{
		{Name: "diagnose", Setup: clitest.ExportWeb, Lines: []string{
			"diagnose web --context cls1,cls2", "diagnose web --context cls2", "diagnose web --context cls2 --no-probe", "diagnose nothing --context cls1,cls2",
			"diagnose nothing -o yaml",
		}},
		{Name: "diagnose-another-name", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			k := c["cls1"]
			k.Remove(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
			k.Remove(clitest.Slice("web-1", nil))
			export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web", Annotations: map[string]string{mcs.AnnotationService: "web-green"}}}
			k.Remove(export)
			export.Status.Conditions = []metav1.Condition{{Type: "Valid", Status: metav1.ConditionTrue}, {Type: "Ready", Status: metav1.ConditionTrue}, {Type: "Conflict"}}
			k.Add(export, clitest.Slice("web-green-1", map[string]string{discoveryv1.LabelServiceName: "web-green"}),
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web-green"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		}, Lines: []string{"diagnose web --no-probe", "diagnose web-green --no-probe"}},
		{Name: "diagnose-no-permission", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].CoreDNS.DeniedResource = "endpointslices"
			c["cls2"].Remove(clitest.Slice("imported-1", nil))
		}, Lines: []string{"diagnose web --context cls1,cls2"}},
		{Name: "team", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls1"].OnlyNamespace, c["cls2"].OnlyNamespace = "demo", "demo"
		}, Lines: []string{"diagnose web --context cls1,cls2", "diagnose nothing --context cls2", "diagnose web -o yaml --context cls2 --no-probe", "check --context cls2"}},
		{Name: "team-one-context", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].OnlyNamespace = "demo"
			c["cls2"].Remove(clitest.Slice("imported-1", nil))
			half := clitest.Slice("imported-1", map[string]string{plan.LabelManagedBy: plan.ManagedBy, mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "cls1"})
			half.Endpoints = half.Endpoints[:1] // the controller may have a reason
			c["cls2"].Add(half)
		}, Lines: []string{"diagnose web --context cls1,cls2"}},
		{Name: "team-not-imported", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].OnlyNamespace = "demo"
			c["cls2"].Remove(&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
			c["cls2"].Remove(clitest.Slice("imported-1", nil))
		}, Lines: []string{"diagnose web --context cls1,cls2"}},
		{Name: "team-other-namespace", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls1"].OnlyNamespace = "other"
		}, Lines: []string{"diagnose web"}},
		{Name: "diagnose-no-controller", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].RemovePods()
		}, Lines: []string{"diagnose web --context cls2", "diagnose web --context cls1,cls2", "diagnose nothing --context cls1,cls2"}},
		{Name: "diagnose-no-dns", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].CoreDNS.SetCorefile(clitest.StockCorefile)
			c["cls2"].ProbeResult.Addresses, c["cls2"].ProbeResult.LookupProblem = nil, "no such host"
		}, Lines: []string{"diagnose web --context cls1,cls2"}},
		{Name: "check", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls1"].Add(clitest.KubeProxy(3), clitest.ControllerDeployment(2))
		}, Lines: []string{"check", "check --context cls1,cls2", "check -o yaml"}},
		{Name: "check-nothing-installed", Setup: func(c clitest.Clusters) {
			c["cls1"].Clear()
			c["cls1"].CoreDNS.SetCorefile(clitest.StockCorefile)
			c["cls1"].CoreDNS.DeniedResource = "*"
		}, Lines: []string{"check --wait 2ms"}},
		{Name: "check-failures", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			k := c["cls1"]
			k.Kubernetes = "v1.30.1-eks-1234"
			k.CoreDNS.DeniedResource = "tokenreviews"
			k.Remove(clitest.CRD("serviceimports", "", ""))
			k.Remove(clitest.CRD("serviceexports", "", ""))
			k.Add(clitest.CRD("serviceimports", "v0.5.2", "0"), clitest.CRD("serviceexports", "v0.3.0", "4"), clitest.KubeProxy(2))
			k.ControllerStatus.Version, k.ControllerStatus.Time = "v1.1.0", clitest.Today.Add(-time.Hour)
			k.ControllerStatus.ReadProblem = "AccessDeniedException: no"
			k.ControllerStatus.Requests = append(k.ControllerStatus.Requests,
				status.Request{Operation: "DiscoverInstances", Result: "denied", Count: 9}, status.Request{Operation: "RegisterInstance", Result: "throttled", Count: 2})
			k.ControllerStatus.Members[1].Stale = true
			k.ControllerStatus.Publications = []status.Publication{{Key: clitest.DemoWeb, State: "Pending", Problem: "AccessDeniedException"}}
			k.ProbeResult.Connections[0].Problem = "connection refused"
			k.ReachProblems["10.2.0.9"] = "no answer"
			c["cls2"].Unreachable = true
		}, Lines: []string{"check --context cls1,cls2"}},
		// A check of the result "missing" is the only failure here.
		{Name: "check-partial-dns", Setup: func(c clitest.Clusters) {
			c["cls1"].CoreDNS.SilentPods = []string{"coredns-2"}
		}, Lines: []string{"check"}},
		{Name: "check-network-policy", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			for i := range c["cls1"].ProbeResult.Connections {
				c["cls1"].ProbeResult.Connections[i].Problem = "no answer"
			}
		}, Lines: []string{"check", "diagnose web"}},
	})
}

// If a NetworkPolicy drops all connections, check does not probe thousands of services for some
// seconds each.
func TestProbeImportStopsAfterBudget(t *testing.T) {
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	c := clusters["cls1"]
	for i := range 100 {
		another := c.Imports()[0].DeepCopy()
		another.Name = fmt.Sprintf("web-%03d", i)
		c.Add(another)
	}
	for i := range c.ProbeResult.Connections {
		c.ProbeResult.Connections[i].Problem = "no answer"
	}
	k := clusters.Start(t)["cls1"]
	probes := 0
	forwardPort := k.ForwardPort
	k.ForwardPort = func(ctx context.Context, pod *corev1.Pod, port int32, use func(io.ReadWriter) error) error {
		probes++
		return forwardPort(ctx, pod, port, use)
	}
	k.Now = func() time.Time { return clitest.Today.Add(time.Duration(probes) * 3 * time.Second) }
	s := &session.Session{ControllerNamespace: session.DefaultNamespace}
	if got, err := probeImport(t.Context(), s, k); got == nil || got.Key != clitest.DemoWeb {
		t.Errorf("probeImport = %v, %v, want the last probe", got, err)
	}
	if want := 4; probes != want { // at 0, 3, 6 and 9 seconds
		t.Errorf("%d services were probed, want %d", probes, want)
	}
}
