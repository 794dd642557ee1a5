package cli

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestWorlds has the answers of all commands that say how the clusterset is, in states of the
// world, in testdata/worlds. cls1 exports demo/web and is healthy. cls2 imports it and is in the
// state. A reviewer reads of each line whether it is true in that state and says what to do.
func TestWorlds(t *testing.T) {
	answers := func(context string) []string {
		return []string{
			"check --context " + context, "status --context " + context, "get services --context " + context,
			"describe web --context " + context, "diagnose web --context " + context,
		}
	}
	// the answers in lists, in DOT and in YAML, which take one context or show each on its own
	others := []string{
		"get exports --context cls2", "get imports --context cls2", "get clusters --context cls2", "graph --context cls2",
		"registry get web --context cls2", "registry dump --context cls2", "dns status --context cls2",
	}
	both, importer, exporter := answers("cls1,cls2"), answers("cls2"), answers("cls1")
	for _, world := range []struct {
		name  string
		setup func(*clitest.Cluster)
		lines []string
	}{
		{"healthy-one-context", func(*clitest.Cluster) {}, slices.Concat(exporter, importer, []string{"export web --context cls1"})},
		{"healthy", func(*clitest.Cluster) {}, both},
		{"not-installed", notInstalled, slices.Concat(importer, []string{"diagnose nothing --context cls2", "get services --context cls1,cls2"})},
		{"scaled-to-zero", func(c *clitest.Cluster) {
			c.RemovePods()
			c.Add(deployment(0))
		}, slices.Concat(importer, []string{"diagnose nothing --context cls2", "diagnose web --context cls1,cls2"})},
		{"crashing", func(c *clitest.Cluster) { setController(c, crashing) }, slices.Concat(importer, []string{"diagnose nothing --context cls2"})},
		{"crashing-leader", func(c *clitest.Cluster) {
			setController(c, crashing)
			lead := clitest.ControllerPod("manager-abc", "")
			lead.Status = crashing
			c.Add(lead)
			c.Unreachable = true
		}, []string{"check --context cls2", "status --context cls2"}},
		{"starting", func(c *clitest.Cluster) {
			setController(c, corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [manager]"},
			}})
		}, importer},
		{"standby-only", func(c *clitest.Cluster) { c.Remove(clitest.ControllerPod("manager-abc", "")) }, importer},
		{"registry-unread", func(c *clitest.Cluster) { unread(c, "") }, importer},
		{"registry-denied", func(c *clitest.Cluster) {
			unread(c, "DiscoverInstances: AccessDeniedException: check that the IAM role allows servicediscovery:DiscoverInstances")
			c.ControllerStatus.Requests = []status.Request{{Registry: "cloudmap", Operation: "DiscoverInstances", Result: "denied", Count: 9}}
		}, importer},
		{"registry-failing", func(c *clitest.Cluster) {
			c.ControllerStatus.ReadProblem = "DiscoverInstances: no answer: check the network and the endpoint"
		}, importer},
		{"registry-empty", func(c *clitest.Cluster) {
			c.ServiceList = nil
			c.ControllerStatus.Members, c.ControllerStatus.Paths = c.ControllerStatus.Members[1:], nil
			c.RemoveImports()
		}, importer},
		{"dns-off", func(c *clitest.Cluster) {
			c.CoreDNS.SetCorefile(clitest.StockCorefile)
			c.ProbeResult.Addresses, c.ProbeResult.LookupProblem = nil, "no such host"
			c.ControllerStatus.DNS = &status.DNS{State: status.DNSNotServed, Problem: "the cluster's DNS does not resolve dns-version.clusterset.local. (TXT): no such host", Checked: clitest.Today}
		}, importer},
		{"namespace-missing", func(c *clitest.Cluster) {
			c.Remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}})
			c.ServiceList = []status.Service{{Key: clitest.DemoWeb, Ignored: []string{"cls1"}}}
			c.RemoveImports()
		}, both},
		{"namespace-excluded", func(c *clitest.Cluster) {
			c.ServiceList = []status.Service{{
				Key: clitest.DemoWeb, Ignored: []string{"cls1"}, NotImported: "namespace demo is not imported into: this cluster's controller runs with --import-namespaces=\"shop\"",
			}}
			c.RemoveImports()
		}, both},
		{"no-rights", func(c *clitest.Cluster) {
			c.Denied = []string{"pods", "leases", "pods/portforward", "deployments", "daemonsets", "customresourcedefinitions", "serviceimports"}
		}, importer},
		{"no-port-forward", func(c *clitest.Cluster) { c.Denied = []string{"pods/portforward"} }, slices.Concat(importer, []string{
			"get services --context cls1,cls2", "describe web --context cls1,cls2", "diagnose nothing --context cls2",
		})},
	} {
		t.Run(world.name, func(t *testing.T) {
			t.Parallel()
			clitest.RunSessions(t, commands, []clitest.TerminalSession{{Name: "worlds/" + world.name, Setup: func(c clitest.Clusters) {
				clitest.ExportWeb(c)
				if slices.Contains([]string{"namespace-missing", "namespace-excluded", "registry-empty", "not-installed"}, world.name) {
					c["cls1"].ControllerStatus.Members[1].ImportReport = mcs.NewImportReport(nil, nil)
					c["cls1"].ServiceList[0].Importers = &mcs.Importers{Recipients: []string{"cls2"}}
				}
				world.setup(c["cls2"])
			}, Lines: slices.Concat(world.lines, others)}})
		})
	}
	t.Run("export", func(t *testing.T) {
		clitest.RunSessions(t, commands, []clitest.TerminalSession{
			exportWorld("export-unread", "demo", mcs.Progress{Unread: true}),
			exportWorld("export-denied", "demo", mcs.Progress{Problem: "the registry has not been read since the controller started, so it is unknown whether it shows the export: AccessDenied"}),
			exportWorld("export-default", "default", mcs.Progress{Exported: true, LeftOut: mcs.LeftOuts{mcs.Note(
				"clusters do not import services of namespace default unless their administrators list it: namespace default is not imported into unless --import-namespaces names it")}}),
		})
	})
}

