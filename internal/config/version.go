package config

import (
	"fmt"
	"runtime"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// Version is the release, set by the build.
var Version = "dev"

// ImageDigest is the digest of the controller's image, set in the plugin of a release. "" is the
// image of the version's tag.
var ImageDigest string

// VersionText returns the output of --version.
func VersionText() string {
	return fmt.Sprintf("%s %s (%s, %s/%s)", names.Product, Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
