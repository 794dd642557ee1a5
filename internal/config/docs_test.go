package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// docs/reference/flags.md is what the flags say. "make generate" writes it.
func TestDocsFlags(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "flags.md")
	want := flagsPage()
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
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

func flagsPage() string {
	var b strings.Builder
	b.WriteString("# Flags of the controller\n\n" +
		"Generated from `internal/config` by `make generate`.\n\n" +
		"No flag is required in a pod. AWS's own environment variables, files and roles are used for what is not set here.\n\n" +
		"| flag | default | meaning |\n| --- | --- | --- |\n")
	options := Default()
	options.Flags().VisitAll(func(f *pflag.Flag) {
		value := ""
		if f.DefValue != "" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	return b.String()
}
