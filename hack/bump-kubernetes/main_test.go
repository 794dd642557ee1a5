package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepository checks the files of this repository, and that the table still finds them.
func TestRepository(t *testing.T) {
	found, err := findVersions("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkVersions(found); err != nil {
		t.Error(err)
	}
	groups := map[group]int{}
	for _, n := range found {
		groups[n.group]++
	}
	if groups[libraries] < 3 || groups[testbed] < 4 || groups[tools] < 4 {
		t.Errorf("files found by group: %v", groups)
	}
}

func TestCheckVersions_NamesFile(t *testing.T) {
	err := checkVersions([]named{
		{"go.mod", libraries, []string{"37.2"}},
		{"a.txt", libraries, []string{"37.1"}},
		{"hyper/go.mod", testbed, []string{"37.1"}},
		{"README.md", testbed, []string{"37.0", "37.1"}},
		{"hack/helm/go.mod", tools, []string{"36.0"}},
	})
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "a.txt") || !strings.Contains(err.Error(), "README.md") {
		t.Errorf("error %v, want one line about a.txt and one about README.md", err)
	}
}

func TestReplaceVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "go.mod")
	text := "\tk8s.io/api v0.37.1\n\tk8s.io/kubernetes v1.37.1 // indirect\n\tk8s.io/klog/v2 v2.140.0\n\tk8s.io/utils v0.0.0-2026\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := replaceVersion(path, pins[0].version, "38.0")
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(text, "37.1", "38.0"); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if changed, err := replaceVersion(path, pins[0].version, "38.0"); err != nil || changed {
		t.Errorf("second time: changed %v, %v", changed, err)
	}
}

// TestBump_LeavesTools: the Kubernetes modules of a tool are those that its program requires, so
// they stay, as those of older versions do.
func TestBump_LeavesTools(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"docs/install.md":                    "Kubernetes v1.37.1",
		"testbed/README.md":                  "Kubernetes 1.37.1",
		"testbed/programs/hyper/go-1.36.mod": "require k8s.io/kubernetes v1.36.3",
		"hack/helm/go.mod":                   "require k8s.io/client-go v0.37.1",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := bump(root, "1.38.0", &strings.Builder{}); err != nil {
		t.Fatal(err)
	}
	found, err := findVersions(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"docs/install.md": "38.0", "testbed/README.md": "38.0", "testbed/programs/hyper/go-1.36.mod": "36.3", "hack/helm/go.mod": "37.1",
	}
	for _, n := range found {
		if len(n.versions) != 1 || n.versions[0] != want[n.file] {
			t.Errorf("%s names %v, want %s", n.file, n.versions, want[n.file])
		}
		delete(want, n.file)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}

func TestBump_RefusesVersion(t *testing.T) {
	for _, version := range []string{"37.2", "1.37", "v2.1.0", "latest"} {
		if err := bump(t.TempDir(), version, &strings.Builder{}); err == nil {
			t.Errorf("%s is accepted", version)
		}
	}
}
