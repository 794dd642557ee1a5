package oci_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/oci"
)

func write(t *testing.T, dir, name, content string, mode os.FileMode, mtime time.Time) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, mtime, mtime); err != nil {
		t.Fatal(err)
	}
	return path
}

func testImage(t *testing.T, mtime time.Time) oci.Image {
	t.Helper()
	dir := t.TempDir()
	amd, arm := write(t, dir, "amd", "amd64 code", 0o755, mtime), write(t, dir, "arm", "arm64 code", 0o700, mtime)
	files := func(binary string) []oci.File {
		return []oci.File{
			{Path: "/bin/app", Source: binary},
			{Path: "/etc/motd", Content: "hello\n"},
			{Path: "/bin/alias", Link: "app"},
			{Path: "/tmp/keep", Content: ""},
		}
	}
	return oci.Image{
		Refs:       []string{"testbed/app:1", "registry.example.org/app:2"},
		Entrypoint: []string{"/bin/app", "--serve"},
		User:       "65532:65532",
		Env:        []string{"A=b"},
		Platforms:  []oci.Platform{{Name: "linux/amd64", Files: files(amd)}, {Name: "linux/arm64", Files: files(arm)}},
	}
}

func build(t *testing.T, img oci.Image) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := oci.Write(&buf, img); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(b)
	}
}

func decode[T any](t *testing.T, files map[string]string, name string) T {
	t.Helper()
	text, ok := files[name]
	if !ok {
		t.Fatalf("the archive lacks %s", name)
	}
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("reading %s: %v", name, err)
	}
	return v
}

func blob(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func TestWriteIsReproducible(t *testing.T) {
	first := build(t, testImage(t, time.Unix(1e9, 0)))
	second := build(t, testImage(t, time.Unix(2e9, 0)))
	if !bytes.Equal(first, second) {
		t.Error("two builds of the same content differ")
	}
}

func TestWriteNamesEveryPlatformUnderEveryRef(t *testing.T) {
	files := untar(t, bytes.NewReader(build(t, testImage(t, time.Unix(1e9, 0)))))
	top := decode[v1.IndexManifest](t, files, "index.json")
	var names []string
	for _, d := range top.Manifests {
		names = append(names, d.Annotations["io.containerd.image.name"])
		var platforms []string
		for _, m := range decode[v1.IndexManifest](t, files, blob(d.Digest)).Manifests {
			platforms = append(platforms, m.Platform.String())
		}
		if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
			t.Errorf("platforms (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"docker.io/testbed/app:1", "registry.example.org/app:2"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestWriteAnnotatesIndex(t *testing.T) {
	img := testImage(t, time.Unix(1e9, 0))
	img.Annotations = map[string]string{"org.opencontainers.image.version": "1"}
	files := untar(t, bytes.NewReader(build(t, img)))
	index := decode[v1.IndexManifest](t, files, blob(decode[v1.IndexManifest](t, files, "index.json").Manifests[0].Digest))
	if diff := cmp.Diff(img.Annotations, index.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestWriteConfigAndLayer(t *testing.T) {
	files := untar(t, bytes.NewReader(build(t, testImage(t, time.Unix(1e9, 0)))))
	index := decode[v1.IndexManifest](t, files, blob(decode[v1.IndexManifest](t, files, "index.json").Manifests[0].Digest))
	manifest := decode[v1.Manifest](t, files, blob(index.Manifests[1].Digest))
	cfg := decode[v1.ConfigFile](t, files, blob(manifest.Config.Digest))
	if cfg.Architecture != "arm64" || cfg.Config.User != "65532:65532" || !cfg.Created.Equal(time.Unix(0, 0)) {
		t.Errorf("configuration is %+v", cfg)
	}
	if diff := cmp.Diff([]string{"/bin/app", "--serve"}, cfg.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
	zr, err := gzip.NewReader(strings.NewReader(files[blob(manifest.Layers[0].Digest)]))
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Name, Link string
		Mode       int64
	}
	var got []entry
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: uid %d, time %s", h.Name, h.Uid, h.ModTime)
		}
		got = append(got, entry{h.Name, h.Linkname, h.Mode})
	}
	want := []entry{
		{"bin/", "", 0o755}, {"bin/alias", "app", 0o777}, {"bin/app", "", 0o755},
		{"etc/", "", 0o755}, {"etc/motd", "", 0o644}, {"tmp/", "", 0o1777}, {"tmp/keep", "", 0o644},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestWriteFileRefuses(t *testing.T) {
	ok := []oci.Platform{{Name: "linux/amd64", Files: []oci.File{{Path: "/a", Content: "a"}}}}
	tests := []struct {
		name string
		img  oci.Image
		want string
	}{
		{"no platform", oci.Image{Refs: []string{"a:1"}}, "at least one platform"},
		{"no name", oci.Image{Platforms: ok}, "at least one name"},
		{"no tag", oci.Image{Refs: []string{"app"}, Platforms: ok}, "expected NAME:TAG"},
		{"odd platform", oci.Image{Refs: []string{"a:1"}, Platforms: []oci.Platform{{Name: "arm64"}}}, "expected os/architecture"},
		{"relative path", oci.Image{Refs: []string{"a:1"}, Platforms: []oci.Platform{{Name: "linux/amd64", Files: []oci.File{{Path: "a"}}}}}, "absolute"},
		{"file twice", oci.Image{Refs: []string{"a:1"}, Platforms: []oci.Platform{{Name: "linux/amd64", Files: []oci.File{{Path: "/a"}, {Path: "/a"}}}}}, "twice"},
		{"file missing", oci.Image{Refs: []string{"a:1"}, Platforms: []oci.Platform{{Name: "linux/amd64", Files: []oci.File{{Path: "/a", Source: "/does/not/exist"}}}}}, "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			err := oci.WriteFile(filepath.Join(dir, "x.tar"), tt.img)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("a failed build left %v", left)
			}
		})
	}
}
