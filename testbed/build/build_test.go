package build

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/oci"
)

func sources() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"go.mod":                  file("module testbed"),
		"a.go":                    file("package testbed"),
		"a_test.go":               file("package testbed"),
		"README.md":               file("read me"),
		"cluster/templates/x.txt": file("x"),
		"programs/p/go.mod":       file("module p"),
		"programs/p/go.sum":       file("sums"),
		"programs/p/go-1.mod":     file("module p // 1"),
		"programs/p/go-1.sum":     file("sums // 1"),
		"programs/p/main.go":      file("package main"),
	}
}

func TestCacheKey(t *testing.T) {
	own := program{name: "tools", dir: ".", packages: []string{"./a"}}
	nested := program{name: "p", dir: "programs/p", packages: []string{"."}}
	older := program{name: "p-1", dir: "programs/p", pins: "go-1.mod", packages: []string{"."}}
	tests := []struct {
		name                           string
		change                         func(fstest.MapFS)
		wantOwn, wantNested, wantOlder bool // whether the key is another one
	}{
		{"nothing", func(fstest.MapFS) {}, false, false, false},
		{"a source", func(fs fstest.MapFS) { fs["a.go"].Data = []byte("package testbed // changed") }, true, false, false},
		{"an embedded file", func(fs fstest.MapFS) { fs["cluster/templates/x.txt"].Data = []byte("y") }, true, false, false},
		{"a test", func(fs fstest.MapFS) { fs["a_test.go"].Data = nil }, false, false, false},
		{"a document", func(fs fstest.MapFS) { fs["README.md"].Data = nil }, false, false, false},
		{"the pins of a nested module", func(fs fstest.MapFS) { fs["programs/p/go.sum"].Data = []byte("other sums") }, false, true, false},
		{"the pins of another version", func(fs fstest.MapFS) { fs["programs/p/go-1.mod"].Data = nil }, false, false, true},
		{"the sums of another version", func(fs fstest.MapFS) { fs["programs/p/go-1.sum"].Data = nil }, false, false, true},
		{"the source of a nested module", func(fs fstest.MapFS) { fs["programs/p/main.go"].Data = nil }, false, true, true},
		{"a file moved", func(fs fstest.MapFS) { fs["b.go"] = fs["a.go"]; delete(fs, "a.go") }, true, false, false},
	}
	key := func(fs fstest.MapFS, p program) string {
		t.Helper()
		k, err := cacheKey(fs, p, "go1/amd64")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changed := sources()
			tt.change(changed)
			if got := key(changed, own) != key(sources(), own); got != tt.wantOwn {
				t.Errorf("own programs are rebuilt: %t, want %t", got, tt.wantOwn)
			}
			if got := key(changed, nested) != key(sources(), nested); got != tt.wantNested {
				t.Errorf("nested program is rebuilt: %t, want %t", got, tt.wantNested)
			}
			if got := key(changed, older) != key(sources(), older); got != tt.wantOlder {
				t.Errorf("another version of it is rebuilt: %t, want %t", got, tt.wantOlder)
			}
		})
	}
}

func TestCacheKeyOfBuildSettings(t *testing.T) {
	base := program{name: "p", dir: "programs/p", packages: []string{"."}}
	seen := map[string]string{}
	for name, settings := range map[string]struct {
		p         program
		goVersion string
	}{
		"base":     {base, "go1/amd64"},
		"compiler": {base, "go2/amd64"},
		"machine":  {base, "go1/arm64"},
		"tags":     {program{name: "p", dir: base.dir, packages: base.packages, tags: "x"}, "go1/amd64"},
		"flags":    {program{name: "p", dir: base.dir, packages: base.packages, ldflags: "-X a.b=c"}, "go1/amd64"},
		"links":    {program{name: "p", dir: base.dir, packages: base.packages, links: []string{"q"}}, "go1/amd64"},
	} {
		k, err := cacheKey(sources(), settings.p, settings.goVersion)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[k] = name
	}
}

