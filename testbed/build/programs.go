// Package build builds the programs and images of the testbed from pinned Go modules and a few Debian packages, and caches
// them: programs by the hash of their sources and pins, images by their content. It downloads only Go modules and packages.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/modfile"
)

// program is a group of binaries from one `go build` in one cache directory.
type program struct {
	name     string
	what     string // for messages
	usually  string // how long a first build takes on two cores
	dir      string // its module, below the testbed's sources
	packages []string
	tags     string
	ldflags  string
	links    []string // names under which the first binary is called besides
}

// kubernetesNames are the programs that the multi-call binary contains. Its name selects the program.
var kubernetesNames = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
}

func programs(kubernetes string) []program {
	return []program{
		{
			name: "kubernetes", what: "Kubernetes " + kubernetes + " and etcd", usually: "8 minutes",
			dir: "programs/hyper", packages: []string{"."}, ldflags: kubernetesVersionFlags(kubernetes), links: kubernetesNames,
		},
		{name: "coredns", what: "CoreDNS", usually: "1 minute", dir: "programs/coredns", packages: []string{"."}},
		{
			name: "containerd", what: "containerd and CNI plugins", usually: "1 minute", dir: "programs/containerd", packages: []string{"tool"},
			tags: "no_btrfs,no_zfs,no_devmapper",
		},
		{
			name: "tools", what: "the testbed's own programs", usually: "10 seconds", dir: ".",
			packages: []string{"./cmd/testbed-node", "./programs/pause", "./programs/hello"},
		},
	}
}

// kubernetesVersionFlags stamp the version into the binary, as Kubernetes' own build does: clients read it.
func kubernetesVersionFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var out []string
	for _, kv := range []string{
		"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor,
		"gitCommit=" + strings.Repeat("0", 40), "gitTreeState=clean", "buildDate=1970-01-01T00:00:00Z",
	} {
		out = append(out, "-X "+pkg+kv)
	}
	return strings.Join(out, " ")
}

