package dns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
)

func commands(s *session.Session) []*cobra.Command { return []*cobra.Command{Command(s)} }

// run runs one command and returns its transcript with the writes, which begin with "~ ", and the
// exit code.
func run(t *testing.T, c *clitest.CoreDNS, line string) string {
	t.Helper()
	transcript, code := clitest.Run(t, commands, map[string]*session.Cluster{"": c.Cluster()}, line)
	return fmt.Sprintf("%s%s[exit %d]\n\n", transcript, c.Writes(), code)
}

// TestSessions compares terminal sessions with testdata/<name>.txt.
func TestSessions(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(*clitest.CoreDNS)
		lines []string
	}{
		{name: "enable-disable", lines: []string{
			"dns status", "dns enable --dry-run", "dns enable", "dns enable", "dns status", "dns status -o json",
			"dns disable --dry-run", "dns disable", "dns disable", "dns status",
		}},
		{name: "too-old", setup: func(c *clitest.CoreDNS) {
			c.SetImage("602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.11.4-eksbuild.2")
		}, lines: []string{"dns enable --force", "dns status"}},
		{name: "unknown-version", setup: func(c *clitest.CoreDNS) { c.SetImage("example.com/dns/coredns@sha256:0123") }, lines: []string{"dns enable", "dns status"}},
		{name: "no-crds", setup: func(c *clitest.CoreDNS) { c.Served = nil }, lines: []string{"dns enable", "dns status"}},
		{name: "only-v1beta1", setup: func(c *clitest.CoreDNS) { c.Served = []string{"v1beta1"} }, lines: []string{"dns enable", "dns enable --beside", "dns status"}},
		{name: "no-coredns", setup: func(c *clitest.CoreDNS) { c.Deployment.Name = "kube-dns" }, lines: []string{"dns enable", "dns status"}},
		{name: "no-corefile", setup: func(c *clitest.CoreDNS) { delete(c.Config.Data, "Corefile") }, lines: []string{"dns enable"}},
		{name: "other-implementation", setup: func(c *clitest.CoreDNS) {
			c.SetCorefile(clitest.StockCorefile + "clusterset.local:53 {\n    forward . 10.0.0.9\n}\n")
		}, lines: []string{"dns enable", "dns status", "dns disable"}},
		{name: "partial", setup: func(c *clitest.CoreDNS) {
			c.SetCorefile(strings.Replace(clitest.StockCorefile, "cluster.local", "cluster.local clusterset.local", 1))
		}, lines: []string{"dns status", "dns enable", "dns status"}},
		{name: "eks", setup: func(c *clitest.CoreDNS) { c.Deployment.Labels["eks.amazonaws.com/component"] = "coredns" }, lines: []string{
			"dns enable", "dns status", "dns enable --force", "dns disable", "dns disable --force",
		}},
		{name: "no-restart", setup: func(c *clitest.CoreDNS) { c.IgnoresRestart = true }, lines: []string{
			"dns enable --no-restart --wait 20ms", "dns enable --no-restart --wait 0s",
		}},
		{name: "no-restart-no-reload", setup: func(c *clitest.CoreDNS) {
			c.SetCorefile(strings.Replace(clitest.StockCorefile, "    reload\n", "", 1))
		}, lines: []string{
			"dns enable --no-restart",
			"dns enable", // restarts CoreDNS, which has not applied the Corefile
		}},
		{name: "rollout-stuck", setup: func(c *clitest.CoreDNS) { c.Deployment.Status.UpdatedReplicas = 1 }, lines: []string{"dns enable --wait 20ms"}},
		{name: "one-pod-silent", setup: func(c *clitest.CoreDNS) { c.SilentPods = []string{"coredns-2"} }, lines: []string{"dns enable --wait 20ms", "dns status"}},
		{name: "no-permission-to-check", setup: func(c *clitest.CoreDNS) { c.NoReviews, c.NoPortForward = true, true }, lines: []string{"dns enable", "dns status"}},
		{name: "unreachable-pods", setup: func(c *clitest.CoreDNS) { c.QueryError = errors.New("no route") }, lines: []string{"dns enable --wait 20ms", "dns status"}},
		{name: "foreign-role", setup: func(c *clitest.CoreDNS) {
			c.Objects = append(c.Objects, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: coredns.RoleName}})
		}, lines: []string{"dns enable", "dns disable"}},
		{name: "drifted-role", setup: func(c *clitest.CoreDNS) {
			role, binding := coredns.Role(), coredns.Binding("kube-system", "other")
			role.Rules = nil
			c.Objects = append(c.Objects, role, binding)
		}, lines: []string{"dns enable"}},
		{name: "warnings", setup: addWarnings, lines: []string{"dns enable", "dns status"}},
		{name: "kubespray-cache", setup: func(c *clitest.CoreDNS) {
			addCache(c, "nodelocaldns", "cluster.local:53 {\n    forward . 10.233.0.3\n}\n")
		}, lines: []string{"dns status"}},
		{name: "cilium-cache", setup: func(c *clitest.CoreDNS) {
			block := "cluster.local:53 {\n    bind 0.0.0.0\n    forward . __PILLAR__CLUSTER__DNS__ {\n        force_tcp\n    }\n}\n"
			addCache(c, "node-local-dns", block+strings.Replace(block, "cluster.local", coredns.Zone, 1))
		}, lines: []string{"dns status"}},
		{name: "usage", lines: []string{
			"dns status -o yaml", "dns enable now", "dns enable --cluster-domain corp.example", "dns enable --print", "dns enable --image coredns:v1.15.0",
			"dns enable --beside --image registry.k8s.io/coredns/coredns:v1.11.4",
		}},
		{name: "beside", setup: oldCoreDNS, lines: []string{
			"dns enable --beside --dry-run", "dns enable --beside", "dns enable --beside", "dns status", "dns status -o json", "dns enable",
			"dns disable --dry-run", "dns disable", "dns disable", "dns status",
		}},
		{name: "beside-print", lines: []string{"dns enable --beside --print --image example.com/coredns:v1.14.5"}},
		{name: "beside-aks", setup: aks, lines: []string{
			"dns enable --beside --dry-run", "dns enable --beside", "dns enable --beside", "dns status", "dns disable --dry-run", "dns disable", "dns status",
		}},
		{name: "beside-k3s", setup: func(c *clitest.CoreDNS) {
			aks(c)
			c.SetCorefile(strings.Replace(c.Config.Data["Corefile"], "custom/", "/etc/coredns/custom/", 1))
			c.Objects = append(c.Objects, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns-custom"},
				Data:       map[string]string{"corp.server": "corp.example:53 {\n    forward . 10.0.0.1\n}\n"},
			})
		}, lines: []string{"dns enable --beside", "dns status", "dns disable"}},
		{name: "aks", setup: func(c *clitest.CoreDNS) {
			aks(c)
			c.SetImage("registry.k8s.io/coredns/coredns:v1.15.0")
		}, lines: []string{"dns enable --dry-run"}},
		{name: "beside-custom-taken", setup: func(c *clitest.CoreDNS) {
			aks(c)
			c.Objects = append(c.Objects, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns-custom"},
				Data:       map[string]string{"mcs.server": "clusterset.local:53 {\n    forward . 10.0.0.1\n}\n"},
			})
		}, lines: []string{"dns enable --beside"}},
		{name: "beside-eks", setup: func(c *clitest.CoreDNS) {
			oldCoreDNS(c)
			c.Deployment.Labels["eks.amazonaws.com/component"] = "coredns"
		}, lines: []string{"dns enable --beside", "dns status", "dns enable --beside --force", "dns enable --beside", "dns disable", "dns disable --force"}},
		{name: "beside-gke", setup: func(c *clitest.CoreDNS) { c.Deployment.Name = "kube-dns" }, lines: []string{"dns enable --beside", "dns status", "dns disable", "dns status"}},
		{name: "beside-gke-configured", setup: func(c *clitest.CoreDNS) {
			c.Deployment.Name, c.OtherServerAnswers = "kube-dns", true
		}, lines: []string{"dns enable --beside", "dns status", "dns disable", "dns disable --force"}},
		{name: "beside-rke2", setup: func(c *clitest.CoreDNS) { c.Deployment.Name = "rke2-coredns-rke2-coredns" }, lines: []string{"dns enable --beside --dry-run", "dns enable --beside"}},
		{name: "beside-auto-mode", setup: func(c *clitest.CoreDNS) {
			c.Deployment.Name = "web"
			c.Objects = []runtime.Object{&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "client"},
				Spec:       corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Nameservers: clitest.BesideIPs[:1]}},
			}}
		}, lines: []string{"dns status", "dns enable --beside", "dns status", "dns disable", "dns disable --force"}},
		{name: "beside-image", setup: func(c *clitest.CoreDNS) {
			oldCoreDNS(c)
			c.BesideImageProblem = "ImagePullBackOff"
		}, lines: []string{"dns enable --beside --image example.com/coredns:v1.15.0", "dns status", "dns disable"}},
		{name: "beside-address-changed", setup: func(c *clitest.CoreDNS) {
			oldCoreDNS(c)
			corefile, err := coredns.Forward(clitest.StockCorefile, "", []string{"10.96.0.1"})
			if err != nil {
				panic(err)
			}
			c.SetCorefile(corefile)
		}, lines: []string{"dns status", "dns enable --beside --wait 0s --no-restart", "dns status", "dns enable --beside", "dns status"}},
		{name: "beside-enabled-already", setup: func(c *clitest.CoreDNS) { c.Enable() }, lines: []string{"dns enable --beside", "dns status"}},
		{name: "beside-no-crds", setup: func(c *clitest.CoreDNS) { c.Served = nil }, lines: []string{"dns enable --beside"}},
		{name: "beside-foreign-service", setup: func(c *clitest.CoreDNS) {
			c.BesideObjects = []client.Object{&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: coredns.BesideName}}}
		}, lines: []string{"dns enable --beside"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := clitest.NewCoreDNS()
			if tt.setup != nil {
				tt.setup(c)
			}
			c.Start()
			var got strings.Builder
			for _, line := range tt.lines {
				got.WriteString(run(t, c, line))
			}
			golden.Check(t, filepath.Join("testdata", tt.name+".txt"), got.String())
		})
	}
}

