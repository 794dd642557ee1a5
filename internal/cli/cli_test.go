package cli

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	clitest.RunSessions(t, commands, []clitest.TerminalSession{
		{Name: "usage", Lines: []string{
			"--help", "version", "export", "export a b", "status now", "status -o xml", "status --context nowhere", "status --context cls1,cls1",
			"dns status --context cls1,cls2", "--nonsense",
		}},
	})
}

// A deployed service: the Service exists, but no controller has set conditions on an export of it.
func addService(c clitest.Clusters) {
	c["cls1"].Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}})
}

func stopControllers(c clitest.Clusters) { c["cls1"].Unreachable = true }

// TestExitCodes has each exit code of each command.
func TestExitCodes(t *testing.T) {
	disableDNS := func(c clitest.Clusters) { c["cls1"].CoreDNS.SetCorefile(clitest.StockCorefile) }
	noCoreDNS := func(c clitest.Clusters) { c["cls1"].CoreDNS.Deployment.Name = "kube-dns" }
	onEKS := func(c clitest.Clusters) {
		c["cls1"].CoreDNS.Deployment.Labels["eks.amazonaws.com/component"] = "coredns"
	}
	for _, tt := range []struct {
		name, line string
		setup      func(clitest.Clusters)
		want       int
	}{
		{name: "version", line: "version", want: session.ExitOK},
		{name: "unknown flag", line: "version --nonsense", want: session.ExitUsage},
		{name: "unknown context", line: "status --context nowhere", want: session.ExitError},

		{name: "check passes", line: "check", setup: clitest.ExportWeb, want: session.ExitOK},
		{name: "check with a warning", line: "check", setup: func(c clitest.Clusters) { c["cls1"].Kubernetes = "v1.20.0" }, want: session.ExitOK},
		{name: "check with a failure", line: "check", setup: stopControllers, want: session.ExitIncomplete},
		{name: "check with a failure in the second context", line: "check --context cls1,cls2", setup: func(c clitest.Clusters) { c["cls2"].Unreachable = true }, want: session.ExitIncomplete},
		{name: "check with DNS disabled", line: "check", setup: disableDNS, want: session.ExitIncomplete},
		{name: "check with a missing DNS answer", line: "check", setup: func(c clitest.Clusters) { c["cls1"].CoreDNS.SilentPods = []string{"coredns-1"} }, want: session.ExitIncomplete},
		{name: "check as JSON", line: "check -o json", setup: stopControllers, want: session.ExitIncomplete},
		{name: "check with an argument", line: "check now", want: session.ExitUsage},

		{name: "diagnose finds no failure", line: "diagnose web", setup: clitest.ExportWeb, want: session.ExitOK},
		{name: "diagnose finds a failure", line: "diagnose web", want: session.ExitIncomplete},
		{name: "diagnose without a service", line: "diagnose", want: session.ExitUsage},

		{name: "dns status enabled", line: "dns status", want: session.ExitOK},
		{name: "dns status disabled", line: "dns status", setup: disableDNS, want: session.ExitIncomplete},
		{name: "dns status without CoreDNS", line: "dns status", setup: noCoreDNS, want: session.ExitError},
		{name: "dns status of two contexts", line: "dns status --context cls1,cls2", want: session.ExitUsage},
		{name: "dns enable", line: "dns enable", setup: disableDNS, want: session.ExitOK},
		{name: "dns enable on EKS", line: "dns enable", setup: func(c clitest.Clusters) { disableDNS(c); onEKS(c) }, want: session.ExitIncomplete},
		{name: "dns enable with one silent pod", line: "dns enable --wait 20ms", setup: func(c clitest.Clusters) {
			disableDNS(c)
			c["cls1"].CoreDNS.SilentPods = []string{"coredns-1"}
		}, want: session.ExitIncomplete},
		{name: "dns disable", line: "dns disable", want: session.ExitOK},
		{name: "dns disable on EKS", line: "dns disable", setup: onEKS, want: session.ExitIncomplete},
		{name: "dns disable without CoreDNS", line: "dns disable", setup: noCoreDNS, want: session.ExitError},

		{name: "status without problems", line: "status", want: session.ExitOK},
		{name: "status with a stale member", line: "status", setup: func(c clitest.Clusters) { c["cls1"].ControllerStatus.Members[1].Stale = true }, want: session.ExitIncomplete},
		{name: "status with an unreachable controller", line: "status", setup: stopControllers, want: session.ExitIncomplete},
		{name: "status with a conflict", line: "status -o yaml", setup: func(c clitest.Clusters) {
			c["cls1"].ControllerStatus.Conflicts = []status.Conflict{{Key: clitest.DemoWeb, Problems: []string{"PortConflict"}}}
		}, want: session.ExitIncomplete},

		{name: "get exports", line: "get exports", want: session.ExitOK},
		{name: "get imports with an unknown format", line: "get imports -o xml", want: session.ExitUsage},
		{name: "get clusters", line: "get clusters", want: session.ExitOK},
		{name: "get services", line: "get services", want: session.ExitOK},
		{name: "get services with an unreachable controller", line: "get services", setup: stopControllers, want: session.ExitIncomplete},
		{name: "get services without permission", line: "get services", setup: func(c clitest.Clusters) { c["cls1"].OnlyNamespace = "demo" }, want: session.ExitOK},
		{name: "get services without permission for anything", line: "get services", setup: func(c clitest.Clusters) { c["cls1"].OnlyNamespace = "other" }, want: session.ExitError},
		{name: "get clusters with an unreachable controller", line: "get clusters", setup: stopControllers, want: session.ExitError},

		{name: "describe a service", line: "describe web", setup: clitest.ExportWeb, want: session.ExitOK},
		{name: "describe a failing service", line: "describe web", want: session.ExitIncomplete},
		{name: "describe a service that does not exist", line: "describe nothing", want: session.ExitIncomplete},
		{name: "describe without a service", line: "describe", want: session.ExitUsage},
		{name: "registry dump", line: "registry dump", want: session.ExitOK},
		{name: "registry dump with an unreachable controller", line: "registry dump", setup: stopControllers, want: session.ExitError},
		{name: "registry get of two contexts", line: "registry get web --context cls1,cls2", want: session.ExitUsage},
		{name: "graph", line: "graph", setup: clitest.ExportWeb, want: session.ExitOK},
		{name: "graph with an unreachable controller", line: "graph", setup: stopControllers, want: session.ExitError},

		{name: "ui with an argument", line: "ui now", want: session.ExitUsage},
		{name: "ui on a port that does not exist", line: "ui --port 65536", want: session.ExitUsage},
		{name: "ui of an unknown context", line: "ui --context nowhere", want: session.ExitError},

		{name: "export is ready", line: "export web", setup: clitest.ExportWeb, want: session.ExitOK},
		{name: "export is not ready in time", line: "export web --wait 5ms", setup: addService, want: session.ExitIncomplete},
		{name: "export without waiting", line: "export web --wait 0s", setup: addService, want: session.ExitOK},
		{name: "export of a missing Service", line: "export web", want: session.ExitError},
		{name: "export with an error in one context and not ready in the other", line: "export web --wait 5ms --context cls1,cls2", setup: addService, want: session.ExitError},
		{name: "unexport of a missing export", line: "unexport web", want: session.ExitOK},
		{name: "unexport without a service", line: "unexport", want: session.ExitUsage},

		{name: "install without waiting", line: "install --wait 0s", want: session.ExitOK},
		{name: "install is not available in time", line: "install --wait 2ms", want: session.ExitIncomplete},
		{name: "install with an error in one context and not available in the other", line: "install --wait 2ms --context cls1,cls2", setup: func(c clitest.Clusters) {
			c["cls2"].Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: names.Product + "-import-policy"}})
		}, want: session.ExitUsage},
		{name: "install with an unknown controller flag", line: "install -- --nonsense", want: session.ExitUsage},
		{name: "uninstall dry run", line: "uninstall --dry-run", want: session.ExitOK},
		{name: "uninstall not confirmed", line: "uninstall", want: session.ExitError},
		{name: "uninstall without waiting", line: "uninstall --wait 0s", want: session.ExitUsage},
		{name: "join as a member", line: "join --cluster-id cls1 --clusterset-id set1", want: session.ExitOK},
		{name: "join with another identity", line: "join --cluster-id other --clusterset-id set1", want: session.ExitError},
		{name: "join with an invalid ID", line: "join --cluster-id A.b --clusterset-id set1", want: session.ExitUsage},
		{name: "leave", line: "leave --yes", want: session.ExitOK},
		{name: "leave not confirmed", line: "leave", want: session.ExitError},
		{name: "leave while exports are being withdrawn", line: "leave --yes --wait 5ms", setup: func(c clitest.Clusters) {
			c["cls1"].ControllerStatus.Leaving = append(c["cls1"].ControllerStatus.Leaving, *c["cls1"].ControllerStatus.Identity)
		}, want: session.ExitIncomplete},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clusters := clitest.NewClusters()
			if tt.setup != nil {
				tt.setup(clusters)
			}
			transcript, code := clitest.Run(t, commands, clusters.Start(t), tt.line)
			if code != tt.want {
				t.Errorf("exit code %d, want %d:\n%s", code, tt.want, transcript)
			}
			if hasError := strings.Contains(transcript, "! Error: "); hasError != (code == session.ExitError || code == session.ExitUsage) {
				t.Errorf("exit code %d with standard error:\n%s", code, transcript)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	connections := clusters.Start(t)
	for line, want := range map[string]string{
		"__complete unexport ":            "web\n",
		"__complete unexport web ":        ":4\n",
		"__complete status -o j":          "json\n",
		"__complete check --context cls1": "cls1\n",
	} {
		got, code := clitest.Run(t, commands, connections, line)
		if code != session.ExitOK || !strings.Contains(got, want) {
			t.Errorf("%s: exit code %d, want %q:\n%s", line, code, want, got)
		}
	}
}

func TestMainHelpNeedsNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for _, args := range [][]string{{"--help"}, {"dns", "enable", "--help"}, {"version"}} {
		if code := Main(t.Context(), args, "v1", genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}); code != session.ExitOK {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

// A command that returns a usage error exits with ExitUsage even if the error is wrapped.
func TestUsageErrorUnwraps(t *testing.T) {
	if err := session.NewUsageError(io.EOF); !errors.Is(err, io.EOF) {
		t.Errorf("%v does not wrap its reason", err)
	}
}
