package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// TestCommandsWithAPIServer runs commands against a real API server, which has features that the
// fake one lacks: server-side apply, the authorizer and the kubeconfig.
func TestCommandsWithAPIServer(t *testing.T) {
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	config, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	user, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := kube.CoreV1().Services("default").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	startCoreDNS(t, kube)
	for _, tt := range []struct {
		line     string
		wantCode int
		want     []string
	}{
		{"export web", session.ExitError, []string{"install the CRDs"}},
		{"get exports", session.ExitError, []string{"listing ServiceExports"}},
		{"check", session.ExitIncomplete, []string{"× MCS API", "× permissions", "the controller is not installed"}},
		{"install --wait 0s -- --aws-region=eu-west-1", session.ExitOK, []string{"Deployment cloud-map-mcs-system/cloud-map-mcs-controller-manager applied"}},
		{"install --wait 0s -- --aws-region=eu-west-1", session.ExitOK, nil},
		{"check", session.ExitIncomplete, []string{"√ MCS API", "√ CRD revision", "√ About API", "√ permissions", "× controller"}},
		{"join --cluster-id cls1 --clusterset-id set --wait 0s", session.ExitOK, []string{"ClusterProperty clusterset.k8s.io set to set"}},
		{"join --cluster-id cls1 --clusterset-id other --wait 0s", session.ExitError, []string{`the value is already "set"`}},
		{"export web -n default --wait 1s", session.ExitIncomplete, []string{"ServiceExport default/web created", "no controller has set conditions"}},
		{"get exports -A", session.ExitOK, []string{"web"}},
		{"diagnose web -n default", session.ExitIncomplete, []string{"Failed in", "at EndpointSlices: 0 of 0 endpoints are ready"}},
		{"unexport web", session.ExitOK, []string{"ServiceExport default/web deleted"}},
		{"leave --yes --wait 0s", session.ExitIncomplete, []string{"ClusterProperty cluster.clusterset.k8s.io deleted"}},
		{"dns enable", session.ExitError, []string{"1.11.4 is too old", "kubectl mcs dns enable --beside"}},
		{"dns enable --beside --dry-run", session.ExitOK, []string{"+    forward . SERVICE_IP"}},
		{"dns enable --beside --wait 0s", session.ExitOK, []string{"Applied Deployment kube-system/clusterset-dns", "Edited ConfigMap kube-system/coredns"}},
		{"dns enable --beside --wait 0s", session.ExitOK, []string{"is already enabled in the Corefile"}},
		{"dns status", session.ExitIncomplete, []string{"service account clusterset-dns can list and watch ServiceImports", "forwards clusterset.local to Service kube-system/clusterset-dns"}},
		{"check", session.ExitIncomplete, []string{"√ DNS, CoreDNS beside", "√ DNS, permission", "√ DNS, forwarding", "× DNS, answers of clusterset-dns"}},
		{"dns disable --wait 0s", session.ExitOK, []string{"Deleted Deployment, Service, ConfigMap, ClusterRoleBinding, ClusterRole, ServiceAccount clusterset-dns"}},
		{"dns status", session.ExitIncomplete, []string{"clusterset.local: disabled", "kubectl mcs dns enable --beside"}},
		{"uninstall --dry-run", session.ExitOK, []string{"Deployment cloud-map-mcs-system/cloud-map-mcs-controller-manager is deleted", "no controller runs"}},
		{"status --context nowhere", session.ExitError, []string{`context "nowhere" does not exist`}},
	} {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		code := Main(t.Context(), append([]string{"--kubeconfig=" + path}, strings.Fields(tt.line)...), "v1.2.3", streams)
		if code != tt.wantCode {
			t.Errorf("%s: exit code %d, want %d", tt.line, code, tt.wantCode)
		}
		for _, text := range tt.want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s does not print %q:\n%s", tt.line, text, out.String())
			}
		}
	}
	t.Run("teams", func(t *testing.T) { testTeams(t, config, kube, path) })
	after, err := kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(clitest.StockCorefile, after.Data["Corefile"]); diff != "" {
		t.Errorf("Corefile after dns enable --beside and dns disable (-before +after):\n%s", diff)
	}
}

// startCoreDNS creates the objects of a CoreDNS that is too old for clusterset.local. No pod runs.
func startCoreDNS(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	stock := clitest.NewCoreDNS()
	stock.SetImage("registry.k8s.io/coredns/coredns:v1.11.4")
	stock.Deployment.Spec.Template.Labels = stock.Deployment.Spec.Selector.MatchLabels
	if _, err := kube.CoreV1().ConfigMaps("kube-system").Create(t.Context(), stock.Config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.AppsV1().Deployments("kube-system").Create(t.Context(), stock.Deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
