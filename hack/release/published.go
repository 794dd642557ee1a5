package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

var (
	// unpublished matches what the pages say before the first release.
	unpublished = regexp.MustCompile(`(?i)\b(?:no|until\s+a)\s+release\s+is\s+published\b`)
	// dated matches the headings of CHANGELOG.md with a date: a version that is released.
	dated = regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$`)
)

// checkPages reads the changelog and the pages of the repository for checkPublished.
func checkPages() error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	list, err := output("git", "ls-files", "*.md")
	if err != nil {
		return err
	}
	pages := map[string]string{}
	for path := range strings.FieldsSeq(list) {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pages[path] = string(text)
	}
	return checkPublished(string(changelog), pages)
}

// checkPublished returns an error if the changelog gives a version a date while pages, by their
// paths, say that no release is published.
func checkPublished(changelog string, pages map[string]string) error {
	version := dated.FindStringSubmatch(changelog)
	if version == nil {
		return nil
	}
	var places []string
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		for _, at := range unpublished.FindAllStringIndex(pages[path], -1) {
			places = append(places, fmt.Sprintf("%s:%d", path, 1+strings.Count(pages[path][:at[0]], "\n")))
		}
	}
	if len(places) == 0 {
		return nil
	}
	return errors.New("CHANGELOG.md gives " + version[1] + " the date " + version[2] + ", and these pages say that no release is published: " + strings.Join(places, ", ") +
		": remove what they say about the time before the first release (RELEASE.md#steps)")
}