// oldCoreDNS makes a cluster with the CoreDNS of EKS 1.30 to 1.32.
func oldCoreDNS(c *clitest.CoreDNS) { c.SetImage("registry.k8s.io/coredns/coredns:v1.11.4") }

// aks makes a cluster that reads server blocks from ConfigMap coredns-custom, and whose Corefile is
// managed.
func aks(c *clitest.CoreDNS) {
	oldCoreDNS(c)
	c.Config.Labels["addonmanager.kubernetes.io/mode"] = "Reconcile"
	c.SetCorefile(clitest.StockCorefile + "import custom/*.server\n")
	c.Deployment.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "custom-config-volume", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: coredns.CustomName}},
	}}}
}

// addWarnings makes a cluster about which enable warns: one replica, k3s, a node-local cache.
func addWarnings(c *clitest.CoreDNS) {
	*c.Deployment.Spec.Replicas = 1
	c.Deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	c.Config.Annotations = map[string]string{"objectset.rio.cattle.io/owner-gvk": "k3s.cattle.io/v1, Kind=Addon"}
	addCache(c, "node-local-dns", "cluster.local:53 {\n    forward . 172.20.0.10\n}\n")
}

// addCache adds the ConfigMap of a node-local cache.
func addCache(c *clitest.CoreDNS, name, corefile string) {
	c.Objects = append(c.Objects, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{"Corefile": corefile},
	})
}

