package deploy_test

import (
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestKustomizations_HaveNoCRDs checks that kubectl delete -k deletes CRDs, and all ServiceExports
// of the cluster with them, only for the folder of the CRDs.
func TestKustomizations_HaveNoCRDs(t *testing.T) {
	overlays, err := filepath.Glob("overlays/*")
	if err != nil || len(overlays) == 0 {
		t.Fatalf("no overlays: %v", err)
	}
	for _, dir := range append(overlays, "base", "guard", "../samples/ecs") {
		for key, obj := range objects(t, kustomize(t, dir)) {
			if obj.GetKind() == "CustomResourceDefinition" {
				t.Errorf("%s has %s", dir, key)
			}
		}
	}
	for key, obj := range objects(t, kustomize(t, "crds")) {
		if obj.GetKind() != "CustomResourceDefinition" {
			t.Errorf("crds has %s", key)
		}
	}
}

// TestInstallationByURL installs from the URL of a git server, as kubectl apply -k
// "https://github.com/…?ref=v0.1.0" does, and deletes it the same way: the objects of others stay,
// the CRDs with them.
func TestInstallationByURL(t *testing.T) {
	t.Setenv("no_proxy", "127.0.0.1")
	s, url := newServer(t), startGitServer(t)
	// a busy machine may take longer than the 27 s of kustomize
	folder := func(name string) string { return url + "//deploy/" + name + "?ref=v0.1.0&timeout=2m" }
	for _, dir := range []string{"crds", "base", "guard"} {
		if d := cmp.Diff(kustomize(t, dir), kustomize(t, folder(dir))); d != "" {
			t.Errorf("deploy/%s differs by URL (-folder +URL):\n%s", dir, d)
		}
		s.kubectl(t, "apply", "-k", folder(dir))
	}
	s.kubectl(t, "apply", "--filename", writeOthers(t))
	theirs := map[string]schema.GroupVersionKind{
		"cluster.clusterset.k8s.io":      {Group: "about.k8s.io", Version: "v1beta1", Kind: "ClusterProperty"},
		exportsCRD:                       {Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		"cloud-map-mcs-controller-other": {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	}
	ours := map[string]schema.GroupVersionKind{
		"cloud-map-mcs-controller-manager": {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	}
	expect := func(when string, all map[string]schema.GroupVersionKind, want bool) {
		t.Helper()
		for name, kind := range all {
			if got := s.has(t, kind, name); got != want {
				t.Errorf("%s: %s %s exists: %t, want %t", when, kind.Kind, name, got, want)
			}
		}
	}
	expect("after the installation", ours, true)
	// Nothing finishes the deletion of a namespace here.
	for _, dir := range []string{"base", "guard"} {
		s.kubectl(t, "delete", "--wait=false", "-k", folder(dir))
	}
	expect("after the deletion", ours, false)
	expect("after the deletion", theirs, true)
	if s.hasGuard(t) {
		t.Error("the guard is left")
	}
}

// writeOthers writes objects of other owners that have the labels or the prefix of the
// installation, and returns the file.
func writeOthers(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "others.yaml")
	const others = `
apiVersion: about.k8s.io/v1beta1
kind: ClusterProperty
metadata: {name: cluster.clusterset.k8s.io, labels: {app.kubernetes.io/name: cloud-map-mcs-controller}}
spec: {value: cls1}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cloud-map-mcs-controller-other, labels: {app.kubernetes.io/name: cloud-map-mcs-controller}}
rules: []
`
	if err := os.WriteFile(file, []byte(others), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startGitServer serves this folder, in a repository with tag v0.1.0, and returns its URL.
func startGitServer(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	repository := filepath.Join(root, "controller.git")
	if err := os.CopyFS(filepath.Join(repository, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet")
	git("add", ".")
	git("-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--no-gpg-sign", "--message=test")
	git("tag", "v0.1.0")
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(git("--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	})
	t.Cleanup(server.Close)
	return server.URL + "/controller.git"
}
