package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestOnAnAPIServer types commands at a real API server: what the fake ones take for granted, such as server-side apply, the
// authorizer and the kubeconfig, is so.
func TestOnAnAPIServer(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		if os.Getenv("REQUIRE_ENVTEST") != "" {
			t.Fatal("KUBEBUILDER_ASSETS is not set: see make test")
		}
		t.Skip("it takes KUBEBUILDER_ASSETS, the folder of an API server")
	}
	env := &envtest.Environment{}
	config, err := env.Start()
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

	for _, tt := range []struct {
		line     string
		wantCode int
		want     []string
	}{
		{"export web", ExitError, []string{"install the CRDs"}},
		{"get exports", ExitError, []string{"listing ServiceExports"}},
		{"check", ExitIncomplete, []string{"× MCS API", "× permissions", "there is no pod of it"}},
		{"install --wait 0s -- --aws-region=eu-west-1", ExitOK, []string{"Deployment cloud-map-mcs-system/cloud-map-mcs-controller-manager applied"}},
		{"install --wait 0s -- --aws-region=eu-west-1", ExitOK, nil},
		{"check", ExitIncomplete, []string{"√ MCS API", "√ CRD revision", "√ About API", "√ permissions", "× controller"}},
		{"join --cluster-id cls1 --clusterset-id set --wait 0s", ExitOK, []string{"ClusterProperty clusterset.k8s.io is set"}},
		{"join --cluster-id cls1 --clusterset-id other --wait 0s", ExitError, []string{`is "set" already`}},
		{"export web -n default --wait 1s", ExitIncomplete, []string{"ServiceExport default/web created", "no controller has looked at it"}},
		{"get exports -A", ExitOK, []string{"web"}},
		{"diagnose web -n default", ExitIncomplete, []string{"It stops in", "at EndpointSlices: 0 of 0 endpoints ready"}},
		{"unexport web", ExitOK, []string{"ServiceExport default/web deleted"}},
		{"leave --yes --wait 0s", ExitOK, []string{"ClusterProperty cluster.clusterset.k8s.io deleted"}},
		{"uninstall --dry-run", ExitOK, []string{"Deployment cloud-map-mcs-system/cloud-map-mcs-controller-manager is deleted", "no controller runs"}},
		{"status --context nowhere", ExitError, []string{`context "nowhere" does not exist`}},
	} {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		code := Main(t.Context(), append([]string{"--kubeconfig=" + path}, strings.Fields(tt.line)...), "v1.2.3", streams)
		if code != tt.wantCode {
			t.Errorf("%s: exit code %d, want %d", tt.line, code, tt.wantCode)
		}
		for _, text := range tt.want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s does not say %q:\n%s", tt.line, text, out.String())
			}
		}
	}
}
