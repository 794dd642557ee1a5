// Package generated helps tests hold files to the code that they are made from.
package generated

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares the file at path with what it is to be. With UPDATE_DOCS set, as by "make generate", it writes the file.
func Check(t *testing.T, path, want string) {
	t.Helper()
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("%s is stale, run make generate (-want +got):\n%s", path, d)
	}
}
