// Command mutate runs gremlins (pinned in hack/gremlins/go.mod) on packages and prints the mutants that their unit tests do not
// notice. gremlins changes one operator at a time and runs the tests of the package. See `make mutate` in CONTRIBUTING.md.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	workers := flag.Int("workers", 2, "number of mutants to test at the same time")
	coefficient := flag.Int("timeout-coefficient", 20, "a mutant times out after this many times the duration of the tests")
	flag.Parse()
	if err := run(flag.Args(), *workers, *coefficient, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(packages []string, workers, coefficient int, out io.Writer) error {
	if len(packages) == 0 {
		return errors.New("name packages, for example ./internal/mcs")
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var unnoticed []mutant
	for i, pkg := range packages {
		file := filepath.Join(dir, fmt.Sprintf("%d.json", i))
		if err := gremlins(pkg, file, workers, coefficient); err != nil {
			return fmt.Errorf("running gremlins on %s: %w", pkg, err)
		}
		raw, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(out, "%s: nothing to mutate\n", pkg)
			continue
		}
		if err != nil {
			return err
		}
		found, summary, err := readReport(raw, pkg)
		if err != nil {
			return fmt.Errorf("reading the report of %s: %w", pkg, err)
		}
		fmt.Fprintln(out, summary)
		unnoticed = append(unnoticed, found...)
	}
	return printTable(out, unnoticed)
}

// gremlins runs the program with its progress on standard error. It copies the module once for each worker, and -short keeps it to
// fast tests.
func gremlins(pkg, report string, workers, coefficient int) error {
	cmd := exec.Command("go", "tool", "-modfile=hack/gremlins/go.mod", "gremlins", "unleash", pkg, "--output", report,
		"--workers", fmt.Sprint(workers), "--timeout-coefficient", fmt.Sprint(coefficient), "--output-statuses", "lt",
		"--exclude-files", `\.pb\.go$|zz_generated`, "--invert-logical", "--invert-loopctrl", "--invert-assignments")
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -short")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// mutant is a change that no test noticed.
type mutant struct {
	file         string
	line, column int
	kind, status string
}

// report is the part of gremlins' report that is used.
type report struct {
	Killed int `json:"mutants_killed"`
	Files  []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
			Line   int    `json:"line"`
			Column int    `json:"column"`
		} `json:"mutations"`
	} `json:"files"`
}

// readReport returns the mutants that no test noticed: the ones that lived, and the ones in statements that no test executes.
// gremlins does not try mutants that coverage does not include at all, in constants and in the conditions of cases: they are counted.
func readReport(raw []byte, pkg string) (unnoticed []mutant, summary string, err error) {
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, "", err
	}
	untried := 0
	for _, f := range r.Files {
		name := filepath.Join(pkg, f.Name)
		uncovered, err := linesWithoutCoverage(name)
		if err != nil {
			return nil, "", err
		}
		for _, m := range f.Mutations {
			switch {
			case m.Status == "NOT COVERED" && uncovered[m.Line]:
				untried++
			case m.Status == "NOT COVERED", m.Status == "LIVED":
				unnoticed = append(unnoticed, mutant{name, m.Line, m.Column, strings.ToLower(m.Type), strings.ToLower(m.Status)})
			}
		}
	}
	return unnoticed, fmt.Sprintf("%s: %d mutants noticed, %d not, %d not tried", pkg, r.Killed, len(unnoticed), untried), nil
}

// linesWithoutCoverage returns the lines of a file that coverage does not include: outside functions, and the conditions of cases.
func linesWithoutCoverage(name string) (map[int]bool, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	lines := map[int]bool{}
	mark := func(from, to token.Pos, without bool) {
		for line := files.Position(from).Line; line <= files.Position(to).Line; line++ {
			lines[line] = without
		}
	}
	mark(file.FileStart, file.FileEnd, true)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			mark(f.Pos(), f.End(), false)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CaseClause); ok {
			mark(c.Pos(), c.Colon, true)
		}
		return true
	})
	return lines, nil
}

func printTable(out io.Writer, mutants []mutant) error {
	if len(mutants) == 0 {
		return nil
	}
	slices.SortFunc(mutants, func(a, b mutant) int {
		return cmp.Or(strings.Compare(a.file, b.file), a.line-b.line, a.column-b.column, strings.Compare(a.kind, b.kind))
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MUTANT\tKIND\tSTATUS\tLINE")
	for _, m := range mutants {
		fmt.Fprintf(w, "%s:%d:%d\t%s\t%s\t%s\n", m.file, m.line, m.column, m.kind, m.status, sourceLine(m.file, m.line))
	}
	return w.Flush()
}

// sourceLine returns a line of a file, or "" if it cannot be read.
func sourceLine(name string, line int) string {
	text, err := os.ReadFile(name)
	lines := strings.Split(string(text), "\n")
	if err != nil || line > len(lines) {
		return ""
	}
	return strings.TrimSpace(lines[line-1])
}
