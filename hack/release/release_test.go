package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var (
	date            = time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	digest          = "sha256:" + strings.Repeat("ab", 32)
	pluginPlatforms = programs[2].platforms
	entries         = []entry{{"kubectl-mcs", 0o755, []byte("program")}, {"LICENSE", 0o644, []byte("text")}}
)

func TestSemver(t *testing.T) {
	for version, want := range map[string]bool{"v0.1.0": true, "v1.2.3-rc.1": true, "0.1.0": false, "v0.1": false, "v01.0.0": false, "": false} {
		if got := semver.MatchString(version); got != want {
			t.Errorf("%q: %t, want %t", version, got, want)
		}
	}
}

func TestGoFlagsAreThoseOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if line := "\nexport GOFLAGS += " + goFlags + "\n"; !strings.Contains(string(makefile), line) {
		t.Errorf("the Makefile has no line %q", line)
	}
}

func TestFileNames(t *testing.T) {
	tests := map[string]struct{ archive, binary string }{
		"linux/amd64":   {"kubectl-mcs_v0.1.0_linux_amd64.tar.gz", "kubectl-mcs"},
		"darwin/arm64":  {"kubectl-mcs_v0.1.0_darwin_arm64.tar.gz", "kubectl-mcs"},
		"windows/amd64": {"kubectl-mcs_v0.1.0_windows_amd64.zip", "kubectl-mcs.exe"},
	}
	for platform, want := range tests {
		f := file{plugin, "v0.1.0", platform}
		if f.archive() != want.archive || f.binary() != want.binary {
			t.Errorf("%s: %s with %s, want %s with %s", platform, f.archive(), f.binary(), want.archive, want.binary)
		}
	}
}

func TestSelectPlatforms(t *testing.T) {
	for list, want := range map[string]int{"": 13, "linux/amd64": 4, "linux/amd64,darwin/arm64": 6} {
		n := 0
		for _, p := range selectPlatforms(programs, list) {
			n += len(p.platforms)
		}
		if n != want {
			t.Errorf("%q: %d builds, want %d", list, n, want)
		}
	}
}

func TestPlatformOfSBOM(t *testing.T) {
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		if got := platformOfSBOM("cloudmap-local", "v0.1.0", imageSBOM("cloudmap-local", "v0.1.0", platform)); got != platform {
			t.Errorf("got %s, want %s", got, platform)
		}
	}
}

func TestImagesText(t *testing.T) {
	want := []image{{"cloud-map-mcs-controller", digest}, {"cloudmap-local", digest}}
	text := imagesText("v0.1.0", want)
	if !strings.HasPrefix(text, "ghcr.io/cloud-map-mcs/cloud-map-mcs-controller:v0.1.0@sha256:abab") {
		t.Errorf("images.txt is %s", text)
	}
	if d := cmp.Diff(want, parseImages(text), cmp.AllowUnexported(image{})); d != "" {
		t.Errorf("read again (-want +got):\n%s", d)
	}
}

func TestWriteArchive_TarGz(t *testing.T) {
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := writeArchive(w, "a.tar.gz", entries, date); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same files give different archives")
	}
	got, err := readTarGz(first.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(entries, got, cmp.AllowUnexported(entry{})); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
}

func TestWriteArchive_Zip(t *testing.T) {
	var archive bytes.Buffer
	if err := writeArchive(&archive, "a.zip", entries, date); err != nil {
		t.Fatal(err)
	}
	zr, err := zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range zr.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got := entry{f.Name, int64(f.Mode().Perm()), content}
		if d := cmp.Diff(entries[i], got, cmp.AllowUnexported(entry{})); d != "" || !f.Modified.Equal(date) {
			t.Errorf("entry of %s (-want +got):\n%s", f.Modified, d)
		}
	}
}

