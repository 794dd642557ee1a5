package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one file of an image. It has a Source, a Link or else its Content.
type File struct {
	// Path is where the image shows it, absolute.
	Path string
	// Source is a file of this machine. Of its mode only "executable or not" is kept.
	Source string
	// Link makes Path a symbolic link to it.
	Link string
	// Content is the text of a small file.
	Content string
}

func newLayer(files []File) (v1.Layer, error) {
	var buf bytes.Buffer
	if err := writeLayer(&buf, files); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("packing the layer: %w", err)
	}
	return layer, nil
}

func writeLayer(w io.Writer, files []File) error {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	tw := tar.NewWriter(w)
	made := map[string]bool{"/": true}
	for i, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
			return fmt.Errorf("file %q of the image: expected an absolute, clean path", f.Path)
		}
		if i > 0 && files[i-1].Path == f.Path {
			return fmt.Errorf("file %s of the image is given twice", f.Path)
		}
		if err := addParents(tw, path.Dir(f.Path), made); err != nil {
			return err
		}
		if err := f.add(tw); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("finishing the layer: %w", err)
	}
	return nil
}

func addParents(tw *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := addParents(tw, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	mode := int64(0o755)
	if dir == "/tmp" {
		mode = 0o1777
	}
	header := &tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: mode, ModTime: epoch}
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("adding directory %s to the image: %w", dir, err)
	}
	return nil
}

func (f File) add(tw *tar.Writer) error {
	rel := strings.TrimPrefix(f.Path, "/")
	switch {
	case f.Source != "":
		info, err := os.Stat(f.Source)
		if err != nil {
			return fmt.Errorf("reading the mode of %s: %w", f.Source, err)
		}
		mode := int64(0o644)
		if info.Mode().Perm()&0o111 != 0 {
			mode = 0o755
		}
		return addFile(tw, rel, f.Source, mode)
	case f.Link != "":
		return writeEntry(tw, &tar.Header{Typeflag: tar.TypeSymlink, Name: rel, Linkname: f.Link, Mode: 0o777, ModTime: epoch}, "")
	default:
		return writeEntry(tw, &tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(f.Content)), ModTime: epoch}, f.Content)
	}
}

func writeEntry(tw *tar.Writer, header *tar.Header, content string) error {
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("adding %s to the image: %w", header.Name, err)
	}
	if _, err := io.WriteString(tw, content); err != nil {
		return fmt.Errorf("adding %s to the image: %w", header.Name, err)
	}
	return nil
}
