package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestKustomizations_ByURL renders the folders that users install from the URL of a repository,
// here a copy on this machine, as kubectl apply -k "github.com/…?ref=v0.1.0" does.
func TestKustomizations_ByURL(t *testing.T) {
	repository := t.TempDir()
	if err := os.CopyFS(filepath.Join(repository, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "."},
		{"-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--no-gpg-sign", "--message=test"}, {"tag", "v0.1.0"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	for _, dir := range []string{"crds", "base"} {
		if d := cmp.Diff(kustomize(t, dir), kustomize(t, "file://"+repository+"//deploy/"+dir+"?ref=v0.1.0")); d != "" {
			t.Errorf("deploy/%s differs by URL (-folder +URL):\n%s", dir, d)
		}
	}
}
