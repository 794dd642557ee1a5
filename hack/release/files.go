package main

import (
	"slices"
	"strings"
)

const (
	// repository is where images and chart are published.
	repository = "ghcr.io/cloud-map-mcs"
	sourceURL  = "https://github.com/cloud-map-mcs/cloud-map-mcs-controller"
	chartName  = "cloud-map-mcs-controller"
	chartPath  = "deploy/charts/" + chartName
	plugin     = "kubectl-mcs"
)

// A program is released for some platforms.
type program struct {
	// name is that of its files and image, pkg its Go package.
	name, pkg string
	platforms []string
	hasImage  bool
}

// programs are in the order in which they are built: the plugin has the digest of the controller's
// image.
var programs = []program{
	{"cloud-map-mcs-controller", "./cmd/controller", []string{"linux/amd64", "linux/arm64"}, true},
	{"cloudmap-local", "./cmd/cloudmap-local", []string{"linux/amd64", "linux/arm64"}, true},
	{plugin, "./cmd/kubectl-mcs", []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}, false},
	{"cloudmap-probe", "./cmd/cloudmap-probe", []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}, false},
}

// A file is one build of a program.
type file struct {
	program, version, platform string
}

// stem is the beginning of the names of its files in the release.
func (f file) stem() string {
	return f.program + "_" + f.version + "_" + strings.ReplaceAll(f.platform, "/", "_")
}

// binary is the name of the program in the archive.
func (f file) binary() string {
	if strings.HasPrefix(f.platform, "windows/") {
		return f.program + ".exe"
	}
	return f.program
}

// archive is the name of the archive: what the platform's users can unpack without further tools.
func (f file) archive() string {
	if strings.HasPrefix(f.platform, "windows/") {
		return f.stem() + ".zip"
	}
	return f.stem() + ".tar.gz"
}

// imageArchive is the name of the OCI archive with the image of a program.
func imageArchive(program, version string) string { return program + "_" + version + "_image.tar" }

// imageSBOM is the name of the SBOM of an image for one platform.
func imageSBOM(program, version, platform string) string {
	return program + "_" + version + "_image_" + strings.ReplaceAll(platform, "/", "_") + ".spdx.json"
}

// platformOfSBOM returns the platform in the name of imageSBOM.
func platformOfSBOM(program, version, name string) string {
	begin, end, _ := strings.Cut(imageSBOM(program, version, "*"), "*")
	return strings.Replace(strings.TrimSuffix(strings.TrimPrefix(name, begin), end), "_", "/", 1)
}

// downloadURL is where a file of the release can be downloaded.
func downloadURL(version, name string) string {
	return sourceURL + "/releases/download/" + version + "/" + name
}

// An image is one published image.
type image struct {
	name, digest string
}

// ref returns the image by digest.
func (i image) ref(registry string) string { return registry + "/" + i.name + "@" + i.digest }

// imagesText is the content of images.txt: a line per image, with version and digest.
func imagesText(version string, images []image) string {
	var b strings.Builder
	for _, i := range images {
		b.WriteString(repository + "/" + i.name + ":" + version + "@" + i.digest + "\n")
	}
	return b.String()
}

// parseImages reads images.txt.
func parseImages(text string) []image {
	var images []image
	for line := range strings.Lines(text) {
		ref, digest, ok := strings.Cut(strings.TrimSpace(line), "@")
		name, _, _ := strings.Cut(ref[strings.LastIndex(ref, "/")+1:], ":")
		if ok {
			images = append(images, image{name, digest})
		}
	}
	return images
}

// selectPlatforms returns the programs for those of their platforms that are in the list, separated
// by commas; "" selects all.
func selectPlatforms(all []program, list string) []program {
	if list == "" {
		return all
	}
	var selected []program
	for _, p := range all {
		p.platforms = slices.DeleteFunc(slices.Clone(p.platforms), func(platform string) bool {
			return !slices.Contains(strings.Split(list, ","), platform)
		})
		selected = append(selected, p)
	}
	return selected
}
