// Command words fails when code or docs use a word that this project has replaced by the field's
// term.
//
//	go run ./hack/words           every file
//	go run ./hack/words PATH...   these files and folders
//
// docs/glossary.md has the terms.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// excluded are texts of third parties, the texts about the words themselves, and recorded output.
var excluded = []string{
	"CHANGELOG.md",
	"LICENSE",
	"deploy/charts/cloud-map-mcs-controller/files/crds/",
	"deploy/crds/",
	"docs/benchmarks/",
	"docs/glossary.md",
	"go.sum",
	"hack/words/",
}

func main() {
	files, err := trackedFiles()
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
	paths := os.Args[1:]
	var found []finding
	for _, file := range files {
		if isBelow(file, excluded) || !isSelected(file, paths) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			continue // deleted, or not a text
		}
		found = append(found, check(file, string(text))...)
	}
	slices.SortStableFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	for _, f := range found {
		fmt.Printf("%s:%d: %q: write %s\n", f.file, f.line, f.text, f.replacement)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// trackedFiles lists the files of the working tree that Git does not ignore.
func trackedFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files: %w", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

// isSelected reports whether file is below one of paths, or there are no paths.
func isSelected(file string, paths []string) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(path string) bool {
		path = strings.TrimSuffix(path, "/")
		return path == "." || file == path || strings.HasPrefix(file, path+"/")
	})
}

// isBelow reports whether file is one of paths, is in one of these folders, or has one of these
// base names.
func isBelow(file string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return file == path || strings.HasSuffix(file, "/"+path) || strings.HasSuffix(path, "/") && strings.HasPrefix(file, path)
	})
}
