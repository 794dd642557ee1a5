package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Running is the software that a cluster reported during a run (TestVersions in test/e2e).
type Running struct {
	Kubernetes string   `json:"kubernetes"`
	CoreDNS    string   `json:"coreDNS"`
	ProxyMode  string   `json:"proxyMode"`
	CRDs       []string `json:"crds"`
}

// Run is the last run of a row.
type Run struct {
	Row      string    `json:"row"`
	Date     string    `json:"date"`
	Commit   string    `json:"commit"`
	Clusters []Running `json:"clusters"`
	Passed   []string  `json:"passed"`
	Failed   []string  `json:"failed,omitempty"`
}

// OK reports whether all scenarios of the run passed.
func (r Run) OK() bool { return len(r.Failed) == 0 && len(r.Passed) > 0 }

// matches returns an error if the clusters ran other software than the row is about.
func (r row) matches(clusters []Running) error {
	if len(clusters) != len(r) {
		return fmt.Errorf("%d clusters reported their versions: expected %d", len(clusters), len(r))
	}
	for i, want := range r {
		got := clusters[i]
		crds := []string{want.CRDs}
		if want.CRDs == all {
			crds = []string{v1alpha1, v1beta1}
		}
		if !isMinor(got.Kubernetes, want.Kubernetes) || !isMinor(got.CoreDNS, want.CoreDNS) || got.ProxyMode != want.ProxyMode || !slices.Equal(got.CRDs, crds) {
			return fmt.Errorf("cls%d ran %+v: expected %s", i+1, got, want)
		}
	}
	return nil
}

// isMinor reports whether a version such as 1.31.14 is of a minor version such as 1.31.
func isMinor(version, minor string) bool { return strings.HasPrefix(version, minor+".") }

// parseTests reads the results of top-level tests from the output of `go test -v`.
func parseTests(output string, all []scenario) (passed, failed []string) {
	for _, s := range all {
		if strings.Contains(output, "\n--- PASS: "+s.test+" (") {
			passed = append(passed, s.test)
		} else {
			failed = append(failed, s.test)
		}
	}
	return passed, failed
}

// load returns the runs of the file; none if there is no file.
func load(path string) ([]Run, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the runs: %w", err)
	}
	var out []Run
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("reading the runs in %s: %w", path, err)
	}
	return out, nil
}

// record replaces the earlier run of the same row. Runs are in the order of rows; those of rows
// that are no more are dropped.
func record(runs []Run, run Run, rows []row) []Run {
	position := func(r Run) int {
		return slices.IndexFunc(rows, func(o row) bool { return o.String() == r.Row })
	}
	runs = slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Row == run.Row || position(r) < 0 })
	runs = append(runs, run)
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Compare(position(a), position(b)) })
	return runs
}

// save writes the runs and the page.
func save(resultsPath, pagePath string, runs []Run) error {
	text, err := json.MarshalIndent(runs, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the runs: %w", err)
	}
	if err := os.WriteFile(resultsPath, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the runs: %w", err)
	}
	if err := os.WriteFile(pagePath, []byte(render(runs)), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