func TestModuleVersion(t *testing.T) {
	const gomod = "module m\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v1.37.2\n\tk8s.io/api v0.37.2 // indirect\n)\n"
	got, err := moduleVersion([]byte(gomod), "k8s.io/kubernetes")
	if err != nil || got != "v1.37.2" {
		t.Errorf("version is %q, %v", got, err)
	}
	if _, err := moduleVersion([]byte(gomod), "k8s.io/kube"); err == nil {
		t.Error("a module that is not required has a version")
	}
}

func TestKubernetesVersionFlags(t *testing.T) {
	got := kubernetesVersionFlags("v1.37.2")
	for _, want := range []string{"gitVersion=v1.37.2 ", "gitMajor=1 ", "gitMinor=37 "} {
		if !strings.Contains(got, "-X k8s.io/component-base/version."+want) {
			t.Errorf("flags %q lack %s", got, want)
		}
	}
}

// TestPin_ReadsVersions: the versions that the testbed promises are the ones its modules require.
func TestPin_ReadsVersions(t *testing.T) {
	b := &Builder{Source: ".."}
	for _, want := range []struct{ dir, module, version string }{
		{"programs/hyper", "k8s.io/kubernetes", "v1.37.2"},
		{"programs/coredns", "github.com/coredns/coredns", "v1.15.0"},
		{"programs/containerd", "github.com/containerd/containerd/v2", "v2.4.2"},
		{"programs/containerd", "github.com/containernetworking/plugins", "v1.9.1"},
	} {
		if got, err := b.pinnedVersion(pinned{want.dir, want.module}, "go.mod"); err != nil || got != want.version {
			t.Errorf("%s is %s, %v; want %s", want.module, got, err, want.version)
		}
	}
}

// TestPin_FindsOtherVersions: each file beside go.mod, and each directory with a go.mod, is a
// version that can be chosen by its minor version.
func TestPin_FindsOtherVersions(t *testing.T) {
	b := &Builder{Source: ".."}
	for _, p := range []pinned{kubernetesModule, corednsModule} {
		files, err := filepath.Glob(filepath.Join(b.Source, p.dir, "go-*.mod"))
		if err != nil {
			t.Fatal(err)
		}
		directories, err := filepath.Glob(filepath.Join(b.Source, p.dir, "*", "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]pin{} // by minor version
		for _, file := range files {
			minor := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "go-"), ".mod")
			want[minor] = pin{dir: p.dir, file: filepath.Base(file), suffix: "-" + minor}
		}
		for _, file := range directories {
			minor := filepath.Base(filepath.Dir(file))
			want[minor] = pin{dir: filepath.Join(p.dir, minor), suffix: "-" + minor}
		}
		if len(want) == 0 {
			t.Errorf("%s has no other versions", p.module)
		}
		for minor, w := range want {
			got, err := b.pin(p, minor)
			w.version = got.version
			if err != nil || got != w || !isMinor(got.version, minor) {
				t.Errorf("version %s of %s is %+v, %v; want %+v", minor, p.module, got, err, w)
			}
		}
	}
	for _, minor := range []string{"", "1.37"} {
		if got, err := b.pin(kubernetesModule, minor); err != nil || got != (pin{version: "v1.37.2", dir: "programs/hyper"}) {
			t.Errorf("version %q is %+v, %v; want the default", minor, got, err)
		}
	}
	if _, err := b.pin(kubernetesModule, "1.3"); err == nil || !strings.Contains(err.Error(), "hack/pin-version") {
		t.Errorf("error %v, want one that says how to add a version", err)
	}
}

