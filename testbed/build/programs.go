// Package build builds the programs and images of the testbed from pinned Go modules and a few
// Debian packages, and caches them: programs by the hash of their sources and pins, images by their
// content. It downloads only Go modules and packages.
package build

import (
	"cmp"
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
	"golang.org/x/mod/semver"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// program is a group of binaries from one `go build` in one cache directory.
type program struct {
	name     string
	what     string // for messages
	usually  string // how long a first build takes on two cores, beside the others
	dir      string // its module, below the testbed's sources
	pins     string // the file of the module's requirements, go.mod unless it is another version
	packages []string
	tags     string
	ldflags  string
	links    []string // names under which the first binary is called besides
}

// kubernetesNames are the programs that the multi-call binary contains. Its name selects the
// program.
var kubernetesNames = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
}

// pinned is a module whose version determines the version of a program.
type pinned struct{ dir, module string }

var (
	kubernetesModule = pinned{"programs/hyper", "k8s.io/kubernetes"}
	corednsModule    = pinned{"programs/coredns", "github.com/coredns/coredns"}
)

// kubernetesProgram is the multi-call binary of a version.
func kubernetesProgram(p pin) program {
	return program{
		name: "kubernetes" + p.suffix, what: "Kubernetes " + p.version + " and etcd", usually: "4 minutes", pins: p.file,
		dir: p.dir, packages: []string{"."}, ldflags: kubernetesVersionFlags(p.version), links: kubernetesNames,
	}
}

func corednsProgram(p pin) program {
	return program{
		name: "coredns" + p.suffix, what: "CoreDNS " + p.version, usually: "30 seconds", pins: p.file, dir: p.dir, packages: []string{"."},
	}
}

// commonPrograms are the programs that have one version.
func commonPrograms() []program {
	return []program{
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

// kubernetesVersionFlags stamp the version into the binary, as Kubernetes' own build does: clients
// read it.
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
		case entry.IsDir() || !isBuildInput(p.replacePins(path)):
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

// replacePins returns the path that a file has for the build of p: its own requirements are go.mod
// and go.sum, and the default ones are none.
func (p program) replacePins(path string) string {
	own := strings.TrimSuffix(cmp.Or(p.pins, "go.mod"), ".mod")
	switch base := filepath.Base(path); {
	case filepath.Dir(path) != p.dir:
		return path
	case base == own+".mod" || base == own+".sum":
		return filepath.Join(p.dir, "go"+filepath.Ext(path))
	case base == "go.mod" || base == "go.sum":
		return ""
	}
	return path
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
	if err := b.compile(ctx, p, dir); err != nil {
		return "", fmt.Errorf("building %s: %w", p.what, err)
	}
	b.logf("built %s in %s", p.what, time.Since(start).Round(time.Second))
	return dir, nil
}

// heartbeat prints progress every half minute.
func (b *Builder) heartbeat(what string, done fmt.Stringer) (stop func()) {
	start, ticker, end := time.Now(), time.NewTicker(30*time.Second), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				b.logf("  still building %s: %s after %s", what, done, time.Since(start).Round(time.Second))
			case <-end:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(end) }
}

// commonFlags are those of the Makefile, so that a package is compiled once for the product and the
// testbed. The linker drops debugging information (-s -w), so the compiler need not write it. It is
// not part of the cache key, because the instructions are the same without it.
func commonFlags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}
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
	flags := append(commonFlags(), "-tags", p.tags, "-ldflags", "-s -w "+p.ldflags)
	if p.pins != "" {
		flags = append(flags, "-modfile="+p.pins)
	}
	source := filepath.Join(b.Source, p.dir)
	built := &progress{}
	defer b.heartbeat(p.what, built)()
	stale, err := stalePackages(ctx, source, flags, p.packages)
	if err != nil {
		return err
	}
	built.expect(stale)
	cmd := goCommand(ctx, source, slices.Concat([]string{"build", "-v", "-o", tmp + "/"}, flags, p.packages)...)
	cmd.Stdout, cmd.Stderr = built, built
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w; the last lines of its output:\n%s", err, tail(built.output(), 15))
	}
	if err := link(tmp, p.links); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return install(tmp, dir)
}

