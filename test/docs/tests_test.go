package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNamedTests checks that every test that a page names exists. docs/reference/clauses.md names
// the tests that prove the clauses of the KEPs.
func TestNamedTests(t *testing.T) {
	declared := declaredTests(t)
	named := regexp.MustCompile(`\bTest[A-Z]\w*\b`)
	for name := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		found := named.FindAllString(string(text), -1)
		if name == "docs/reference/clauses.md" && len(found) < 50 {
			t.Errorf("%s names %d tests: the table of clauses is missing", name, len(found))
		}
		for _, test := range found {
			if !declared[test] {
				t.Errorf("%s names %s, which does not exist", name, test)
			}
		}
	}
}

// measured are the pages that name tests and commits: clauses and measurements. The others say how
// the software works.
var measured = []string{"docs/benchmarks/README.md", "docs/operations-measurements.md", "docs/reference/clauses.md", "docs/reliability-tests.md"}

// TestUserPages checks that pages for users name no test and no commit. Proposals and pages outside
// of docs are for developers.
func TestUserPages(t *testing.T) {
	named := regexp.MustCompile(`\bTest[A-Z]\w*\b|\bcommits? [0-9a-f]{7,40}\b`)
	for name := range pages(t) {
		isDoc := name == "README.md" || strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/proposals/")
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		found := named.FindAllString(string(text), -1)
		switch isMeasured := slices.Contains(measured, name); {
		case isDoc && !isMeasured && len(found) > 0:
			t.Errorf("%s names %q: users need no test and no commit, move it to one of %q", name, found, measured)
		case isMeasured && len(found) == 0:
			t.Errorf("%s names no test and no commit: remove it from the list of this test", name)
		}
	}
}

// declaredTests returns the names of all tests of the repository.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return declared
}
