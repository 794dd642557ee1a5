package deploy_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// These tests run Helm on a real API server, with cluster-wide objects that other tools own or
// changed. No kubelet runs, so the Deployment never becomes ready; test/e2e has the rest.

const (
	exportsCRD    = "serviceexports.multicluster.x-k8s.io"
	propertiesCRD = "clusterproperties.about.k8s.io"
	releaseLabel  = "multicluster.x-k8s.io/release-version"
	revisionLabel = "multicluster.x-k8s.io/crd-schema-revision"
	releaseNote   = "meta.helm.sh/release-name"
	keepNote      = "helm.sh/resource-policy"
)

// server is an API server with a Helm installation.
type server struct {
	client.Client
	kubeconfig string
}

func newServer(t *testing.T) *server {
	t.Helper()
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	cfg, err := apiservertest.Start(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, env.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return &server{c, kubeconfig}
}

// helm runs Helm against the server and fails the test on an error.
func (s *server) helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := helm(t, append(args, "--kubeconfig", s.kubeconfig, "--namespace", system)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *server) install(t *testing.T, chart string, args ...string) string {
	t.Helper()
	return s.helm(t, append([]string{"upgrade", "--install", release, chart, "--create-namespace"}, args...)...)
}

func (s *server) crd(t *testing.T, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// change writes a CRD as another implementation would.
func (s *server) change(t *testing.T, name string, edit func(*apiextensionsv1.CustomResourceDefinition)) {
	t.Helper()
	crd := s.crd(t, name)
	edit(crd)
	if err := s.Update(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
}

// strip removes Helm's labels and annotations, as kubectl replace does.
func strip(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Annotations = map[string]string{"api-approved.kubernetes.io": crd.Annotations["api-approved.kubernetes.io"]}
}

func (s *server) has(t *testing.T, kind schema.GroupVersionKind, name string) bool {
	t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(kind)
	err := s.Get(t.Context(), client.ObjectKey{Name: name}, obj)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

func (s *server) hasGuard(t *testing.T) bool {
	t.Helper()
	return s.has(t, schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"}, "multicluster-crds-only-newer")
}

func TestChartAndTheClustersCRDs(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	shipped := shippedRelease(t)
	s := newServer(t)
	var uid string // of the CRD: a new UID means that it was deleted, with every ServiceExport

	step := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.FailNow() // each step needs the previous one
		}
	}
	kept := func(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		crd := s.crd(t, exportsCRD)
		if string(crd.UID) != uid {
			t.Fatal("the CRD was deleted and made again")
		}
		return crd
	}

	step("an older chart is installed", func(t *testing.T) {
		s.install(t, olderChart(t, shipped))
		crd := s.crd(t, exportsCRD)
		uid = string(crd.UID)
		if crd.Labels[releaseLabel] != "v0.5.1" || crd.Annotations[keepNote] != "keep" || !s.hasGuard(t) {
			t.Errorf("release %s, annotations %v, guard %t", crd.Labels[releaseLabel], crd.Annotations, s.hasGuard(t))
		}
		export := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
			"metadata": map[string]any{"name": "web", "namespace": "default"},
		}}
		if err := s.Create(t.Context(), export); err != nil {
			t.Fatal(err)
		}
	})
	step("an upgrade brings the CRDs up to date", func(t *testing.T) {
		s.install(t, chartDir)
		if got := kept(t).Labels[releaseLabel]; got != shipped {
			t.Errorf("the CRD is of release %s, want %s", got, shipped)
		}
	})
	step("another implementation brings a newer one, and it stays", func(t *testing.T) {
		s.change(t, exportsCRD, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Labels[releaseLabel], crd.Labels[revisionLabel] = "v9.0.0-rc.1", "0"
			addField(crd)
		})
		s.install(t, chartDir, "--set", "replicas=3")
		crd := kept(t)
		if crd.Labels[releaseLabel] != "v9.0.0-rc.1" || !hasField(crd) {
			t.Errorf("the newer CRD was replaced: release %s, its field is there: %t", crd.Labels[releaseLabel], hasField(crd))
		}
	})
	step("one that lost the marks of Helm is not deleted", func(t *testing.T) {
		s.change(t, exportsCRD, strip)
		s.install(t, chartDir)
		if crd := kept(t); crd.Annotations[keepNote] != "keep" || !hasField(crd) {
			t.Errorf("annotations %v, its field is there: %t", crd.Annotations, hasField(crd))
		}
	})
	step("nor when it goes out of the release in the same upgrade", func(t *testing.T) {
		s.change(t, exportsCRD, strip)
		s.install(t, chartDir, "--set", "crds.install=false")
		if crd := kept(t); crd.Annotations[keepNote] != "keep" {
			t.Errorf("annotations %v", crd.Annotations)
		}
		s.install(t, chartDir, "--set", "crds.install=false")
		kept(t)
	})
	step("the guard goes and the CRDs stay at an uninstallation", func(t *testing.T) {
		s.helm(t, "uninstall", release)
		kept(t)
		if s.hasGuard(t) {
			t.Error("the guard is still there")
		}
		export := &unstructured.Unstructured{}
		export.SetAPIVersion("multicluster.x-k8s.io/v1beta1")
		export.SetKind("ServiceExport")
		if err := s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, export); err != nil {
			t.Error(err)
		}
	})
	step("a release of the same name takes them over", func(t *testing.T) {
		notes := s.install(t, chartDir)
		if kept(t).Annotations[releaseNote] != release || strings.Contains(notes, "existed before") || !s.hasGuard(t) {
			t.Errorf("annotations %v, guard %t, notes:\n%s", kept(t).Annotations, s.hasGuard(t), notes)
		}
		s.helm(t, "uninstall", release)
	})
	step("CRDs of another tool are not changed, and reported", func(t *testing.T) {
		for _, name := range []string{exportsCRD, propertiesCRD} {
			s.change(t, name, strip)
		}
		before := s.crd(t, propertiesCRD).ResourceVersion
		for range 2 {
			notes := s.install(t, chartDir)
			if !strings.Contains(notes, "CustomResourceDefinition "+propertiesCRD+" existed before") {
				t.Errorf("the notes do not say what was left alone:\n%s", notes)
			}
			if after := s.crd(t, propertiesCRD).ResourceVersion; after != before {
				t.Errorf("the CRD of another tool was written: version %s, then %s", before, after)
			}
		}
		s.helm(t, "uninstall", release)
		kept(t)
		s.crd(t, propertiesCRD)
	})
	step("nothing else is left", func(t *testing.T) {
		for _, kind := range []string{"ClusterRole", "ClusterRoleBinding"} {
			if s.has(t, schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: kind}, "cloud-map-mcs-controller-manager") {
				t.Errorf("%s is still there", kind)
			}
		}
		var secrets corev1.SecretList
		if err := s.List(t.Context(), &secrets, client.InNamespace(system)); err != nil || len(secrets.Items) != 1 || secrets.Items[0].Name != names.SigningKeySecret {
			t.Errorf("%d secrets are still there, want only the signing key (%v)", len(secrets.Items), err)
		}
	})
}

