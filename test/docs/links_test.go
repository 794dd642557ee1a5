// Package docs tests the documentation: links, tables of contents, and names of tests.
package docs

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// root is the repository's folder, as the tests see it.
const root = "../.."

var (
	fence   = regexp.MustCompile("^ *(```+|~~~+)")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	target  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// page has the links and anchors of a Markdown file.
type page struct {
	// links are the targets, with the number of their line.
	links map[string]int
	// anchors of the headings, as on GitHub.
	anchors map[string]bool
}

// parse reads a page. Code has neither links nor headings.
func parse(text string) page {
	p := page{links: map[string]int{}, anchors: map[string]bool{}}
	open := ""
	for i, line := range strings.Split(text, "\n") {
		if m := fence.FindStringSubmatch(line); m != nil {
			switch {
			case open == "":
				open = m[1]
			case strings.HasPrefix(m[1], open):
				open = ""
			}
			continue
		}
		if open != "" {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			p.addAnchor(anchor(m[1]))
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "`"), -1) {
			p.links[m[1]] = i + 1
		}
	}
	return p
}

// anchor returns GitHub's anchor of a heading: lower case, without punctuation, a hyphen for each
// space.
func anchor(title string) string {
	title = target.ReplaceAllString(title, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// addAnchor numbers the second heading of a name, and so on.
func (p page) addAnchor(name string) {
	unique := name
	for n := 1; p.anchors[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", name, n)
	}
	p.anchors[unique] = true
}

func TestParse(t *testing.T) {
	p := parse("# A `--flag`: what, why\n[a](b.md#c) `[no](x)` [`d`](e)\n```sh\n# [no](y)\n```\n## Twice\n## Twice\n## A [link](to.md)\n")
	for _, want := range []string{"a---flag-what-why", "twice", "twice-1", "a-link"} {
		if !p.anchors[want] {
			t.Errorf("no anchor %q in %v", want, p.anchors)
		}
	}
	if len(p.links) != 3 || p.links["b.md#c"] != 2 || p.links["e"] != 2 || p.links["to.md"] != 8 {
		t.Errorf("links are %v, want b.md#c, e and to.md with their lines", p.links)
	}
}

// pages returns the Markdown files of the repository by path.
func pages(t *testing.T) map[string]page {
	t.Helper()
	found := map[string]page{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found[name] = parse(string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLinks follows every relative link of every page, to the file and to the heading.
func TestLinks(t *testing.T) {
	all := pages(t)
	for name, p := range all {
		for to, line := range p.links {
			if err := follow(all, name, to); err != nil {
				t.Errorf("%s:%d: link %s: %v", name, line, to, err)
			}
		}
	}
}

func follow(all map[string]page, from, to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return err
	}
	if u.IsAbs() {
		return nil
	}
	name := from
	if u.Path != "" {
		name = filepath.Join(filepath.Dir(from), u.Path)
	}
	if _, err := os.Stat(filepath.Join(root, name)); err != nil {
		return err
	}
	if p, ok := all[name]; u.Fragment != "" && (!ok || !p.anchors[u.Fragment]) {
		return fmt.Errorf("%s has no heading #%s", name, u.Fragment)
	}
	return nil
}

// TestFirstPages holds the pages that people read first to a width that fits beside a terminal.
func TestFirstPages(t *testing.T) {
	const width = 120
	comment := regexp.MustCompile(`<!--.*?-->`)
	for _, name := range []string{"README.md", "ARCHITECTURE.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(comment.ReplaceAllString(string(text), ""), "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("%s:%d has %d characters, want at most %d", name, i+1, n, width)
			}
		}
	}
}

// evidence are the pages that do not count for TestNumberOfPages: the table of contents, pages
// whose tables are generated, and those with the measurements of another page.
var evidence = []string{"README.md", "aws-behavior.md", "operations-measurements.md", "reliability-tests.md", "versions.md"}

// TestNumberOfPages holds docs to a size that a reader can survey. Runbooks, reference, proposals,
// benchmarks and evidence do not count.
func TestNumberOfPages(t *testing.T) {
	const most = 25
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(files) - len(evidence); n > most {
		t.Errorf("docs has %d pages beside %s, want at most %d: extend a page instead", n, strings.Join(evidence, ", "), most)
	}
}

// TestNumberOfWords holds the README and docs, without the proposals, to a size that a user can
// read, and the changes of a version to a page.
func TestNumberOfWords(t *testing.T) {
	const mostWords, mostChanges = 60_000, 30
	words := 0
	for name := range pages(t) {
		if name != "README.md" && (!strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "docs/proposals/")) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		words += len(strings.Fields(string(text)))
	}
	if words > mostWords || words < mostWords/2 {
		t.Errorf("the pages have %d words, want at most %d: shorten as much as you add", words, mostWords)
	}
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range strings.Split(string(text), "\n## ")[1:] {
		title, changes, _ := strings.Cut(version, "\n")
		if n := strings.Count(strings.TrimSpace(changes), "\n") + 1; n > mostChanges {
			t.Errorf("CHANGELOG.md has %d lines on %s, want at most %d", n, title, mostChanges)
		}
	}
}

// TestContents checks that the table of contents has each page of docs.
func TestContents(t *testing.T) {
	all := pages(t)
	listed := map[string]bool{}
	for to := range all["docs/README.md"].links {
		file, _, _ := strings.Cut(to, "#")
		listed[filepath.Join("docs", file)] = true
	}
	// A directory of pages has its own table of contents.
	for _, index := range []string{"docs/proposals/README.md", "docs/runbooks/README.md"} {
		for to := range all[index].links {
			listed[filepath.Join(filepath.Dir(index), to)] = listed[index]
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !listed[name] {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// TestGlossary holds the glossary to the terms that a reader can learn: 40 at most. A page explains
// the terms that it alone uses.
func TestGlossary(t *testing.T) {
	const most = 40
	text, err := os.ReadFile(filepath.Join(root, "docs/glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	// without the head of the table
	if n := strings.Count(string(text), "\n| ") - 2; n > most || n < most/2 {
		t.Errorf("the glossary has %d terms, want at most %d", n, most)
	}
}
