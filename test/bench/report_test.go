package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A figure changes on the page only by a measurement: page and pictures are those of results.json.
func TestPublishedPage(t *testing.T) {
	folder := filepath.Join("../..", published)
	results, err := load(folder)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range results.pages() {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, string(got)); d != "" {
			t.Errorf("%s is not that of results.json: write it with go run ./test/bench -sections '' (-want +got):\n%s", name, d)
		}
	}
}