// TestModulesAgree: make demo builds the product and the programs of the testbed. The packages that
// they share are compiled once if all of them require the same versions: 3,500 packages instead of
// 4,600, most of them those of client-go.
func TestModulesAgree(t *testing.T) {
	// by module, with the version that a file was the first to require
	first := map[module.Version]string{}
	versions := map[string]module.Version{}
	for _, file := range []string{"../../go.mod", "../go.mod", "../programs/hyper/go.mod", "../programs/containerd/go.mod", "../programs/coredns/go.mod"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := modfile.Parse(file, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range parsed.Require {
			known, ok := versions[r.Mod.Path]
			if !ok {
				versions[r.Mod.Path], first[r.Mod] = r.Mod, file
				continue
			}
			if known != r.Mod {
				t.Errorf("%s requires %s, and %s %s: run go get with the later version in the other directory", file, r.Mod, first[known], known.Version)
			}
		}
	}
}

func TestFindSource(t *testing.T) {
	repo := t.TempDir()
	testbed := filepath.Join(repo, "testbed")
	deep := filepath.Join(testbed, "cluster", "templates")
	elsewhere := t.TempDir()
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(testbed, "go.mod"), []byte("module "+modulePath+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string][]string{
		"in the repository": {repo}, "in the testbed": {testbed}, "deep in it": {deep}, "by the program": {elsewhere, filepath.Join(repo, "bin")},
	} {
		if got, err := FindSource(from...); err != nil || got != testbed {
			t.Errorf("%s: found %q, %v", name, got, err)
		}
	}
	if got, err := FindSource(elsewhere); err == nil {
		t.Errorf("found sources in %s where there are none", got)
	}
}

func TestMissingPackages(t *testing.T) {
	there := map[string]bool{"curl": true}
	find := func(name string) (string, error) {
		if there[name] {
			return "/usr/bin/" + name, nil
		}
		return "", errors.New("not there")
	}
	got := missingPackages([]requirement{{"dig", "dns"}, {"curl", "curl"}, {"nslookup", "dns"}, {"ash", "busybox"}}, find)
	if diff := cmp.Diff([]string{"busybox", "dns"}, got); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestParseLDD(t *testing.T) {
	const output = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
	if diff := cmp.Diff([]string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}, parseLDD(output)); diff != "" {
		t.Errorf("libraries (-want +got):\n%s", diff)
	}
}

func TestImagesAreCachedByContent(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "app")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(source, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(source, at, at); err != nil {
			t.Fatal(err)
		}
	}
	b := &Builder{Cache: dir, Out: io.Discard}
	img := oci.Image{Refs: []string{"testbed/app:1"}, Platforms: []oci.Platform{{Name: "linux/amd64", Files: []oci.File{{Path: "/app", Source: source}}}}}
	ensure := func(img oci.Image) string {
		t.Helper()
		archive, err := b.ensureImage("app", img)
		if err != nil {
			t.Fatal(err)
		}
		return archive
	}
	archives := map[string]string{}
	write("one", time.Unix(1, 0))
	archives[ensure(img)] = "first"
	if _, ok := archives[ensure(img)]; !ok {
		t.Error("an image was built again although nothing has changed")
	}
	write("two", time.Unix(2, 0))
	archives[ensure(img)] = "other content"
	img.Refs = []string{"testbed/app:2"}
	archives[ensure(img)] = "other name"
	if len(archives) != 3 {
		t.Errorf("three different images have the archives %v", slices.Sorted(maps.Keys(archives)))
	}
}

// Packages that the product and the testbed share, such as those of the standard library, are
// compiled twice if the flags differ.
func TestCommonFlagsAreThoseOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(makefile), "\nexport GOFLAGS += ")
	if !found {
		t.Fatal("the Makefile exports no GOFLAGS")
	}
	line, _, _ := strings.Cut(rest, "\n")
	want, got := strings.Fields(line), commonFlags()
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags of the Makefile (-) and of the testbed's programs (+):\n%s", diff)
	}
}

// TestInstall_BuiltByAnother has two processes that build the same at once.
func TestInstall_BuiltByAnother(t *testing.T) {
	cache := t.TempDir()
	dir := filepath.Join(cache, "kubernetes-1")
	for _, tmp := range []string{filepath.Join(cache, "kubernetes.tmp-1"), filepath.Join(cache, "kubernetes.tmp-2")} {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tmp, "kubelet"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := install(tmp, dir); err != nil {
			t.Errorf("%s: %v", tmp, err)
		}
		if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", tmp, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "kubelet")); err != nil {
		t.Error(err)
	}
}
