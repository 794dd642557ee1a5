package mcs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/api.md names tests that prove the clauses of the KEPs. They must exist.
func TestDocsNameTestsThatExist(t *testing.T) {
	root := filepath.Join("..", "..")
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	for _, dir := range []string{"internal", filepath.Join("test", "e2e")} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := os.ReadFile(path)
			for _, m := range declaration.FindAllSubmatch(file, -1) {
				declared[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1)
	if len(named) < 50 {
		t.Errorf("docs/api.md names %d tests: the table of clauses is not where it was", len(named))
	}
	for _, m := range named {
		if !declared[string(m[1])] {
			t.Errorf("docs/api.md names %s, which is no test", m[1])
		}
	}
}