// moduleVersion reads from a go.mod which version of a module it requires.
func moduleVersion(gomod []byte, module string) (string, error) {
	f, err := modfile.ParseLax("go.mod", gomod, nil)
	if err != nil {
		return "", fmt.Errorf("reading the pins: %w", err)
	}
	for _, r := range f.Require {
		if r.Mod.Path == module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("go.mod of %s requires no %s", f.Module.Mod.Path, module)
}

// cacheKey returns a hash of all inputs of a build of p.
func cacheKey(source fs.FS, p program, goVersion string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %s %s %s %q\n", goVersion, p.packages, p.tags, p.ldflags, p.name, p.links)
	err := fs.WalkDir(source, p.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != p.dir && isModule(source, path):
			return fs.SkipDir // has its own pins and its own key
		case entry.IsDir() || !isBuildInput(path):
			return nil
		}
		text, err := fs.ReadFile(source, path)
		fmt.Fprintf(h, "%s %d\n", path, len(text))
		h.Write(text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("hashing the sources of %s: %w", p.name, err)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

func isModule(source fs.FS, dir string) bool {
	_, err := fs.Stat(source, dir+"/go.mod")
	return err == nil
}

// isBuildInput reports whether a file is an input of a build: sources, pins and embedded files.
func isBuildInput(path string) bool {
	return (strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")) ||
		strings.HasSuffix(path, "go.mod") || strings.HasSuffix(path, "go.sum") || strings.Contains(path, "/templates/")
}

// ensure builds p unless the cache has it, and returns the directory of its binaries.
func (b *Builder) ensure(ctx context.Context, p program) (string, error) {
	key, err := cacheKey(os.DirFS(b.Source), p, b.goVersion)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.Cache, p.name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	b.logf("building %s (usually %s on 2 cores the first time, then never again)", p.what, p.usually)
	start := time.Now()
	stop := b.heartbeat("building "+p.what, start)
	err = b.compile(ctx, p, dir)
	stop()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", p.what, err)
	}
	b.logf("built %s in %s", p.what, time.Since(start).Round(time.Second))
	return dir, nil
}

// heartbeat prints progress every half minute.
func (b *Builder) heartbeat(what string, start time.Time) (stop func()) {
	ticker, done := time.NewTicker(30*time.Second), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				b.logf("  still %s: %s", what, time.Since(start).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}

// compile builds into a temporary directory that becomes dir only when it is complete.
func (b *Builder) compile(ctx context.Context, p program, dir string) (err error) {
	tmp, err := os.MkdirTemp(b.Cache, p.name+".tmp-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", p.tags, "-ldflags", "-s -w " + p.ldflags, "-o", tmp + "/"}
	cmd := exec.CommandContext(ctx, "go", append(args, p.packages...)...)
	cmd.Dir = filepath.Join(b.Source, p.dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w; the last lines of its output:\n%s", err, tail(output.String(), 15))
	}
	if err := link(tmp, p.links); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// link gives the one binary in dir its other names.
func link(dir string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) != 1 {
		return fmt.Errorf("expected one binary in %s, found %d", dir, len(entries))
	}
	for _, name := range names {
		if err := os.Symlink(entries[0].Name(), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// FindSource finds the testbed's sources in the given directories, their parents, or their folder "testbed".
func FindSource(from ...string) (string, error) {
	for _, start := range from {
		for dir := start; ; dir = filepath.Dir(dir) {
			for _, candidate := range []string{dir, filepath.Join(dir, "testbed")} {
				if isSource(candidate) {
					return candidate, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("the testbed's sources are not found: run it within the repository, or name them with --source DIR or TESTBED_SOURCE")
}

const modulePath = "github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed"

func isSource(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && modfile.ModulePath(text) == modulePath
}

// Builder builds from Source into Cache and reports progress on Out.
type Builder struct {
	Source, Cache string
	Out           io.Writer

	goVersion string
}

func (b *Builder) logf(format string, args ...any) { fmt.Fprintf(b.Out, format+"\n", args...) }

// start checks that there is a Go toolchain and a place for the results.
func (b *Builder) start(ctx context.Context) error {
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return fmt.Errorf("running go (the testbed is built from Go modules: put Go on PATH; with sudo, sudo env PATH=$PATH testbed …): %w", err)
	}
	b.goVersion = strings.Join(strings.Fields(string(version)), "/")
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return fmt.Errorf("creating the cache (choose another with --cache-dir or TESTBED_CACHE): %w", err)
	}
	return nil
}

// pin returns the version of module that the program in dir requires.
func (b *Builder) pin(dir, module string) (string, error) {
	text, err := os.ReadFile(filepath.Join(b.Source, dir, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("reading the pins: %w", err)
	}
	return moduleVersion(text, module)
}

// Kubernetes builds only the multi-call binary and returns the directory that holds it under the names of all its
// programs: etcd, kube-apiserver, kubectl, …
func (b *Builder) Kubernetes(ctx context.Context) (string, error) {
	if err := b.start(ctx); err != nil {
		return "", err
	}
	version, err := b.pin("programs/hyper", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	all := programs(version)
	i := slices.IndexFunc(all, func(p program) bool { return p.name == "kubernetes" })
	return b.ensure(ctx, all[i])
}

// All builds everything that is missing and returns the paths.
func (b *Builder) All(ctx context.Context) (Result, error) {
	if err := b.start(ctx); err != nil {
		return Result{}, err
	}
	kubernetes, err := b.pin("programs/hyper", "k8s.io/kubernetes")
	if err != nil {
		return Result{}, err
	}
	coredns, err := b.pin("programs/coredns", "github.com/coredns/coredns")
	if err != nil {
		return Result{}, err
	}
	dirs, err := b.ensureAll(ctx, programs(kubernetes))
	if err != nil {
		return Result{}, err
	}
	return b.assemble(dirs, coredns)
}

// ensureAll builds the programs at the same time: while one is downloaded or linked, which keeps at most one processor
// busy, others compile. The first error ends all of it.
func (b *Builder) ensureAll(ctx context.Context, all []program) (map[string]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	made := make([]string, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			dir, err := b.ensure(ctx, p)
			if err != nil {
				cancel(err)
			}
			made[i] = dir
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for i, p := range all {
		dirs[p.name] = made[i]
	}
	return dirs, nil
}
