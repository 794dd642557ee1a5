// Package generated helps tests hold files to the code that they are made from.
package generated

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that show what the code does")

// Check compares the file at path with what it is to be. With UPDATE_DOCS set, as by "make generate", it writes the file.
func Check(t *testing.T, path, want string) {
	t.Helper()
	hold(t, path, want, os.Getenv("UPDATE_DOCS") != "", "make generate")
}

// Golden compares the file at path, which shows what the code does, with what it does. "go test -update" writes the file: what
// changes in it is to be read.
func Golden(t *testing.T, path, got string) {
	t.Helper()
	hold(t, path, got, *update, "go test -update in this package")
}

func hold(t *testing.T, path, made string, write bool, how string) {
	t.Helper()
	if write {
		if err := os.WriteFile(path, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(file), made); d != "" {
		t.Errorf("%s is not what the code makes, %s writes it (-file +made):\n%s", path, how, d)
	}
}
