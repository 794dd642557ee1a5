package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// startKubernetes starts an API server with the MCS API and returns a client and the name of a
// kubeconfig.
func startKubernetes(t *testing.T) (kube client.Client, kubeconfig string) {
	t.Helper()
	apiservertest.NeedAssets(t)
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, manifest := range [][]byte{mcscrd.ServiceExportCRD, mcscrd.ServiceImportCRD} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(manifest, crd); err != nil {
			t.Fatal(err)
		}
		crds = append(crds, crd)
	}
	env := &envtest.Environment{CRDs: crds}
	cfg, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	if kube, err = client.New(cfg, client.Options{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, env.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return kube, kubeconfig
}

// body returns the response of a URL, "" if there is none.
func body(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// TestStart_RunsController runs the command against a real API server and an emulator of Cloud Map
// until SIGTERM.
func TestStart_RunsController(t *testing.T) {
	kube, kubeconfig := startKubernetes(t)
	startCloudMap(t)
	if err := kube.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "system"}}); err != nil {
		t.Fatal(err)
	}
	metrics, status, profiles := testprocess.FreeAddress(t), testprocess.FreeAddress(t), testprocess.FreeAddress(t)
	exited := make(chan int, 1)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) // does not end the test itself
	stop := sync.OnceValue(func() int {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		return <-exited
	})
	t.Cleanup(func() { stop() })
	go func() {
		exited <- start([]string{
			"--kubeconfig=" + kubeconfig, "--cluster-id=cls1", "--clusterset-id=set1", "--aws-region=us-east-1", "--peer-notifications=false",
			"--leader-election-namespace=system", "--metrics-bind-address=" + metrics, "--metrics-secure=false", "--status-bind-address=" + status, "--health-probe-bind-address=0",
			"--pprof-bind-address=" + profiles,
		})
	}()
	running := func() {
		select {
		case code := <-exited:
			exited <- code
			t.Fatalf("the controller exited with %d", code)
		default:
		}
	}
	// The controller sets the loggers of libraries that kube uses as well, before it serves
	// metrics.
	eventually(t, func() string {
		running()
		if body(t.Context(), "http://"+metrics+"/metrics") == "" {
			return "no metrics"
		}
		return ""
	})
	eventually(t, func() string {
		running()
		var identities corev1.ConfigMap
		if err := kube.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: names.IdentityConfigMap}, &identities); err != nil {
			return err.Error()
		}
		if identities.Data["set1.cls1.resource-ids"] == "" {
			return fmt.Sprintf("the ConfigMap has %v, want resource IDs", identities.Data)
		}
		scrape := body(t.Context(), "http://"+metrics+"/metrics")
		for _, want := range []string{"cloud_map_mcs_registry_requests_total{", "cloud_map_mcs_registry_members", "controller_runtime_"} {
			if !strings.Contains(scrape, want) {
				return "no metric " + want
			}
		}
		if text := body(t.Context(), "http://"+status+"/status"); !strings.Contains(text, "RegisterInstance") {
			return "the status has no requests: " + text
		}
		return ""
	})
	if body(t.Context(), "http://"+profiles+"/debug/pprof/heap") == "" {
		t.Error("there is no profile of the heap")
	}
	if code := stop(); code != 0 {
		t.Errorf("the controller exits with %d after SIGTERM, want 0", code)
	}
}