// Enable followed by disable leaves the ConfigMap unchanged, including its other keys.
func TestDisableRestoresConfigMap(t *testing.T) {
	c := clitest.NewCoreDNS()
	c.Start()
	run(t, c, "dns enable")
	if c.Corefile() == clitest.StockCorefile {
		t.Fatal("enable did not change the Corefile")
	}
	run(t, c, "dns disable")
	after, err := c.Kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(clitest.NewCoreDNS().Config.Data, after.Data); diff != "" {
		t.Errorf("ConfigMap after enable and disable (-before +after):\n%s", diff)
	}
}

// A write of another client between read and write is kept: the edit is applied to it.
func TestEnableKeepsConcurrentEdit(t *testing.T) {
	c := clitest.NewCoreDNS()
	c.Start()
	const theirs = "# edited by another client\n" + clitest.StockCorefile
	conflicts := 0
	c.Kube.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		changed := clitest.NewCoreDNS().Config
		changed.Data["Corefile"] = theirs
		if err := c.Kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "kube-system"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "coredns", errors.New("changed"))
	})
	run(t, c, "dns enable")
	want, err := coredns.Enable(theirs, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.Corefile()); diff != "" {
		t.Errorf("Corefile (-want +got):\n%s", diff)
	}
}

func TestResponses(t *testing.T) {
	for _, tt := range []struct {
		name         string
		responses    responses
		wantEnabled  bool // allAgree(true)
		wantDisabled bool // allAgree(false)
		wantResult   string
	}{
		{name: "all pods answer", responses: responses{pods: 2, answered: 2}, wantEnabled: true, wantResult: "ok"},
		{name: "one of two pods answers", responses: responses{pods: 2, answered: 1}, wantResult: "missing"},
		{name: "no pod answers", responses: responses{pods: 2}, wantDisabled: true, wantResult: "missing"},
		{name: "no pod is ready", responses: responses{}, wantDisabled: true, wantResult: "missing"},
		{name: "a pod could not be queried", responses: responses{pods: 2, answered: 1, err: io.ErrUnexpectedEOF}, wantResult: "unknown"},
		{name: "no permission to query", responses: responses{skipped: "no permission"}, wantDisabled: true, wantResult: "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.responses.allAgree(true); got != tt.wantEnabled {
				t.Errorf("allAgree(true) = %v", got)
			}
			if got := tt.responses.allAgree(false); got != tt.wantDisabled {
				t.Errorf("allAgree(false) = %v", got)
			}
			if got := tt.responses.check(); string(got.Result) != tt.wantResult {
				t.Errorf("check = %+v, want %s", got, tt.wantResult)
			}
			if got, want := tt.responses.isComplete(), tt.wantResult != "unknown"; got != want {
				t.Errorf("isComplete = %v", got)
			}
		})
	}
}