// kubectl runs the kubectl that comes with the API server.
func (s *server) kubectl(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append(args, "--kubeconfig", s.kubeconfig)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

// TestSigningKeyIsKept installs and upgrades with all tools after the controller has written its
// key into the Secret.
func TestSigningKeyIsKept(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	key := client.ObjectKey{Namespace: system, Name: names.SigningKeySecret}
	s.kubectl(t, "apply", "-k", "base")
	var secret corev1.Secret
	if err := s.Get(t.Context(), key, &secret); err != nil || len(secret.Data) > 0 {
		t.Fatalf("the installed Secret has %d keys (%v), want none", len(secret.Data), err)
	}
	secret.Data = map[string][]byte{"seed": []byte("0123456789abcdef0123456789abcdef")}
	if err := s.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"kubectl apply", func() { s.kubectl(t, "apply", "-k", "base") }},
		{"kubectl apply --server-side", func() { s.kubectl(t, "apply", "-k", "base", "--server-side", "--force-conflicts") }},
		{"helm install over kubectl's objects", func() { s.helm(t, "install", release, chartDir, "--take-ownership", "--force-conflicts") }},
		{"helm upgrade", func() { s.install(t, chartDir, "--set", "replicas=3", "--force-conflicts") }},
		{"helm rollback", func() { s.helm(t, "rollback", release, "1", "--force-conflicts") }},
		{"helm uninstall", func() { s.helm(t, "uninstall", release) }},
		{"helm install after an uninstallation", func() { s.install(t, chartDir) }},
	} {
		step.run()
		var now corev1.Secret
		if err := s.Get(t.Context(), key, &now); err != nil || !maps.EqualFunc(now.Data, secret.Data, bytes.Equal) {
			t.Errorf("after %s the Secret has %d keys (%v), want the one that the controller wrote", step.name, len(now.Data), err)
		}
	}
}

