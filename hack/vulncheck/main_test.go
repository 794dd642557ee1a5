package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const (
		config   = `{"config":{"db_last_modified":"2026-08-20T20:54:47Z"}}` + "\n"
		imported = `{"finding":{"osv":"GO-2026-1","fixed_version":"v1.2.3","trace":[{"module":"example.com/m","version":"v1.0.0","package":"example.com/m/p"}]}}` + "\n"
		called   = `{"finding":{"osv":"GO-2026-1","fixed_version":"v1.2.3","trace":[{"module":"example.com/m","version":"v1.0.0","package":"example.com/m/p","function":"F"},{"module":"ours"}]}}` + "\n"
		ofGo     = `{"finding":{"osv":"GO-2026-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","version":"v1.26.8","package":"net/http","function":"Get"}]}}` + "\n"
	)
	tests := map[string]struct {
		output   string
		want     string
		problems string
	}{
		"nothing":      {config, "no vulnerable code of a module is called (database of 2026-08-20T20:54:47Z)", ""},
		"imported":     {config + imported, "no vulnerable code", ""},
		"called":       {config + imported + called, "", "GO-2026-1: example.com/m v1.0.0 is called (example.com/m/p.F); fixed in v1.2.3"},
		"called in Go": {config + ofGo, "build with a newer Go: https://pkg.go.dev/vuln/GO-2026-2", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found, modified, err := parse(strings.NewReader(tt.output))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = report(found, modified, &out)
			if (err != nil) != (tt.problems != "") || err != nil && !strings.Contains(err.Error(), tt.problems) || !strings.Contains(out.String(), tt.want) {
				t.Errorf("printed %q, error %v; want %q and %q", out.String(), err, tt.want, tt.problems)
			}
		})
	}
	if _, _, err := parse(strings.NewReader(`{"config":`)); err == nil {
		t.Error("output that ends early is read without an error")
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "db", "index"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "db", "index", "db.json"), []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "db.tgz")
	writeArchive(t, archive, "db/index/db.json")
	escaping := filepath.Join(dir, "escaping.tgz")
	writeArchive(t, escaping, "../outside")
	for database, want := range map[string]string{
		"https://example.com":      "https://example.com",
		filepath.Join(dir, "db"):   "file://" + filepath.Join(dir, "db"),
		dir:                        "file://" + filepath.Join(dir, "db"),
		archive:                    "file:///",
		filepath.Join(dir, "none"): "",
		t.TempDir():                "",
		escaping:                   "",
	} {
		url, remove, err := open(database)
		if (err == nil) != (want != "") || err == nil && !strings.HasPrefix(url, want) {
			t.Errorf("%s: URL %q, error %v; want %q", database, url, err, want)
		}
		if err == nil {
			remove()
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "outside")); err == nil {
		t.Error("an archive wrote outside its directory")
	}
}

func writeArchive(t *testing.T, file, name string) {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 2, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
