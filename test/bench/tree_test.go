package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOrigin(t *testing.T) {
	for name, tt := range map[string]struct {
		changed           []string
		draft             bool
		want, wantProblem string
	}{
		"a clean tree":          {want: "abc123"},
		"a changed tree":        {changed: []string{"a.go", "b.go"}, wantProblem: "differs from commit abc123: a.go, b.go: "},
		"a draft":               {draft: true, want: "abc123-draft"},
		"a draft of a new tree": {changed: []string{"a.go"}, draft: true, want: "abc123-draft"},
	} {
		got, err := origin("abc123", tt.changed, tt.draft)
		if got != tt.want || (err != nil) != (tt.wantProblem != "") || err != nil && !strings.Contains(err.Error(), tt.wantProblem) {
			t.Errorf("%s: %q, %v, want %q, %q", name, got, err, tt.want, tt.wantProblem)
		}
	}
}

// The results themselves are no change: a second section can be measured after the first.
func TestWorkingTree(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("tracked", "first")
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "first"}} {
		if _, err := git(args...); err != nil {
			t.Fatal(err)
		}
	}
	write("results/README.md", "measured")
	if head, changed, err := workingTree("results"); head == "" || len(changed) > 0 || err != nil {
		t.Errorf("%q, %q, %v, want a commit and no changes", head, changed, err)
	}
	write("tracked", "second")
	write("new", "")
	if _, changed, err := workingTree("results"); strings.Join(changed, " ") != "tracked new" || err != nil {
		t.Errorf("%q, %v, want tracked and new", changed, err)
	}
}
