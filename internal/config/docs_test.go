package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/generated"
)

// docs/reference/flags.md is what the flags say. "make generate" writes it.
func TestDocsFlags(t *testing.T) {
	generated.Check(t, filepath.Join("..", "..", "docs", "reference", "flags.md"), flagsPage())
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
