package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/generated"
)

// value is one that the user can set.
type value struct {
	path    string   // such as aws.region
	section string   // the heading that it stands under in values.yaml
	comment string   // what stands above it, in one line
	preset  string   // as JSON
	flags   []string // of the controller, that its comment names in brackets
}

var flagPattern = regexp.MustCompile(`\(--([a-z-]+)\)`)

// readValues reads values.yaml with its comments. Everything that can be set has one; a folder of values has none.
func readValues(t *testing.T) []value {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	var out []value
	section, _ := splitComment(root.HeadComment) // the first heading is taken for the file's
	var walk func(prefix string, node *yaml.Node)
	walk = func(prefix string, node *yaml.Node) {
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, content := node.Content[i], node.Content[i+1]
			heading, comment := splitComment(key.HeadComment)
			if heading != "" {
				section = heading
			}
			path := prefix + key.Value
			if comment == "" {
				walk(path+".", content)
				continue
			}
			var preset any
			if err := content.Decode(&preset); err != nil {
				t.Fatal(err)
			}
			shown, err := json.Marshal(preset)
			if err != nil {
				t.Fatal(err)
			}
			v := value{path: path, section: section, comment: comment, preset: string(shown)}
			for _, match := range flagPattern.FindAllStringSubmatch(comment, -1) {
				v.flags = append(v.flags, match[1])
			}
			out = append(out, v)
		}
	}
	walk("", root.Content[0])
	return out
}

// splitComment parts a heading (## …) and the comment right above a key.
func splitComment(text string) (heading, comment string) {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch title, isHeading := strings.CutPrefix(line, "## "); {
		case isHeading:
			heading, lines = title, nil
		case line == "":
			lines = nil
		default:
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "#")))
		}
	}
	return heading, strings.Join(lines, " ")
}

// docs/reference/values.md is what values.yaml says. "make generate" writes it.
func TestDocsValues(t *testing.T) {
	generated.Check(t, filepath.Join("..", "docs", "reference", "values.md"), valuesPage(readValues(t)))
}

func valuesPage(values []value) string {
	options := config.Default()
	flags := options.Flags()
	var b strings.Builder
	b.WriteString("# Values of the Helm chart\n\n" +
		"Generated from `deploy/charts/cloud-map-mcs-controller/values.yaml` by `make generate`. [install.md](../install.md) shows how to use them.\n\n" +
		"Where a value stands for a flag of the controller, the flag is in brackets. Left empty, the controller's own default\n" +
		"holds, which the table shows in brackets too. [flags.md](flags.md) has more about each flag.\n")
	section := ""
	for _, v := range values {
		if v.section != section {
			section = v.section
			fmt.Fprintf(&b, "\n## %s\n\n| value | default | meaning |\n| --- | --- | --- |\n", section)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.path, presetCell(v, flags), strings.ReplaceAll(v.comment, "|", `\|`))
	}
	return b.String()
}

func presetCell(v value, flags *pflag.FlagSet) string {
	switch v.preset {
	case `""`, "null", "[]", "{}":
	default:
		return "`" + v.preset + "`"
	}
	for _, name := range v.flags {
		if f := flags.Lookup(name); f != nil && f.DefValue != "" && f.DefValue != "[]" {
			return "(`" + f.DefValue + "`)"
		}
	}
	return ""
}

// TestValuesSchema: the schema knows every value of values.yaml and no other. It refuses what it does not know.
func TestValuesSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties           map[string]json.RawMessage `json:"properties"`
		AdditionalProperties any                        `json:"additionalProperties"`
	}
	var known []string
	var walk func(prefix string, text []byte)
	walk = func(prefix string, text []byte) {
		var s schema
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		if s.Properties == nil {
			known = append(known, strings.TrimSuffix(prefix, "."))
			return
		}
		if s.AdditionalProperties != false {
			t.Errorf("the schema lets through unknown values in %q", prefix)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(prefix+name+".", s.Properties[name])
		}
	}
	walk("", text)
	want := []string{"global"} // what Helm gives to every chart
	for _, v := range readValues(t) {
		want = append(want, v.path)
	}
	slices.Sort(want)
	slices.Sort(known)
	if d := cmp.Diff(want, known); d != "" {
		t.Errorf("values.yaml and values.schema.json (-values +schema):\n%s", d)
	}
}
