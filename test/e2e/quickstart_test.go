package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/docs"
)

// runSection runs the ```sh blocks of one section of a page.
func runSection(t *testing.T, page, heading string) {
	t.Helper()
	blocks := slices.DeleteFunc(pageBlocks(t, page), func(b docs.Block) bool { return b.Section != heading })
	runBlocks(t, page, blocks)
}

// pageBlocks returns the command blocks of a page.
func pageBlocks(t *testing.T, page string) []docs.Block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(suite.Root, page))
	if err != nil {
		t.Fatal(err)
	}
	return docs.CommandBlocks(string(text))
}

// runBlocks runs command blocks of a page in one shell, from top to bottom, as a reader types them;
// the shell stops at the first command that fails. Output on the page must match.
func runBlocks(t *testing.T, page string, blocks []docs.Block) {
	t.Helper()
	if len(blocks) == 0 {
		t.Fatalf("%s has no such command blocks", page)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	out, err := suite.Output(ctx, docs.Script(page, blocks))
	t.Logf("%s took %.0f s and printed:\n%s", page, time.Since(start).Seconds(), out)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	if err := docs.Compare(page, blocks, out); err != nil {
		t.Error(err)
	}
}
