package docs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A Block is a command block of a page: one fenced as sh.
type Block struct {
	// Line is the number of its first line, and Section the last heading of level 2 above it, or
	// "".
	Line    int
	Section string
	Script  string
	// Output is the block without a language that follows after empty lines only, or "": the
	// expected output of the commands.
	Output string
}

// CommandBlocks returns the command blocks of a page, from top to bottom.
func CommandBlocks(text string) []Block {
	var blocks []Block
	parts := strings.Split("\n"+text, "\n```")
	line, section := 0, ""
	// Fences come in pairs: a part with an odd index begins with the opening one, one with an even
	// index with the closing one.
	for i, part := range parts {
		info, body, _ := strings.Cut(part, "\n")
		switch {
		case i%2 == 0:
			section = lastHeading(body, section)
		case info == "sh":
			blocks = append(blocks, Block{Line: line + 1, Section: section, Script: body + "\n"})
		case info == "" && i >= 3 && strings.HasPrefix(parts[i-2], "sh\n") && strings.TrimSpace(parts[i-1]) == "":
			blocks[len(blocks)-1].Output = body + "\n"
		}
		line += strings.Count(part, "\n") + 1
	}
	return blocks
}

// Script returns a script for bash that runs command blocks of a page in one shell, as a reader
// types them. It stops at the first command that fails, and prints for Compare where each block
// begins.
func Script(page string, blocks []Block) string {
	script := "set -e\n"
	for _, b := range blocks {
		script += fmt.Sprintf("printf %%s '%s'\nset -x\n%s{ set +x; } 2>/dev/null\n", b.head(page), b.Script)
	}
	return script
}

func (b Block) head(page string) string { return fmt.Sprintf("== %s:%d\n", page, b.Line) }

// traced are the commands that the shell shows before it runs them.
var traced = regexp.MustCompile(`(?m)^\++ .*\n`)

// Compare compares what Script printed, standard error included, with the outputs on the page.
func Compare(page string, blocks []Block, printed string) error {
	var errs []error
	for i, b := range blocks {
		_, output, _ := strings.Cut(printed, b.head(page))
		if i+1 < len(blocks) {
			output, _, _ = strings.Cut(output, blocks[i+1].head(page))
		}
		if b.Output == "" {
			continue
		}
		if err := Shows(b.Output, traced.ReplaceAllString(output, "")); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", page, b.Line, err))
		}
	}
	return errors.Join(errs...)
}

// lastHeading returns the last heading of level 2 in text, or the one before it if there is none.
func lastHeading(text, before string) string {
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			before = strings.TrimSpace(heading)
		}
	}
	return before
}

// Shows compares the output in a page with the printed one, line by line. A line "…" matches any
// number of lines, "…" in a line any text. Addresses, versions and other varying texts match others
// of their kind. Empty lines and column widths are ignored.
func Shows(shown, printed string) error {
	got := lines(printed)
	skip := false
	for _, want := range lines(shown) {
		if want == "…" {
			skip = true
			continue
		}
		for skip && len(got) > 0 && !isMatch(want, got[0]) {
			got = got[1:]
		}
		switch {
		case len(got) == 0:
			return fmt.Errorf("nothing more is printed, and the page goes on with %q", want)
		case !isMatch(want, got[0]):
			return fmt.Errorf("the page shows %q where %q is printed", want, got[0])
		}
		got, skip = got[1:], false
	}
	if len(got) > 0 && !skip {
		return fmt.Errorf("%q is printed, and the page does not go on", got[0])
	}
	return nil
}

// varying are patterns of texts that differ in every run, each with its replacement.
var varying = []struct {
	text   *regexp.Regexp
	common string
}{
	// addresses: the network stays
	{regexp.MustCompile(`\b(\d+\.\d+)\.\d+\.\d+\b`), "$1.#.#"},
	// versions
	{regexp.MustCompile(`\bv\d+\.\d+\.\d+(-[\w.]+)?\b`), "v#"},
	// when a web server answered
	{regexp.MustCompile(`\b\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000`), "time"},
	// of a request
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "id"},
	// names of a Deployment's pods
	{regexp.MustCompile(`-[b-df-hj-np-tv-xz24-9]{7,10}-[b-df-hj-np-tv-xz24-9]{5}\b`), "-pod"},
	{regexp.MustCompile(`\b(\d+[dhms])+\b`), "age"},
}

// lines returns the lines of text that are not empty, normalized.
func lines(text string) []string {
	for _, v := range varying {
		text = v.text.ReplaceAllString(text, v.common)
	}
	var kept []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			kept = append(kept, strings.Join(fields, " "))
		}
	}
	return kept
}

// isMatch reports whether got matches the line want, in which "…" matches any text.
func isMatch(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