func TestOverallState(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*coreDNS)
		pods responses
		want coredns.State
	}{
		{name: "enabled", set: func(*coreDNS) {}, pods: responses{pods: 1, answered: 1}, want: coredns.Enabled},
		{name: "pods not queried", set: func(*coreDNS) {}, pods: responses{skipped: "no permission"}, want: coredns.Enabled},
		{name: "permission not checked", set: func(c *coreDNS) { c.permission = unchecked }, pods: responses{pods: 1, answered: 1}, want: coredns.Enabled},
		{name: "permission denied", set: func(c *coreDNS) { c.permission = denied }, pods: responses{pods: 1, answered: 1}, want: coredns.Partial},
		{name: "no answers", set: func(*coreDNS) {}, pods: responses{pods: 1}, want: coredns.Partial},
		{name: "API not served", set: func(c *coreDNS) { c.served = nil }, pods: responses{pods: 1, answered: 1}, want: coredns.Partial},
		{name: "CoreDNS too old", set: func(c *coreDNS) { c.version = "1.11.4" }, pods: responses{pods: 1, answered: 1}, want: coredns.Partial},
		{name: "Corefile disabled, permission granted", set: func(c *coreDNS) { c.inspection.State = coredns.Disabled }, want: coredns.Partial},
		{name: "Corefile disabled, permission denied", set: func(c *coreDNS) { c.inspection.State, c.permission = coredns.Disabled, denied }, want: coredns.Disabled},
	} {
		c := &coreDNS{
			context: "cls1", deployment: &appsv1.Deployment{}, version: "1.15.0", served: []string{"v1alpha1"}, permission: granted,
			inspection: coredns.Inspection{State: coredns.Enabled},
		}
		tt.set(c)
		if got := c.overallState(c.checks(tt.pods)); got != tt.want {
			t.Errorf("%s: state %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRestartInterrupts(t *testing.T) {
	for _, tt := range []struct {
		replicas int32
		want     bool
	}{{1, true}, {2, false}, {3, false}} {
		c := &coreDNS{deployment: clitest.NewCoreDNS().Deployment}
		c.deployment.Spec.Replicas = &tt.replicas
		if got := c.restartInterrupts(); got != tt.want {
			t.Errorf("%d replicas with at most 1 unavailable: %v, want %v", tt.replicas, got, tt.want)
		}
	}
}

func TestQueryVersion(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(io.ReadWriter) error
		want  bool
	}{
		{name: "the zone is served", serve: func(conn io.ReadWriter) error { return clitest.AnswerQuery(conn, true) }, want: true},
		{name: "the name does not exist", serve: func(conn io.ReadWriter) error { return clitest.AnswerQuery(conn, false) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := net.Pipe()
			defer func() { _ = client.Close() }()
			go func() {
				if err := tt.serve(server); err != nil {
					t.Error(err)
				}
			}()
			got, err := queryVersion(client)
			if err != nil || got != tt.want {
				t.Errorf("queryVersion = %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	t.Run("connection closed", func(t *testing.T) {
		client, server := net.Pipe()
		_ = server.Close()
		if _, err := queryVersion(client); err == nil {
			t.Error("a closed connection is no answer")
		}
	})
}
