package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/docs"
)

// traced are the commands that the shell shows before it runs them.
var traced = regexp.MustCompile(`(?m)^\++ .*\n`)

// runPage runs the ```sh blocks of a page in one shell, from top to bottom, as a reader types them; the shell stops at the first
// command that fails. Output on the page must match.
func runPage(t *testing.T, page string) {
	t.Helper()
	runBlocks(t, page, pageBlocks(t, page))
}

// runSection runs the ```sh blocks of one section of a page, as runPage does.
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

// runBlocks runs command blocks of a page in one shell.
func runBlocks(t *testing.T, page string, blocks []docs.Block) {
	t.Helper()
	if len(blocks) == 0 {
		t.Fatalf("%s has no such command blocks", page)
	}
	head := func(b docs.Block) string { return fmt.Sprintf("== %s:%d\n", page, b.Line) }
	script := "set -e\n"
	for _, b := range blocks {
		script += fmt.Sprintf("printf %%s '%s'\nset -x\n%s{ set +x; } 2>/dev/null\n", head(b), b.Script)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	out, err := suite.Output(ctx, script)
	t.Logf("%s took %.0f s and printed:\n%s", page, time.Since(start).Seconds(), out)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	for i, b := range blocks {
		_, printed, _ := strings.Cut(out, head(b))
		if i+1 < len(blocks) {
			printed, _, _ = strings.Cut(printed, head(blocks[i+1]))
		}
		if b.Output == "" {
			continue
		}
		if err := docs.Shows(b.Output, traced.ReplaceAllString(printed, "")); err != nil {
			t.Errorf("%s:%d: %v", page, b.Line, err)
		}
	}
}