func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := checksums(dir)
	sum := sha256.Sum256([]byte("text"))
	if d := cmp.Diff(map[string]string{"a": hex.EncodeToString(sum[:])}, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

// TestKrewManifest checks the rules of krew's index, because its own check needs the published
// files.
func TestKrewManifest(t *testing.T) {
	sums := map[string]string{}
	for _, platform := range pluginPlatforms {
		sums[file{plugin, "v0.1.0", platform}.archive()] = strings.Repeat("0", 64)
	}
	text, err := krewManifest("v0.1.0", pluginPlatforms, sums)
	if err != nil {
		t.Fatal(err)
	}
	var m krewPlugin
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	s := m.Spec
	// the name of the file
	if !regexp.MustCompile(`^[\w-]+$`).MatchString(m.Metadata.Name) || m.Metadata.Name != "mcs" {
		t.Errorf("name %q", m.Metadata.Name)
	}
	if !semver.MatchString(s.Version) || s.ShortDescription == "" || strings.ContainsAny(s.ShortDescription, "\r\n") || len(s.ShortDescription) > 50 {
		t.Errorf("version %q, short description %q", s.Version, s.ShortDescription)
	}
	selected := map[string]bool{}
	for _, p := range s.Platforms {
		labels := p.Selector.MatchLabels
		platform := labels["os"] + "/" + labels["arch"]
		if len(labels) != 2 || selected[platform] {
			t.Errorf("the selector %v is not of one platform, or selects it twice", labels)
		}
		selected[platform] = true
		if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p.SHA256) || !strings.HasPrefix(p.URI, "https://") {
			t.Errorf("%s: sum %q, URI %s", platform, p.SHA256, p.URI)
		}
		if !strings.HasSuffix(p.URI, "/releases/download/v0.1.0/"+file{plugin, "v0.1.0", platform}.archive()) {
			t.Errorf("%s: URI %s", platform, p.URI)
		}
		if len(p.Files) != 2 || p.Files[0].From != p.Bin || p.Files[1].From != "LICENSE" || p.Files[0].To == "" {
			t.Errorf("%s: program %s, files %v", platform, p.Bin, p.Files)
		}
	}
	if len(selected) != 5 {
		t.Errorf("platforms %v", selected)
	}
}

func TestReleaseNotes(t *testing.T) {
	const changelog = "# Changelog\n\nIntroduction.\n\n## 0.2.0 (unreleased)\n\n- New: [x](docs/x.md), [y](RELEASE.md#build), [z](https://example.com).\n- More.\n\n## 0.1.0 (2026-11-23)\n\n- First.\n"
	for version, want := range map[string]string{"v0.1.0": "- First.\n", "v0.2.0-rc.1": "- New: [x](docs/x.md), [y](RELEASE.md#build), [z](https://example.com).\n- More.\n"} {
		if got, err := changes(changelog, version); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", version, got, err, want)
		}
	}
	if _, err := changes(changelog, "v0.3.0"); err == nil {
		t.Error("a version without a section is accepted")
	}
	notes, err := releaseNotes(changelog, "v0.2.0", []image{{"cloudmap-local", digest}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- New: [x](https://github.com/cloud-map-mcs/cloud-map-mcs-controller/blob/v0.2.0/docs/x.md), " +
			"[y](https://github.com/cloud-map-mcs/cloud-map-mcs-controller/blob/v0.2.0/RELEASE.md#build), [z](https://example.com).",
		"- `ghcr.io/cloud-map-mcs/cloudmap-local:v0.2.0@" + digest + "`",
		"`oci://ghcr.io/cloud-map-mcs/charts/cloud-map-mcs-controller`, version 0.2.0",
		"Install and verify: https://github.com/cloud-map-mcs/cloud-map-mcs-controller/blob/v0.2.0/docs/install.md#from-a-release\n",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not have %q:\n%s", want, notes)
		}
	}
}