// exportWorld returns the session of an export with the condition that progress leads to.
func exportWorld(name, namespace string, progress mcs.Progress) clitest.TerminalSession {
	return clitest.TerminalSession{Name: "worlds/" + name, Setup: func(c clitest.Clusters) {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: "db"}
		c["cls1"].Add(&corev1.Service{ObjectMeta: meta}, &mcsv1beta1.ServiceExport{ObjectMeta: meta, Status: mcsv1beta1.ServiceExportStatus{
			Conditions: []metav1.Condition{mcs.ExportReady(progress)},
		}})
	}, Lines: []string{"export db -n " + namespace + " --wait 20ms"}}
}

// crashing is the status of a pod whose container ends because of a flag.
var crashing = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
	Name: "manager", RestartCount: 5, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 2m40s"}},
	LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 2, Reason: "Error", Message: "invalid flags: --registry=cloudmop: must be cloudmap or etcd\n",
	}},
}}}

func notInstalled(c *clitest.Cluster) {
	c.RemovePods()
	c.RemoveImports()
}

// setController replaces the pods of the controller by one with a status.
func setController(c *clitest.Cluster, s corev1.PodStatus) {
	c.RemovePods()
	pod := clitest.ControllerPod("manager-new", "10.2.0.10")
	pod.Status = s
	c.Add(pod, deployment(2))
}

func deployment(replicas int32) *appsv1.Deployment {
	d := clitest.ControllerDeployment(0)
	d.Spec.Replicas, d.Status = &replicas, appsv1.DeploymentStatus{Replicas: replicas}
	return d
}

// unread makes the controller one that has not read the registry.
func unread(c *clitest.Cluster, problem string) {
	st := &c.ControllerStatus
	st.Synced, st.ReadProblem, st.Members, st.Paths, st.PathHealth, st.Audited = false, problem, nil, nil, "", nil
	c.Unread = "the registry has not been read yet"
	if problem != "" {
		c.Unread += ": " + problem
	}
}
