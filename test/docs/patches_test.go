package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// readYAMLBlocks returns the documents of the blocks of a page that are fenced as yaml.
func readYAMLBlocks[T any](t *testing.T, page string) (documents []T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for document := range strings.SplitSeq(block[1], "\n---\n") {
			var d T
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatalf("%s: %v:\n%s", page, err, document)
			}
			documents = append(documents, d)
		}
	}
	return documents
}

// changedBy applies patches to a folder of the repository and returns the objects that change.
func changedBy(t *testing.T, dir string, patches []types.Patch) (changed []string) {
	t.Helper()
	base, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	text, err := base.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	kustomization, err := yaml.Marshal(types.Kustomization{Resources: []string{"base.yaml"}, Patches: patches})
	if err != nil {
		t.Fatal(err)
	}
	files := filesys.MakeFsInMemory()
	for name, content := range map[string][]byte{"/base.yaml": text, "/kustomization.yaml": kustomization} {
		if err := files.WriteFile(name, content); err != nil {
			t.Fatal(err)
		}
	}
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range result.Resources() {
		if r.MustYaml() != base.Resources()[i].MustYaml() {
			changed = append(changed, r.GetKind()+" "+r.GetName())
		}
	}
	slices.Sort(changed)
	return changed
}

// TestInstallPatches applies the patches of docs/install.md to deploy/base.
func TestInstallPatches(t *testing.T) {
	var changed []string
	for _, k := range readYAMLBlocks[any](t, "docs/install.md") {
		overlay, isMap := k.(map[string]any)
		if !isMap || overlay["patches"] == nil {
			continue
		}
		text, err := yaml.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		var kustomization types.Kustomization
		if err := yaml.Unmarshal(text, &kustomization); err != nil {
			t.Fatal(err)
		}
		changed = append(changed, changedBy(t, "deploy/base", kustomization.Patches)...)
	}
	want := []string{
		"Deployment cloud-map-mcs-controller-manager", "ServiceAccount cloud-map-mcs-controller-manager",
		"ValidatingAdmissionPolicy cloud-map-mcs-controller-own-objects",
	}
	if d := cmp.Diff(want, changed); d != "" {
		t.Errorf("objects that the patches change (-want +got):\n%s", d)
	}
}
