package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPublishSite: each release stays in its folder, and the root is that of the latest one.
func TestPublishSite(t *testing.T) {
	repository := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "--bare")
	for _, release := range []struct {
		version string
		pages   []string // beside index.html, in which the version is
		want    string   // the files of the branch
		root    string   // the version in the root
	}{
		{"v0.9.0", []string{"old"}, ".nojekyll index.html old.html v0.9.0/index.html v0.9.0/old.html", "v0.9.0"},
		{"v0.10.0-rc1", nil, ".nojekyll index.html old.html v0.10.0-rc1/index.html v0.9.0/index.html v0.9.0/old.html", "v0.9.0"},
		{"v0.10.0", nil, ".nojekyll index.html v0.10.0-rc1/index.html v0.10.0/index.html v0.9.0/index.html v0.9.0/old.html", "v0.10.0"},
		{"v0.9.1", nil, ".nojekyll index.html v0.10.0-rc1/index.html v0.10.0/index.html v0.9.0/index.html v0.9.0/old.html v0.9.1/index.html", "v0.10.0"},
		{"v0.9.0", nil, ".nojekyll index.html v0.10.0-rc1/index.html v0.10.0/index.html v0.9.0/index.html v0.9.1/index.html", "v0.10.0"},
	} {
		site := t.TempDir()
		for _, folder := range []string{site, filepath.Join(site, release.version)} {
			if err := os.MkdirAll(folder, 0o750); err != nil {
				t.Fatal(err)
			}
			for _, page := range append(release.pages, "index") {
				if err := os.WriteFile(filepath.Join(folder, page+".html"), []byte(release.version), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.CommandContext(t.Context(), "./publish-site", repository, release.version)
		cmd.Env = append(os.Environ(), "SITE="+site)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("publish-site %s: %v: %s", release.version, err, out)
		}
		if got := strings.Join(strings.Fields(git("ls-tree", "-r", "--name-only", "gh-pages")), " "); got != release.want {
			t.Errorf("after %s the branch has %s, want %s", release.version, got, release.want)
		}
		if got := git("show", "gh-pages:index.html"); got != release.root {
			t.Errorf("after %s the root is of %s, want %s", release.version, got, release.root)
		}
	}
	if got := git("rev-list", "--count", "gh-pages"); got != "5" {
		t.Errorf("the branch has %s commits, want one of each release", got)
	}
}