// TestServiceAccountOfEksctl installs with all tools but the plugin after eksctl create
// iamserviceaccount has made the ServiceAccount with its role: the role stays, and uninstalling the
// chart keeps both.
func TestServiceAccountOfEksctl(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	const role, arn = "eks.amazonaws.com/role-arn", "arn:aws:iam::111122223333:role/eksctl-cls1-mcs"
	s := newServer(t)
	s.kubectl(t, "create", "namespace", system)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: system, Name: release + "-manager", Annotations: map[string]string{role: arn}, Labels: map[string]string{"app.kubernetes.io/managed-by": "eksctl"},
	}}
	if err := s.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	if _, err := helm(t, "install", release, chartDir, "--namespace", system, "--kubeconfig", s.kubeconfig); err == nil ||
		!strings.Contains(err.Error(), "cannot be imported into the current release") {
		t.Errorf("the chart creates a ServiceAccount that exists: %v", err)
	}
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"helm install", func() { s.install(t, chartDir, "--set", "serviceAccount.create=false") }},
		{"helm uninstall", func() { s.helm(t, "uninstall", release) }},
		{"kubectl apply", func() { s.kubectl(t, "apply", "-k", "base") }},
		{"kubectl apply --server-side", func() { s.kubectl(t, "apply", "-k", "base", "--server-side", "--force-conflicts") }},
	} {
		step.run()
		var now corev1.ServiceAccount
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(account), &now); err != nil || now.Annotations[role] != arn {
			t.Errorf("after %s the ServiceAccount has the annotations %v (%v), want the role of eksctl", step.name, now.Annotations, err)
		}
	}
}

// TestChartTakesOver takes over an installation by kubectl with Helm, as in docs/install.md.
func TestChartTakesOver(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	for _, dir := range []string{"guard", "crds", "base"} {
		s.kubectl(t, "apply", "-k", dir)
	}
	if _, err := helm(t, "install", release, chartDir, "--namespace", system, "--kubeconfig", s.kubeconfig); err == nil ||
		!strings.Contains(err.Error(), "cannot be imported into the current release") {
		t.Errorf("a second installation beside the first: %v", err)
	}
	s.helm(t, "install", release, chartDir, "--take-ownership", "--force-conflicts")
	if s.crd(t, exportsCRD).Annotations[releaseNote] != "" {
		t.Error("the CRDs were taken over without the release annotations")
	}
	for _, name := range []string{exportsCRD, propertiesCRD} {
		s.kubectl(t, "annotate", "crd", name, releaseNote+"="+release, "meta.helm.sh/release-namespace="+system)
		s.kubectl(t, "label", "crd", name, "app.kubernetes.io/managed-by=Helm")
	}
	s.install(t, chartDir, "--force-conflicts")
	if got := s.crd(t, exportsCRD).Annotations[keepNote]; got != "keep" {
		t.Error("the CRDs were not taken over")
	}
}

// TestChartRollsBack rolls back to an older chart, which the guard refuses for the CRDs.
func TestChartRollsBack(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.install(t, olderChart(t, shippedRelease(t)), "--set", "replicas=3")
	s.install(t, chartDir)
	_, err := helm(t, "rollback", release, "1", "--namespace", system, "--kubeconfig", s.kubeconfig)
	if err == nil || !strings.Contains(err.Error(), "would replace it with an older one") {
		t.Errorf("rolling back to older CRDs: %v", err)
	}
	var manager appsv1.Deployment
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: system, Name: "cloud-map-mcs-controller-manager"}, &manager); err != nil {
		t.Fatal(err)
	}
	if got := s.crd(t, exportsCRD).Labels[releaseLabel]; *manager.Spec.Replicas != 3 || got != shippedRelease(t) {
		t.Errorf("%d replicas and CRDs of %s, want 3 and %s", *manager.Spec.Replicas, got, shippedRelease(t))
	}
}

// shippedRelease returns the release of mcs-api of the CRDs in deploy/crds.
func shippedRelease(t *testing.T) string {
	t.Helper()
	return objects(t, kustomize(t, "crds"))["CustomResourceDefinition/"+exportsCRD].GetLabels()[releaseLabel]
}

// TestChartMakesClusterProperties upgrades with clusterProperties.create, the second step of such
// an installation.
func TestChartMakesClusterProperties(t *testing.T) {
	if _, err := helm(t, "version"); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.install(t, chartDir, "--set", "clusterId=cls1,clusterSetId=set1")
	s.install(t, chartDir, "--set", "clusterId=cls1,clusterSetId=set1,clusterProperties.create=true")
	got := map[string]string{}
	var list unstructured.UnstructuredList
	list.SetAPIVersion("about.k8s.io/v1beta1")
	list.SetKind("ClusterPropertyList")
	if err := s.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		got[item.GetName()], _, _ = unstructured.NestedString(item.Object, "spec", "value")
	}
	want := map[string]string{"cluster.clusterset.k8s.io": "cls1", "clusterset.k8s.io": "set1"}
	if !maps.Equal(got, want) {
		t.Errorf("ClusterProperties %v, want %v", got, want)
	}
}

// olderChart copies the chart with the CRDs of mcs-api v0.5.1.
func olderChart(t *testing.T, shipped string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), release)
	if err := os.CopyFS(dir, os.DirFS(chartDir)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(filepath.Join(dir, "files/crds"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(strings.ReplaceAll(string(text), `"`+shipped+`"`, `"v0.5.1"`)), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// addField adds a field to the CRD that the shipped one does not have.
func addField(crd *apiextensionsv1.CustomResourceDefinition) {
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"].Properties["newField"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
}

func hasField(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return !slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		_, ok := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["newField"]
		return !ok
	})
}
