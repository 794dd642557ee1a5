package rules_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/bench/rules"
)

func TestReleasable(t *testing.T) {
	ahead := map[string]int{"new": 0, "recent": 30, "old": 31}
	for name, tt := range map[string]struct{ commits, want []string }{
		"the commit of the release": {[]string{"new"}, nil},
		"a recent commit":           {[]string{"recent"}, nil},
		"an old commit":             {[]string{"old"}, []string{"commit old is 31 commits old, at most 30 are allowed"}},
		"a commit that is lost":     {[]string{"lost"}, []string{"commit lost is not in the history"}},
		"a draft":                   {[]string{"new-draft"}, []string{"commit new-draft is not in the history"}},
		"several commits":           {[]string{"new", "recent"}, []string{"they are of 2 commits, expected one: new, recent"}},
		"no results":                {nil, []string{"they are of 0 commits, expected one: "}},
	} {
		if got := rules.Releasable(tt.commits, ahead); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// lost are commits of the published results that the history does not have, with the reason. The
// next measurement of their section removes them.
var lost = map[string]string{
	"6eac8ef": "section convergence of 2026-11-23, measured on a branch that was not merged",
}

// Every published figure names a commit that can be checked out and measured again.
func TestPublishedCommits(t *testing.T) {
	t.Chdir("../../..")
	results, err := os.ReadFile(rules.Path)
	if err != nil {
		t.Fatal(err)
	}
	commits := rules.Commits(results)
	ahead, err := rules.Ahead(commits)
	if errors.Is(err, rules.ErrShallow) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commits {
		n, found := ahead[c]
		_, known := lost[c]
		switch {
		case found:
			t.Logf("commit %s is %d commits old", c, n)
		case !known:
			t.Errorf("%s names commit %s, which is not in the history: run make bench on a commit that is", rules.Path, c)
		}
	}
	for c := range lost {
		if _, found := ahead[c]; found || !slices.Contains(commits, c) {
			t.Errorf("remove commit %s from the list of lost ones: it is in the history, or not in %s", c, rules.Path)
		}
	}
	t.Logf("a release would fail: %s", strings.Join(rules.Releasable(commits, ahead), "; "))
}
