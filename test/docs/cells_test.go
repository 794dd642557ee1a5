package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxCell is the number of characters that a cell of a table may have. CONTRIBUTING.md states it.
const maxCell = 120

// generatedTables have descriptions of flags, values and metrics, whose length
// TestDescriptions of hack/docs checks without the name of the flag and the link to a page.
var generatedTables = []string{"docs/reference/flags.md", "docs/reference/metrics.md", "docs/reference/values.md"}

// TestCells checks that the cells of tables are short. Proposals are records of decisions.
func TestCells(t *testing.T) {
	for name := range pages(t) {
		name = filepath.ToSlash(name)
		if strings.HasPrefix(name, "docs/proposals/") || slices.Contains(generatedTables, name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range longCells(string(text)) {
			t.Errorf("%s:%d: a cell has %d characters, want at most %d: shorten it, or move it into the text\n%s", name, c.line, utf8.RuneCountInString(c.text), maxCell, c.text)
		}
	}
}

// A longCell is a cell of a table that is too long, as a reader sees it.
type longCell struct {
	line int
	text string
}

// longCells returns the cells of a page that have more than maxCell characters without the targets
// of links and the marks of code. Code blocks have no tables.
func longCells(page string) (long []longCell) {
	isCode := false
	for i, line := range strings.Split(page, "\n") {
		if fence.MatchString(line) {
			isCode = !isCode
		}
		if isCode || !strings.HasPrefix(line, "|") {
			continue
		}
		line = target.ReplaceAllString(strings.ReplaceAll(line, `\|`, "¦"), "$1")
		for cell := range strings.SplitSeq(strings.ReplaceAll(line, "`", ""), "|") {
			if text := strings.TrimSpace(cell); utf8.RuneCountInString(text) > maxCell {
				long = append(long, longCell{i + 1, text})
			}
		}
	}
	return long
}

func TestLongCells(t *testing.T) {
	full := strings.Repeat("ä", maxCell)
	for name, tt := range map[string]struct {
		page string
		want []longCell
	}{
		"120 characters":        {"| a | " + full + " |\n", nil},
		"121 characters":        {"text\n\n| a | " + full + "b |\n", []longCell{{3, full + "b"}}},
		"a link and code":       {"| [`" + full + "`](page.md#heading) | b |\n", nil},
		"a bar in a cell":       {`| ` + full + `\|b |` + "\n", []longCell{{1, full + "¦b"}}},
		"a code block":          {"```\n| " + full + "b |\n```\n| a |\n", nil},
		"after a code block":    {"```\n```\n| " + full + "b |\n", []longCell{{3, full + "b"}}},
		"a line that is no row": {full + "b | c\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := longCells(tt.page); !slices.Equal(got, tt.want) {
				t.Errorf("longCells is %v, want %v", got, tt.want)
			}
		})
	}
}

// TestMarkers checks that no marker of generated text within a sentence begins a line: there it
// ends the paragraph.
func TestMarkers(t *testing.T) {
	marker := regexp.MustCompile(`(?m)^<!-- generated:\S+ -->\S.*`)
	for name := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range marker.FindAllString(string(text), -1) {
			t.Errorf("%s: join this line with the one before it: %s", name, line)
		}
	}
}
