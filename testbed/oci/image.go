// Package oci builds OCI image archives from local files, without a container engine and without a
// registry.
//
// An archive is the tar of an OCI image layout, as `ctr images import`, `podman load`, `skopeo copy
// oci-archive:` and `docker load` (25 and later) read it. Builds are reproducible: the same input
// gives the same bytes.
package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time in every format that has one: with the current time, every build would differ.
var epoch = time.Unix(0, 0).UTC()

// defaultPath is the PATH that container engines set by default; programs started by a shell rely
// on it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Image is one image to build: its entrypoint, user, names, and the files of each platform.
type Image struct {
	// Refs are the image's names, NAME:TAG; Docker's short forms are completed (a/b:1 is
	// docker.io/a/b:1).
	Refs []string
	// Entrypoint is the command; empty leaves it to the Pod.
	Entrypoint []string
	// User is numeric, UID or UID:GID, because runAsNonRoot cannot judge a name. Empty means root.
	User string
	// Env holds KEY=VALUE settings besides PATH.
	Env []string
	// Annotations of the image, such as org.opencontainers.image.source.
	Annotations map[string]string
	// Platforms has one entry for each architecture.
	Platforms []Platform
}

// Platform is the content of an image on one operating system and architecture.
type Platform struct {
	// Name is os/architecture, such as linux/arm64.
	Name string
	// Files is the whole file system: images are built from scratch. Parent directories come by
	// themselves.
	Files []File
}

// WriteFile writes the image's archive to path, replacing an existing file only on success.
func WriteFile(path string, img Image) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("creating the archive: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if err = Write(tmp, img); err != nil {
		return err
	}
	if err = tmp.Chmod(0o644); err != nil {
		return fmt.Errorf("making the archive readable: %w", err)
	}
	if err = tmp.Close(); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("putting the archive in place: %w", err)
	}
	return nil
}

// Write writes the image's archive to w.
func Write(w io.Writer, img Image) error {
	index, err := platformIndex(img)
	if err != nil {
		return err
	}
	top, err := namedIndex(index, img.Refs)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "oci-image-")
	if err != nil {
		return fmt.Errorf("creating a directory for the image layout: %w", err)
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, top); err != nil {
		return fmt.Errorf("writing the image layout: %w", err)
	}
	return archive(w, dir)
}

// platformIndex returns the multi-architecture image: one manifest for each platform.
func platformIndex(img Image) (v1.ImageIndex, error) {
	if len(img.Platforms) == 0 {
		return nil, errors.New("an image needs at least one platform, such as linux/amd64")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range img.Platforms {
		platform, err := v1.ParsePlatform(p.Name)
		if err != nil || platform.OS == "" || platform.Architecture == "" {
			return nil, fmt.Errorf("platform %q: expected os/architecture, such as linux/amd64", p.Name)
		}
		one, err := platformImage(img, *platform, p.Files)
		if err != nil {
			return nil, fmt.Errorf("building the image for %s: %w", p.Name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: platform}})
	}
	if len(img.Annotations) > 0 {
		index = mutate.Annotations(index, img.Annotations).(v1.ImageIndex)
	}
	return index, nil
}

func platformImage(img Image, platform v1.Platform, files []File) (v1.Image, error) {
	layer, err := newLayer(files)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	one, err := mutate.Append(base, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: epoch}}})
	if err != nil {
		return nil, fmt.Errorf("adding the layer: %w", err)
	}
	cfg, err := one.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Variant = platform.OS, platform.Architecture, platform.Variant
	cfg.Created = v1.Time{Time: epoch}
	cfg.Config = v1.Config{Entrypoint: img.Entrypoint, User: img.User, Env: append([]string{defaultPath}, img.Env...)}
	one, err = mutate.ConfigFile(one, cfg)
	if err != nil {
		return nil, fmt.Errorf("setting the image's configuration: %w", err)
	}
	return one, nil
}

// namedIndex returns the layout's index.json: the image once for each of its names.
func namedIndex(index v1.ImageIndex, refs []string) (v1.ImageIndex, error) {
	if len(refs) == 0 {
		return nil, errors.New("an image needs at least one name, such as example.org/app:1.0")
	}
	top := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, ref := range refs {
		full, tag, err := fullName(ref)
		if err != nil {
			return nil, err
		}
		annotations := map[string]string{
			"io.containerd.image.name":          full, // the name in containerd
			"org.opencontainers.image.ref.name": tag,  // the name that skopeo and podman use
		}
		top = mutate.AppendManifests(top, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{Annotations: annotations}})
	}
	return top, nil
}

// fullName completes a reference the way the kubelet does with the image field of a Pod.
func fullName(ref string) (full, tag string, err error) {
	parsed, err := name.NewTag(ref, name.WithDefaultTag(""))
	if err != nil || parsed.TagStr() == "" {
		return "", "", fmt.Errorf("image name %q: expected NAME:TAG, such as example.org/app:1.0", ref)
	}
	return strings.Replace(parsed.Name(), name.DefaultRegistry, "docker.io", 1), parsed.TagStr(), nil
}

// archive writes the files below dir as a tar, in the order of their names.
func archive(w io.Writer, dir string) error {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("listing the image layout: %w", err)
	}
	slices.Sort(paths)
	tw := tar.NewWriter(w)
	for _, path := range paths {
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return fmt.Errorf("naming %s in the archive: %w", path, err)
		}
		if err := addFile(tw, filepath.ToSlash(rel), path, 0o644); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("finishing the archive: %w", err)
	}
	return nil
}

func addFile(tw *tar.Writer, rel, source string, mode int64) error {
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("opening %s for the image: %w", source, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading the size of %s: %w", source, err)
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: mode, Size: info.Size(), ModTime: epoch}
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("adding %s to the image: %w", rel, err)
	}
	if _, err := io.Copy(tw, f); err != nil {
		return fmt.Errorf("adding %s to the image: %w", rel, err)
	}
	return nil
}
