package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// instructions is the builder of a release that is made by hand.
const instructions = sourceURL + "/blob/main/RELEASE.md"

// goFlags are those of the Makefile, whatever the environment has. With others, all packages would
// be compiled a second time.
const goFlags = "-buildvcs=false -trimpath -gcflags=all=-dwarf=false"

// A builder writes one release.
type builder struct {
	options
	source
	// work is a folder for files that are not released.
	work     string
	programs []program
	images   []image
}

func (o options) build() error {
	if !semver.MatchString(o.version) {
		return fmt.Errorf("-version %q: expected a semantic version with a leading v, such as v0.1.0", o.version)
	}
	if err := errors.Join(checkPages(), checkBenchmarks(o.version)); err != nil {
		return err
	}
	src, err := readSource()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	// beside the result: kustomize needs a relative path to deploy
	work, err := os.MkdirTemp(filepath.Dir(o.out), "release-work-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b := &builder{options: o, source: src, work: work, programs: selectPlatforms(programs, o.platforms)}
	for _, step := range []func() error{b.buildPrograms, b.packageChart, b.writeManifests, b.writeSBOMs, b.writeTexts} {
		if err := step(); err != nil {
			return err
		}
	}
	return b.writeChecksums()
}

// platformsOf returns the platforms for which a program is built.
func (b *builder) platformsOf(name string) []string {
	i := slices.IndexFunc(b.programs, func(p program) bool { return p.name == name })
	return b.programs[i].platforms
}

// path returns the path of a file of the release.
func (o options) path(name string) string { return filepath.Join(o.out, name) }

// binaryPath returns the path of a built program.
func (b *builder) binaryPath(f file) string { return filepath.Join(b.work, f.stem()) }

// buildPrograms builds programs, images and archives.
func (b *builder) buildPrograms() error {
	for _, p := range b.programs {
		for _, platform := range p.platforms {
			if err := b.buildProgram(p, platform); err != nil {
				return err
			}
		}
		if p.hasImage {
			if err := b.buildImage(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) buildProgram(p program, platform string) error {
	f := file{p.name, b.version, platform}
	fmt.Println("building", f.archive())
	goos, goarch, _ := strings.Cut(platform, "/")
	const pkg = "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	const docs = "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	ldflags := fmt.Sprintf("-s -w -buildid= -X %s.Version=%[2]s -X %[3]s.Tag=%[2]s", pkg, b.version, docs)
	if len(b.images) > 0 && p.name == plugin {
		ldflags += fmt.Sprintf(" -X %s.ImageDigest=%s", pkg, b.images[0].digest)
	}
	env := []string{"GOOS=" + goos, "GOARCH=" + goarch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "CGO_ENABLED=0", "GOFLAGS=" + goFlags}
	if err := execute(env, "go", "build", "-ldflags", ldflags, "-o", b.binaryPath(f), p.pkg); err != nil {
		return err
	}
	program, err := os.ReadFile(b.binaryPath(f))
	if err != nil {
		return err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	return b.writeArchive(f.archive(), []entry{{f.binary(), 0o755, program}, {"LICENSE", 0o644, license}})
}

func (b *builder) writeArchive(name string, entries []entry) (err error) {
	w, err := os.Create(b.path(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return writeArchive(w, name, entries, b.date)
}

// buildImage writes the OCI archive of a program with all its platforms, and remembers the digest
// of the image.
func (b *builder) buildImage(p program) error {
	name := imageArchive(p.name, b.version)
	fmt.Println("building", name)
	out, err := filepath.Abs(b.path(name))
	if err != nil {
		return err
	}
	args := []string{
		"run", "-C", "testbed", "./cmd/oci-image", "--out", out, "--ref", repository + "/" + p.name + ":" + b.version,
		"--entrypoint", "/program", "--user", "65532:65532",
		"--annotation", "org.opencontainers.image.source=" + sourceURL,
		"--annotation", "org.opencontainers.image.version=" + b.version,
		"--annotation", "org.opencontainers.image.revision=" + b.commit,
		"--annotation", "org.opencontainers.image.licenses=Apache-2.0",
	}
	for _, platform := range p.platforms {
		binary, err := filepath.Abs(b.binaryPath(file{p.name, b.version, platform}))
		if err != nil {
			return err
		}
		args = append(args, "--platform", platform+"="+binary)
	}
	if err := execute(nil, "go", args...); err != nil {
		return err
	}
	layout, err := b.unpack(name)
	if err != nil {
		return err
	}
	digest, err := layoutDigest(layout)
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	b.images = append(b.images, image{p.name, digest})
	return nil
}

// unpack unpacks an OCI archive into the work folder and returns the folder of the layout.
func (b *builder) unpack(name string) (string, error) {
	dir := filepath.Join(b.work, strings.TrimSuffix(name, ".tar"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, execute(nil, "tar", "-xf", b.path(name), "-C", dir)
}

// layoutDigest returns the digest of the only image in an OCI layout.
func layoutDigest(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return "", err
	}
	var index struct {
		Manifests []struct {
			Digest string `json:"digest"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return "", fmt.Errorf("reading index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return "", fmt.Errorf("index.json has %d images, expected one", len(index.Manifests))
	}
	return index.Manifests[0].Digest, nil
}

// packageChart packages the chart with the digest of the controller's image, and with URLs of the
// documentation of this version.
func (b *builder) packageChart() error {
	number := strings.TrimPrefix(b.version, "v")
	name := chartName + "-" + number + ".tgz"
	fmt.Println("packaging", name)
	dir := filepath.Join(b.work, chartName)
	if err := os.CopyFS(dir, os.DirFS(chartPath)); err != nil {
		return err
	}
	valuesPath := filepath.Join(dir, "values.yaml")
	values, err := os.ReadFile(valuesPath)
	if err != nil {
		return err
	}
	const unset = "\n  digest: \"\"\n"
	if n := strings.Count(string(values), unset); n != 1 {
		return fmt.Errorf("values.yaml has %d values digest that are not set, expected that of the image", n)
	}
	values = []byte(strings.Replace(string(values), unset, "\n  digest: "+b.images[0].digest+"\n", 1))
	if err := os.WriteFile(valuesPath, values, 0o600); err != nil {
		return err
	}
	if err := nameTag(dir, b.version); err != nil {
		return err
	}
	if err := execute(nil, "helm", "package", dir, "--version", number, "--app-version", b.version, "--destination", b.work); err != nil {
		return err
	}
	packaged, err := os.ReadFile(filepath.Join(b.work, name))
	if err != nil {
		return err
	}
	entries, err := readTarGz(packaged) // Helm's has the time of the packaging
	if err != nil {
		return err
	}
	for i := range entries {
		entries[i].mode = 0o644
	}
	return b.writeArchive(name, entries)
}

// nameTag replaces branch main by a tag in the URLs of the repository, in all files of a folder.
func nameTag(dir, tag string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, bytes.ReplaceAll(text, []byte(sourceURL+"/blob/main/"), []byte(sourceURL+"/blob/"+tag+"/")), 0o600)
	})
}

// manifests are the files for kubectl apply, with their folders: the CRDs, and the controller for
// each registry. With one file for both, kubectl delete -f would delete all ServiceExports.
var manifests = map[string]string{
	"crds.yaml": "deploy/crds", "install-cloudmap.yaml": "deploy/base", "install-etcd.yaml": "deploy/overlays/etcd",
}

// writeManifests writes the manifests for kubectl apply.
func (b *builder) writeManifests() error {
	for name, folder := range manifests {
		fmt.Println("rendering", name)
		text, err := renderManifests(b.work, folder, b.images[0])
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.path(name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeSBOMs writes an SPDX document for each program, and for each platform of an image.
func (b *builder) writeSBOMs() error {
	for _, p := range b.programs {
		for _, platform := range p.platforms {
			f := file{p.name, b.version, platform}
			if err := b.writeSBOM(f.stem()+".spdx.json", f, ""); err != nil {
				return err
			}
			if !p.hasImage {
				continue
			}
			if err := b.writeSBOM(imageSBOM(p.name, b.version, platform), f, repository+"/"+p.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeTexts writes the list of images, the release notes, the manifest for krew and the
// provenance.
func (b *builder) writeTexts() error {
	sums, err := checksums(b.out)
	if err != nil {
		return err
	}
	krew, err := krewManifest(b.version, b.platformsOf(plugin), sums)
	if err != nil {
		return err
	}
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	notes, err := releaseNotes(string(changelog), b.version, b.images)
	if err != nil {
		return err
	}
	provenance, err := indented(newProvenance(b.version, b.commit, runtime.Version(), cmp.Or(os.Getenv("BUILDER"), instructions), sums, b.images))
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"images.txt": []byte(imagesText(b.version, b.images)), "notes.md": []byte(notes), "mcs.yaml": krew, "provenance.json": provenance,
	} {
		if err := os.WriteFile(b.path(name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const checksumsFile = "checksums.txt"

// writeChecksums writes the checksums of all files, as sha256sum --check reads them.
func (b *builder) writeChecksums() error {
	sums, err := checksums(b.out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		text.WriteString(sums[name] + "  " + name + "\n")
	}
	if err := os.WriteFile(b.path(checksumsFile), []byte(text.String()), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s has %d files\n", b.out, len(sums)+1)
	return nil
}

// checksums returns the SHA-256 of the files in a folder by their names.
func checksums(dir string) (map[string]string, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, entry := range names {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		sums[entry.Name()] = hex.EncodeToString(sum[:])
	}
	return sums, nil
}
