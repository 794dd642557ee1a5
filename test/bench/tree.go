package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// draftSuffix marks the commit of a draft: no history has it, so that no test accepts the results
// as published ones.
const draftSuffix = "-draft"

// origin returns the commit that results name. Without draft it is an error if the working tree
// differs from the commit: the same could not be measured again.
func origin(head string, changed []string, draft bool) (string, error) {
	switch {
	case draft:
		return head + draftSuffix, nil
	case len(changed) > 0:
		return "", fmt.Errorf("the working tree differs from commit %s: %s: commit or stash the changes, or measure a draft, which cannot be published, with make bench DRAFT=1", head, strings.Join(changed, ", "))
	}
	return head, nil
}

// workingTree returns the commit of the working tree, and the files that differ from it, but for
// those in the folder of the results.
func workingTree(results string) (head string, changed []string, err error) {
	if head, err = git("rev-parse", "--short", "HEAD"); err != nil {
		return "", nil, err
	}
	status, err := git("status", "--porcelain", "--untracked-files=all")
	for line := range strings.Lines(status) { // " M path"
		if path := strings.TrimSpace(line[2:]); !strings.HasPrefix(path, results+"/") {
			changed = append(changed, path)
		}
	}
	return strings.TrimSpace(head), changed, err
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// checkTree returns an error if what would be measured is not the commit that the results name.
func (r *Results) checkTree(draft bool) error {
	head, changed, err := workingTree(r.folder)
	if err != nil {
		return err
	}
	commit, err := origin(head, changed, draft)
	if err == nil && !draft && r.commit != "" && commit != r.commit {
		err = fmt.Errorf("the working tree is at commit %s, and bin/ was built from %s: run make bench again", commit, r.commit)
	}
	r.commit = commit
	return err
}
