package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadReport(t *testing.T) {
	dir := t.TempDir()
	source := "package p\n\nconst interval = 2 * second\n\nfunc f() int {\n\treturn 1 + 1\n}\n\nfunc g(a int) {\n\tswitch {\n\tcase a > 1:\n\t}\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	raw := `{"mutants_killed": 3, "files": [{"file_name": "p.go", "mutations": [
		{"type": "ARITHMETIC_BASE", "status": "NOT COVERED", "line": 3, "column": 20},
		{"type": "ARITHMETIC_BASE", "status": "NOT COVERED", "line": 6, "column": 11},
		{"type": "CONDITIONALS_BOUNDARY", "status": "NOT COVERED", "line": 11, "column": 9},
		{"type": "INVERT_NEGATIVES", "status": "LIVED", "line": 6, "column": 9},
		{"type": "CONDITIONALS_BOUNDARY", "status": "TIMED OUT", "line": 6, "column": 3},
		{"type": "CONDITIONALS_BOUNDARY", "status": "KILLED", "line": 6, "column": 4}]}]}`
	unnoticed, summary, err := readReport([]byte(raw), dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := dir + ": 3 mutants noticed, 2 not, 2 not tried"; summary != want {
		t.Errorf("summary %q, want %q", summary, want)
	}
	var table strings.Builder
	if err := printTable(&table, unnoticed); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], "p.go:6:9") || !strings.Contains(lines[1], "lived") ||
		!strings.Contains(lines[2], "not covered") || !strings.Contains(lines[2], "return 1 + 1") {
		t.Errorf("table:\n%s", table.String())
	}
}
