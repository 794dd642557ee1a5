package tutorial

import (
	"fmt"
	"strings"
)

// Differs returns an error if the recorded text has other titles, notes or commands than the steps.
// Their output differs in every run.
func Differs(recorded string, steps []Step) error {
	var text strings.Builder
	for _, step := range steps {
		printed := "title\n"
		for _, c := range step.Commands {
			printed += "$ " + c.Line + "\n"
		}
		text.WriteString(step.Markdown(printed))
	}
	want, got := withoutOutput(text.String()), withoutOutput(recorded)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("the page lacks %q: record it again", want[i])
		case i >= len(want) || got[i] != want[i]:
			return fmt.Errorf("the page has %q, which is not in the steps: record it again", got[i])
		}
	}
	return nil
}

// withoutOutput returns the lines that are neither empty nor output, which is indented.
func withoutOutput(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line != "" && line[0] != ' ' {
			lines = append(lines, line)
		}
	}
	return lines
}
