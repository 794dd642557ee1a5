// Package rules decides which results of the benchmarks count.
package rules

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Path is the file with the published results.
const Path = "docs/benchmarks/results.json"

// MaxCommits is how many commits a release may be after the one that was measured.
const MaxCommits = 30

var commit = regexp.MustCompile(`"commit": "([^"]*)"`)

// Commits returns the commits that results name, each once.
func Commits(results []byte) []string {
	var commits []string
	for _, m := range commit.FindAllSubmatch(results, -1) {
		commits = append(commits, string(m[1]))
	}
	slices.Sort(commits)
	return slices.Compact(commits)
}

// Releasable returns why results of these commits cannot be those of a release; nothing if they
// can. ahead has how many commits HEAD is after each commit of its history.
func Releasable(commits []string, ahead map[string]int) (reasons []string) {
	if len(commits) != 1 {
		reasons = append(reasons, fmt.Sprintf("they are of %d commits, expected one: %s", len(commits), strings.Join(commits, ", ")))
	}
	for _, c := range commits {
		switch n, ok := ahead[c]; {
		case !ok:
			reasons = append(reasons, "commit "+c+" is not in the history")
		case n > MaxCommits:
			reasons = append(reasons, fmt.Sprintf("commit %s is %d commits old, at most %d are allowed", c, n, MaxCommits))
		}
	}
	return reasons
}

// Ahead returns how many commits HEAD is after each of the commits. Those that are not in its
// history are left out.
func Ahead(commits []string) (map[string]int, error) {
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, err
	}
	if shallow != "false" {
		return nil, ErrShallow
	}
	ahead := map[string]int{}
	for _, c := range commits {
		if _, err := git("merge-base", "--is-ancestor", c, "HEAD"); err != nil {
			continue
		}
		text, err := git("rev-list", "--count", c+"..HEAD")
		if err != nil {
			return nil, err
		}
		if ahead[c], err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("reading the number of commits after %s: %w", c, err)
		}
	}
	return ahead, nil
}

// ErrShallow is that a clone cannot tell which commits are in the history.
var ErrShallow = errors.New("the clone has no history: run git fetch --unshallow")

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
