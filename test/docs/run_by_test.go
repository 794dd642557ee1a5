package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commandPage has the table that names the test of the commands of each page, below the heading
// commandTable.
const commandPage, commandTable = "test/docs/README.md", "Commands of the pages"

// A runBy is a row of that table.
type runBy struct {
	page     string // from the root of the repository
	sections []string
	by       string
}

// covers reports whether the row is about the section of the page; "all" and "top" are the page and
// the part before its first heading.
func (r runBy) covers(page, section string) bool {
	if section == "" {
		section = "top"
	}
	return r.page == page && (slices.Contains(r.sections, "all") || slices.Contains(r.sections, section))
}

// TestRunBy checks that commandPage says for every page and section with commands which test runs
// them, or why none does.
func TestRunBy(t *testing.T) {
	rows := runByRows(t)
	used := make([]bool, len(rows))
	for page := range pages(t) {
		if page != "README.md" && !strings.HasPrefix(page, "docs/") || strings.HasPrefix(page, "docs/proposals/") {
			continue
		}
		for _, c := range pageCommands(t, page) {
			found := 0
			for i, row := range rows {
				if row.covers(page, c.section) {
					used[i], found = true, found+1
				}
			}
			if found != 1 {
				t.Errorf("%s:%d: %d rows of %s cover the commands of the section %q, want 1", page, c.line, found, commandPage, c.section)
			}
		}
	}
	for i, row := range rows {
		if !used[i] {
			t.Errorf("%s has a row for %s, %q, where no commands are", commandPage, row.page, row.sections)
		}
		if !strings.HasPrefix(row.by, "not run: ") && !regexp.MustCompile("`(Test[A-Z]\\w*|make demo)`").MatchString(row.by) {
			t.Errorf("%s: the row for %s, %q names neither a test nor a reason: %q", commandPage, row.page, row.sections, row.by)
		}
	}
}

// runByRows returns the rows of the table.
func runByRows(t *testing.T) (rows []runBy) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, commandPage))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## "+commandTable+"\n")
	if !found {
		t.Fatalf("%s has no section %q", commandPage, commandTable)
	}
	row := regexp.MustCompile(`(?m)^\| \[[^]]*\]\(([^)]*)\) \| ([^|]*) \| ([^|]*) \|$`)
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		rows = append(rows, runBy{page: filepath.Join(filepath.Dir(commandPage), m[1]), sections: strings.Split(m[2], "; "), by: m[3]})
	}
	if len(rows) == 0 {
		t.Fatal("the table has no rows")
	}
	return rows
}

// A command is a command line of a page, with its continuation lines.
type command struct {
	line    int
	section string
	text    string
}

// pageCommands returns the commands of the blocks that are fenced as sh or console.
func pageCommands(t *testing.T, page string) []command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return commandLines(string(text))
}

// commandLines returns the commands of a page: in blocks fenced as sh every line, in those fenced
// as console the lines with a prompt.
func commandLines(text string) (commands []command) {
	var section, fence string
	continues := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		heading, isHeading := strings.CutPrefix(line, "## ")
		after, isFence := strings.CutPrefix(line, "```")
		typed, hasPrompt := strings.CutPrefix(line, "$ ")
		switch {
		case isFence && fence != "":
			fence, continues = "", false
			continue
		case isFence:
			fence = after + "-" // not empty: a block without a language is a block
			continue
		case fence == "" && isHeading:
			section = heading
			continue
		case fence != "sh-" && fence != "console-":
			continue
		case continues:
			commands[len(commands)-1].text += " " + strings.TrimSuffix(line, `\`)
		case fence == "sh-" || hasPrompt:
			commands = append(commands, command{line: n, section: section, text: strings.TrimSuffix(typed, `\`)})
		default:
			continue // output
		}
		continues = strings.HasSuffix(line, `\`)
	}
	return commands
}

func TestCommandLines(t *testing.T) {
	const text = "```sh\nfirst\n```\n## Part\n1. A list:\n   ```console\n   $ second \\\n     --flag\n   output\n   $ third\n   ```\n```\nnot one\n```\n```yaml\n## no: heading\n```\n"
	want := []command{{2, "", "first"}, {7, "Part", "second  --flag"}, {10, "Part", "third"}}
	if got := commandLines(text); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// typed matches a line that a user types: with a prompt, or with the name of a program, after
// variables.
var typed = regexp.MustCompile(`^(\$ |(\w+=\S* )*(aws|bin/[\w-]+|cosign|crane|ctr|curl|dig|docker|etcdctl|export|go|hack/[\w-]+|helm|kind|kubectl|` +
	`make|podman|sed|sha256sum|skopeo|sudo|tar|testbed) )`)

// unlabelledCommands returns the numbers of the lines with commands in the blocks that name no
// language, which commandLines leaves out.
func unlabelledCommands(text string) (numbers []int) {
	fence := ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		switch isFence := strings.HasPrefix(line, "```"); {
		case isFence && fence != "":
			fence = ""
		case isFence:
			fence = line
		case fence == "```" && typed.MatchString(line):
			numbers = append(numbers, n)
		}
	}
	return numbers
}

func TestUnlabelledCommands(t *testing.T) {
	const text = "```\n$ first\n```\nkubectl get pods\n```sh\nmake test\n```\n1. A list:\n   ```\n   output\n   OLD=/tmp/x go test ./...\n   ```\n```\nmakes no sense\n```\n"
	if got, want := unlabelledCommands(text), []int{2, 11}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestFences checks that the blocks with commands are fenced as sh or console, so that TestRunBy
// and TestCommandsExist see them.
func TestFences(t *testing.T) {
	for page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range unlabelledCommands(string(text)) {
			t.Errorf("%s:%d: a command in a block without a language: fence the block as sh, or as console if it has prompts and output", page, n)
		}
	}
}

// TestCommandsExist checks the commands of all pages: commands and flags of the plugin and the
// controller, targets of make, and files of this repository.
func TestCommandsExist(t *testing.T) {
	targets := makeTargets(t)
	file := regexp.MustCompile(`\b(deploy|samples|hack|test|docs)/[\w./-]*\w`)
	plugin := regexp.MustCompile(`kubectl mcs ([^|;&<>#)]*)`)
	makes := regexp.MustCompile(`(?:^|\s)make ([a-z][a-z-]*)`)
	checked := 0
	for page := range pages(t) {
		if strings.HasPrefix(page, "docs/proposals/") {
			continue
		}
		for _, c := range pageCommands(t, page) {
			for _, path := range file.FindAllString(c.text, -1) {
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s:%d: %v", page, c.line, err)
				}
			}
			for _, m := range plugin.FindAllStringSubmatch(c.text, -1) {
				args := strings.Fields(m[1])
				if len(args) == 0 || strings.HasPrefix(args[0], "__") || strings.Contains(m[1], "$") {
					continue // TestEKSPage runs those with variables
				}
				checked++
				checkPluginCall(t, args)
			}
			if m := makes.FindStringSubmatch(c.text); m != nil && !targets[m[1]] {
				t.Errorf("%s:%d: make has no target %q", page, c.line, m[1])
			}
		}
	}
	if checked < 30 {
		t.Errorf("%d commands of the plugin are checked, want 30 or more", checked)
	}
}

func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(text), -1) {
		targets[m[1]] = true
	}
	return targets
}
