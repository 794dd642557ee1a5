package config

import (
	"fmt"
	"runtime"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// Version is the release, set by the build.
var Version = "dev"

// VersionText returns the output of --version.
func VersionText() string {
	return fmt.Sprintf("%s %s (%s, %s/%s)", names.Product, Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
