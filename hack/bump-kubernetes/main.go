// Command bump-kubernetes knows every file that names a Kubernetes version.
//
//	go run ./hack/bump-kubernetes           # print where each version is
//	go run ./hack/bump-kubernetes --check   # fail if a file disagrees with its group
//	go run ./hack/bump-kubernetes 1.37.3    # change all files, then: make generate unit
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// group is a set of files that must name the same version.
type group string

const (
	// libraries are the client libraries that the product is built with.
	libraries group = "libraries"
	// testbed is the Kubernetes of the testbed, which tests and recorded sessions run on.
	testbed group = "testbed"
	// older are the versions that the testbed has besides, for docs/versions.md: they are only
	// printed.
	older group = "older"
	// tools get their version from their programs, by `go mod tidy`: they are only printed.
	tools group = "tools"
)

// module matches the modules of a Kubernetes release: v0.37.1 and v1.37.1 are the same release,
// 37.1. Other modules below k8s.io have numbers of their own, all below v0.30.
const module = `k8s\.io/[\w-]+ v[01]\.((?:[3-9]\d)\.\d+)`

// pin is a file, or a pattern of files, that names versions. The expression has one group: minor
// and patch version, as in 37.1.
type pin struct {
	files   string
	version *regexp.Regexp
	group   group
}

// pins is the table of all files that name a version.
var pins = []pin{
	{"go.mod", regexp.MustCompile(module), libraries},
	{"internal/cli/*_test.go", regexp.MustCompile(`kubernetes: "v1\.(\d+\.\d+)"`), libraries},
	{"internal/cli/*/*_test.go", regexp.MustCompile(`kubernetes: "v1\.(\d+\.\d+)"`), libraries},
	{"internal/cli/testdata/*.txt", regexp.MustCompile(`(?:√ API server: |detail: )Kubernetes v1\.(\d+\.\d+)`), libraries},
	{"internal/cli/*/testdata/*.txt", regexp.MustCompile(`(?:√ API server: |detail: )Kubernetes v1\.(\d+\.\d+)`), libraries},
	{"testbed/programs/hyper/go.mod", regexp.MustCompile(module), testbed},
	{"testbed/build/build_test.go", regexp.MustCompile(`\bv[01]\.((?:[3-9]\d)\.\d+)`), testbed},
	{"testbed/README.md", regexp.MustCompile(`Kubernetes 1\.(\d+\.\d+)`), testbed},
	{"docs/*.md", regexp.MustCompile(`Kubernetes v1\.(\d+\.\d+)`), testbed},
	{"testbed/programs/hyper/go-*.mod", regexp.MustCompile(`k8s\.io/kubernetes v1\.(\d+\.\d+)`), older},
	{"testbed/programs/hyper/*/go.mod", regexp.MustCompile(`k8s\.io/kubernetes v1\.(\d+\.\d+)`), older},
	{"testbed/programs/co*/go.mod", regexp.MustCompile(module), testbed},
	{"hack/*/go.mod", regexp.MustCompile(module), tools},
}

func main() {
	check := flag.Bool("check", false, "fail if a file disagrees with its group")
	flag.Parse()
	if err := run(".", *check, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bump-kubernetes:", err)
		os.Exit(1)
	}
}

func run(root string, check bool, args []string, out io.Writer) error {
	if len(args) == 1 && !check {
		return bump(root, args[0], out)
	}
	if len(args) > 0 {
		return errors.New("usage: bump-kubernetes [--check | VERSION]")
	}
	found, err := findVersions(root)
	if err != nil {
		return err
	}
	if !check {
		return printVersions(out, found)
	}
	return checkVersions(found)
}

// named is the versions that a file names, sorted.
type named struct {
	file     string
	group    group
	versions []string
}

func findVersions(root string) ([]named, error) {
	var out []named
	for _, p := range pins {
		files, err := fs.Glob(os.DirFS(root), p.files)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return nil, err
			}
			n := named{file: file, group: p.group}
			for _, m := range p.version.FindAllSubmatch(text, -1) {
				n.versions = append(n.versions, string(m[1]))
			}
			slices.Sort(n.versions)
			if n.versions = slices.Compact(n.versions); len(n.versions) > 0 {
				out = append(out, n)
			}
		}
	}
	return out, nil
}

func printVersions(out io.Writer, all []named) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GROUP\tVERSION\tFILE")
	for _, n := range all {
		fmt.Fprintf(w, "%s\t1.%s\t%s\n", n.group, strings.Join(n.versions, ", 1."), n.file)
	}
	return w.Flush()
}

// checkVersions returns an error that names each file that disagrees with the first one of its
// group.
func checkVersions(all []named) error {
	first := map[group]named{}
	var errs []error
	for _, n := range all {
		if n.group == tools || n.group == older {
			continue
		}
		want, known := first[n.group]
		if !known {
			first[n.group], want = n, n
		}
		if len(n.versions) != 1 || n.versions[0] != want.versions[0] {
			errs = append(errs, fmt.Errorf("%s names 1.%s, and %s names 1.%s: run hack/bump-kubernetes with one of them",
				n.file, strings.Join(n.versions, ", 1."), want.file, want.versions[0]))
		}
	}
	return errors.Join(errs...)
}

var release = regexp.MustCompile(`^v?1\.(\d+\.\d+)$`)

// bump changes the versions of libraries and testbed. Text is replaced; go.mod files are tidied,
// which downloads the modules.
func bump(root, version string, out io.Writer) error {
	m := release.FindStringSubmatch(version)
	if m == nil {
		return fmt.Errorf("version %q: must be like 1.37.2", version)
	}
	modules := []string{}
	for _, p := range pins {
		if p.group == older || p.group == tools {
			continue
		}
		files, err := fs.Glob(os.DirFS(root), p.files)
		if err != nil {
			return err
		}
		for _, file := range files {
			changed, err := replaceVersion(filepath.Join(root, file), p.version, m[1])
			if err != nil {
				return err
			}
			if changed && filepath.Base(file) == "go.mod" {
				modules = append(modules, filepath.Dir(file))
			}
		}
	}
	for _, dir := range modules {
		cmd := exec.Command("go", "mod", "tidy")
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(root, dir), out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("running go mod tidy in %s: %w", dir, err)
		}
	}
	fmt.Fprintln(out, "Changed. Run make generate unit, and record the sessions in docs/ again if Kubernetes prints something new.")
	return nil
}

// replaceVersion replaces the version in all matches of a file and reports whether that changed the
// file.
func replaceVersion(path string, pattern *regexp.Regexp, version string) (changed bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	var out []byte
	end := 0
	for _, m := range pattern.FindAllSubmatchIndex(text, -1) {
		changed = changed || string(text[m[2]:m[3]]) != version
		out = append(append(out, text[end:m[2]]...), version...)
		end = m[3]
	}
	if !changed {
		return false, nil
	}
	return true, os.WriteFile(path, append(out, text[end:]...), 0o644)
}
