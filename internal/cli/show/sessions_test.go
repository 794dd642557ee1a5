package show

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	clitest.RunSessions(t, Commands, []clitest.TerminalSession{
		{Name: "seal", Setup: func(c clitest.Clusters) { c["cls2"].ControllerStatus.Registry = "etcd" }, Lines: []string{
			"registry seal --help", "registry seal", "registry seal cls3 cls1", "registry seal A.b", "registry seal --context cls2",
			"registry seal --clusterset-id=set2 cls1", "registry seal --clusterset-id=set2",
		}},
		{Name: "status", Lines: []string{
			"status", "status --context cls1,cls2", "status --context cls1 --context cls2 -o wide", "status -o json", "status -o yaml", "get clusters --contexts cls1,cls2",
		}},
		{Name: "status-problems", Setup: func(c clitest.Clusters) {
			st := &c["cls1"].ControllerStatus
			st.Members[1].Stale = true
			st.Members[1].HeartbeatAge = 150
			st.Members[1].Problems = []string{"page 07 cannot be read: \x1b[31mred"}
			st.Conflicts = []status.Conflict{{Key: clitest.DemoWeb, Problems: []string{"PortConflict: port http differs"}}}
			st.Publications = []status.Publication{{Key: clitest.DemoWeb, State: "Pending", Problem: "AccessDeniedException"}, {Key: clitest.DemoWeb, State: "Pending"}}
			st.InstanceWarnings = []status.Publication{{Key: clitest.DemoWeb, State: "Exported", Warnings: []string{"the Cloud Map namespace demo has the type HTTP, so that its services have no DNS records"}}}
			c["cls2"].Unreachable = true
		}, Lines: []string{"status --context cls1,cls2", "get clusters --context cls1,cls2"}},
		{Name: "status-no-controller", Setup: func(c clitest.Clusters) {
			c["cls1"].RemovePods()
			pod := clitest.ControllerPod("manager-new", "")
			pod.Status.Conditions = nil
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "ImagePullBackOff", Message: "no such image",
			}}}}
			c["cls2"].RemovePods()
			c["cls2"].Add(pod)
		}, Lines: []string{"status --context cls1,cls2"}},
		{Name: "status-faults", Setup: func(c clitest.Clusters) {
			st := &c["cls1"].ControllerStatus
			st.IdentityProblem = "create ClusterProperty cluster.clusterset.k8s.io; it leaves at 2026-11-21T12:05:00Z (--leave-after)"
			st.Members[1].Problems = []string{"refused the member record: its signature is not valid"}
			st.Members[1].Refused = st.Members[1].Problems
			st.Imports = []status.ImportProblem{{Key: clitest.DemoWeb, Reason: "Failed", Message: "Service imported-1 is not managed by this controller"}}
			// the leader is gone, the standby has not taken over
			c["cls2"].Remove(clitest.ControllerPod("manager-abc", ""))
		}, Lines: []string{"status --context cls1,cls2", "status -o yaml"}},
		{Name: "get", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].Add(&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
				Namespace: "other", Name: "db", CreationTimestamp: metav1.NewTime(clitest.Today.Add(-time.Minute)),
			}})
		}, Lines: []string{
			"get exports", "get exports -A --context cls1,cls2", "get exports -o wide", "get imports --context cls1,cls2", "get imports -o wide", "get imports -o yaml",
		}},
		{Name: "get-services", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].ServiceList = append(c["cls2"].ServiceList, status.Service{Key: mcs.Key{Namespace: "other", Name: "db"}, Ignored: []string{"cls1"}})
			c["cls2"].ControllerStatus.Imports = []status.ImportProblem{{Key: clitest.DemoWeb, Reason: "Failed", Message: "no IP"}}
		}, Lines: []string{
			"get services", "get services -A --context cls1,cls2", "get services -A --context cls2 -o wide", "get services -o json", "get clusters -o json",
		}},
		{Name: "get-services-no-controller", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].Unreachable = true
		}, Lines: []string{"get services --context cls1,cls2"}},
		{Name: "team", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls1"].OnlyNamespace, c["cls2"].OnlyNamespace = "demo", "demo"
		}, Lines: []string{
			"get services --context cls1,cls2", "get services --context cls2 -o json", "get services -A", "get exports", "get exports -A", "get imports", "get clusters",
			"describe web --context cls1,cls2", "describe web --context cls2 -o json", "status", "registry get web",
		}},
		{Name: "team-one-context", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls2"].OnlyNamespace = "demo"
		}, Lines: []string{"get services --context cls1,cls2", "describe web --context cls1,cls2"}},
		{Name: "team-problems", Setup: func(c clitest.Clusters) {
			c["cls1"].OnlyNamespace = "demo"
			c["cls1"].Add(
				&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "api", CreationTimestamp: metav1.NewTime(clitest.Today)}},
				&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "db", CreationTimestamp: metav1.NewTime(clitest.Today)}, Status: mcsv1beta1.ServiceExportStatus{Conditions: []metav1.Condition{
					{Type: "Valid", Status: metav1.ConditionTrue, Reason: "Valid"},
					{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Exported", Message: "the other clusters of the clusterset can see the export"},
					{Type: "Conflict", Status: metav1.ConditionTrue, Reason: "PortConflict", Message: "port http differs"},
					{Type: mcs.ConditionImported, Status: metav1.ConditionTrue, Reason: "Imported", Message: "imported by cls2"},
				}}},
				&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web", Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
					Status: mcsv1beta1.ServiceImportStatus{Clusters: []mcsv1beta1.ClusterStatus{{Cluster: "cls2"}}, Conditions: []metav1.Condition{
						{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"},
					}}},
				&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "foreign"}},
			)
		}, Lines: []string{"get services -o wide", "describe db"}},
		{Name: "team-no-imports", Setup: func(c clitest.Clusters) {
			clitest.ExportWeb(c)
			c["cls1"].Denied = []string{"pods/portforward", "serviceimports"}
			c["cls2"].Denied = []string{"pods/portforward", "endpointslices", "serviceexports"}
		}, Lines: []string{"get services", "get services --context cls2", "get services --context cls2 -o json"}},
		{Name: "describe", Setup: clitest.ExportWeb, Lines: []string{"describe web --context cls1,cls2", "describe web --context cls2 -o yaml"}},
		{Name: "registry", Setup: clitest.ExportWeb, Lines: []string{
			"registry get web", "registry get web --context cls2 -o json", "registry get nothing", "registry dump --context cls2", "registry dump -o table",
			"graph --context cls1,cls2", "graph --context cls2",
		}},
	})
}
