package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// An entry is a file in an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// writeArchive writes a zip or tar.gz, by the extension of name. All entries have the time of the
// release, so that the same files give the same archive.
func writeArchive(w io.Writer, name string, entries []entry, date time.Time) error {
	if filepath.Ext(name) == ".zip" {
		return writeZip(w, entries, date)
	}
	return writeTarGz(w, entries, date)
}

func writeTarGz(w io.Writer, entries []entry, date time.Time) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: date, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(header); err != nil {
			return fmt.Errorf("adding %s: %w", e.name, err)
		}
		if _, err := tw.Write(e.content); err != nil {
			return fmt.Errorf("adding %s: %w", e.name, err)
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

func writeZip(w io.Writer, entries []entry, date time.Time) error {
	zw := zip.NewWriter(w)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: date}
		header.SetMode(0o644)
		if e.mode&0o111 != 0 {
			header.SetMode(0o755)
		}
		f, err := zw.CreateHeader(header)
		if err != nil {
			return fmt.Errorf("adding %s: %w", e.name, err)
		}
		if _, err := f.Write(e.content); err != nil {
			return fmt.Errorf("adding %s: %w", e.name, err)
		}
	}
	return zw.Close()
}

// readTarGz returns the files of an archive.
func readTarGz(archive []byte) ([]entry, error) {
	zr, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("reading the archive: %w", err)
	}
	var entries []entry
	for tr := tar.NewReader(zr); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the archive: %w", err)
		}
		if strings.HasSuffix(header.Name, "/") {
			continue
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			return nil, fmt.Errorf("reading %s of the archive: %w", header.Name, err)
		}
		entries = append(entries, entry{header.Name, header.Mode & 0o777, content})
	}
}
