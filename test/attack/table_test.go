package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTable checks that each attack is complete and has a test, and that each test of an attack is
// in the table.
func TestTable(t *testing.T) {
	declared := declaredAttacks(t)
	names := map[string]bool{}
	tests := map[string]bool{}
	for _, a := range Attacks {
		if names[a.Name] {
			t.Errorf("two attacks have the name %q", a.Name)
		}
		names[a.Name], tests[a.Test] = true, true
		if !slices.Contains(declared, a.Test) {
			t.Errorf("%s: there is no %s", a.Name, a.Test)
		}
		if !slices.ContainsFunc(rights, func(r right) bool { return r.actor == a.Actor }) {
			t.Errorf("%s: the table has no actor %q", a.Name, a.Actor)
		}
		for field, text := range map[string]string{"Name": a.Name, "Actor": string(a.Actor), "Does": a.Does, "Prevented": a.Prevented, "Effect": a.Effect} {
			if text == "" || strings.ContainsAny(text, "|\n") || strings.HasSuffix(text, ".") {
				t.Errorf("%s: field %s is empty, ends with a period or breaks the table: %q", a.Name, field, text)
			}
		}
	}
	for _, test := range declared {
		if !tests[test] {
			t.Errorf("%s is not in the table", test)
		}
	}
}

// TestFindings checks that the findings of the security review are attacked.
func TestFindings(t *testing.T) {
	found := map[string]bool{}
	for _, a := range Attacks {
		for _, finding := range a.Findings {
			found[finding] = true
		}
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18} {
		if finding := fmt.Sprint("F", n); !found[finding] {
			t.Errorf("no attack belongs to finding %s", finding)
		}
	}
}

// TestThreatModel checks that the page has the current table; make generate writes it.
func TestThreatModel(t *testing.T) {
	page, err := os.ReadFile("../../docs/security/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), Table()) {
		t.Error("docs/security/threat-model.md is stale: make generate writes it")
	}
}

// declaredAttacks returns the names of the tests of attacks.
func declaredAttacks(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	declaration := regexp.MustCompile(`(?m)^func (TestAttack_\w+)\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}
