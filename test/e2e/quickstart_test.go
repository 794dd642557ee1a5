package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runPage runs the ```sh blocks of a page in one shell, from top to bottom, as a reader types them; the shell stops at the first
// command that fails. What they print must have each text of want.
func runPage(t *testing.T, page string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(suite.Root, page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := shellBlocks(string(text))
	if len(blocks) == 0 {
		t.Fatalf("%s has no command blocks", page)
	}
	script := "set -e\n"
	for i, block := range blocks {
		script += fmt.Sprintf("echo '== block %d of %s'\nset -x\n%s{ set +x; } 2>/dev/null\n", i+1, page, block)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	out, err := suite.Output(ctx, script)
	t.Logf("%s took %.0f s and printed:\n%s", page, time.Since(start).Seconds(), out)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("%s does not print %q", page, w)
		}
	}
}

// shellBlocks are the contents of the ```sh blocks of a page.
func shellBlocks(page string) []string {
	var blocks []string
	parts := strings.Split("\n"+page, "\n```")
	// The text after an opening fence has an odd index: fences come in pairs.
	for i := 1; i < len(parts); i += 2 {
		if info, body, ok := strings.Cut(parts[i], "\n"); ok && info == "sh" {
			blocks = append(blocks, body+"\n")
		}
	}
	return blocks
}
