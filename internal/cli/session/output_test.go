package session

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
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
