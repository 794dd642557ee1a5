package tutorial

import (
	"fmt"
	"strings"
)

// The recorded part of a page is between these lines.
const (
	recordBegin = "<!-- recorded -->\n"
	recordEnd   = "\n<!-- /recorded -->"
)

// Recorded returns the recorded part of a page.
func Recorded(page string) (string, error) {
	_, rest, begins := strings.Cut(page, recordBegin)
	recorded, _, ends := strings.Cut(rest, recordEnd)
	if !begins || !ends {
		return "", fmt.Errorf("the page has no recorded part, which begins with the line %q and ends with %q", strings.TrimSpace(recordBegin), strings.TrimSpace(recordEnd))
	}
	return recorded, nil
}

// Record returns the page with another recorded part.
func Record(page, recorded string) (string, error) {
	old, err := Recorded(page)
	return strings.Replace(page, recordBegin+old+recordEnd, recordBegin+recorded+recordEnd, 1), err
}

// Differs returns an error if the recorded text has other titles, notes or commands than the steps.
// Their output differs in every run.
func Differs(recorded, heading string, steps []Step) error {
	var text strings.Builder
	for _, step := range steps {
		printed := "title\n"
		for _, c := range step.Commands {
			printed += "$ " + c.Line + "\n"
		}
		text.WriteString(step.Markdown(heading, printed))
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
