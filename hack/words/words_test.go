package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		file, text string
		want       []string
	}{
		"a word in a comment":              {"a.go", "// The caller is told.\n", []string{"told"}},
		"a word in an identifier":          {"a.go", "func (t *T) lookAgain() {}\n", []string{"look Again"}},
		"a word in a test name":            {"a_test.go", "func TestToldOnce(t *testing.T) {}\n", []string{"Told"}},
		"a phrase over two comment lines":  {"a.go", "// of an earlier\n\t// life of it\n", []string{"earlier // life"}},
		"a longer word":                    {"a.go", "// withhold, ahint\n", nil},
		"a hint between clusters":          {"a.md", "Hints arrive by UDP.\n", []string{"Hints"}},
		"a topology hint by its line":      {"a.md", "kube-proxy reads the hints.\n", nil},
		"a topology hint by its file name": {"internal/plan/slicehints.go", "// hints are sorted\n", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range check(tt.file, tt.text) {
				got = append(got, f.text)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCheckReportsLine(t *testing.T) {
	got := check("a.md", "one\ntwo\nNobody reads this.\n")
	if len(got) != 1 || got[0].line != 3 {
		t.Errorf("check found %v, want one finding in line 3", got)
	}
}

func TestIsBelow(t *testing.T) {
	for file, want := range map[string]bool{
		"go.sum":              true,
		"testbed/go.sum":      true,
		"deploy/crds/a.yaml":  true,
		"deploy/crdsother.md": false,
		"docs/glossary.md":    true,
		"docs/api.md":         false,
	} {
		if got := isBelow(file, excluded); got != want {
			t.Errorf("isBelow(%s) is %v, want %v", file, got, want)
		}
	}
}
