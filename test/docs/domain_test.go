package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// namesOfAWS are the names in the domain of AWS, with the reasons of docs/reference/stability.md.
var namesOfAWS = map[string][]string{
	"names of the legacy controller": {"derived-service", "service-export-finalizer"},
	"state of the controller, which an earlier version reads after a downgrade": {
		"cluster-selector-results", "cluster-selectors", "cluster-selectors-minimum-ready", "derived-value", "export-times", "exported-annotations",
		"exported-labels", "held-for", "held-since", "retires", "stale-clusters", "unreachable-clusters",
	},
	"ClusterProperties, which earlier versions read in records": {"drain.", "networks.", "zones."},
}

// nameOfAWS matches an annotation, condition or finalizer, or a ClusterProperty.
var nameOfAWS = regexp.MustCompile(`multicluster\.k8s\.aws/(\w[\w-]*\w)|\b([\w-]+\.)multicluster\.k8s\.aws`)

// TestNoNewNamesOfAWS checks that no file has another name in the domain of AWS: new ones are in
// mcs.Domain.
func TestNoNewNamesOfAWS(t *testing.T) {
	allowed, used := map[string]bool{}, map[string]bool{}
	for _, names := range namesOfAWS {
		for _, name := range names {
			allowed[name] = true
		}
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "node_modules"}, entry.Name()) {
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".json", ".tpl", ".txt", ".html", ".js", ".txtar"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range nameOfAWS.FindAllStringSubmatch(string(text), -1) {
			name := match[1] + match[2]
			used[name] = true
			if !allowed[name] {
				t.Errorf("%s has %q: its domain belongs to AWS, use mcs.Domain", path, match[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range allowed {
		if !used[name] {
			t.Errorf("%q is in the list, but in no file", name)
		}
	}
}
