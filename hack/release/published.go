package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
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

// checkBenchmarks returns an error if the changelog gives the version a date while the published
// benchmarks cannot be those of its release. Before the date it prints why.
func checkBenchmarks(version string) error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	results, err := os.ReadFile(rules.Path)
	if err != nil {
		return err
	}
	commits := rules.Commits(results)
	ahead, err := rules.Ahead(commits)
	if err == nil {
		err = benchmarkProblem(rules.Releasable(commits, ahead))
	}
	if err != nil && !isDated(string(changelog), version) {
		fmt.Fprintln(os.Stderr, "release: with the date of the version this will be an error:", err)
		return nil
	}
	return err
}

func benchmarkProblem(reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	return errors.New(rules.Path + ": " + strings.Join(reasons, "; ") + ": run make bench and commit the results (RELEASE.md#steps)")
}

// isDated reports whether the changelog gives a version, such as v0.1.0, a date.
func isDated(changelog, version string) bool {
	return slices.ContainsFunc(dated.FindAllStringSubmatch(changelog, -1), func(m []string) bool { return "v"+m[1] == version })
}
