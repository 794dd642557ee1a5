package session

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"
)

func TestPrintable(t *testing.T) {
	tests := map[string]string{
		"web":                     "web",
		"tab\tand\nline":          "tab and line",
		"\x1b[2Jcleared":          " [2Jcleared",
		"C1 \u009b31m":            "C1  31m",
		"right to left \u202egnp": "right to left  gnp",
		"isolate \u2066x\u2069":   "isolate  x ",
		"größer …":                "größer …",
	}
	for text, want := range tests {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestErrorsArePrintable: errors contain text of the controller and of other clusters.
func TestErrorsArePrintable(t *testing.T) {
	var out bytes.Buffer
	s := &Session{IOStreams: genericiooptions.IOStreams{In: &out, Out: &out, ErrOut: &out}}
	root := s.Root(&cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error {
		s.Progressf("waiting for %s", "\x1b]0;title\x07")
		s.Confirm("delete %s?", "\x1b[8mhidden")
		return errors.Join(errors.New("first \x1b[31m"), errors.New("second \u202e"))
	}})
	if code := s.Run(t.Context(), root, []string{"fail"}); code != ExitError {
		t.Errorf("exit code %d, want %d", code, ExitError)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\x07\u202e") || !strings.Contains(text, "Error: first  [31m\nsecond  \n") {
		t.Errorf("printed %q, want two lines without control characters", text)
	}
}

// TestPrint_EmptyList: a list without elements is one, whether it is nil or not.
func TestPrint_EmptyList(t *testing.T) {
	for _, format := range []Format{"json", "yaml"} {
		for _, list := range []any{[]string(nil), []string{}} {
			var out bytes.Buffer
			if err := format.Print(&out, list, nil); err != nil || out.String() != "[]\n" {
				t.Errorf("%s: %q, %v", format, out.String(), err)
			}
		}
	}
}

// TestPrintJSON_EscapesControlCharacters: what is escaped can be read back.
func TestPrintJSON_EscapesControlCharacters(t *testing.T) {
	want := map[string]string{"text": "a\x1b[2J\u009b31m\x7f\u202e\u061c é <&> 世 😀"}
	for name, print := range map[string]func(io.Writer, any) error{"JSON": PrintJSON, "YAML": PrintYAML} {
		var out bytes.Buffer
		if err := print(&out, want); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if strings.ContainsAny(out.String(), "\x1b\u009b\x7f") || name == "JSON" && strings.ContainsAny(out.String(), "\u202e\u061c") {
			t.Errorf("%s prints control characters: %q", name, out.String())
		}
		var got map[string]string
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil || got["text"] != want["text"] {
			t.Errorf("%s: read back as %q, %v; want %q", name, got["text"], err, want["text"])
		}
	}
}
