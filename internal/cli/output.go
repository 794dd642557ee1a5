package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// An output is how a result is printed: table, wide, json or yaml.
type output string

func (o *output) bind(cmd *cobra.Command) {
	outputFlag(cmd, (*string)(o), "table", "wide", "json", "yaml")
}

// outputFlag gives cmd the flag --output, which takes one of values; the first is its default.
func outputFlag(cmd *cobra.Command, value *string, values ...string) {
	*value = values[0]
	last := len(values) - 1
	cmd.Flags().VarP(choice{value, values}, "output", "o", strings.Join(values[:last], ", ")+" or "+values[last])
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// A choice is a flag that takes one of a few values.
type choice struct {
	value  *string
	values []string
}

// String implements pflag.Value.
func (c choice) String() string { return *c.value }

// Type implements pflag.Value.
func (c choice) Type() string { return "string" }

// Set implements pflag.Value.
func (c choice) Set(text string) error {
	if !slices.Contains(c.values, text) {
		return fmt.Errorf("must be one of %s", strings.Join(c.values, ", "))
	}
	*c.value = text
	return nil
}

// print prints value as JSON or YAML, or lets table print it.
func (o output) print(out io.Writer, value any, table func(t *table, wide bool)) error {
	switch o {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		return printYAML(out, value)
	}
	t := newTable(out)
	table(t, o == "wide")
	return t.flush()
}

func printYAML(out io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// A table prints rows in columns. Cells lose what would break a row or command a terminal: they may come from other clusters.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) *table { return &table{tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)} }

func (t *table) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = fmt.Fprint(t.w, "\t")
		}
		text := printable(fmt.Sprint(cell))
		if text == "" {
			text = "-"
		}
		_, _ = fmt.Fprint(t.w, text)
	}
	_, _ = fmt.Fprintln(t.w)
}

// line ends the columns and prints text, "" for an empty line.
func (t *table) line(text string) {
	_ = t.w.Flush() // an error shows at the next write
	_, _ = fmt.Fprintln(t.w, printable(text))
	_ = t.w.Flush()
}

func (t *table) flush() error { return t.w.Flush() }

// printable is text without control characters.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// age is a time as kubectl prints it, such as 5m.
func age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(since))
}
