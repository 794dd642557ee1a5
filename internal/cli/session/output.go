package session

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// Format is an output format: table, wide, json or yaml.
type Format string

// AddFlag adds the flag --output with all formats to cmd.
func (f *Format) AddFlag(cmd *cobra.Command) {
	AddOutputFlag(cmd, (*string)(f), "table", "wide", "json", "yaml")
}

// AddOutputFlag adds the flag --output to cmd. It accepts one of values; the first is the default.
func AddOutputFlag(cmd *cobra.Command, value *string, values ...string) {
	*value = values[0]
	last := len(values) - 1
	cmd.Flags().VarP(enum{value, values}, "output", "o", "output format: "+strings.Join(values[:last], ", ")+" or "+values[last])
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// An enum is the value of a flag that accepts one of a few values.
type enum struct {
	value  *string
	values []string
}

// String implements pflag.Value.
func (e enum) String() string { return *e.value }

// Type implements pflag.Value.
func (e enum) Type() string { return "string" }

// Set implements pflag.Value.
func (e enum) Set(text string) error {
	if !slices.Contains(e.values, text) {
		return fmt.Errorf("must be one of %s", strings.Join(e.values, ", "))
	}
	*e.value = text
	return nil
}

// Print prints value as JSON or YAML, or calls printTable for the other formats.
func (f Format) Print(out io.Writer, value any, printTable func(t *Table, wide bool)) error {
	switch f {
	case "json":
		return PrintJSON(out, value)
	case "yaml":
		return PrintYAML(out, value)
	}
	t := NewTable(out)
	printTable(t, f == "wide")
	return t.Flush()
}

// PrintJSON prints value as indented JSON.
func PrintJSON(out io.Writer, value any) error {
	text, err := marshalJSON(value)
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// marshalJSON returns indented JSON in which every character that Printable replaces is escaped.
// encoding/json escapes those below U+0020 only. A list without elements is [], never null: scripts
// read its length.
func marshalJSON(value any) ([]byte, error) {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Slice && v.Len() == 0 {
		return []byte("[]\n"), nil
	}
	var text, escaped bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	for _, r := range text.String() {
		if r >= unicode.MaxASCII && !isPrintable(r) {
			// all of these have four digits, and are within strings
			fmt.Fprintf(&escaped, `\u%04x`, r)
			continue
		}
		escaped.WriteRune(r)
	}
	return escaped.Bytes(), nil
}

// PrintYAML prints value as YAML. yaml.Marshal fails for some control characters.
func PrintYAML(out io.Writer, value any) error {
	text, err := marshalJSON(value)
	if err == nil {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// ObjectName returns the kind, namespace and name of an object.
func ObjectName(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// PrintManifests prints objects as YAML documents for kubectl apply.
func (s *Session) PrintManifests(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if _, err := fmt.Fprintln(s.Out, "---"); err != nil {
			return err
		}
		if err := PrintYAML(s.Out, o.Object); err != nil {
			return err
		}
	}
	return nil
}

// A Table prints rows with aligned columns. It removes control characters from cells: they may come
// from other clusters and could break a row or control the terminal.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a Table that prints to out.
func NewTable(out io.Writer) *Table { return &Table{tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)} }

// Row prints one row. An empty cell is printed as "-".
func (t *Table) Row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = fmt.Fprint(t.w, "\t")
		}
		text := Printable(fmt.Sprint(cell))
		if text == "" {
			text = "-"
		}
		_, _ = fmt.Fprint(t.w, text)
	}
	_, _ = fmt.Fprintln(t.w)
}

// Line ends the columns and prints text, or an empty line for "".
func (t *Table) Line(text string) {
	_ = t.w.Flush() // the next write returns the same error
	_, _ = fmt.Fprintln(t.w, Printable(text))
	_ = t.w.Flush()
}

// Flush ends the table.
func (t *Table) Flush() error { return t.w.Flush() }

// Printable replaces control characters in text by spaces, those that change the direction of
// writing too.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !isPrintable(r) {
			return ' '
		}
		return r
	}, text)
}

// isPrintable reports whether a terminal prints r: control characters and those that change the
// direction of writing have other effects.
func isPrintable(r rune) bool { return !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) }

// PrintableLines is Printable for text of several lines, with tabs.
func PrintableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !isPrintable(r) {
			return ' '
		}
		return r
	}, text)
}

// Age formats a time as kubectl does, such as 5m.
func Age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(since))
}

// Printf prints a line of results to standard output.
func (s *Session) Printf(format string, args ...any) {
	_, _ = fmt.Fprintln(s.Out, Printable(fmt.Sprintf(format, args...)))
}

// Progressf prints a line of progress to standard error. Standard output is for results: diffs,
// configuration and tables.
func (s *Session) Progressf(format string, args ...any) {
	_, _ = fmt.Fprintln(s.ErrOut, PrintableLines(fmt.Sprintf(format, args...)))
}

// Confirm asks a yes-or-no question. Any answer other than yes means no, including the end of the
// input.
func (s *Session) Confirm(format string, args ...any) bool {
	_, _ = fmt.Fprint(s.ErrOut, PrintableLines(fmt.Sprintf(format, args...))+" [yes/no] ")
	answer, _ := bufio.NewReader(s.In).ReadString('\n')
	if !strings.HasSuffix(answer, "\n") {
		_, _ = fmt.Fprintln(s.ErrOut)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "yes" || answer == "y"
}
