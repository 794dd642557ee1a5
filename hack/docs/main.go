// Command docs writes the reference pages, and the figures in other pages, from the code. "make
// generate" runs it at the root of the repository.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// pages are generated as a whole.
var pages = map[string]func() (string, error){
	"docs/reference/flags.md":   flagsPage,
	"docs/reference/metrics.md": metricsPage,
	"docs/reference/values.md":  valuesPage,
}

// pagesWithFigures contain text of figures between markers.
var pagesWithFigures = []string{"README.md", "docs/aws-behavior.md", "docs/cloudmap-local.md", "docs/comparison.md", "docs/cost.md", "docs/ecs-ec2-lambda.md", "docs/operations.md", "docs/security/threat-model.md"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hack/docs:", err)
		os.Exit(1)
	}
}

func run() error {
	for path, generate := range pages {
		text, err := generate()
		if err != nil {
			return fmt.Errorf("generating %s: %w", path, err)
		}
		if err := write(path, text); err != nil {
			return err
		}
	}
	figures, err := newFigures()
	if err != nil {
		return fmt.Errorf("computing the figures: %w", err)
	}
	for _, path := range pagesWithFigures {
		text, err := os.ReadFile(filepath.FromSlash(path))
		if err != nil {
			return err
		}
		updated, err := figures.insert(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := write(path, updated); err != nil {
			return err
		}
	}
	return figures.checkUsed()
}

func write(path, text string) error {
	return os.WriteFile(filepath.FromSlash(path), []byte(text), 0o644)
}