// install renames the complete build tmp to dir, unless another process has built the same
// meanwhile: the name of dir is the hash of all that it is built from.
func install(tmp, dir string) error {
	err := os.Rename(tmp, dir)
	if errors.Is(err, fs.ErrExist) {
		return os.RemoveAll(tmp)
	}
	return err
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

// FindSource finds the testbed's sources in the given directories, their parents, or their folder
// "testbed".
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

// pin is a version that the testbed can build.
type pin struct {
	version string // v1.31.14
	dir     string // its module, below the testbed's sources
	file    string // the file of the requirements, or "" for go.mod
	suffix  string // of the names of programs
}

// pin returns the pin of a minor version of a program, such as 1.12. The default version, "", is
// that of go.mod; the others have a file beside it (go-1.12.mod), or a directory (1.31) if they
// need another main.go.
func (b *Builder) pin(p pinned, minor string) (pin, error) {
	version, err := b.pinnedVersion(p, "go.mod")
	if err != nil || minor == "" || isMinor(version, minor) {
		return pin{version: version, dir: p.dir}, err
	}
	out := pin{dir: filepath.Join(p.dir, minor), suffix: "-" + minor}
	if _, err := os.Stat(filepath.Join(b.Source, out.dir)); err != nil {
		out.dir, out.file = p.dir, "go-"+minor+".mod"
	}
	out.version, err = b.pinnedVersion(pinned{out.dir, p.module}, cmp.Or(out.file, "go.mod"))
	if errors.Is(err, fs.ErrNotExist) {
		return pin{}, fmt.Errorf("there is no version %s in %s: hack/pin-version adds it", minor, p.dir)
	}
	if err == nil && !isMinor(out.version, minor) {
		err = fmt.Errorf("version %s in %s is %s %s", minor, p.dir, p.module, out.version)
	}
	return out, err
}

// isMinor reports whether a version such as v1.31.14 is of a minor version such as 1.31.
func isMinor(version, minor string) bool { return semver.MajorMinor(version) == "v"+minor }

func (b *Builder) pinnedVersion(p pinned, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(b.Source, p.dir, file))
	if err != nil {
		return "", fmt.Errorf("reading the pins: %w", err)
	}
	return moduleVersion(text, p.module)
}

// Kubernetes builds only the multi-call binary and returns the directory that holds it under the
// names of all its programs: etcd, kube-apiserver, kubectl, …
func (b *Builder) Kubernetes(ctx context.Context) (string, error) {
	if err := b.start(ctx); err != nil {
		return "", err
	}
	p, err := b.pin(kubernetesModule, "")
	if err != nil {
		return "", err
	}
	return b.ensure(ctx, kubernetesProgram(p))
}

// clusterPins are the pins of one cluster's versions.
type clusterPins struct{ kubernetes, coredns pin }

// All builds everything that is missing for clusters of these versions and returns the paths. The
// default versions are always built: kubectl is of the default version.
func (b *Builder) All(ctx context.Context, versions []cluster.Versions) (Result, error) {
	if err := b.start(ctx); err != nil {
		return Result{}, err
	}
	pins := map[cluster.Versions]clusterPins{}
	all := commonPrograms()
	for _, v := range append(slices.Clip(versions), cluster.Versions{}) {
		kubernetes, err := b.pin(kubernetesModule, v.Kubernetes)
		if err != nil {
			return Result{}, err
		}
		coredns, err := b.pin(corednsModule, v.CoreDNS)
		if err != nil {
			return Result{}, err
		}
		pins[v] = clusterPins{kubernetes, coredns}
		for _, p := range []program{kubernetesProgram(kubernetes), corednsProgram(coredns)} {
			if !slices.ContainsFunc(all, func(o program) bool { return o.name == p.name }) {
				all = append(all, p)
			}
		}
	}
	dirs, err := b.ensureAll(ctx, all)
	if err != nil {
		return Result{}, err
	}
	return b.assemble(dirs, pins)
}

// ensureAll builds the programs at the same time: while one is downloaded or linked, which keeps at
// most one processor busy, others compile. The first error ends all of it.
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