func TestCheckPublished(t *testing.T) {
	const (
		unreleased = "# Changelog\n\n## 0.1.0 (unreleased)\n\n- First.\n"
		released   = "# Changelog\n\n## 0.1.0 (2026-12-01)\n\n- First.\n"
		problem    = "CHANGELOG.md gives 0.1.0 the date 2026-12-01, and these pages say that no release is published: "
	)
	before := map[string]string{
		"docs/b.md": "# B\n\n| pull | push the image. Until a\nrelease is published, set `--image` |\n\n**No release is published yet.**\n",
		"a.md":      "no release is published",
		"c.md":      "The release is published. Each release is published by a workflow.\n",
	}
	tests := map[string]struct {
		changelog string
		pages     map[string]string
		want      string
	}{
		"before the first release":       {unreleased, before, ""},
		"the pages are right":            {released, map[string]string{"c.md": before["c.md"]}, ""},
		"the pages are not":              {released, before, problem + "a.md:1, docs/b.md:3, docs/b.md:6: "},
		"the next one is not yet":        {strings.Replace(released, "## ", "## 0.2.0 (unreleased)\n\n- Second.\n\n## ", 1), before, problem + "a.md:1, "},
		"a date in the text of a change": {unreleased + "- Run on 2026-11-23 (2026-11-23)\n", before, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := checkPublished(tt.changelog, tt.pages); err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tt.want) || (tt.want == "") != (got == "") {
				t.Errorf("says %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPagesAgreeWithChangelog checks this repository, so that a change that sets the date fails
// before its tag.
func TestPagesAgreeWithChangelog(t *testing.T) {
	t.Chdir("../..")
	if err := checkPages(); err != nil {
		t.Error(err)
	}
}

// Old benchmarks stop a release only: pages and development go on without a measurement.
func TestBenchmarksOfRelease(t *testing.T) {
	changelog := "# Changelog\n\n## 0.2.0 (unreleased)\n\n- b\n\n## 0.1.0 (2026-12-01)\n\n- a\n"
	for version, want := range map[string]bool{"v0.1.0": true, "v0.2.0": false, "v0.3.0": false} {
		if got := isDated(changelog, version); got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
	if err := benchmarkProblem(nil); err != nil {
		t.Errorf("results without a problem: %v", err)
	}
	const want = "docs/benchmarks/results.json: a; b: run make bench and commit the results (RELEASE.md#steps)"
	if err := benchmarkProblem([]string{"a", "b"}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestNewSBOM(t *testing.T) {
	d := described{
		file: "a_v0.1.0_linux_amd64.spdx.json", version: "v0.1.0", program: "a", sum: "0123", date: date,
		info: &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
			{Path: "example.com/b", Version: "v1.0.0", Sum: "h1:x"},
			{Path: "example.com/c", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/d", Version: "v29.0.0+incompatible", Sum: "h1:y"}},
		}},
	}
	tests := map[string]struct {
		image         string
		packages      string
		relationships []spdxRelationship
	}{
		"program": {"", "a v0.1.0, stdlib 1.26.8, example.com/b v1.0.0, example.com/d v29.0.0+incompatible", []spdxRelationship{{documentID, "DESCRIBES", programID}}},
		"image": {
			"ghcr.io/x/a", "ghcr.io/x/a v0.1.0, a v0.1.0, stdlib 1.26.8, example.com/b v1.0.0, example.com/d v29.0.0+incompatible",
			[]spdxRelationship{{documentID, "DESCRIBES", imageID}, {imageID, "CONTAINS", programID}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d.image = tt.image
			doc := newSBOM(d)
			var packages []string
			ids := map[string]bool{documentID: true}
			for _, p := range doc.Packages {
				packages = append(packages, p.Name+" "+p.Version)
				ids[p.ID] = true
			}
			if got := strings.Join(packages, ", "); got != tt.packages || len(ids) != len(packages)+1 {
				t.Errorf("packages %s with %d IDs, want %s", got, len(ids), tt.packages)
			}
			want := tt.relationships
			// the standard library and two modules
			for _, p := range doc.Packages[len(doc.Packages)-3:] {
				want = append(want, spdxRelationship{programID, "DEPENDS_ON", p.ID})
			}
			if d := cmp.Diff(want, doc.Relationships); d != "" {
				t.Errorf("relationships (-want +got):\n%s", d)
			}
			last := doc.Packages[len(doc.Packages)-1]
			if ref := last.ExternalRefs[0].Locator; ref != "pkg:golang/example.com/d@v29.0.0%2Bincompatible" || last.Comment != "go.sum: h1:y" {
				t.Errorf("the replaced module has the reference %s and comment %q", ref, last.Comment)
			}
			if doc.CreationInfo.Created != "2026-11-23T08:00:00Z" || !strings.HasSuffix(doc.DocumentNamespace, "/releases/download/v0.1.0/"+d.file) {
				t.Errorf("created %s, name space %s", doc.CreationInfo.Created, doc.DocumentNamespace)
			}
		})
	}
}

// TestNewSBOM_IsWhatSyftFinds compares the packages in the SBOMs of the programs in bin with those
// that syft finds. make sbom-check runs it.
func TestNewSBOM_IsWhatSyftFinds(t *testing.T) {
	syft, err := filepath.Abs("../../bin/syft")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(syft); err != nil {
		if os.Getenv("REQUIRE_SYFT") != "" {
			t.Fatal(err)
		}
		t.Skip("bin/syft is missing: make sbom-check builds it")
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			path := filepath.Join("../../bin", filepath.Base(p.pkg))
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), syft, "scan", "file:"+path, "-o", "spdx-json", "-q").Output()
			if err != nil {
				t.Fatal(err)
			}
			var found spdxDocument
			if err := json.Unmarshal(out, &found); err != nil {
				t.Fatal(err)
			}
			// the program itself, which has the name of the release in ours
			main := "pkg:golang/" + info.Main.Path
			got := slices.DeleteFunc(locators(found), func(l string) bool { return l == main || strings.HasPrefix(l, main+"@") })
			if d := cmp.Diff(got, locators(newSBOM(described{program: p.name, info: info}))); d != "" {
				t.Errorf("packages (-syft +ours):\n%s", d)
			}
			t.Logf("%d packages", len(got))
		})
	}
}

// locators returns the package URLs in an SBOM, sorted.
func locators(doc spdxDocument) []string {
	var out []string
	for _, p := range doc.Packages {
		for _, r := range p.ExternalRefs {
			if r.Type == "purl" {
				out = append(out, r.Locator)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestNewProvenance(t *testing.T) {
	s := newProvenance("v0.1.0", "c0ffee", "go1.26.8", instructions, map[string]string{"b": "02", "a": "01"}, []image{{"cloudmap-local", digest}})
	want := []subject{
		{Name: "a", Digest: map[string]string{"sha256": "01"}}, {Name: "b", Digest: map[string]string{"sha256": "02"}},
		{Name: "ghcr.io/cloud-map-mcs/cloudmap-local", Digest: map[string]string{"sha256": strings.Repeat("ab", 32)}},
	}
	if d := cmp.Diff(want, s.Subject); d != "" {
		t.Errorf("subjects (-want +got):\n%s", d)
	}
	text, err := json.Marshal(s.Predicate)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"gitCommit":"c0ffee"`, `@refs/tags/v0.1.0"`, `"builder":{"id":"` + instructions + `"}`, `"go":"go1.26.8"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the predicate does not have %s:\n%s", want, text)
		}
	}
}

func TestLayoutDigest(t *testing.T) {
	tests := map[string]struct{ index, want string }{
		"one image":  {`{"manifests":[{"digest":"` + digest + `"}]}`, digest},
		"two images": {`{"manifests":[{},{}]}`, ""},
		"not JSON":   {`-`, ""},
	}
	for name, tt := range tests {
		dir := t.TempDir()
		if err := os.CopyFS(dir, fstest.MapFS{"index.json": {Data: []byte(tt.index)}}); err != nil {
			t.Fatal(err)
		}
		if got, err := layoutDigest(dir); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// The chart of a release has no URL of branch main, whose pages are about another version.
func TestNameTag(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../"+chartPath)); err != nil {
		t.Fatal(err)
	}
	if err := nameTag(dir, "v0.2.0"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"values.yaml":            sourceURL + "/blob/v0.2.0/docs/cost.md\n",
		"templates/_helpers.tpl": "\n" + sourceURL + "/blob/v0.2.0/docs\n",
		"files/alerts.yaml":      sourceURL + "/blob/v0.2.0/docs/runbooks/CloudMapMCSNotMember.md\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) || strings.Contains(string(text), "/main/docs") {
			t.Errorf("%s does not have %q, or has a URL of branch main", name, want)
		}
	}
}

// Both files for kubectl apply have the image by digest, and the namespace before what is in it.
func TestRenderManifests(t *testing.T) {
	for folder, flag := range map[string]string{"../../deploy/base": "--registry=cloudmap", "../../deploy/overlays/etcd": "--registry=etcd"} {
		text, err := renderManifests(t.TempDir(), folder, image{chartName, digest})
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "image: ghcr.io/cloud-map-mcs/cloud-map-mcs-controller"); n != 1 {
			t.Errorf("%s has %d images", folder, n)
		}
		if !strings.Contains(string(text), "@"+digest+"\n") || !strings.Contains(string(text), flag+"\n") {
			t.Errorf("%s does not have %s or %s", folder, digest, flag)
		}
		if !strings.HasPrefix(string(text), "apiVersion: v1\nkind: Namespace\n") {
			t.Errorf("%s begins with %.60s", folder, text)
		}
		if strings.Contains(string(text), "kind: CustomResourceDefinition") {
			t.Errorf("%s has CRDs, which kubectl delete -f would delete with all ServiceExports", folder)
		}
	}
	crds, err := renderManifests(t.TempDir(), "../../deploy/crds", image{chartName, digest})
	if err != nil {
		t.Fatal(err)
	}
	if objects, all := strings.Count(string(crds), "\nkind: "), strings.Count(string(crds), "\nkind: CustomResourceDefinition\n"); all != 3 || objects != all {
		t.Errorf("deploy/crds has %d objects, %d of them CRDs, want 3", objects, all)
	}
}
